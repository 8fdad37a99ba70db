"""One of many processes leads, for hours, as with Kubernetes' leader election; a deposed leader can write no more.

    CREATE TABLE leaders (name text PRIMARY KEY, identity text, since timestamptz, fence bigint NOT NULL DEFAULT 0);
    INSERT INTO leaders (name) VALUES ('scheduler');

    Candidate(r, db, "scheduler", identity=os.environ["HOSTNAME"], work=reconcile).run()

A leader renews its lease from a thread and calls work(fence, lost) in rounds. `lost` is an Event: work that takes long
checks it and returns. Every round claims the leader's row again: the same fence is accepted for hours, and a newer one
ends the leadership at once, also when the lease was lost unnoticed. The row says who leads.
"""

import threading
from contextlib import ExitStack

from lease import LockBusy, LockLost, lease

CLAIM = "SELECT identity FROM fenced_claim(NULL::leaders, %s, %s)"
LEADS = "SELECT fenced_update('leaders', %s, %s, jsonb_build_object('identity', %s::text, 'since', now()))"


class Candidate:
    """Stands for election. `r` is a redis-py client, `db` a connection of psycopg in autocommit.

    lease_ms: how long the others wait for a leader that is dead. round_s: the pause between two rounds of work.
    max_hold_ms: after so long the leadership is handed on in any case, also by a process whose work hangs.
    """

    def __init__(self, r, db, name, identity, work, *, lease_ms=15_000, round_s=2.0, max_hold_ms=12 * 3_600_000):
        self.r, self.db, self.name, self.identity, self.work = r, db, name, identity, work
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
        while not lost.is_set() and not self._stopped.is_set():
            leader = self.db.execute(CLAIM, (self.name, fence)).fetchone()
            if leader is None:
                raise LockLost(f"a newer leader has claimed {self.name}")
            if leader[0] != self.identity:
                self.db.execute(LEADS, (self.name, fence, self.identity))
            self.work(fence, lost)
            lost.wait(self.round_s)

    def stop(self):
        """Finish the round, release the lock, and return from run()."""
        self._stopped.set()
