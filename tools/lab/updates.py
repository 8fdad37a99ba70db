"""One run: worker processes that read, change and write one row under one lock, while something goes wrong.

Every write stores its own id beside the value, and every read returns the id of the write that it saw. So the writes form
a tree, and losses.py can say which of them the final row still rests on. Raw commands and plain SQL, as any user writes
them.
"""

import concurrent.futures
import contextlib
import dataclasses
import multiprocessing
import os
import random
import signal
import time
from dataclasses import dataclass

import psycopg
import redis
from psycopg.types.json import Jsonb

from harness import PostgresServer, RedisServer, eventually
from harness.locks import NO_RETRY, acquire, inspect, release

from . import losses

LOCK = "lock:cell"
WAIT_MS = 60_000
TABLE = """
    CREATE EXTENSION pg_fence;
    CREATE TABLE cells (
        id int PRIMARY KEY,
        value jsonb NOT NULL,
        writer text NOT NULL DEFAULT '',
        fence bigint NOT NULL DEFAULT 0
    );
"""
_READ = "SELECT value, writer FROM cells WHERE id = 1"
_PATCH = "jsonb_build_object('value', %(value)s::jsonb, 'writer', %(me)s::text)"
# The read and the write of each mode. A read without a row and a write that answers false are refusals.
MODES = {
    "no fence": (_READ, "UPDATE cells SET value = %(value)s, writer = %(me)s WHERE id = 1 RETURNING true"),
    "write-only": (_READ, f"SELECT fenced_write('cells', 1, %(fence)s, {_PATCH})"),
    "claim first": (
        "SELECT value, writer FROM fenced_claim(NULL::cells, 1, %(fence)s)",
        f"SELECT fenced_update('cells', 1, %(fence)s, {_PATCH})",
    ),
}
_NOTHING = {"counter": 0, "set": []}
# A replica without data to load follows within a tenth of a second.
_PAIR = {"repl-diskless-sync": "yes", "repl-diskless-sync-delay": "0", "repl-diskless-load": "swapdb"}
_processes = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Job:
    """What is run. Shares and lengths of stalls are planned from the seed; times are milliseconds."""

    experiment: str
    mode: str
    seed: str
    sections: int
    workers: int = 8
    lease_ms: int = 200
    work_ms: int = 5
    stalling: float = 0.0  # the share of the sections that stall, after the read and with the lock
    stall_ms: tuple = (300, 300)  # from, to
    resource: str = "counter"  # or "set": what the row holds
    trouble: str = ""  # "pauses" or "failovers"
    trouble_every_s: float = 5.0
    pause_s: float = 3.0


def stall_plan(job):
    """Which sections stall and for how many seconds: the same for the same seed, whatever the mode."""
    chance = random.Random(job.seed)
    chosen = chance.sample(range(job.sections), round(job.sections * job.stalling))
    return {section: chance.uniform(*job.stall_ms) / 1000 for section in chosen}


def run(job):
    """Run a job on servers of its own. Returns (result, log): what it came to, and every attempt, trouble and loss."""
    began, load = time.time(), os.getloadavg()
    with _servers(job) as (postgres, pair):
        postgres.psql(TABLE)
        with psycopg.connect(postgres.url(), autocommit=True) as db:
            db.execute("INSERT INTO cells (id, value) VALUES (1, %s)", (Jsonb(_NOTHING[job.resource]),))
            attempts, troubles = _run_workers(job, postgres.url(), pair)
            value, writer = db.execute("SELECT value, writer FROM cells").fetchone()
    final = value if job.resource == "counter" else len(set(value))
    origin = min(attempt["granted"] for attempt in attempts)
    found = losses.explain(attempts, writer, troubles, job.lease_ms / 1000, origin)
    accepted = sum(attempt["accepted"] for attempt in attempts)
    lost = job.sections - final
    if accepted != job.sections or lost != sum(len(loss["lost"]) for loss in found):
        raise AssertionError(f"{job}: {accepted} sections, {final} at the end, which the log does not explain")
    return {
        **dataclasses.asdict(job),
        "stalls": len(troubles) or sum(attempt["stalled"] for attempt in attempts),
        "rejected": len(attempts) - accepted,
        "final": final,
        "lost": lost,
        "causes": losses.causes(found),
        # To read; all of them are in the log.
        "explanations": [loss["text"] for loss in found[:5]],
        "seconds": round(time.time() - began, 1),
        "load": [round(one, 1) for one in (load[0], os.getloadavg()[0])],
    }, [*sorted(attempts, key=lambda one: one["fence"]), *troubles, *found]


@contextlib.contextmanager
def _servers(job):
    with (
        contextlib.closing(PostgresServer()) as postgres,
        contextlib.closing(Pair(replicated=job.trouble == "failovers")) as pair,
    ):
        yield postgres.start(), pair


def _run_workers(job, dsn, pair):
    barrier = _processes.Barrier(job.workers)
    with concurrent.futures.ProcessPoolExecutor(
        job.workers, _processes, initializer=_prepare, initargs=(job, dsn, pair.port, barrier)
    ) as pool:
        working = [pool.submit(_work, number) for number in range(job.workers)]
        troubles = _TROUBLES[job.trouble](job, pair, working)
        return [attempt for worker in working for attempt in worker.result()], troubles


# --- a worker


def _prepare(*arguments):
    """In each worker process: what it inherits."""
    global _inherited
    _inherited = arguments


def _work(number):
    """All sections of one worker; a refused one is done again. Returns the attempts."""
    job, dsn, port, barrier = _inherited
    stalls, attempts = stall_plan(job), []
    with psycopg.connect(dsn, autocommit=True) as db:
        lock = _Lock(port)
        barrier.wait()
        for section in range(number, job.sections, job.workers):
            accepted = False
            while not accepted:
                me = f"{number}.{section // job.workers}.{len(attempts)}"
                attempts.append(_attempt(job, db, lock, me, stalls.get(section, 0.0)))
                accepted = attempts[-1]["accepted"]
                if attempts[-1]["stalled"]:
                    stalls.pop(section)
    return attempts


def _attempt(job, db, lock, me, stall_s):
    """One pass through the section, and what the worker saw of it."""
    read, write = MODES[job.mode]
    # The pid is for the one that freezes the holder.
    owner = f"{os.getpid()}:{me}"
    fence = lock.acquire(owner, job.lease_ms)
    # A fence is the moment of its grant, in microseconds.
    seen = {"me": me, "pid": os.getpid(), "fence": fence, "granted": fence / 1e6, "stalled": False, "accepted": False}
    row = db.execute(read, {"fence": fence}).fetchone()
    seen["read"] = time.time()
    if row is not None:
        value, seen["based_on"] = row
        if stall_s:
            seen["stalled"] = True
            time.sleep(stall_s)
        time.sleep(job.work_ms / 1000)
        grown = value + 1 if job.resource == "counter" else [*value, me]
        (seen["accepted"],) = db.execute(write, {"fence": fence, "value": Jsonb(grown), "me": me}).fetchone()
    seen["wrote"] = time.time()
    lock.release(owner, fence)
    return seen


class _Lock:
    """The lock on whichever server is the primary now."""

    def __init__(self, port):
        self._port = port
        self._connect()

    def _connect(self):
        # redis-py gives up a reply after 5 s by itself; a turn in the queue may take longer.
        self._redis = redis.Redis(port=self._port.value, protocol=2, socket_timeout=None, **NO_RETRY)

    def acquire(self, owner, lease_ms):
        """The fence, after as long a wait and as many attempts as it takes."""
        while True:
            try:
                if (fence := acquire(self._redis, LOCK, owner, lease_ms, "WAIT", WAIT_MS, "RETRY")) is not None:
                    return fence
            except redis.ConnectionError:
                time.sleep(0.002)
                self._connect()

    def release(self, owner, fence):
        """Give it back; a server that is gone has lost it anyway."""
        try:
            release(self._redis, LOCK, owner, fence)
        except redis.ConnectionError:
            self._connect()


# --- what goes wrong


class Pair:
    """A Redis server, with a replica when there will be failovers; `port` is the primary's, shared with the workers."""

    def __init__(self, replicated):
        self._primary = RedisServer().start()
        self._replica = self._follower() if replicated else None
        self.port = _processes.Value("i", self._primary.port)

    def client(self):
        """A client of the primary."""
        return redis.Redis(port=self._primary.port, protocol=2, **NO_RETRY)

    def fail_over(self, lease_s, over):
        """Kill the primary right after a grant that its replica never got, and promote that one. Returns when."""
        with self.client() as primary, redis.Redis(port=self._replica.port, protocol=2) as replica:
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


def _failovers(job, pair, working):
    """Force a failover every so often; the moments."""
    moments = []
    while _go_on(working, job.trouble_every_s):
        moments.append(pair.fail_over(job.lease_ms / 1000, lambda: _over(working)))
    return [{"failover": at} for at in moments]


def _pauses(job, pair, working):
    """Freeze the process that holds the lock every so often; who, from when and to when."""
    frozen = []
    with pair.client() as client:
        began = time.monotonic()
        while _go_on(working, began + job.trouble_every_s * (len(frozen) + 1) - time.monotonic()):
            if (held := inspect(client, LOCK)) is None:
                continue
            pid, since = int(held.owner.split(b":")[0]), time.time()
            os.kill(pid, signal.SIGSTOP)
            try:
                time.sleep(job.pause_s)
            finally:
                os.kill(pid, signal.SIGCONT)
            frozen.append({"pid": pid, "from": since, "to": time.time()})
    return frozen


def _go_on(working, wait_s):
    """Whether the workers are still at it after so many seconds; a worker that failed ends it too."""
    concurrent.futures.wait(working, max(0.0, wait_s), concurrent.futures.FIRST_EXCEPTION)
    return not _over(working)


def _over(working):
    return any(worker.done() for worker in working)


_TROUBLES = {"": lambda *_: [], "failovers": _failovers, "pauses": _pauses}
