"""Many rows in one call: a verdict on each, which is what the call for that row alone would have come to."""

import json

import psycopg
import pytest
from psycopg.types.json import Jsonb

from majors import others_in_long_runs
from refusals import refusal

PATCH = {"bal": 99}
UPDATE = "SELECT * FROM fenced_update_many('acct', %s, %s, %s)"
WRITE = "SELECT * FROM fenced_write_many('acct', %s, %s, %s)"
DELETE = "SELECT * FROM fenced_delete_many('acct', %s, %s)"
ROWS = [(1, 5, 10), (2, 5, 20), (3, 7, 30), (4, 0, 40), (5, None, 50)]


@pytest.fixture
def acct(db):
    """A connection to a table with rows at several fences."""
    db.execute("CREATE TABLE acct (id int PRIMARY KEY, fence bigint, bal int)")
    with db.cursor() as cursor:
        cursor.executemany("INSERT INTO acct VALUES (%s, %s, %s)", ROWS)
    return db


def stored(db, table="acct"):
    return db.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()


def statements(db, table="acct"):
    """Counts the statements that write a table, from now on."""
    db.execute(f"""CREATE TABLE ran (command text);
        CREATE FUNCTION ran() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO ran VALUES (TG_OP); RETURN NULL; END';
        CREATE TRIGGER ran AFTER UPDATE OR DELETE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION ran()""")
    return lambda: db.execute("SELECT count(*) FROM ran").fetchone()[0]


def test_each_row_of_an_update_has_its_verdict(acct):
    ran = statements(acct)
    answer = acct.execute(UPDATE, ([5, 1, 77, 3, 2, 4], [5], Jsonb(PATCH))).fetchall()
    assert answer == [(1, "unclaimed", None), (2, "written", 5), (3, "missing", None), (4, "stale", 7), (5, "written", 5), (6, "unclaimed", 0)]
    assert stored(acct) == [(1, 5, 99), (2, 5, 99), *ROWS[2:]]
    assert ran() == 1, "one statement for all"


def test_each_row_of_a_write_has_its_verdict(acct):
    answer = acct.execute(WRITE, ([5, 1, 77, 3, 2, 4], [9, 5, 5, 6, 6, 6], Jsonb(PATCH))).fetchall()
    assert answer == [(1, "written", 9), (2, "written", 5), (3, "missing", None), (4, "stale", 7), (5, "written", 6), (6, "written", 6)]
    assert stored(acct) == [(1, 5, 99), (2, 6, 99), (3, 7, 30), (4, 6, 99), (5, 9, 99)]


def test_each_row_of_a_delete_has_its_verdict(acct):
    ran = statements(acct)
    answer = acct.execute(DELETE, ([5, 1, 77, 3, 2, 4], [5])).fetchall()
    assert answer == [(1, "unclaimed", None), (2, "written", None), (3, "missing", None), (4, "stale", 7), (5, "written", None), (6, "unclaimed", 0)]
    assert stored(acct) == ROWS[2:]
    assert ran() == 1


def test_each_key_has_its_fence_and_its_patch(acct):
    answer = acct.execute(UPDATE, ([3, 1, 2], [7, 5, 4], Jsonb([{"bal": 1}, {"bal": None}, {"bal": 3}]))).fetchall()
    assert answer == [(1, "written", 7), (2, "written", 5), (3, "stale", 5)]
    assert stored(acct)[:3] == [(1, 5, None), (2, 5, 20), (3, 7, 1)]


@others_in_long_runs
@pytest.mark.parametrize(
    "keys",
    ["ARRAY[2, 1]", "ARRAY[2, 1]::bigint[]", "ARRAY[2, 1]::smallint[]", "ARRAY[2.0, 1]", "ARRAY['2', '1']", "'{2,1}'", "'[2, 1]'", "'[2, 1]'::jsonb", "'[{\"id\": 2}, {\"id\": 1}]'::jsonb", "'[2, \"1\"]'::jsonb", "'[5:6]={2,1}'"],
)
def test_keys_are_an_array_in_whatever_form(acct, keys):
    answer = acct.execute(f"SELECT * FROM fenced_update_many('acct', {keys}, '{{5}}', '{{\"bal\": 99}}')").fetchall()
    assert answer == [(1, "written", 5), (2, "written", 5)]
    assert stored(acct)[:2] == [(1, 5, 99), (2, 5, 99)]


def test_keys_that_no_row_can_have_are_missing(acct):
    for keys in ("ARRAY[5000000000, 1]", "ARRAY[1.5, 1]", "'[1.5, 1]'::jsonb", "ARRAY['NaN'::float8, 1]"):
        assert acct.execute(f"SELECT * FROM fenced_update_many('acct', {keys}, '{{5}}', '{{\"bal\": 99}}')").fetchall() == [(1, "missing", None), (2, "written", 5)]


def test_composite_keys_in_each_form(db):
    db.execute("CREATE TABLE seats (plane text, seat int, guest text, fence bigint NOT NULL DEFAULT 0, PRIMARY KEY (plane, seat))")
    db.execute("INSERT INTO seats SELECT p, n, NULL, 5 FROM unnest(ARRAY['a', 'b']) p, generate_series(1, 2) n")
    forms = {
        "ARRAY[ROW('b', 1), ROW('a', 2)]": "row",
        "ARRAY['{\"plane\": \"b\", \"seat\": 1}', '{\"seat\": 2, \"plane\": \"a\"}']::jsonb[]": "objects",
        "'[{\"plane\": \"b\", \"seat\": 1}, {\"seat\": 2, \"plane\": \"a\"}]'": "text",
        "'[{\"plane\": \"b\", \"seat\": 1}, {\"seat\": 2, \"plane\": \"a\"}]'::jsonb": "json",
    }
    for keys, guest in forms.items():
        answer = db.execute(f"SELECT * FROM fenced_update_many('seats', {keys}, '{{5}}', %s)", (Jsonb([{"guest": guest + "1"}, {"guest": guest + "2"}]),)).fetchall()
        assert answer == [(1, "written", 5), (2, "written", 5)], keys
        assert db.execute("SELECT plane, seat, guest FROM seats ORDER BY 1, 2").fetchall() == [("a", 1, None), ("a", 2, guest + "2"), ("b", 1, guest + "1"), ("b", 2, None)]


def test_no_keys_are_no_rows(acct):
    ran = statements(acct)
    for keys, fences, patches in [("ARRAY[]::int[]", "{}", "[]"), ("'{}'", "{5}", '{"bal": 1}'), ("'[]'::jsonb", "{}", '{"bal": 1}')]:
        assert acct.execute(f"SELECT * FROM fenced_update_many('acct', {keys}, '{fences}', '{patches}')").fetchall() == []
        assert acct.execute(f"SELECT * FROM fenced_write_many('acct', {keys}, '{fences}', '{patches}')").fetchall() == []
        assert acct.execute(f"SELECT * FROM fenced_delete_many('acct', {keys}, '{fences}')").fetchall() == []
    assert (stored(acct), ran()) == (ROWS, 0)


TWICE = 'argument "keys" names a row of table "acct" twice'
REFUSED = {
    "NULL::int[], '{5}', '{\"bal\": 1}'": ("22004", 'argument "keys" must not be null'),
    "ARRAY[1], NULL, '{\"bal\": 1}'": ("22004", 'argument "fences" must not be null'),
    "ARRAY[1], '{5}', NULL": ("22004", 'argument "patches" must not be null'),
    "1, '{5}', '{\"bal\": 1}'": ("42804", 'argument "keys" must be an array of keys, not type integer'),
    "'{\"id\": 1}'::jsonb, '{5}', '{\"bal\": 1}'": ("42804", 'argument "keys" must be an array of keys, not type jsonb'),
    "ARRAY[1, NULL], '{5}', '{\"bal\": 1}'": ("22004", 'element 2 of "keys": argument "key" must not be null'),
    "'{1,NULL}', '{5}', '{\"bal\": 1}'": ("22004", 'element 2 of "keys": argument "key" must not be null'),
    "'[1, null]'::jsonb, '{5}', '{\"bal\": 1}'": ("22004", 'element 2 of "keys": argument "key" must not be null'),
    "'[{\"id\": 1}, {\"no\": 1}]'::jsonb, '{5}', '{\"bal\": 1}'": ("22023", 'element 2 of "keys": the primary key has no column "no"'),
    "ARRAY[[1, 2], [3, 4]], '{5}', '{\"bal\": 1}'": ("22023", 'argument "keys" must be an array of one dimension'),
    "'{{1,2},{3,4}}', '{5}', '{\"bal\": 1}'": ("22023", 'argument "keys" must be an array of one dimension'),
    "ARRAY[1, 2], '{{5,5}}', '{\"bal\": 1}'": ("22023", 'argument "fences" must be an array of one dimension'),
    "ARRAY[1, 2, 3], '{5,5}', '{\"bal\": 1}'": ("22023", 'argument "fences" has 2 elements, argument "keys" has 3'),
    "ARRAY[1, 2], '{}', '{\"bal\": 1}'": ("22023", 'argument "fences" has 0 elements, argument "keys" has 2'),
    "ARRAY[1, 2], '{5}', '[{\"bal\": 1}]'": ("22023", 'argument "patches" has 1 elements, argument "keys" has 2'),
    "ARRAY[1, 2], '{5}', '[]'": ("22023", 'argument "patches" has 0 elements, argument "keys" has 2'),
    "ARRAY[1, 2], '{5,NULL}', '{\"bal\": 1}'": ("LF005", 'element 2 of "fences": the fence is null'),
    "ARRAY[1, 2], '{5,0}', '{\"bal\": 1}'": ("LF005", 'element 2 of "fences": fence 0 is out of range'),
    "ARRAY[1, 2], '{NULL}', '{\"bal\": 1}'": ("LF005", 'element 1 of "fences": the fence is null'),
    "ARRAY[1, 2, 1], '{5}', '{\"bal\": 1}'": ("22023", TWICE),
    "'[1, 1.0]'::jsonb, '{5}', '{\"bal\": 1}'": ("22023", TWICE),
    "ARRAY[5000000000, 1, 5000000000], '{5}', '{\"bal\": 1}'": ("22023", TWICE),
    "ARRAY[1, 2], '{5}', '7'": ("22023", 'argument "patches" is a JSON number, neither a JSON object nor an array'),
    "ARRAY[1, 2], '{5}', 'null'": ("22023", 'argument "patches" is a JSON null, neither a JSON object nor an array'),
    "ARRAY[1, 2], '{5}', '{}'": ("22023", "the patch names no column"),
    "ARRAY[1, 2], '{5}', '[{\"bal\": 1}, {}]'": ("22023", 'element 2 of "patches": the patch names no column'),
    "ARRAY[1, 2], '{5}', '[{}, {}]'": ("22023", 'element 1 of "patches": the patch names no column'),
    "ARRAY[1, 2], '{5}', '[{\"bal\": 1}, 7]'": ("22023", 'element 2 of "patches": the patch is a JSON number, not a JSON object'),
    "ARRAY[1, 2], '{5}', '[{\"bal\": 1}, {\"note\": 1}]'": ("22023", 'element 2 of "patches": the patch names other columns than the first'),
    "ARRAY[1, 2], '{5}', '[{\"bal\": 1}, {\"bal\": 1, \"note\": 1}]'": ("22023", 'element 2 of "patches": the patch names other columns than the first'),
    "ARRAY[1, 2], '{5}', '[{\"no\": 1}, {\"no\": 1}]'": ("42703", 'element 1 of "patches": column "no" of table "acct" does not exist'),
    "ARRAY[1, 2], '{5}', '{\"id\": 1}'": ("22023", 'the patch may not change key column "id" of table "acct"'),
    "ARRAY[1, 2], '{5}', '{\"fence\": 1}'": ("22023", 'the patch may not change fence column "fence" of table "acct"'),
    "ARRAY[1, 2], '{5}', '[{\"bal\": 1}, {\"bal\": \"x\"}]'": ("22P02", 'invalid input syntax for type integer: "x"'),
    "ARRAY[1, 2], '{5}', '{\"bal\": 1}', 'lock'": ("42703", 'table "acct" has no fence column "lock"'),
    "ARRAY[1, 2], '{5}', '{\"bal\": 1}', NULL": ("22004", 'argument "fence_column" must not be null'),
}


@pytest.mark.parametrize("function", ["fenced_update_many", "fenced_write_many"])
def test_bad_arguments_change_nothing_and_are_named(acct, function):
    acct.execute("ALTER TABLE acct ADD note text")
    for arguments, expected in REFUSED.items():
        error = refusal(acct, f"SELECT * FROM {function}('acct', {arguments})")
        assert (arguments, error.sqlstate, error.diag.message_primary) == (arguments, *expected)
    assert [row[:3] for row in stored(acct)] == ROWS


def test_a_key_twice_is_named_by_both_places(acct):
    error = refusal(acct, "SELECT * FROM fenced_delete_many('acct', ARRAY[4, 1, 2, 1], '{5}')")
    assert error.diag.message_detail == "Elements 2 and 4 are key (id)=(1)."
    assert error.diag.message_hint == "Pass each key once."
    assert error.diag.constraint_name == "key_twice"
    assert stored(acct) == ROWS


def test_equal_keys_are_those_that_the_primary_key_calls_equal(db):
    db.execute("CREATE TABLE t (id numeric PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, v int); INSERT INTO t VALUES (1.5, 5)")
    error = refusal(db, "SELECT * FROM fenced_update_many('t', ARRAY[1.50, 2, 1.5], '{5}', '{\"v\": 1}')")
    assert (error.sqlstate, error.diag.message_detail) == ("22023", "Elements 1 and 3 are key (id)=(1.50).")
    assert db.execute("SELECT * FROM fenced_update_many('t', ARRAY[1.500], '{5}', '{\"v\": 1}')").fetchall() == [(1, "written", 5)]


ENDS = {
    "a check": ("ALTER TABLE acct ADD CHECK (bal < 90)", "23514"),
    "a unique index": ("CREATE UNIQUE INDEX ON acct (bal)", "23505"),
    "a trigger's error": ("CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''no''; END'; CREATE TRIGGER t AFTER UPDATE ON acct FOR EACH ROW EXECUTE FUNCTION f()", "P0001"),
    "a right that is missing": ("CREATE ROLE few; GRANT SELECT ON acct TO few; GRANT UPDATE (fence) ON acct TO few; SET ROLE few", "42501"),
}


@pytest.mark.parametrize("reason", ENDS)
def test_an_error_of_the_server_ends_the_whole_call(acct, reason):
    prepare, sqlstate = ENDS[reason]
    acct.execute(prepare)
    try:
        assert refusal(acct, UPDATE, ([1, 2], [5], Jsonb(PATCH))).sqlstate == sqlstate
    finally:
        acct.execute("RESET ROLE")
        if "ROLE" in prepare:
            acct.execute("DROP OWNED BY few; DROP ROLE few")
    assert stored(acct) == ROWS


@pytest.mark.parametrize("keys", ["ARRAY[1]", "ARRAY[5000000000]"])
def test_the_rights_are_those_of_the_statement_even_if_no_row_is_found(acct, keys):
    acct.execute("CREATE ROLE few; GRANT SELECT (id, fence), UPDATE (fence) ON acct TO few; SET ROLE few")
    try:
        assert refusal(acct, f"SELECT * FROM fenced_update_many('acct', {keys}, '{{5}}', '{{\"bal\": 1}}')").sqlstate == "42501"
        acct.execute("RESET ROLE; GRANT UPDATE (bal) ON acct TO few; SET ROLE few")
        acct.execute(f"SELECT * FROM fenced_update_many('acct', {keys}, '{{5}}', '{{\"bal\": 1}}')")
    finally:
        acct.execute("RESET ROLE; DROP OWNED BY few; DROP ROLE few")


def test_policies_hide_rows_and_block_writes(acct):
    acct.execute("CREATE ROLE app; GRANT SELECT, UPDATE, DELETE ON acct TO app; ALTER TABLE acct ENABLE ROW LEVEL SECURITY")
    acct.execute("CREATE POLICY see ON acct FOR SELECT USING (id <> 1); CREATE POLICY change ON acct FOR UPDATE USING (id <> 2); CREATE POLICY remove ON acct FOR DELETE USING (id <> 2)")
    acct.execute("UPDATE acct SET fence = 5; UPDATE acct SET fence = 7 WHERE id = 3; SET ROLE app")
    try:
        expected = [(1, "missing", None), (2, "blocked", 5), (3, "stale", 7), (4, "written", 5)]
        assert acct.execute(UPDATE, ([1, 2, 3, 4], [5], Jsonb(PATCH))).fetchall() == expected
        assert acct.execute(WRITE, ([1, 2, 3, 4], [5], Jsonb(PATCH))).fetchall() == expected
        assert acct.execute(DELETE, ([1, 2, 3, 4], [5])).fetchall() == [*expected[:3], (4, "written", None)]
    finally:
        acct.execute("RESET ROLE; DROP OWNED BY app; DROP ROLE app")
    assert stored(acct) == [(1, 5, 10), (2, 5, 20), (3, 7, 30), (5, 5, 50)]


def test_a_policy_on_new_rows_ends_the_call(acct):
    acct.execute("CREATE ROLE app; GRANT SELECT, UPDATE ON acct TO app; ALTER TABLE acct ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON acct USING (true) WITH CHECK (bal < 90); SET ROLE app")
    try:
        assert refusal(acct, UPDATE, ([1, 2], [5], Jsonb(PATCH))).sqlstate == "42501"
    finally:
        acct.execute("RESET ROLE; DROP OWNED BY app; DROP ROLE app")
    assert stored(acct) == ROWS


def test_a_key_that_policies_do_not_let_an_index_find_is_found_in_order(db, connect):
    """Its operator could leak, so the server reads the whole table: then each row has a statement of its own."""
    db.execute("CREATE TABLE odd (id numeric PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, v int); INSERT INTO odd SELECT n, 5 FROM generate_series(1, 20) n")
    db.execute("CREATE ROLE app; GRANT SELECT, UPDATE ON odd TO app; ALTER TABLE odd ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON odd USING (id <> 7); SET ROLE app")
    try:
        answer = db.execute("SELECT * FROM fenced_update_many('odd', ARRAY[7, 9, 8]::numeric[], '{5}', '[{\"v\": 7}, {\"v\": 9}, {\"v\": 8}]')").fetchall()
        assert answer == [(1, "missing", None), (2, "written", 5), (3, "written", 5)]
    finally:
        db.execute("RESET ROLE; DROP OWNED BY app; DROP ROLE app")
    assert db.execute("SELECT id::int, v FROM odd WHERE v IS NOT NULL ORDER BY 1").fetchall() == [(8, 8), (9, 9)]


def trigger(db, body, table="acct"):
    db.execute(f"CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$")
    db.execute(f"CREATE TRIGGER spoil BEFORE UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION spoil()")


def test_a_trigger_that_skips_rows_blocks_them_and_stale_wins(acct):
    trigger(acct, "IF OLD.id IN (2, 3) THEN RETURN NULL; END IF; RETURN COALESCE(NEW, OLD);")
    expected = [(1, "written", 5), (2, "blocked", 5), (3, "stale", 7)]
    assert acct.execute(UPDATE, ([1, 2, 3], [5], Jsonb(PATCH))).fetchall() == expected
    assert acct.execute(WRITE, ([1, 2, 3], [5], Jsonb(PATCH))).fetchall() == expected
    assert acct.execute(DELETE, ([1, 2, 3], [5])).fetchall() == [(1, "written", None), *expected[1:]]


def test_a_blocked_row_is_tried_again_before_it_is_called_blocked(acct):
    acct.execute("CREATE SEQUENCE tries")
    trigger(acct, "IF OLD.id = 2 AND nextval('tries') = 1 THEN RETURN NULL; END IF; RETURN NEW;")
    assert acct.execute(UPDATE, ([1, 2], [5], Jsonb([{"bal": 1}, {"bal": 2}]))).fetchall() == [(1, "written", 5), (2, "written", 5)]
    assert stored(acct)[:2] == [(1, 5, 1), (2, 5, 2)]


@pytest.mark.parametrize("call", [UPDATE, WRITE])
@pytest.mark.parametrize("left", ["0", "NULL", "6"])
def test_a_trigger_that_changes_the_fence_ends_the_call(acct, call, left):
    trigger(acct, f"IF OLD.id = 2 THEN NEW.fence := {left}; END IF; RETURN NEW;")
    error = refusal(acct, call, ([1, 2], [5], Jsonb(PATCH)))
    assert (error.sqlstate, error.diag.constraint_name) == ("LF004", "fence_put_back")
    assert error.diag.message_primary == 'fence 5 was written to table "acct" but did not stay'
    assert error.diag.message_detail == f"Key (id)=(2) would have been left with fence {left.lower()}."
    assert stored(acct) == ROWS


def test_a_hidden_fence_is_not_shown_by_a_security_definer_function(acct):
    acct.execute("""CREATE FUNCTION beat(k int[]) RETURNS TABLE (o bigint, verdict text, stored bigint) SECURITY DEFINER LANGUAGE sql
        AS $$ SELECT * FROM fenced_update_many('acct', k, '{5}', '{"bal": 1}') $$; CREATE ROLE app; SET SESSION AUTHORIZATION app""")
    try:
        assert acct.execute("SELECT * FROM beat('{1,3,4}')").fetchall() == [(1, "written", 5), (2, "stale", None), (3, "unclaimed", None)]
    finally:
        acct.execute("RESET SESSION AUTHORIZATION; DROP ROLE app")


TABLES = {
    "partitioned": "CREATE TABLE t (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, v int) PARTITION BY RANGE (id); CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (1) TO (3); CREATE TABLE t2 PARTITION OF t DEFAULT",
    "with a rule": "CREATE TABLE t (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, v int); CREATE TABLE log (n int); CREATE RULE r AS ON UPDATE TO t DO ALSO INSERT INTO log VALUES (NEW.id); CREATE RULE d AS ON DELETE TO t DO ALSO INSERT INTO log VALUES (OLD.id)",
    "with a dropped column": "CREATE TABLE t (gone text, id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, gone2 int, v int); ALTER TABLE t DROP gone, DROP gone2",
    "with generated columns": "CREATE TABLE t (id int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, v int, g int GENERATED ALWAYS AS (v * 2) STORED)",
    "of domains": "CREATE DOMAIN k AS int; CREATE DOMAIN val AS int CHECK (VALUE < 1000); CREATE DOMAIN f AS bigint; CREATE TABLE t (id k PRIMARY KEY, fence f NOT NULL DEFAULT 0, v val)",
    "with heirs": "CREATE TABLE t (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, v int); CREATE TABLE heir (PRIMARY KEY (id)) INHERITS (t); INSERT INTO heir VALUES (1, 5, 7)",
    "temporary": "CREATE TEMP TABLE t (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, v int)",
    "of an integer fence": "CREATE TABLE t (id int PRIMARY KEY, fence int, v int)",
    "with names of the statement's": 'CREATE TABLE t (id int PRIMARY KEY, fence bigint, v int, given int, fenced int, n int, f int, k1 int, v1 int)',
}


@pytest.mark.parametrize("kind", TABLES)
def test_tables_of_each_kind(db, kind):
    db.execute(TABLES[kind])
    db.execute("INSERT INTO t (id, fence, v) VALUES (1, 5, 0), (2, 5, 0), (3, 7, 0), (4, 5, 0)")
    assert db.execute("SELECT * FROM fenced_update_many('t', ARRAY[4, 3, 2], '{5}', '[{\"v\": 4}, {\"v\": 3}, {\"v\": 2}]')").fetchall() == [(1, "written", 5), (2, "stale", 7), (3, "written", 5)]
    assert db.execute("SELECT * FROM fenced_write_many('t', ARRAY[1, 9], '{6}', '{\"v\": 1}')").fetchall() == [(1, "written", 6), (2, "missing", None)]
    assert db.execute("SELECT * FROM fenced_delete_many('t', ARRAY[4, 3], '{5}')").fetchall() == [(1, "written", None), (2, "stale", 7)]
    only = "ONLY" if kind == "with heirs" else ""
    assert db.execute(f"SELECT id, fence, v FROM {only} t ORDER BY 1").fetchall() == [(1, 6, 1), (2, 5, 2), (3, 7, 0)]
    if kind == "with heirs":
        assert db.execute("SELECT * FROM heir").fetchall() == [(1, 5, 7)]


VALUES = {
    "text": ["a'b\\", None, "NULL"], "int[]": [[1, 2], [], None], "numeric(9,2)": ["1.50", "NaN", "-3.25"],
    "bytea": ["\\x00ff", "\\x", None], "jsonb": [{"a": [1]}, [], "x"], "timestamptz": ["2026-02-28 01:02:03+00", None, "infinity"],
    "mood": ["sad", "ok", None], "pair": [{"a": 1, "b": "x"}, None, {"a": 2}], "int4range": ["[1,5)", "empty", None], "boolean": [True, False, None],
}


@others_in_long_runs
@pytest.mark.parametrize("type_name", VALUES)
@pytest.mark.parametrize("one", [True, False], ids=["one patch", "a patch for each"])
def test_values_of_each_type_are_those_of_the_single_call(db, type_name, one):
    db.execute(f"CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TYPE pair AS (a int, b text); CREATE TABLE t (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 5, v {type_name})")
    db.execute("INSERT INTO t (id) SELECT generate_series(1, 6)")
    patches = [{"v": value} for value in VALUES[type_name]]
    for n, patch in enumerate(patches):
        db.execute("SELECT fenced_update('t', %s, 5, %s)", (n + 1, Jsonb(patch)))
        if one:
            assert db.execute("SELECT * FROM fenced_update_many('t', %s, '{5}', %s)", ([n + 4], Jsonb(patch))).fetchall() == [(1, "written", 5)]
    if not one:
        assert db.execute("SELECT verdict FROM fenced_update_many('t', ARRAY[4, 5, 6], '{5}', %s)", (Jsonb(patches),)).fetchall() == [("written",)] * 3
    assert db.execute("SELECT count(*) FROM t AS a JOIN t AS b ON b.id = a.id + 3 AND (a.v)::text IS NOT DISTINCT FROM (b.v)::text").fetchone() == (3,)


KEY_TYPES = {
    "text": ["b", "a", "c"], "uuid": ["00000000-0000-0000-0000-00000000000b", "00000000-0000-0000-0000-00000000000a", "ffffffff-0000-0000-0000-000000000000"],
    "numeric": ["2.5", "1.5", "-1"], "date": ["2026-02-02", "2026-01-01", "0044-03-15"], "bytea": ["\\x02", "\\x01", "\\xff"], "int[]": [[2], [1, 1], []],
    "mood": ["ok", "sad", "best"], "pair": ["(2,b)", "(1,b)", "(1,c)"], "smallint": [2, -1, 3], "bigint": [2**40, -(2**40), 1], "float8": [1.5, -0.5, 1e300],
    "char(3)": ["b", "a", "c"], "jsonb": [[2], {"a": 1}, "x"], "oid": [4000000000, 2, 1],
}


@others_in_long_runs
@pytest.mark.parametrize("type_name", KEY_TYPES)
def test_keys_of_each_type(db, type_name):
    """Untyped, as the elements of a JSON array."""
    db.execute(f"CREATE TYPE mood AS ENUM ('sad', 'ok', 'best'); CREATE TYPE pair AS (a int, b text); CREATE TABLE t (id {type_name} PRIMARY KEY, fence bigint NOT NULL DEFAULT 5, v int)")
    keys = KEY_TYPES[type_name]
    for key in keys:
        text = json.dumps(key) if type_name == "jsonb" else "{" + ",".join(map(str, key)) + "}" if isinstance(key, list) else str(key)
        db.execute("INSERT INTO t (id) VALUES (%s)", (text,))
    answer = db.execute("SELECT * FROM fenced_update_many('t', %s::text, '{5}', %s)", (json.dumps(keys), Jsonb([{"v": n} for n in range(3)]))).fetchall()
    assert answer == [(1, "written", 5), (2, "written", 5), (3, "written", 5)]
    assert db.execute("SELECT fenced_delete('t', %s::text, 5)", (json.dumps(keys[1]) if isinstance(keys[1], (list, dict)) and type_name == "jsonb" else ("{1,1}" if type_name == "int[]" else str(keys[1])),)).fetchone() == (True,)
    assert sorted(row[0] for row in db.execute("SELECT v FROM t")) == [0, 2]


def test_nothing_on_the_search_path_takes_part(acct):
    acct.execute("""CREATE SCHEMA evil; SET search_path = evil, public, pg_catalog;
        CREATE FUNCTION evil.boom(int, int) RETURNS bool LANGUAGE plpgsql AS 'BEGIN RAISE ''evil''; END';
        CREATE OPERATOR evil.= (LEFTARG = int, RIGHTARG = int, FUNCTION = evil.boom);
        CREATE FUNCTION evil.given() RETURNS SETOF record LANGUAGE plpgsql AS 'BEGIN RAISE ''evil''; END';
        CREATE DOMAIN evil.int8 AS text CHECK (false); CREATE DOMAIN evil.int4 AS text CHECK (false); CREATE TEMP TABLE given (n int)""")
    assert acct.execute("SELECT * FROM public.fenced_update_many('public.acct', ARRAY[2, 1, 3], '{5}', '[{\"bal\": 2}, {\"bal\": 1}, {\"bal\": 3}]')").fetchall() == [(1, "written", 5), (2, "written", 5), (3, "stale", 7)]
    acct.execute("RESET search_path")
    assert stored(acct)[:3] == [(1, 5, 1), (2, 5, 2), (3, 7, 30)]


def test_the_rows_of_a_call_are_given_to_its_own_statement_alone(acct):
    """A policy and a trigger that ask for them get none."""
    given = "SELECT count(*) FROM fence_internals.given() AS g (n int8, f int8, k1 int4)"
    assert acct.execute(given).fetchone() == (0,)
    assert acct.execute("SELECT * FROM fence_internals.given() AS g (n text, b bytea, c numeric)").fetchall() == []
    acct.execute("CREATE TABLE seen (n int)")
    trigger(acct, f"INSERT INTO seen {given}; RETURN COALESCE(NEW, OLD);")
    acct.execute(DELETE, ([1, 2], [5]))
    assert acct.execute("SELECT * FROM seen").fetchall() == [(0,), (0,)]


def test_rows_of_other_types_are_not_read_as_those_of_the_call(acct):
    acct.execute("CREATE ROLE app; GRANT SELECT, UPDATE ON acct TO app; ALTER TABLE acct ENABLE ROW LEVEL SECURITY")
    acct.execute("CREATE POLICY p ON acct USING (NOT EXISTS (SELECT FROM fence_internals.given() AS g (a text, b text, c text) WHERE g.a <> ''))")
    acct.execute("SET ROLE app")
    try:
        assert acct.execute(UPDATE, ([1, 2], [5], Jsonb(PATCH))).fetchall() == [(1, "written", 5), (2, "written", 5)]
    finally:
        acct.execute("RESET ROLE; DROP OWNED BY app; DROP ROLE app")


def test_a_table_that_is_altered_between_two_calls(acct, connect):
    other = connect()
    acct.execute("CREATE SCHEMA s; CREATE TYPE s.mood AS ENUM ('sad', 'ok'); ALTER TABLE acct ADD m s.mood, ADD v int")
    call = "SELECT verdict FROM fenced_update_many('acct', ARRAY[1, 2], '{5}', '[{\"m\": \"ok\", \"v\": 1}, {\"m\": \"sad\", \"v\": 2}]')"
    alterations = ["ALTER TYPE s.mood RENAME TO feeling", "ALTER SCHEMA s RENAME TO z", "ALTER TABLE acct ALTER v TYPE bigint", "ALTER TABLE acct DROP bal", "ALTER TABLE acct SET SCHEMA z", "ALTER TABLE z.acct SET SCHEMA public", "CREATE RULE r AS ON UPDATE TO acct DO ALSO NOTIFY x", "DROP RULE r ON acct"]
    for alteration in [None, *alterations]:
        if alteration:
            other.execute(alteration)
        where = "z.acct" if alteration == "ALTER TABLE acct SET SCHEMA z" else "acct"
        assert acct.execute(call.replace("'acct'", f"'{where}'")).fetchall() == [("written",)] * 2, alteration


def test_each_row_is_counted(acct):
    acct.execute("SELECT pg_stat_fence_reset()")
    acct.execute(UPDATE, ([1, 2, 3, 4, 5, 77], [5], Jsonb(PATCH)))
    counters = "SELECT claims, writes, writes_stale, unclaimed, last_stale_fence, stored_fence_then FROM pg_stat_fence"
    expected = (0, 2, 1, 2, 5, 7)
    rows = acct.execute(counters).fetchall()
    assert rows in ([expected], [(None,) * 6])
    acct.execute(WRITE, ([1, 2, 3], [6], Jsonb(PATCH)))
    acct.execute(DELETE, ([1, 2], [6]))
    assert acct.execute(counters).fetchall() in ([(0, 6, 2, 2, 6, 7)], [(None,) * 6])


def test_a_replica_role_and_views_are_refused_as_by_the_single_calls(acct):
    acct.execute("CREATE VIEW shown AS SELECT * FROM acct")
    for target, sqlstate in (("shown", "42809"), ("pg_catalog.pg_class", "42809"), ("4000000000", "42P01")):
        for call in ("fenced_update_many({}::regclass, ARRAY[1], '{{5}}', '{{\"bal\": 1}}')", "fenced_delete_many({}::regclass, ARRAY[1], '{{5}}')"):
            assert refusal(acct, "SELECT * FROM " + call.format(f"'{target}'")).sqlstate == sqlstate
    acct.execute("BEGIN READ ONLY")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        acct.execute(UPDATE, ([1], [5], Jsonb(PATCH)))
    acct.execute("ROLLBACK")


CLAIMS = "SELECT id, fence, bal FROM fenced_claim_many(NULL::acct, %s, %s)"


def test_many_claims_are_one_statement_and_answer_in_the_order_of_the_key(acct):
    ran = statements(acct)
    assert acct.execute(CLAIMS, ([5, 3, 1, 2, 1], 6)).fetchall() == [(1, 6, 10), (2, 6, 20), (5, 6, 50)]
    assert ran() == 1


@pytest.mark.parametrize("shape", ["", "ALTER TABLE acct ADD gone int; ALTER TABLE acct DROP gone", "CREATE DOMAIN one AS acct CHECK ((VALUE).id > 0)"])
def test_a_claim_that_needs_a_second_try_is_answered_in_its_order(acct, shape):
    acct.execute(shape)
    target = "one" if "DOMAIN" in shape else "acct"
    acct.execute("CREATE SEQUENCE first; CREATE SEQUENCE third")
    trigger(acct, "IF OLD.id = 2 AND nextval('first') = 1 OR OLD.id = 4 AND nextval('third') < 3 THEN RETURN NULL; END IF; RETURN NEW;")
    assert acct.execute(f"SELECT id, fence, bal FROM fenced_claim_many(NULL::{target}, %s, 9)", ([5, 4, 3, 2, 1],)).fetchall() == [(n, 9, n * 10) for n in range(1, 6)]


def test_the_first_row_in_the_order_of_the_key_that_cannot_be_claimed_is_the_error(acct):
    trigger(acct, "IF OLD.id = 4 THEN RETURN NULL; END IF; RETURN NEW;")
    assert refusal(acct, CLAIMS, ([77, 4, 1], 9)).sqlstate == "LF004"
    error = refusal(acct, CLAIMS, ([77, 5, 1], 9))
    assert (error.sqlstate, error.diag.message_detail) == ("P0002", "Key (id)=(77) does not exist, or a row-security policy hides it from the caller.")
    assert stored(acct) == ROWS


def test_a_domain_checks_each_row_that_is_claimed(acct):
    acct.execute("CREATE DOMAIN cheap AS acct CHECK ((VALUE).bal < 30)")
    assert acct.execute("SELECT id FROM fenced_claim_many(NULL::cheap, '{2,1}', 9)").fetchall() == [(1,), (2,)]
    assert refusal(acct, "SELECT id FROM fenced_claim_many(NULL::cheap, '{2,4}', 9)").sqlstate == "23514"


OWNED = [(1, 5, 1, "A"), (2, 5, 2, "B"), (3, 5, 3, None), (4, 7, 4, "B"), (5, 4, 5, "B")]


@pytest.fixture
def owned(db):
    """A connection to a table that keeps the owners of its fences."""
    db.execute("CREATE TABLE acct (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, bal int, fence_owner text)")
    with db.cursor() as cursor:
        cursor.executemany("INSERT INTO acct VALUES (%s, %s, %s, %s)", OWNED)
    return db


def test_an_equal_fence_of_another_owner_is_a_duplicate(owned):
    """Of a caller that says who it is, and of one that does not."""
    keys = [1, 2, 3, 4, 5]
    call = "SELECT verdict, stored_fence FROM fenced_update_many('acct', %s, '{5}', '{\"bal\": 9}'{owner})"
    verdicts = {
        "": ["duplicate_fence", "duplicate_fence", "written", "stale", "unclaimed"],
        ", 'fence', 'A'": ["written", "duplicate_fence", "written", "stale", "unclaimed"],
        ", 'fence', 'A', 'fence_owner'": ["written", "duplicate_fence", "written", "stale", "unclaimed"],
    }
    for owner, expected in verdicts.items():
        for before in ("", "ALTER TABLE acct ADD UNIQUE (fence, id, fence_owner)"):
            owned.execute(before)
            assert owned.execute(call.replace("{owner}", owner), (keys,)).fetchall() == list(zip(expected, [5, 5, 5, 7, 4], strict=True)), owner
    for patches in ("'{\"bal\": 9}'", "'[{\"bal\": 1}, {\"bal\": 2}, {\"bal\": 3}, {\"bal\": 4}, {\"bal\": 5}]'"):
        answer = owned.execute(f"SELECT verdict FROM fenced_write_many('acct', %s, '{{5}}', {patches}, 'fence', 'A')", (keys,)).fetchall()
        assert [verdict for (verdict,) in answer] == ["written", "duplicate_fence", "written", "stale", "written"]
    assert [row[3] for row in stored(owned)] == ["A", "B", "A", "B", "A"]
    answer = owned.execute("SELECT verdict FROM fenced_delete_many('acct', %s, '{5}', 'fence', 'B')", (keys,)).fetchall()
    assert [verdict for (verdict,) in answer] == ["duplicate_fence", "written", "duplicate_fence", "stale", "duplicate_fence"]


def test_many_claims_with_an_owner(owned):
    claims = "SELECT id, fence_owner FROM fenced_claim_many(NULL::acct, %s, 5{})"
    assert owned.execute(claims.format(", 'fence', 'A'"), ([5, 4, 3, 1],)).fetchall() == [(1, "A"), (3, "A"), (5, "A")]
    single = refusal(owned, "SELECT * FROM fenced_claim(NULL::acct, 2, 5, 'fence', 'A')")
    many = refusal(owned, claims.format(", 'fence', 'A'"), ([2, 1],))
    for part in ("sqlstate", "message_detail", "message_hint", "constraint_name"):
        assert getattr(many.diag, part) == getattr(single.diag, part)
    assert many.diag.message_primary == f'element 1 of "keys": {single.diag.message_primary}'
    assert many.sqlstate == "LF007"
    assert refusal(owned, claims.format(""), ([1],)).sqlstate == "LF007"


def test_owners_that_are_no_owners_are_refused(owned):
    for owner, sqlstate in ((", 'fence', NULL", "22004"), (", 'fence', ''", "22023"), (", 'fence', 'A', 'bal'", None), (", 'fence', 'A', 'no'", "42703")):
        for call in ("fenced_update_many('acct', ARRAY[1], '{5}', '{\"bal\": 1}'", "fenced_delete_many('acct', ARRAY[1], '{5}'"):
            many, single = (refusal(owned, f"SELECT {form}{owner})") for form in (call, call.replace("_many", "").replace("ARRAY[1], '{5}'", "1, 5")))
            assert (many.sqlstate, many.diag.message_primary) == (single.sqlstate, single.diag.message_primary)
            assert sqlstate in (None, many.sqlstate)
    assert refusal(owned, "SELECT fenced_update_many('acct', ARRAY[1], '{5}', '{\"fence_owner\": \"A\"}')").sqlstate == "22023"
    assert stored(owned) == OWNED


def test_a_trigger_that_puts_an_owner_back_ends_the_call(owned):
    trigger(owned, "IF OLD.id = 3 THEN NEW.fence_owner := 'Z'; END IF; RETURN NEW;")
    error = refusal(owned, "SELECT fenced_write_many('acct', ARRAY[1, 3], '{6}', '{\"bal\": 1}', 'fence', 'A')")
    assert error.sqlstate == "LF004"
    assert stored(owned) == OWNED


@pytest.mark.parametrize("setting", ["enable_nestloop = off", "enable_indexscan = off", "enable_hashjoin = on", "plan_cache_mode = force_custom_plan", "cpu_index_tuple_cost = 4000"])
def test_settings_of_the_planner_change_neither_order_nor_number_of_statements(db, setting):
    db.execute("CREATE TABLE acct (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 5, bal int); INSERT INTO acct (id) SELECT generate_series(1, 500); CREATE INDEX ON acct (fence, id DESC); ANALYZE acct")
    ran = statements(db)
    db.execute(f"SET {setting}")
    db.execute("CREATE TABLE first_come (n int GENERATED ALWAYS AS IDENTITY, id int)")
    trigger(db, "INSERT INTO first_come (id) VALUES (OLD.id); RETURN NEW;")
    keys = list(range(400, 0, -7))
    assert {row[1] for row in db.execute(UPDATE, (keys, [5], Jsonb(PATCH)))} == {"written"}
    assert ran() == 1
    assert [row[0] for row in db.execute("SELECT id FROM first_come ORDER BY n")] == sorted(keys)
    assert db.execute(f"SELECT current_setting('{setting.split()[0]}')").fetchone()[0] == setting.split()[2]
