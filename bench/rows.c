/* SPDX-License-Identifier: MIT */
/*
 * rows: does the live allocator put the generations in the order in which the simulator puts them?
 *
 * A workload of processes (configs/workloads) is run twice for each generation: in the simulator,
 * and by threads that call pcpa_alloc() and pcpa_free(). What the threads ask for comes from the
 * simulator's own demand.c, by a clock of each thread that counts what calls and computing would
 * take there; so both see the same kind of demand, drawn with other dice, and no figure here is a
 * time. Compared are pages from the zone for each page allocated, from the first page on.
 *
 * The same on both sides: bounds of high, batch, one zone, no decay (without a daemon the allocator
 * has none). Not the same: the simulator has two lists of order 0, the allocator one; and whether a
 * batch is kept at frees of high orders (p3) the allocator takes from the caches of this machine.
 *
 * Each generation is a process of its own, forked before the first allocation.
 */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <pcpalloc.h>
#include "eval/sim/internal.h"
#include "eval/sim/workload.h"
#include "lib/text.h"

#define TIE 0.02 /* what the simulator has this near each other, as a share, is in no order */

static const char *const names[] = {"g0", "g1", "g2", "g3", "p1", "p3", "p5", "p7", "g4", "g5"};
#define N_ROWS (sizeof(names) / sizeof(names[0]))

struct outcome {
	uint64_t alloc_pages, alloc_zone, free_high;
};

/* ---- live ---- */

struct stack {
	void **block;
	size_t n, room;
};

struct thread {
	pthread_t id;
	const struct sim_workload *w;
	uint32_t index, n;
	bool real, failed;
	struct stack stack[N_LISTS];
};

static const uint32_t orders[N_LISTS] = {0, 0, 1, 2, 3};

static bool push(struct stack *s, void *block)
{
	if (s->n == s->room) {
		size_t room = s->room ? 2 * s->room : 4096;
		void **grown = reallocarray(s->block, room, sizeof(*grown));

		if (!grown)
			return false;
		s->block = grown;
		s->room = room;
	}
	s->block[s->n++] = block;
	return block != NULL;
}

static bool run_leg(struct thread *th, const struct leg *l)
{
	struct stack *s = &th->stack[l->list];

	for (uint32_t i = 0; i < l->left; i++)
		if (l->take && !push(s, pcpa_alloc(orders[l->list])))
			return false;
		else if (!l->take && s->n)
			pcpa_free(s->block[--s->n], orders[l->list]);
	return true;
}

/* The events of one CPU, without a zone to wait for. */
static bool run_cpu(struct thread *th, struct sim *s)
{
	struct cpu *c = &s->cpu[0];
	uint64_t t = c->next, end = (uint64_t)th->w->run_ns;

	while (t < end) {
		struct leg l;

		if (c->n_bursts && c->burst[c->burst_first] <= t) {
			c->burst_first = (c->burst_first + 1) % BURSTS;
			c->n_bursts--;
			sim_slab_burst(s, c);
		} else if (!c->n_legs) {
			sim_demand(s, c, t);
			t = c->next > t ? c->next : t;
			t += c->compute;
			c->compute = 0;
			continue;
		}
		if (!c->n_legs)
			continue;
		l = c->legs[--c->n_legs];
		if (!run_leg(th, &l))
			return false;
		t += (uint64_t)l.left * l.ns;
	}
	return true;
}

static void pin(uint32_t index)
{
	cpu_set_t all, one;

	if (sched_getaffinity(0, sizeof(all), &all))
		return;
	for (uint32_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &all) && !index--) {
			CPU_ZERO(&one);
			CPU_SET(cpu, &one);
			sched_setaffinity(0, sizeof(one), &one);
		}
}

static void *thread_main(void *arg)
{
	struct thread *th = arg;
	struct sim *s = calloc(1, sizeof(*s) + sizeof(s->cpu[0]));

	if (th->real)
		pin(th->index);
	th->failed = !s;
	if (s) {
		s->w = th->w;
		s->n = 1;
		s->random = 1000 + th->index;
		s->slab_blocks = sim_slab_blocks(th->w);
		s->cpu[0].next = sim_random(s) % 100000000;
		th->failed = !run_cpu(th, s);
	}
	free(s);
	return NULL;
}

static int run_threads(const struct sim_workload *w, uint32_t cpus, bool real)
{
	struct thread *th = calloc(cpus, sizeof(*th));
	uint32_t n = 0;
	int e = th ? 0 : ENOMEM;

	for (; !e && n < cpus; n += !e) {
		th[n].w = w;
		th[n].index = n;
		th[n].real = real;
		e = pthread_create(&th[n].id, NULL, thread_main, &th[n]);
	}
	for (uint32_t i = 0; i < n; i++) {
		pthread_join(th[i].id, NULL);
		e = th[i].failed ? ENOMEM : e;
	}
	return e;
}

/* In a process of its own: it ends without giving anything back. */
static int live_child(const struct sim_workload *w, uint32_t cpus, const char *name, int out)
{
	bool real = cpus <= (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
	struct pcpa_stats s = {.size = sizeof(s)};
	struct outcome o;
	char text[32];

	snprintf(text, sizeof(text), "%u", cpus);
	if (!real)
		setenv("PCPALLOC_CPUS", text, 1);
	setenv("PCPALLOC_ZONES", "1", 1);
	setenv("PCPALLOC_RULES", name, 1);
	setenv("PCPALLOC_AGENT", "0", 1);
	setenv("PCPTUNE_SOCKET", "", 1);
	pcpa_free(pcpa_alloc(4), 4); /* the heap is there, no list was used */
	uint32_t rules = 0, max;

	pcptune_rules_parse(name, &rules);
	max = (uint32_t)(pcptune_rules_traits(rules) & PCPTUNE_RT_TUNES ? w->high_max
									: w->high_min);
	if (pcpa_set_limits((unsigned)w->high_min, (unsigned)w->high_min, max,
			    (unsigned)w->batch) ||
	    run_threads(w, cpus, real) || pcpa_get_stats(&s))
		return 1;
	o = (struct outcome){s.alloc_pages, s.alloc_zone, s.free_high};
	return write(out, &o, sizeof(o)) != sizeof(o);
}

static int live(const struct sim_workload *w, uint32_t cpus, const char *name, struct outcome *ret)
{
	int fd[2], status;
	pid_t child;
	ssize_t n;

	if (pipe(fd))
		return -errno;
	child = fork();
	if (!child)
		_exit(live_child(w, cpus, name, fd[1]));
	close(fd[1]);
	n = child > 0 ? read(fd[0], ret, sizeof(*ret)) : -1;
	close(fd[0]);
	if (child > 0)
		waitpid(child, &status, 0);
	return n == sizeof(*ret) && !status ? 0 : -EIO;
}

/* ---- simulated ---- */

static int simulated(const struct sim_workload *w, uint32_t cpus, const char *name,
		     struct outcome *ret)
{
	struct sim_setup setup = {.w = w, .cpus = cpus, .seed = 1};
	char why[SIM_RUN_WHY] = "";
	struct sim_result r;
	int e;

	pcptune_rules_parse(name, &setup.rules);
	e = sim_run(&setup, &r, why);
	if (e)
		fprintf(stderr, "rows: %s\n", why);
	else
		*ret = (struct outcome){r.alloc_pages, r.alloc_zone, r.free_high};
	return e;
}

/* ---- the table ---- */

static double share(const struct outcome *o)
{
	return o->alloc_pages ? (double)o->alloc_zone / (double)o->alloc_pages : 0;
}

static int order(double a, double b, double tie)
{
	double most = a > b ? a : b;

	return fabs(a - b) <= tie * most ? 0 : a < b ? -1 : 1;
}

/* Returns how many pairs that the simulator puts in an order the allocator puts in the other. */
static int print(const struct outcome *l, const struct outcome *s)
{
	struct text_table *t = text_table_new();
	static const char *const titles[] = {"rules", "alloc_zone/1000 live", "simulated",
					     "ratio", "free_high/M live",     "simulated"};
	unsigned pairs = 0, held = 0;

	if (!t)
		return -1;
	for (size_t i = 0; i < sizeof(titles) / sizeof(titles[0]); i++)
		text_table_column(t, titles[i], i ? '>' : '<');
	for (size_t i = 0; i < N_ROWS; i++) {
		text_table_cell(t, "%s", names[i]);
		text_table_cell(t, "%.1f", 1000 * share(&l[i]));
		text_table_cell(t, "%.1f", 1000 * share(&s[i]));
		text_table_cell(t, "%.2f", share(&s[i]) / share(&l[i]));
		text_table_cell(t, "%.1f", 1e6 * (double)l[i].free_high / (double)l[i].alloc_pages);
		text_table_cell(t, "%.1f", 1e6 * (double)s[i].free_high / (double)s[i].alloc_pages);
		text_table_end_row(t);
	}
	text_table_print(t, stdout, false);
	text_table_free(t);
	for (size_t i = 0; i < N_ROWS; i++)
		for (size_t k = i + 1; k < N_ROWS; k++) {
			int o = order(share(&s[i]), share(&s[k]), TIE);
			int lo = order(share(&l[i]), share(&l[k]), 0);

			pairs += o != 0;
			held += o && o == lo;
			if (o && o != lo)
				printf("not held: %s %s %s\n", names[i], o < 0 ? "below" : "above",
				       names[k]);
		}
	printf("orderings of the simulator, by more than 2 %%, held by the allocator: %u of %u\n",
	       held, pairs);
	return (int)(pairs - held);
}

static int usage(void)
{
	fputs("usage: rows WORKLOAD.conf CPUS [SECONDS]\n", stderr);
	return 2;
}

int main(int argc, char **argv)
{
	struct outcome l[N_ROWS] = {0}, s[N_ROWS] = {0};
	struct sim_workload w;
	char why[SIM_WHY] = "", *end = "";
	long cpus = argc > 2 ? strtol(argv[2], &end, 10) : 0;

	if (argc < 3 || argc > 4 || *end || cpus < 1 || cpus > SIM_CPUS_MAX)
		return usage();
	if (sim_workload_read(argv[1], &w, why)) {
		fprintf(stderr, "rows: %s\n", why);
		return 1;
	}
	if (w.window || w.kept > 0) {
		fprintf(stderr, "rows: %s: has streams, or pages that outlive their process\n",
			argv[1]);
		return 1;
	}
	if (argc > 3)
		w.run_ns = (int64_t)(atof(argv[3]) * 1e9);
	w.nodes = 1;
	w.warm_ns = 0;
	w.tick_ns = INT64_C(1) << 60;
	for (size_t i = 0; i < N_ROWS; i++)
		if (live(&w, (uint32_t)cpus, names[i], &l[i]) ||
		    simulated(&w, (uint32_t)cpus, names[i], &s[i])) {
			fprintf(stderr, "rows: %s failed\n", names[i]);
			return 1;
		}
	printf("%s, %ld %sCPUs, %.1f s of each CPU's clock\n", argv[1], cpus,
	       cpus <= sysconf(_SC_NPROCESSORS_ONLN) ? "" : "virtual ", (double)w.run_ns / 1e9);
	return print(l, s) ? 3 : 0;
}
