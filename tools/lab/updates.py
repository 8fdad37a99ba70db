"""One run: worker processes that read, change and write one row under one lock, while something goes wrong.

Every write stores its own id beside the value, and every read returns the id of the write that it saw. So the writes form
a tree, and losses.py can say which of them the final row still rests on.
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
from psycopg.types.json import Jsonb

from harness import PostgresServer

from . import losses
from .locks import MODES

TABLE = """
    CREATE EXTENSION pg_fence;
    CREATE TABLE cells (
        id int PRIMARY KEY,
        value jsonb NOT NULL,
        writer text NOT NULL DEFAULT '',
        fence bigint NOT NULL DEFAULT 0
    );
"""
_NOTHING = {"counter": 0, "set": []}
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
    with contextlib.closing(PostgresServer()) as postgres:
        postgres.start().psql(TABLE)
        locks = MODES[job.mode].servers(postgres.url(), replicated=job.trouble == "failovers")
        with contextlib.closing(locks), psycopg.connect(postgres.url(), autocommit=True) as db:
            db.execute("INSERT INTO cells (id, value) VALUES (1, %s)", (Jsonb(_NOTHING[job.resource]),))
            attempts, troubles = _run_workers(job, postgres.url(), locks)
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


def _run_workers(job, dsn, locks):
    barrier = _processes.Barrier(job.workers)
    with concurrent.futures.ProcessPoolExecutor(
        job.workers, _processes, initializer=_prepare, initargs=(job, dsn, locks.port, barrier)
    ) as pool:
        working = [pool.submit(_work, number) for number in range(job.workers)]
        troubles = _TROUBLES[job.trouble](job, locks, working)
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
        mode = MODES[job.mode]
        lock = mode.lock(mode, db, port)
        barrier.wait()
        for section in range(number, job.sections, job.workers):
            accepted = False
            while not accepted:
                me = f"{number}.{section // job.workers}.{len(attempts)}"
                attempts.append(_attempt(job, lock, me, stalls.get(section, 0.0)))
                accepted = attempts[-1]["accepted"]
                if attempts[-1]["stalled"]:
                    stalls.pop(section)
    return attempts


def _attempt(job, lock, me, stall_s):
    """One pass through the section, and what the worker saw of it."""
    # The pid is for the one that freezes the holder.
    owner = f"{os.getpid()}:{me}"
    fence, row = lock.enter(owner, job.lease_ms)
    # A fence is the moment of its grant, in microseconds.
    seen = {"me": me, "pid": os.getpid(), "fence": fence, "granted": fence / 1e6, "stalled": False, "accepted": False}
    seen["read"], written = time.time(), None
    if row is not None:
        value, seen["based_on"] = row
        if stall_s:
            seen["stalled"] = True
            time.sleep(stall_s)
        time.sleep(job.work_ms / 1000)
        grown = value + 1 if job.resource == "counter" else [*value, me]
        written = {"value": Jsonb(grown), "me": me}
    seen["accepted"], seen["wrote"] = lock.leave(owner, fence, written)
    return seen


# --- what goes wrong


def _failovers(job, locks, working):
    """Force a failover every so often; the moments."""
    moments = []
    while _go_on(working, job.trouble_every_s):
        moments.append(locks.fail_over(job.lease_ms / 1000, lambda: _over(working)))
    return [{"failover": at} for at in moments]


def _pauses(job, locks, working):
    """Freeze the process that holds the lock every so often; who, from when and to when."""
    frozen, began = [], time.monotonic()
    while _go_on(working, began + job.trouble_every_s * (len(frozen) + 1) - time.monotonic()):
        if (owner := locks.holder()) is None:
            continue
        pid, since = int(owner.split(":")[0]), time.time()
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
