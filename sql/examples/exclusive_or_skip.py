"""Run exclusive or skip: do it unless somebody is at it already, and say whether it was done.

    ran = run_exclusive_or_skip(r, "task:rebuild-index", rebuild_index)

For tasks that are started more often than they should run at a time: a Celery task that must not overlap with itself
(name it `f"task:{task.name}:{args}"`), a cron job on three hosts, a cache that many requests find empty.
"""

from contextlib import ExitStack

from lease import LockBusy, lease


def run_exclusive_or_skip(r, name, work, *args, ttl_ms=10_000):
    """Call work(fence, *args) under the lock `name`. False, at once: it is busy. LockLost: the lease ended during the work.

    After LockLost a second one may have run meanwhile. work() puts the fence into each of its writes, so the rows refuse
    those of the older one.
    """
    with ExitStack() as stack:
        try:
            fence = stack.enter_context(lease(r, name, ttl_ms=ttl_ms, wait_ms=None))
        except LockBusy:
            return False
        work(fence, *args)
    return True
