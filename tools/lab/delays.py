"""How long a free lock stays idle until the next worker notices: WAIT in the server against polling.

The waiters are processes. The ways take turns, round by round, so that the noise of the machine hits them alike.
"""

import concurrent.futures
import contextlib
import multiprocessing
import random
import statistics
import time

import redis

from harness import RedisServer, eventually
from harness.locks import NO_RETRY, acquire, inspect, release

LOCK = "lock:delay"
LEASE_MS = 60_000
# The pause between two attempts in seconds; None waits in the server. 0.1 s is what redis-py's Lock takes by itself.
WAYS = {"WAIT": None, "polling every 10 ms": 0.01, "polling every 100 ms": 0.1}
ARRIVALS = ("on the same tick", "at random")
WAITERS = 8
_processes = multiprocessing.get_context("fork")


def measure(seed, trials, rounds):
    """All delays in milliseconds: {"one waiter": {way: [...]}, "eight waiters": {way: {arrival: [...]}}}."""
    chance = random.Random(seed)
    with contextlib.closing(RedisServer()) as server:
        server.start()
        with (
            redis.Redis(port=server.port, protocol=2, socket_timeout=None, **NO_RETRY) as client,
            concurrent.futures.ProcessPoolExecutor(WAITERS, _processes, _connect, (server.port,)) as pool,
        ):
            # All processes start with the first task, and some take their time.
            _round(client, pool, chance, "WAIT", [0.0] * WAITERS, "start")
            one = {way: [] for way in WAYS}
            for trial in range(trials):
                for way in WAYS:
                    one[way] += _round(client, pool, chance, way, [0.0], f"{trial}")
            eight = {way: {arrival: [] for arrival in ARRIVALS} for way in WAYS}
            for number in range(rounds):
                for way in WAYS:
                    for arrival in ARRIVALS:
                        spread = 0.0 if arrival == ARRIVALS[0] else 1.0
                        starts = [chance.uniform(0, spread) for _ in range(WAITERS)]
                        eight[way][arrival] += _round(client, pool, chance, way, starts, f"{number}")
    return {"one waiter": one, "eight waiters": eight}


def summary(delays):
    """Median and 95th percentile of a list of delays, as (median, p95)."""
    return round(statistics.median(delays), 2), round(statistics.quantiles(delays, n=20)[-1], 2)


def _round(client, pool, chance, way, starts, name):
    """Hold the lock until all waiters have come, then pass it from hand to hand; the delay of each handover."""
    fence = acquire(client, LOCK, "holder", LEASE_MS)
    base = time.monotonic() + 0.05
    waiting = [
        pool.submit(_wait, way, f"{name}.{number}", base + start, chance.uniform(0.02, 0.12))
        for number, start in enumerate(starts)
    ]
    # Longer than the longest pause between attempts, so that the release meets any moment of it alike.
    released = base + max(starts) + chance.uniform(0.1, 0.3)
    time.sleep(max(0.0, released - time.monotonic()))
    if WAYS[way] is None:
        eventually(lambda: inspect(client, LOCK).waiters, len(starts))
    released = time.monotonic()
    release(client, LOCK, "holder", fence)
    delays = []
    for granted, next_released in sorted(waiter.result() for waiter in waiting):
        delays.append(round((granted - released) * 1000, 3))
        released = next_released
    return delays


# --- a waiter


def _connect(port):
    global _client
    _client = redis.Redis(port=port, protocol=2, socket_timeout=None, **NO_RETRY)
    _client.ping()


def _wait(way, owner, starts_at, hold_s):
    """Take the lock, hold it a while, and give it back; the moments of the grant and of the release."""
    time.sleep(max(0.0, starts_at - time.monotonic()))
    if (pause_s := WAYS[way]) is None:
        fence = acquire(_client, LOCK, owner, LEASE_MS, "WAIT", LEASE_MS)
    else:
        while (fence := acquire(_client, LOCK, owner, LEASE_MS)) is None:
            time.sleep(pause_s)
    granted = time.monotonic()
    time.sleep(hold_s)
    released = time.monotonic()
    release(_client, LOCK, owner, fence)
    return granted, released
