"""One of many processes leads, for hours, as with Kubernetes' leader election; a deposed leader can write no more.

    CREATE TABLE leaders (name text PRIMARY KEY, identity text, since timestamptz, fence bigint NOT NULL DEFAULT 0);
    INSERT INTO leaders (name) VALUES ('scheduler');

    Candidate(r, db, "scheduler", identity=os.environ["HOSTNAME"], work=reconcile).run()

A leader renews its lease from a thread and calls work(fence) in rounds. Every round claims the leader's row again: the
same fence is accepted for hours, and a newer one ends the leadership at once, also when the lease was lost unnoticed.
The row tells everybody who leads. MAXHOLD ends even a leadership that is renewed by a process whose work hangs.
"""

import threading
import time
import uuid

from redis.exceptions import RedisError

CLAIM = "SELECT identity FROM fenced_claim(NULL::leaders, %s, %s)"
LEADS = "SELECT fenced_update('leaders', %s, %s, jsonb_build_object('identity', %s::text, 'since', now()))"


class Candidate:
    """Stands for election until stop() is called. `r` is a redis-py client, `db` a connection of psycopg in autocommit.

    lease_ms: how long the others wait for a leader that is dead. round_s: the pause between two rounds of work.
    max_hold_ms: after so long the leadership is handed on in any case.
    """

    def __init__(self, r, db, name, identity, work, *, lease_ms=15_000, round_s=2.0, max_hold_ms=12 * 3_600_000):
        self.r, self.db, self.name, self.identity, self.work = r, db, name, identity, work
        self.lease_ms, self.round_s, self.max_hold_ms = lease_ms, round_s, max_hold_ms
        self._stopped = threading.Event()

    def run(self):
        """Wait to be elected, lead, and wait again."""
        while not self._stopped.is_set():
            owner = f"{self.identity}-{uuid.uuid4().hex}"  # a new one for each acquisition
            options = ("WAIT", 2_000, "RETRY", "MAXHOLD", self.max_hold_ms)
            fence = self.r.execute_command("FENCELOCK.ACQUIRE", self._lock, owner, self.lease_ms, *options)
            if fence is not None:
                self._lead(owner, fence)

    def stop(self):
        """Finish the round, release the lock, and return from run()."""
        self._stopped.set()

    @property
    def _lock(self):
        return f"leader:{self.name}"

    def _lead(self, owner, fence):
        over = threading.Event()
        renewal = threading.Thread(target=self._renew, args=(owner, fence, over), daemon=True)
        renewal.start()
        try:
            while not over.is_set() and not self._stopped.is_set():
                leader = self.db.execute(CLAIM, (self.name, fence)).fetchone()
                if leader is None:
                    break  # a newer leader has claimed the row
                if leader[0] != self.identity:
                    self.db.execute(LEADS, (self.name, fence, self.identity))
                self.work(fence)
                over.wait(self.round_s)
        finally:
            over.set()
            renewal.join()
            self.r.execute_command("FENCELOCK.RELEASE", self._lock, owner, "FENCE", fence)

    def _renew(self, owner, fence, over):
        """Sets `over` when the lease has ended, or may have: Redis was silent for as long as it lasts."""
        until = time.monotonic() + self.lease_ms / 1000
        while not over.wait(self.lease_ms / 3000):
            asked = time.monotonic()
            try:
                left = self.r.execute_command("FENCELOCK.EXTEND", self._lock, owner, self.lease_ms, "FENCE", fence)
            except RedisError:
                left = None
            if left:
                until = asked + left / 1000
            elif left == 0 or time.monotonic() >= until:
                over.set()
