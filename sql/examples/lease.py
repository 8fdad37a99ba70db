"""A lease in a `with` block: wait in the server's queue, renew from a thread, release.

    with lease(r, "lock:invoice:7") as fence:
        row = db.execute("SELECT * FROM fenced_claim(NULL::invoices, %s, %s)", (7, fence)).fetchone()
        ...

LockBusy: not granted in time. LockLost: the lease ended before the block did, so somebody else may hold the lock. An error of
the connection is neither. Before the grant it comes out as it is. Later it is tried again, and is a lost lease only when
Redis was silent for a whole ttl_ms.

The lock keeps others out most of the time; the fence in every write is what makes it safe. Long work can stop early: pass
`lost=threading.Event()` and check it between two steps.
"""

import threading
import time
import uuid
from contextlib import contextmanager, suppress

from redis.exceptions import RedisError


class LockBusy(TimeoutError):
    """The lock was not granted in time."""


class LockLost(Exception):
    """The lease has ended: somebody else may hold the lock."""


@contextmanager
def lease(r, name, *, ttl_ms=10_000, wait_ms=4_000, max_hold_ms=3_600_000, lost=None):
    """Hold the lock `name` and give its fence. `r` is a redis-py client whose socket_timeout is longer than wait_ms.

    wait_ms: None does not wait. max_hold_ms: the lease ends then, however often it is renewed, so that a block that hangs
    does not keep the lock for ever. lost: an Event that is set when the lease has ended.
    """
    owner, done, lost = uuid.uuid4().hex, threading.Event(), lost or threading.Event()
    wait = () if wait_ms is None else ("WAIT", wait_ms)
    # redis-py sends a call again when the connection drops: RETRY makes that safe.
    fence = r.execute_command("FENCELOCK.ACQUIRE", name, owner, ttl_ms, *wait, "RETRY", "MAXHOLD", max_hold_ms)
    if fence is None:
        raise LockBusy(f"{name} is busy")
    renewal = threading.Thread(target=_renew, args=(r, name, owner, fence, ttl_ms, done, lost), daemon=True)
    renewal.start()
    released = None
    try:
        yield fence
    finally:
        done.set()
        renewal.join()
        with suppress(RedisError):  # the lease ends by itself
            released = r.execute_command("FENCELOCK.RELEASE", name, owner, "FENCE", fence)
    if lost.is_set() or released == 0:
        raise LockLost(f"the lease of {name} with fence {fence} has ended")


def _renew(r, name, owner, fence, ttl_ms, done, lost):
    """Extend the lease every third of it. Set `lost` when it has ended, or when Redis was silent for as long as it lasts."""
    ends = _set_after(ttl_ms / 1000, lost)
    while not lost.is_set() and not done.wait(ttl_ms / 3000):
        asked = time.monotonic()
        try:
            left_ms = r.execute_command("FENCELOCK.EXTEND", name, owner, ttl_ms, "FENCE", fence)
        except RedisError:
            continue  # not lost: try again until the lease ends
        ends.cancel()
        if left_ms == 0:
            lost.set()
            return
        ends = _set_after(asked + left_ms / 1000 - time.monotonic(), lost)
    ends.cancel()


def _set_after(seconds, event):
    """A timer of its own, because a call to Redis may hang for longer than the lease."""
    timer = threading.Timer(seconds, event.set)
    timer.daemon = True
    timer.start()
    return timer
