"""Leases inside PostgreSQL, without a wait: who gets a lock, for how long, and what a transaction makes of it."""

import time

import psycopg
import pytest

from harness import eventually
from leases import TTL, Leases
from refusals import refusal, refused

MAX_MS = 24 * 60 * 60 * 1000


@pytest.fixture
def leases(db):
    return Leases(db)


@pytest.fixture
def other(connect):
    """Another session."""
    return Leases(connect())


def begun(connect, **options):
    """A session in a transaction block, in which leases are allowed."""
    session = Leases(connect(**options))
    session.connection.execute("SET pg_fence.lease_in_transaction = on")
    session.connection.execute("BEGIN")
    return session


# --- the rules of the module


def test_one_holder_until_it_releases(leases, other):
    fence = leases.acquire(owner="a")
    assert [other.acquire(owner="b"), other.acquire(owner="a"), leases.acquire(owner="a")] == [None] * 3
    assert other.release(owner="b") is False and leases.release(owner="a") is True
    assert leases.release(owner="a") is False
    assert other.acquire(owner="b") > fence


def test_fences_are_the_clock_and_grow_over_all_locks(db, leases, other):
    before = leases.one("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
    fences = [session.acquire(f"l{number}") for number in range(5) for session in (leases, other)[number % 2 :][:1]]
    after = leases.one("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
    assert before <= fences[0] and fences == sorted(set(fences)) and fences[-1] <= after + 5


def test_a_retry_gets_the_same_fence_and_leaves_the_lease(leases, other):
    fence = leases.acquire(ttl_ms=50_000)
    assert other.acquire(ttl_ms=MAX_MS, retry=True) == fence
    assert leases.inspect()["ttl_ms"] <= 50_000
    assert other.acquire(owner="b", retry=True) is None


def test_a_lease_ends_by_its_ttl_and_its_holder_cannot_revive_it(leases, other):
    fence = leases.acquire()
    assert leases.check(fence) is True
    assert leases.extend(ttl_ms=200) == 200
    eventually(leases.inspect, None)
    assert (leases.check(fence), leases.extend(), leases.release()) == (False, 0, False)
    newer = other.acquire(owner="b", wait_ms=None)
    assert newer > fence
    assert (leases.extend("l", "me", TTL, fence), leases.release("l", "me", fence)) == (0, False)


def test_an_extension_replaces_what_was_left(leases):
    fence = leases.acquire(ttl_ms=10_000)
    assert leases.extend(ttl_ms=90_000) == 90_000
    assert leases.extend("l", "me", 5_000, fence) == 5_000
    assert leases.extend("l", "me", 5_000, fence + 1) == 0
    assert leases.inspect()["ttl_ms"] <= 5_000
    assert leases.stored() == ("me", fence)


def test_a_longest_hold_cuts_the_ttl_and_every_extension(leases):
    leases.acquire(ttl_ms=TTL, maxhold_ms=30_000)
    held = leases.inspect()
    assert held["ttl_ms"] <= 30_000 and held["maxhold_left_ms"] <= 30_000
    assert leases.extend(ttl_ms=TTL) <= 30_000


def test_a_delay_follows_an_expired_lease_and_no_release(leases, other):
    leases.acquire("released", delay_ms=MAX_MS)
    leases.release("released")
    assert other.acquire("released", "b") is not None
    leases.acquire(ttl_ms=1, delay_ms=MAX_MS)
    eventually(lambda: leases.inspect()["state"], "delay")
    assert [other.acquire(owner="b"), leases.acquire(retry=True), leases.extend(), leases.release()] == [None, None, 0, False]


def test_a_refused_call_uses_no_fence_and_writes_nothing(leases, other):
    leases.acquire()
    last = "SELECT last_value FROM fence_internals.lease_fences"
    before = (leases.one(last), leases.one("SELECT ctid::text FROM fence_internals.leases"))
    other.acquire(owner="b"), other.release(owner="b"), other.extend(owner="b"), leases.acquire(retry=True)
    assert (leases.one(last), leases.one("SELECT ctid::text FROM fence_internals.leases")) == before


def test_names_and_owners_are_compared_byte_for_byte_up_to_their_limits(leases):
    fences = [leases.acquire(lock, "o" * 512) for lock in ("a", "A", "a ", "ä", "日", "x" * 1024)]
    assert len(set(fences)) == 6
    assert leases.release("x" * 1024, "o" * 512) is True
    assert leases.release("a", "O" * 512) is False


# --- bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("fencelock_acquire('l', 'o', 0)", f"ttl_ms must be an integer from 1 to {MAX_MS}"),
        ("fencelock_acquire('l', 'o', -1)", f"ttl_ms must be an integer from 1 to {MAX_MS}"),
        (f"fencelock_acquire('l', 'o', {MAX_MS + 1})", f"ttl_ms must be an integer from 1 to {MAX_MS}"),
        ("fencelock_acquire('l', 'o', 1, 0)", f"wait_ms must be an integer from 1 to {MAX_MS}; omit wait_ms to be answered at once"),
        ("fencelock_acquire('l', 'o', 1, -5)", f"wait_ms must be an integer from 1 to {MAX_MS}"),
        ("fencelock_acquire('l', 'o', 1, maxhold_ms => 0)", f"maxhold_ms must be an integer from 1 to {MAX_MS}"),
        ("fencelock_acquire('l', 'o', 1, delay_ms => 9223372036854775807)", f"delay_ms must be an integer from 1 to {MAX_MS}"),
        ("fencelock_acquire('', 'o', 1)", "lock must have 1 to 1024 bytes, not 0"),
        ("fencelock_acquire(repeat('x', 1025), 'o', 1)", "lock must have 1 to 1024 bytes, not 1025"),
        ("fencelock_acquire(repeat('x', 1000000), 'o', 1)", "lock must have 1 to 1024 bytes, not 1000000"),
        ("fencelock_acquire('l', '', 1)", "owner must have 1 to 512 bytes, not 0"),
        ("fencelock_acquire('l', repeat('ä', 257), 1)", "owner must have 1 to 512 bytes, not 514"),
        ("fencelock_extend('l', 'o', 0)", f"ttl_ms must be an integer from 1 to {MAX_MS}"),
        ("fencelock_extend('l', 'o', 1, 0)", "fence must be an integer from 1 to 9007199254740991"),
        ("fencelock_release('l', 'o', -1)", "fence must be an integer from 1 to 9007199254740991"),
        ("fencelock_check('l', 9007199254740992)", "fence must be an integer from 1 to 9007199254740991"),
        ("fencelock_inspect('')", "lock must have 1 to 1024 bytes, not 0"),
        ("fencelock_free('')", "lock must have 1 to 1024 bytes, not 0"),
        ("fencelock_forget(0)", "older_than must be an integer from 1 to 9007199254740991"),
        ("fencelock_raise(0)", "fence must be an integer from 1 to 9007199254740991"),
    ],
)
def test_an_argument_out_of_range_is_named_with_its_range(db, leases, call, message):
    error = refusal(db, f"SELECT {call}")
    assert (error.sqlstate, error.diag.message_primary) == ("22023", message)
    assert leases.one("SELECT count(*) FROM fence_internals.leases") == 0


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        ("fencelock_acquire(NULL, 'o', 1)", "lock"),
        ("fencelock_acquire('l', NULL, 1)", "owner"),
        ("fencelock_acquire('l', 'o', NULL)", "ttl_ms"),
        ("fencelock_acquire('l', 'o', 1, retry => NULL)", "retry"),
        ("fencelock_extend('l', 'o', 1, NULL)", "fence"),
        ("fencelock_extend('l', 'o', NULL)", "ttl_ms"),
        ("fencelock_release('l', 'o', NULL)", "fence"),
        ("fencelock_release(NULL, 'o')", "lock"),
        ("fencelock_check('l', NULL)", "fence"),
        ("fencelock_inspect(NULL)", "lock"),
        ("fencelock_raise(NULL)", "fence"),
        ("fencelock_free(NULL)", "lock"),
        ("fencelock_forget(NULL)", "older_than"),
    ],
)
def test_null_is_an_error_that_names_the_argument(db, leases, call, argument):
    error = refusal(db, f"SELECT {call}")
    assert (error.sqlstate, error.diag.message_primary) == ("22004", f'argument "{argument}" must not be null')


def test_null_stands_for_an_option_that_is_left_out(leases):
    assert leases.acquire(wait_ms=None, maxhold_ms=None, delay_ms=None) is not None


def test_the_longest_span_is_a_setting(db, leases):
    db.execute("SET pg_fence.max_ttl = '1min'")
    with refused("22023"):
        leases.acquire(ttl_ms=60_001)
    db.execute("SET pg_fence.max_ttl = 316224000")
    assert leases.extend(ttl_ms=316_224_000_000) == 0
    assert leases.acquire(ttl_ms=316_224_000_000, maxhold_ms=316_224_000_000, delay_ms=316_224_000_000) is not None
    assert leases.extend(ttl_ms=1) == 1


# --- transactions


@pytest.mark.parametrize("call", ["fencelock_acquire('l', 'o', 1000)", "fencelock_extend('l', 'o', 1000)", "fencelock_release('l', 'o')", "fencelock_free('l')", "fencelock_forget(1)"])
def test_a_transaction_block_refuses_leases(db, connect, call):
    error = refusal(connect(autocommit=False), f"SELECT {call}")
    assert error.sqlstate == "25001" and error.diag.constraint_name == "lease_in_transaction_block"
    assert error.diag.message_primary == f"{call.partition('(')[0]}() cannot run inside a transaction block"
    session = connect()
    session.execute("BEGIN; SAVEPOINT s")
    with refused("25001"):
        session.execute(f"DO $$ BEGIN PERFORM {call}; EXCEPTION WHEN unique_violation THEN NULL; END $$")
    session.execute("ROLLBACK")
    with refused("25001"):
        session.execute(f"SELECT 1; SELECT {call}")
    with refused("25001"):
        session.execute("BEGIN; CALL fencelock_wait('l', 'o', 1, 1)")
    session.execute("ROLLBACK")
    session.execute(f"SELECT {call}")


def test_functions_do_and_procedures_in_autocommit_are_not_blocks(db, leases, other):
    db.execute("DO $$ BEGIN PERFORM fencelock_acquire('l', 'me', 60000); END $$")
    db.execute("DO $$ BEGIN PERFORM fencelock_extend('l', 'me', 60000); EXCEPTION WHEN unique_violation THEN NULL; END $$")
    db.execute("CREATE PROCEDURE p() LANGUAGE plpgsql AS $$ DECLARE f bigint; BEGIN PERFORM fencelock_release('l', 'me'); COMMIT; f := fencelock_acquire('l', 'p', 60000); COMMIT; CALL fencelock_wait('m', 'p', 60000, 1000, f); END $$")
    db.execute("CALL p()")
    assert (other.inspect()["owner"], other.inspect("m")["owner"]) == ("p", "p")


def test_a_grant_is_undone_with_its_transaction_but_not_its_number(connect, leases):
    session = begun(connect)
    fence = session.acquire()
    assert session.check(fence) is True
    assert (leases.acquire(owner="b"), leases.check(fence), leases.inspect()) == (None, False, None)
    session.connection.execute("ROLLBACK")
    assert leases.inspect() is None and leases.stored() is None
    assert leases.acquire(owner="b") > fence


def test_an_uncommitted_grant_is_busy_past_its_ttl(connect, leases):
    session = begun(connect)
    session.acquire(ttl_ms=1)
    eventually(session.inspect, None)
    assert leases.acquire(owner="b") is None
    session.connection.execute("COMMIT")
    assert leases.acquire(owner="b") is not None


def test_a_release_frees_at_commit_and_a_rollback_keeps_the_lease(connect, leases, other):
    fence = leases.acquire()
    session = begun(connect)
    assert session.release() is True and session.inspect() is None
    assert other.acquire(owner="b") is None and other.check(fence) is True
    session.connection.execute("ROLLBACK")
    assert other.check(fence) is True
    session.connection.execute("BEGIN")
    assert session.release() is True
    session.connection.execute("COMMIT")
    assert other.acquire(owner="b") is not None


def test_an_extension_that_is_rolled_back_leaves_the_old_deadline(connect, leases):
    leases.acquire(ttl_ms=TTL)
    session = begun(connect)
    assert session.extend(ttl_ms=MAX_MS) == MAX_MS
    session.connection.execute("ROLLBACK")
    assert leases.inspect()["ttl_ms"] <= TTL


def test_a_transaction_sees_its_own_changes_in_each_call(connect, leases):
    session = begun(connect)
    first = session.acquire()
    assert [session.acquire(), session.release(), session.release()] == [None, True, False]
    second = session.acquire(owner="b")
    assert second > first and session.acquire(owner="c", wait_ms=MAX_MS) is None
    session.connection.execute("COMMIT")
    assert leases.inspect()["fence"] == second
    fences = leases.connection.execute("SELECT fencelock_release('l', 'b'), fencelock_acquire('l', 'c', 60000), fencelock_release('l', 'c'), fencelock_acquire('l', 'd', 60000)").fetchone()
    assert fences[0] is True and second < fences[1] < fences[3] and leases.inspect()["owner"] == "d"


def test_savepoints_undo_what_came_after_them(connect, leases):
    session = begun(connect)
    session.connection.execute("SAVEPOINT one")
    first = session.acquire()
    session.connection.execute("ROLLBACK TO one")
    assert session.inspect() is None
    second = leases.acquire(owner="b")
    assert second is not None and second > first, "the locks of the savepoint are given back"
    leases.release(owner="b")
    session.connection.execute("SAVEPOINT two; SELECT fencelock_acquire('l', 'me', 60000); RELEASE two; SAVEPOINT three")
    assert session.release() is True
    session.connection.execute("ROLLBACK TO three; COMMIT")
    assert leases.inspect()["owner"] == "me"


def test_many_savepoints_leave_no_lock_behind(connect, leases, other):
    session = begun(connect)
    for _ in range(60):
        session.connection.execute("SAVEPOINT s; SELECT fencelock_acquire('l', 'me', 60000); RELEASE s; SAVEPOINT s; SELECT fencelock_release('l', 'me'); RELEASE s")
    session.connection.execute("COMMIT")
    assert other.acquire() is not None


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_every_isolation_level_acquires_by_what_is_committed_now(connect, leases, level):
    session = begun(connect)
    session.connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
    session.connection.execute("SELECT count(*) FROM pg_class")
    first = leases.acquire(owner="a")
    assert session.acquire() is None
    leases.release(owner="a")
    second = session.acquire()
    assert second is not None and second > first
    assert session.inspect()["owner"] == "me" and session.release() is True
    session.connection.execute("COMMIT")
    assert leases.acquire(owner="b") > second


def test_serializable_transactions_that_acquire_do_not_fail(connect):
    sessions = [begun(connect) for _ in range(4)]
    for session in sessions:
        session.connection.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
    for number, session in enumerate(sessions):
        assert session.acquire(f"l{number}") is not None
    for number, session in enumerate(sessions):
        assert session.acquire(f"l{(number + 1) % 4}") is None
    for session in sessions:
        session.connection.execute("COMMIT")


def test_a_prepared_transaction_keeps_the_lock_busy_until_it_ends(connect, make_pg):
    server = make_pg(settings={"max_prepared_transactions": "2"})
    server.psql("CREATE EXTENSION pg_fence")
    leases, session = Leases(connect(url=server.url())), begun(connect, url=server.url())
    fence = session.acquire()
    session.connection.execute("PREPARE TRANSACTION 'p'")
    assert leases.acquire(owner="b") is None and leases.inspect() is None
    server.restart()
    leases = Leases(connect(url=server.url()))
    assert leases.acquire(owner="b") is None
    leases.connection.execute("COMMIT PREPARED 'p'")
    assert leases.check(fence) is True and leases.release() is True
    assert leases.acquire(owner="b") > fence


def test_a_read_only_transaction_can_only_watch(connect, leases):
    fence = leases.acquire()
    session = begun(connect)
    session.connection.execute("SET TRANSACTION READ ONLY")
    assert session.check(fence) is True and session.inspect()["fence"] == fence
    assert session.one("SELECT fence FROM fencelocks") == fence
    for call in ("fencelock_acquire('l', 'o', 1)", "fencelock_extend('l', 'o', 1)", "fencelock_release('l', 'o')", "fencelock_free('l')", "fencelock_raise(1)", "fencelock_forget(1)"):
        with refused("25006"), session.connection.transaction():
            session.connection.execute(f"SELECT {call}")


def test_an_error_after_a_grant_in_the_same_statement_undoes_it(db, leases, other):
    with refused("22012"):
        db.execute("SELECT fencelock_acquire('l', 'me', 60000), 1 / (SELECT count(*) - count(*) FROM pg_class)")
    assert other.acquire(owner="b") is not None


def test_other_sessions_are_not_blocked_by_an_uncommitted_grant(connect, leases):
    """A call without wait_ms answers at once, whatever others do."""
    session = begun(connect)
    session.acquire()
    started = time.monotonic()
    leases.connection.execute("SET statement_timeout = '30s'")
    assert leases.acquire(owner="b") is None
    assert leases.acquire("another", "b") is not None
    assert time.monotonic() - started < 30
    leases.connection.execute("SET lock_timeout = '50ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        leases.release(owner="b")
