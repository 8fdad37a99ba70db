"""`fenced_guard`: a named resource fences a whole transaction, in order, whatever becomes of the sessions."""

import contextlib
import threading

import psycopg
import pytest

from harness.waiting import HANG_S
from refusals import refused

TAKEN_OVER = "Another holder has taken over. Roll back, and take the lock again."
GUARD = "SELECT fenced_guard(%s, %s)"
HELD = "SELECT mode, granted FROM pg_locks WHERE locktype = 'userlock' AND database = %s ORDER BY mode, granted"


@pytest.fixture
def sessions(connect):
    """A factory of sessions that open their transactions themselves."""
    return lambda count: [connect() for _ in range(count)]


def guard(connection, fence, resource="r"):
    """In the transaction that is open, or in one of its own."""
    return in_a_transaction(connection, GUARD, (resource, fence))


def in_a_transaction(connection, *statement):
    if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        return connection.execute(*statement)
    with connection.transaction():
        return connection.execute(*statement)


def stored(db, resource="r"):
    row = db.execute("SELECT fence FROM fence_internals.guards WHERE resource = %s", (resource,)).fetchone()
    return row and row[0]


class Waiting:
    """A statement in another session that is waiting for a lock when this is made."""

    def __init__(self, connection, db, eventually, *statement):
        self._answer = None
        self._connection = connection
        self._thread = threading.Thread(target=self._run, args=statement, daemon=True)
        self._thread.start()
        pid = connection.info.backend_pid
        eventually(lambda: db.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", (pid,)).fetchone()[0])

    def _run(self, *statement):
        try:
            in_a_transaction(self._connection, *statement)
            self._answer = "done"
        except psycopg.Error as error:
            self._answer = error.sqlstate

    @property
    def still_waits(self):
        return self._thread.is_alive()

    def answer(self):
        self._thread.join(60)
        assert not self._thread.is_alive(), "it still waits"
        return self._answer


def test_the_newest_fence_is_stored_and_an_older_one_is_refused(db):
    guard(db, 5)
    guard(db, 5)
    guard(db, 7)
    assert stored(db) == 7
    with pytest.raises(psycopg.Error) as caught:
        guard(db, 6)
    error = caught.value
    assert (error.sqlstate, error.diag.message_primary) == ("LF001", 'fence 6 is stale at guard "r"')
    assert error.diag.message_detail == "The guard has admitted fence 7; this transaction has fence 6."
    assert error.diag.message_hint == f"{TAKEN_OVER} All transactions that call this guard must take the same lock."
    assert stored(db) == 7
    guard(db, 1, "another resource")


def test_a_stale_transaction_writes_nothing_at_all(db, sessions):
    db.execute("CREATE TABLE jobs (id int PRIMARY KEY, done bool)")
    db.execute("INSERT INTO jobs VALUES (1, false)")
    guard(db, 9)
    (stale,) = sessions(1)
    with refused("LF001"), stale.transaction():
        stale.execute("INSERT INTO jobs VALUES (2, true)")
        guard(stale, 8)
    assert db.execute("SELECT * FROM jobs").fetchall() == [(1, False)]


def test_transactions_of_the_stored_fence_are_in_together(db, sessions):
    one, two = sessions(2)
    guard(db, 5)
    with one.transaction(), two.transaction():
        guard(one, 5)
        guard(two, 5)


def test_a_newer_fence_waits_for_those_that_are_in_and_then_shuts_them_out(db, sessions, eventually):
    old, new, late = sessions(3)
    guard(db, 5)
    old.execute("BEGIN")
    guard(old, 5)
    new.execute("BEGIN")
    newer = Waiting(new, db, eventually, GUARD, ("r", 6))
    older = Waiting(late, db, eventually, GUARD, ("r", 5))
    assert newer.still_waits and older.still_waits
    old.execute("COMMIT")
    assert newer.answer() == "done"
    assert older.still_waits, "the newer one is alone until it ends"
    new.execute("COMMIT")
    assert older.answer() == "LF001"


@pytest.mark.parametrize("end, answer", [("COMMIT", "LF001"), ("ROLLBACK", "done")])
def test_an_older_fence_waits_to_learn_whether_the_newer_one_stays(db, sessions, eventually, end, answer):
    new, old = sessions(2)
    guard(db, 4)
    new.execute("BEGIN")
    guard(new, 6)
    older = Waiting(old, db, eventually, GUARD, ("r", 5))
    new.execute(end)
    assert older.answer() == answer
    assert stored(db) == (6 if end == "COMMIT" else 5)


def test_two_transactions_of_one_new_fence_come_in_one_after_the_other(db, sessions, eventually):
    """The first stamps alone; the second finds its own fence then and shares the guard with a third."""
    one, two, three = sessions(3)
    one.execute("BEGIN")
    guard(one, 5)
    two.execute("BEGIN")
    second = Waiting(two, db, eventually, GUARD, ("r", 5))
    one.execute("COMMIT")
    assert second.answer() == "done"
    three.execute("SET lock_timeout = '1s'")
    guard(three, 5)
    two.execute("COMMIT")


def test_a_stream_of_older_transactions_does_not_starve_a_newer_holder(db, connect, sessions):
    """Four sessions of fence 5 that overlap all the time: with row locks alone the newer one would wait for ever."""
    guard(db, 5)
    ends = threading.Event()
    inside = threading.Semaphore(0)
    outcomes = []

    def stream(connection):
        try:
            while not ends.is_set():
                with connection.transaction():
                    guard(connection, 5)
                    inside.release()
                    connection.execute("SELECT pg_sleep(0.02)")
        except psycopg.Error as error:
            outcomes.append(error.sqlstate)

    threads = [threading.Thread(target=stream, args=(session,), daemon=True) for session in sessions(4)]
    for thread in threads:
        thread.start()
    for _ in range(8):
        assert inside.acquire(timeout=HANG_S)
    newer = connect()
    newer.execute(f"SET lock_timeout = '{HANG_S}s'")
    guard(newer, 6)
    for thread in threads:
        thread.join(60)
    ends.set()
    assert outcomes == ["LF001"] * 4, "each of the older ones is shut out"


def test_many_sessions_with_growing_fences_never_go_back(db, sessions):
    """Sixteen transactions race; what each one sees stored is never newer than its own fence."""
    db.execute("CREATE TABLE seen (n int GENERATED ALWAYS AS IDENTITY, fence bigint)")
    fences = [1 + (n * 7) % 40 for n in range(40)]
    problems = []

    def run(connection, mine):
        for fence in mine:
            try:
                with connection.transaction():
                    guard(connection, fence)
                    connection.execute("INSERT INTO seen (fence) VALUES (%s)", (fence,))
            except psycopg.Error as error:
                if error.sqlstate != "LF001":
                    problems.append(error)

    threads = [
        threading.Thread(target=run, args=(session, fences[n::4]), daemon=True) for n, session in enumerate(sessions(4))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert problems == []
    order = [fence for (fence,) in db.execute("SELECT fence FROM seen ORDER BY n").fetchall()]
    assert order == sorted(order)
    assert order[-1] == stored(db) == max(fences)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_level_that_would_read_stale_data_is_refused(db, level):
    with pytest.raises(psycopg.Error) as caught:
        db.execute(f"BEGIN ISOLATION LEVEL {level}")
        guard(db, 5)
    assert (caught.value.sqlstate, caught.value.diag.message_hint) == (
        "0A000",
        "Begin the transaction with BEGIN ISOLATION LEVEL READ COMMITTED.",
    )
    db.execute("ROLLBACK")
    assert stored(db) is None


def test_what_is_read_after_the_guard_is_what_the_one_before_has_left(db, sessions, eventually):
    old, new = sessions(2)
    db.execute("CREATE TABLE t (v int)")
    db.execute("INSERT INTO t VALUES (1)")
    old.execute("BEGIN")
    guard(old, 5)
    old.execute("UPDATE t SET v = 2")
    new.execute("BEGIN")
    entered = Waiting(new, db, eventually, GUARD, ("r", 6))
    old.execute("COMMIT")
    assert entered.answer() == "done"
    assert new.execute("SELECT v FROM t").fetchone() == (2,)
    new.execute("COMMIT")


def test_rollback_to_undoes_the_guard_and_lets_others_in(db, sessions):
    one, two = sessions(2)
    two.execute("SET lock_timeout = '1s'")
    guard(db, 5)
    one.execute("BEGIN; SAVEPOINT s")
    guard(one, 9)
    with refused("55P03"):
        guard(two, 6)
    one.execute("ROLLBACK TO s")
    guard(two, 6)
    guard(one, 7)
    one.execute("SAVEPOINT s2")
    guard(one, 8)
    one.execute("RELEASE s2; COMMIT")
    assert stored(db) == 8


def test_an_outer_guard_survives_the_rollback_of_an_inner_one(db, sessions):
    one, two = sessions(2)
    two.execute("SET lock_timeout = '300ms'")
    one.execute("BEGIN")
    guard(one, 5)
    one.execute("SAVEPOINT s")
    guard(one, 6)
    one.execute("ROLLBACK TO s")
    with refused("55P03"):
        guard(two, 7)
    one.execute("COMMIT")
    assert stored(db) == 5


def test_a_caught_refusal_keeps_nobody_out(db, sessions):
    guard(db, 9)
    one, two = sessions(2)
    one.execute("BEGIN")
    one.execute(
        "DO $$ BEGIN PERFORM fenced_guard('r', 8); EXCEPTION WHEN SQLSTATE 'LF001' THEN NULL; END $$"
    )
    two.execute("SET lock_timeout = '1s'")
    guard(two, 10)
    one.execute("COMMIT")


def test_a_prepared_transaction_keeps_the_guard(make_pg):
    server = make_pg(settings={"max_prepared_transactions": "5"})
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(psycopg.connect(server.url(), autocommit=True))
        one.execute("CREATE EXTENSION pg_fence")
        one.execute("BEGIN")
        guard(one, 5)
        one.execute("PREPARE TRANSACTION 'guarded'")
    server.kill()
    server.start()
    with psycopg.connect(server.url(), autocommit=True) as one:
        one.execute("SET lock_timeout = '300ms'")
        with refused("55P03"):
            guard(one, 6)
        one.execute("COMMIT PREPARED 'guarded'")
        with refused("LF001"):
            guard(one, 4)
        guard(one, 6)


def test_a_session_that_is_killed_lets_others_in(db, sessions, eventually):
    one, two = sessions(2)
    one.execute("BEGIN")
    guard(one, 5)
    waits = Waiting(two, db, eventually, GUARD, ("r", 4))
    db.execute("SELECT pg_terminate_backend(%s)", (one.info.backend_pid,))
    assert waits.answer() == "done"


def test_waiting_ends_as_the_server_ends_it(db, sessions, eventually):
    one, two = sessions(2)
    one.execute("BEGIN")
    guard(one, 5)
    two.execute("SET lock_timeout = '50ms'")
    with refused("55P03"):
        guard(two, 6)
    two.execute("SET lock_timeout = 0; SET statement_timeout = '50ms'")
    with refused("57014"):
        guard(two, 6)
    two.execute("SET statement_timeout = 0")
    waits = Waiting(two, db, eventually, GUARD, ("r", 6))
    db.execute("SELECT pg_cancel_backend(%s)", (two.info.backend_pid,))
    assert waits.answer() == "57014"
    one.execute("COMMIT")
    assert stored(db) == 5


def test_two_guards_in_opposite_order_are_a_deadlock_and_not_stale(db, sessions, eventually):
    one, two = sessions(2)
    for session, resource in [(one, "a"), (two, "b")]:
        session.execute("SET deadlock_timeout = '50ms'; BEGIN")
        guard(session, 5, resource)
    waits = Waiting(one, db, eventually, GUARD, ("b", 5))
    try:
        guard(two, 5, "a")
        second = "done"
    except psycopg.Error as error:
        second = error.sqlstate
        two.execute("ROLLBACK")
    assert sorted([waits.answer(), second]) == ["40P01", "done"]


def test_no_advisory_lock_of_a_user_is_the_guards_lock(db, sessions):
    one, two = sessions(2)
    one.execute("BEGIN")
    guard(one, 5)
    (database,) = db.execute("SELECT oid FROM pg_database WHERE datname = current_database()").fetchone()
    assert db.execute(HELD, (database,)).fetchall() == [("ExclusiveLock", True)]
    lock = db.execute("SELECT classid::bigint, objid::bigint FROM pg_locks WHERE locktype = 'userlock'").fetchone()
    two.execute("SET lock_timeout = '1s'")
    two.execute("SELECT pg_advisory_lock((%s::bigint << 32) | %s)", lock)
    one.execute("SELECT pg_advisory_unlock_all()")
    assert db.execute(HELD, (database,)).fetchall() == [("ExclusiveLock", True)]
    one.execute("COMMIT")
    assert db.execute(HELD, (database,)).fetchall() == []


def test_guards_of_two_databases_have_nothing_to_do_with_each_other(pg, db):
    guard(db, 9)
    pg.psql("CREATE DATABASE other TEMPLATE fence_template")
    try:
        with psycopg.connect(pg.url("other"), autocommit=True) as other, db.transaction():
            guard(db, 10)
            other.execute("SET lock_timeout = '1s'")
            guard(other, 3)
    finally:
        pg.psql("DROP DATABASE other WITH (FORCE)")


BAD_FENCES = {None: "LF005", 0: "LF005", -1: "LF005", 2**53: "LF005", 2**63 - 1: "LF005"}


def test_bad_input_is_named_and_stamps_nothing(db):
    for fence, sqlstate in BAD_FENCES.items():
        with refused(sqlstate):
            guard(db, fence)
    with refused("22004"):
        guard(db, 5, None)
    for resource in ["", "x" * 1025]:
        with refused("22023"):
            guard(db, 5, resource)
    assert db.execute("SELECT * FROM fence_internals.guards").fetchall() == []


@pytest.mark.parametrize("resource", ["x" * 1024, "né'\"; drop", "{}", "(a)", " r", "R"])
def test_a_name_is_taken_as_it_is(db, resource):
    guard(db, 3, "r")
    guard(db, 5, resource)
    assert stored(db, resource) == 5
    assert stored(db) == 3


def test_a_read_only_transaction_is_refused(db):
    db.execute("BEGIN READ ONLY")
    with refused("25006"):
        guard(db, 5)
    db.execute("ROLLBACK")


def test_forget_removes_what_is_older_and_does_not_wait(db, sessions):
    (busy,) = sessions(1)
    for fence in (1, 2, 3, 8, 9):
        guard(db, fence, f"r{fence}")
    busy.execute("BEGIN")
    guard(busy, 20, "r3")
    db.execute("SET lock_timeout = '1s'")
    assert db.execute("SELECT fence_guard_forget(8)").fetchone() == (2,)
    busy.execute("COMMIT")
    assert db.execute("SELECT resource FROM fence_internals.guards ORDER BY resource").fetchall() == [("r3",), ("r8",), ("r9",)]
    with refused("LF005"):
        db.execute("SELECT fence_guard_forget(0)")
    guard(db, 1, "r1")


def test_a_guard_that_is_being_forgotten_is_stamped_afterwards(db, sessions, eventually):
    one, two = sessions(2)
    guard(db, 5)
    one.execute("BEGIN; SELECT fence_guard_forget(6)")
    waits = Waiting(two, db, eventually, GUARD, ("r", 7))
    one.execute("COMMIT")
    assert waits.answer() == "done"
    assert stored(db) == 7


def test_reset_undoes_a_poisoned_fence_and_is_logged(pg, db):
    guard(db, 2**50)
    assert db.execute("SELECT fence_guard_reset('r', 7)").fetchone() == (2**50,)
    assert f'fence of "fence_internals"."guards" (resource)=(r) reset from {2**50} to 7' in pg.log()
    guard(db, 7)
    assert db.execute("SELECT fence_guard_reset('r', 0)").fetchone() == (7,)
    guard(db, 1)
    with pytest.raises(psycopg.errors.NoDataFound, match='there is no guard "nobody"'):
        db.execute("SELECT fence_guard_reset('nobody', 5)")
    with refused("LF005"):
        db.execute("SELECT fence_guard_reset('r', -1)")
    assert stored(db) == 1


def test_reset_waits_until_it_is_alone(db, sessions, eventually):
    one, two = sessions(2)
    guard(db, 5)
    one.execute("BEGIN")
    guard(one, 5)
    waits = Waiting(two, db, eventually, "SELECT fence_guard_reset('r', 3)")
    one.execute("COMMIT")
    assert waits.answer() == "done"
    assert stored(db) == 3


@pytest.fixture
def worker(pg, db):
    """A role without any rights, dropped afterwards."""
    db.execute("CREATE ROLE worker LOGIN")
    yield "worker"
    db.execute("DROP OWNED BY worker")
    db.execute("DROP ROLE worker")


def test_only_those_who_were_granted_it_may_call(db, worker):
    calls = ["fenced_guard('r', 5)", "fence_guard_forget(5)", "fence_guard_reset('r', 5)"]
    db.execute("SET ROLE worker")
    for call in calls:
        with refused("42501"):
            db.execute(f"SELECT {call}")
    for statement in ["SELECT * FROM fence_internals.guards", "INSERT INTO fence_internals.guards VALUES ('r', 5)", "DELETE FROM fence_internals.guards"]:
        with refused("42501"):
            db.execute(statement)
    db.execute("RESET ROLE")


def test_a_worker_needs_execute_alone_and_learns_no_fence_of_others(db, worker):
    db.execute("GRANT EXECUTE ON FUNCTION fenced_guard(text, bigint) TO worker")
    guard(db, 9)
    db.execute("SET ROLE worker")
    with pytest.raises(psycopg.Error) as caught:
        guard(db, 5)
    assert caught.value.diag.message_detail == "The guard has admitted a newer one; this transaction has fence 5."
    guard(db, 10)
    assert db.execute("SELECT current_user").fetchone() == ("worker",), "the owner's rights end with the call"
    with refused("42501"):
        db.execute("DELETE FROM fence_internals.guards")
    db.execute("RESET ROLE")
    assert stored(db) == 10


def test_the_rights_of_the_owner_end_with_a_refusal_that_is_caught(db, worker):
    db.execute("GRANT EXECUTE ON FUNCTION fenced_guard(text, bigint) TO worker")
    guard(db, 9)
    db.execute("SET ROLE worker")
    said = db.execute("CREATE TEMP TABLE said (who text)") and db.execute(
        """DO $$ BEGIN
            PERFORM fenced_guard('r', 5);
        EXCEPTION WHEN SQLSTATE 'LF001' THEN INSERT INTO said VALUES (current_user);
        END $$"""
    )
    assert said is not None
    assert db.execute("SELECT who FROM said").fetchone() == ("worker",)
    db.execute("RESET ROLE")


def test_a_table_of_the_same_name_on_the_search_path_is_not_taken(db):
    db.execute("CREATE SCHEMA evil; CREATE TABLE evil.guards (resource text PRIMARY KEY, fence bigint)")
    db.execute("CREATE TEMP TABLE guards (resource text PRIMARY KEY, fence bigint)")
    db.execute("SET search_path = evil, pg_temp, public")
    guard(db, 5)
    assert db.execute("SELECT resource, fence FROM fence_internals.guards").fetchall() == [("r", 5)]
    assert db.execute("SELECT * FROM pg_temp.guards").fetchall() == []


def test_two_locks_over_one_guard_take_turns_at_being_stale(db):
    """Both holders are live, each under a lock of its own that it takes again as LF001 says. It never ends."""
    stale = []
    for fence in range(1, 9, 2):
        guard(db, fence + 1)
        with pytest.raises(psycopg.Error) as caught:
            guard(db, fence)
        stale.append(caught.value)
    assert {error.sqlstate for error in stale} == {"LF001"}
    assert all("must take the same lock" in error.diag.message_hint for error in stale)
