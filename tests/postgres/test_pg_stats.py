"""`pg_stat_fence`: what is counted, what outlives what, and what happens where nothing can be counted."""

import threading
import time

import psycopg
import pytest

from harness import PostgresServer, eventually, places
from refusals import refusal, refused
from test_pg_guard import Waiting, in_a_transaction

COUNTERS = ("claims", "claims_stale", "writes", "writes_stale", "unclaimed", "outlived", "unfenced_refused")
NONE = dict.fromkeys(COUNTERS, 0)
CLAIM = "SELECT * FROM fenced_claim(NULL::t, 1, %s)"
UPDATE = "SELECT fenced_update('t', 1, %s, '{\"v\": 1}')"


def preloaded(pg):
    chosen = {} if places.chosen_pg_config() else {"major": pg.major}
    return PostgresServer(**chosen, settings={"shared_preload_libraries": "pg_fence"}).start()


@pytest.fixture(scope="module")
def counting(pg):
    """A server that preloads the library."""
    server = preloaded(pg)
    server.psql("CREATE DATABASE made_before; CREATE DATABASE other")
    for database in ("made_before", "other"):
        server.psql("CREATE EXTENSION pg_fence", database)
    yield server
    server.close()


@pytest.fixture
def session(counting, closing):
    """A factory of sessions of the counting server, in a database with a fenced table and no counts."""

    def make(database="made_before"):
        return closing(psycopg.connect(counting.url(database), autocommit=True))

    db = make()
    db.execute("DROP TABLE IF EXISTS t; SET session_replication_role = replica; TRUNCATE fence_internals.guards; RESET session_replication_role; SELECT pg_stat_fence_reset()")
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v int, fence bigint NOT NULL DEFAULT 0)")
    db.execute("INSERT INTO t (id) SELECT generate_series(1, 9)")
    return make


@pytest.fixture
def db(session):
    return session()


def counts(db, target="t"):
    columns = ", ".join(COUNTERS)
    row = db.execute(f"SELECT {columns} FROM pg_stat_fence WHERE target = to_regclass(%s)", (target,)).fetchone()
    return row and dict(zip(COUNTERS, row, strict=True))


def guard_counts(db, resource):
    columns = ", ".join(COUNTERS)
    row = db.execute(f"SELECT {columns} FROM pg_stat_fence WHERE kind = 'guard' AND resource = %s", (resource,)).fetchone()
    return row and dict(zip(COUNTERS, row, strict=True))


def test_every_call_is_counted_as_what_it_was(db):
    assert counts(db) is None, "nothing was counted yet"
    db.execute(CLAIM, (5,))
    db.execute("SELECT fenced_claim_json('t', 1, 5)")
    db.execute("SELECT * FROM fenced_claim_many(NULL::t, ARRAY[1, 2, 3], 5)")
    db.execute(CLAIM, (4,))
    db.execute("SELECT * FROM fenced_claim_many(NULL::t, ARRAY[1, 2, 3], 3)")
    assert counts(db) == {**NONE, "claims": 5, "claims_stale": 4}
    db.execute(UPDATE, (5,))
    db.execute("SELECT * FROM fenced_update_returning(NULL::t, 1, 5, '{\"v\": 2}')")
    db.execute("SELECT fenced_write('t', 1, 6, '{\"v\": 3}')")
    db.execute("SELECT fenced_delete('t', 1, 6)")
    db.execute("SELECT fenced_write('t', 2, 4, '{\"v\": 3}'), fenced_delete('t', 2, 4)")
    assert refusal(db, "SELECT fenced_update('t', 2, 9, '{\"v\": 3}')").sqlstate == "LF002"
    assert counts(db) == {**NONE, "claims": 5, "claims_stale": 4, "writes": 4, "writes_stale": 2, "unclaimed": 1}


def test_errors_before_the_rule_is_asked_are_no_counts(db):
    assert refusal(db, CLAIM, (0,)).sqlstate == "LF005"
    assert refusal(db, "SELECT fenced_claim_json('t', 77, 5)").sqlstate == "P0002"
    assert refusal(db, "SELECT fenced_write('t', 1, 5, '{}')").sqlstate == "22023"
    assert counts(db) is None


def test_nothing_but_a_newer_fence_is_counted_as_stale(db, session):
    other = session("made_before")
    db.execute("SET lock_timeout = '50ms'")
    db.execute("CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    db.execute("CREATE TRIGGER skip BEFORE UPDATE ON t FOR EACH ROW WHEN (OLD.id = 2) EXECUTE FUNCTION skip()")
    assert refusal(db, "SELECT * FROM fenced_claim(NULL::t, 2, 5)").sqlstate == "LF004"
    assert refusal(db, "SELECT fenced_write('t', 2, 5, '{\"v\": 1}')").sqlstate == "LF004"
    assert refusal(db, "SELECT fenced_update('t', 77, 5, '{\"v\": 1}')").sqlstate == "P0002"
    other.execute("BEGIN")
    other.execute(CLAIM, (5,))
    assert refusal(db, CLAIM, (6,)).sqlstate == "55P03"
    db.execute("SET lock_timeout = 0; SET statement_timeout = '50ms'")
    assert refusal(db, "SELECT fenced_write('t', 1, 6, '{\"v\": 1}')").sqlstate == "57014"
    db.execute("RESET statement_timeout; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
    other.execute("COMMIT")
    assert refusal(db, CLAIM, (6,)).sqlstate == "40001"
    db.execute("ROLLBACK; DROP FUNCTION skip() CASCADE")
    seen = counts(db)
    assert (seen["claims_stale"], seen["writes_stale"], seen["claims"]) == (0, 0, 1)


def test_a_call_is_counted_once_however_a_query_comes_to_it(db):
    write = "fenced_write('t', id, 5, '{\"v\": 1}')"
    for query in [f"SELECT {write} FROM t WHERE false", f"SELECT {write} FROM t LIMIT 0", f"SELECT FROM t WHERE false AND {write}"]:
        db.execute(query)
    assert counts(db) is None
    db.execute(f"SELECT {write} FROM t")
    assert counts(db) == {**NONE, "writes": 9}
    db.execute(f"""DO $$ BEGIN PERFORM {write} FROM t WHERE id = 1; RAISE 'undo'; EXCEPTION WHEN raise_exception THEN NULL; END $$""")
    assert counts(db) == {**NONE, "writes": 10}
    db.execute(f"WITH a AS (SELECT {write} FROM t WHERE id = 1), b AS (SELECT {write} FROM t WHERE id = 1) SELECT * FROM a, b")
    assert counts(db) == {**NONE, "writes": 12}


def test_the_newest_stale_call_is_told_with_both_fences(db):
    newest = "SELECT last_stale_fence, stored_fence_then, now() - last_stale_at < '1 minute' FROM pg_stat_fence WHERE target = 't'::regclass"
    db.execute(CLAIM, (9,))
    assert db.execute(newest).fetchone() == (None, None, None)
    db.execute(CLAIM, (7,))
    db.execute(UPDATE, (8,))
    assert db.execute(newest).fetchone() == (8, 9, True)


def test_counts_survive_rollback_and_the_end_of_the_session(db, session):
    other = session()
    other.execute("BEGIN")
    other.execute(CLAIM, (5,))
    other.execute("SAVEPOINT s")
    other.execute(UPDATE, (5,))
    other.execute("ROLLBACK TO s; ROLLBACK")
    other.close()
    assert counts(db) == {**NONE, "claims": 1, "writes": 1}


def test_refusals_on_a_protected_table_are_counted_though_they_roll_back(db):
    db.execute("SELECT fence_protect('t')")
    db.execute(CLAIM, (5,))
    for statement in ["UPDATE t SET v = 1", "DELETE FROM t WHERE id = 1", "INSERT INTO t VALUES (99, 1, 7)", "TRUNCATE t"]:
        assert refusal(db, statement).sqlstate == "LF003"
    update = "UPDATE t SET v = 1 WHERE id = 1"
    for fence, sqlstate in [(4, "LF001"), (6, "LF002")]:
        with pytest.raises(psycopg.Error, check=lambda error, state=sqlstate: error.sqlstate == state), db.transaction():
            db.execute("SELECT fence_use(%s)", (fence,))
            db.execute(update)
    assert counts(db) == {**NONE, "claims": 1, "writes_stale": 1, "unclaimed": 1, "unfenced_refused": 4}
    last = "SELECT last_stale_fence, stored_fence_then FROM pg_stat_fence WHERE target = 't'::regclass"
    assert db.execute(last).fetchone() == (4, 5)


def test_guards_are_counted_by_name(db):
    db.execute("DO $$ BEGIN PERFORM fenced_guard('a', 5), fenced_guard('b', 5); END $$")
    db.execute("DO $$ BEGIN PERFORM fenced_guard('a', 6); END $$")
    assert refusal(db, "DO $$ BEGIN PERFORM fenced_guard('a', 5); END $$").sqlstate == "LF001"
    assert guard_counts(db, "a") == {**NONE, "claims": 2, "claims_stale": 1}
    assert guard_counts(db, "b") == {**NONE, "claims": 1}
    last = "SELECT last_stale_fence, stored_fence_then FROM pg_stat_fence WHERE resource = 'a'"
    assert db.execute(last).fetchone() == (5, 6)


def test_long_names_are_cut_between_characters_and_kept_apart(db):
    for tail in ("x", "y"):
        with db.transaction():
            db.execute("SELECT fenced_guard(%s, 5)", ("x" + "é" * 100 + tail,))
    rows = db.execute("SELECT resource, claims FROM pg_stat_fence WHERE kind = 'guard'").fetchall()
    assert rows == [("x" + "é" * 63, 1)] * 2


def test_many_backends_count_exactly(db, session):
    sessions = [session() for _ in range(6)]
    calls = "DO $$ BEGIN FOR n IN 1..300 LOOP PERFORM fenced_claim_json('t', {row}, 5); PERFORM fenced_claim_json('t', {row}, 4); PERFORM fenced_guard('g' || n % 20, 5); END LOOP; END $$"
    threads = [
        threading.Thread(target=one.execute, args=(calls.format(row=n + 1),), daemon=True) for n, one in enumerate(sessions)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert counts(db) == {**NONE, "claims": 1800, "claims_stale": 1800}
    guards = "SELECT count(*), sum(claims)::int FROM pg_stat_fence WHERE kind = 'guard'"
    assert db.execute(guards).fetchone() == (20, 1800)


def test_entries_are_bounded_and_the_rest_is_counted_together(db):
    for first in (1, 3001):
        with db.transaction():
            db.execute("SELECT count(fenced_guard('bounded ' || n, 5)) FROM generate_series(%s::int, %s::int + 2999) n", (first, first))
    kinds = dict(db.execute("SELECT kind, count(*) FROM pg_stat_fence GROUP BY kind").fetchall())
    assert 2000 <= kinds["guard"] <= 2048
    assert kinds["other guards"] == 1
    assert db.execute("SELECT sum(claims)::int FROM pg_stat_fence").fetchone() == (6000,)
    db.execute(CLAIM, (5,))
    assert counts(db) == {**NONE, "claims": 1}, "guards do not crowd tables out"
    db.execute("SELECT pg_stat_fence_reset()")
    db.execute("DO $$ BEGIN PERFORM fenced_guard('after the reset', 5); END $$")
    assert guard_counts(db, "after the reset") == {**NONE, "claims": 1}
    assert db.execute("SELECT count(*) FROM pg_stat_fence").fetchone() == (1,)


TABLES = "SELECT count(*) FILTER (WHERE kind = 'table'), sum(claims)::int FROM pg_stat_fence"


def test_temporary_tables_are_counted_together(db):
    """There can be thousands, each of one session."""
    db.execute("""DO $$ BEGIN FOR n IN 1..1100 LOOP
        EXECUTE format('CREATE TEMP TABLE temp_%s (id int PRIMARY KEY, fence bigint) ON COMMIT DROP', n);
        EXECUTE format('INSERT INTO temp_%s VALUES (1, 0)', n);
        PERFORM fenced_claim_json(format('temp_%s', n)::regclass, 1, 5); END LOOP; END $$""")
    assert db.execute(TABLES).fetchone() == (0, 1100)
    db.execute(CLAIM, (5,))
    assert counts(db) == {**NONE, "claims": 1}
    # Those counted together are of all databases of the server.
    db.execute("SELECT pg_stat_fence_reset()")


@pytest.mark.long
def test_entries_of_dropped_tables_are_given_back(db):
    db.execute("SELECT pg_stat_fence_reset()")
    db.execute("""DO $$ BEGIN FOR n IN 1..2600 LOOP
        EXECUTE format('CREATE TABLE many_%s (id int PRIMARY KEY, fence bigint)', n);
        EXECUTE format('INSERT INTO many_%s VALUES (1, 0)', n);
        PERFORM fenced_claim_json(format('many_%s', n)::regclass, 1, 5);
        EXECUTE format('DROP TABLE many_%s', n); COMMIT; END LOOP; END $$""")
    others = "SELECT kind, claims FROM pg_stat_fence WHERE kind = 'other tables'"
    before = db.execute(others).fetchall()
    for number in range(30):
        db.execute(f"CREATE TABLE later_{number} (id int PRIMARY KEY, fence bigint); INSERT INTO later_{number} VALUES (1, 0)")
        # A session searches a block once a second at most.
        with psycopg.connect(db.info.dsn, autocommit=True) as another:
            another.execute(f"SELECT * FROM fenced_claim(NULL::later_{number}, 1, 5)")
        assert counts(db, f"later_{number}") == {**NONE, "claims": 1}
    assert db.execute(others).fetchall() == before
    db.execute("SELECT pg_stat_fence_reset()")


def test_a_dropped_database_gives_its_entries_back(db, counting):
    db.execute("CREATE DATABASE going TEMPLATE template0")
    with psycopg.connect(counting.url("going"), autocommit=True) as going:
        going.execute("CREATE EXTENSION pg_fence")
        for first in (1, 3001):
            with going.transaction():
                going.execute("SELECT count(fenced_guard('going ' || n, 5)) FROM generate_series(%s::int, %s::int + 2999) n", (first, first))
    db.execute("DROP DATABASE going WITH (FORCE)")
    db.execute("SELECT pg_stat_fence_reset()")
    with db.transaction():
        db.execute("SELECT count(fenced_guard('come ' || n, 5)) FROM generate_series(1, 1000) n")
    assert db.execute("SELECT kind, count(*) FROM pg_stat_fence GROUP BY kind").fetchall() == [("guard", 1000)]


def test_a_call_does_not_fail_because_it_cannot_be_counted(pg, make_pg):
    """The server can make no more shared memory, as when its file system is full."""
    server = make_pg(settings={"dynamic_shared_memory_type": "mmap"})
    folder = server.data_dir / "pg_dynshmem"
    server.psql("CREATE EXTENSION pg_fence; CREATE TABLE t (id int PRIMARY KEY, v int, fence bigint); INSERT INTO t VALUES (1, 0, 0)")
    folder.chmod(0o500)
    try:
        with psycopg.connect(server.url(), autocommit=True) as one:
            calls = "SELECT fenced_claim_json('t', 1, 5)->>'fence', fenced_update('t', 1, 5, '{\"v\": 1}'), fenced_update('t', 1, 5, '{\"v\": 2}')"
            assert one.execute(calls).fetchone() == ("5", True, True)
            one.execute("BEGIN; SAVEPOINT s")
            assert one.execute("SELECT fenced_guard('r', 5)").fetchone() == (5,)
            one.execute("ROLLBACK TO s; COMMIT")
            assert refusal(one, "SELECT fenced_update('t', 1, 6, '{\"v\": 1}')").sqlstate == "LF002"
            assert one.execute("TABLE t").fetchall() == [(1, 2, 5)]
            notices = []
            one.add_notice_handler(lambda notice: notices.append(notice.message_primary))
            assert one.execute("SELECT kind FROM pg_stat_fence").fetchall() == [(None,)]
            why = " for now: the server has no shared memory for it" if pg.major >= 17 else ": it is not preloaded"
            assert notices == [f"pg_fence counts nothing{why}"]
        if pg.major >= 17:
            assert server.log().count("cannot have its shared memory") == 1
    finally:
        folder.chmod(0o700)


def test_each_database_sees_and_resets_its_own(db, session):
    other = session("other")
    other.execute("SELECT pg_stat_fence_reset(); DO $$ BEGIN PERFORM fenced_guard('same name', 5); END $$; DO $$ BEGIN PERFORM fenced_guard('same name', 5); END $$")
    db.execute("DO $$ BEGIN PERFORM fenced_guard('same name', 5); END $$")
    assert guard_counts(db, "same name")["claims"] == 1
    assert guard_counts(other, "same name")["claims"] == 2
    db.execute("SELECT pg_stat_fence_reset()")
    assert guard_counts(db, "same name") is None
    assert guard_counts(other, "same name")["claims"] == 2


def test_counting_can_be_turned_off_by_a_superuser_alone(db):
    db.execute("SET pg_fence.track = off")
    db.execute(CLAIM, (5,))
    db.execute("DO $$ BEGIN PERFORM fenced_guard('r', 5); END $$")
    assert db.execute("SELECT count(*) FROM pg_stat_fence").fetchone() == (0,)
    db.execute("SET pg_fence.track = on")
    db.execute(CLAIM, (5,))
    assert counts(db) == {**NONE, "claims": 1}
    db.execute("CREATE ROLE clerk; SET ROLE clerk")
    try:
        assert refusal(db, "SET pg_fence.track = off").sqlstate == "42501"
    finally:
        db.execute("RESET ROLE; DROP ROLE clerk")


def test_who_watches_the_server_may_look_and_nobody_else(db):
    db.execute("CREATE ROLE clerk; CREATE ROLE watcher IN ROLE pg_monitor")
    db.execute(CLAIM, (5,))
    try:
        db.execute("SET ROLE watcher")
        assert counts(db) == {**NONE, "claims": 1}
        assert refusal(db, "SELECT pg_stat_fence_reset()").sqlstate == "42501"
        db.execute("SET ROLE clerk")
        for call in ["SELECT * FROM pg_stat_fence", "SELECT * FROM fence_internals.stat()", "SELECT pg_stat_fence_reset()"]:
            assert refusal(db, call).sqlstate == "42501"
    finally:
        db.execute("RESET ROLE; DROP ROLE clerk; DROP ROLE watcher")


def test_a_table_keeps_its_counts_when_it_is_renamed_and_goes_with_them(db):
    db.execute(CLAIM, (5,))
    db.execute("ALTER TABLE t RENAME TO renamed")
    assert counts(db, "renamed") == {**NONE, "claims": 1}
    db.execute("DROP TABLE renamed")
    assert db.execute("SELECT count(*) FROM pg_stat_fence").fetchone() == (0,)


def test_the_crash_of_a_backend_starts_the_counts_anew(pg):
    server = preloaded(pg)
    try:
        with psycopg.connect(server.url(), autocommit=True) as db:
            db.execute("CREATE EXTENSION pg_fence; DO $$ BEGIN PERFORM fenced_guard('r', 5); END $$")
            assert guard_counts(db, "r")["claims"] == 1
        server.crash()
        read = "SELECT coalesce(sum(claims), 0) FROM pg_stat_fence"
        assert server.psql(read) == "0"
        server.psql("DO $$ BEGIN PERFORM fenced_guard('r', 6); END $$")
        assert server.psql(read) == "1"
    finally:
        server.close()


def test_without_preloading_it_counts_from_version_17_on_and_says_so_before(pg, dsn, connect):
    db, notices = connect(), []
    db.add_notice_handler(lambda notice: notices.append((notice.message_primary, notice.message_hint)))
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v int, fence bigint NOT NULL DEFAULT 0); INSERT INTO t VALUES (1)")
    db.execute("BEGIN")
    assert db.execute(CLAIM, (5,)).fetchone() == (1, None, 5)
    db.execute("ROLLBACK")
    connect().execute("DO $$ BEGIN PERFORM fenced_guard('r', 5); END $$")
    # The others are those of all databases of this server, so other tests count there.
    own = "SELECT kind, resource, claims FROM pg_stat_fence WHERE kind IS DISTINCT FROM 'other tables' ORDER BY kind"
    rows = connect().execute(own).fetchall()
    if pg.major >= 17:
        assert rows == [("guard", "r", 1), ("table", None, 1)]
        return
    assert rows == [(None, None, None)]
    db.execute("SELECT * FROM pg_stat_fence")
    assert notices == [
        (
            "pg_fence counts nothing: it is not preloaded",
            "Add pg_fence to shared_preload_libraries and restart the server. From PostgreSQL 17 on that is not needed.",
        )
    ]
    db.execute("SELECT pg_stat_fence_reset()")


# --- waits

WAITED = "SELECT waits, wait_time FROM pg_stat_fence WHERE coalesce(target::text, resource) = %s"


class Clock:
    """How long something lasted, in milliseconds of the client, which all that lies in between is shorter than."""

    def __init__(self):
        self._began = time.monotonic()

    def ms(self):
        return (time.monotonic() - self._began) * 1000


def waits_for(db, session, eventually_waits, statement, *parameters):
    """A statement in another session that waits for a lock when this returns, and a clock from before it was sent."""
    clock = Clock()
    waiting = Waiting(session, db, eventually_waits, statement, parameters)
    return waiting, clock


GUARD_A = "SELECT fenced_guard('a', %s)"


@pytest.mark.parametrize(
    ("name", "statement"),
    [
        ("a", GUARD_A),
        ("t", CLAIM),
        ("t", "SELECT fenced_write('t', 1, %s, '{\"v\": 1}')"),
        ("t", "SELECT * FROM fenced_claim_many(NULL::t, ARRAY[1, 2, 3], %s)"),
        ("t", "SELECT fenced_upsert('t', 77, %s, '{\"v\": 1}')"),
    ],
)
def test_waits_are_counted_with_the_time_that_they_took(db, session, name, statement):
    holder, waits = session(), session()
    holder.execute("BEGIN")
    holder.execute(statement, (5,))
    waiting, around = waits_for(db, waits, eventually, statement, 6)
    within = Clock()
    before = db.execute(WAITED, (name,)).fetchone()
    assert before == ((1, 0.0) if name == "a" else (0, 0.0)), "a wait for a guard is counted when it begins"
    waited_ms = within.ms()
    holder.execute("COMMIT")
    assert waiting.answer() == "done"
    count, wait_time = db.execute(WAITED, (name,)).fetchone()
    assert count == 1
    assert waited_ms <= wait_time <= around.ms()
    # What need not wait adds nothing.
    in_a_transaction(waits, statement, (7,))
    assert db.execute(WAITED, (name,)).fetchone() == (1, wait_time)


@pytest.mark.parametrize(("name", "statement"), [("a", GUARD_A), ("t", CLAIM)])
def test_a_wait_that_ends_with_an_error_is_counted_as_well(db, session, name, statement):
    holder, waits = session(), session()
    holder.execute("BEGIN")
    holder.execute(statement, (5,))
    waits.execute("SET lock_timeout = '50ms'")
    for count in (1, 2):
        with refused("55P03"):
            in_a_transaction(waits, statement, (6,))
        waited = db.execute(WAITED, (name,)).fetchone()
        assert waited[0] == count and waited[1] >= 50 * count
    waits.execute("SET lock_timeout = 0")
    waiting, _ = waits_for(db, waits, eventually, statement, 6)
    db.execute("SELECT pg_cancel_backend(%s)", (waits.info.backend_pid,))
    assert waiting.answer() == "57014"
    assert db.execute(WAITED, (name,)).fetchone()[0] == 3
    # An unknown name in an error, and none where nothing is counted.
    waits.execute("SET pg_fence.track = off; SET lock_timeout = '1ms'")
    with refused("55P03"):
        in_a_transaction(waits, statement, (6,))
    assert db.execute(WAITED, (name,)).fetchone()[0] == 3


def test_a_first_call_that_does_not_get_its_row_is_counted(db, session):
    """Nothing has counted the table before, and the catalog cannot be asked while the error is under way."""
    holder = session()
    holder.execute("BEGIN; SELECT FROM t WHERE id = 1 FOR UPDATE")
    for number in (1, 2):
        fresh = session()
        fresh.execute("SET lock_timeout = '20ms'")
        assert refusal(fresh, CLAIM, (5,)).sqlstate == "55P03"
        fresh.close()
        count, wait_time = db.execute(WAITED, ("t",)).fetchone()
        assert count == number and wait_time >= 20 * number
    assert counts(db) == NONE


def test_the_two_waits_of_one_call_of_a_guard_are_one(db, session):
    """It waits to learn what is stored, and again to be alone."""
    one, two, three = session(), session(), session()
    in_a_transaction(db, GUARD_A, (5,))
    one.execute("BEGIN")
    one.execute(GUARD_A, (6,))
    first, _ = waits_for(db, two, eventually, GUARD_A, 7)
    three.execute("BEGIN")
    second, _ = waits_for(db, three, eventually, GUARD_A, 6)
    one.execute("COMMIT")
    assert second.answer() == "done"
    blocks = "SELECT pg_blocking_pids(%s)"
    eventually(lambda: db.execute(blocks, (two.info.backend_pid,)).fetchone()[0], [three.info.backend_pid])
    three.execute("COMMIT")
    assert first.answer() == "done"
    assert db.execute(WAITED, ("a",)).fetchone()[0] == 2


def test_evictions_are_counted(db, session):
    holder = session()
    holder.execute("BEGIN")
    holder.execute(GUARD_A, (5,))
    evicted = "SELECT evictions FROM pg_stat_fence WHERE resource = 'a'"
    assert db.execute(evicted).fetchone() == (0,)
    assert db.execute("SELECT fence_guard_evict('a', 5)").fetchone() == ([],)
    assert db.execute(evicted).fetchone() == (0,)
    assert db.execute("SELECT fence_guard_evict('a', 6)").fetchone() == ([holder.info.backend_pid],)
    assert db.execute(evicted).fetchone() == (1,)


# --- locks


LOCK_COUNTERS = ("grants", "busy", "waits", "late_releases")


def lock_counts(db, lock="l"):
    row = db.execute(f"SELECT {', '.join(LOCK_COUNTERS)} FROM pg_stat_fence WHERE kind = 'lock' AND resource = %s", (lock,)).fetchone()
    return row and dict(zip(LOCK_COUNTERS, row, strict=True))


def test_calls_on_locks_are_counted_as_what_they_were(db):
    none = dict.fromkeys(LOCK_COUNTERS, 0)
    assert lock_counts(db) is None
    (fence,) = db.execute("SELECT fencelock_acquire('l', 'a', 60000)").fetchone()
    db.execute("SELECT fencelock_acquire('l', 'a', 60000, retry => true)")
    assert lock_counts(db) == {**none, "grants": 1}
    db.execute("SELECT fencelock_acquire('l', 'b', 60000)")
    db.execute("SELECT fencelock_acquire('l', 'b', 60000, wait_ms => 10)")
    assert lock_counts(db) == {**none, "grants": 1, "busy": 2, "waits": 1}
    waited = "SELECT wait_time FROM pg_stat_fence WHERE kind = 'lock' AND resource = 'l'"
    assert db.execute(waited).fetchone()[0] >= 10
    db.execute("SELECT fencelock_release('l', 'stranger')")
    db.execute("SELECT fencelock_free('l')")
    db.execute("SELECT fencelock_acquire('l', 'b', 60000)")
    db.execute("SELECT fencelock_release('l', 'a')")
    assert lock_counts(db) == {**none, "grants": 2, "busy": 2, "waits": 1}, "without a fence nobody knows that it was late"
    db.execute("SELECT fencelock_release('l', 'a', %s)", (fence,))
    db.execute("SET pg_fence.max_waiters_per_lock = 0")
    assert refusal(db, "SELECT fencelock_acquire('l', 'c', 60000, wait_ms => 10)").sqlstate == "53400"
    assert lock_counts(db) == {"grants": 2, "busy": 3, "waits": 1, "late_releases": 1}
    db.execute("SELECT fencelock_acquire('short', 'a', 1)")
    eventually(lambda: db.execute("SELECT fence FROM fencelock_inspect('short')").fetchone(), (None,))
    db.execute("SELECT fencelock_release('short', 'a')")
    assert lock_counts(db, "short") == {**none, "grants": 1, "late_releases": 1}
    db.execute("SELECT pg_stat_fence_reset()")
    assert lock_counts(db) is None
