"""Serialization errors, waits and rollback, with real sessions side by side: what the core raises is never called stale."""

import threading

import psycopg
import pytest
from majors import others_in_long_runs

CLAIM = "SELECT fence FROM fenced_claim(NULL::acct, %s, %s)"
UPDATE = "SELECT fenced_update('acct', %s, %s, '{\"bal\": 11}')"
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")


@pytest.fixture
def acct(db):
    """A connection to a table with three rows, never claimed."""
    db.execute("CREATE TABLE acct (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, bal int NOT NULL DEFAULT 10)")
    db.execute("INSERT INTO acct (id) VALUES (1), (2), (3)")
    return db


class Other:
    """A statement that another session runs at the same time."""

    def __init__(self, connection, sql, parameters=()):
        self.connection = connection
        self.outcome = None
        self._thread = threading.Thread(target=self._run, args=(sql, parameters), daemon=True)
        self._thread.start()

    def _run(self, sql, parameters):
        try:
            self.outcome = self.connection.execute(sql, parameters).fetchall()
        except psycopg.Error as error:
            self.outcome = error.sqlstate

    def waits_for_a_lock(self, db, eventually):
        pid = self.connection.info.backend_pid
        eventually(lambda: db.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", (pid,)).fetchone()[0])
        return self

    def ended(self):
        self._thread.join(60)
        assert not self._thread.is_alive(), "the other session still waits"
        return self.outcome


@pytest.fixture
def sessions(connect):
    """Two sessions that open their transactions themselves."""
    return connect(), connect()


ENDS = {"commit": "COMMIT", "rollback": "ROLLBACK", "delete": "DELETE FROM acct WHERE id = 1; COMMIT"}
# What a claim gets that waits for another with fence 9, by its fence and by how the other transaction ends.
READ_COMMITTED = {
    (12, "commit"): [(12,)],
    (5, "commit"): [],
    (12, "rollback"): [(12,)],
    (5, "rollback"): [(5,)],
    (12, "delete"): "P0002",
    (5, "delete"): "P0002",
}
# The stricter levels cannot see what has changed since their snapshot.
SNAPSHOT = {(fence, end): answer if end == "rollback" else "40001" for (fence, end), answer in READ_COMMITTED.items()}


@pytest.mark.parametrize("level", LEVELS)
def test_a_claim_that_waits_for_another_gets_what_its_level_says(acct, sessions, eventually, level):
    one, two = sessions
    outcomes = {}
    for fence, end in READ_COMMITTED:
        acct.execute("DELETE FROM acct WHERE id = 1; INSERT INTO acct (id) VALUES (1)")
        one.execute("BEGIN")
        one.execute(CLAIM, (1, 9))
        two.execute(f"BEGIN ISOLATION LEVEL {level}")
        other = Other(two, CLAIM, (1, fence)).waits_for_a_lock(acct, eventually)
        one.execute(ENDS[end])
        outcomes[fence, end] = other.ended()
        two.execute("ROLLBACK")
    assert outcomes == (READ_COMMITTED if level == "READ COMMITTED" else SNAPSHOT)


@pytest.mark.parametrize("level", LEVELS)
def test_a_write_that_waits_for_a_newer_claim_is_refused(acct, sessions, eventually, level):
    one, two = sessions
    acct.execute(CLAIM, (1, 5))
    one.execute("BEGIN")
    one.execute(CLAIM, (1, 9))
    two.execute(f"BEGIN ISOLATION LEVEL {level}")
    other = Other(two, UPDATE, (1, 5)).waits_for_a_lock(acct, eventually)
    one.execute("COMMIT")
    assert other.ended() == ([(False,)] if level == "READ COMMITTED" else "40001")
    two.execute("ROLLBACK")
    assert acct.execute("SELECT fence, bal FROM acct WHERE id = 1").fetchone() == (9, 10)


@pytest.mark.parametrize("level", LEVELS)
def test_a_snapshot_from_before_the_claim_is_no_way_round_it(acct, sessions, level):
    one, two = sessions
    two.execute(f"BEGIN ISOLATION LEVEL {level}")
    two.execute("SELECT * FROM acct")
    one.execute(CLAIM, (1, 9))
    assert Other(two, CLAIM, (1, 5)).ended() == ([] if level == "READ COMMITTED" else "40001")
    two.execute("ROLLBACK")
    assert Other(two, CLAIM, (1, 12)).ended() == [(12,)], "the whole transaction, tried again, succeeds"


@pytest.mark.parametrize("level", LEVELS)
def test_within_an_old_snapshot_stale_unclaimed_and_missing_keep_their_names(acct, sessions, level):
    one, two = sessions
    one.execute(CLAIM, (1, 9))
    two.execute(f"BEGIN ISOLATION LEVEL {level}")
    two.execute("SELECT * FROM acct")
    assert Other(two, CLAIM, (1, 5)).ended() == []
    two.execute("SAVEPOINT s")
    assert Other(two, UPDATE, (1, 12)).ended() == "LF002"
    two.execute("ROLLBACK TO s")
    assert Other(two, UPDATE, (77, 12)).ended() == "P0002"
    two.execute("ROLLBACK")


def test_a_row_deleted_and_inserted_again_while_a_claim_waits_is_claimed(acct, sessions, eventually):
    one, two = sessions
    one.execute("BEGIN; DELETE FROM acct WHERE id = 1; INSERT INTO acct (id) VALUES (1)")
    other = Other(two, CLAIM, (1, 5)).waits_for_a_lock(acct, eventually)
    one.execute("COMMIT")
    assert other.ended() == [(5,)]


def test_a_row_deleted_and_inserted_again_with_a_newer_fence_is_stale(acct, sessions, eventually):
    one, two = sessions
    one.execute("BEGIN; DELETE FROM acct WHERE id = 1; INSERT INTO acct (id, fence) VALUES (1, 9)")
    other = Other(two, CLAIM, (1, 5)).waits_for_a_lock(acct, eventually)
    one.execute("COMMIT")
    assert other.ended() == []


def test_a_key_moved_to_another_row_while_a_claim_waits_is_found_there(acct, sessions, eventually):
    one, two = sessions
    one.execute("BEGIN; UPDATE acct SET id = 70 WHERE id = 1; INSERT INTO acct (id, bal) VALUES (1, 77)")
    other = Other(two, "SELECT fence, bal FROM fenced_claim(NULL::acct, 1, 5)").waits_for_a_lock(acct, eventually)
    one.execute("COMMIT")
    assert other.ended() == [(5, 77)]
    assert acct.execute("SELECT fence FROM acct WHERE id = 70").fetchone() == (0,)


def test_a_lock_timeout_reaches_the_caller(acct, sessions):
    one, two = sessions
    one.execute("BEGIN")
    one.execute(CLAIM, (1, 9))
    two.execute("SET lock_timeout = '50ms'")
    assert Other(two, CLAIM, (1, 12)).ended() == "55P03"
    two.execute("SET lock_timeout = 0; SET statement_timeout = '50ms'")
    assert Other(two, CLAIM, (1, 12)).ended() == "57014"
    one.execute("ROLLBACK")
    two.execute("SET statement_timeout = 0")
    assert Other(two, CLAIM, (1, 12)).ended() == [(12,)]


def test_a_cancel_reaches_the_caller(acct, sessions, eventually):
    one, two = sessions
    one.execute("BEGIN")
    one.execute(CLAIM, (1, 9))
    other = Other(two, CLAIM, (1, 12)).waits_for_a_lock(acct, eventually)
    acct.execute("SELECT pg_cancel_backend(%s)", (two.info.backend_pid,))
    assert other.ended() == "57014"
    one.execute("COMMIT")
    assert acct.execute("SELECT fence FROM acct WHERE id = 1").fetchone() == (9,)


def test_a_deadlock_reaches_one_caller_and_the_other_goes_on(acct, sessions, eventually):
    one, two = sessions
    for session in sessions:
        session.execute("SET deadlock_timeout = '50ms'; BEGIN")
    one.execute(CLAIM, (1, 9))
    two.execute(CLAIM, (2, 9))
    first = Other(one, CLAIM, (2, 10)).waits_for_a_lock(acct, eventually)
    second = Other(two, CLAIM, (1, 10))
    eventually(lambda: "40P01" in (first.outcome, second.outcome))
    for session, statement in ((one, first), (two, second)):
        if statement.outcome == "40P01":
            session.execute("ROLLBACK")
    assert sorted([str(first.ended()), str(second.ended())]) == ["40P01", "[(10,)]"]


def test_calls_of_many_claims_never_wait_in_a_circle(acct, connect, eventually):
    blocker, one, two = connect(), connect(), connect()
    blocker.execute("BEGIN; SELECT FROM acct WHERE id = 2 FOR UPDATE")
    many = "SELECT id FROM fenced_claim_many(NULL::acct, %s, %s)"
    first = Other(one, many, ([1, 2, 3], 5)).waits_for_a_lock(acct, eventually)
    second = Other(two, many, ([3, 2, 1], 6)).waits_for_a_lock(acct, eventually)
    blocker.execute("COMMIT")
    assert (first.ended(), second.ended()) == ([(1,), (2,), (3,)], [(1,), (2,), (3,)])


INSERTING = {
    "claim": "SELECT fence FROM fenced_claim_or_insert(NULL::acct, %s, %s, '{\"bal\": 11}')",
    "upsert": "SELECT fenced_upsert('acct', %s, %s, '{\"bal\": 11}')",
}
ENDS_OF_INSERTER = {
    "commit": "COMMIT",
    "rollback": "ROLLBACK",
    "delete": "DELETE FROM acct WHERE id = 7; COMMIT",
    "another key": "UPDATE acct SET id = 8 WHERE id = 7; COMMIT",
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("how", INSERTING)
def test_of_two_inserters_the_second_waits_and_then_claims_or_is_stale(acct, sessions, eventually, how, level):
    one, two = sessions
    seen, left = {}, {}
    for fence in (12, 5):
        for end, statements in ENDS_OF_INSERTER.items():
            acct.execute("DELETE FROM acct WHERE id IN (7, 8)")
            one.execute("BEGIN")
            one.execute(INSERTING[how], (7, 9))
            two.execute(f"BEGIN ISOLATION LEVEL {level}")
            other = Other(two, INSERTING[how], (7, fence)).waits_for_a_lock(acct, eventually)
            one.execute(statements)
            seen[fence, end] = other.ended()
            two.execute("ROLLBACK" if isinstance(seen[fence, end], str) else "COMMIT")
            left[fence, end] = acct.execute("SELECT fence FROM acct WHERE id = 7").fetchall()
    accepted = lambda fence: [(fence,)] if how == "claim" else [(True,)]
    stale = [] if how == "claim" else [(False,)]
    inserts = {(fence, end): accepted(fence) for fence in (12, 5) for end in ("rollback", "delete", "another key")}
    if level == "READ COMMITTED":
        assert seen == inserts | {(12, "commit"): accepted(12), (5, "commit"): stale}
    else:
        assert seen == inserts | {(12, "commit"): "40001", (5, "commit"): "40001"}
    stored = {(fence, end): [(fence,)] for fence, end in inserts}
    assert left == stored | {(12, "commit"): [(12 if level == "READ COMMITTED" else 9,)], (5, "commit"): [(9,)]}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("how", INSERTING)
def test_a_row_that_was_inserted_since_the_snapshot_is_a_serialization_failure_and_not_blocked(acct, sessions, how, level):
    one, two = sessions
    two.execute(f"BEGIN ISOLATION LEVEL {level}")
    two.execute("SELECT * FROM acct")
    one.execute(INSERTING[how], (7, 9))
    outcome = Other(two, INSERTING[how], (7, 12)).ended()
    two.execute("ROLLBACK")
    accepted = [(12,)] if how == "claim" else [(True,)]
    assert outcome == (accepted if level == "READ COMMITTED" else "40001")
    assert Other(two, INSERTING[how], (7, 12)).ended() == accepted, "the whole transaction, tried again, succeeds"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("how", INSERTING)
def test_a_row_of_ones_own_transaction_is_found_at_every_level(acct, sessions, how, level):
    one, _ = sessions
    one.execute(f"BEGIN ISOLATION LEVEL {level}")
    one.execute("SELECT * FROM acct")
    accepted = lambda fence: [(fence,)] if how == "claim" else [(True,)]
    for fence in (5, 6):
        assert one.execute(INSERTING[how], (7, fence)).fetchall() == accepted(fence)
    one.execute("SAVEPOINT s; DELETE FROM acct WHERE id = 7")
    assert one.execute(INSERTING[how], (7, 3)).fetchall() == accepted(3)
    one.execute("ROLLBACK TO s")
    assert one.execute(INSERTING[how], (7, 3)).fetchall() == ([] if how == "claim" else [(False,)])
    one.execute("COMMIT")


@pytest.mark.parametrize("how", INSERTING)
def test_a_row_that_is_deleted_while_the_call_waits_for_it_is_inserted(acct, sessions, eventually, how):
    one, two = sessions
    one.execute("BEGIN; DELETE FROM acct WHERE id = 1")
    other = Other(two, INSERTING[how], (1, 5)).waits_for_a_lock(acct, eventually)
    one.execute("COMMIT")
    assert other.ended() == ([(5,)] if how == "claim" else [(True,)])
    assert acct.execute("SELECT fence, bal FROM acct WHERE id = 1").fetchone() == (5, 11)


@pytest.mark.parametrize("how", INSERTING)
def test_whoever_waits_for_an_inserter_can_give_up(acct, sessions, eventually, how):
    one, two = sessions
    one.execute("BEGIN")
    one.execute(INSERTING[how], (7, 9))
    two.execute("SET lock_timeout = '50ms'")
    assert Other(two, INSERTING[how], (7, 12)).ended() == "55P03"
    two.execute("SET lock_timeout = 0")
    other = Other(two, INSERTING[how], (7, 12)).waits_for_a_lock(acct, eventually)
    acct.execute("SELECT pg_cancel_backend(%s)", (two.info.backend_pid,))
    assert other.ended() == "57014"
    one.execute("ROLLBACK")
    assert acct.execute("SELECT count(*) FROM acct WHERE id = 7").fetchone() == (0,)


def test_inserters_of_two_keys_in_opposite_order_get_a_deadlock_error(acct, sessions, eventually):
    one, two = sessions
    for session, key in ((one, 7), (two, 8)):
        session.execute("SET deadlock_timeout = '50ms'; BEGIN")
        session.execute(INSERTING["claim"], (key, 9))
    first = Other(one, INSERTING["claim"], (8, 10)).waits_for_a_lock(acct, eventually)
    second = Other(two, INSERTING["claim"], (7, 10))
    eventually(lambda: "40P01" in (first.outcome, second.outcome))
    for session, statement in ((one, first), (two, second)):
        if statement.outcome == "40P01":
            session.execute("ROLLBACK")
    assert sorted([str(first.ended()), str(second.ended())]) == ["40P01", "[(10,)]"]


def test_many_inserters_of_one_key_at_once_leave_one_row_with_the_largest_fence(acct, connect):
    sessions = [connect() for _ in range(4)]
    for key in range(100, 120):
        fences = [key * 10 + n for n in range(4)]
        how = "upsert" if key % 2 else "claim"
        others = [Other(session, INSERTING[how], (key, fence)) for session, fence in zip(sessions, fences, strict=True)]
        outcomes = [other.ended() for other in others]
        accepted = [(fences[-1],)] if how == "claim" else [(True,)]
        assert outcomes[-1] == accepted and not any(isinstance(seen, str) for seen in outcomes)
        assert acct.execute("SELECT fence, bal FROM acct WHERE id = %s", (key,)).fetchall() == [(fences[-1], 11)]


def test_two_claims_at_once_leave_the_larger_fence(acct, connect):
    sessions = [connect() for _ in range(4)]
    for round_number in range(1, 26):
        base = round_number * 10
        others = [Other(session, CLAIM, (1, base + n)) for n, session in enumerate(sessions)]
        outcomes = [other.ended() for other in others]
        assert outcomes[-1] == [(base + 3,)]
        assert all(outcome in ([], [(base + n,)]) for n, outcome in enumerate(outcomes))
        assert acct.execute("SELECT fence FROM acct WHERE id = 1").fetchone() == (base + 3,)


def test_a_savepoint_undoes_a_claim_and_its_lock(acct, sessions):
    one, two = sessions
    acct.execute(CLAIM, (1, 5))
    one.execute("BEGIN; SAVEPOINT s")
    one.execute(CLAIM, (1, 9))
    assert one.execute(UPDATE, (1, 9)).fetchone() == (True,)
    one.execute("ROLLBACK TO s")
    assert Other(two, CLAIM, (1, 6)).ended() == [(6,)], "the other session does not wait"
    assert one.execute(CLAIM, (1, 7)).fetchall() == [(7,)]
    one.execute("COMMIT")
    assert acct.execute("SELECT fence, bal FROM acct WHERE id = 1").fetchone() == (7, 10)


def test_a_caught_error_undoes_what_was_let_through(acct):
    acct.execute("""DO $$ BEGIN
        PERFORM * FROM fenced_claim(NULL::acct, 1, 5);
        BEGIN
            PERFORM * FROM fenced_claim(NULL::acct, 1, 9);
            PERFORM fenced_update('acct', 1, 9, '{"bal": 99}');
            RAISE 'undo';
        EXCEPTION WHEN raise_exception THEN NULL; END;
        PERFORM fenced_update('acct', 1, 5, '{"bal": 11}');
    END $$""")
    assert acct.execute("SELECT fence, bal FROM acct WHERE id = 1").fetchone() == (5, 11)


def test_two_calls_in_one_statement_each_do_what_they_say(acct):
    acct.execute(CLAIM, (1, 5))
    update = "SELECT fenced_update('acct', 1, 5, jsonb_build_object('bal', {}))"
    assert acct.execute(f"WITH a AS ({update.format(1)}), b AS ({update.format(2)}) SELECT * FROM a, b").fetchall() == [(True, True)]
    assert acct.execute("SELECT fence, bal FROM acct WHERE id = 1").fetchone() in ((5, 1), (5, 2))


def test_a_call_per_row_of_a_query_writes_each_row_once(acct):
    acct.execute("INSERT INTO acct SELECT n FROM generate_series(4, 1000) n")
    acct.execute("CREATE TABLE log (id int); CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO log VALUES (NEW.id); RETURN NEW; END $$")
    acct.execute("CREATE TRIGGER note AFTER UPDATE ON acct FOR EACH ROW EXECUTE FUNCTION note()")
    assert acct.execute("SELECT count(*) FROM (SELECT fenced_write('acct', id, 5, '{\"bal\": 1}') AS done FROM acct) AS t WHERE done").fetchone() == (1000,)
    assert acct.execute("SELECT count(*), count(DISTINCT id) FROM log").fetchone() == (1000, 1000)


def test_a_call_that_the_query_never_reaches_does_nothing(acct):
    acct.execute("SELECT fenced_write('acct', 1, 5, '{\"bal\": 1}') FROM acct WHERE false")
    acct.execute("SELECT fenced_write('acct', 1, 5, '{\"bal\": 1}') FROM acct LIMIT 0")
    acct.execute("SELECT FROM acct WHERE false AND fenced_write('acct', 1, 5, '{\"bal\": 1}')")
    assert acct.execute("SELECT fence, bal FROM acct WHERE id = 1").fetchone() == (0, 10)


@pytest.mark.parametrize("end", ["COMMIT PREPARED 'p'", "ROLLBACK PREPARED 'p'"])
def test_a_prepared_transaction_keeps_its_claim(make_pg, eventually, end):
    server = make_pg(settings={"max_prepared_transactions": "5"})
    with psycopg.connect(server.url(), autocommit=True) as one, psycopg.connect(server.url(), autocommit=True) as two:
        one.execute("CREATE EXTENSION pg_fence; CREATE TABLE acct (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, bal int)")
        one.execute("INSERT INTO acct VALUES (1)")
        one.execute("BEGIN")
        one.execute(CLAIM, (1, 9))
        one.execute("PREPARE TRANSACTION 'p'")
        other = Other(two, CLAIM, (1, 5))
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        eventually(lambda: one.execute(waits).fetchone() == (1,))
        one.execute(end)
        assert other.ended() == ([] if end.startswith("COMMIT") else [(5,)])


@pytest.mark.parametrize("call", ["SELECT * FROM fenced_claim(NULL::acct, 1, 5)", "SELECT fenced_write('acct', 1, 5, '{\"bal\": 1}')"])
def test_a_read_only_transaction_refuses_the_write(acct, call):
    acct.execute("BEGIN READ ONLY")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        acct.execute(call)
    acct.execute("ROLLBACK")


def test_a_claim_in_an_open_transaction_is_no_claim_for_others_until_it_commits(acct, sessions):
    one, two = sessions
    one.execute("BEGIN")
    one.execute(CLAIM, (1, 9))
    assert Other(two, UPDATE, (1, 9)).ended() == "LF002"
    one.execute("ROLLBACK")
    assert Other(two, CLAIM, (1, 5)).ended() == [(5,)]


@others_in_long_runs
@pytest.mark.parametrize(
    "call",
    [
        "fenced_claim(NULL::acct, 1, 5)",
        "fenced_claim_many(NULL::acct, ARRAY[1], 5)",
        "fenced_update_returning(NULL::acct, 1, 5, '{\"bal\": 11}')",
    ],
)
@pytest.mark.parametrize(
    ("change", "ended"),
    [
        ("DROP bal", ("0A000",)),
        ("ADD more int", ("0A000",)),
        ("DROP bal, ADD bal text", ("0A000",)),
        # Most servers wait with the query itself until they know the new type.
        ("ALTER bal TYPE text", ([(1, 5, "10")], [(1, 5, "11")], "0A000")),
    ],
)
def test_a_table_that_is_altered_while_a_call_waits_gives_no_row_of_other_columns(acct, connect, eventually, call, change, ended):
    caller = connect()
    # Only a session that knows the table begins its query while the table is locked.
    caller.execute("SELECT * FROM fenced_claim(NULL::acct, 1, 5)")
    with connect(autocommit=False) as altering:
        altering.execute(f"ALTER TABLE acct {change}")
        waiting = Other(caller, f"SELECT * FROM {call}").waits_for_a_lock(acct, eventually)
        altering.commit()
    assert waiting.ended() in ended
