"""Patches: only the named columns change, and every value arrives exactly, or the whole patch is refused."""

import json

import psycopg
import pytest

from refusals import refusal

UPDATE = "SELECT fenced_update('p', 1, 5, %s::jsonb)"


@pytest.fixture
def p(db):
    """A connection to a table with a column of every kind, one row at fence 5."""
    db.execute("CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TYPE pair AS (a int, b text, c numeric(6,2))")
    db.execute("CREATE DOMAIN dnn AS text NOT NULL CHECK (VALUE <> 'no'); CREATE DOMAIN small AS int CHECK (VALUE < 100)")
    db.execute("CREATE DOMAIN tags AS text[] CHECK (cardinality(VALUE) < 4); CREATE DOMAIN doc AS jsonb CHECK (VALUE ? 'k')")
    db.execute("CREATE TYPE nested AS (p pair, list pair[], n int)")
    db.execute("""CREATE TABLE p (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, note text DEFAULT 'd', qty int NOT NULL DEFAULT 1,
        dom dnn DEFAULT 'x', small small, st mood, b bytea, big bigint, num numeric, money_like numeric(12,2), f8 float8, f4 real,
        ok boolean, ts timestamp, tz timestamptz, d date, iv interval, u uuid, r int4range, mr int4multirange, pt point, bx box[],
        j jsonb, js json, ja jsonb[], jsa json[], a text[], m int[], mo mood[], na numeric[], ba boolean[], by bytea[], pa pair[], cc pair, nn nested,
        dt tags, dd doc, vc varchar(3), ch char(4), bits bit(4), ip inet, tsv tsvector, x xml, la small[])""")
    db.execute("INSERT INTO p (id, fence, dom) VALUES (1, 5, 'x')")
    return db


def update(db, patch):
    return db.execute(UPDATE, (patch if isinstance(patch, str) else json.dumps(patch),)).fetchone()[0]


def refusal_of(db, patch):
    before = db.execute("SELECT p::text FROM p").fetchall()
    with pytest.raises(psycopg.Error) as raised:
        update(db, patch)
    assert db.execute("SELECT p::text FROM p").fetchall() == before
    return raised.value.sqlstate


# Column, JSON value, the SQL value that must be stored, compared with the operator `=` or as text.
EXACT = [
    ("note", '"it\'s \\\\ \\"x\\" \\n{}$1"', "E'it''s \\\\ \"x\" \\n{}$1'"),
    ("note", '""', "''"),
    ("note", "5.50", "'5.50'"),
    ("note", "true", "'true'"),
    ("note", '{"a": 1}', "'{\"a\": 1}'"),
    ("note", '"NULL"', "'NULL'"),
    ("note", '"\\u00e9\\ud83d\\ude00"', "U&'\\00e9\\+01F600'"),
    ("qty", "6", "6"),
    ("qty", "1e3", "1000"),
    ("qty", '" 7 "', "7"),
    ("big", "9007199254740993", "9007199254740993"),
    ("big", "-9223372036854775808", "-9223372036854775808"),
    ("num", "0.1000000000000000000000000000000000001", "0.1000000000000000000000000000000000001"),
    ("num", "1e400", "1e400::numeric"),
    ("num", '"NaN"', "'NaN'::numeric"),
    ("num", '"Infinity"', "'Infinity'::numeric"),
    ("num", "1.50", "1.50"),
    ("money_like", "1.005", "1.01"),
    ("f8", "0.1", "0.1::float8"),
    ("f8", "1.7976931348623157e308", "1.7976931348623157e308::float8"),
    ("f8", '"NaN"', "'NaN'::float8"),
    ("f4", "16777217", "16777216::real"),
    ("ok", "true", "true"),
    ("ok", '"off"', "false"),
    ("st", '"ok"', "'ok'::mood"),
    ("b", '"\\\\x00ff"', "'\\x00ff'::bytea"),
    ("ts", '"2026-03-29 02:30:00.123456"', "'2026-03-29 02:30:00.123456'::timestamp"),
    ("ts", '"0044-03-15 12:00:00 BC"', "'0044-03-15 12:00:00 BC'::timestamp"),
    ("tz", '"2026-03-29T02:30:00.123456+02"', "'2026-03-29 00:30:00.123456+00'::timestamptz"),
    ("tz", '"infinity"', "'infinity'::timestamptz"),
    ("d", '"-infinity"', "'-infinity'::date"),
    ("iv", '"1 mon -2 days 00:00:00.000001"', "'1 mon -2 days 00:00:00.000001'::interval"),
    ("u", '"2f1c7d0e6a3e4c7e9a520a6a3f5f2b11"', "'2f1c7d0e-6a3e-4c7e-9a52-0a6a3f5f2b11'::uuid"),
    ("r", '"[1,5)"', "'[1,5)'::int4range"),
    ("r", '"empty"', "'empty'::int4range"),
    ("mr", '"{[1,2),[5,7)}"', "'{[1,2),[5,7)}'::int4multirange"),
    ("pt", '"(1.5,2)"', "'(1.5,2)'::point"),
    ("bx", '["(1,2),(3,4)", "(5,6),(7,8)"]', "'{(3,4),(1,2);(7,8),(5,6)}'::box[]"),
    ("j", "[]", "'[]'::jsonb"),
    ("j", "{}", "'{}'::jsonb"),
    ("j", '"s"', "'\"s\"'::jsonb"),
    ("j", "1.50", "'1.50'::jsonb"),
    ("j", "false", "'false'::jsonb"),
    ("j", '{"a": [null, "\\\\"]}', "'{\"a\": [null, \"\\\\\"]}'::jsonb"),
    ("js", '{"a": [1, "x", null]}', "'{\"a\": [1, \"x\", null]}'::json"),
    ("js", '"s"', "'\"s\"'::json"),
    ("ja", '[[1], {"a": 2}, "s", null, 3]', "ARRAY['[1]', '{\"a\": 2}', '\"s\"', NULL, '3']::jsonb[]"),
    ("jsa", '[{"a": "\\""}, []]', "ARRAY['{\"a\": \"\\\"\"}', '[]']::json[]"),
    ("a", '["a,b", "q\\"r", "back\\\\slash", "line\\nbreak", "", null, "NULL", "{}", " ", "é"]',
     "ARRAY['a,b', 'q\"r', 'back\\slash', E'line\\nbreak', '', NULL, 'NULL', '{}', ' ', 'é']"),
    ("a", "[]", "'{}'::text[]"),
    ("a", '"{1,NULL,\\"NULL\\"}"', "ARRAY['1', NULL, 'NULL']"),
    ("a", '[["a"], [null]]', "ARRAY[['a'], [NULL]]"),
    ("a", "[1, true, 2.50]", "ARRAY['1', 'true', '2.50']"),
    ("m", "[[1,2],[3,4]]", "ARRAY[[1,2],[3,4]]"),
    ("m", "[1, null, 3]", "ARRAY[1, NULL, 3]"),
    ("m", '"[0:1]={7,8}"', "'[0:1]={7,8}'::int[]"),
    ("mo", '["ok", null, "sad"]', "ARRAY['ok', NULL, 'sad']::mood[]"),
    ("na", '[1.50, "NaN", 12345678901234567890.123]', "ARRAY[1.50, 'NaN', 12345678901234567890.123]::numeric[]"),
    ("ba", "[true, false, null]", "ARRAY[true, false, NULL]"),
    ("by", '["\\\\x5c", "\\\\x00"]', "ARRAY['\\x5c', '\\x00']::bytea[]"),
    ("cc", '{"a": 1, "b": "x,(\\"\\\\y)", "c": 1.005}', "ROW(1, E'x,(\"\\\\y)', 1.01)::pair"),
    ("cc", '{"b": ""}', "ROW(NULL, '', NULL)::pair"),
    ("cc", '{}', "ROW(NULL, NULL, NULL)::pair"),
    ("cc", '"(1,x,2)"', "ROW(1, 'x', 2)::pair"),
    ("pa", '[{"a": 1, "b": "{\\"}"}, null, {"c": 2}]', "ARRAY[ROW(1, '{\"}', NULL)::pair, NULL, ROW(NULL, NULL, 2)::pair]"),
    ("nn", '{"p": {"a": 1, "b": "q\\"\\\\"}, "list": [{"b": "a,b"}, {"b": null}], "n": 3}',
     "ROW(ROW(1, E'q\"\\\\', NULL)::pair, ARRAY[ROW(NULL, 'a,b', NULL), ROW(NULL, NULL, NULL)]::pair[], 3)::nested"),
    ("dt", '["a", "b"]', "ARRAY['a', 'b']"),
    ("dd", '{"k": 1}', "'{\"k\": 1}'::jsonb"),
    ("vc", '"abc"', "'abc'"),
    ("ch", '"ab"', "'ab'::char(4)"),
    ("bits", '"0101"', "B'0101'"),
    ("ip", '"10.0.0.1/24"', "'10.0.0.1/24'::inet"),
    ("tsv", '"a:1 b:2"', "'a:1 b:2'::tsvector"),
    ("la", "[1, 99]", "ARRAY[1, 99]::small[]"),
    ("small", "99", "99"),
]


def test_every_value_arrives_exactly(p):
    for column, value, expected in EXACT:
        assert update(p, f'{{"{column}": {value}}}') is True, (column, value)
        stored, wanted = p.execute(f"SELECT {column}::text, e.wanted::text FROM p, (SELECT {expected}) AS e(wanted)").fetchone()
        assert (column, value, stored) == (column, value, wanted)
        if column not in ("pt", "js", "jsa", "bx"):
            assert p.execute(f"SELECT {column} IS NOT DISTINCT FROM ({expected}) FROM p").fetchone() == (True,), (column, value)


def test_values_arrive_exactly_in_their_binary_form_too(p):
    update(p, {"a": ["a,b", 'q"r', "back\\slash", "", None, "NULL"], "m": [[1, 2], [3, 4]], "big": 2**63 - 1})
    with p.cursor(binary=True) as cursor:
        assert cursor.execute("SELECT a, m, big FROM p").fetchone() == (["a,b", 'q"r', "back\\slash", "", None, "NULL"], [[1, 2], [3, 4]], 2**63 - 1)


@pytest.mark.parametrize("column", ["note", "st", "b", "j", "js", "a", "cc", "r", "nn", "num", "ja", "small"])
def test_null_is_sql_null_for_every_type(p, column):
    p.execute("UPDATE p SET note = 'n', st = 'ok', b = '\\x00', j = '1', js = '1', a = '{}', cc = '(1,,)', r = 'empty', nn = '(,,)', num = 1, ja = '{}', small = 1")
    assert update(p, {column: None}) is True
    assert p.execute(f"SELECT {column} IS NULL AND pg_typeof({column}) IS NOT NULL FROM p").fetchone() == (True,)


def test_only_the_named_columns_change(p):
    before = p.execute("SELECT to_jsonb(p) FROM p").fetchone()[0]
    assert update(p, {"qty": 6}) is True
    assert p.execute("SELECT to_jsonb(p) FROM p").fetchone()[0] == {**before, "qty": 6}
    assert update(p, {"note": ""}) is True
    assert p.execute("SELECT to_jsonb(p) FROM p").fetchone()[0] == {**before, "qty": 6, "note": ""}


def test_a_not_null_domain_that_the_patch_does_not_name_never_matters(p):
    p.execute("CREATE TABLE q (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, n int, dom dnn DEFAULT 'x'); INSERT INTO q (id) VALUES (1)")
    assert p.execute("SELECT fenced_write('q', 1, 5, '{\"n\": 2}')").fetchone() == (True,)


ILL_FITTING = [
    ({"qty": None}, "23502"),
    ({"dom": None}, "23502"),
    ({"dom": "no"}, "23514"),
    ({"small": 100}, "23514"),
    ({"la": [1, 100]}, "23514"),
    ({"dt": ["a", "b", "c", "d"]}, "23514"),
    ({"dd": {"x": 1}}, "23514"),
    ({"st": "OK"}, "22P02"),
    ({"mo": ["ok", "nope"]}, "22P02"),
    ({"m": [1, "x"]}, "22P02"),
    ({"m": [[1], [2, 3]]}, "22P02"),
    ({"m": [1, [2]]}, "22P02"),
    ({"m": {"a": 1}}, "22P02"),
    ({"m": 5}, "22P02"),
    ({"a": "x"}, "22P02"),
    ({"qty": 1.5}, "22P02"),
    ({"qty": ""}, "22P02"),
    ({"big": "9223372036854775808"}, "22003"),
    ('{"big": 9007199254740993.0}', "22P02"),
    ('{"f8": 1e400}', "22003"),
    ({"money_like": 1e12}, "22003"),
    ({"vc": "abcd"}, "22001"),
    ({"bits": "01"}, "22026"),
    ({"u": "x"}, "22P02"),
    ({"b": "\\x0"}, "22023"),
    ({"tz": "yesterday at noon"}, "22007"),
    ({"d": "2026-02-30"}, "22008"),
    ({"cc": {"z": 1}}, "42703"),
    ({"cc": {"A": 1}}, "42703"),
    ({"cc": [1, "x", 2]}, "22023"),
    ({"cc": 5}, "22P02"),
    ({"cc": {"a": "x"}}, "22P02"),
    ({"pa": [[1, "x", 2]]}, "22P02"),
    ({"nn": {"list": [{"z": 1}]}}, "42703"),
    ({"r": [1, 5]}, "22023"),
    ({"mr": {}}, "22023"),
    ({"note": "fine", "qty": "x"}, "22P02"),
]


def test_a_value_that_does_not_fit_is_refused_and_nothing_changes(p):
    outcomes = [(patch, refusal_of(p, patch)) for patch, _ in ILL_FITTING]
    assert outcomes == ILL_FITTING


def test_the_last_of_two_equal_names_counts_as_jsonb_has_it(p):
    assert update(p, '{"qty": 6, "qty": 7}') is True
    assert p.execute("SELECT qty FROM p").fetchone() == (7,)


def test_a_patch_may_name_every_column_of_a_wide_table(db):
    columns = [f"c{n}" for n in range(1500)]
    db.execute(f"CREATE TABLE p (id int PRIMARY KEY, fence bigint, {', '.join(f'{name} int' for name in columns)})")
    db.execute("INSERT INTO p (id, fence) VALUES (1, 5)")
    assert update(db, {name: n for n, name in enumerate(columns)}) is True
    assert db.execute("SELECT c0, c777, c1499 FROM p").fetchone() == (0, 777, 1499)
    assert refusal_of(db, {**{name: 1 for name in columns}, "c1500": 1}) == "42703"


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata"])
def test_a_naive_time_is_read_in_the_sessions_zone(p, zone):
    p.execute(f"SET timezone = '{zone}'")
    update(p, {"tz": "2026-11-01 01:30:00.000001", "ts": "2026-11-01 01:30:00.000001"})
    assert p.execute("SELECT tz = '2026-11-01 01:30:00.000001'::timestamptz, ts::text FROM p").fetchone() == (True, "2026-11-01 01:30:00.000001")


@pytest.mark.parametrize("identity", ["GENERATED ALWAYS AS IDENTITY", "GENERATED BY DEFAULT AS IDENTITY", "DEFAULT 1"])
def test_generated_columns_follow_and_may_not_be_named(db, identity):
    db.execute(f"CREATE TABLE tg (id int {identity} PRIMARY KEY, base int, twice int GENERATED ALWAYS AS (base * 2) STORED, no int {identity}, fence bigint NOT NULL DEFAULT 0)")
    if "IDENTITY" in identity:
        db.execute("ALTER TABLE tg ALTER no DROP IDENTITY")
    db.execute("INSERT INTO tg (base, no) VALUES (3, 1)")
    assert db.execute("SELECT twice FROM fenced_claim(NULL::tg, 1, 5)").fetchone() == (6,)
    assert db.execute("SELECT twice FROM fenced_update_returning(NULL::tg, 1, 5, '{\"base\": 4}')").fetchone() == (8,)
    for patch, name in (({"twice": 9}, "twice"), ({"id": 1, "base": 5}, "id"), ({"id": 2}, "id")):
        with pytest.raises(psycopg.Error) as raised:
            db.execute("SELECT fenced_write('tg', 1, 6, %s::jsonb)", (json.dumps(patch),))
        assert f'"{name}"' in raised.value.diag.message_primary
    assert db.execute("SELECT id, base, twice, fence FROM tg").fetchall() == [(1, 4, 8, 5)]


def test_an_identity_by_default_column_may_be_patched(db):
    db.execute("CREATE TABLE t (id int PRIMARY KEY, no int GENERATED BY DEFAULT AS IDENTITY, fence bigint NOT NULL DEFAULT 0); INSERT INTO t VALUES (1)")
    assert db.execute("SELECT fenced_write('t', 1, 5, '{\"no\": 77}')").fetchone() == (True,)
    assert db.execute("SELECT no FROM t").fetchone() == (77,)


def test_a_deeply_nested_value_is_an_error_and_not_a_crash(p):
    deep = '{"a": ' + "[" * 5000 + "]" * 5000 + "}"
    assert refusal_of(p, deep) in ("22P02", "54000", "54001")
    assert p.execute("SELECT 1").fetchone() == (1,)


def test_a_check_of_a_domain_may_call_back_into_a_fenced_function(p):
    p.execute("CREATE TABLE log (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, n int DEFAULT 0); INSERT INTO log VALUES (1)")
    p.execute("CREATE FUNCTION noted(v int) RETURNS boolean LANGUAGE sql AS $$ SELECT fenced_write('log', 1, 5, jsonb_build_object('n', v)) $$")
    p.execute("CREATE DOMAIN noted_int AS int CHECK (noted(VALUE)); ALTER TABLE p ADD COLUMN watched noted_int")
    assert update(p, {"watched": 42}) is True
    assert p.execute("SELECT watched, n FROM p, log").fetchone() == (42, 42)


# Around each place where the form of a number in JSON, or the type of a column, ends.
EDGES = sorted({sign * (base**power + more) for sign in (1, -1) for base in (2, 10) for power in range(64) for more in (-1, 0, 1)})


def test_integers_are_exact_up_to_the_ends_of_each_type(db):
    db.execute("CREATE TABLE p (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 5, s smallint, i int, l bigint)")
    db.execute("INSERT INTO p VALUES (1)")
    for column, bits in (("s", 16), ("i", 32), ("l", 64)):
        fitting = [number for number in EDGES if -(2 ** (bits - 1)) <= number < 2 ** (bits - 1)]
        written = f"SELECT {column} FROM fenced_update_returning(NULL::p, 1, 5, %s::jsonb)"
        assert [db.execute(written, (json.dumps({column: n}),)).fetchone()[0] for n in fitting] == fitting
        assert db.execute(written, (f'{{"{column}": 1e2}}',)).fetchone() == (100,)
        for outside in (2 ** (bits - 1), -(2 ** (bits - 1)) - 1, 10**40):
            assert refusal_of(db, {column: outside}) == "22003"
        for text in ("1.0", "0.5", "1e-3"):
            assert refusal_of(db, f'{{"{column}": {text}}}') == "22P02"


def test_the_context_of_an_error_of_the_server_names_the_column(p):
    for call, sqlstate, line in [
        ("""fenced_write('p', 1, 5, '{"qty": "abc"}')""", "22P02", 'column "qty"'),
        ("""fenced_write('p', 1, 5, '{"qty": 99999999999}')""", "22003", 'column "qty"'),
        ("""fenced_write('p', 'abc'::text, 5, '{"qty": 1}')""", "22P02", 'key column "id"'),
        ("""fenced_upsert('p', 7, 5, '{"qty": "abc"}')""", "22P02", 'column "qty"'),
    ]:
        error = refusal(p, f"SELECT {call}")
        assert (call, error.sqlstate, error.diag.context) == (call, sqlstate, line)
    inside = refusal(p, """DO $$ BEGIN PERFORM fenced_write('p', 1, 5, '{"qty": "abc"}'); END $$""").diag.context
    assert [line.split('"')[0] for line in inside.splitlines()] == ["column ", "SQL statement ", "PL/pgSQL function inline_code_block line 1 at PERFORM"]
    assert refusal(p, "SELECT 'x'::int").diag.context is None, "nothing of it is left"
