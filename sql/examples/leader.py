"""One of many processes leads, for hours, as with Kubernetes' leader election; a deposed leader can write no more.

    CREATE TABLE leaders (name text PRIMARY KEY, identity text, since timestamptz, fence bigint NOT NULL DEFAULT 0);

    Candidate(r, connect, "scheduler", identity=os.environ["HOSTNAME"], work=reconcile).run()

A leader renews its lease from a thread and calls work(fence, lost) in rounds. `lost` is an Event: work that takes long
checks it and returns. Every round claims the leader's row again: the same fence is accepted for hours, and a newer one
ends the leadership at once, also when the lease was lost unnoticed. The row says who leads.

A restart or a fail-over of PostgreSQL does not end a leadership: the next round connects again and claims again. work() does
the same with what it writes: it claims and reads in each round, and keeps no claim from one round to the next.
"""

import threading
from contextlib import ExitStack

import psycopg
from lease import LockBusy, LockLost, lease

# Whoever leads first inserts the row.
CLAIM = "SELECT identity FROM fenced_claim_or_insert(NULL::leaders, %s, %s, '{}')"
LEADS = "SELECT fenced_update('leaders', %s, %s, jsonb_build_object('identity', %s::text, 'since', now()))"


class Candidate:
    """Stands for election. `r` is a redis-py client, connect() gives a connection of psycopg in autocommit.

    lease_ms: how long the others wait for a leader that is dead. round_s: the pause between two rounds of work.
    max_hold_ms: after so long the leadership is handed on in any case, also by a process whose work hangs.
    """

    def __init__(self, r, connect, name, identity, work, *, lease_ms=15_000, round_s=2.0, max_hold_ms=12 * 3_600_000):
        self.r, self.connect, self.name, self.identity, self.work = r, connect, name, identity, work
        self.lease_ms, self.round_s, self.max_hold_ms = lease_ms, round_s, max_hold_ms
        self._stopped = threading.Event()

    def run(self):
        """Wait to be elected, and lead until stop(). LockLost: the leadership has ended before. Call it again to stand again."""
        lost = threading.Event()
        options = {"ttl_ms": self.lease_ms, "wait_ms": 2_000, "max_hold_ms": self.max_hold_ms, "lost": lost}
        while not self._stopped.is_set():
            with ExitStack() as leadership:
                try:
                    fence = leadership.enter_context(lease(self.r, f"leader:{self.name}", **options))
                except LockBusy:
                    continue
                self._lead(fence, lost)

    def _lead(self, fence, lost):
        with ExitStack() as connections:
            db = None
            while not lost.is_set() and not self._stopped.is_set():
                try:
                    if db is None or db.closed:
                        db = connections.enter_context(self.connect())
                    self._claim(db, fence)
                    self.work(fence, lost)
                except psycopg.Error as error:
                    # LF006: the server was started or promoted since the claim, in this round or in the work's.
                    if not isinstance(error, psycopg.OperationalError) and error.sqlstate != "LF006":
                        raise
                lost.wait(self.round_s)

    def _claim(self, db, fence):
        leader = db.execute(CLAIM, (self.name, fence)).fetchone()
        if leader is None:
            raise LockLost(f"a newer leader has claimed {self.name}")
        if leader[0] != self.identity:
            db.execute(LEADS, (self.name, fence, self.identity))

    def stop(self):
        """Finish the round, release the lock, and return from run()."""
        self._stopped.set()
