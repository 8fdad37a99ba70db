"""What a client waits for a lock that is free, call by call: one worker over loopback, nobody else.

The ways take turns, so that the noise of the machine hits them alike. No commit waits for a disk.
"""

import contextlib
import time

import psycopg
import redis

from harness import PostgresServer
from harness.locks import acquire, release

from .locks import LOCK, MODES, RedisPair
from .updates import TABLE

LEASE_MS = 60_000
# The old lock, as redis-py's own makes it: a random owner, and a release that compares it.
_UNLOCK = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"


def measure(rounds):
    """Microseconds of each round, by way."""
    with contextlib.closing(PostgresServer()) as postgres, contextlib.closing(RedisPair()) as server:
        postgres.start().psql(TABLE)
        postgres.psql("INSERT INTO cells (id, value) VALUES (1, '0')")
        with (
            redis.Redis(port=server.port.value, protocol=2) as client,
            psycopg.connect(postgres.url(), autocommit=True) as db,
        ):
            ways = _ways(client, db, server.port)
            found = {way: [] for way in ways}
            for number in range(rounds):
                for way, call in ways.items():
                    began = time.perf_counter()
                    call(f"owner {number}")
                    found[way].append(round((time.perf_counter() - began) * 1e6))
    return found


def _ways(client, db, port):
    script = client.register_script(_UNLOCK)

    def old_lock(owner):
        client.set("old:lock", owner, nx=True, px=LEASE_MS)
        script(["old:lock"], [owner])

    def lock(owner):
        release(client, LOCK, owner, acquire(client, LOCK, owner, LEASE_MS))

    def lease(owner):
        (fence,) = db.execute("SELECT fencelock_acquire(%s, %s, %s)", (LOCK, owner, LEASE_MS)).fetchone()
        db.execute("SELECT fencelock_release(%s, %s, %s)", (LOCK, owner, fence))

    def section(mode):
        worker = MODES[mode].lock(MODES[mode], db, port)

        def run(owner):
            fence, (value, _) = worker.enter(owner, LEASE_MS)
            worker.leave(owner, fence, {"value": str(value + 1), "me": owner})

        return run

    return {
        "`SET NX PX`, and a script that compares and deletes": old_lock,
        "ACQUIRE, RELEASE of the module": lock,
        "`fencelock_acquire`, `fencelock_release`": lease,
        "the whole section with Redis: acquire, claim, update, release": section("claim first"),
        "the whole section in PostgreSQL alone: two statements": section("PostgreSQL alone"),
    }
