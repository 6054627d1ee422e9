# SPDX-License-Identifier: MIT
"""Requests to a redis-server that are the same in each run, for bench/eval_run.

Clients that ask at the same time come in another order each time, and with it comes how many answers
wait at once; and what is larger than a socket takes comes in other parts each time. So two runs are
not the same work. Here one connection asks after the other, and the next waits for the answer. The
server is used as a cache: keys come in bursts, are read and replaced, and go in bursts. Values have 1
to 30 KiB. Bursts and values have as many of each octave, so that no few of them decide.
"""
import random
import socket

CONNECTIONS = 16
BURST = 1500  # keys, at most
LARGEST = 30 << 10  # bytes of a value
VALUE = b"x" * LARGEST


def command(*words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)


def commands(n, seed=1):
    """n requests and the few that empty the server at the end."""
    dice = random.Random(seed)
    keys, made = [], 0

    def between(least, most):
        return int(least * (most / least) ** dice.random())

    def size():
        return between(1024, LARGEST)

    while n > 0:
        burst = min(n, between(20, BURST))
        n -= burst
        kind = dice.choice(("more", "less", "read", "replace")) if keys else "more"
        if kind == "less":
            dice.shuffle(keys)
        for _ in range(burst):
            if kind == "more":
                made += 1
                keys.append(b"key:%d" % made)
                yield command(b"SET", keys[-1], VALUE[:size()])
            elif kind == "less":
                if keys:
                    yield command(b"DEL", keys.pop())
            elif kind == "read":
                yield command(b"GET", dice.choice(keys))
            else:
                yield command(b"SET", dice.choice(keys), VALUE[:size()])
    for key in keys:
        yield command(b"DEL", key)


def answer(f):
    line = f.readline()
    if line[:1] == b"$" and int(line[1:]) >= 0:
        f.read(int(line[1:]) + 2)
    elif line[:1] not in b"+:$":
        raise OSError(f"redis-server answers {line!r}")


def ask(port, n):
    """Asks n things of the server on this port of 127.0.0.1, in a fixed order."""
    sockets = [socket.create_connection(("127.0.0.1", int(port))) for _ in range(CONNECTIONS)]
    answers = [s.makefile("rb") for s in sockets]
    dice = random.Random(2)
    for c in commands(n):
        at = dice.randrange(CONNECTIONS)
        sockets[at].sendall(c)
        answer(answers[at])
    for s, f in zip(sockets, answers):
        f.close()
        s.close()
