"""From redis-py's Lock to Fencelock, while workers of both kinds run.

Times are milliseconds here, and seconds there.

| redis-py | raw command |
|---|---|
| `r.lock(name, timeout=10, blocking_timeout=4).acquire()` | `FENCELOCK.ACQUIRE name owner 10000 WAIT 4000 RETRY` |
| `acquire(blocking=False)` | `FENCELOCK.ACQUIRE name owner 10000 RETRY` |
| `extend(10, replace_ttl=True)`, `reacquire()` | `FENCELOCK.EXTEND name owner 10000 FENCE fence`: 0 is LockNotOwnedError |
| `release()` | `FENCELOCK.RELEASE name owner FENCE fence`: 0 is LockNotOwnedError |
| `owned()`, `locked()` | `FENCELOCK.CHECK name fence`, `FENCELOCK.INSPECT name` |

The two do not see each other, and one key cannot be both (WRONGTYPE): Fencelock's has another name. So, in three steps:

1. Deploy `both_locks` in place of r.lock(). It takes the old lock first, so that it excludes workers of the old kind.
2. When none of the old kind is left, deploy FENCELOCK.ACQUIRE alone.
3. Put the fence into the writes (fenced_claim, fenced_update), and protect the tables with fence_protect().
"""

from contextlib import contextmanager

from lease import lease


@contextmanager
def both_locks(r, name, ttl_ms=10_000, wait_ms=4_000):
    """Hold the lock of both kinds and give the fence. The old lock is not renewed.

    The old one raises LockError and LockNotOwnedError as it did, the new one LockBusy and LockLost.
    """
    with (
        r.lock(name, timeout=ttl_ms / 1000, blocking_timeout=wait_ms / 1000),
        lease(r, f"fence:{name}", ttl_ms=ttl_ms, wait_ms=wait_ms) as fence,
    ):
        yield fence
