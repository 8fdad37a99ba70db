"""What a crash, a promotion, a restore and another boot leave of leases; fences grow over all of them."""

import shutil
import threading

import psycopg
import pytest

from harness import eventually
from leases import TTL, Leases, Waiting
from refusals import refused

SHIFT_US = 5_000_000_000_000


@pytest.fixture
def server(make_pg):
    """A server of its own, with the extension."""
    made = make_pg(settings={"max_prepared_transactions": "2"})
    made.psql("CREATE EXTENSION pg_fence")
    return made


@pytest.fixture
def session(server, connect):
    """A factory of sessions of that server."""
    return lambda: Leases(connect(url=server.url()))


def test_a_crash_keeps_what_is_committed_and_nothing_else(server, session):
    leases = session()
    fences = [leases.acquire("kept", "a", TTL * 10), leases.acquire("released", "a")]
    leases.release("released", "a")
    block = session()
    block.connection.execute("SET pg_fence.lease_in_transaction = on")
    block.connection.execute("BEGIN")
    fences.append(block.acquire("lost", "a"))
    server.crash()
    leases = session()
    assert leases.check(fences[0], "kept") is True and leases.stored("lost") is None
    assert leases.acquire("kept", "b") is None
    for lock in ("released", "lost", "new"):
        fences.append(leases.acquire(lock, "b"))
    assert fences == sorted(set(fences))


def test_no_fence_is_issued_again_over_crashes_under_load(server, session):
    """Several sessions acquire and release while the server crashes. What a crash leaves held ends by its ttl."""
    issued, stop = {number: [] for number in range(3)}, threading.Event()

    def work(number):
        while not stop.is_set():
            try:
                with psycopg.connect(server.url(), autocommit=True) as connection:
                    leases = Leases(connection)
                    while not stop.is_set():
                        fence = leases.acquire("l", f"o{number}", 2_000, wait_ms=1_000)
                        if fence is not None:
                            issued[number].append(fence)
                            leases.release("l", f"o{number}", fence)
            except psycopg.Error:
                continue

    def count():
        return sum(map(len, issued.values()))

    threads = [threading.Thread(target=work, args=(number,)) for number in issued]
    for thread in threads:
        thread.start()
    for crashes in (True, True, False):
        reached = count() + 20
        eventually(lambda reached=reached: count() >= reached)
        if crashes:
            server.crash()
    stop.set()
    for thread in threads:
        thread.join()
    everything = [fence for fences in issued.values() for fence in fences]
    assert len(set(everything)) == len(everything)
    assert all(fences == sorted(fences) for fences in issued.values())
    assert session().acquire("new") > max(everything)


def test_an_error_of_a_lock_while_the_table_is_open_is_an_error_and_no_crash(server, session):
    """The lock table of the server is full; or somebody gives up the wait for his turn with the last fence."""
    leases, waits, altering = session(), session(), session()
    for call in ("fencelock_acquire('n' || n, 'o', 1)", "fencelock_acquire('n' || n, 'o', 1, retry => true)"):
        with refused("53200"):
            leases.one(f"SELECT count({call}) FROM generate_series(1, 60000) AS n")
    altering.connection.execute("BEGIN; ALTER SEQUENCE fence_internals.lease_fences CACHE 1")
    first = Waiting(waits.connection, lambda own: own.acquire("first"))
    eventually(lambda: leases.one("SELECT count(*) FROM pg_locks WHERE NOT granted"), 1)
    leases.connection.execute("SET statement_timeout = 100")
    with refused("57014"):
        leases.acquire("second")
    altering.connection.execute("ROLLBACK")
    assert first.answer() is not None and leases.acquire("second") is not None


def test_forget_takes_no_more_locks_than_there_is_room_for(server, session):
    leases = session()
    for first in range(0, 12_000, 1_000):
        leases.one("SELECT count(fencelock_acquire('n' || n, 'o', 1)) FROM generate_series(%s::int, %s::int) AS n", first, first + 999)
    assert leases.one("SELECT fencelock_forget(9007199254740991)") == 1_000
    assert leases.one("SELECT count(*) FROM fence_internals.leases") == 11_000


def test_commits_that_are_not_synced_can_be_lost_and_fences_still_grow(server, session):
    leases = session()
    leases.connection.execute("SET synchronous_commit = off")
    fences = [leases.acquire(f"l{number}") for number in range(20)]
    server.crash()
    assert session().acquire("new") > max(fences)


def test_a_standby_that_lags_is_promoted_and_its_fences_are_above_all_that_it_never_saw(server, session, connect):
    leases = session()
    kept = leases.acquire("kept", "a", TTL * 10)
    leases.connection.close()
    server.stop()
    behind = server.data_dir.with_name("behind")
    shutil.copytree(server.data_dir, behind, symlinks=True)
    server.start()
    leases = session()
    lost = [leases.acquire(f"lost{number}", "a") for number in range(5)]
    assert leases.release("kept", "a") is True
    leases.connection.close()
    server.stop()
    owner = server.data_dir.stat()
    shutil.rmtree(server.data_dir)
    shutil.copytree(behind, server.data_dir, symlinks=True)
    for path in [server.data_dir, *server.data_dir.rglob("*")]:
        shutil.chown(path, owner.st_uid, owner.st_gid)
    standby = server.data_dir / "standby.signal"
    standby.touch()
    shutil.chown(standby, owner.st_uid, owner.st_gid)
    server.start()
    leases = session()
    assert leases.one("SELECT pg_promote()") is True
    assert leases.check(kept, "kept") is True and leases.inspect("lost0") is None
    assert leases.acquire("lost0", "b") > max(lost)


def other_boot(leases, lock, wall_us=0):
    """Makes a row one that was written in another boot, whose clock was SHIFT_US ahead, at a wall clock `wall_us` ahead."""
    leases.connection.execute(
        """UPDATE fence_internals.leases SET epoch = epoch # 1, granted_us = granted_us + %s, deadline_us = deadline_us + %s,
           limit_us = CASE limit_us WHEN 9223372036854775807 THEN limit_us ELSE limit_us + %s END,
           offset_us = offset_us - %s + %s WHERE name = %s""",
        (SHIFT_US, SHIFT_US, SHIFT_US, SHIFT_US, wall_us, lock),
    )


def test_after_another_boot_the_wall_clock_says_what_is_left(db):
    leases = Leases(db)
    fence = leases.acquire("l", "me", 50_000, maxhold_ms=70_000)
    other_boot(leases, "l")
    held = leases.inspect()
    assert 0 < held["ttl_ms"] <= 50_000 and held["maxhold_left_ms"] - held["ttl_ms"] == 20_000
    assert leases.check(fence) is True and leases.acquire(owner="b") is None
    assert leases.extend("l", "me", 60_000, fence) == 60_000
    assert leases.one("SELECT count(DISTINCT epoch) FROM fence_internals.leases") == 1
    assert leases.acquire("m") is not None
    assert leases.one("SELECT count(DISTINCT epoch) FROM fence_internals.leases") == 1, "an extension writes the boot of now"
    other_boot(leases, "l", -3_600_000_000)
    assert (leases.inspect(), leases.check(fence), leases.release("l", "me", fence)) == (None, False, False)
    assert leases.acquire(owner="b") > fence


def test_within_a_boot_the_wall_clock_moves_nothing(db):
    leases = Leases(db)
    leases.acquire("l", "me", 50_000)
    db.execute("UPDATE fence_internals.leases SET offset_us = offset_us - 3600000000")
    assert 0 < leases.inspect()["ttl_ms"] <= 50_000 and leases.acquire(owner="b") is None


def test_a_database_that_was_copied_issues_larger_fences_of_its_own(pg):
    """Two databases are two lock servers, whose numbers may meet. A row lives in one of them."""
    pg.psql("CREATE DATABASE first")
    try:
        pg.psql("CREATE EXTENSION pg_fence", "first")
        with psycopg.connect(pg.url("first"), autocommit=True) as one:
            fence = Leases(one).acquire("l", "me", TTL * 10)
        pg.psql("CREATE DATABASE second TEMPLATE first")
        with psycopg.connect(pg.url("second"), autocommit=True) as two:
            assert Leases(two).check(fence) is True
            assert Leases(two).acquire("m") > fence
    finally:
        pg.psql("DROP DATABASE IF EXISTS first WITH (FORCE)")
        pg.psql("DROP DATABASE IF EXISTS second WITH (FORCE)")
