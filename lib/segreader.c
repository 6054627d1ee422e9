/* SPDX-License-Identifier: MIT */
/*
 * Reads a segment that a stranger wrote, a few nanoseconds a CPU.
 *
 * Trust. The header is copied once with pread(), checked, and never looked at again, so nothing
 * that was checked can change after. Everything else is loaded a word at a time, each word exactly
 * once, into values that are then bounded: gauges to the ranges of segment.h (policies shift by
 * them), counters to differences that an interval can hold. A target can lie about itself; it can
 * not make the reader fault, loop or overflow. Holes that a target punches into its memfd read as
 * zeros; huge-page files, where a hole may fault, are refused.
 *
 * Cost. Lines of memory are what counts: those of a target were written by other cores. So the
 * first line of a CPU says what else is worth a look: which lists were ever used, and, by the
 * number of its holds of the zone lock, whether any counter that is written under it moved. Most
 * CPUs are at rest. List words only go up, so their plain sum moves when any of them does; tails,
 * gauges and holds are added with odd factors of their own. One number a CPU is kept: when it is
 * the same as last time the CPU is at rest and nothing of it is decoded or written. The number is
 * taken before the words are decoded: a change in between is seen by the next pass, never lost. A
 * CPU that was active a moment ago most likely still is, so it is decoded without taking the number
 * first; when it turns out to rest, one more full pass begins the number anew. Of an active CPU, a
 * list that did not move costs two compares, and all plain counters together one check of their
 * range. Lines are asked for early, and what is kept for a CPU lies together.
 *
 * Order. A list's word and tail are two words that different steps of the allocator move; the
 * reader takes word, tail, word and starts again when word moved, so that the pair was true at one
 * moment. Acquire loads keep the three in order; the allocator's stores have to become visible in
 * the order that it makes them. Counters are independent of each other and relaxed: what one pass
 * misses the next one has. The number of holds is stored after the counters of the hold, with
 * release, and loaded before them, with acquire: so a number that was seen stands for all of them.
 *
 * Who writes what: the control words, the lease and `wake` are ours alone and are stored relaxed
 * except for ctl.seq, which is stored last, with release, and read by the allocator with acquire;
 * everything else we only read. A reader belongs to one thread.
 */
#include "lib/segreader_private.h"

#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <pcptune/rules.h>

#ifndef BETWEEN_READS
#define BETWEEN_READS(list) (void)0 /* where a test lets a target get in between */
#endif

#define AHEAD	   4  /* CPUs whose words are fetched before they are needed */
#define READ_TRIES 16 /* of a list; three loads from one line each */
#define LISTS_ALL  ((1u << PCPTUNE_N_LISTS) - 1)
#define OPS_MASK   ((UINT64_C(1) << 40) - 1)
/* More than this in one interval is nonsense: pages and calls; nanoseconds of many threads. */
#define DELTA_BITS 40
#define DELTA_MAX  (UINT64_C(1) << DELTA_BITS)
/*
 * Operations wrap at 2^40, so one that went backwards shows as nearly so many, half of each kind.
 */
#define DELTA_OPS_MAX (UINT64_C(1) << 38)
#define DELTA_NS_MAX  (UINT64_C(1) << 48)
/* ... and since the start of a target that may have run for months before it was attached */
#define TOTAL_MAX (UINT64_C(1) << 56)

/* Largest believable value of each gauge; rows of counters.def without a line here do not build. */
#define MAX_high	 PCPTUNE_MAX_HIGH
#define MAX_high_min	 PCPTUNE_MAX_HIGH
#define MAX_high_max	 PCPTUNE_MAX_HIGH
#define MAX_batch	 PCPTUNE_MAX_BATCH
#define MAX_scale_max	 PCPTUNE_MAX_SCALE
#define MAX_rules	 PCPTUNE_RULES_MAX
#define MAX_alloc_factor 16u
#define MAX_free_count	 PCPTUNE_MAX_HIGH
#define MAX_count	 (2 * PCPTUNE_MAX_HIGH) /* count overshoots high by a refill or a block */

/* Before a loop over the lists: unrolled, the orders are constants and the loop costs nothing. */
#define EACH_LIST _Pragma("GCC unroll 5")

/* Odd factors, so that opposite moves of two tails or gauges do not cancel out in the sum. */
static const uint64_t mix[] = {
	0x9e3779b97f4a7c15, 0xc2b2ae3d27d4eb4f, 0x165667b19e3779f9, 0xd6e8feb86659fd93,
	0xa0761d6478bd642f, 0xe7037ed1a0b428db, 0x8ebc6af09c88c6e3, 0x589965cc75374cc3,
	0x1d8e4e27c47d124f, 0xeb44accab455d165, 0x9fb21c651e98df25, 0xbf58476d1ce4e5b9,
	0x94d049bb133111eb, 0xff51afd7ed558ccd, 0xc4ceb9fe1a85ec53, 0x87c37b91114253d5,
};

struct list_reading {
	uint64_t word, net;
	uint32_t count; /* blocks */
};

/* mod 2^40 */
static inline uint64_t ops_of(const struct list_reading *l)
{
	return (l->word - l->net) >> 24;
}

/*
 * word and tail as they were at one moment. word never comes back to an old value (its operation
 * count only grows), so tail was read while word was what it is, when both readings of word agree.
 * The other way round, tail twice around word, would not do: a refill and a drain of the same size
 * bring tail back. false: the list is too busy just now.
 */
static bool read_list(const struct pcptune_list *l, struct list_reading *ret)
{
	for (int tries = 0; tries < READ_TRIES; tries++) {
		uint64_t word = ACQUIRE(&l->word);
		uint64_t tail = (uint64_t)ACQUIRE(&l->tail);

		BETWEEN_READS(l);
		if (LOAD(&l->word) != word)
			continue;
		/* unsigned all through: a hostile tail may be anything */
		ret->word = word;
		ret->count = (uint32_t)((word - tail) & PCPTUNE_WORD_MASK);
		ret->net = tail + ret->count;
		return true;
	}
	return false;
}

/* Bits of the lists that are worth a look. */
static inline uint32_t lists_in_use(const struct pcptune_cpu_block *b, struct cpu_before *p)
{
	return p->lists |= (uint8_t)(LOAD(&b->pcp.lists) & LISTS_ALL);
}

/* Readings of those alone, and what they hold. false: one was too busy. */
static bool read_lists(const struct pcptune_cpu_block *b, uint32_t used, struct list_reading *lists,
		       uint32_t *ret_pages)
{
	uint64_t pages = 0;

	for (uint32_t m = used; m; m &= m - 1) {
		uint32_t i = (uint32_t)__builtin_ctz(m);

		if (!read_list(&b->list[i], &lists[i]))
			return false;
		pages += (uint64_t)lists[i].count << list_orders[i];
	}
	*ret_pages = pages < MAX_count ? (uint32_t)pages : MAX_count;
	return true;
}

/* See the essay: the same number means that nothing of this CPU moved. */
static inline uint64_t cpu_sum(const struct pcptune_cpu_block *b, uint32_t used)
{
	uint32_t m = 0;
	uint64_t sum = LOAD(&b->pcp.holds) * mix[m++];

#define PCPTUNE_GAUGE(field, unit, line, para) sum += LOAD(&b->pcp.field) * mix[m++];
#define PCPTUNE_PCTR(field, unit, line, para)  sum += LOAD(&b->pcp.field);
#include <pcptune/counters.def>
	EACH_LIST
	for (uint32_t i = 0; i < PCPTUNE_N_LISTS; i++)
		if (used >> i & 1)
			sum += LOAD(&b->list[i].word) +
			       (uint64_t)LOAD(&b->list[i].tail) * mix[m + i];
	return sum;
}

#define PCPTUNE_GAUGE(field, unit, line, para) +1
enum {
	N_GAUGES = 0
#include <pcptune/counters.def>
};
_Static_assert(1 + N_GAUGES + PCPTUNE_N_LISTS <= sizeof(mix) / sizeof(mix[0]), "a factor for each");

static void read_gauges(const struct pcptune_cpu_block *b, struct pcptune_cpu *c)
{
#define PCPTUNE_GAUGE(field, unit, line, para) c->field = min_u32(LOAD(&b->pcp.field), MAX_##field);
#include <pcptune/counters.def>
}

static void no_deltas(struct pcptune_cpu *c)
{
#define PCPTUNE_LIST(field, unit, line, para) c->field = 0;
#define PCPTUNE_ZCTR(field, unit, line, para) c->field = 0;
#define PCPTUNE_PCTR(field, unit, line, para) c->field = 0;
#include <pcptune/counters.def>
}

/* p's word is not kept: it follows from what is, see segment.h. */
static inline bool list_moved(const struct list_before *p, const struct list_reading *l)
{
	return l->net != p->net || l->word != (p->ops << 24) + p->net;
}

/*
 * Differences of the lists into c, readings into p. false: no allocator can have made them (more
 * blocks moved than operations done).
 */
static bool list_deltas(struct cpu_before *before, const struct list_reading *lists, bool first,
			struct pcptune_cpu *c)
{
	uint64_t bad = 0, alloc = 0, freed = 0;

	for (uint32_t m = before->lists; m; m &= m - 1) {
		uint32_t i = (uint32_t)__builtin_ctz(m);
		struct list_before *p = &before->list[i];
		uint64_t ops, net, allocs, frees, max, wrong;

		if (!list_moved(p, &lists[i]))
			continue; /* most orders, most of the time: all differences are 0 */
		ops = (ops_of(&lists[i]) - p->ops) & OPS_MASK;
		net = lists[i].net - p->net;
		allocs = (ops - net) >> 1;
		frees = (ops + net) >> 1;
		max = first ? OPS_MASK : DELTA_OPS_MAX >> list_orders[i];
		/* a negative one shows as a huge one; an odd sum is half an operation */
		wrong = (uint64_t)(allocs > max) | (uint64_t)(frees > max) | ((ops ^ net) & 1);
		p->ops = wrong ? ops_of(&lists[i]) : p->ops + ops; /* a reset is no wrap */
		p->net = lists[i].net;
		bad |= wrong;
		alloc += allocs << list_orders[i];
		freed += frees << list_orders[i];
	}
	c->alloc_pages = alloc;
	c->free_pages = freed;
	return !bad;
}

static inline uint64_t max_of(const char *unit, bool first)
{
	return first ? TOTAL_MAX : unit[0] == 'n' ? DELTA_NS_MAX : DELTA_MAX;
}

static bool counters_sane(const struct pcptune_cpu *c, bool first)
{
	uint64_t bad = 0;

#define PCPTUNE_ZCTR(field, unit, line, para) bad |= c->field > max_of(unit, first);
#define PCPTUNE_PCTR(field, unit, line, para) bad |= c->field > max_of(unit, first);
#include <pcptune/counters.def>
	return !bad;
}

/*
 * As long as this stands still, all plain counters do: those in zctr are written by holds. Never 0,
 * so that what was not read yet is not taken for read.
 */
static inline uint64_t mark_now(const struct pcptune_cpu_block *b)
{
	uint64_t mark = UINT64_C(1) << 63 | ACQUIRE(&b->pcp.holds);

#define PCPTUNE_PCTR(field, unit, line, para) mark += LOAD(&b->pcp.field);
#include <pcptune/counters.def>
	return mark;
}

/* Differences of the plain counters into c, values into p. Returns all of them or-ed. */
static uint64_t counter_deltas(struct counters_before *p, const struct pcptune_cpu_block *b,
			       struct pcptune_cpu *c)
{
	uint64_t any = 0, now, delta;

#define TAKE(from, field)           \
	now = LOAD(&(from)->field); \
	delta = now - p->field;     \
	c->field = delta;           \
	p->field = now;             \
	any |= delta;
#define PCPTUNE_ZCTR(field, unit, line, para) TAKE(&b->zctr, field)
#define PCPTUNE_PCTR(field, unit, line, para) TAKE(&b->pcp, field)
#include <pcptune/counters.def>
#undef TAKE
	return any;
}

#define LISTS_ONLY (PCPTUNE_CPU_ACTIVE | PCPTUNE_CPU_LISTS_ONLY)
#define OWN_FLAGS  (LISTS_ONLY | PCPTUNE_CPU_UNKNOWN)

static void no_counters(struct pcptune_cpu *c)
{
#define PCPTUNE_ZCTR(field, unit, line, para) c->field = 0;
#define PCPTUNE_PCTR(field, unit, line, para) c->field = 0;
#include <pcptune/counters.def>
}

/*
 * Deltas against what was before, which moves on to now. counted: the plain counters of c may not
 * be 0. Returns flags: ACTIVE, LISTS_ONLY, UNKNOWN or none; *ret_counted: are they not 0 now?
 */
static uint32_t take_deltas(struct segreader *sr, uint32_t index, const struct pcptune_cpu_block *b,
			    const struct list_reading *lists, bool counted, struct pcptune_cpu *c,
			    bool *ret_counted)
{
	struct cpu_before *p = &sr->before[index];
	bool first = sr->first, sane = list_deltas(p, lists, first, c);
	uint64_t any = 0, mark = mark_now(b);

	/* half the work, and lines of the target, of ours and of c that need not be touched */
	if (mark != p->mark)
		any = counter_deltas(&sr->counters[index], b, c);
	else if (counted)
		no_counters(c);
	p->mark = mark;
	/* what fits in few bits together does so one by one: no compare for each */
	if (any >> DELTA_BITS)
		sane &= counters_sane(c, first);
	*ret_counted = any && sane;
	if (!sane) {
		no_deltas(c);
		return PCPTUNE_CPU_UNKNOWN;
	}
	if (!any)
		return c->alloc_pages | c->free_pages ? LISTS_ONLY : 0;
	/*
	 * rarely not 0; the tests also keep the two from being loaded as one before they are stored
	 */
	if (c->alloc_direct)
		c->alloc_pages += c->alloc_direct;
	if (c->free_direct)
		c->free_pages += c->free_direct;
	return PCPTUNE_CPU_ACTIVE;
}

/* Something moved, or the caller's entry is new: everything afresh. */
static uint32_t sample_full(struct segreader *sr, uint32_t index, struct pcptune_cpu *c)
{
	const struct pcptune_cpu_block *b = cpu_block(sr, index);
	struct cpu_before *p = &sr->before[index];
	struct list_reading lists[PCPTUNE_N_LISTS];
	uint32_t flags, state, before = p->state, used = lists_in_use(b, p);
	bool rebase = sr->rebase || (before & STATE_REBASE);
	bool counted = false;

	sr->fetched_lists |= used;
	/* at rest now: the sum, of words before the last gauges were read, has to begin anew */
	state = before & STATE_MOVES ? STATE_FORCED : 0;
	read_gauges(b, c);
	if (read_lists(b, used, lists, &c->count)) {
		flags = take_deltas(sr, index, b, lists, sr->all || before & STATE_COUNTED, c,
				    &counted);
		if (rebase) {
			no_deltas(c);
			counted = false;
			flags = 0;
		}
	} else {
		/* previous values stay: the next pass sees this interval and its own together */
		no_deltas(c);
		flags = PCPTUNE_CPU_UNKNOWN;
		state = STATE_FORCED | (rebase ? STATE_REBASE : 0);
	}
	if (flags & PCPTUNE_CPU_ACTIVE)
		state = STATE_MOVES | (counted ? STATE_COUNTED : 0);
	c->flags = (c->flags & ~OWN_FLAGS) | flags;
	p->state = (uint8_t)(state | (flags ? STATE_SHOWN : 0));
	return flags;
}

static void sample_rest(struct segreader *sr, uint32_t index, struct pcptune_cpu *c)
{
	no_deltas(c);
	c->flags &= ~OWN_FLAGS;
	sr->before[index].state = 0;
}

static void set_places(const struct segreader *sr, struct pcptune_cpu *cpus)
{
	for (uint32_t i = 0; i < sr->n; i++) {
		cpus[i].zone = i / sr->h.n_cpus;
		cpus[i].cpu = i % sr->h.n_cpus;
	}
}

/* Is nothing to be done for a CPU but to say so? Keeps its sum up. */
static inline bool rests(struct segreader *sr, uint32_t index)
{
	const struct pcptune_cpu_block *b = cpu_block(sr, index);
	struct cpu_before *p = &sr->before[index];
	uint64_t sum;
	bool same;

	if (p->state & STATE_MOVES)
		return false; /* most likely it still does: saves a pass over its words */
	sum = cpu_sum(b, lists_in_use(b, p));
	same = sum == p->sum;
	p->sum = sum;
	return same && !sr->all && !(p->state & STATE_FORCED);
}

/*
 * The words of a CPU that works were written by another core since the last pass: each of its lines
 * comes from far, and the pattern of those that are read is not one that hardware guesses. What is
 * kept on our side was last used an interval ago, and is cold, too.
 */
static inline __attribute__((always_inline)) void fetch(const struct segreader *sr, uint32_t index)
{
	/* always: gcc leaves out calls of a function that does nothing else, as without effect */
	const struct pcptune_cpu_block *b = cpu_block(sr, index);

	__builtin_prefetch(&b->pcp);
	EACH_LIST
	for (uint32_t i = 0; i < PCPTUNE_N_LISTS; i++)
		if (sr->fetched_lists >> i & 1)
			__builtin_prefetch(&b->list[i]);
	__builtin_prefetch(&sr->before[index]);
	if (sr->seen)
		__builtin_prefetch((const struct pcptune_cpu *)sr->seen + index, 1);
}

/* While one target is looked at, the lines of the next are on their way: time enough for all. */
static void fetch_next(struct segreader *sr, uint32_t index)
{
	struct segreader *next = sr->next;
	uint32_t ahead = index + AHEAD;

	if (next && index < next->n) {
		fetch(next, index);
		next->n_fetched = index + 1;
	}
	if (ahead < sr->n && ahead >= sr->n_fetched)
		fetch(sr, ahead);
}

void segreader_next(struct segreader *sr, struct segreader *next)
{
	sr->next = next;
}

uint32_t segreader_sample(struct segreader *sr, struct pcptune_cpu *cpus, uint32_t *active)
{
	uint32_t n_active = 0;

	sr->all = sr->first || sr->rebase || sr->seen != cpus;
	if (sr->all)
		set_places(sr, cpus);
	for (uint32_t i = 0; i < sr->n; i++) {
		fetch_next(sr, i);
		if (rests(sr, i)) {
			if (sr->before[i].state)
				sample_rest(sr, i, &cpus[i]);
		} else if (sample_full(sr, i, &cpus[i]) & PCPTUNE_CPU_ACTIVE) {
			active[n_active++] = i;
		}
	}
	sr->first = sr->rebase = false;
	sr->seen = cpus;
	sr->next = NULL;
	sr->n_fetched = 0;
	return n_active;
}

void segreader_rebase(struct segreader *sr)
{
	sr->rebase = true;
}

void segreader_cpu_total(struct segreader *sr, uint32_t index, struct pcptune_cpu *ret)
{
	const struct pcptune_cpu_block *b = cpu_block(sr, index);
	struct list_reading lists[PCPTUNE_N_LISTS];
	struct counters_before zero = {0};
	uint32_t used = lists_in_use(b, &sr->before[index]);
	bool sane = true;

	memset(ret, 0, sizeof(*ret));
	ret->zone = index / sr->h.n_cpus;
	ret->cpu = index % sr->h.n_cpus;
	read_gauges(b, ret);
	if (!read_lists(b, used, lists, &ret->count)) {
		ret->flags = PCPTUNE_CPU_UNKNOWN;
		return;
	}
	for (uint32_t m = used; m; m &= m - 1) {
		uint32_t i = (uint32_t)__builtin_ctz(m);
		/* the samples folded what wrapped; the last stretch comes on top */
		uint64_t folded = sr->before[index].list[i].ops;
		uint64_t ops = folded + ((ops_of(&lists[i]) - folded) & OPS_MASK);
		uint64_t net = lists[i].net;
		uint64_t allocs = (ops - net) >> 1, frees = (ops + net) >> 1;
		sane &= allocs <= TOTAL_MAX >> 9 && frees <= TOTAL_MAX >> 9;
		ret->alloc_pages += allocs << list_orders[i];
		ret->free_pages += frees << list_orders[i];
	}
	counter_deltas(&zero, b, ret);
	if (!counters_sane(ret, true) || !sane) {
		no_deltas(ret);
		ret->flags = PCPTUNE_CPU_UNKNOWN;
		return;
	}
	ret->alloc_pages += ret->alloc_direct;
	ret->free_pages += ret->free_direct;
}

/* ---- control ---- */

void segreader_control_write(struct segreader *sr, uint32_t index, const struct control *c,
			     uint32_t *ret_seq)
{
	struct pcptune_ctl *ctl = &cpu_block(sr, index)->ctl;
	uint32_t seq = LOAD(&ctl->seq) + 1; /* goes on where a daemon before us stopped */

	if (!seq)
		seq = 1; /* 0 would say "nothing was ever asked" */
	STORE(&ctl->high, c->high);
	STORE(&ctl->high_min, c->high_min);
	STORE(&ctl->high_max, c->high_max);
	STORE(&ctl->batch, c->batch);
	STORE(&ctl->scale_max, c->scale_max);
	STORE(&ctl->rules, c->rules);
	STORE(&ctl->drain, c->drain);
	STORE(&ctl->decision, c->decision);
	__atomic_store_n(&ctl->seq, seq, __ATOMIC_RELEASE); /* the values above come with it */
	*ret_seq = seq;
}

void segreader_control_read(const struct segreader *sr, uint32_t index, struct control *ret,
			    uint32_t *ret_seq, uint32_t *ret_ack)
{
	const struct pcptune_cpu_block *b = cpu_block(sr, index);

	/* ack before seq: seq is ours alone, so an ack that equals it is never older news */
	*ret_ack = ACQUIRE(&b->pcp.ack_seq);
	*ret_seq = ACQUIRE(&b->ctl.seq);
	ret->high = LOAD(&b->ctl.high);
	ret->high_min = LOAD(&b->ctl.high_min);
	ret->high_max = LOAD(&b->ctl.high_max);
	ret->batch = LOAD(&b->ctl.batch);
	ret->scale_max = LOAD(&b->ctl.scale_max);
	ret->rules = LOAD(&b->ctl.rules);
	ret->drain = LOAD(&b->ctl.drain);
	ret->decision = LOAD(&b->ctl.decision);
}

void segreader_lease(struct segreader *sr, uint64_t until_ns)
{
	/* release: control words written before the lease was given up for good are seen with it */
	__atomic_store_n(&live_header(sr)->lease_until_ns, until_ns, __ATOMIC_RELEASE);
}

void segreader_wake(struct segreader *sr)
{
	uint32_t *wake = &live_header(sr)->wake;

	/*
	 * The agent reads `wake`, looks for work, and sleeps if `wake` is still the same: the
	 * addition (release) after our stores makes it either see them or not fall asleep. Not
	 * FUTEX_PRIVATE: the word is shared between processes.
	 */
	__atomic_fetch_add(wake, 1, __ATOMIC_RELEASE);
	syscall(SYS_futex, wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
