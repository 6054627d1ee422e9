/* SPDX-License-Identifier: MIT */
/*
 * Our side of malloc: page-grain blocks and how long they are.
 *
 * Lengths. free() is told an address alone. A block of up to 8 pages is one buddy block, and the
 * tag of its first page has its order. A longer one is a row of buddy blocks: how many pages it has
 * is kept in a table beside the zone, 16 bits for each of its pages, reserved at the first block
 * and backed by memory only where rows begin. The blocks of a row are marked (PCPA_ROW), since each
 * of them looks like a block of its own otherwise. All this is written by the thread that owns the
 * block, before it returns the address and before it gives the pages back. free() takes the length
 * out with an exchange, so that of two frees of one row (a bug of the program) only one gets
 * through, and the other is reported.
 *
 * Recursion. `inside` is set while this thread is in the allocator. A request that comes then
 * (from thread creation, the dynamic linker, the error callback, a signal handler) goes to the next
 * malloc; frees are served, because the allocator puts off what it can not do at once.
 *
 * Counters. malloc_* are words of the process that all threads write. To keep threads from
 * fighting for one cache line at every call, each thread gathers up to 1/32 of what it has done,
 * 64 calls at most, in one word (preload_fast.h), and adds that in one go. A thread that ends, a
 * fork and exit() add the rest, so the totals are exact from then on; a process that is killed or
 * calls _exit() takes it along.
 */
#include <pcptune/settings.h>

#include "allocator/pcp.h"
#include "allocator/preload_fast.h"
#include "allocator/agent.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE	    ((size_t)PCPA_PAGE_SIZE)
#define DEFAULT_MIN PAGE
#define DEFAULT_MAX PCPA_MAX_EXACT
_Static_assert(PCPA_MAX_EXACT == (size_t)4 << 20, "settings.def has it");
#define GATHER_SHIFT 5
#define FEW_CALLS    8u

size_t preload_lo, preload_span = SIZE_MAX;
struct preload_only_zone preload_only_zone;

enum state { UNREAD, READY, PASS_ON };
static uint32_t state; /* enum state; moves away from UNREAD once */

static uint16_t *lengths[PCPTUNE_MAX_ZONES]; /* pages of the row that begins at a page */
#define WHOLE PRELOAD_FAST_PAGES /* blocks of up to so many pages have their length in their tag */

static PRELOAD_TLS bool inside;

static size_t pages_of(size_t size)
{
	return pcpa_exact_pages(size);
}

/* ---- settings ---- */

static size_t setting(enum pcptune_setting_id id, size_t def)
{
	return pcptune_setting_or(id, getenv(pcptune_settings[id].name), def);
}

/* Of the sizes that are ours, those that the fast path serves, or none. */
static void set_fast_sizes(bool none)
{
	size_t lo = preload_lo, end = preload_lo + preload_span + 1;

	if (lo < PRELOAD_FAST_LEAST)
		lo = PRELOAD_FAST_LEAST;
	if (end > PRELOAD_FAST_SIZE + 1)
		end = PRELOAD_FAST_SIZE + 1;
	pcpa_put(&pcpa_fast.preload.lo, lo);
	__atomic_store_n(&pcpa_fast.preload.sizes, none || end < lo ? 0 : end - lo,
			 __ATOMIC_RELEASE);
}

static void set_range(size_t min, size_t max)
{
	bool none = min > max;

	__atomic_store_n(&preload_lo, none ? SIZE_MAX : min, __ATOMIC_RELAXED);
	__atomic_store_n(&preload_span, none ? 0 : max - min, __ATOMIC_RELAXED);
	__atomic_store_n(&state, none ? PASS_ON : READY, __ATOMIC_RELEASE);
}

/*
 * Before libc has the environment (calls of the dynamic linker), everything is passed on and
 * nothing is decided.
 */
void preload_zone_setup(void)
{
	bool was = inside;
	int e = errno;

	if (!environ || was || __atomic_load_n(&state, __ATOMIC_ACQUIRE) != UNREAD)
		return;
	inside = true;
	if (preload_next_is_bound(preload_our_malloc, preload_our_free)) {
		pcpa_heap_is_preload();
		set_range(setting(PCPTUNE_SET_MIN_SIZE, DEFAULT_MIN),
			  setting(PCPTUNE_SET_MAX_SIZE, DEFAULT_MAX));
	} else {
		set_range(1, 0);
	}
	inside = was;
	errno = e;
}

void preload_zone_forget(void)
{
	set_fast_sizes(true);
	preload_lo = 0;
	preload_span = SIZE_MAX;
	state = UNREAD;
}

/* ---- the counters ---- */

PRELOAD_TLS struct preload_mine preload_mine;

/* What of this thread is not in the counters of the process yet, but for preload_mine. */
struct gathered {
	uint64_t bytes, pages, calls;
	uint64_t limit; /* calls that preload_mine began with */
	uint64_t total;
	bool known;  /* we tried to hear of the end of this thread */
	bool at_end; /* and will: it adds the rest */
};

static PRELOAD_TLS struct gathered mine;
static pthread_key_t at_thread_end;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool have_key;
static bool ending; /* the process is: nobody may come by any more */

static void guess_nothing(void)
{
	preload_mine.guess = pcpa_fast_cpus() ? PRELOAD_NO_GUESS : PRELOAD_NO_SECTIONS;
}

/* What was asked for lately tells what free() may expect. Few calls tell nothing. */
static void guess_order(uint64_t calls, uint64_t pages)
{
	if (calls < FEW_CALLS)
		return;
	guess_nothing();
	for (unsigned order = 0; order <= PCPTUNE_COSTLY_ORDER; order++)
		if (preload_mine.guess && pages == calls << order)
			preload_mine.guess = PRELOAD_GUESS + order;
}

static void take_gathered(struct gathered *g)
{
	uint64_t w = preload_mine.gathered, calls = g->limit - (w >> PRELOAD_CALLS_SHIFT),
		 pages = w >> PRELOAD_PAGES_SHIFT & PRELOAD_PAGES_MASK;

	preload_mine.gathered = 0;
	guess_order(calls, pages);
	g->calls += calls;
	g->pages += pages;
	g->bytes += w & UINT32_MAX;
	g->limit = 0;
}

/* Of the calling thread. */
static void add_gathered(struct gathered *g)
{
	struct pcptune_proc_block *proc = pcpa_proc();

	take_gathered(g);
	if (!proc || !g->calls)
		return;
	pcpa_proc_add(&proc->malloc_calls, g->calls);
	pcpa_proc_add(&proc->malloc_bytes, g->bytes);
	pcpa_proc_add(&proc->malloc_pages, g->pages);
	g->total += g->calls;
	g->calls = g->bytes = g->pages = 0;
	if (!g->at_end)
		return;
	g->limit = g->total >> GATHER_SHIFT;
	if (g->limit > PRELOAD_GATHER_MAX)
		g->limit = PRELOAD_GATHER_MAX;
	preload_mine.gathered = g->limit << PRELOAD_CALLS_SHIFT;
}

static void thread_ends(void *arg)
{
	struct gathered *g = arg;

	g->at_end = false; /* destructors that run later may still allocate */
	add_gathered(g);
	if (syscall(SYS_gettid) == getpid())
		pcpa_agent_leader_ends();
	g->known = false;
}

static void before_fork(void)
{
	add_gathered(&mine);
}

static void make_key(void)
{
	have_key = pthread_key_create(&at_thread_end, thread_ends) == 0;
	pthread_atfork(before_fork, NULL, NULL);
}

static void join_in(struct gathered *g)
{
	pthread_once(&once, make_key);
	g->known = true;
	g->at_end = have_key && !pthread_setspecific(at_thread_end, g);
}

static void count_call(size_t size, size_t pages)
{
	struct gathered *g = &mine;

	if (__builtin_expect(!g->known, 0))
		join_in(g);
	if (preload_mine.gathered >> PRELOAD_CALLS_SHIFT && !pcpa_get(&ending)) {
		preload_mine.gathered += preload_counted(pages) + size;
		return;
	}
	take_gathered(g);
	g->calls++;
	g->bytes += size;
	g->pages += pages;
	add_gathered(g);
}

void *preload_zone_counted(void *p, uint64_t counted)
{
	bool was = inside;
	int e = errno;

	inside = true;
	preload_mine.gathered -= counted;
	count_call(counted & UINT32_MAX, (counted >> PRELOAD_PAGES_SHIFT) & PRELOAD_PAGES_MASK);
	inside = was;
	errno = e;
	return p;
}

static void count_passed(void)
{
	struct pcptune_proc_block *proc = pcpa_proc();

	if (proc)
		pcpa_proc_add(&proc->malloc_passed, 1);
}

/* After the handlers of exit() and the destructors of the program; threads may still run. */
__attribute__((destructor)) static void process_ends(void)
{
	__atomic_store_n(&ending, true, __ATOMIC_RELAXED);
	set_fast_sizes(true);
	add_gathered(&mine);
}

/* ---- the lengths ---- */

/* Two threads may both reserve a table: one is kept. NULL: no address space. */
static uint16_t *make_lengths(const struct pcpa_zone *z)
{
	size_t size = (size_t)z->n_pages * sizeof(uint16_t);
	uint16_t *none = NULL;
	void *t = mmap(NULL, size, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (t == MAP_FAILED)
		return NULL;
	if (__atomic_compare_exchange_n(&lengths[z->id], &none, t, false, __ATOMIC_ACQ_REL,
					__ATOMIC_ACQUIRE))
		return t;
	munmap(t, size);
	return none;
}

static uint16_t *lengths_of(const struct pcpa_zone *z)
{
	uint16_t *t = __atomic_load_n(&lengths[z->id], __ATOMIC_ACQUIRE);

	return t ? t : make_lengths(z);
}

/* With the first block, while there is address space: a program may limit itself later. */
static void make_all_lengths(void)
{
	for (uint32_t i = 0; i < pcpa_heap.n_zones; i++)
		lengths_of(&pcpa_heap.zones[i]);
}

/*
 * The order of the block that begins at a page and is of no row; above PCPTUNE_COSTLY_ORDER: none.
 */
static uint32_t order_at(const struct pcpa_zone *z, uint32_t pfn)
{
	const struct pcpa_page *page = &z->pages[pfn];
	/* any other tag turns into an order above all */
	uint32_t order = (uint32_t)pcpa_tag_get(z, pfn) - pcpa_tag(PCPA_IN_USE, 0);

	return pcpa_get(&page->kind) == PCPA_ROW || pcpa_get(&page->listed) ? UINT32_MAX : order;
}

/* Pages of the block that begins at p; 0: none does. */
static size_t pages_at(const void *p)
{
	const struct pcpa_zone *z = pcpa_heap_zone_of(p);
	const uint16_t *t;
	uint32_t pfn, order;

	if (!z || (uintptr_t)p % PAGE)
		return 0;
	pfn = pcpa_page_number(z, p);
	t = __atomic_load_n(&lengths[z->id], __ATOMIC_ACQUIRE);
	if (t && pcpa_get(&t[pfn]))
		return pcpa_get(&t[pfn]);
	order = order_at(z, pfn);
	return order > PCPTUNE_COSTLY_ORDER ? 0 : (size_t)1 << order;
}

size_t preload_zone_size(const void *p)
{
	return pages_at(p) * PAGE;
}

/* The blocks of pages [at, end) of what begins at pfn. */
static void mark_blocks(struct pcpa_zone *z, uint32_t pfn, size_t at, size_t end, uint8_t kind)
{
	while (at < end) {
		struct pcpa_page *page = &z->pages[pfn + at];

		pcpa_put(&page->kind, kind);
		at += (size_t)1 << (pcpa_get(&page->tag) & 0xff);
	}
}

/* A row of n pages begins at p. false: no address space for the table. */
static bool make_row(const void *p, size_t n)
{
	struct pcpa_zone *z = pcpa_heap_zone_of(p);
	uint32_t pfn = pcpa_page_number(z, p);
	uint16_t *t = lengths_of(z);

	if (!t)
		return false;
	mark_blocks(z, pfn, 0, n, PCPA_ROW);
	pcpa_put(&t[pfn], (uint16_t)n);
	return true;
}

/* The pages of the block at p, which is not to be freed again; 0: none begins there. */
static size_t take_out(const void *p)
{
	size_t pages = pages_at(p);
	struct pcpa_zone *z;
	uint32_t pfn;

	if (pages <= WHOLE)
		return pages;
	z = pcpa_heap_zone_of(p);
	pfn = pcpa_page_number(z, p);
	pages = __atomic_exchange_n(&lengths[z->id][pfn], 0, __ATOMIC_RELAXED);
	mark_blocks(z, pfn, 0, pages, PCPA_BACKED);
	return pages;
}

/*
 * Opens the fast path, once a block was served, so that the zones are known, and only if they have
 * lists for it. Two threads may come at the same time: they write the same.
 */
static void open_fast_path(void)
{
	const struct pcpa_zone *z = &pcpa_heap.zones[0];

	if (!pcpa_fast_cpus() || pcpa_get(&ending))
		return;
	if (pcpa_heap.n_zones == 1) {
		pcpa_put(&preload_only_zone.base, z->base);
		__atomic_store_n(&preload_only_zone.bytes, z->n_pages * PAGE, __ATOMIC_RELEASE);
	}
	for (unsigned order = 0; order <= PCPTUNE_COSTLY_ORDER; order++)
		pcpa_put(&pcpa_fast.preload.counted[order], preload_counted((size_t)1 << order));
	set_fast_sizes(false);
}

/* ---- blocks ---- */

/* `inside` is set. pages: at least what size needs. */
static void *take(size_t size, size_t pages, size_t align)
{
	void *p = pcpa_alloc_exact(pages * PAGE, align ? align : PAGE);

	if (!p)
		return NULL;
	if (__builtin_expect(!pcpa_get(&lengths[0]), 0))
		make_all_lengths();
	if (pages > WHOLE && !make_row(p, pages)) {
		pcpa_free_exact(p, pages * PAGE);
		return NULL;
	}
	count_call(size, pages);
	if (__builtin_expect(!pcpa_get(&pcpa_fast.preload.sizes), 0))
		open_fast_path();
	return p;
}

static bool may_serve(size_t size)
{
	if (__builtin_expect(__atomic_load_n(&state, __ATOMIC_ACQUIRE) == UNREAD, 0))
		preload_zone_setup();
	return __atomic_load_n(&state, __ATOMIC_ACQUIRE) == READY && preload_wants(size) && !inside;
}

static void *alloc(size_t size, size_t pages, size_t align)
{
	int e = errno;
	void *p;

	inside = true;
	p = take(size, pages, align);
	if (!p)
		count_passed();
	inside = false;
	errno = e;
	return p;
}

void *preload_zone_alloc(size_t size, size_t align)
{
	return may_serve(size) ? alloc(size, pages_of(size), align) : NULL;
}

/*
 * Pages that a block which grows or shrinks may have beyond its need: one in eight, but for the
 * sizes that are whole blocks of a list.
 */
static size_t spare(size_t pages)
{
	return pages > 8 ? pages / 8 : 0;
}

void *preload_zone_alloc_growing(size_t size)
{
	size_t need = pages_of(size), pages = need + spare(need);

	if (pages > PCPA_MAX_EXACT / PAGE)
		pages = PCPA_MAX_EXACT / PAGE;
	return may_serve(size) ? alloc(size, pages, 0) : NULL;
}

bool preload_zone_passed(unsigned order, const struct pcpa_zone *given)
{
	int e = errno;
	bool passed;

	if (inside)
		return false;
	inside = true;
	passed = pcpa_sections_passed(order, given);
	/* here: what the long way tries first is the section, and that serves again */
	if (__builtin_expect(pcpa_get(&pcpa_agent_bell), 0))
		(given ? pcpa_agent_wake : pcpa_agent_attend)();
	inside = false;
	errno = e;
	return passed;
}

static __attribute__((noinline)) void free_hard(void *p, const void *caller)
{
	size_t pages = take_out(p);
	bool was = inside;
	int e = errno;

	inside = true;
	if (preload_mine.guess < PRELOAD_GUESS ||
	    pages != (size_t)1 << (preload_mine.guess - PRELOAD_GUESS))
		guess_nothing();
	if (pages)
		pcpa_free_exact(p, pages * PAGE);
	else
		pcpa_report("address is no block of malloc, or was freed before", p, 0, caller);
	inside = was;
	errno = e;
}

/* A block of a list, which perhaps had no room. */
static __attribute__((noinline)) void free_listed(void *p, unsigned order, const void *caller)
{
	if (!preload_zone_passed(order, pcpa_heap_zone_of(p)) || !preload_fast_free(p))
		free_hard(p, caller);
}

/* Is this a block of a list of the order that is expected, if one is? */
static inline bool is_listed(const struct pcpa_zone *z, const void *p, uint32_t *ret_order)
{
	uint32_t guess = preload_mine.guess;

	if (!z || (uintptr_t)p % PAGE)
		return false;
	*ret_order = order_at(z, pcpa_page_number(z, p));
	return *ret_order <= PCPTUNE_COSTLY_ORDER &&
	       (guess == PRELOAD_NO_GUESS || guess == PRELOAD_GUESS + *ret_order);
}

/* What saves registers is apart, for the sake of rows. */
void preload_zone_free(void *p, const void *caller)
{
	uint32_t order;

	if (is_listed(pcpa_heap_zone_of(p), p, &order))
		free_listed(p, order, caller);
	else
		free_hard(p, caller);
}

/*
 * A block consists of buddy blocks, the largest first. Makes `at` pages after its start a border
 * between two of them, by halving, so that what is before the border is in that order again. The
 * pages are in use and ours: so are their tags.
 */
static void make_border(struct pcpa_zone *z, uint32_t first, uint32_t at)
{
	uint32_t pfn = first;
	unsigned order;

	while (pfn < first + at) {
		order = pcpa_tag_get(z, pfn) & 0xff;
		while (pfn + (1u << order) > first + at) {
			order--;
			/* the upper half first: no page is ever the second half of nothing */
			pcpa_hand_out(z, pfn + (1u << order), PCPA_IN_USE, order);
			pcpa_hand_out(z, pfn, PCPA_IN_USE, order);
		}
		pfn += 1u << order;
	}
}

static void give_tail_back(struct pcpa_zone *z, uint32_t pfn, size_t have, size_t keep)
{
	bool was = inside;
	size_t at = keep;
	unsigned order;

	inside = true;
	make_border(z, pfn, (uint32_t)keep);
	mark_blocks(z, pfn, 0, keep, keep > WHOLE ? PCPA_ROW : PCPA_BACKED);
	mark_blocks(z, pfn, keep, have, PCPA_BACKED);
	while (at < have) {
		order = pcpa_tag_get(z, pfn + (uint32_t)at) & 0xff;
		pcpa_pcp_give(z, pcpa_cpu_slot(), pfn + (uint32_t)at, 0, (size_t)1 << order);
		at += (size_t)1 << order;
	}
	inside = was;
}

bool preload_zone_resize(void *p, size_t size)
{
	size_t need = pages_of(size), have = pages_at(p);
	struct pcpa_zone *z;
	uint32_t pfn;

	if (need > have || !need)
		return false;
	if (have <= need + spare(need))
		return true;
	z = pcpa_heap_zone_of(p);
	pfn = pcpa_page_number(z, p);
	if (have > WHOLE)
		pcpa_put(&lengths[z->id][pfn], need > WHOLE ? (uint16_t)need : 0);
	give_tail_back(z, pfn, have, need);
	return true;
}
