"""A schedule on several hosts, as Celery's beat is on one: each task runs once when it is due, whoever comes first.

    CREATE TABLE schedule (
        task text PRIMARY KEY,
        every interval NOT NULL,
        due timestamptz NOT NULL DEFAULT now(),
        fence bigint NOT NULL DEFAULT 0
    );

Each host calls run_if_due() for each task every second or so. The lock keeps them from working at the same time; the row
says what was done, so that a host which comes late, or stalled, or has the lock after a failover, repeats nothing. What a
fail-over of PostgreSQL loses is due again: where a task must not run twice, use a synchronous standby.
"""

import psycopg
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
        # Before the work: a crash in between skips this run. After the work it would run twice: choose.
        called = _move_on(db, task, fence)
        if called:
            work(fence)

    run_exclusive_or_skip(r, f"schedule:{task}", run, ttl_ms=ttl_ms)
    return called


def _move_on(db, task, fence):
    """Set the task's next time; whether it was due."""
    while True:
        claimed = db.execute(DUE, (task, fence)).fetchone()
        if claimed is None or not claimed[0]:
            return False
        try:
            return db.execute(MOVE_ON, (task, fence, claimed[1])).fetchone()[0]
        except psycopg.Error as error:
            # The server was started or promoted since the claim, behind a pooler: claim again. If it is due still, go on.
            if error.sqlstate != "LF006":
                raise
