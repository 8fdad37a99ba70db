"""An asyncio context manager: wait in the server's queue, renew while working, release.

    async with fenced_lock(r, "lock:invoice:7") as fence:
        row = await db.fetchrow("SELECT * FROM fenced_claim(NULL::invoices, $1::int, $2)", 7, fence)
        if row is None:
            raise LockLost("a newer holder has claimed the invoice")
        ...
        patch = json.dumps({"status": "closed"})
        if not await db.fetchval("SELECT fenced_update('invoices', $1::int, $2, $3)", 7, fence, patch):
            raise LockLost("a newer holder has claimed the invoice")

The lock keeps others out most of the time; the fence in every write is what makes it safe. When the lease is lost the body
is cancelled and LockLost comes out, so that work which nobody will accept ends early. A body that blocks the event loop
cannot be cancelled: LockLost comes out when it leaves. An error of the connection does not mean a lost lease until Redis was silent for
a whole ttl_ms. Python 3.11 or later.
"""

import asyncio
import uuid
from contextlib import asynccontextmanager, suppress

from redis.exceptions import RedisError


class LockBusy(TimeoutError):
    """The lock was not granted in time."""


class LockLost(Exception):
    """The lease has ended: somebody else may hold the lock."""


@asynccontextmanager
async def fenced_lock(r, name, ttl_ms=10_000, wait_ms=4_000, max_hold_ms=3_600_000):
    """Hold the lock `name` and give its fence. `r` is a redis.asyncio client whose socket_timeout is longer than wait_ms.

    max_hold_ms: the lease ends then, however often it is renewed, so that a body that hangs does not keep the lock for ever.
    """
    owner, released = uuid.uuid4().hex, None
    try:
        # redis-py sends a call again when the connection drops: RETRY makes that safe.
        options = ("WAIT", wait_ms, "RETRY", "MAXHOLD", max_hold_ms)
        fence = await r.execute_command("FENCELOCK.ACQUIRE", name, owner, ttl_ms, *options)
        if fence is None:
            raise LockBusy(f"{name} was busy for {wait_ms} ms")
        try:
            async with asyncio.TaskGroup() as tasks:
                renewal = tasks.create_task(_renew(r, name, owner, fence, ttl_ms))
                yield fence
                renewal.cancel()
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
    finally:
        # Also when the wait was cancelled, as the grant may have been on its way. Without Redis the lease ends by itself.
        with suppress(RedisError, TimeoutError):
            async with asyncio.timeout(ttl_ms / 1000):
                released = await r.execute_command("FENCELOCK.RELEASE", name, owner)
    if released == 0:
        raise LockLost(f"the lease of {name} with fence {fence} has ended")


async def _renew(r, name, owner, fence, ttl_ms):
    """Extend the lease every third of it; when Redis does not answer, again and again until the lease is over."""
    clock = asyncio.get_running_loop().time
    until = clock() + ttl_ms / 1000
    while True:
        await asyncio.sleep(ttl_ms / 3000)
        asked = clock()
        try:
            async with asyncio.timeout_at(until):
                left = await r.execute_command("FENCELOCK.EXTEND", name, owner, ttl_ms, "FENCE", fence)
        except (RedisError, OSError, TimeoutError):
            if clock() < until:
                continue
            left = 0
        if not left:
            raise LockLost(f"the lease of {name} with fence {fence} has ended")
        until = asked + left / 1000
