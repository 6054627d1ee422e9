/* SPDX-License-Identifier: MIT */
/*
 * The protocol of a list that sections serve (allocator/rseq.h, allocator/pcp_sections.c), for spin.
 *
 * One list of CPU 0, two threads of the program, and an owner from elsewhere (agent, trim, audit,
 * fork). At any moment CPU 0 may go to another thread, which sends both it and the one before to
 * their abort handlers if they are inside of a section: the kernel does so at preemption and
 * migration (a signal is there and back at once). A thread that does not have CPU 0 runs on some
 * other CPU, or not at all, which is the same as taking no step.
 *
 * A step is what touches words that others may change meanwhile. Loads that a section repeats after
 * an abort are one step with what precedes them where nobody changes the word without an abort.
 *
 * Memory is sequentially consistent here. What real machines may reorder is held by the fence, by
 * x86's order of stores, and by the release of the last store of a section on aarch64.
 *
 * Ghosts, which no code reads: where each block is, how many operations there were, and whether
 * `word` has moved since a plan was made (it never comes back to a value, since it counts). A block
 * that is handed out twice or lost, a place that is overwritten while it is in use, and a number
 * that is not exact break an assertion. With one of the macros at the end of the file the protocol
 * has a fault, which must be found.
 *
 * Stops (allocator/track.h): a place within the list is emptied so that pops end there, and its block
 * kept in `held`, until somebody lifts the stop. Here it is the highest place, and whether there is
 * one again after a slow path is left open.
 *
 * The ring has 4 places, positions are modulo 4, numbers of operations modulo 2, and the largest
 * move is one block.
 */
#define THREADS 2
#define RING	4
#define MOVE	1
#ifndef BLOCKS
#define BLOCKS	3
#endif

#define ROOM_MOST (RING - MOVE - 2) /* grant() */

#define POS(x)	((x) & 3)
#define EMPTY	0
#define STALE	(BLOCKS + 1) /* what was in a place that nobody may read any more */

/* ---- the words of the list ---- */
byte head;	 /* `word`: position and number of operations */
bit ops;
byte tail, bound;
byte ring[RING]; /* EMPTY, blocks from 1 on, or STALE */
byte held, stop_at; /* the block of the stop, EMPTY: there is none; its place */
bit lock, idle;	 /* idle: the table has the idle list in the place of this one */

/* ---- the machine ---- */
byte running;		 /* who has CPU 0; THREADS: somebody else */
bit inside[THREADS + 1]; /* in a section */
bit aborted[THREADS];

/* ---- ghosts ---- */
#define ZONE  0
#define LIST  1
#define OWNED 2		    /* + number of the thread */
byte where[BLOCKS + 2];	    /* of a block */
bit done;		    /* operations */
bit moved;		    /* `word` is not what it was at the last plan */

inline fence()
{
	if
	:: inside[running] -> inside[running] = 0; aborted[running] = 1
	:: else
	fi
}

proctype kernel()
{
end:	do
	:: d_step { fence(); running = (running + 1) % (THREADS + 1); fence() }
	od
}

/* A step of a section, which finds itself in the abort handler instead when it was interrupted. */
#define I(again, x) I_(again, skip, x)
#define I_(again, undo, x) \
	atomic { if :: aborted[me] -> aborted[me] = 0; undo; goto again :: else -> x fi }
#define LEAVE(again, out, condition) \
	I(again, if :: condition -> inside[me] = 0; goto out :: else fi)

/* The id of the CPU, and what depends on it: another CPU's list is not our matter. */
#ifdef CPU_OUTSIDE
#define ENTER(elsewhere, x) atomic { inside[me] = 1; x }
#else
#define ENTER(elsewhere, x) \
	atomic { if :: running != me -> goto elsewhere :: else -> inside[me] = 1; x fi }
#endif

/* A block of the zone, 0: none. The zone has a lock of its own: one step. */
inline zone_take(b, to)
{
	b = 1;
	do
	:: b <= BLOCKS && where[b] != ZONE -> b++
	:: else -> break
	od;
	if
	:: b > BLOCKS -> b = 0
	:: else -> where[b] = to
	fi
}

inline zone_give(b)
{
	assert(b != EMPTY && b != STALE && where[b] == LIST);
	where[b] = ZONE
}

/* Every block of the list is in one place of it, and every operation was counted. */
inline audit(b, c)
{
	assert(ops == done);
	assert(ring[POS(tail - 1)] == EMPTY);
	c = 0;
	b = 1;
	do
	:: b <= BLOCKS ->
		c = c + (where[b] == LIST);
		b++
	:: else -> break
	od;
	assert(c == POS(head - tail) && POS(bound - tail) >= c);
	do
	:: c > 0 ->
		c--;
		b = ring[POS(tail + c)];
		assert(b != EMPTY && b != STALE && where[b] == LIST);
		where[b] = 99 /* so that a second copy is seen */
	:: else -> break
	od;
	for (b : 1 .. BLOCKS) {
		where[b] = (where[b] == 99 -> LIST : where[b])
	}
}

/* lift() */
inline lift()
{
#ifndef NO_LIFT
	if
	:: held != EMPTY -> assert(ring[stop_at] == EMPTY); ring[stop_at] = held; held = EMPTY; stop_at = 0
	:: else
	fi
#else
	skip
#endif
}

/* ---- a thread of the program ---- */

/* What is planned: to empty the place of the block that a drain takes, to move the bound, or a stop. */
#define TAKE  0
#define BOUND 1
#define STOP  2

/* plan_take(), plan_bound(): from a word that must not move until the store */
#define ROOM(n) \
	if                                                  \
	:: n = 0                                            \
	:: n = ROOM_MOST                                    \
	fi;                                                 \
	n = POS(tail + (n > HELD -> n : HELD))
#ifdef BOUND_BEHIND
#define HELD 0
#else
#define HELD POS(head - tail)
#endif
#ifdef GIVE_FIRST
#define TAKEN b = ring[tail]; zone_give(b)
#else
#define TAKEN b = ring[tail]
#endif
#define PLAN \
	moved = 0;                                          \
	if                                                  \
	:: plan == TAKE && head == tail -> idle = 0; goto unlock \
	:: plan == TAKE && head != tail -> TAKEN            \
	:: plan == STOP && head == tail -> idle = 0; goto unlock \
	:: plan == STOP && head != tail -> n = POS(head - 1); b = ring[n] \
	:: else -> ROOM(n)                                  \
	fi
#define STORE \
	if                                                  \
	:: plan == TAKE -> ring[tail] = EMPTY               \
	:: plan == STOP -> ring[n] = EMPTY                  \
	:: else -> bound = n; n = 0                         \
	fi

proctype thread(byte me)
{
	byte a, b, n;
	bit o;
	byte plan;

next:
	skip;
end:	atomic {
		running == me;
		a = 0; n = 0; o = 0; plan = 0;
		b = 1;
		do
		:: b <= BLOCKS && where[b] != OWNED + me -> b++
		:: else -> break
		od;
		if
		:: b <= BLOCKS -> goto push
		:: true -> b = 0
		fi
	}

/* ---- an allocation ---- */
pop:
	ENTER(next, skip);
	LEAVE(next, refill, idle);
	I(next, a = head; o = ops; b = ring[POS(a - 1)]);
	LEAVE(next, refill, b == EMPTY);
#ifdef TWO_STORES
	I(next, head = POS(a - 1); moved = lock);
	I(next, ops = !o; inside[me] = 0;
#else
	I(next, head = POS(a - 1); ops = !o; moved = lock; inside[me] = 0;
#endif
	done = !done;
	assert(b != STALE && where[b] == LIST);
	where[b] = OWNED + me;
	ring[POS(a - 1)] = STALE;
	goto next);

refill:
	atomic { /* tries the lock */
		b = 0;
		if
		:: lock -> /* straight to the zone */
			zone_take(b, OWNED + me);
			goto next
		:: else -> lock = 1; a = 0; o = 0
		fi
	}
	atomic {
		if
		:: POS(head - tail) != 0 -> lift(); goto look
		:: else -> zone_take(b, LIST)
		fi;
		if
		:: b == 0 -> goto unlock
		:: else
		fi
	}
	/* the empty place is the first block's: it comes last of all, and the bound after it */
#ifdef PLACE_FIRST
	ring[POS(tail - 1)] = b;
	ring[POS(tail - 2)] = EMPTY;
#else
	ring[POS(tail - 2)] = EMPTY;
#endif
	tail = POS(tail - 1);
	atomic { ring[tail] = b; plan = BOUND; goto change };

/* ---- a free ---- */
push:
	ENTER(next, skip);
	LEAVE(next, make_room, idle);
	I(next, a = head; o = ops);
	LEAVE(next, make_room, POS(a) == bound);
	I(next, ring[POS(a)] = b);
	/* what an aborted push has written is beyond the head: nobody may read it */
	I_(next, ring[POS(a)] = (ring[POS(a)] == b -> STALE : ring[POS(a)]),
	   head = POS(a + 1); ops = !o; moved = lock; inside[me] = 0; done = !done; where[b] = LIST;
	   goto next);

make_room:
	atomic {
		if
		:: lock -> /* straight to the zone */
			where[b] = ZONE;
			goto next
		:: else -> lock = 1; a = 0; o = 0; b = 0
		fi;
		/* there is no room; or there is, but the bound was not moved yet */
		lift();
		if
		:: plan = TAKE
		:: plan = BOUND
		fi
	}

/* ---- change(): a store that must not miss a push or a pop ---- */
change:
#ifdef LOCK_OUTSIDE
	/* "we hold the lock, and are on that CPU, so nobody moves anything" */
	atomic {
		if
		:: running == me -> PLAN
		:: else -> goto stop
		fi
	}
	atomic { STORE; goto changed };
#else
	atomic {
		PLAN;
		if
		:: running == me
		:: true -> goto stop /* on another CPU, or tried too often */
		fi
	}
#ifdef NO_WORD_CHECK
	ENTER(stop, skip);
#else
	ENTER(stop, if :: moved -> inside[me] = 0; goto change :: else fi);
#endif
	I(change, STORE; inside[me] = 0; goto changed);
#endif
stop:
	idle = 1;
	d_step { fence() };
	atomic { PLAN };
	atomic { STORE; idle = 0 };
changed:
	atomic {
		if
		:: plan == TAKE
		:: plan == STOP -> held = b; stop_at = n; goto unlock
		:: plan == BOUND -> goto look
		fi
	}
	/* a drain: the empty place is the block's now, and its own is the empty one */
	ring[POS(tail - 1)] = b;
	tail = POS(tail + 1);
#ifndef GIVE_FIRST
	atomic { zone_give(b) };
#endif
	ring[POS(tail - 2)] = STALE;
	/* grant() moves the bound, if the drain was for this list */
	atomic {
		if
		:: true
		:: plan = BOUND; goto change
		fi
	}

	/* the tracker looked, and there may be a stop from now on */
look:
	atomic {
		b = 0; n = 0;
		if
		:: true
		:: plan = STOP; goto change
		fi
	}

unlock:
	atomic { b = 0; n = 0; plan = 0; moved = 0; lock = 0; goto next }
}

/* ---- an owner from elsewhere ---- */

proctype owner()
{
	byte b, c;

end:	do
	:: atomic {
#ifdef NOT_IDLE
			!lock -> lock = 1
#else
			!lock -> lock = 1; idle = 1
#endif
	   };
		d_step {
#ifndef NO_FENCE
			fence();
#endif
			lift();
			audit(b, c);
			b = 0;
			c = POS(head - tail)
		}
		atomic {
			if
			:: c > 0 -> /* takes one */
				b = ring[tail];
				ring[tail] = EMPTY;
				tail = POS(tail + 1);
				zone_give(b);
				ring[POS(tail - 2)] = STALE
			:: true
			fi;
			b = 0;
			ROOM(c);
			bound = c;
			c = 0
		}
		atomic { idle = 0; lock = 0 }
	od
}

init
{
	atomic {
		bound = ROOM_MOST;
		ring[0] = STALE; ring[1] = STALE; ring[2] = STALE; ring[3] = EMPTY;
		run kernel();
		run thread(0);
		run thread(1);
		run owner()
	}
}

/*
 * Faults that must be found:
 *   NO_FENCE      an owner puts the idle list into the table and goes on without the fence
 *   NOT_IDLE      an owner fences, and lets new sections find the list
 *   CPU_OUTSIDE   the id of the CPU is read before the section begins
 *   LOCK_OUTSIDE  the holder of the lock looks where it runs, and then stores without a section
 *   NO_WORD_CHECK the section that stores does not ask whether `word` has moved since the plan
 *   TWO_STORES    position and number of operations are stored one after the other
 *   PLACE_FIRST   a refill fills the place that pops end at before there is another such place
 *   GIVE_FIRST    a drain gives the block to the zone before it has emptied its place
 *   NO_LIFT       blocks are looked at, or taken, with a stop among them
 *   BOUND_BEHIND  a bound is set without regard to what the list holds
 */
