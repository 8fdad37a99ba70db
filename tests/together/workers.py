"""Workers that are processes of their own, so that the story tests can freeze and kill them and run many at once.

`python workers.py hold '{...}'` takes a lock, reads a counter, and writes it on request; `... increment '{...}'` adds
to a counter again and again. Each prints JSON lines. Not a library: raw commands and plain SQL, as any user writes them.
"""

import json
import random
import sys
import threading
import time

import psycopg
import redis

from harness.locks import NO_RETRY, acquire, extend, release

CLAIM = "SELECT value FROM fenced_claim(NULL::counters, %s, %s)"
READ = "SELECT value FROM counters WHERE id = %s"
UPDATE = "SELECT fenced_update('counters', %s, %s, jsonb_build_object('value', %s::int))"


class Worker:
    """One worker: its own connections to both servers."""

    def __init__(self, redis_port, dsn):
        self.redis = redis.Redis(port=redis_port, protocol=2, **NO_RETRY)
        self.postgres = psycopg.connect(dsn, autocommit=True)

    def claim(self, row, fence):
        """The value of the counter, or None: the claim is stale."""
        found = self.postgres.execute(CLAIM, (row, fence)).fetchone()
        return None if found is None else found[0]

    def read(self, row):
        """The value of the counter, without a claim."""
        return self.postgres.execute(READ, (row,)).fetchone()[0]

    def update(self, row, fence, value):
        """Whether the counter has been written; False: stale."""
        return self.postgres.execute(UPDATE, (row, fence, value)).fetchone()[0]

    def close(self):
        """Close both connections."""
        self.redis.close()
        self.postgres.close()


def hold(redis_port, dsn, lock, owner, ttl_ms, row, claims, renews):
    """Take the lock and read the counter; when a line comes in, write what was read plus 1, extend and release."""
    worker = Worker(redis_port, dsn)
    fence = acquire(worker.redis, lock, owner, ttl_ms)
    renewals = Renewals(redis_port, lock, owner, ttl_ms, fence) if renews else None
    value = worker.claim(row, fence) if claims else worker.read(row)
    say(fence=fence, value=value)
    sys.stdin.readline()
    say(
        updated=worker.update(row, fence, value + 1),
        extended=extend(worker.redis, lock, owner, ttl_ms, fence),
        released=release(worker.redis, lock, owner, fence),
        last_renewal=renewals.end() if renewals else None,
    )


class Renewals:
    """A thread that extends a lease every third of it, and every tenth of a second at least, until the lease is lost."""

    def __init__(self, redis_port, lock, owner, ttl_ms, fence):
        self._end = threading.Event()
        self._last = None
        self._thread = threading.Thread(target=self._run, args=(redis_port, lock, owner, ttl_ms, fence), daemon=True)
        self._thread.start()

    def end(self):
        """Stop after one more renewal, and return the answer to the last."""
        self._end.set()
        self._thread.join()
        return self._last

    def _run(self, redis_port, lock, owner, ttl_ms, fence):
        with redis.Redis(port=redis_port, protocol=2, **NO_RETRY) as client:
            while self._last != 0:
                ended = self._end.wait(min(ttl_ms / 3000, 0.1))
                self._last = extend(client, lock, owner, ttl_ms, fence)
                if ended:
                    return


def increment(redis_port, dsn, lock, name, ttl_ms, row, times, stall_s, stalling, seed):
    """Add 1 to the counter `times` times. A share `stalling` of the sections stalls, with the lock, for `stall_s`."""
    worker, chance = Worker(redis_port, dsn), random.Random(seed)
    written, sections, stalls, refused = [], 0, 0, 0
    while len(written) < times:
        owner = f"{name}-{sections}"
        fence = acquire(worker.redis, lock, owner, ttl_ms, "WAIT", 60_000)
        sections += 1
        value = worker.claim(row, fence)
        if chance.random() < stalling:
            stalls += 1
            time.sleep(stall_s)
        if value is not None and worker.update(row, fence, value + 1):
            written.append(value + 1)
        else:
            refused += 1
        release(worker.redis, lock, owner, fence)
    worker.close()
    say(written=written, sections=sections, stalls=stalls, refused=refused)


def say(**facts):
    """One line of JSON."""
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    {"hold": hold, "increment": increment}[sys.argv[1]](**json.loads(sys.argv[2]))
