"""Renewal and other human faults: each is done as people do it, and its outcome is reported.

Each experiment returns facts; EXPECTED says which of them must hold whatever the machine does. Raw commands and plain SQL on
redis.asyncio, redis-py and psycopg.
"""

import asyncio
import concurrent.futures
import contextlib
import threading
import time

import psycopg
import redis
import redis.asyncio
from psycopg.types.json import Jsonb

from harness import PostgresServer, RedisServer
from harness.locks import NO_RETRY, acquire, extend, inspect, release

from .updates import TABLE

CLAIM = "SELECT value FROM fenced_claim(NULL::cells, %s, %s)"
UPDATE = "SELECT fenced_update('cells', %s, %s, jsonb_build_object('value', %s::jsonb))"


def run(lease_ms=300, short_s=3.0):
    """All experiments on one pair of servers: {name: facts}. They take some five leases, and twice `short_s`."""
    with contextlib.closing(RedisServer()) as server, contextlib.closing(PostgresServer()) as postgres:
        server.start()
        postgres.start().psql(TABLE)
        postgres.psql("INSERT INTO cells (id, value) SELECT row, '0' FROM generate_series(1, 4) AS row")
        with (
            redis.Redis(port=server.port, protocol=2, socket_timeout=None, **NO_RETRY) as client,
            psycopg.connect(postgres.url(), autocommit=True) as db,
            concurrent.futures.ThreadPoolExecutor(3) as pool,
        ):
            # At the same time, each with a lock and a row of its own.
            hung = pool.submit(hung_worker, client, db, 1, lease_ms)
            ended = pool.submit(hung_worker, client, db, 2, lease_ms, "MAXHOLD", 2 * lease_ms)
            loop = pool.submit(lambda: asyncio.run(blocked_loop(server.port, client, db, 3, lease_ms)))
            return {
                "hung worker, renewed": hung.result(),
                "hung worker, renewed, MAXHOLD": ended.result(),
                "blocked asyncio loop": loop.result(),
                "two tasks, one owner": asyncio.run(shared_owner(server.port, client)),
                "two tasks, one owner, RETRY": asyncio.run(shared_owner(server.port, client, "RETRY")),
                "a successor under the same owner": same_owner_later(client),
                "lease shorter than the lag": asyncio.run(laggy_loops(server.port, postgres.url(), 4, 20, short_s)),
                "lease longer than the lag": asyncio.run(laggy_loops(server.port, postgres.url(), 4, 1000, short_s)),
            }


def hung_worker(client, db, row, lease_ms, *options):
    """A worker hangs for five leases while a thread beside it renews; somebody else tries to get in all the time."""
    lock = f"lock:{row}"
    fence = acquire(client, lock, "hung", lease_ms, *options)
    (value,) = db.execute(CLAIM, (row, fence)).fetchone()
    began, over, told = time.monotonic(), threading.Event(), []

    def renew():
        while not over.wait(lease_ms / 3000) and (not told or told[-1]):
            told.append(extend(client, lock, "hung", lease_ms, fence))

    renewer = threading.Thread(target=renew)
    renewer.start()
    second = acquire(client, lock, "next", 60_000, "WAIT", 5 * lease_ms)
    waited_s = time.monotonic() - began
    if second:
        db.execute(CLAIM, (row, second))
    # The worker hangs for five leases, whoever has the lock.
    time.sleep(max(0.0, began + 5 * lease_ms / 1000 - time.monotonic()))
    over.set()
    renewer.join()
    (written,) = db.execute(UPDATE, (row, fence, Jsonb(value + 1))).fetchone()
    return {
        "lease_ms": lease_ms,
        "next_got_in": second is not None,
        "after_leases": round(waited_s * 1000 / lease_ms, 2),
        "renewals": sum(left > 0 for left in told),
        "renewer_was_told": bool(told) and told[-1] == 0,
        "late_write_accepted": written,
    }


async def blocked_loop(port, client, db, row, lease_ms):
    """A coroutine blocks its loop for three leases, so the task that renews every third of one gets no turn."""
    lock = f"lock:{row}"
    async with redis.asyncio.Redis(port=port, protocol=2) as mine:
        fence = await mine.execute_command("FENCELOCK.ACQUIRE", lock, "blocked", lease_ms)
        (value,) = db.execute(CLAIM, (row, fence)).fetchone()
        told, others = [], []

        async def renew():
            while not told or told[-1]:
                await asyncio.sleep(lease_ms / 3000)
                told.append(await mine.execute_command("FENCELOCK.EXTEND", lock, "blocked", lease_ms, "FENCE", fence))

        def next_holder():
            others.append(acquire(client, lock, "next", 60_000, "WAIT", 10_000))
            db.execute(CLAIM, (row, others[0]))

        renewer = asyncio.create_task(renew())
        await asyncio.sleep(2 * lease_ms / 1000)
        held_before, renewals = inspect(client, lock) is not None, len(told)
        # Somebody else does not run in this loop.
        other = threading.Thread(target=next_holder)
        other.start()
        time.sleep(3 * lease_ms / 1000)
        other.join()
        (written,) = db.execute(UPDATE, (row, fence, Jsonb(value + 1))).fetchone()
        await renewer
    return {
        "lease_ms": lease_ms,
        "blocked_ms": 3 * lease_ms,
        "renewals_before": renewals,
        "held_before": held_before,
        "next_got_in": others[0] is not None,
        "renewer_was_told": told[-1] == 0,
        "late_write_accepted": written,
    }


async def shared_owner(port, client, *options):
    """Two tasks take the lock under one owner string at the same time."""
    async with redis.asyncio.Redis(port=port, protocol=2) as both:
        fences = await asyncio.gather(
            *(both.execute_command("FENCELOCK.ACQUIRE", "lock:shared", "one owner", 60_000, *options) for _ in range(2))
        )
    client.delete("lock:shared")
    entered = [fence for fence in fences if fence is not None]
    return {"entered": len(entered), "fences": len(set(entered))}


def same_owner_later(client):
    """A task outlives its lease; its successor uses the same owner. What the first may do to the second's lease."""
    stale = acquire(client, "lock:same", "one owner", 20)
    live = acquire(client, "lock:same", "one owner", 60_000, "WAIT", 10_000)
    facts = {
        "extended_with_fence": extend(client, "lock:same", "one owner", 60_000, stale) > 0,
        "released_with_fence": release(client, "lock:same", "one owner", stale) == 1,
        "held_after": inspect(client, "lock:same").fence == live,
        "released_without_fence": release(client, "lock:same", "one owner") == 1,
    }
    client.delete("lock:same")
    return facts


async def laggy_loops(port, dsn, row, lease_ms, seconds):
    """Four tasks add to the row while something blocks their loop 0 to 60 ms again and again."""
    counts = {"sections": 0, "rejected": 0, "late_releases": 0}
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute("UPDATE cells SET value = '0' WHERE id = %s", (row,))
    ends = time.monotonic() + seconds

    async def worker(name):
        async with (
            redis.asyncio.Redis(port=port, protocol=2) as client,
            await psycopg.AsyncConnection.connect(dsn, autocommit=True) as db,
        ):
            number = 0
            while time.monotonic() < ends:
                number += 1
                owner = f"{name}.{number}"
                fence = await client.execute_command("FENCELOCK.ACQUIRE", "lock:lag", owner, lease_ms, "WAIT", 1_000)
                if fence is None:
                    continue
                written = None
                if found := await (await db.execute(CLAIM, (row, fence))).fetchone():
                    await asyncio.sleep(0.005)
                    (written,) = await (await db.execute(UPDATE, (row, fence, Jsonb(found[0] + 1)))).fetchone()
                counts["sections" if written else "rejected"] += 1
                released = await client.execute_command("FENCELOCK.RELEASE", "lock:lag", owner, "FENCE", fence)
                counts["late_releases"] += not released

    async def lag():
        lags = 0
        while time.monotonic() < ends:
            await asyncio.sleep(0.01)
            time.sleep(0.06 * (lags * 7 % 10) / 10)  # 0, 42, 24, 6, 48, ... ms
            lags += 1

    await asyncio.gather(lag(), *(worker(f"task {number}") for number in range(4)))
    with psycopg.connect(dsn, autocommit=True) as db:
        (final,) = db.execute("SELECT value FROM cells WHERE id = %s", (row,)).fetchone()
    return {"lease_ms": lease_ms, "seconds": seconds, **counts, "lost": counts["sections"] - final}


# What every run on every machine must show.
EXPECTED = {
    "hung worker, renewed": {"next_got_in": False, "renewer_was_told": False, "late_write_accepted": True},
    "hung worker, renewed, MAXHOLD": {"next_got_in": True, "renewer_was_told": True, "late_write_accepted": False},
    "blocked asyncio loop": {
        "held_before": True,
        "next_got_in": True,
        "renewer_was_told": True,
        "late_write_accepted": False,
    },
    "two tasks, one owner": {"entered": 1},
    "two tasks, one owner, RETRY": {"entered": 2, "fences": 1},
    "a successor under the same owner": {
        "extended_with_fence": False,
        "released_with_fence": False,
        "held_after": True,
        "released_without_fence": True,
    },
    "lease shorter than the lag": {"lost": 0},
    "lease longer than the lag": {"lost": 0},
}


def surprises(facts):
    """What came out otherwise than it must, in words; empty is good."""
    return [
        f"{name}: {fact} is {facts[name][fact]}, expected {value}"
        for name in facts
        for fact, value in EXPECTED[name].items()
        if facts[name][fact] != value
    ]
