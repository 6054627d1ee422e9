/* SPDX-License-Identifier: MIT */
/*
 * Our side of malloc: page-grain blocks and how long they are.
 *
 * Lengths. free() is told an address alone, so the number of pages of each block is kept in a
 * table beside the zone: 16 bits for each of its pages, reserved at the first block and backed by
 * memory only where blocks begin. An entry is written by the thread that owns the block, before
 * it returns the address and before it gives the pages back; 0 means that no block begins here.
 * free() takes the entry out with an exchange, so that of two frees of one block (a bug of the
 * program) only one gets through, and the other is reported.
 *
 * Recursion. `inside` is set while this thread is in the allocator. A request that comes then
 * (from thread creation, the dynamic linker, the error callback, a signal handler) goes to the next
 * malloc; frees are served, because the allocator puts off what it can not do at once.
 *
 * Counters. malloc_* are words of the process that all threads write. To keep threads from
 * fighting for one cache line at every call, each thread gathers up to 1/32 of what it has done,
 * 16 calls at most, and adds that in one go. A thread that ends, a fork and exit() add the rest,
 * so the totals are exact from then on; a process that is killed or calls _exit() takes it along.
 */
#include "allocator/pcp.h"
#include "allocator/preload.h"
#include "allocator/agent.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#define PAGE	     ((size_t)PCPA_PAGE_SIZE)
#define DEFAULT_MIN  PAGE
#define DEFAULT_MAX  PCPA_MAX_EXACT
#define GATHER_SHIFT 5
#define GATHER_MAX   16u

extern char **environ;

size_t preload_lo, preload_span = SIZE_MAX;

enum state { UNREAD, READY, PASS_ON };
static uint32_t state; /* enum state; moves away from UNREAD once */

static uint16_t *lengths[PCPTUNE_MAX_ZONES]; /* pages of the block that begins at a page */

static PRELOAD_TLS bool inside;

static size_t pages_of(size_t size)
{
	return pcpa_exact_pages(size);
}

/* ---- settings ---- */

bool preload_parse_size(const char *s, size_t *ret)
{
	static const char suffix[] = "kmgt";
	size_t v = 0, i;

	if (*s < '0' || *s > '9')
		return false;
	for (; *s >= '0' && *s <= '9'; s++)
		if (__builtin_mul_overflow(v, (size_t)10, &v) ||
		    __builtin_add_overflow(v, (size_t)(*s - '0'), &v))
			return false;
	for (i = 0; *s && suffix[i]; i++) {
		if ((*s | 0x20) != suffix[i])
			continue;
		if (v > SIZE_MAX >> (10 * (i + 1)))
			return false;
		v <<= 10 * (i + 1);
		s++;
		break;
	}
	if (*s)
		return false;
	*ret = v;
	return true;
}

/* A value that is no size in range is as if it were not there: a library does not complain. */
static size_t setting(const char *name, size_t def)
{
	const char *s = getenv(name);
	size_t v;

	return s && preload_parse_size(s, &v) && v >= 1 && v <= DEFAULT_MAX ? v : def;
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
		set_range(setting("PCPALLOC_MIN_SIZE", DEFAULT_MIN),
			  setting("PCPALLOC_MAX_SIZE", DEFAULT_MAX));
	} else {
		set_range(1, 0);
	}
	inside = was;
	errno = e;
}

void preload_zone_forget(void)
{
	preload_lo = 0;
	preload_span = SIZE_MAX;
	state = UNREAD;
}

/* ---- the counters ---- */

struct gathered {
	uint64_t bytes, pages;
	uint32_t calls, limit;
	uint64_t total;
	bool known; /* the end of this thread adds the rest */
};

static PRELOAD_TLS struct gathered mine;
static pthread_key_t at_thread_end;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool have_key;
static bool ending; /* the process is: nobody may come by any more */

static void add_gathered(struct gathered *g)
{
	struct pcptune_proc_block *proc = pcpa_proc();

	if (!proc || !g->calls)
		return;
	pcpa_proc_add(&proc->malloc_calls, g->calls);
	pcpa_proc_add(&proc->malloc_bytes, g->bytes);
	pcpa_proc_add(&proc->malloc_pages, g->pages);
	g->total += g->calls;
	g->calls = 0;
	g->bytes = g->pages = 0;
	g->limit = g->total >> GATHER_SHIFT < GATHER_MAX ? (uint32_t)(g->total >> GATHER_SHIFT)
							 : GATHER_MAX;
}

static void thread_ends(void *arg)
{
	add_gathered(arg);
	if (syscall(SYS_gettid) == getpid())
		pcpa_agent_leader_ends();
	mine.known = false; /* destructors that run later may still allocate */
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
	if (!have_key || pthread_setspecific(at_thread_end, g))
		g->limit = 0;
}

static void count_call(size_t size, size_t pages)
{
	struct gathered *g = &mine;

	if (__builtin_expect(!g->known, 0))
		join_in(g);
	g->calls++;
	g->bytes += size;
	g->pages += pages;
	if (g->calls > g->limit || __atomic_load_n(&ending, __ATOMIC_RELAXED))
		add_gathered(g);
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

/* The entry of a block that may begin at p, NULL: none can. */
static uint16_t *length_at(const void *p, bool make)
{
	const struct pcpa_zone *z = pcpa_heap_zone_of(p);
	uint16_t *t;

	if (!z || (uintptr_t)p % PAGE)
		return NULL;
	t = __atomic_load_n(&lengths[z->id], __ATOMIC_ACQUIRE);
	if (!t && make)
		t = make_lengths(z);
	return t ? &t[pcpa_page_number(z, p)] : NULL;
}

size_t preload_zone_size(const void *p)
{
	uint16_t *length = length_at(p, false);

	return length ? __atomic_load_n(length, __ATOMIC_RELAXED) * PAGE : 0;
}

/* ---- blocks ---- */

/* `inside` is set. pages: at least what size needs. */
static void *take(size_t size, size_t pages, size_t align)
{
	uint16_t *length;
	void *p = pcpa_alloc_exact(pages * PAGE, align ? align : PAGE);

	if (!p)
		return NULL;
	length = length_at(p, true);
	if (!length) {
		pcpa_free_exact(p, pages * PAGE);
		return NULL;
	}
	__atomic_store_n(length, (uint16_t)pages, __ATOMIC_RELAXED);
	count_call(size, pages);
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

void preload_zone_free(void *p, const void *caller)
{
	uint16_t *length = length_at(p, false);
	size_t pages = length ? __atomic_exchange_n(length, 0, __ATOMIC_RELAXED) : 0;
	bool was = inside;
	int e = errno;

	inside = true;
	if (pages)
		pcpa_free_exact(p, pages * PAGE);
	else
		pcpa_report("address is no block of malloc, or was freed before", p, 0, caller);
	inside = was;
	errno = e;
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
			pcpa_tag_set(z, pfn + (1u << order), PCPA_IN_USE, order);
			pcpa_tag_set(z, pfn, PCPA_IN_USE, order);
		}
		pfn += 1u << order;
	}
}

static void give_tail_back(void *p, size_t have, size_t keep)
{
	struct pcpa_zone *z = pcpa_heap_zone_of(p);
	uint32_t first = pcpa_page_number(z, p), pfn = first + (uint32_t)keep;
	bool was = inside;
	unsigned order;

	inside = true;
	make_border(z, first, (uint32_t)keep);
	while (pfn < first + have) {
		order = pcpa_tag_get(z, pfn) & 0xff;
		pcpa_pcp_give(z, pcpa_cpu_slot(), pfn, 0, (size_t)1 << order);
		pfn += 1u << order;
	}
	inside = was;
}

bool preload_zone_resize(void *p, size_t size)
{
	uint16_t *length = length_at(p, false);
	size_t need = pages_of(size), have = length ? *length : 0;

	if (need > have || !need)
		return false;
	if (have > need + spare(need)) {
		__atomic_store_n(length, (uint16_t)need, __ATOMIC_RELAXED);
		give_tail_back(p, have, need);
	}
	return true;
}
