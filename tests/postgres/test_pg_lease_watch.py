"""Who sees which lease, what operators do with them, and who may do what."""

import psycopg
import pytest

from harness import eventually
from leases import TTL, Leases, queue
from refusals import refusal, refused

HOUR_US = 3_600_000_000
ACQUIRE = "fencelock_acquire(text, text, bigint, bigint, boolean, bigint, bigint)"
OPEN = f"""GRANT EXECUTE ON ROUTINE {ACQUIRE}, fencelock_wait(text, text, bigint, bigint, bigint),
    fencelock_extend(text, text, bigint), fencelock_extend(text, text, bigint, bigint), fencelock_release(text, text),
    fencelock_release(text, text, bigint), fencelock_check(text, bigint), fencelock_inspect(text) TO app"""


@pytest.fixture
def leases(db):
    return Leases(db)


@pytest.fixture
def app(db):
    """A role without a right."""
    db.execute("CREATE ROLE app LOGIN")
    yield "app"
    db.execute("RESET ROLE; DROP OWNED BY app; DROP ROLE app")


def clock_us(leases):
    return leases.one("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")


# --- watching


def test_inspect_says_all_of_a_hold_and_nothing_of_a_free_lock(leases):
    assert leases.inspect() is None
    fence = leases.acquire(owner="a", ttl_ms=50_000, maxhold_ms=70_000)
    held = leases.inspect()
    assert {name: held[name] for name in ("state", "owner", "fence", "waiters")} == {"state": "held", "owner": "a", "fence": fence, "waiters": 0}
    assert 0 < held["ttl_ms"] <= 50_000 and held["maxhold_left_ms"] - held["ttl_ms"] == 20_000
    assert 0 <= held["held_ms"] <= 50_000 - held["ttl_ms"]
    leases.release(owner="a")
    assert leases.inspect() is None


def test_the_view_shows_who_holds_what_and_who_waits_since_when(leases, connect):
    fence = leases.acquire("a", "me", maxhold_ms=TTL)
    leases.acquire("free"), leases.release("free")
    leases.acquire("delay", "gone", ttl_ms=1, delay_ms=TTL)
    eventually(lambda: leases.inspect("delay")["state"], "delay")
    waiting = queue([connect(), connect()], leases, "a")
    rows = leases.connection.execute("SELECT lock, state, owner, fence, waiters, waiting_pids, waiting_since < clock_timestamp() FROM fencelocks ORDER BY lock").fetchall()
    pids = [waiter.connection.info.backend_pid for waiter in waiting]
    assert rows[0] == ("a", "held", "me", fence, 2, pids, True)
    assert rows[1][:3] == ("delay", "delay", "gone") and rows[1][4:] == (0, None, None) and len(rows) == 2
    leases.one("SELECT fencelock_free('a')")
    for number, waiter in enumerate(waiting):
        waiter.answer()
        leases.release("a", f"w{number}")


def test_check_knows_the_live_fence_alone(leases):
    fence = leases.acquire()
    assert [leases.check(fence + step) for step in (-1, 0, 1)] == [False, True, False]
    assert leases.check(fence, "another") is False
    leases.release()
    assert leases.check(fence) is False


def test_the_owner_is_shown_to_those_who_may_acquire_or_see_all_statistics(db, leases, app):
    leases.acquire(owner="secret")
    shown = "SELECT owner FROM fencelocks"
    for statement in (shown, "SELECT owner FROM fencelock_inspect('l')", "SELECT * FROM fence_internals.leases", "SELECT owner FROM fence_internals.leases()"):
        with refused("42501"), db.transaction():
            db.execute("SET LOCAL ROLE app")
            db.execute(statement)
    db.execute("GRANT SELECT ON fencelocks TO app; GRANT EXECUTE ON FUNCTION fencelock_inspect(text), fence_internals.leases() TO app")
    for owner, grant in [(None, None), ("secret", f"GRANT EXECUTE ON FUNCTION {ACQUIRE} TO app"), ("secret", "GRANT pg_read_all_stats TO app")]:
        with db.transaction(force_rollback=True):
            if grant:
                db.execute(grant)
            db.execute("SET LOCAL ROLE app")
            assert (grant, leases.one(shown), leases.inspect()["owner"]) == (grant, owner, owner)
    db.execute("CREATE FUNCTION peep() RETURNS text LANGUAGE sql SECURITY DEFINER AS $$ SELECT owner FROM fencelock_inspect('l') $$")
    db.execute("SET ROLE app")
    assert leases.one("SELECT peep()") is None
    db.execute("RESET ROLE; DROP FUNCTION peep")


def test_a_standby_shows_the_leases_of_its_primary(db, make_pg, connect):
    server = make_pg()
    server.psql("CREATE EXTENSION pg_fence")
    fence = Leases(connect(url=server.url())).acquire(ttl_ms=TTL * 10)
    server.stop()
    (server.data_dir / "standby.signal").touch()
    server.start()
    leases = Leases(connect(url=server.url()))
    assert leases.check(fence) is True and leases.inspect()["owner"] == "me"
    assert leases.one("SELECT fence FROM fencelocks") == fence


# --- operators


def test_raise_keeps_the_fences_above_a_number_and_survives_a_rollback(db, leases):
    above = clock_us(leases) + HOUR_US // 2
    assert leases.one("SELECT fencelock_raise(%s)", above) == above
    assert leases.one("SELECT fencelock_raise(5)") == above
    assert leases.acquire() == above + 1
    with db.transaction(force_rollback=True):
        assert leases.one("SELECT fencelock_raise(%s)", above + 100) == above + 100
    assert leases.acquire("m") == above + 101
    error = refusal(db, "SELECT fencelock_raise(%s)", (clock_us(leases) + 2 * HOUR_US,))
    assert error.sqlstate == "22023" and "too far ahead of the clock" in error.diag.message_primary
    assert leases.acquire("n") == above + 102


def test_free_ends_a_hold_and_a_delay_and_is_written_to_the_log(leases, pg):
    leases.acquire("a", delay_ms=TTL)
    assert [leases.one("SELECT fencelock_free('a')") for _ in range(2)] == [True, False]
    assert leases.acquire("a", "b") is not None
    leases.acquire("d", ttl_ms=1, delay_ms=TTL)
    eventually(lambda: leases.inspect("d")["state"], "delay")
    assert leases.one("SELECT fencelock_free('d')") is True and leases.acquire("d") is not None
    assert leases.one("SELECT fencelock_free('never')") is False
    assert 'pg_fence: lock "a" is freed' in pg.log()


def test_forget_removes_free_locks_with_older_fences_alone(leases, connect):
    old = [leases.acquire(name) for name in ("free", "held")]
    leases.release("free")
    leases.acquire("expired", ttl_ms=1)
    leases.acquire("new"), leases.release("new")
    eventually(lambda: leases.inspect("expired"), None)
    limit = leases.stored("new")[1]
    changing = Leases(connect())
    leases.acquire("changed"), leases.release("changed")
    changing.connection.execute("SET pg_fence.lease_in_transaction = on")
    changing.connection.execute("BEGIN")
    changing.acquire("changed")
    assert leases.one("SELECT fencelock_forget(%s)", limit) == 2
    assert leases.one("SELECT fencelock_forget(%s)", 9007199254740991) == 1, "that of the lock that is being changed stays"
    changing.connection.execute("ROLLBACK")
    names = {name for (name,) in leases.connection.execute("SELECT name FROM fence_internals.leases").fetchall()}
    assert names == {"held", "changed"}
    assert leases.acquire("free") > max(old)
    assert leases.check(old[1], "held") is True


# --- rights


CALLS = [
    "SELECT fencelock_acquire('l', 'o', 1000)",
    "CALL fencelock_wait('l', 'o', 1000, 1)",
    "SELECT fencelock_extend('l', 'o', 1000)",
    "SELECT fencelock_extend('l', 'o', 1000, 5)",
    "SELECT fencelock_release('l', 'o')",
    "SELECT fencelock_release('l', 'o', 5)",
    "SELECT fencelock_check('l', 5)",
    "SELECT * FROM fencelock_inspect('l')",
]
OPERATORS = ["SELECT fencelock_raise(5)", "SELECT fencelock_free('l')", "SELECT fencelock_forget(5)"]


def test_nobody_may_use_leases_until_one_grant_opens_them(db, app):
    db.execute("SET ROLE app")
    for call in [*CALLS, *OPERATORS, "SELECT * FROM fencelocks"]:
        with refused("42501"):
            db.execute(call)
    db.execute("RESET ROLE")
    db.execute(OPEN)
    db.execute("SET ROLE app")
    for call in CALLS:
        db.execute(call)
    for call in [*OPERATORS, "SELECT * FROM fence_internals.leases", "DELETE FROM fence_internals.leases", "SELECT setval('fence_internals.lease_fences', 5)"]:
        with refused("42501"):
            db.execute(call)


def test_the_owner_of_a_database_may_open_leases_to_others(db, app, connect, dsn):
    db.execute("CREATE ROLE dbo LOGIN; DO $$ BEGIN EXECUTE format('ALTER DATABASE %I OWNER TO dbo', current_database()); END $$")
    try:
        owner = connect(url=dsn.replace("postgres@", "dbo@"))
        owner.execute(OPEN)
        for call in [*CALLS, *OPERATORS]:
            owner.execute(call)
        with refused("42501"):
            owner.execute("UPDATE fence_internals.leases SET owner = 'x'")
        owner.execute(OPEN.replace("GRANT", "REVOKE").replace("TO app", "FROM app"))
        owner.close()
    finally:
        db.execute("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I OWNER TO postgres', current_database()); END $$; DROP OWNED BY dbo; DROP ROLE dbo")


# --- rows that these functions have not written


def test_rows_of_anything_do_no_harm(db, leases):
    """A restore brings them, and so can the owner of a database."""
    insert = "INSERT INTO fence_internals.leases VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)"
    least, most = -(2**63), 2**63 - 1
    numbers = [least, -1, 0, 1, most]
    for number, value in enumerate(numbers):
        db.execute(insert, (f"l{number}", "o", 5, value, value, value, value, value, value))
        db.execute(insert, (f"free{number}", None, 5, value, value, value, value, value, value))
    for number in range(len(numbers)):
        for lock in (f"l{number}", f"free{number}"):
            held = leases.inspect(lock)
            assert held is None or held["ttl_ms"] <= 316_224_000_000
            leases.check(5, lock), leases.extend(lock, "o", 1000), leases.release(lock, "o")
            leases.acquire(lock, "b")
            leases.one("SELECT fencelock_free(%s)", lock)
            assert leases.acquire(lock, "c") is not None, lock
    leases.connection.execute("SELECT * FROM fencelocks").fetchall()
    for bad in [("", None, 5), ("x", "", 5), ("x", None, 0), ("x", None, 2**53), ("x" * 1025, None, 5)]:
        with pytest.raises(psycopg.errors.CheckViolation):
            db.execute(insert, (*bad, 0, 0, 0, 0, 0, 0))


def test_a_fence_that_no_server_has_issued_is_refused_until_the_lock_is_freed(db, leases):
    db.execute("INSERT INTO fence_internals.leases VALUES ('l', NULL, 9007199254740991, 0, 0, 0, 0, 0, 0)")
    error = refusal(db, "SELECT fencelock_acquire('l', 'o', 1000)")
    assert (error.sqlstate, error.diag.constraint_name) == ("55000", "stored_fence_ahead_of_clock")
    before = leases.acquire("m")
    leases.one("SELECT fencelock_free('l')")
    assert leases.acquire("l") > before
    db.execute("SELECT setval('fence_internals.lease_fences', 9007199254740991)")
    error = refusal(db, "SELECT fencelock_acquire('n', 'o', 1000)")
    assert (error.sqlstate, error.diag.constraint_name) == ("54000", "fences_used_up")


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE fence_internals.leases ADD COLUMN more text",
        "ALTER TABLE fence_internals.leases DROP COLUMN epoch",
        "ALTER TABLE fence_internals.leases ALTER COLUMN fence TYPE numeric",
        "ALTER TABLE fence_internals.leases ALTER COLUMN owner TYPE bytea USING owner::bytea",
        "ALTER TABLE fence_internals.leases DROP CONSTRAINT leases_pkey",
        "CREATE INDEX ON fence_internals.leases (fence)",
        'ALTER TABLE fence_internals.leases ALTER COLUMN name TYPE text COLLATE "default"',
        "ALTER TABLE fence_internals.leases RENAME TO elsewhere",
        "ALTER SEQUENCE fence_internals.lease_fences RENAME TO elsewhere",
        "DROP TABLE fence_internals.leases CASCADE",
    ],
)
def test_an_altered_table_is_refused_and_not_read(db, leases, connect, change):
    """By a superuser alone. Sessions that have used it notice."""
    session = Leases(connect())
    session.acquire("before")
    db.execute("ALTER EXTENSION pg_fence DROP TABLE fence_internals.leases; ALTER EXTENSION pg_fence DROP SEQUENCE fence_internals.lease_fences")
    db.execute(change)
    for own in (leases, session, Leases(connect())):
        for call in ("fencelock_acquire('l', 'o', 1)", "fencelock_release('before', 'me')", "fencelock_check('before', 5)"):
            error = refusal(own.connection, f"SELECT {call}")
            assert (error.sqlstate, error.diag.constraint_name) == ("55000", "lease_table_unusable")


def test_the_extension_can_be_dropped_and_created_again(db, leases, connect):
    session = Leases(connect())
    fence = session.acquire()
    db.execute("DROP EXTENSION pg_fence")
    with refused("42883"):
        session.acquire("m")
    db.execute("CREATE EXTENSION pg_fence")
    assert session.acquire() > fence
    db.execute("TRUNCATE fence_internals.leases")
    assert session.inspect() is None and session.acquire() > fence
    db.execute("VACUUM FULL fence_internals.leases")
    assert session.release() is True
