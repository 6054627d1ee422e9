#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Real programs under the preload library: the same output as without it."""
import hashlib

from harness import *

ALONE = {"PCPTUNE_SOCKET": ""}
ALL = {"PCPALLOC_MIN_SIZE": "1"}  # even the smallest request becomes a page


def both(cmd, more=({},), **kw):
    """Runs cmd without and with the library; the common result."""
    requires_release()
    plain = run(cmd, env=ALONE, **kw)
    for env in more:
        ours = run(cmd, env={**ALONE, "LD_PRELOAD": PRELOAD, **env}, **kw)
        assert (ours.returncode, ours.stdout, ours.stderr) == \
            (plain.returncode, plain.stdout, plain.stderr), (env, ours, plain)
    return plain


@test
def sqlite3_builds_and_drops_a_table_with_an_index():
    requires("sqlite3")
    sql = """
CREATE TABLE t(a INTEGER PRIMARY KEY, b INTEGER, c TEXT);
INSERT INTO t SELECT value, value * 7919 % 100003, 'text ' || value
  FROM generate_series(1, 60000);
CREATE INDEX i ON t(b, c);
SELECT count(*), sum(b), min(c), max(c) FROM t WHERE b > 50000;
DROP TABLE t;
CREATE TABLE u AS SELECT value v FROM generate_series(1, 1000);
SELECT sum(v) FROM u;
"""
    r = both(["sqlite3", ":memory:"], input=sql)
    assert r.returncode == 0 and "500500" in r.stdout, r


@test
def python3_makes_objects_of_5000_bytes():
    code = """
import hashlib, threading, subprocess
keep, h = [], hashlib.sha256()
def work(n):
    for i in range(20000):
        keep.append(bytes([i % 251]) * 5000)
        if len(keep) > 500:
            del keep[::2]
work(0)
for b in keep: h.update(b)
ts = [threading.Thread(target=work, args=(i,)) for i in range(4)]
[t.start() for t in ts]; [t.join() for t in ts]
a = bytearray()
for i in range(3000): a += bytes([i % 256]) * 777
h.update(a)
print(h.hexdigest(), subprocess.check_output(["echo", "child"]))
"""
    r = both([sys.executable, "-c", code])
    assert r.returncode == 0 and "child" in r.stdout, r


@test
def gcc_compiles_files_of_this_project():
    requires("gcc", "make")
    sources = ["lib/text.c", "lib/config.c", "allocator/zone.c", "allocator/pcp.c"]
    sources = [s for s in sources if os.path.exists(os.path.join(ROOT, s))]
    d = tmp()
    with open(f"{d}/Makefile", "w") as f:
        objects = " ".join(s.replace("/", "-").replace(".c", ".o") for s in sources)
        f.write(f"all: {objects}\n")
        for s in sources:
            f.write(f"{s.replace('/', '-').replace('.c', '.o')}: {ROOT}/{s}\n"
                    f"\tgcc -std=gnu17 -O2 -fPIC -D_GNU_SOURCE -DPCPTUNE_LIBDIR='\"/l\"' "
                    f"-DPCPTUNE_SYSCONFDIR='\"/e\"' -I{ROOT} -I{ROOT}/include -c $< -o $@\n")

    def build(env):
        run(["make", "-C", d, "-s", "-B", "-j2"], env={**ALONE, **env})
        digests = {}
        for name in os.listdir(d):
            if name.endswith(".o"):
                with open(f"{d}/{name}", "rb") as f:
                    digests[name] = hashlib.sha256(f.read()).hexdigest()
                os.unlink(f"{d}/{name}")
        return digests
    requires_release()
    plain = build({})
    assert len(plain) == len(sources), plain
    assert build({"LD_PRELOAD": PRELOAD}) == plain


@test
def everything_on_pages():
    """Small requests too: ls, sort, sed, awk, sh and the dynamic linker on whole pages."""
    for cmd in (["ls", "-lR", os.path.join(ROOT, "include")], ["awk", "BEGIN{for(i=0;i<9999;i++)"
                "s=s i; print length(s)}"], ["sed", "-n", "1,9p", os.path.join(ROOT, "Makefile")],
                ["sh", "-c", "for i in 1 2 3; do echo $i; done | sort -r | cat"],
                [sys.executable, "-c", "print(sum(i for i in range(99999)))"]):
        r = both(cmd, more=({}, ALL))
        assert r.returncode == 0, r


@test
def redis_server_with_io_threads():
    requires_release()
    requires("redis-server", "redis-benchmark", "redis-cli")
    d = tmp()
    port = free_port()
    p = spawn(["redis-server", "--port", port, "--bind", "127.0.0.1", "--io-threads", "2",
               "--io-threads-do-reads", "yes", "--save", "", "--appendonly", "no", "--dir", d],
              env={**ALONE, "LD_PRELOAD": PRELOAD}, stdout=subprocess.DEVNULL,
              stderr=subprocess.DEVNULL)
    cli = ["redis-cli", "-p", port]
    wait_for(lambda: run(cli + ["ping"]).stdout == "PONG\n")
    r = run(["redis-benchmark", "-p", port, "-d", "8192", "-n", "8000", "-r", "500", "-t",
             "set,get", "-c", "20", "-q"])
    assert r.returncode == 0 and "GET:" in r.stdout, r
    value = "".join(chr(97 + i % 26) for i in range(9000))
    assert run(cli + ["-x", "set", "k"], input=value).stdout == "OK\n"
    assert run(cli + ["get", "k"]).stdout == value + "\n"
    assert run(cli + ["append", "k", value]).stdout == "18000\n"
    assert run(cli + ["get", "k"]).stdout == value * 2 + "\n"
    assert p.poll() is None
    run(cli + ["shutdown", "nosave"])
    assert p.wait(10) == 0


main()
