#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""trace import, export and info, as people call them."""
import stat

from harness import *

HEADER = "time_ns,cpu,order,blocks\n"
ROWS = HEADER + "1000,0,0,-63\n2000,1,2,5\n1500,0,0,63\n9223372036854775807,8191,10,-2147483648\n"


def trace(*words, **kw):
    return run([PCPTUNE, "trace", *words], **kw)


def written(text, name="walks.csv", d=None):
    path = os.path.join(d or tmp(), name)
    with open(path, "w") as f:
        f.write(text)
    return path


@test
def what_goes_in_comes_out():
    src = written(ROWS)
    out = src + ".pct"
    for words in ((src, out), (src, "-o", out), ("--output", out, src)):
        r = trace("import", *words)
        assert r.returncode == 0 and "4 rows" in r.stdout and not r.stderr, r
        assert trace("export", out).stdout == ROWS
        os.unlink(out)
    r = trace("import", "-", out, "--json", input=ROWS)
    assert r.returncode == 0 and json.loads(r.stdout)["rows"] == 4, r
    assert trace("export", out, src + ".2").returncode == 0
    o = json.loads(trace("export", out, src + ".2", "--json").stdout)
    assert o == {"file": src + ".2", "rows": ROWS.count("\n") - 1, "bytes": len(ROWS)}, o
    for to in ([], ["-"]):
        r = trace("export", "--json", out, *to)
        assert r.returncode == 2 and not r.stdout and "-o FILE" in r.stderr, r
    with open(src + ".2") as f:
        assert f.read() == ROWS
    assert sorted(os.listdir(os.path.dirname(src))) == ["walks.csv", "walks.csv.2", "walks.csv.pct"]


@test
def lines_of_other_systems_are_read_and_what_is_no_text_is_not():
    rows = ROWS.split("\n")
    for text in ("\r\n".join(rows), "\ufeff" + ROWS, "\ufeff" + "\r\n".join(rows), ROWS[:-1]):
        src = written(text)
        r = trace("import", src, src + ".pct")
        assert r.returncode == 0, (text, r)
        assert trace("export", src + ".pct").stdout == ROWS, text
    for text, line in (("1,0,0,5\0", 2), ("1,0,0,5\0\n2,0,0,5\n", 2), ("1,0,0,5\n\0\0\0", 3),
                       ("1,0,0,5\n\ufeff2,0,0,5\n", 3), ("1,0,0," + "5" * 200, 2)):
        src = written(HEADER + text)
        r = trace("import", src, src + ".pct")
        assert r.returncode == 1 and f"line {line}:" in r.stderr and not r.stdout, (text, r)
        assert not os.path.exists(src + ".pct")
    r = trace("import", tmp(), src + ".pct")
    assert r.returncode == 1 and "Is a directory" in r.stderr, r


@test
def a_dash_is_standard_output():
    d = tmp()
    src = written(ROWS, d=d)
    assert trace("import", src, "a.pct", cwd=d).returncode == 0
    r = subprocess.run([PCPTUNE, "trace", "import", src, "-o", "-"], capture_output=True, cwd=d)
    with open(os.path.join(d, "a.pct"), "rb") as f:
        assert r.returncode == 0 and r.stdout == f.read() and not r.stderr, r
    r = trace("export", "a.pct", "-", cwd=d)
    assert r.returncode == 0 and r.stdout == ROWS, r
    r = trace("import", src, "-", "--json", cwd=d)
    assert r.returncode == 2 and not r.stdout, r
    r = run([PCPTUNE, "record", "-o", "-", "--", "true"], cwd=d)
    assert r.returncode == 2 and "file" in r.stderr and not r.stdout, r
    assert sorted(os.listdir(d)) == ["a.pct", "walks.csv"]


@test
def a_trace_from_a_pipe_is_read_once():
    src = written(ROWS)
    assert trace("import", src, src + ".pct").returncode == 0

    def piped(*words):
        with open(src + ".pct", "rb") as f:
            cat = spawn(["cat"], stdin=f, stdout=subprocess.PIPE)
        return run([PCPTUNE, *words], stdin=cat.stdout)

    assert trace("info", src + ".pct", "-j").stdout.count('"bytes":' + str(os.path.getsize(src + ".pct")))
    r = piped("trace", "info", "/dev/stdin")
    assert r.returncode == 0 and "4 rows of 3 CPUs\n" in r.stdout, r
    assert json.loads(piped("trace", "info", "/dev/stdin", "-j").stdout)["bytes"] is None
    assert piped("trace", "export", "/dev/stdin").stdout == ROWS
    assert piped("curve", "--trace", "/dev/stdin", "-j").returncode == 0
    r = piped("eval", "--trace", "/dev/stdin", "--policy", "static", "--policy-path", POLICIES)
    assert r.returncode == 1 and "a pipe will not do" in r.stderr and not r.stdout, r


@test
def what_is_no_file_stays_what_it_is_and_a_link_a_link():
    d = tmp()
    src, fifo, link, old = (os.path.join(d, n) for n in ("walks.csv", "fifo", "link", "old.pct"))
    written(ROWS, d=d)
    os.mkfifo(fifo)
    reader = spawn(["cat", fifo], stdout=subprocess.PIPE)
    r = trace("import", src, fifo)
    assert r.returncode == 0 and stat.S_ISFIFO(os.stat(fifo).st_mode), r
    reader.stdout.buffer.read()
    written("precious", "old.pct", d)
    os.chmod(old, 0o600)
    os.symlink(old, link)
    r = trace("import", src, link)
    assert r.returncode == 0 and os.path.islink(link), r
    assert stat.S_IMODE(os.stat(old).st_mode) == 0o600
    assert trace("export", old).stdout == ROWS
    r = run(["sh", "-c", '"$0" trace export "$1" /dev/stdout | cat', PCPTUNE, old])
    assert r.stdout == ROWS, r
    r = trace("import", src, d)
    assert r.returncode == 1 and "Is a directory" in r.stderr, r
    assert sorted(os.listdir(d)) == ["fifo", "link", "old.pct", "walks.csv"]


@test
def what_is_interrupted_leaves_nothing_behind_and_what_is_ignored_is():
    for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        d = tmp()
        p = spawn([PCPTUNE, "trace", "import", "-", os.path.join(d, "o.pct")], stdin=subprocess.PIPE,
                  preexec_fn=lambda: [signal.signal(s, signal.SIG_DFL) for s in range(1, 4)])
        wait_for(lambda: os.listdir(d))
        p.send_signal(sig)
        assert p.wait(10 * SLOW) == -sig and not os.listdir(d), (sig, p.returncode, os.listdir(d))
    d = tmp()
    out = os.path.join(d, "o.pct")
    p = spawn([PCPTUNE, "trace", "import", "-", out], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
              preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    wait_for(lambda: os.listdir(d))
    p.send_signal(signal.SIGHUP)
    time.sleep(0.1)
    p.communicate(ROWS, 10 * SLOW)
    assert p.returncode == 0 and os.listdir(d) == ["o.pct"]


@test
def info_describes_a_trace():
    src = written(HEADER + "1000,0,0,-63\n2000,1,2,5\n1500,0,0,63\n")
    trace("import", src, src + ".pct")
    j = json.loads(trace("info", src + ".pct", "--json").stdout)
    assert (j["rows"], j["cpus"], j["whole"], j["backwards"]) == (3, 2, True, 1), j
    assert (j["alloc_pages"], j["free_pages"]) == (63, 83), j
    assert (j["first_ns"], j["last_ns"]) == (1000, 2000), j
    assert j["rows_by_order"] == {"0": 2, "2": 1}, j
    text = trace("info", src + ".pct").stdout
    assert "3 rows of 2 CPUs" in text and "63 allocated, 83 freed" in text, text


@test
def more_pages_than_there_are_have_no_number():
    src = written(HEADER + "0,0,10,2147483648\n" * (1 << 22) + "0,0,10,-2147483648\n" * 5)
    assert trace("import", src, src + ".pct").returncode == 0
    j = json.loads(trace("info", src + ".pct", "--json").stdout)
    assert j["free_pages"] is None and j["alloc_pages"] == 5 << 41, j
    assert j["rows_by_order"] == {"10": (1 << 22) + 5}, j
    assert "10,995,116,277,760 allocated, 2^63 or more freed" in trace(
        "info", src + ".pct").stdout
    for words in (("eval", "--policy", "static", "--trace"), ("curve", "--trace")):
        r = run([PCPTUNE, *words, src + ".pct"], env={"PCPTUNE_POLICY_PATH": POLICIES})
        assert r.returncode == 1 and not r.stdout, r
        assert f"{src}.pct: more than 2^52 pages" in r.stderr, r


@test
def an_empty_trace_is_a_trace():
    src = written(HEADER)
    assert trace("import", src, src + ".pct").returncode == 0
    assert trace("export", src + ".pct").stdout == HEADER
    assert json.loads(trace("info", "-j", src + ".pct").stdout)["rows"] == 0


@test
def a_wrong_line_leaves_nothing_behind():
    src = written(HEADER + "1,0,0,1\n2,0,zero,1\n")
    out = written("as it was", "out.pct", os.path.dirname(src))
    r = trace("import", src, out)
    assert r.returncode == 1 and "walks.csv: line 3: order is a whole number, 0 to 10" in r.stderr, r
    with open(out) as f:
        assert f.read() == "as it was"
    assert sorted(os.listdir(os.path.dirname(src))) == ["out.pct", "walks.csv"]


@test
def damage_and_cuts_are_told_after_the_good_rows():
    n = 70000
    src = written(HEADER + "".join(f"{i},0,0,1\n" for i in range(n)))
    out = src + ".pct"
    trace("import", src, out)
    with open(out, "rb") as f:
        whole = f.read()
    with open(out, "wb") as f:
        f.write(whole[:-40])
    r = trace("info", out, "--json")
    j = json.loads(r.stdout)
    assert r.returncode == 1 and j["whole"] is False and j["rows"] == 65536, r
    assert "65536 rows before it are good" in r.stderr and j["error"] in r.stderr, r
    damaged = bytearray(whole)
    damaged[-60] ^= 1
    with open(out, "wb") as f:
        f.write(damaged)
    r = trace("export", out)
    assert r.returncode == 1 and len(r.stdout.splitlines()) == 65537, r.returncode
    assert f"{n - 65536} of {n} are lost" in r.stderr, r.stderr


@test
def foreign_and_missing_files_are_told():
    d = tmp()
    r = trace("info", written("hello", d=d))
    assert r.returncode == 1 and "not a trace; right is" in r.stderr, r
    r = trace("info", os.path.join(d, "none"))
    assert r.returncode == 1 and "No such file" in r.stderr, r
    r = trace("import", os.path.join(d, "none"), os.path.join(d, "out"))
    assert r.returncode == 1 and "No such file" in r.stderr, r
    r = trace("import", written(ROWS, d=d), os.path.join(d, "no", "dir"))
    assert r.returncode == 1 and "No such file" in r.stderr, r


@test
def wrong_words_are_usage_errors():
    for words, text in ((("inport", "x", "y"), "did you mean \"import\"?"),
                        (("import", "x"), "where to write"),
                        (("info", "x", "y"), "info writes no file"),
                        (("import", "x", "y", "-o", "z"), "one word too many"), ((), "missing:")):
        r = trace(*words)
        assert r.returncode == 2 and text in r.stderr, r


main()
