#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the process of a foreign policy can do to others: nothing, whatever it tries."""
from foreign_policy import *

HEADERS = ("#include <errno.h>", "#include <errno.h>\n#include <fcntl.h>\n#include <signal.h>\n"
           "#include <stdio.h>\n#include <sys/mman.h>\n#include <sys/ptrace.h>\n"
           "#include <sys/syscall.h>\n#include <sys/un.h>\n#include <sys/wait.h>")
ROOT_ONLY = "/etc/shadow"

# Each ends the process that tries it, whether it works or not.
ATTEMPTS = {
    "socket": "socket(AF_UNIX, SOCK_STREAM, 0);",
    "inet": "socket(AF_INET, SOCK_DGRAM, 0);",
    "forks": "fork();",
    "execs": 'execl("/bin/true", "true", (char *)0);',
    "kills": "kill(getppid(), SIGTERM);",
    "kills-all": "kill(-1, SIGKILL);",
    "stops": "syscall(SYS_tgkill, getppid(), getppid(), SIGSTOP);",
    "traces": "ptrace(PTRACE_ATTACH, getppid(), 0, 0);",
    "reads-us": "struct iovec v = {st, 4}; process_vm_readv(getppid(), &v, 1, &v, 1, 0);",
    "limits": "syscall(SYS_prlimit64, getppid(), 7, st, (void *)0);",
    "memfd": 'memfd_create("x", 0);',
    "mounts": "syscall(SYS_unshare, 0x20000);",
    "keys": 'syscall(SYS_keyctl, 0, 0, 0, 0, 0);',
    "removes": 'unlink("/tmp/none");',
    "permits": 'chmod("/tmp", 0777);',
}


def filtered():
    """Sanitizers need what a filter forbids, so what is built with them has none."""
    if VARIANT not in ("release", "debug"):
        skip(f"{VARIANT} programs run without a filter of system calls")


@test
def whatever_it_tries_ends_it_and_nobody_else():
    filtered()
    where, d = with_policies(start=False, default={"policy": "contention"}, rules=[
        {"program": name, "policy": name} for name in ATTEMPTS])
    for name, deed in ATTEMPTS.items():
        build(where, name, f"if (cpu->high == p[0]) {{ {deed} }}", change=HEADERS)
    d.start()
    other = Fake(d, name="other", step_ms=5)
    fakes = [Fake(d, name=name, step_ms=5) for name in ATTEMPTS]
    for name, f in zip(ATTEMPTS, fakes):
        t = d.target(name, policy_state="benched")
        assert "what a policy may not have, and was ended by signal 31" in t["why"], t
        assert f.dump()["cpus"][0]["high"] == 600, "the last good setting stays"
    wait_for(lambda: not children(d))
    alive(d, other)
    end(d, None, other, *fakes, replay=False)


@test
def its_constructors_run_when_everything_has_been_given_up():
    filtered()
    where, d = with_policies(default={"policy": "contention"})
    f = Fake(d, step_ms=5)
    mark = os.path.join(where, "mark")
    os.chmod(where, 0o777 | 0o1000)  # whoever it runs as, the directory would let it

    def says(text):
        build(where, "good", change=HEADERS,
              ctor=f"__attribute__((constructor)) static void c(void) {{ {text} }}")
        return d.ctl_raw({"cmd": "policy", "target": "fake", "policy": "good"})
    opens = [f'open("{mark}", O_WRONLY | O_CREAT, 0666)', f'open("{mark}", O_RDONLY | O_CREAT, 0666)']
    if os.geteuid() == 0:
        opens += [f'open("{ROOT_ONLY}", O_RDONLY)', "(getuid() ? -1 : 0)"]
    r = says("".join(f"if ({o} >= 0) raise(SIGILL);" for o in opens))
    assert r["ok"], r
    assert not os.path.exists(mark)
    for attempt in ("kill(getppid(), SIGKILL);", "fork();", f'mkdir("{mark}", 0777);',
                    f'symlink("/", "{mark}");', "socket(AF_UNIX, SOCK_STREAM, 0);"):
        r = says(attempt)
        assert not r["ok"] and "signal 31" in r["error"], (attempt, r)
        assert not os.path.lexists(mark), attempt
    assert d.proc.poll() is None
    end(d, None, f, replay=False)


@test
def nothing_that_it_had_is_left():
    filtered()
    os.environ["SECRET"] = "of the daemon"
    where, d = with_policies("good", default={"policy": "good"})
    del os.environ["SECRET"]
    f = Fake(d, step_ms=5)
    d.target("fake", policy="good", policy_state="running", unfiltered=False)
    kid, = settled(d, 1)
    with open(f"/proc/{kid}/status") as s:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in s if ":\t" in line)
    assert status["Seccomp"] == "2" and status.get("Seccomp_filters", "2") == "2", status
    for which in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(status[which], 16) == 0, status
    if os.geteuid() == 0:
        assert status["Uid"].split() == status["Gid"].split() == ["65534"] * 4, status
        assert status["Groups"].strip() == "", status
    with open(f"/proc/{kid}/environ") as e:
        assert "SECRET" not in e.read()
    end(d, where, f)


@test
def what_libc_does_by_itself_does_no_harm():
    filtered()
    deed = r"""
	char text[64], *big = malloc(4 << 20), *more;
	int v[2000];
	time_t t = 0;
	struct timespec now;
	if (open("/etc/passwd", O_RDONLY) >= 0 || errno != EACCES) abort();
	if (!big) abort();
	for (int i = 0; i < 2000; i++) v[i] = 2000 - i;
	qsort(v, 2000, sizeof(v[0]), order);
	if (v[0] != 1) abort();
	memset(big, 1, 4 << 20);
	more = realloc(big, 16 << 20);
	free(more ? more : big);
	printf("%f\n", strtod("1.5", NULL));
	fflush(stdout);
	fprintf(stderr, "hello\n");
	strftime(text, sizeof(text), "%c", localtime(&t));
	clock_gettime(CLOCK_MONOTONIC, &now);
	srand((unsigned)time(NULL));
	usleep(1000);
"""
    where, d = with_policies(
        ("good", deed), default={"policy": "good"},
        change=(HEADERS[0], HEADERS[1] + "\nstatic int order(const void *a, const void *b)\n"
                "{ return *(const int *)a - *(const int *)b; }"))
    f = Fake(d, step_ms=5)
    wait_for(lambda: f.dump()["cpus"][0]["high"] == 600)
    alive(d, f)
    d.target("fake", policy="good", policy_state="running")
    assert not d.sql("SELECT text FROM event WHERE kind = 'policy-breach'")
    end(d, None, f, replay=False)  # which runs here, and may open files


# Runs a program as one that may not have a filter of system calls: a filter says so.
NO_FILTERS = r"""#!/usr/bin/python3
import ctypes, os, platform, struct, sys
prctl, seccomp = {"x86_64": (157, 317), "aarch64": (167, 277)}[platform.machine()]
def op(code, k, t=0, f=0):
    return struct.pack("=HBBI", code, t, f, k)
EINVAL, ALLOW = 0x00050000 | 22, 0x7fff0000
code = (op(0x20, 0) + op(0x15, seccomp, 3, 0) + op(0x15, prctl, 0, 3) + op(0x20, 16) +
        op(0x15, 22, 0, 1) + op(0x06, EINVAL) + op(0x06, ALLOW))
buf = ctypes.create_string_buffer(code)
prog = ctypes.create_string_buffer(struct.pack("HP", len(code) // 8, ctypes.addressof(buf)))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, prog, 0, 0):
    sys.exit(f"no filter: {ctypes.get_errno()}")
os.execv("PROGRAM", ["PROGRAM"] + sys.argv[1:])
"""


@test
def where_there_is_no_filter_it_goes_on_and_is_seen():
    where, d = with_policies("good", start=False, default={"policy": "good"})
    if VARIANT in ("release", "debug"):
        d.program = os.path.join(where, "program")
        with open(d.program, "w") as f:
            f.write(NO_FILTERS.replace("PROGRAM", PCPTUNED))
        os.chmod(d.program, 0o755)
    d.start()
    f = Fake(d, step_ms=5)
    d.target("fake", policy="good", policy_state="running", unfiltered=True)
    wait_for(lambda: f.dump()["cpus"][0]["high"] == 600)
    said = wait_for(lambda: d.sql("SELECT text FROM event WHERE kind = 'policy-unfiltered'"))
    assert len(said) == 1 and 'policy "good": no filter of system calls' in said[0][0], said
    assert "no filter of system calls" in d.stderr()
    r = run([PCPTUNE, "status", "--socket", d.socket])
    assert "UNFILTERED" in r.stdout, r
    end(d, where, f)


@test
def a_file_that_only_root_can_read_is_refused_with_what_would_be_right():
    if os.geteuid() != 0:
        skip("only root's daemon runs policies as another user")
    where, d = with_policies("good", default={"policy": "contention"})
    f = Fake(d, step_ms=5)
    os.chmod(where + "/good.so", 0o700)
    r = d.ctl_raw({"cmd": "policy", "target": "fake", "policy": "good"})
    assert not r["ok"] and "right is a mode like 0755" in r["error"], r
    os.chmod(where + "/good.so", 0o755)
    os.chmod(where, 0o700)  # of the way to it only root needs to know
    assert d.ctl("policy", target="fake", policy="good")["state"] == "running"
    end(d, where, f)


def resident_kib(d):
    with open(f"/proc/{d.proc.pid}/status") as s:
        return int(re.search(r"VmRSS:\s+(\d+)", s.read())[1])


@test
def a_large_state_stays_with_its_process():
    """It is neither copied at each answer nor written to a log that it would fill."""
    if VARIANT != "release":
        skip("sanitizers take memory of their own")
    where, d = with_policies(
        ("good", "memset(st, (int)*n & 127, (size_t)48 << 20);"), default={"policy": "good"},
        plugin={"call_ms": 2000},
        change=("return sizeof(uint32_t);", "return (size_t)48 << 20;"))
    f = Fake(d, step_ms=5)
    wait_for(lambda: f.dump()["cpus"][0]["high"] == 600)
    alive(d, f)
    assert resident_kib(d) < 32 << 10, resident_kib(d)
    end(d, where, f)


@test
def the_state_of_a_foreign_policy_is_in_the_log_and_a_replay_begins_with_it():
    """What it decides follows from how often it was asked."""
    deed = """
	uint32_t want = 600 + *n / 64 % 2 * 100;
	if (cpu->high && cpu->high != want && !(cpu->flags & PCPTUNE_CPU_SETTLING)) {
		struct pcptune_change *c = pcptune_decision_add(d, 0, 1);
		c->high = c->high_min = c->high_max = want;
	} else {
		d->reason = 2;
	}
	return 0;"""
    where, d = with_policies(("good", deed), "quiet", interval_ms=10, default={"policy": "good"},
                             rules=[{"program": "quiet", "policy": "quiet"}], settle_ms=50)
    f = Fake(d, step_ms=5)
    quiet = Fake(d, name="quiet", step_ms=5)  # nothing but its state has a reason to be written

    def saved(target):
        return d.sql("SELECT s.seq FROM state s JOIN assignment a ON a.id = s.assignment "
                     "WHERE a.target = ?", target.id)
    at = wait_for(lambda: saved(f), 120)[0][0]
    wait_for(lambda: saved(quiet))
    decided = "SELECT count(*) FROM decision WHERE target = ? AND seq > ?"
    wait_for(lambda: d.sql(decided, f.id, at)[0][0] > 2, 30)
    end(d, where, f, quiet)
    with sqlite3.connect(d.db) as c:
        c.execute("DELETE FROM sample WHERE seq_last <= ?", (at - 200,))
    left = d.sql(decided, f.id, at)[0][0]
    assert replays(d, where) >= left > 2


main()
