"""Run exclusive or skip: do it unless somebody is at it already, and say whether it was done.

    ran = run_exclusive_or_skip(r, "task:rebuild-index", rebuild_index)

For tasks that are started more often than they should run at a time: a Celery task that must not overlap with itself
(name it `f"task:{task.name}:{args}"`), a cron job on three hosts, a cache that many requests find empty.
"""

import uuid


def run_exclusive_or_skip(r, name, work, *args, ttl_ms=60_000):
    """Call work(fence, *args) under the lock `name`; False, at once, when it is busy.

    The lease is not renewed: choose ttl_ms above what the work takes. When that was wrong all the same, a second one starts
    and the fence, which work() puts into each of its writes, refuses what the first one still writes.
    """
    owner = uuid.uuid4().hex  # a new one for each acquisition
    fence = r.execute_command("FENCELOCK.ACQUIRE", name, owner, ttl_ms, "RETRY")
    if fence is None:
        return False
    try:
        work(fence, *args)
    finally:
        r.execute_command("FENCELOCK.RELEASE", name, owner, "FENCE", fence)
    return True
