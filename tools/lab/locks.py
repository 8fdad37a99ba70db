"""The lock servers, as a worker uses them: it enters with the lock and the read, writes, and leaves.

Raw commands and plain SQL, as any user writes them.
"""

import multiprocessing
import os
import signal
import time
from dataclasses import dataclass

import psycopg
import redis

from harness import RedisServer, eventually
from harness.locks import NO_RETRY, acquire, inspect, release

LOCK = "lock:cell"
WAIT_MS = 60_000
_RELEASE = "SELECT fencelock_release(%(lock)s, %(owner)s, %(fence)s)"
_PATCH = "jsonb_build_object('value', %(value)s::jsonb, 'writer', %(me)s::text)"
_READ = "SELECT value, writer FROM cells WHERE id = 1"
# A replica without data to load follows within a tenth of a second.
_PAIR = {"repl-diskless-sync": "yes", "repl-diskless-sync-delay": "0", "repl-diskless-load": "swapdb"}
_processes = multiprocessing.get_context("fork")


class RedisLock:
    """The lock on whichever Redis server is the primary now; the mode says how the row is read and written."""

    def __init__(self, mode, db, port):
        self._mode, self._db, self._port = mode, db, port
        self._connect()

    def _connect(self):
        # redis-py gives up a reply after 5 s by itself; a turn in the queue may take longer.
        self._redis = redis.Redis(port=self._port.value, protocol=2, socket_timeout=None, **NO_RETRY)

    def enter(self, owner, lease_ms):
        """The fence, after as long a wait and as many attempts as it takes, and the row, or None where it is refused."""
        while True:
            try:
                if (fence := acquire(self._redis, LOCK, owner, lease_ms, "WAIT", WAIT_MS, "RETRY")) is not None:
                    return fence, self._db.execute(self._mode.read, {"fence": fence}).fetchone()
            except redis.ConnectionError:
                time.sleep(0.002)
                self._connect()

    def leave(self, owner, fence, written):
        """Write, unless there is nothing to write, and release. Returns whether the write was accepted, and when."""
        accepted = False
        if written:
            (accepted,) = self._db.execute(self._mode.write, {"fence": fence, **written}).fetchone()
        wrote = time.time()
        try:
            release(self._redis, LOCK, owner, fence)
        except redis.ConnectionError:
            # A server that is gone has lost the lock anyway.
            self._connect()
        return accepted, wrote


class PostgresLock:
    """The lock in PostgreSQL, whole protocol in two statements."""

    def __init__(self, mode, db, _port):
        self._mode, self._db = mode, db

    def enter(self, owner, lease_ms):
        """The fence, after as long a wait and as many attempts as it takes, and the row, or None where it is refused."""
        asked = {"lock": LOCK, "owner": owner, "ttl": lease_ms, "wait": WAIT_MS}
        while (found := self._db.execute(self._mode.read, asked).fetchone()) is None:
            pass
        fence, value, writer = found
        return fence, None if value is None else (value, writer)

    def leave(self, owner, fence, written):
        """Write, unless there is nothing to write, and release. Returns whether the write was accepted, and when."""
        held = {"lock": LOCK, "owner": owner, "fence": fence}
        if not written:
            self._db.execute(_RELEASE, held)
            return False, time.time()
        accepted, _ = self._db.execute(self._mode.write, {**held, **written}).fetchone()
        return accepted, time.time()


class RedisPair:
    """A Redis server, with a replica when there will be failovers; `port` is the primary's, shared with the workers."""

    def __init__(self, _dsn=None, replicated=False):
        self._primary = RedisServer().start()
        self._replica = self._follower() if replicated else None
        self.port = _processes.Value("i", self._primary.port)

    def holder(self):
        """The owner of the lock, or None."""
        with self._client() as primary:
            held = inspect(primary, LOCK)
        return held and held.owner.decode()

    def _client(self):
        return redis.Redis(port=self._primary.port, protocol=2, **NO_RETRY)

    def fail_over(self, lease_s, over):
        """Kill the primary right after a grant that its replica never got, and promote that one. Returns when."""
        with self._client() as primary, redis.Redis(port=self._replica.port, protocol=2) as replica:
            replica.ping()
            os.kill(self._replica.pid, signal.SIGSTOP)
            primary.client_kill_filter(_type="replica")
            # Until the lease that the replica knows of has expired, and then until the next grant.
            time.sleep(lease_s)
            known = _fence(primary)
            eventually(lambda: over() or _fence(primary) not in (None, known), within_s=30)
            at = time.time()
            self._primary.kill()
            os.kill(self._replica.pid, signal.SIGCONT)
            replica.replicaof("NO", "ONE")
        self._primary.close()
        self._primary = self._replica
        self.port.value = self._primary.port
        self._replica = self._follower()
        return at

    def close(self):
        """Kill the servers."""
        self._primary.close()
        if self._replica:
            self._replica.close()

    def _follower(self):
        replica = RedisServer(config={**_PAIR, "replicaof": f"127.0.0.1 {self._primary.port}"}).start()
        with redis.Redis(port=replica.port, protocol=2) as client:
            eventually(lambda: client.info("replication")["master_link_status"], "up", within_s=20)
        return replica


def _fence(client):
    """The fence of whoever holds the lock now, or None."""
    held = inspect(client, LOCK)
    return held and held.fence


class PostgresAlone:
    """The lock is in the server that has the row: there is nothing else to start."""

    port = None

    def __init__(self, dsn, replicated):
        assert not replicated
        self._db = psycopg.connect(dsn, autocommit=True)

    def holder(self):
        """The owner of the lock, or None."""
        (owner,) = self._db.execute("SELECT owner FROM fencelock_inspect(%s)", (LOCK,)).fetchone()
        return owner

    def close(self):
        """Close the connection."""
        self._db.close()


@dataclass(frozen=True)
class Mode:
    """How a worker reads and writes the row: a read without a row and a write that answers false are refusals."""

    read: str
    write: str
    lock: type = RedisLock
    servers: type = RedisPair


MODES = {
    "no fence": Mode(_READ, "UPDATE cells SET value = %(value)s, writer = %(me)s WHERE id = 1 RETURNING true"),
    "write-only": Mode(_READ, f"SELECT fenced_write('cells', 1, %(fence)s, {_PATCH})"),
    "claim first": Mode(
        "SELECT value, writer FROM fenced_claim(NULL::cells, 1, %(fence)s)",
        f"SELECT fenced_update('cells', 1, %(fence)s, {_PATCH})",
    ),
    "PostgreSQL alone": Mode(
        "SELECT f.mine, c.value, c.writer FROM fencelock_acquire(%(lock)s, %(owner)s, %(ttl)s, %(wait)s) AS f(mine)"
        " LEFT JOIN LATERAL fenced_claim(NULL::cells, 1, f.mine) AS c ON true WHERE f.mine IS NOT NULL",
        f"SELECT fenced_update('cells', 1, %(fence)s, {_PATCH}), fencelock_release(%(lock)s, %(owner)s, %(fence)s)",
        PostgresLock,
        PostgresAlone,
    ),
}
# The modes that claim the row before they read it: they lose nothing.
CLAIMED = ("claim first", "PostgreSQL alone")
