#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Real programs under `pcptune run` while a policy changes their limits: same output, sound log."""
from harness import *


def tuned(cmd, options=("--policy", "contention"), **kw):
    requires_release()
    d = tmp()
    out, db = f"{d}/r.json", f"{d}/log.db"
    r = run([PCPTUNE, "run", *options, "--db", db, "--json", out, "--", *cmd], **kw)
    with open(out) as f:
        s = json.load(f)
    assert s["db"] == db, s
    v = run([PCPTUNE, "verify", "--db", db])
    assert v.returncode == 0, v
    with sqlite3.connect(f"file:{db}?mode=ro", uri=True) as c:
        assert c.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        n = c.execute("SELECT count(*) FROM decision").fetchone()[0]
    assert n == s["decisions"], (n, s)
    return r, s


@test
def sqlite3_with_the_contention_policy():
    requires("sqlite3")
    sql = "".join(f"""
CREATE TABLE t{i}(id INTEGER PRIMARY KEY, k INTEGER, v TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 150000)
  INSERT INTO t{i} SELECT i, (i * 7919) % 150011, printf('row %08d', i) FROM n;
CREATE INDEX i{i} ON t{i}(k);
SELECT count(*), sum(k), max(v) FROM t{i} WHERE k > 1000;
DROP TABLE t{i};
""" for i in range(4))
    plain = run(["sqlite3", ":memory:"], input=sql)
    r, s = tuned(["sqlite3", ":memory:"], input=sql)
    assert r.returncode == 0 and r.stdout == plain.stdout and plain.stdout.count("|") == 8, r
    assert s["targets"] == 1 and s["pages_allocated"] > 20000, s
    assert s["alloc_zone"] > 0 and s["lock_takes"] > 0 and s["pages_held_peak"] > 0, s
    assert s["waste_bytes"] > 0 and s["contend_pct"] is not None, s


@test
def a_parallel_build():
    requires("gcc", "make")
    d = tmp()
    names = [f"f{i}" for i in range(6)]
    for n in names:
        with open(f"{d}/{n}.c", "w") as f:
            f.write("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n")
            f.writelines(f"int {n}_{i}(int x) {{ printf(\"%d\", x); return x * {i}; }}\n"
                         for i in range(300))
    with open(f"{d}/Makefile", "w") as f:
        f.write("all: " + " ".join(n + ".o" for n in names) + "\n%.o: %.c\n\tgcc -O2 -c $< -o $@\n")

    def objects():
        data = {}
        for n in names:
            with open(f"{d}/{n}.o", "rb") as f:
                data[n] = f.read()
        return data
    assert run(["make", "-s", "-j2", "-C", d]).returncode == 0
    plain = objects()
    r, s = tuned(["make", "-s", "-B", "-j2", "-C", d])
    assert r.returncode == 0 and not r.stdout, r
    assert objects() == plain
    # make, gcc, cc1 and as, six times
    assert s["targets"] >= 18 and s["live"] == 0 and s["pages_allocated"] > 2000, s
    assert s["pages_freed"] <= s["pages_allocated"], s
    r = run(["make", "-s", "-B", "-j2", "-C", d, "CFLAGS=", "f9.o"])
    t, s = tuned(["make", "-s", "-B", "-j2", "-C", d, "CFLAGS=", "f9.o"])
    assert t.returncode == r.returncode == 2 == s["status"], (r, t)


@test
def redis_server_is_tuned_while_it_serves():
    requires_release()
    requires("redis-server", "redis-benchmark", "redis-cli")
    d = tmp()
    port = free_port()
    p = spawn([PCPTUNE, "run", "--policy", "contention", "--db", f"{d}/log.db", "--json",
               f"{d}/r.json", "--", "redis-server", "--port", port, "--bind", "127.0.0.1",
               "--io-threads", "2", "--io-threads-do-reads", "yes", "--save", "", "--appendonly",
               "no", "--dir", d], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    cli = ["redis-cli", "-p", port]
    wait_for(lambda: run(cli + ["ping"]).stdout == "PONG\n")
    # the server's threads wait for each other in loops: slow where other work takes their CPUs
    r = run(["redis-benchmark", "-p", port, "-d", "8192", "-n", "8000", "-r", "2000", "-t",
             "set,get", "-c", "20", "-q"], timeout=150)
    assert r.returncode == 0 and "GET:" in r.stdout, r
    # a child of the server that has the same data: the background save forks
    assert run(cli + ["set", "k", "v" * 20000]).stdout == "OK\n"
    assert "saving started" in run(cli + ["bgsave"]).stdout
    wait_for(lambda: os.path.exists(f"{d}/dump.rdb"))
    assert run(cli + ["get", "k"]).stdout == "v" * 20000 + "\n"
    p.send_signal(signal.SIGTERM)  # to us, for the server, which then ends in order
    assert p.wait(20) == 0
    with open(f"{d}/r.json") as f:
        s = json.load(f)
    assert s["status"] == 0 and s["signal"] is None, s
    assert s["malloc_calls"] > 4000 and s["pages_allocated"] > 12000, s
    assert run([PCPTUNE, "verify", "--db", f"{d}/log.db"]).returncode == 0


main()
