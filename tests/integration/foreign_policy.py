# SPDX-License-Identifier: MIT
"""Policies that are not ours, made for a test: one source, and what is put into it."""
from daemon_fake import *

SOURCE = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <pcptune/policy.h>
static const struct pcptune_param params[] = {
	{"high", PCPTUNE_PARAM_INT, 0, 4, 100000, HIGH, "pages", "what the first CPU gets", NULL},
	{"odd", PCPTUNE_PARAM_ENUM, 0, 0, 1, 0, "", "init refuses yes", (const char *const[]){"no", "yes", NULL}},
};
static const struct pcptune_reason reasons[] = {{1, 0, "step", "step to {new:pages}"},
	{2, 1, "wait", "wait"}};
static size_t state_size(const struct pcptune_shape *s, const int64_t *p)
{ (void)s; (void)p; return sizeof(uint32_t); }
static const char *refusal(const struct pcptune_shape *s, const int64_t *p)
{ (void)s; (void)p; return "odd is for others"; }
static int init(void *st, const struct pcptune_shape *s, const int64_t *p)
{ (void)st; (void)s; return p[1] ? -EINVAL : 0; }
static int decide(void *st, const struct pcptune_shape *s, const int64_t *p,
		  const struct pcptune_sample *sample, struct pcptune_decision *d,
		  const struct pcptune_host *h)
{
	const struct pcptune_cpu *cpu = pcptune_sample_cpu(sample, 0);
	uint32_t *n = st;
	(void)s;
	++*n;
	h->trace(h->cookie, "hello");
	DEED
	if (cpu->high && cpu->high != p[0] && !(cpu->flags & PCPTUNE_CPU_SETTLING)) {
		struct pcptune_change *c = pcptune_decision_add(d, 0, 1);
		c->high = c->high_min = c->high_max = (uint32_t)p[0];
		return 0;
	}
	d->reason = 2;
	return 0;
}
CTOR
const struct pcptune_policy pcptune_policy_v1 = {
	PCPTUNE_POLICY_SIZES, .name = NAME, .version = "1", .summary = "one deed",
	.params = params, .n_params = 2,
	.reasons = reasons, .n_reasons = 2, .state_size = state_size, .init = init, .decide = decide,
	.refusal = refusal,
};
"""

# What decide() does before it answers, by name of the policy; they begin when what it set is in
# force, so that there is a setting that has to stay.
DEEDS = {
    "good": "",
    "crash": "if (cpu->high == p[0]) *(volatile int *)8 = 1;",
    "loop": "if (cpu->high == p[0]) for (volatile int i = 1; i;) ;",
    "sleeps": "if (cpu->high == p[0]) for (;;) pause();",
    "ends": "if (cpu->high == p[0]) exit(0);",
    "closes": "if (cpu->high == p[0]) { close(3); for (;;) pause(); }",
    "babbles": "if (cpu->high == p[0]) { char b[8] = {0}; send(3, b, 8, 0); send(3, b, 8, 0); }",
    "greedy": "if (cpu->high == p[0]) { char *m = malloc((size_t)1 << 30); if (!m) abort(); "
              "memset(m, 1, (size_t)1 << 30); }",
    "huge": "if (cpu->high == p[0]) for (;;) { char *m = malloc(1 << 20); if (!m) return -ENOMEM; "
            "memset(m, 1, 1 << 20); }",
    "high": "if (cpu->high == p[0]) { struct pcptune_change *c = pcptune_decision_add(d, 0, 1); "
            "c->high = UINT32_MAX - 1; return 0; }",
    "many": "if (cpu->high == p[0]) { d->n_changes = UINT32_MAX; return 0; }",
    "scribbles": "if (cpu->high == p[0]) memset((void *)sample->cpus, 0xff, "
                 "(size_t)sample->n_cpus * sample->cpu_size);",
    "slow": "if (cpu->high == p[0]) { struct timespec a, b; clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);"
            " do clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b); "
            "while ((b.tv_sec - a.tv_sec) * 1000 + (b.tv_nsec - a.tv_nsec) / 1000000 < 60); }",
}

# Another one: every CPU that it may change gets what the first one would get.
EVERY_CPU = """
	for (uint32_t i = 0; i < sample->n_cpus; i++) {
		const struct pcptune_cpu *k = pcptune_sample_cpu(sample, i);
		struct pcptune_change *c;
		if (!k->high || k->high == p[0] ||
		    k->flags & (PCPTUNE_CPU_SETTLING | PCPTUNE_CPU_HELD))
			continue;
		c = pcptune_decision_add(d, i, 1);
		c->high = c->high_min = c->high_max = (uint32_t)p[0];
	}
	d->reason = 2;
	return 0;"""


def build(where, name, deed="", high=600, ctor="", change=("", "")):
    """NAME.so with that deed; a new file in place of the old, as a linker makes it. change: what
    stands in its source, and what shall."""
    text = SOURCE.replace("NAME", f'"{name}"')
    assert change[0] in text, name
    text = text.replace(*change) if change[0] else text
    text = text.replace("DEED", deed).replace("HIGH", str(high))
    with open(f"{where}/{name}.c", "w") as f:
        f.write(text.replace("CTOR", ctor))
    r = run(["gcc", "-shared", "-fPIC", "-I", os.path.join(ROOT, "include"), "-o",
             f"{where}/{name}.new", f"{where}/{name}.c"])
    assert r.returncode == 0, r.stderr
    os.chmod(f"{where}/{name}.new", 0o755)
    os.rename(f"{where}/{name}.new", f"{where}/{name}.so")


def place():
    """A directory that policies are loaded from."""
    requires("gcc")
    d = tmp()
    os.chmod(d, 0o755)
    p = d
    while p != "/":
        m = os.stat(p).st_mode
        if m & 0o022 and not m & 0o1000:
            skip("the temporary directory is one that policies are not loaded from")
        p = os.path.dirname(p)
    return d


def path(where):
    return f"{where}:{POLICIES}"


def children(d):
    """Its processes. Those that were told to end, such as where a choice was tried, are among them
    until they are gone."""
    with open(f"/proc/{d.proc.pid}/task/{d.proc.pid}/children") as f:
        return [int(p) for p in f.read().split()]


def settled(d, n):
    """Its processes, as soon as there are n."""
    return wait_for(lambda: len(kids := children(d)) == n and set(kids))


def with_policies(*built, ctor="", change=("", ""), **keys):
    """A place with these policies, each a name, (name, deed) or (name, deed, high), and a daemon."""
    where = place()
    for one in built:
        one = (one,) if isinstance(one, str) else one
        build(where, *one, ctor=ctor, change=change)
    keys.setdefault("interval_ms", 20)
    keys.setdefault("log", {"chunk_ms": 50})
    # only tests about that time want an answer in time, however busy the machine is
    keys["plugin"] = {"answer_ms": 20000, **keys.get("plugin", {})}
    return where, Daemon(policy_path=path(where), **keys)


def replays(d, where):
    """The log of a daemon that has ended says the same once more; how many decisions it has."""
    r = run([PCPTUNE, "verify", "--db", d.db, "--policy-path", path(where), "--json"])
    assert r.returncode == 0, r
    v = json.loads(r.stdout)
    assert v["differ"] == 0, v
    return v["derived"]


def end(d, where, *fakes, replay=True):
    for f in fakes:
        f.end()
    assert d.stop() == 0
    if replay:
        replays(d, where)


def reloaded(d, **keys):
    """SIGHUP with these keys, and its end."""
    before = d.stderr().count("eloaded")
    d.configure(**keys)
    os.kill(d.proc.pid, signal.SIGHUP)
    wait_for(lambda: d.stderr().count("eloaded") > before)
