"""The works of leases inside PostgreSQL, each against what teams write by hand: an upsert with an expiry, an advisory lock, polling.

Instructions and WAL are those of one backend per cycle, autocommit, prepared; see postgres_works for how they are counted.
Handovers are timed by 16 clients of one lock, each with a connection of its own.
"""

import contextlib
import functools
import statistics
import threading
import time

import psycopg
import redis
from harness import RedisServer, places

from .postgres_works import Server
from .works import Work

TABLES = """CREATE TABLE hand (name text PRIMARY KEY, owner text, token bigint NOT NULL DEFAULT 0, expires_at timestamptz NOT NULL);
INSERT INTO hand SELECT 'l' || n, NULL, 0, '-infinity' FROM generate_series(1, 1000) n;
SELECT fencelock_acquire('l' || n, 'me', 60000), fencelock_release('l' || n, 'me') FROM generate_series(1, 1000) n;
"""

HOT = "\\set n 7\n"
MANY = "\\set n random(1, 1000)\n"
ACQUIRE = "SELECT fencelock_acquire('l' || :n::int, 'me', 60000);\n"
RELEASE = "SELECT fencelock_release('l' || :n::int, 'me');\n"
UPSERT = """INSERT INTO hand AS h VALUES ('l' || :n::int, 'me', 1, now() + interval '60 s') ON CONFLICT (name) DO UPDATE
    SET owner = EXCLUDED.owner, token = h.token + 1, expires_at = EXCLUDED.expires_at WHERE h.expires_at < now() RETURNING token;
""".replace("\n    ", " ")
RELEASE_BY_UPDATE = "UPDATE hand SET owner = NULL, expires_at = '-infinity' WHERE name = 'l' || :n::int AND owner = 'me' AND expires_at > now();\n"
RELEASE_BY_DELETE = "DELETE FROM hand WHERE name = 'l' || :n::int AND owner = 'me' AND expires_at > now();\n"
ADVISORY = "SELECT pg_advisory_lock(:n);\nSELECT pg_advisory_unlock(:n);\n"
OURS = ACQUIRE + RELEASE

FUSED = """SELECT f.mine AS f, c.value FROM fencelock_acquire('l' || :n::int, 'me', 60000) AS f(mine), LATERAL fenced_claim(NULL::counters, :id::int, f.mine) AS c WHERE f.mine IS NOT NULL \\gset
SELECT fenced_update('counters', :id::int, :f, :patch::jsonb), fencelock_release('l' || :n::int, 'me', :f);
"""
# The row's fence comes from the lease there too.
FOUR_BY_HAND = (
    UPSERT.replace("RETURNING token;\n", "RETURNING token AS t \\gset\n")
    + "UPDATE counters SET fence = :f WHERE id = :id AND fence < :f RETURNING value \\gset\n"
    + "UPDATE counters SET value = 123456 WHERE id = :id AND fence = :f;\n"
    + RELEASE_BY_UPDATE
)


def works(load, quick):
    """All works of leases, with their servers started and ended around them."""
    del load
    for major in places.MAJORS[:1] if quick else places.MAJORS:
        with contextlib.closing(_server(major, counted=True, durable=False)) as server:
            yield from _instructions(server, quick)
    if not quick:
        with contextlib.closing(_server(places.MAJORS[0])) as server:
            yield from _wal(server)
            yield from _old_snapshot(server)
            yield from _handovers(server)
            yield from _whole_protocol(server)


def _server(major, **how):
    server = Server(major, **how)
    # Each a statement of its own: leases are refused in a transaction block.
    for statement in TABLES.split(";\n")[:-1]:
        server.db.execute(statement)
    return server


def _instructions(server, quick):
    on = f"PostgreSQL {server.major}"
    count = functools.cache(lambda script: server.instructions(script))
    for where, names in (("one lock", HOT), ("1,000 locks", MANY)):
        ours = functools.partial(count, names + OURS)
        for peer, release, target in (("upsert + UPDATE", RELEASE_BY_UPDATE, 0.65), ("upsert + DELETE", RELEASE_BY_DELETE, 0.90)):
            name = f"acquire + release against {peer}, {where}, {on}"
            yield Work(name, "instructions", target, None, ours, functools.partial(count, names + UPSERT + release))
        if quick:
            return
        name = f"acquire + claim, update + release in 2 statements against 4 by hand, {where}, {on}"
        yield Work(name, "instructions", 0.80, None, functools.partial(count, names + FUSED), functools.partial(count, names + FOUR_BY_HAND))
    yield Work(f"acquire + release against pg_advisory_lock + unlock, {on}", "instructions", None, None, functools.partial(count, HOT + OURS), functools.partial(count, HOT + ADVISORY))


def _wal(server, cycles=2_000):
    def written(script):
        server.fresh()
        before = server.db.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()[0]
        server.pgbench(script, "prepared", "-t", cycles, setting="-c synchronous_commit=off")
        return float(server.db.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()[0] - before) / cycles

    for where, names in (("one lock", HOT), ("1,000 locks", MANY)):
        name = f"acquire + release against upsert + UPDATE, {where}"
        sides = (functools.partial(written, names + script) for script in (OURS, UPSERT + RELEASE_BY_UPDATE))
        yield Work(name, "WAL bytes", 1.2, None, *sides)


def _old_snapshot(server, cycles=20_000):
    """The rate after so many cycles under a snapshot that somebody keeps, against the rate without."""

    def rate(script, under_a_snapshot):
        for table in ("hand", "fence_internals.leases"):
            server.db.execute(f"VACUUM FULL {table}")
        with psycopg.connect(server.server.url()) as reader:
            if under_a_snapshot:
                reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                reader.execute("SELECT count(*) FROM hand")
            unsynced = "-c synchronous_commit=off"
            server.pgbench(script, "prepared", "-t", cycles, setting=unsynced)
            began = time.perf_counter()
            server.pgbench(script, "prepared", "-t", 3_000, setting=unsynced)
            return 3_000 / (time.perf_counter() - began)

    for name, script, target in (("acquire + release", OURS, 0.7), ("upsert + UPDATE", UPSERT + RELEASE_BY_UPDATE, None)):
        sides = (functools.partial(rate, HOT + script, under) for under in (True, False))
        yield Work(f"{name}, 20,000 cycles under an old snapshot against none", "cycles per second", target, None, *sides, at_least=True, rounds=3)


ENTER = """SELECT f.mine, c.value FROM fencelock_acquire('p', %s, 60000, 60000) AS f(mine),
    LATERAL fenced_claim(NULL::counters, 1, f.mine) AS c WHERE f.mine IS NOT NULL"""
LEAVE = "SELECT fenced_update('counters', 1, %s, %s::jsonb), fencelock_release('p', %s, %s)"


def _whole_protocol(server, seconds=4):
    """Acquire, claim, update, release, over loopback: two statements, or two commands of the module and two statements."""
    with contextlib.closing(RedisServer().start()) as module:

        def on_postgres(owner, db, _):
            fence, value = db.execute(ENTER, (owner,), prepare=True).fetchone()
            db.execute(LEAVE, (fence, f'{{"value": {value + 1}}}', owner, fence), prepare=True)

        def on_both(owner, db, locks):
            fence = locks.execute_command("FENCELOCK.ACQUIRE", "p", owner, 60_000, "WAIT", 60_000)
            (value,) = db.execute("SELECT value FROM fenced_claim(NULL::counters, 1, %s)", (fence,), prepare=True).fetchone()
            patch = f'{{"value": {value + 1}}}'
            db.execute("SELECT fenced_update('counters', 1, %s, %s::jsonb)", (fence, patch), prepare=True)
            locks.execute_command("FENCELOCK.RELEASE", "p", owner, "FENCE", fence)

        def time_of(cycle, workers, synced):
            def measured():
                server.fresh()
                cycles = [0] * workers
                ends_at = time.perf_counter() + seconds

                def work(number):
                    with psycopg.connect(server.server.url(), autocommit=True) as db, redis.Redis(port=module.port) as locks:
                        db.execute(f"SET synchronous_commit = {'on' if synced else 'off'}")
                        while time.perf_counter() < ends_at:
                            cycle(f"w{number}", db, locks)
                            cycles[number] += 1

                _together(work, workers)
                return seconds / sum(cycles)

            return measured

        for workers, synced in ((1, True), (1, False), (16, True), (16, False)):
            sides = (time_of(cycle, workers, synced) for cycle in (on_postgres, on_both))
            name = f"the whole protocol against the module and two statements, {workers} workers, commits {'synced' if synced else 'not synced'}"
            yield Work(name, "time", 0.9 if workers == 1 and synced else None, None, *sides, rounds=3)


def _together(work, workers):
    threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _handovers(server, clients=16, hold_s=0.005, seconds=6):
    """The time from the call that releases to the moment at which the next client has the lock."""

    def median(acquire, release):
        server.fresh()
        released, handovers, ends_at = [0.0], [], time.perf_counter() + seconds

        def work(_):
            with psycopg.connect(server.server.url(), autocommit=True) as db:
                # An advisory lock writes nothing, so no flush of the disk is in the comparison.
                db.execute("SET synchronous_commit = off")
                while time.perf_counter() < ends_at:
                    while db.execute(*acquire, prepare=True).fetchone()[0] is None:
                        time.sleep(0.1)
                    handovers.append(time.perf_counter() - released[0])
                    time.sleep(hold_s)
                    released[0] = time.perf_counter()
                    db.execute(*release, prepare=True)

        _together(work, clients)
        return statistics.median(handovers[clients:]) * 1000

    server.db.execute("ALTER DATABASE postgres SET pg_fence.max_waiters_per_lock = 100")
    ours = functools.partial(median, ("SELECT fencelock_acquire('h', 'me', 60000, 600000)",), ("SELECT fencelock_release('h', 'me')",))
    advisory = functools.partial(median, ("SELECT 1 FROM pg_advisory_lock(7)",), ("SELECT pg_advisory_unlock(7)",))
    polling = functools.partial(median, ("SELECT fencelock_acquire('h', 'me', 60000)",), ("SELECT fencelock_release('h', 'me')",))
    name = f"handover among {clients} clients, p50"
    yield Work(f"{name}, against pg_advisory_lock", "ms", 2.0, None, ours, advisory, rounds=3)
    yield Work(f"{name}, against polling every 100 ms", "ms", None, None, ours, polling)
