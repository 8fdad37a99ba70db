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
    if ttl_ms < 100:
        raise ValueError(f"ttl_ms is in milliseconds: {ttl_ms} is too short to renew")
    owner = uuid.uuid4().hex
    wait = () if wait_ms is None else ("WAIT", wait_ms)
    # redis-py sends a call again when the connection drops: RETRY makes that safe.
    fence = r.execute_command("FENCELOCK.ACQUIRE", name, owner, ttl_ms, *wait, "RETRY", "MAXHOLD", max_hold_ms)
    if fence is None:
        raise LockBusy(f"{name} is busy")
    holder = _Holder(r, (name, owner), fence, ttl_ms, lost or threading.Event())
    holder.lasts(min(ttl_ms, max_hold_ms) / 1000)
    holder.start()
    try:
        yield fence
    finally:
        holder.done.set()
        holder.over.wait()
    if holder.lost.is_set():
        raise LockLost(f"the lease of {name} with fence {fence} has ended")


class _Holder(threading.Thread):
    """Extends a lease every third of it until `done` is set, then releases it.

    `lost` is set when the lease has ended, or Redis was silent for as long as it lasts, before that. `over` is set when the
    lease is released or has ended: a call to Redis may hang for much longer.
    """

    def __init__(self, r, lock, fence, ttl_ms, lost):
        super().__init__(daemon=True)
        self.r, self.lock, self.fence, self.ttl_ms, self.lost = r, lock, fence, ttl_ms, lost
        self.done, self.over, self._timer = threading.Event(), threading.Event(), None

    def run(self):
        while not self.lost.is_set() and not self.done.wait(self.ttl_ms / 3000):
            asked = time.monotonic()
            with suppress(RedisError):  # not lost: try again until the lease ends
                left_ms = self._call("EXTEND", self.ttl_ms)
                if left_ms == 0:
                    self.lost.set()
                else:
                    self.lasts(asked + left_ms / 1000 - time.monotonic())
        with suppress(RedisError):  # the lease ends by itself
            if self._call("RELEASE") == 0:
                self.lost.set()
        self._timer.cancel()
        self.over.set()

    def lasts(self, seconds):
        """The lease ends after so long, unless it is extended."""
        if self._timer:
            self._timer.cancel()
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def _end(self):
        if not self.done.is_set():
            self.lost.set()
        self.over.set()

    def _call(self, command, *words):
        return self.r.execute_command(f"FENCELOCK.{command}", *self.lock, *words, "FENCE", self.fence)
