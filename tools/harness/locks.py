"""The lock commands as Python functions, on any redis-py client that does not decode replies.

Only gives names to the parts of raw commands and replies. Not a client library: there is none to install.
"""

import time
from dataclasses import dataclass

from redis.backoff import NoBackoff
from redis.retry import Retry

from harness import eventually

# redis-py repeats a command whose connection broke. A lock command may have worked then, so these tests repeat nothing.
NO_RETRY = {"retry": Retry(NoBackoff(), 0), "retry_on_error": []}

FENCE_MAX = 2**53 - 1

# What a server that counts fences without the clock leaves out at every load and promotion.
SKIPPED = 65_536


@dataclass(frozen=True)
class Lock:
    """What INSPECT reports of a lock that is not free."""

    owner: bytes
    fence: int
    ttl_ms: int
    held_ms: int
    maxhold_left_ms: int | None
    waiters: int
    state: bytes

    @property
    def hold(self):
        """The owner and the fence: what must not change while the lease lives."""
        return self.owner, self.fence


def acquire(client, key, owner, ttl_ms, *options):
    """The fence, or None when the lock is busy."""
    return client.execute_command("FENCELOCK.ACQUIRE", key, owner, ttl_ms, *options)


def extend(client, key, owner, ttl_ms, fence=None):
    """The milliseconds left, or 0 when the lease is not the caller's any more."""
    return client.execute_command("FENCELOCK.EXTEND", key, owner, ttl_ms, *_fence(fence))


def release(client, key, owner, fence=None):
    """1 when it was the caller's, else 0."""
    return client.execute_command("FENCELOCK.RELEASE", key, owner, *_fence(fence))


def inspect(client, key):
    """A Lock, or None when the lock is free."""
    reply = client.execute_command("FENCELOCK.INSPECT", key)
    if reply is None:
        return None
    fields = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
    return Lock(**{name.decode().replace("-", "_"): value for name, value in fields.items()})


def wait_until_free(client, key):
    """Wait until the lock is free, and return the moment (monotonic, seconds)."""
    eventually(lambda: inspect(client, key), None)
    return time.monotonic()


def assert_ends_by(client, key, latest):
    """By the server's own account the lease ends by that moment (monotonic, seconds): true however late we ask."""
    asked = time.monotonic()
    lock = inspect(client, key)
    # The milliseconds are rounded up, here and where a test has them from.
    assert lock is None or lock.ttl_ms / 1000 <= latest - asked + 0.002, f"{lock}, {latest - asked:.3f} s before the latest end"


def assert_ends_on_time(client, key, began, granted, ttl_ms):
    """The lease that was asked for at `began` and granted by `granted` is live to its deadline and free after it.

    The caller's two readings enclose the moment of the grant, which the server alone knows.
    """
    while inspect(client, key) is not None:
        assert_ends_by(client, key, granted + ttl_ms / 1000)
    ended = time.monotonic()
    assert ended >= began + ttl_ms / 1000, f"ended {ended - began:.3f} s after the request of {ttl_ms} ms"


def _fence(fence):
    return () if fence is None else ("FENCE", fence)
