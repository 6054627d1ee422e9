#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`pcptune run`: exit status, environment, summary, private and running daemons, logs."""
import fcntl
import glob

from run_program import *

API = os.path.join(TOOLS, "preload_api")
PAGES = [sys.executable, "-c", "x = [bytes(9000) for i in range(3000)]"]
KEYS = ("program status signal wall_s targets live pages_allocated pages_freed alloc_zone free_zone "
        "alloc_direct free_direct refills drains free_high lock_takes lock_contended lock cpu_us contend_pct "
        "contend_pct_alloc contend_pct_free pages_held pages_held_peak decisions dry_run "
        "malloc_calls malloc_bytes malloc_pages malloc_passed waste_bytes db log_error daemon "
        "error").split()


@test
def the_summary_counts_what_the_program_did():
    r, s = tuned(*PAGES)
    assert r.returncode == 0 and r.stdout == "", r
    for k in KEYS:
        assert k in s, k
    assert s["pages_allocated"] >= 3000 * 3, s
    assert s["malloc_calls"] >= 3000 and s["malloc_bytes"] >= 3000 * 9000, s
    assert s["waste_bytes"] == s["malloc_pages"] * 4096 - s["malloc_bytes"], s
    assert 0 < s["alloc_zone"] and 0 < s["lock_takes"], s
    assert s["lock_takes"] == s["lock"]["alloc"]["taken"] + s["lock"]["free"]["taken"], s
    assert 0 <= s["contend_pct"] <= 100 * os.cpu_count() and s["cpu_us"] > 0, s
    assert s["pages_held_peak"] >= s["pages_held"], s
    assert s["program"] == PAGES[0] and s["status"] == 0 and s["signal"] is None
    assert s["daemon"] == "private" and s["error"] is None and s["live"] == 0, s
    assert os.path.exists(s["db"])
    for word in ("exit status 0", "pages allocated", "per 1000", "zone lock, alloc", "contend%",
                 "held on lists", "peak", "rounding waste", "decisions", s["db"], "pcptune log"):
        assert word in r.stderr, (word, r.stderr)
    log = run([PCPTUNE, "log", "--db", s["db"], "--json"])
    assert log.returncode == 0, log
    assert len(log.stdout.splitlines()) == s["decisions"], (s["decisions"], log.stdout[-500:])
    assert s["alloc_direct"] < 1000, s
    # 25 pages: no list has such
    r, s = tuned(sys.executable, "-c", "x = [bytes(100000) for i in range(500)]")
    assert 500 * 25 <= s["alloc_direct"] <= s["alloc_zone"], s


@test
def counts_are_exact_for_the_smallest_program():
    r, s = tuned(API, "short")
    assert r.returncode == 0, r
    # two blocks of 3 pages and the one of the destructor, 7 pages: whole blocks of a list
    assert s["targets"] == 1 and s["pages_allocated"] == 4 + 4 + 8, s
    assert (s["malloc_calls"], s["malloc_pages"]) == (3, 16), s
    assert s["malloc_bytes"] == 9000 + 3 * 4096 + 7 * 4096, s


@test
def child_processes_take_part():
    r, s = tuned("sh", "-c", f"{API} short & {API} short; wait; {API} plain")
    assert r.returncode == 0, r
    assert s["targets"] >= 3 and s["live"] == 0, s
    assert s["pages_allocated"] >= 2 * 16, s


@test
def settings_that_mean_nothing_are_told_before_the_program_runs():
    requires_release()
    for verb in (("run", "--quiet", "--private"), ("record", "-o", os.path.join(tmp(), "t.pct"))):
        r = run([PCPTUNE, *verb, "--", "sh", "-c", "echo here"],
                env={"XDG_RUNTIME_DIR": runtime_dir(), "PCPALLOC_HIGH": "0", "PCPALLOC_RULES": "g6",
                     "PCPALLOC_HIGHT": "1"})
        told = [x for x in r.stderr.splitlines() if "PCPALLOC" in x]
        assert r.returncode == 0 and r.stdout.startswith("here\n"), r
        assert sorted(told) == [
            f"pcptune {verb[0]}: PCPALLOC_HIGH=0: not a number from 1 to 8388608 "
            "(pages, fixed high to start with); it counts as left out",
            f"pcptune {verb[0]}: PCPALLOC_HIGHT=1: there is no such setting, see pcpalloc(3); "
            "it counts as left out"], told


@test
def exit_status_is_the_programs():
    for code in (0, 1, 3, 77, 126, 127, 255):
        r, s = tuned("sh", "-c", f"exit {code}")
        assert r.returncode == code and s["status"] == code and s["signal"] is None, (r, s)
        assert f"exit status {code}" in r.stderr, r


@test
def a_program_that_crashes_gives_its_signal_and_the_summary():
    for sig in (signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL, signal.SIGTERM, signal.SIGPIPE):
        r, s = tuned("sh", "-c", f"{API} short; ulimit -c 0; kill -{int(sig)} $$")
        assert r.returncode == 128 + sig and s["signal"] == sig and s["status"] == 128 + sig, r
        assert s["pages_allocated"] == 16, s
        assert f"signal {int(sig)}" in r.stderr, r


@test
def a_program_that_is_not_there_gives_127_or_126():
    d = tmp()
    with open(f"{d}/plain", "w") as f:
        f.write("nothing\n")
    os.mkdir(f"{d}/dir")
    for cmd, code in (("no-such-program-here", 127), (f"{d}/none", 127), (f"{d}/plain", 126),
                      (f"{d}/plain/x", 127), (f"{d}/dir", 126)):
        r, s = tuned(cmd)
        assert r.returncode == code and s["status"] == code, (cmd, r)
        assert cmd in r.stderr and "not started" in r.stderr, r
        assert s["pages_allocated"] == 0 and s["targets"] == 0, s


@test
def input_output_and_arguments_are_untouched():
    r, s = tuned("cat", input="as it was\n" * 2000)
    assert r.stdout == "as it was\n" * 2000 and r.returncode == 0, r
    r, s = tuned("printf", "%s|", "--", "-p", "a b", "", "--json")
    assert r.stdout == "--|-p|a b||--json|", r
    r, s = tuned("sh", "-c", "echo out; echo err >&2", options=["--quiet"])
    assert (r.stdout, r.stderr) == ("out\n", "err\n"), r
    # options end at the first word, also without "--"
    r = run([PCPTUNE, "run", "-q", "--private", "echo", "--quiet"])
    assert (r.returncode, r.stdout) == (0, "--quiet\n"), r


@test
def a_summary_from_before_stays_until_there_is_another():
    requires_release()
    out = os.path.join(tmp(), "r.json")
    with open(out, "w") as f:
        f.write("precious" * 1000)
    r = run([PCPTUNE, "run", "--policy", "nosuch", "--json", out, "--", "true"])
    assert r.returncode == 3, r
    with open(out) as f:
        assert f.read() == "precious" * 1000
    assert run([PCPTUNE, "run", "-q", "--private", "--json", out, "--", "true"]).returncode == 0
    with open(out) as f:
        assert json.load(f)["status"] == 0


@test
def json_on_standard_output():
    r, _ = tuned("true", options=["--json", "-"], json_file=False)
    assert json.loads(r.stdout)["status"] == 0, r
    r, _ = tuned("echo", "first", options=["--json", "-", "-q"], json_file=False)
    first, second = r.stdout.splitlines()
    assert first == "first" and json.loads(second)["program"] == "echo" and not r.stderr, r


@test
def the_environment_of_the_program():
    show = ["sh", "-c", 'echo "$LD_PRELOAD|$PCPTUNE_SOCKET|$PCPTUNE_RUN_TAG|'
            '$PCPALLOC_MIN_SIZE|$PCPALLOC_MAX_SIZE"']
    r, _ = tuned(*show, options=["--min-size", "8k", "--max-size", "1m"])
    preload, sock, tag, lo, hi = r.stdout.strip().split("|")
    assert os.path.samefile(preload, PRELOAD), r
    assert sock.endswith("/sock") and (lo, hi) == ("8192", "1048576"), r
    assert re.fullmatch("[0-9a-f]{16}", tag) and int(tag, 16), tag
    r, _ = tuned(*show)
    assert r.stdout.endswith("||\n") and tag not in r.stdout, r
    # what was preloaded before stays, behind ours, and ours comes once
    libc = next(line.split()[-1] for line in open("/proc/self/maps") if "libm" in line or
                "libc" in line)
    r, _ = tuned(*show, env={"LD_PRELOAD": libc})
    assert r.stdout.split("|")[0] == f"{preload}:{libc}", r
    r, _ = tuned(*show, env={"LD_PRELOAD": f"{preload}:{libc}"})
    assert r.stdout.split("|")[0] == f"{preload}:{libc}", r


@test
def size_bounds_choose_what_is_ours():
    r, s = tuned(*PAGES, options=["--min-size", "16k"])
    assert s["malloc_bytes"] < 3000 * 9000, s
    r, s = tuned(API, "plain", "65536", "1048576", options=["--min-size=64k", "--max-size=1m"])
    assert r.returncode == 0 and not r.stdout, r


@test
def a_zone_that_is_too_small_passes_requests_on():
    r, s = tuned(sys.executable, "-c", "x = [bytes(9000) for i in range(3000)]\n"
                 "print(sum(map(len, x)))", env={"PCPALLOC_SIZE": "4m"})
    assert r.returncode == 0 and r.stdout == "27000000\n", r
    assert s["malloc_passed"] > 2000 and 0 < s["malloc_pages"] < 9000, s


@test
def wrong_command_lines_start_nothing():
    d = tmp()
    mark = os.path.join(d, "mark")
    touch = ["--", "touch", mark]
    for opts, code, words in (
            ([], 2, ["run"]),
            (["--no-such", *touch], 2, ["no-such"]),
            (["--policy"], 2, ["policy"]),
            (["--min-size", "0", *touch], 2, ["min-size"]),
            (["--min-size", "many", *touch], 2, ["min-size", "many"]),
            (["--max-size", "8m", *touch], 2, ["max-size", "4194304"]),
            (["--min-size", "8k", "--max-size", "4k", *touch], 2, ["above"]),
            (["--set", "high", *touch], 2, ["KEY=VALUE"]),
            (["--set", "High=3", *touch], 2, ["KEY=VALUE"]),
            (["--set", "a;b=3", *touch], 2, ["KEY=VALUE"]),
            (["--json", f"{d}/none/x", *touch], 1, [f"{d}/none/x"]),
            (["--policy", "contenton", *touch], 3, ["contenton", "contention"]),
            (["--policy", 'a"; b = "c', *touch], 2, ['a']),
            (["--policy", "static", "--set", "hihg=3", *touch], 2, ["hihg", "high"]),
            (["--policy", "static", "--set", "high=-3", *touch], 2, ["high"]),
            (["--policy", "static", "--set", "high=3", *touch], 2, ["4 pages and more"]),
            (["--db", "/proc/none/log.db", *touch], 1, ["/proc/none"])):
        r = run([PCPTUNE, "run", *opts])
        assert r.returncode == code, (opts, r)
        for w in words:
            assert w in r.stderr, (opts, w, r.stderr)
        assert "pcptuned.conf" not in r.stderr, r.stderr
        assert not os.path.exists(mark), opts
        assert not glob.glob(os.path.join(runtime_dir(), "pcptune-run-*")), opts


@test
def policy_and_parameters_reach_the_daemon():
    r, s = tuned(*PAGES, options=["--policy", "static", "--set", "high=555", "--set", "batch=31",
                                  "--set", "rules=g0"])
    assert r.returncode == 0, r
    with sqlite3.connect(f"file:{s['db']}?mode=ro", uri=True) as c:
        text = "\n".join(str(row) for row in c.execute("SELECT * FROM assignment"))
    assert "static" in text and "555" in text and "31" in text, text


@test
def without_a_daemon_the_program_runs_all_the_same():
    requires_release()
    d = tmp()
    # a copy of the installation without pcptuned
    os.makedirs(f"{d}/bin")
    os.makedirs(f"{d}/lib")
    shutil.copy(PCPTUNE, f"{d}/bin/pcptune")
    shutil.copy(PRELOAD, f"{d}/lib/")
    out = f"{d}/r.json"
    for opts in ([], ["--policy", "contention"]):
        r = run([f"{d}/bin/pcptune", "run", *opts, "--json", out, "--", "sh", "-c",
                 'echo "[$PCPTUNE_SOCKET]"; exit 5'], env={"PATH": "/usr/bin:/bin"})
        assert r.returncode == 5 and r.stdout == "[]\n", r
        assert "own rules" in r.stderr and "pcptuned" in r.stderr, r
        with open(out) as f:
            s = json.load(f)
        assert s["status"] == 5 and s["daemon"] is None and s["error"], s
        assert all(k in s for k in KEYS) and s["pages_allocated"] is None, s


@test
def a_running_daemon_is_used_unless_asked_otherwise():
    requires_release()
    d = Daemon()
    out = os.path.join(d.dir, "r.json")
    r = run([PCPTUNE, "run", "--json", out, "--", *PAGES], env={"PCPTUNE_SOCKET": d.socket})
    assert r.returncode == 0 and d.db in r.stderr, r
    with open(out) as f:
        s = json.load(f)
    assert s["daemon"] == "running" and s["db"] == d.db and s["pages_allocated"] > 9000, s
    assert len(d.sql("SELECT id FROM target")) == 1
    r = run([PCPTUNE, "run", "--private", "--json", out, "--", *PAGES],
            env={"PCPTUNE_SOCKET": d.socket})
    with open(out) as f:
        s = json.load(f)
    assert r.returncode == 0 and s["daemon"] == "private" and s["db"] != d.db, s
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    assert re.fullmatch(re.escape(state) + r"/pcptune/run-\d{8}-\d{6}-\d+\.db", s["db"]), s
    os.unlink(s["db"])
    assert len(d.sql("SELECT id FROM target")) == 1
    # a socket that nobody listens on
    r = run([PCPTUNE, "run", "--json", out, "--", *PAGES], env={"PCPTUNE_SOCKET": d.dir + "/none"})
    with open(out) as f:
        s = json.load(f)
    assert r.returncode == 0 and s["daemon"] == "private", s
    os.unlink(s["db"])


@test
def runs_may_be_nested():
    d = tmp()
    inner = os.path.join(d, "inner.json")
    r, s = tuned(PCPTUNE, "run", "-q", "--json", inner, "--", *PAGES)
    assert r.returncode == 0, r
    with open(inner) as f:
        i = json.load(f)
    assert i["daemon"] == "running" and i["db"] == s["db"] and i["pages_allocated"] >= 9000, i
    r, s = tuned(PCPTUNE, "run", "-q", "--private", "--db", f"{d}/2.db", "--json", inner, "--",
                 *PAGES)
    with open(inner) as f:
        i = json.load(f)
    assert i["daemon"] == "private" and i["db"] == f"{d}/2.db", i
    assert i["pages_allocated"] >= 9000, i


@test
def descriptors_are_those_that_we_were_given():
    requires_release()
    d = tmp()
    show = ["sh", "-c", f"for f in 0 1 2 3 4 5 6 7 8 9; do [ -e /proc/$$/fd/$f ] && echo $f; "
            f"done > {d}/fds.new; mv {d}/fds.new {d}/fds"]
    for closed in ((), (0,), (1,), (2,), (0, 1, 2)):
        answers = []
        for cmd in (show, [PCPTUNE, "run", "--db", f"{d}/log.db", "--json", f"{d}/r.json", "--",
                           *show]):
            p = spawn(cmd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                      preexec_fn=lambda: [os.close(fd) for fd in closed])
            assert p.wait(20) == 0, (closed, cmd)
            with open(f"{d}/fds") as f:
                answers.append(f.read())
            os.unlink(f"{d}/fds")
        assert answers[0] == answers[1], (closed, answers)
        with open(f"{d}/r.json") as f:
            assert json.loads(f.read())["status"] == 0


@test
def a_thousand_short_processes_in_one_run():
    r, s = tuned("sh", "-c", f"i=0; while [ $i -lt 1000 ]; do {API} short || exit 1; "
                 "i=$((i+1)); done")
    assert r.returncode == 0, r
    # the shell itself may ask for pages, too
    assert 1000 <= s["targets"] <= 1001 and s["live"] == 0, s
    assert s["pages_allocated"] >= 16000, s
    assert s["malloc_calls"] >= 3000 and s["malloc_pages"] >= 13000, s


@test
def without_a_place_for_the_log_the_program_runs():
    requires_release()
    for env in ({"XDG_STATE_HOME": "/proc/none"}, {"HOME": "/dev/null", "XDG_STATE_HOME": ""}):
        r = run([PCPTUNE, "run", "--private", "--json", "-", "--", "sh", "-c",
                 f"{API} short; exit 6"], env=env)
        assert r.returncode == 6 and "exit status 6" in r.stderr, r
        s = json.loads(r.stdout)
        place = env["XDG_STATE_HOME"] or env["HOME"]
        assert s["db"] is None and place in s["log_error"] and s["error"] is None, s
        assert s["targets"] >= 1 and s["pages_allocated"] > 0, s
        assert f"log                none ({place}" in r.stderr, r.stderr
        assert "pcptune log" not in r.stderr, "a command for a log that is not there"


@test
def the_summary_says_no_more_than_there_was():
    r, s = tuned("true")
    assert s["targets"] == 0 and s["pages_allocated"] == 0 and os.path.exists(s["db"]), s
    assert "none made a page-grain request" in r.stderr and len(r.stderr.splitlines()) == 2, r
    r, s = tuned("/nonexistent/program")
    assert r.returncode == 127 and "not started" in r.stderr and "malloc" not in r.stderr, r
    r, s = tuned(API, "short")
    assert 0 < s["pages_allocated"] < 1000 and "per 1000" not in r.stderr, r
    for n, word in re.findall(r"\b([0-9,]+) (pages?|takes?|calls?)\b", r.stderr):
        assert (n == "1") == (word[-1] != "s"), r.stderr


@test
def a_program_with_a_sanitizer_runs_as_the_documentation_says():
    requires_release()
    requires("gcc")
    exe = os.path.join(tmp(), "asan")
    r = run(["gcc", "-fsanitize=address", "-x", "c", "-", "-o", exe], input="""
        #include <stdlib.h>
        int main(void) { char *volatile p = malloc(9000); p[0] = 1; free(p); return 0; }""")
    if r.returncode:
        skip("gcc has no AddressSanitizer")
    r, s = tuned(exe)
    assert r.returncode == 1 and "ASan runtime does not come first" in r.stderr, r
    r, s = tuned(exe, env={"ASAN_OPTIONS": "verify_asan_link_order=0"})
    assert r.returncode == 0 and s["malloc_calls"] >= 1, (r, s)


def old_log(d, day, pid, age_days):
    path = f"{d}/run-202511{day:02}-101112-{pid}.db"
    for part in ("", "-wal", "-shm", ".lock"):
        with open(path + part, "w"):
            pass
        os.utime(path + part, (time.time() - age_days * 86400,) * 2)
    return path


@test
def logs_of_old_runs_are_removed_but_none_in_use():
    requires_release()
    state = tmp()
    d = os.path.join(state, "pcptune")
    os.mkdir(d)
    old, used, young = (old_log(d, 1, i, age) for i, age in ((1, 31), (2, 31), (3, 29)))
    mine = [os.path.join(d, name) for name in ("run-of-march.db", "pcptuned.db",
                                               "run-20251101-101112-4.db.keep")]
    for path in mine:
        with open(path, "w"):
            pass
        os.utime(path, (1, 1))
    link = os.path.join(d, "run-20251101-101112-5.db")
    os.symlink(mine[0], link)
    with open(used + ".lock") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        r = run([PCPTUNE, "run", "--private", "--", "true"], env={"XDG_STATE_HOME": state})
    assert r.returncode == 0, r
    assert not glob.glob(old + "*"), os.listdir(d)
    assert len(glob.glob(used + "*")) == len(glob.glob(young + "*")) == 4, os.listdir(d)
    assert all(map(os.path.exists, [*mine, link])), os.listdir(d)
    os.remove(link)
    for i in range(120):
        old_log(d, 2, 100 + i, 20 - i / 10)
    r = run([PCPTUNE, "run", "--private", "--", "true"], env={"XDG_STATE_HOME": state})
    assert r.returncode == 0, r
    left = [n for n in os.listdir(d) if re.fullmatch(r"run-\d+-\d+-\d+\.db", n)]
    assert len(left) == 100, left
    assert "run-20251102-101112-219.db" in left and "run-20251102-101112-100.db" not in left, left
    # a log that was named is nobody's to count
    run([PCPTUNE, "run", "--db", f"{state}/x.db", "--", "true"], env={"XDG_STATE_HOME": state})
    assert len([n for n in os.listdir(d) if n.endswith(".db")]) == 102, os.listdir(d)


@test
def every_place_for_the_private_directory():
    requires_release()
    d = tmp()
    deep = os.path.join(d, "x" * 90)
    os.mkdir(deep)
    locked = os.path.join(d, "none")
    show = ["sh", "-c", "echo $PCPTUNE_SOCKET"]
    for env, place in (({"XDG_RUNTIME_DIR": d, "TMPDIR": "/tmp"}, d),
                       ({"XDG_RUNTIME_DIR": deep, "TMPDIR": d}, d),
                       ({"XDG_RUNTIME_DIR": "", "TMPDIR": d}, d),
                       ({"XDG_RUNTIME_DIR": locked, "TMPDIR": "relative"}, "/tmp")):
        r = run([PCPTUNE, "run", "-q", "--db", f"{d}/log.db", "--", *show], env=env)
        assert r.returncode == 0 and r.stdout.startswith(place + "/pcptune-run-"), (env, r)
        assert not os.path.exists(os.path.dirname(r.stdout.strip())), r


# ---- signals ----


main()
