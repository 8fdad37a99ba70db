"""Many rows of a protected table in one call: each passes once, by what it is, and nothing that runs inside profits."""

import pytest
from psycopg.types.json import Jsonb

from majors import others_in_long_runs
from refusals import outcome, refusal

UPDATE = "SELECT ordinal, verdict, stored_fence FROM fenced_update_many('acct', %s, %s, %s)"
PATCH = Jsonb({"bal": 1})


@pytest.fixture
def acct(db):
    """A connection to a protected table with nine rows at fence 5, and one for others."""
    db.execute("CREATE TABLE acct (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, bal int NOT NULL DEFAULT 0)")
    db.execute("INSERT INTO acct SELECT n, 5 FROM generate_series(1, 9) n; SELECT fence_protect('acct')")
    return db


def rows(db):
    return db.execute("SELECT id, fence, bal FROM acct ORDER BY id").fetchall()


BEFORE = [(n, 5, 0) for n in range(1, 10)]


def test_the_call_passes_for_each_of_its_rows(acct):
    assert acct.execute(UPDATE, ([3, 1, 2, 77], [5, 5, 4, 5], PATCH)).fetchall() == [(1, "written", 5), (2, "written", 5), (3, "stale", 5), (4, "missing", None)]
    assert acct.execute("SELECT verdict FROM fenced_write_many('acct', ARRAY[9, 2], '{6}', '{\"bal\": 2}')").fetchall() == [("written",)] * 2
    assert acct.execute("SELECT verdict FROM fenced_delete_many('acct', ARRAY[9, 2, 4], '{6,6,5}')").fetchall() == [("written",)] * 3
    assert rows(acct) == [(1, 5, 1), (3, 5, 1), *[(n, 5, 0) for n in range(5, 9)]]
    for plain in ("UPDATE acct SET bal = 7 WHERE id = 1", "DELETE FROM acct WHERE id = 1"):
        assert outcome(acct, plain) == "LF003"


def test_partitions_too(db):
    db.execute("CREATE TABLE acct (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, bal int NOT NULL DEFAULT 0) PARTITION BY RANGE (id)")
    db.execute("CREATE TABLE a PARTITION OF acct FOR VALUES FROM (0) TO (5); CREATE TABLE b PARTITION OF acct FOR VALUES FROM (5) TO (50)")
    db.execute("INSERT INTO acct SELECT n, 5 FROM generate_series(1, 9) n; SELECT fence_protect('acct')")
    assert db.execute(UPDATE, ([9, 1], [5], PATCH)).fetchall() == [(1, "written", 5), (2, "written", 5)]
    # A partition by its own name is a table like any other.
    assert db.execute("SELECT verdict FROM fenced_update_many('b', ARRAY[9, 8, 1], '{5}', '{\"bal\": 3}')").fetchall() == [("written",), ("written",), ("missing",)]
    assert rows(db) == [(1, 5, 1), *BEFORE[1:7], (8, 5, 3), (9, 5, 3)]


WRITES = {
    "a later row of the call": "UPDATE acct SET bal = 66 WHERE id = 3",
    "an earlier row of the call": "UPDATE acct SET bal = 66 WHERE id = 1",
    "a row that is not of the call": "UPDATE acct SET bal = 66 WHERE id = 8",
    "the fence of a row of the call": "UPDATE acct SET fence = 1 WHERE id = 3",
    "a row of the call by a deletion": "DELETE FROM acct WHERE id = 3",
    "all rows": "UPDATE acct SET bal = 66",
}
WHEN = {
    "before each row": "BEFORE UPDATE ON {} FOR EACH ROW WHEN (OLD.id = 2 AND pg_trigger_depth() = 0)",
    "after each row": "AFTER UPDATE ON {} FOR EACH ROW WHEN (OLD.id = 2 AND pg_trigger_depth() = 0)",
    "before the statement": "BEFORE UPDATE ON {} FOR EACH STATEMENT WHEN (pg_trigger_depth() = 0)",
    "after the statement": "AFTER UPDATE ON {} FOR EACH STATEMENT WHEN (pg_trigger_depth() = 0)",
}


@others_in_long_runs
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("write", WRITES)
def test_a_trigger_inside_writes_nothing_with_the_passes_of_the_call(acct, when, write):
    acct.execute(f"CREATE FUNCTION sly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {WRITES[write]}; RETURN NEW; END $$")
    acct.execute(f"CREATE TRIGGER sly {WHEN[when].format('acct')} EXECUTE FUNCTION sly()")
    assert refusal(acct, UPDATE, ([1, 2, 3, 4], [5], PATCH)).sqlstate == "LF003"
    assert rows(acct) == BEFORE


@pytest.mark.parametrize("when", WHEN)
def test_a_trigger_that_catches_the_refusal_has_written_nothing(acct, when):
    acct.execute("""CREATE FUNCTION sly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        BEGIN UPDATE acct SET bal = 66 WHERE id IN (3, 8); EXCEPTION WHEN OTHERS THEN NULL; END; RETURN NEW; END $$""")
    acct.execute(f"CREATE TRIGGER sly {WHEN[when].format('acct')} EXECUTE FUNCTION sly()")
    assert acct.execute(UPDATE, ([1, 2, 3, 4], [5], PATCH)).fetchall() == [(n, "written", 5) for n in range(1, 5)]
    assert rows(acct) == [(n, 5, 1) for n in range(1, 5)] + BEFORE[4:]


def test_a_call_inside_a_call_has_passes_of_its_own(acct):
    acct.execute("""CREATE TABLE mine (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 5, v int); INSERT INTO mine (id) VALUES (1), (2); SELECT fence_protect('mine');
        CREATE FUNCTION also() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            PERFORM * FROM fenced_update_many('mine', ARRAY[2, 1], '{5}', jsonb_build_object('v', NEW.id)); RETURN NEW; END $$;
        CREATE TRIGGER also BEFORE UPDATE ON acct FOR EACH ROW EXECUTE FUNCTION also()""")
    assert acct.execute(UPDATE, ([1, 2, 3], [5], PATCH)).fetchall() == [(n, "written", 5) for n in range(1, 4)]
    assert acct.execute("SELECT v FROM mine").fetchall() == [(3,), (3,)]


SPENT = {
    "a row that is written later": "(0,3)",
    "a row that is not written": "(0,8)",
}


@pytest.mark.parametrize("row", SPENT)
def test_a_policy_that_spends_a_pass_by_hand_gains_nothing(acct, row):
    """It calls what the triggers call, in the query of the change itself."""
    acct.execute("CREATE ROLE app; GRANT ALL ON acct TO app; ALTER TABLE acct ENABLE ROW LEVEL SECURITY")
    acct.execute(f"CREATE POLICY p ON acct USING (id <> 2 OR fence_internals.refuses_update('acct'::regclass, '{SPENT[row]}', NULL, 5, 5, NULL, NULL) IS NOT NULL)")
    acct.execute("SET ROLE app")
    try:
        answer = outcome(acct, UPDATE, ([1, 2, 3, 4], [5], PATCH))
    finally:
        acct.execute("RESET ROLE; DROP POLICY p ON acct; ALTER TABLE acct DISABLE ROW LEVEL SECURITY; DROP OWNED BY app CASCADE; DROP ROLE app")
    assert (answer, rows(acct)) in [("LF003", BEFORE), (4, [(n, 5, 1) for n in range(1, 5)] + BEFORE[4:])]


def test_a_trigger_that_puts_a_fence_back_ends_the_call(acct):
    acct.execute("""CREATE FUNCTION back() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.fence := OLD.fence; RETURN NEW; END';
        CREATE TRIGGER back BEFORE UPDATE ON acct FOR EACH ROW WHEN (OLD.id = 3) EXECUTE FUNCTION back()""")
    assert refusal(acct, "SELECT * FROM fenced_write_many('acct', ARRAY[2, 3], '{6}', '{\"bal\": 1}')").sqlstate == "LF004"
    assert rows(acct) == BEFORE


def test_a_cascade_does_not_pass(acct):
    acct.execute("CREATE TABLE child (id int PRIMARY KEY, of int REFERENCES acct ON DELETE CASCADE, fence bigint NOT NULL DEFAULT 5); INSERT INTO child VALUES (1, 1); SELECT fence_protect('child')")
    assert refusal(acct, "SELECT * FROM fenced_delete_many('acct', ARRAY[1, 2], '{5}')").sqlstate == "LF003"
    assert rows(acct) == BEFORE


def test_fence_use_and_a_call_of_many_live_side_by_side(acct):
    acct.execute("CREATE FUNCTION also() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN UPDATE acct SET bal = bal + 10 WHERE id = 9; RETURN NEW; END'; CREATE TRIGGER also AFTER UPDATE ON acct FOR EACH ROW WHEN (OLD.id < 9) EXECUTE FUNCTION also()")
    with acct.transaction():
        acct.execute("SELECT fence_use(5)")
        assert acct.execute(UPDATE, ([1, 2], [5], PATCH)).fetchall() == [(1, "written", 5), (2, "written", 5)]
    assert rows(acct)[-1] == (9, 5, 20)
