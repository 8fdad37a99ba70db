"""Many rows in one call beside other sessions: no two calls wait in a circle, and a row that was stamped meanwhile is judged by
its new stamp."""

import psycopg
import pytest
from psycopg.types.json import Jsonb

from majors import others_in_long_runs
from refusals import refusal
from test_pg_isolation import Other

UPDATE = "SELECT ordinal, verdict, stored_fence FROM fenced_update_many('acct', %s, %s, %s)"
WRITE = "SELECT ordinal, verdict, stored_fence FROM fenced_write_many('acct', %s, %s, %s)"
DELETE = "SELECT ordinal, verdict, stored_fence FROM fenced_delete_many('acct', %s, %s)"
KEYS = {"int": ("n", "n"), "text": ("'k' || n", "n"), "numeric": ("n / 2.0", "n")}


@pytest.fixture
def acct(db):
    """A connection to a table with nine rows at fence 5."""
    db.execute("CREATE TABLE acct (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, bal int NOT NULL DEFAULT 0)")
    db.execute("INSERT INTO acct SELECT n, 5 FROM generate_series(1, 9) n")
    return db


@others_in_long_runs
@pytest.mark.parametrize("call", ["update", "write", "delete"])
@pytest.mark.parametrize("kind", ["plain", "partitioned", "grown since"])
def test_two_calls_in_opposite_orders_never_wait_in_a_circle(acct, connect, eventually, call, kind):
    """One holds the first rows and waits for the middle one; the other, which names them the other way round, waits for the
    first row and not behind the first call with the last rows locked."""
    if kind == "partitioned":
        acct.execute("DROP TABLE acct; CREATE TABLE acct (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 5, bal int) PARTITION BY HASH (id)")
        acct.execute("CREATE TABLE h0 PARTITION OF acct FOR VALUES WITH (MODULUS 2, REMAINDER 0); CREATE TABLE h1 PARTITION OF acct FOR VALUES WITH (MODULUS 2, REMAINDER 1); INSERT INTO acct (id) SELECT generate_series(1, 9)")
    blocker, one, two = connect(), connect(), connect()
    if kind == "grown since":
        # Both sessions have planned their statements for a table of one row, with an index in the other order.
        acct.execute("DELETE FROM acct WHERE id > 1; CREATE INDEX ON acct (id DESC, bal); CREATE INDEX ON acct (fence); ANALYZE acct")
        for session in (one, two):
            session.execute("SELECT FROM fenced_update_many('acct', ARRAY[1], '{5}', '{\"bal\": 0}'), fenced_write_many('acct', ARRAY[1], '{5}', '{\"bal\": 0}'), fenced_delete_many('acct', ARRAY[99], '{5}')")
        acct.execute("INSERT INTO acct SELECT n, 5 FROM generate_series(2, 9) n")
    blocker.execute("BEGIN; SELECT FROM acct WHERE id = 5 FOR UPDATE")

    def start(session, keys, fence):
        sql, patches = {"update": (UPDATE, [Jsonb({"bal": 1})]), "write": (WRITE, [Jsonb({"bal": 1})]), "delete": (DELETE, [])}[call]
        return Other(session, sql, (keys, [fence], *patches))

    forth, back = list(range(1, 10)), list(range(9, 0, -1))
    first = start(one, forth, 5).waits_for_a_lock(acct, eventually)
    second = start(two, back, 5).waits_for_a_lock(acct, eventually)
    assert acct.execute("SELECT pg_blocking_pids(%s)", (two.info.backend_pid,)).fetchone()[0] == [one.info.backend_pid]
    blocker.execute("COMMIT")
    all_written = [(n, "written", None if call == "delete" else 5) for n in range(1, 10)]
    assert first.ended() == all_written
    assert second.ended() == ([(n, "missing", None) for n in range(1, 10)] if call == "delete" else all_written)


CHANGES = {
    "stamped": ("SELECT FROM fenced_claim(NULL::acct, 2, 9)", {"update": (2, "stale", 9), "write": (2, "stale", 9), "delete": (2, "stale", 9)}),
    "deleted": ("SELECT fenced_delete('acct', 2, 5)", {"update": (2, "missing", None), "write": (2, "missing", None), "delete": (2, "missing", None)}),
    "written": ("SELECT fenced_update('acct', 2, 5, '{\"bal\": 7}')", {"update": (2, "written", 5), "write": (2, "written", 5), "delete": (2, "written", None)}),
    "reset": ("SELECT fence_reset('acct', 2, 1)", {"update": (2, "unclaimed", 1), "write": (2, "written", 5), "delete": (2, "unclaimed", 1)}),
    "deleted and inserted again": ("DELETE FROM acct WHERE id = 2; INSERT INTO acct VALUES (2, 5, 3)", {"update": (2, "written", 5), "write": (2, "written", 5), "delete": (2, "written", None)}),
    "deleted and inserted again by a newer holder": ("DELETE FROM acct WHERE id = 2; INSERT INTO acct VALUES (2, 9, 3)", {"update": (2, "stale", 9), "write": (2, "stale", 9), "delete": (2, "stale", 9)}),
    "moved to another key": ("UPDATE acct SET id = 22 WHERE id = 2", {"update": (2, "missing", None), "write": (2, "missing", None), "delete": (2, "missing", None)}),
}
CALLS = {"update": (UPDATE, [Jsonb({"bal": 1})]), "write": (WRITE, [Jsonb({"bal": 1})]), "delete": (DELETE, [])}


@others_in_long_runs
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_row_that_changes_while_the_call_waits_is_judged_as_it_is_then(acct, connect, eventually, call, change, end):
    other, waiter = connect(), connect()
    statements, verdicts = CHANGES[change]
    sql, patches = CALLS[call]
    other.execute("BEGIN")
    other.execute(statements)
    running = Other(waiter, sql, ([1, 2, 3], [5], *patches)).waits_for_a_lock(acct, eventually)
    other.execute(end)
    written = None if call == "delete" else 5
    expected = verdicts[call] if end == "COMMIT" else (2, "written", written)
    assert running.ended() == [(1, "written", written), expected, (3, "written", written)]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_serialization_failure_ends_the_call(acct, connect, level):
    other = connect()
    acct.execute(f"BEGIN ISOLATION LEVEL {level}; SELECT FROM acct")
    other.execute("SELECT FROM fenced_claim(NULL::acct, 2, 9)")
    assert refusal(acct, UPDATE, ([1, 2], [5], Jsonb({"bal": 1}))).sqlstate == "40001"
    acct.execute("ROLLBACK")
    assert acct.execute("SELECT sum(bal) FROM acct").fetchone() == (0,)


def test_a_deadlock_with_plain_sql_ends_the_call(acct, connect, eventually):
    other, waiter = connect(), connect()
    other.execute("BEGIN; UPDATE acct SET bal = 1 WHERE id = 2")
    running = Other(waiter, UPDATE, ([1, 2], [5], Jsonb({"bal": 1}))).waits_for_a_lock(acct, eventually)
    plain = Other(other, "UPDATE acct SET bal = 1 WHERE id = 1 RETURNING 1")
    outcomes = [running, plain]
    eventually(lambda: "40P01" in [outcome.outcome for outcome in outcomes])
    other.execute("ROLLBACK")
    assert sorted([str(running.ended()), str(plain.ended())])[0].startswith(("40P01", "["))


def test_a_lock_timeout_ends_the_call(acct, connect):
    connect().execute("BEGIN; UPDATE acct SET bal = 1 WHERE id = 2")
    acct.execute("SET lock_timeout = '10ms'")
    assert refusal(acct, UPDATE, ([1, 2], [5], Jsonb({"bal": 1}))).sqlstate == "55P03"


def test_a_call_that_waits_can_be_cancelled(acct, connect, eventually):
    other, waiter = connect(), connect()
    other.execute("BEGIN; UPDATE acct SET bal = 1 WHERE id = 2")
    running = Other(waiter, UPDATE, ([1, 2], [5], Jsonb({"bal": 1}))).waits_for_a_lock(acct, eventually)
    waiter.cancel_safe()
    assert running.ended() == "57014"
    other.execute("ROLLBACK")
    assert waiter.execute(UPDATE, ([1, 2], [5], Jsonb({"bal": 1}))).fetchall() == [(1, "written", 5), (2, "written", 5)]


def test_what_the_transaction_has_done_before_is_seen(acct):
    with acct.transaction():
        acct.execute("SELECT FROM fenced_claim_many(NULL::acct, ARRAY[1, 2], 8)")
        assert acct.execute(UPDATE, ([1, 2, 3], [8], Jsonb({"bal": 1}))).fetchall() == [(1, "written", 8), (2, "written", 8), (3, "unclaimed", 5)]
        with pytest.raises(psycopg.Error), acct.transaction():
            acct.execute(WRITE, ([3, 4], [8], Jsonb({"bal": 1})))
            acct.execute("SELECT 1 / 0")
        assert acct.execute(UPDATE, ([3], [8], Jsonb({"bal": 1}))).fetchall() == [(1, "unclaimed", 5)]
