"""The story with redis-py and psycopg: `python redis_py_psycopg.py 2` speaks RESP2, `... 3` RESP3."""

import os
import sys
import uuid

import psycopg
import redis
from psycopg.types.json import Jsonb
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

LOCK = "lock:counter"
SHORT_MS, LONG_MS = 300, 60_000
WAIT_MS = 10_000


class Worker:
    """One worker: its own connections, and a new owner for each acquisition."""

    def __init__(self, protocol):
        # By default redis-py gives up a reply after 5 s, less than a wait in the queue may take, and a client made from
        # a URL sends nothing again.
        self.redis = redis.Redis.from_url(
            os.environ["REDIS_URL"],
            protocol=protocol,
            socket_timeout=WAIT_MS / 1000 + 5,
            retry=Retry(ExponentialBackoff(), 3),
        )
        self.db = psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)
        self.owner = None

    def acquire(self, ttl_ms, *options):
        """The fence; None: busy. The client sends a call again when the connection drops; RETRY makes that safe."""
        self.owner = uuid.uuid4().hex
        return self.redis.execute_command("FENCELOCK.ACQUIRE", LOCK, self.owner, ttl_ms, *options, "RETRY")

    def release(self, fence):
        return self.redis.execute_command("FENCELOCK.RELEASE", LOCK, self.owner, "FENCE", fence)

    def await_end(self, fence, ms):
        """Why the hold ended; None: it has not, so far."""
        return self.redis.execute_command("FENCELOCK.AWAIT", LOCK, fence, ms)

    def claim(self, fence):
        """The counter; None: stale."""
        row = self.db.execute("SELECT value FROM fenced_claim(NULL::counters, %s, %s)", (1, fence)).fetchone()
        return None if row is None else row[0]

    def update(self, fence, value):
        """Whether it was written; False: stale."""
        update = "SELECT fenced_update('counters', %s, %s, %s)"
        return self.db.execute(update, (1, fence, Jsonb({"value": value}))).fetchone()[0]


def main(protocol):
    a, b = Worker(protocol), Worker(protocol)
    a_fence = a.acquire(SHORT_MS)
    a_read = a.claim(a_fence)

    # A stalls. B waits in the server's queue until A's lease has expired.
    b_fence = b.acquire(LONG_MS, "WAIT", WAIT_MS)
    b_read = b.claim(b_fence)

    # A wakes up and goes on: refused at the row, and its release finds nothing.
    assert a.update(a_fence, a_read + 1) is False
    assert a.claim(a_fence) is None
    assert a.release(a_fence) == 0

    assert b.update(b_fence, b_read + 1) is True
    assert b.release(b_fence) == 1

    # A does it again, with a new lease.
    again = a.acquire(LONG_MS)
    assert b.acquire(LONG_MS) is None
    try:
        a.update(again, 9)
        raise AssertionError("a write before the claim")
    except psycopg.Error as error:
        assert error.sqlstate == "LF002"
    assert a.update(again, a.claim(again) + 1) is True
    assert b.await_end(again, 50) is None
    assert a.release(again) == 1
    assert b.await_end(again, WAIT_MS) == b"ended"

    (value,) = a.db.execute("SELECT value FROM counters WHERE id = 1").fetchone()
    print(a_fence, b_fence, again, value)


if __name__ == "__main__":
    main(protocol=int(sys.argv[1]))
