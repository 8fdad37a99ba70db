"""Holders that write under a lock for longer than PostgreSQL may live, and trust what they have read.

Each is a thread with a connection of its own. It takes a lock, claims (a row, two rows, a protected row, a guard), and writes
several times under that one claim, each time from what it has read or written before. A lost connection does not make it read
again unless it does not know whether its write is in: so it is the server that must refuse what it has forgotten.
"""

import logging
import random
import threading
import time
import uuid
from dataclasses import dataclass

import psycopg

from harness.redis_calls import Closed, Line, Refused

TABLES = """
    CREATE EXTENSION pg_fence;
    CREATE TABLE log (resource text, token text, previous text, fence bigint, value int);
    CREATE TABLE rows (id text PRIMARY KEY, value int NOT NULL DEFAULT 0, token text NOT NULL DEFAULT '', fence bigint NOT NULL DEFAULT 0);
    CREATE TABLE protected (LIKE rows INCLUDING ALL);
    CREATE TABLE guarded (id text PRIMARY KEY, value int NOT NULL DEFAULT 0, token text NOT NULL DEFAULT '');
    INSERT INTO rows (id) VALUES ('row'), ('left'), ('right'); INSERT INTO protected (id) VALUES ('protected');
    INSERT INTO guarded (id) VALUES ('guarded'); SELECT fence_protect('protected');
"""
HELD = "SELECT id, token FROM rows UNION ALL SELECT id, token FROM protected UNION ALL SELECT id, token FROM guarded"
READ = "SELECT value, token FROM rows WHERE id = 'row'"
REPLACE = "UPDATE rows SET value = %s, token = %s WHERE id = 'row'"
LOG = "INSERT INTO log VALUES (%s, %s, %s, %s, %s)"
CLAIM = "SELECT value, token FROM fenced_claim(NULL::rows, %s, %s)"
CLAIM_BOTH = "SELECT value, token FROM fenced_claim_many(NULL::rows, ARRAY['left', 'right'], %s)"
CLAIM_PROTECTED = "SELECT value, token FROM fenced_claim(NULL::protected, 'protected', %s)"
UPDATE = "SELECT fenced_update('rows', %s, %s, jsonb_build_object('value', %s::int, 'token', %s::text))"
PLAIN = "UPDATE protected SET value = %s, token = %s WHERE id = 'protected'"
PLAIN_GUARDED = "UPDATE guarded SET value = %s, token = %s WHERE id = 'guarded'"
WAYS = ("row", "both", "protected", "guarded")
# As without this project: no fence is used.
UNFENCED = "unfenced"
# A write that waits for a row or a guard longer than this is given up.
PATIENCE = "-c lock_timeout=2s -c statement_timeout=5s"
STALE, OUTLIVED = ("LF001", "LF002"), "LF006"
# A broken connection cannot be rolled back: it warns of that each time.
logging.getLogger("psycopg").addHandler(logging.NullHandler())


@dataclass(frozen=True)
class Habits:
    """How holders work: what they write, how many times under one claim at most, and the share that stalls past its lease."""

    ways: tuple = WAYS
    writes: int = 5
    stalls: float = 0.2
    lease_ms: int = 200


class Lost(Exception):
    """A newer holder has taken over."""


class Holder(threading.Thread):
    """One client. `redis_port`, `url()`: where the servers are reached. See Habits."""

    def __init__(self, number, seed, redis_port, url, habits):
        super().__init__(daemon=True)
        self._chance, self._redis_port, self._url = random.Random(f"{seed}/{number}"), redis_port, url
        self._db, self._stopped, self._habits = None, threading.Event(), habits
        self.acknowledged, self.refused, self.failure = [], {}, None

    def stop(self):
        """Have it end after its section."""
        self._stopped.set()

    def run(self):
        try:
            while not self._stopped.is_set():
                self._section()
        except Exception as failure:  # noqa: BLE001 - the run reports it
            self.failure = repr(failure)
        finally:
            self._close()

    def _section(self):
        way = self._chance.choice(self._habits.ways)
        lock, owner = f"lock:{way}", uuid.uuid4().hex
        fence = self._ask("FENCELOCK.ACQUIRE", lock, owner, self._habits.lease_ms, "WAIT", 100)
        if fence is None:
            return
        try:
            self._hold(fence, getattr(self, f"_claim_{way}"), getattr(self, f"_write_{way}"))
        except Lost:
            self._count("stale")
        self._ask("FENCELOCK.RELEASE", lock, owner)

    def _ask(self, *words):
        """The reply, or None when there is none."""
        try:
            with Line(self._redis_port) as redis:
                reply = redis.call(*words)
        except (OSError, Closed):
            self._stopped.wait(0.02)
            return None
        return None if isinstance(reply, Refused) else reply

    def _hold(self, fence, claim, write):
        """Claim, and write some times from what is known since."""
        known = self._sure(claim, fence)
        for _ in range(self._chance.randint(1, self._habits.writes)):
            is_stalled = self._chance.random() < self._habits.stalls
            self._stopped.wait(self._chance.uniform(0.25, 0.5) if is_stalled else self._chance.uniform(0, 0.03))
            tokens = [uuid.uuid4().hex for _ in known]
            try:
                self._wake_up()
                with self._db.transaction():
                    write(fence, known, tokens)
                    for (resource, value, previous), token in zip(known, tokens):
                        self._db.execute(LOG, (resource, token, previous, fence, value + 1))
                self.acknowledged += tokens
                known = [(resource, value + 1, token) for (resource, value, _), token in zip(known, tokens)]
            except psycopg.Error as error:
                # Refused, or nobody knows whether it is in: claim all again, and read.
                self._note(error)
                known = self._sure(claim, fence)

    def _sure(self, claim, fence):
        """What a claim has read, however often it takes."""
        while not self._stopped.is_set():
            try:
                self._wake_up()
                with self._db.transaction():
                    return claim(fence)
            except psycopg.Error as error:
                self._note(error)
        raise Lost

    def _note(self, error):
        self._count(error.sqlstate or "no reply")
        if error.sqlstate in STALE:
            raise Lost from None
        if error.sqlstate is None or not (error.sqlstate == OUTLIVED or isinstance(error, psycopg.OperationalError)):
            self._close()
        if error.sqlstate is not None and error.sqlstate[:2] in ("42", "22", "XX"):
            raise error

    def _wake_up(self):
        """A connection that answers. Where an old one does not, it reads nothing again."""
        while True:
            try:
                if self._db is None or self._db.closed:
                    self._db = psycopg.connect(self._url(), autocommit=True, prepare_threshold=None, connect_timeout=5)
                self._db.execute("SELECT 1")
                return
            except psycopg.Error:
                self._close()
                if self._stopped.wait(0.05):
                    raise Lost from None

    def _close(self):
        if self._db is not None:
            self._db.close()

    def _count(self, what):
        self.refused[what] = self.refused.get(what, 0) + 1

    # --- the ways: claim gives (resource, value, token) of each resource, write writes them

    def _claim_row(self, fence):
        return self._known(["row"], self._db.execute(CLAIM, ("row", fence)).fetchall())

    def _write_row(self, fence, known, tokens):
        ((_, value, _),) = known
        self._must(self._db.execute(UPDATE, ("row", fence, value + 1, tokens[0])).fetchone()[0])

    def _claim_unfenced(self, _fence):
        return self._known(["row"], self._db.execute(READ).fetchall())

    def _write_unfenced(self, _fence, known, tokens):
        ((_, value, _),) = known
        self._db.execute(REPLACE, (value + 1, tokens[0]))

    def _claim_both(self, fence):
        return self._known(["left", "right"], self._db.execute(CLAIM_BOTH, (fence,)).fetchall())

    def _write_both(self, fence, known, tokens):
        for (resource, value, _), token in zip(known, tokens):
            self._must(self._db.execute(UPDATE, (resource, fence, value + 1, token)).fetchone()[0])

    def _claim_protected(self, fence):
        return self._known(["protected"], self._db.execute(CLAIM_PROTECTED, (fence,)).fetchall())

    def _write_protected(self, fence, known, tokens):
        ((_, value, _),) = known
        self._db.execute("SELECT fence_use(%s)", (fence,))
        self._must(self._db.execute(PLAIN, (value + 1, tokens[0])).rowcount == 1)

    def _claim_guarded(self, fence):
        self._db.execute("SELECT fenced_guard('guarded', %s)", (fence,))
        (self._life,) = self._db.execute("SELECT fence_life()").fetchone()
        return self._known(["guarded"], self._db.execute("SELECT value, token FROM guarded").fetchall())

    def _write_guarded(self, fence, known, tokens):
        ((_, value, _),) = known
        self._db.execute("SELECT fenced_guard('guarded', %s, %s)", (fence, self._life))
        self._must(self._db.execute(PLAIN_GUARDED, (value + 1, tokens[0])).rowcount == 1)

    def _known(self, resources, rows):
        self._must(len(rows) == len(resources))
        return [(resource, value, token) for resource, (value, token) in zip(resources, rows)]

    @staticmethod
    def _must(accepted):
        if not accepted:
            raise Lost


def thief(port, stopped):
    """Deletes locks again and again, so that several believe that they hold one."""
    while not stopped.wait(0.04):
        try:
            with Line(port) as redis:
                redis.call("DEL", *(f"lock:{way}" for way in WAYS))
        except (OSError, Closed):
            time.sleep(0.02)
