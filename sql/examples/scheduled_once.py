"""A schedule on several hosts, as Celery's beat is on one: each task runs once when it is due, whoever comes first.

    CREATE TABLE schedule (
        task text PRIMARY KEY,
        every interval NOT NULL,
        due timestamptz NOT NULL DEFAULT now(),
        fence bigint NOT NULL DEFAULT 0
    );

Each host calls run_if_due() for each task every second or so. The lock keeps them from working at the same time; the row
says what was done, so that a host which comes late, or stalled, or has the lock after a failover, repeats nothing.
"""

from exclusive_or_skip import run_exclusive_or_skip

# The next of its times that is to come: those that were missed are left out.
DUE = "SELECT now() >= due, date_bin(every, now(), due) + every FROM fenced_claim(NULL::schedule, %s, %s)"
MOVE_ON = "SELECT fenced_update('schedule', %s, %s, jsonb_build_object('due', %s::timestamptz))"


def run_if_due(r, db, task, work, ttl_ms=10_000):
    """Call work(fence) if the task is due and nobody is at it; whether it was called. `db` is in autocommit.

    LockLost: the lease ended before the work did. The task has been called and is not due any more.
    """
    called = False

    def run(fence):
        nonlocal called
        claimed = db.execute(DUE, (task, fence)).fetchone()
        if claimed is None or not claimed[0]:
            return
        # Before the work: a crash in between skips this run. After the work it would run twice: choose.
        if db.execute(MOVE_ON, (task, fence, claimed[1])).fetchone()[0]:
            called = True
            work(fence)

    run_exclusive_or_skip(r, f"schedule:{task}", run, ttl_ms=ttl_ms)
    return called
