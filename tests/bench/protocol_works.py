"""The whole protocol over loopback: take the lock, claim the row, write it, give the lock back.

Against what others do with the same two servers and clients (redis-py, psycopg): a script with a counter and two
statements, redis-py's own Lock and a plain UPDATE, and an advisory lock of PostgreSQL around a SELECT and an UPDATE. The
last two fence nothing. Round trips are counted by hand where each begins; the time is the client's.
"""

import contextlib
import time
import uuid

import psycopg
import redis
from harness import PostgresServer, RedisServer
from psycopg.types.json import Jsonb

from .redis_works import LUA
from .works import Work

TABLE = "CREATE TABLE counters (id int PRIMARY KEY, value bigint NOT NULL DEFAULT 0, fence bigint NOT NULL DEFAULT 0)"
TTL = 10_000


class Protocols:
    """One client of both servers, and each way to add 1 to the row under a lock."""

    def __init__(self):
        self._redis_server = RedisServer().start()
        self._postgres = PostgresServer(durable=True).start()
        self.r = redis.Redis(port=self._redis_server.port)
        self.db = psycopg.connect(self._postgres.url(), autocommit=True, prepare_threshold=0)
        for statement in ("CREATE EXTENSION pg_fence", TABLE, "INSERT INTO counters (id) VALUES (1)"):
            self.db.execute(statement)
        self._acquire, self._release = (self.r.register_script(LUA[name]) for name in ("acquire", "release"))

    def close(self):
        """End both servers."""
        self.db.close()
        self.r.close()
        self._postgres.close()
        self._redis_server.close()

    def ours(self):
        """Four round trips."""
        owner = uuid.uuid4().hex
        fence = self.r.execute_command("FENCELOCK.ACQUIRE", "lock", owner, TTL)
        row = self.db.execute("SELECT value FROM fenced_claim(NULL::counters, %s, %s)", (1, fence)).fetchone()
        patch = Jsonb({"value": row[0] + 1})
        written = self.db.execute("SELECT fenced_update('counters', %s, %s, %s)", (1, fence, patch)).fetchone()[0]
        assert written and self.r.execute_command("FENCELOCK.RELEASE", "lock", owner)

    def script_and_two_statements(self):
        """Four round trips."""
        owner = uuid.uuid4().hex
        fence = self._acquire(keys=["{lock}", "{lock}:fence"], args=[owner, TTL])
        claim = "UPDATE counters SET fence = %s WHERE id = %s AND fence < %s RETURNING value"
        row = self.db.execute(claim, (fence, 1, fence)).fetchone()
        update = "UPDATE counters SET value = %s WHERE id = %s AND fence = %s"
        written = self.db.execute(update, (row[0] + 1, 1, fence)).rowcount
        assert written and self._release(keys=["{lock}"], args=[owner])

    def redis_py_lock(self):
        """Four round trips, and no fence."""
        with self.r.lock("plain", timeout=TTL / 1000):
            self._read_and_write()

    def advisory_lock(self):
        """Four round trips, and no fence; the lock ends with the session alone."""
        self.db.execute("SELECT pg_advisory_lock(1)")
        self._read_and_write()
        self.db.execute("SELECT pg_advisory_unlock(1)")

    def _read_and_write(self):
        value = self.db.execute("SELECT value FROM counters WHERE id = %s", (1,)).fetchone()[0]
        self.db.execute("UPDATE counters SET value = %s WHERE id = %s", (value + 1, 1))


def works(load, quick):
    """The works, with both servers started and ended around them."""
    del load
    turns, rounds = (200, 3) if quick else (1_500, 9)
    with contextlib.closing(Protocols()) as protocols:

        def microseconds(act):
            def measured():
                protocols.db.execute("UPDATE counters SET fence = 0")
                protocols.db.execute("VACUUM counters")
                began = time.perf_counter()
                for _ in range(turns):
                    act()
                return (time.perf_counter() - began) / turns * 1e6

            return measured

        for name, peer in (
            ("the two-key script and two statements", protocols.script_and_two_statements),
            ("redis-py's Lock and two statements, unfenced", protocols.redis_py_lock),
            ("an advisory lock and two statements, unfenced", protocols.advisory_lock),
        ):
            sides = microseconds(protocols.ours), microseconds(peer)
            yield Work(f"the whole protocol against {name}", "time", None, None, *sides, rounds=rounds)
