"""The whole protocol over loopback: take the lock, claim the row, write it, give the lock back.

Against what others do with the same two servers and clients (redis-py, psycopg): a script with a counter and two
statements, redis-py's own Lock and a plain UPDATE, and an advisory lock of PostgreSQL around a SELECT and an UPDATE. The
last two fence nothing. The time is the client's; a round trip is a command or a statement that a client sends.
"""

import contextlib
import itertools
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import psycopg
import redis
from harness import PostgresServer, RedisServer
from psycopg.types.json import Jsonb

from .redis_works import LUA, Kept
from .works import Work

TABLE = "CREATE TABLE counters (id int PRIMARY KEY, value bigint NOT NULL DEFAULT 0, fence bigint NOT NULL DEFAULT 0)"
TTL, WAIT = 10_000, 60_000
POLL_S = 0.005
WORKERS = 16


class Counted(redis.Connection):
    """A connection to Redis that counts what all of its class send."""

    sent = itertools.count()

    def send_packed_command(self, *arguments, **options):
        """As redis-py does."""
        next(self.sent)
        return super().send_packed_command(*arguments, **options)


class Servers:
    """Both servers, and a table of one row."""

    def __init__(self):
        self.redis = RedisServer().start()
        self.postgres = PostgresServer(durable=True).start()
        self.db = psycopg.connect(self.postgres.url(), autocommit=True)
        for statement in ("CREATE EXTENSION pg_fence", TABLE, "INSERT INTO counters (id) VALUES (1)"):
            self.db.execute(statement)

    def close(self):
        """End both."""
        self.db.close()
        self.postgres.close()
        self.redis.close()

    def fresh(self):
        """The row as it was at the start."""
        self.db.execute("UPDATE counters SET fence = 0, value = 0")
        self.db.execute("VACUUM counters")

    def value(self):
        """What the row counts."""
        return self.db.execute("SELECT value FROM counters").fetchone()[0]


class Client:
    """One client of both servers, and each way to add 1 to the row under a lock that others want too."""

    def __init__(self, servers):
        pool = redis.ConnectionPool(connection_class=Counted, port=servers.redis.port)
        self._r = redis.Redis(connection_pool=pool)
        self._db = psycopg.connect(servers.postgres.url(), autocommit=True, prepare_threshold=0)
        self._acquire, self._release = (self._r.register_script(LUA[name]) for name in ("acquire", "release"))
        self.statements = 0

    def close(self):
        """Leave both servers."""
        self._db.close()
        self._r.close()

    def ours(self):
        """Waits in the server."""
        owner, fence = self._acquired()
        row = self._sql("SELECT value FROM fenced_claim(NULL::counters, %s, %s)", 1, fence)
        patch = Jsonb({"value": row[0] + 1})
        assert self._sql("SELECT fenced_update('counters', %s, %s, %s)", 1, fence, patch)[0]
        assert self._r.execute_command("FENCELOCK.RELEASE", "lock", owner)

    def ours_without_reading(self):
        """A write that needs nothing of the row claims it by itself."""
        owner, fence = self._acquired()
        assert self._sql("SELECT fenced_write('counters', %s, %s, %s)", 1, fence, Jsonb({"value": fence}))[0]
        assert self._r.execute_command("FENCELOCK.RELEASE", "lock", owner)

    def script_and_two_statements(self):
        """Polls."""
        owner, keys = uuid.uuid4().hex, ["{lock}", "{lock}:fence"]
        while not (fence := self._acquire(keys=keys, args=[owner, TTL])):
            time.sleep(POLL_S)
        row = self._sql("UPDATE counters SET fence = %s WHERE id = %s AND fence < %s RETURNING value", fence, 1, fence)
        update = "UPDATE counters SET value = %s WHERE id = %s AND fence = %s RETURNING true"
        assert self._sql(update, row[0] + 1, 1, fence)[0]
        assert self._release(keys=keys[:1], args=[owner])

    def redis_py_lock(self):
        """Polls ten times a second, by default; fences nothing."""
        with self._r.lock("plain", timeout=TTL / 1000):
            self._read_and_write()

    def advisory_lock(self):
        """Waits in the server; fences nothing, and the lock ends with the session alone."""
        self._sql("SELECT pg_advisory_lock(1)")
        self._read_and_write()
        self._sql("SELECT pg_advisory_unlock(1)")

    def _acquired(self):
        owner = uuid.uuid4().hex
        return owner, self._r.execute_command("FENCELOCK.ACQUIRE", "lock", owner, TTL, "WAIT", WAIT)

    def _read_and_write(self):
        value = self._sql("SELECT value FROM counters WHERE id = %s", 1)[0]
        self._sql("UPDATE counters SET value = %s WHERE id = %s RETURNING true", value + 1, 1)

    def _sql(self, statement, *values):
        self.statements += 1
        return self._db.execute(statement, values).fetchone()


PEERS = (
    ("the two-key script and two statements", Client.script_and_two_statements),
    ("redis-py's Lock and two statements, unfenced", Client.redis_py_lock),
    ("an advisory lock and two statements, unfenced", Client.advisory_lock),
)


def works(load, quick):
    """The works, with both servers started and ended around them."""
    del load
    turns, rounds = (200, 3) if quick else (300, 25)
    with contextlib.closing(Servers()) as servers, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(contextlib.closing(Client(servers))) for _ in range(WORKERS)]
        pool = stack.enter_context(ThreadPoolExecutor(WORKERS))

        def jobs(act, clients, each):
            return Kept(lambda: _measured(servers, pool, act, clients, each), "us_per_job")

        for name, peer in PEERS:
            sides = jobs(Client.ours, clients[:1], turns), jobs(peer, clients[:1], turns)
            yield from _time_and_trips(f"the whole protocol, one worker, against {name}", sides, rounds)
        name = "the whole protocol of a write that reads nothing, one worker, against the two-key script and two statements"
        sides = jobs(Client.ours_without_reading, clients[:1], turns), jobs(PEERS[0][1], clients[:1], turns)
        yield from _time_and_trips(name, sides, rounds)
        for name, peer in PEERS:
            sides = jobs(Client.ours, clients, 10), jobs(peer, clients, 10)
            yield from _time_and_trips(f"the whole protocol, {WORKERS} workers on one lock, against {name}", sides, rounds // 3)


def _time_and_trips(name, sides, rounds):
    yield Work(name, "time", None, None, *sides, rounds=rounds)
    yield Work(name, "round trips", None, None, *(side.later("trips_per_job") for side in sides), rounds=rounds)


def _measured(servers, pool, act, clients, each):
    """Every client does so many jobs, all from one moment on."""
    servers.fresh()
    jobs, began = each * len(clients), []

    def now():
        return time.perf_counter(), next(Counted.sent) + sum(client.statements for client in clients)

    # When each has connected and been through it once.
    start = threading.Barrier(len(clients), action=lambda: began.append(now()), timeout=60)

    def work(client):
        act(client)
        start.wait()
        for _ in range(each):
            act(client)

    for future in [pool.submit(work, client) for client in clients]:
        future.result()
    (start_s, sent_before), (end_s, sent) = began[0], now()
    # A write that reads nothing puts its fence there.
    assert servers.value() >= jobs + len(clients)
    return {"us_per_job": (end_s - start_s) / jobs * 1e6, "trips_per_job": (sent - sent_before - 1) / jobs}
