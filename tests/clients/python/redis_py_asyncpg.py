"""The story with redis-py's asyncio client and asyncpg: the argument 2 speaks RESP2, 3 RESP3."""

import asyncio
import json
import os
import sys
import uuid

import asyncpg
import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff

LOCK = "lock:counter"
SHORT_MS, LONG_MS = 300, 60_000
WAIT_MS = 10_000


class Worker:
    """One worker: its own connections, and a new owner for each acquisition."""

    async def connect(self, protocol):
        # By default redis-py gives up a reply after 5 s, less than a wait in the queue may take, and a client made from
        # a URL sends nothing again.
        self.redis = redis.from_url(
            os.environ["REDIS_URL"],
            protocol=protocol,
            socket_timeout=WAIT_MS / 1000 + 5,
            retry=Retry(ExponentialBackoff(), 3),
        )
        self.db = await asyncpg.connect(os.environ["DATABASE_URL"])
        # asyncpg passes jsonb as text without a codec.
        await self.db.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        return self

    async def close(self):
        await self.redis.aclose()
        await self.db.close()

    async def acquire(self, ttl_ms, *options):
        """The fence; None: busy. The client sends a call again when the connection drops; RETRY makes that safe."""
        self.owner = uuid.uuid4().hex
        return await self.redis.execute_command("FENCELOCK.ACQUIRE", LOCK, self.owner, ttl_ms, *options, "RETRY")

    async def release(self, fence):
        return await self.redis.execute_command("FENCELOCK.RELEASE", LOCK, self.owner, "FENCE", fence)

    async def await_end(self, fence, ms):
        """Why the hold ended; None: it has not, so far."""
        return await self.redis.execute_command("FENCELOCK.AWAIT", LOCK, fence, ms)

    async def claim(self, fence):
        """The counter; None: stale. asyncpg asks the server for each parameter's type: a key says its own."""
        return await self.db.fetchval("SELECT value FROM fenced_claim(NULL::counters, $1::int, $2)", 1, fence)

    async def update(self, fence, value):
        """Whether it was written; False: stale."""
        return await self.db.fetchval("SELECT fenced_update('counters', $1::int, $2, $3)", 1, fence, {"value": value})


async def main(protocol):
    a, b = await Worker().connect(protocol), await Worker().connect(protocol)
    a_fence = await a.acquire(SHORT_MS)
    a_read = await a.claim(a_fence)

    # A stalls. B waits in the server's queue until A's lease has expired.
    b_fence = await b.acquire(LONG_MS, "WAIT", WAIT_MS)
    b_read = await b.claim(b_fence)

    # A wakes up and goes on: refused at the row, and its release finds nothing.
    assert await a.update(a_fence, a_read + 1) is False
    assert await a.claim(a_fence) is None
    assert await a.release(a_fence) == 0

    assert await b.update(b_fence, b_read + 1) is True
    assert await b.release(b_fence) == 1

    # A does it again, with a new lease.
    again = await a.acquire(LONG_MS)
    assert await b.acquire(LONG_MS) is None
    try:
        await a.update(again, 9)
        raise AssertionError("a write before the claim")
    except asyncpg.PostgresError as error:
        assert error.sqlstate == "LF002"
    assert await a.update(again, await a.claim(again) + 1) is True
    # In a task of its own, while A goes on.
    awaited = asyncio.create_task(b.await_end(again, WAIT_MS))
    assert await a.await_end(again, 50) is None
    assert await a.release(again) == 1
    # If it came to the server after the release, it gets no reason.
    assert await awaited in (b"released", b"ended")

    print(a_fence, b_fence, again, await a.db.fetchval("SELECT value FROM counters WHERE id = 1"))
    await a.close()
    await b.close()


if __name__ == "__main__":
    asyncio.run(main(protocol=int(sys.argv[1])))
