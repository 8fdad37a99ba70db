"""Keys: of every common type, alone or several, in every way that clients write them; never another row's."""

import datetime
import decimal
import uuid

import pytest
from psycopg.types.json import Jsonb

from refusals import refusal

# Type of the key column, a key as SQL text, and one that is near but names no row.
TYPES = {
    "smallint": ("smallint", "7", "8"),
    "int": ("int", "7", "8"),
    "bigint": ("bigint", "9007199254740993", "9007199254740992"),
    "numeric": ("numeric(6,2)", "0.05", "0.051"),
    "real": ("real", "1.5", "1.25"),
    "boolean": ("boolean", "true", "false"),
    "text": ("text", "a'b\\c\"{x}", "A'b\\c\"{x}"),
    "empty text": ("text", "", " "),
    "varchar": ("varchar(3)", "abc", "abcd"),
    "char": ("char(4)", "ab", "abc"),
    "name": ("name", "a name", "a nam"),
    "citext": ("citext", "ABC", "ABD"),
    "uuid": ("uuid", "2f1c7d0e-6a3e-4c7e-9a52-0a6a3f5f2b11", "2f1c7d0e-6a3e-4c7e-9a52-0a6a3f5f2b12"),
    "date": ("date", "2026-02-28", "2026-03-01"),
    "timestamp": ("timestamp(0)", "2026-03-29 02:30:00", "2026-03-29 02:30:00.4"),
    "timestamptz": ("timestamptz", "2026-03-29 02:30:00.123456+00", "2026-03-29 02:30:00.123457+00"),
    "time": ("time", "23:59:59.999999", "23:59:59.999998"),
    "interval": ("interval", "1 mon", "31 days"),
    "bytea": ("bytea", "\\x00ff5c22", "\\x00ff5c23"),
    "inet": ("inet", "10.0.0.1/24", "10.0.0.1"),
    "cidr": ("cidr", "10.0.0.0/24", "10.0.0.0/25"),
    "bit": ("bit(4)", "0101", "0111"),
    "varbit": ("varbit", "01", "010"),
    "enum": ("mood", "ok", "bad"),
    "range": ("int4range", "[1,5)", "[1,6)"),
    "multirange": ("int4multirange", "{[1,5)}", "{[1,6)}"),
    "array": ("text[]", "{a,\"b,c\",NULL}", "{a,\"b,c\"}"),
    "domain": ("positive", "7", "-7"),
    "domain of citext": ("nick", "Bob", "Rob"),
    "jsonb": ("jsonb", '{"id": [1, 2]}', '{"id": [2, 1]}'),
    "composite": ("pair", "(1,x)", "(1,y)"),
    "money": ("money", "1.50", "1.51"),
    "macaddr": ("macaddr", "08:00:2b:01:02:03", "08:00:2b:01:02:04"),
    "oid": ("oid", "16384", "16385"),
}


def has_citext(db):
    """Whether the server comes with citext; some builds leave it out."""
    return db.execute("SELECT FROM pg_available_extensions WHERE name = 'citext'").fetchone() is not None


@pytest.fixture
def typed(db):
    """A connection to a database with the user's own types."""
    if has_citext(db):
        db.execute("CREATE EXTENSION citext; CREATE DOMAIN nick AS citext")
    else:
        db.execute("CREATE DOMAIN nick AS text")
    db.execute("CREATE TYPE mood AS ENUM ('bad', 'ok'); CREATE TYPE pair AS (a int, b text)")
    db.execute("CREATE DOMAIN positive AS int CHECK (VALUE > 0)")
    return db


def test_a_key_of_every_type_finds_its_row_and_no_other(typed):
    for name, (type_name, key, near) in TYPES.items():
        if type_name == "citext" and not has_citext(typed):
            continue
        typed.execute(f"DROP TABLE IF EXISTS t; CREATE TABLE t (id {type_name} PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, v int)")
        typed.execute("INSERT INTO t VALUES (%s)", (key,))
        claims = {
            "untyped": ("SELECT fence FROM fenced_claim(NULL::t, %s, 1)", (key,)),
            "text": ("SELECT fence FROM fenced_claim(NULL::t, %s::text, 2)", (key,)),
            "typed": (f"SELECT fence FROM fenced_claim(NULL::t, %s::{type_name}, 3)", (key,)),
            "the row's own": ("SELECT fence FROM fenced_claim(NULL::t, (SELECT id FROM t), 4)", None),
            "object": ("SELECT fence FROM fenced_claim(NULL::t, jsonb_build_object('id', %s::text), 5)", (key,)),
            "the row's own in an object": ("SELECT fence FROM fenced_claim(NULL::t, (SELECT jsonb_build_object('id', id) FROM t), 6)", None),
        }
        if type_name == "jsonb":  # there an object is the value itself
            claims = dict(list(claims.items())[:4])
        found = {way: typed.execute(sql, parameters).fetchall() for way, (sql, parameters) in claims.items()}
        assert (name, found) == (name, {way: [(fence,)] for fence, way in enumerate(claims, 1)})
        for call in ("SELECT * FROM fenced_claim(NULL::t, %s, 99)", "SELECT * FROM fenced_claim(NULL::t, %s::text, 99)"):
            assert (name, refusal(typed, call, (near,)).sqlstate) == (name, "P0002")
        assert typed.execute("SELECT fenced_update('t', %s, %s, '{\"v\": 1}')", (key, len(claims))).fetchone() == (True,)


# The type of a column, a stored key, a text that the type's input would make into it, and another text of the same value.
TEXTS_THAT_ARE_CUT_OR_ROUNDED = [
    ("name", "n" * 63, "n" * 64, "n" * 63),
    ("name", "é" * 31, "é" * 31 + "öö", "é" * 31),
    ('"char"', "a", "ab", "\\141"),
    ("float4", "16777216", "16777217", "1.6777216e7"),
    ("float8", "9007199254740992", "9007199254740993", " 9007199254740992.0"),
    ("money", "1.50", "1.501", "1.5"),
    ("oid", "4294967295", "-1", "4294967295"),
    ("date", "2026-01-01", "2026-01-01 10:00", "2026-01-01T00:00:00Z"),
    ("timestamp", "2026-01-01 00:00:00", "2026-01-01 00:00:00.0000004", "2026-01-01 00:00:00.00000000"),
    ("timestamptz", "2026-01-01 00:00:00Z", "2026-01-01 00:00:00.0000004Z", "2026-01-01 01:00:00.00000000+01"),
    ("time", "10:00", "10:00:00.0000004", "10:00:00.00000000"),
    ("interval", "1 hour", "01:00:00.0000004", "60.0000000 minutes"),
    ("varchar(2)", "ab", "abc", "ab"),
    ("char(2)", "ab", "abc", "ab "),
    ("bit(2)", "10", "101", "10"),
    ("numeric(4,1)", "0.1", "0.14", "0.10"),
    ("timestamp(0)", "2026-01-01 00:00:00", "2026-01-01 00:00:00.4", "2026-01-01"),
]


@pytest.mark.parametrize(("column", "stored", "other", "same"), TEXTS_THAT_ARE_CUT_OR_ROUNDED, ids=lambda value: value[:20])
def test_a_text_that_the_type_of_the_key_would_cut_or_round_finds_no_row(typed, column, stored, other, same):
    typed.execute(f"CREATE TABLE t (id {column} PRIMARY KEY, fence bigint NOT NULL DEFAULT 0)")
    typed.execute(f"INSERT INTO t VALUES ('{stored}')")

    def ways(key):
        (untyped, document) = typed.execute("SELECT quote_literal(%s::text), quote_literal(jsonb_build_object('id', %s::text))", (key, key)).fetchone()
        calls = [f"fenced_claim(NULL::t, {given}, 5)" for given in (untyped, f"{untyped}::text", f"{document}::jsonb")]
        return [*calls, f"fenced_claim_many(NULL::t, ARRAY[{untyped}], 5)", f"fenced_claim_many(NULL::t, jsonb_build_array({document}::jsonb), 5)"]

    for call in ways(other):
        assert (call, refusal(typed, f"SELECT * FROM {call}").sqlstate) == (call, "P0002")
    (named,) = typed.execute("SELECT quote_literal(%s::text)", (other,)).fetchone()
    assert refusal(typed, f"SELECT fence_reset('t', {named}, 5)").sqlstate == "P0002"
    # key_not_storable, or what the server says of a text that is too long.
    assert refusal(typed, f"SELECT * FROM fenced_claim_or_insert(NULL::t, {named}, 5, '{{}}')").sqlstate in ("22023", "22001", "22026")
    assert typed.execute("SELECT fence FROM t").fetchall() == [(0,)]
    for call in ways(same):
        assert (call, typed.execute(f"SELECT fence FROM {call}").fetchall()) == (call, [(5,)])


def test_a_key_is_not_cut_or_rounded_to_fit_its_column(typed):
    typed.execute("CREATE TABLE n (id numeric(4,1) PRIMARY KEY, fence bigint NOT NULL DEFAULT 0); INSERT INTO n VALUES (0.1)")
    typed.execute("CREATE TABLE c (id varchar(2) PRIMARY KEY, fence bigint NOT NULL DEFAULT 0); INSERT INTO c VALUES ('ab')")
    typed.execute("CREATE TABLE d (id date PRIMARY KEY, fence bigint NOT NULL DEFAULT 0); INSERT INTO d VALUES ('2026-01-01')")
    for table, keys in {
        "n": ("'0.05'", "0.05", "0.05::numeric", "'{\"id\": 0.05}'::jsonb", "0.05::float8"),
        "c": ("'abc'", "'abc'::text", "'{\"id\": \"abc\"}'::jsonb", "'abc'::char(3)"),
        "d": ("'2026-01-01 10:00'::timestamp",),
    }.items():
        for key in keys:
            assert (key, refusal(typed, f"SELECT * FROM fenced_claim(NULL::{table}, {key}, 5)").sqlstate) == (key, "P0002")


SEVENS = (
    *("7::smallint", "7", "7::bigint", "7::numeric", "7.00::numeric(6,2)", "7::float4", "7::float8", "7::oid", "7::text::money"),
    *("'7'", "7::text", "'{\"id\": 7}'::jsonb", "'{\"id\": 7.0}'::jsonb", "7::whole"),
)


@pytest.mark.parametrize("digits", [1, 0, -15])
def test_numbers_of_another_type_are_the_same_key(typed, digits):
    typed.execute(f"SET extra_float_digits = {digits}; CREATE DOMAIN whole AS numeric(4,1)")
    for column in ("smallint", "int", "bigint", "numeric", "numeric(6,3)", "float4", "float8", "oid", "money", "regclass", "positive", "whole"):
        typed.execute(f"DROP TABLE IF EXISTS t; CREATE TABLE t (id {column} PRIMARY KEY, fence bigint NOT NULL DEFAULT 0)")
        typed.execute("INSERT INTO t VALUES (7), (8)")
        for fence, key in enumerate(SEVENS, 1):
            found = typed.execute(f"SELECT fence FROM fenced_claim(NULL::t, {key}, {fence})").fetchall()
            assert (column, key, found) == (column, key, [(fence,)])
        (left,) = typed.execute("SELECT min(fence) FROM t").fetchone()
        assert left == 0, "the other row was never claimed"


# Column, the key that is stored, keys that are the same number, keys that are near.
NUMBERS = (
    ("numeric", "0.1", ("0.1::float8", "0.1::float4", "0.10"), ("0.1000001", "0.1000001::float8")),
    ("float8", "0.1", ("0.1", "0.10::numeric(9,4)", "'{\"id\": 0.1}'::jsonb"), ("0.10000000000000001", "0.1::float4")),
    ("float8", "0.30000000000000004", ("0.30000000000000004", "0.1::float8 + 0.2::float8"), ("0.3", "0.3::float8")),
    ("float4", "1.1", ("1.1", "1.1::float4"), ("1.1000001",)),
    ("float8", "9007199254740992", ("9007199254740992", "'9007199254740992'::numeric"), ("9007199254740993", "'9007199254740993'::numeric")),
    ("float8", "NaN", ("'NaN'::numeric", "'NaN'::float4"), ("0",)),
    ("numeric", "Infinity", ("'Infinity'::float8", "'inf'::float4"), ("'-Infinity'::float8", "'NaN'::float8")),
    ("bigint", "1000000000000000", ("1e15::float8", "1e15", "1e15::numeric(20,3)", "'{\"id\": 1e15}'::jsonb"), ("1e15::float8 + 0.5",)),
    ("int", "2147483647", ("2147483647.0", "2147483647::float8"), ("2147483648", "2147483648.0", "1e300", "1e300::float8", "'NaN'::float8")),
    ("int", "1", ("1.0::numeric", "'{\"id\": 1.0}'::jsonb"), ("1.5", "1.4", "0.5", "1.5::float8", "1.4999::float4", "'{\"id\": 1.5}'::jsonb")),
    ("oid", "4294967295", ("4294967295", "4294967295.0"), ("-1", "-1::smallint", "4294967296")),
    ("numeric", "-0.50", ("-0.5::float8", "-0.500"), ("0.5", "0.5::float8")),
    ("money", "1.50", ("1.5", "1.5::float8"), ("1.501", "1.5000001", "1e18", "1e300::float8", "'NaN'::float8")),
    ("numeric(4,1)", "0.1", ("0.1::float8",), ("0.05", "0.05::float8", "0.14")),
)


@pytest.mark.parametrize("digits", [1, -15])
@pytest.mark.parametrize(("column", "stored", "same", "near"), NUMBERS)
def test_a_number_finds_the_key_that_is_this_number_and_no_other(typed, digits, column, stored, same, near):
    typed.execute(f"SET extra_float_digits = {digits}; CREATE TABLE t (id {column} PRIMARY KEY, fence bigint NOT NULL DEFAULT 0)")
    typed.execute("INSERT INTO t VALUES (%s)", (stored,))
    for fence, key in enumerate(same, 1):
        assert (key, typed.execute(f"SELECT fence FROM fenced_claim(NULL::t, {key}, {fence})").fetchall()) == (key, [(fence,)])
    for key in near:
        assert (key, refusal(typed, f"SELECT * FROM fenced_claim(NULL::t, {key}, 99)").sqlstate) == (key, "P0002")
        assert (key, refusal(typed, f"SELECT * FROM fenced_claim_many(NULL::t, ARRAY[{key}], 99)").sqlstate) == (key, "P0002")
    assert typed.execute("SELECT fence FROM t").fetchall() == [(len(same),)]


def test_a_key_that_no_row_can_have_is_refused_as_any_other_to_who_may_not_read(typed):
    typed.execute("CREATE TABLE t (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0); INSERT INTO t VALUES (1)")
    typed.execute("CREATE ROLE nobody_here; SET ROLE nobody_here")
    try:
        assert refusal(typed, "SELECT fenced_claim_json('t', 1.5, 5)").sqlstate == "42501"
    finally:
        typed.execute("RESET ROLE; DROP ROLE nobody_here")
    assert refusal(typed, "SELECT fenced_claim_json('t', 1.5, 5)").diag.message_detail == (
        "Key (id)=(1.5) does not exist, or a row-security policy hides it from the caller."
    )


def test_a_key_is_claimed_once_however_its_blanks_or_its_type_are_written(typed):
    keys = ("ARRAY['a', 'a ', 'b', 'a  ']", "ARRAY['a', 'a ', 'b', 'a']::varchar[]", "ARRAY['a', 'b', 'a ']::char(3)[]", "'{a,\"a \",b}'", "'[\"a\", \"a \", \"b\"]'::jsonb")
    for column in ("char(3)", "char(9)"):
        typed.execute(f"DROP TABLE IF EXISTS t; CREATE TABLE t (id {column} PRIMARY KEY, fence bigint NOT NULL DEFAULT 0)")
        typed.execute("INSERT INTO t VALUES ('a'), ('b')")
        for key in keys:
            found = typed.execute(f"SELECT id FROM fenced_claim_many(NULL::t, {key}, 5)").fetchall()
            assert (column, key, [one.strip() for (one,) in found]) == (column, key, ["a", "b"])
    typed.execute("CREATE TABLE n (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0); INSERT INTO n VALUES (1), (2), (10)")
    for key in ("ARRAY[10, 1.0, 1.00, 2, 1]", "ARRAY[10, 2, 1]::float8[]", "'[10, 1.0, 2, 1]'::jsonb", "ARRAY[10, 2, 1, 1]::smallint[]"):
        assert (key, typed.execute(f"SELECT id FROM fenced_claim_many(NULL::n, {key}, 5)").fetchall()) == (key, [(1,), (2,), (10,)])


def test_a_time_of_another_type_is_the_same_key_or_none(typed):
    typed.execute("SET TimeZone = 'Europe/Berlin'")
    for column, stored, same, near in (
        ("date", "2026-01-02", ("'2026-01-02'::timestamp", "'2026-01-02'::timestamptz"), ("'2026-01-02 00:01'::timestamp", "'2026-01-02 00:01'::timestamptz")),
        ("timestamp", "2026-10-25 02:30", ("'2026-10-25 02:30'::timestamptz",), ("'2026-10-25 02:30+02'::timestamptz", "'2026-10-25'::date")),
        ("timestamptz", "2026-01-02 00:00+01", ("'2026-01-02'::timestamp", "'2026-01-02'::date"), ("'2026-01-03'::date",)),
    ):
        typed.execute(f"DROP TABLE IF EXISTS t; CREATE TABLE t (id {column} PRIMARY KEY, fence bigint NOT NULL DEFAULT 0)")
        typed.execute("INSERT INTO t VALUES (%s)", (stored,))
        for fence, key in enumerate(same, 1):
            assert (key, typed.execute(f"SELECT fence FROM fenced_claim(NULL::t, {key}, {fence})").fetchall()) == (key, [(fence,)])
        for key in near:
            assert (key, refusal(typed, f"SELECT fenced_claim_json('t', {key}, 99)").sqlstate) == (key, "P0002")
    mixed = "ARRAY[ROW('2026-01-02'::timestamptz), ROW('2026-01-02'::date), ROW('2026-01-02'::timestamp)]"
    found = typed.execute(f"SELECT fence FROM fenced_claim_many(NULL::t, {mixed}, 50)").fetchall()
    assert found == [(50,)]


def test_a_number_too_large_for_the_column_is_no_row_or_does_not_fit(typed):
    typed.execute("CREATE TABLE t (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0); INSERT INTO t VALUES (7)")
    assert refusal(typed, "SELECT fenced_claim_json('t', 4294967303, 5)").sqlstate == "P0002"
    assert refusal(typed, "SELECT fenced_claim_json('t', '4294967303', 5)").sqlstate == "22003"


def test_a_key_lookup_uses_the_primary_keys_index(typed):
    typed.execute("CREATE TABLE t (id varchar(20) PRIMARY KEY, fence bigint NOT NULL DEFAULT 0)")
    typed.execute("INSERT INTO t SELECT n::text FROM generate_series(1, 2000) n; ANALYZE t")
    typed.execute("CREATE TABLE n (id nick PRIMARY KEY, fence bigint NOT NULL DEFAULT 0)")
    typed.execute("INSERT INTO n SELECT n::text FROM generate_series(1, 2000) n; ANALYZE n")
    scans = """SELECT relkind, sum(pg_stat_get_xact_numscans(oid))::int FROM pg_class
        WHERE relname IN ('t', 'n', 't_pkey', 'n_pkey') GROUP BY 1"""
    before = dict(typed.execute(scans).fetchall())
    for table in ("t", "n"):
        typed.execute(f"SELECT fenced_claim_json('{table}', '77', 5)")
        typed.execute(f"SELECT fenced_claim_json('{table}', '{{\"id\": \"78\"}}'::jsonb, 5)")
    after = dict(typed.execute(scans).fetchall())
    assert (after["r"] - before["r"], after["i"] - before["i"]) == (0, 4)


PYTHON_KEYS = {
    "int": 7,
    "bigint": 2**40,
    "text": "a'b",
    "uuid": uuid.UUID("2f1c7d0e-6a3e-4c7e-9a52-0a6a3f5f2b11"),
    "numeric": decimal.Decimal("1.50"),
    "date": datetime.date(2026, 2, 28),
    "timestamptz": datetime.datetime(2026, 2, 28, 1, 2, 3, 456789, tzinfo=datetime.timezone.utc),
    "bytea": b"\x00\xff",
    "boolean": True,
}


@pytest.mark.parametrize("habit", ["plain", "prepared", "binary"])
def test_a_bind_parameter_of_every_habit_is_a_key(connect, habit):
    db = connect()
    for type_name, key in PYTHON_KEYS.items():
        db.execute(f"DROP TABLE IF EXISTS t; CREATE TABLE t (id {type_name} PRIMARY KEY, fence bigint NOT NULL DEFAULT 0)")
        db.execute("INSERT INTO t VALUES (%s)", (key,))
        marker = "%b" if habit == "binary" else "%s"
        claim = f"SELECT id FROM fenced_claim(NULL::t, {marker}, {marker})"
        for fence in (1, 2):
            assert db.execute(claim, (key, fence), prepare=habit == "prepared", binary=habit == "binary").fetchall() == [(key,)]
        if habit == "prepared":
            db.execute("DEALLOCATE ALL")
            db = connect()


def test_a_prepared_statement_without_types_finds_the_function(db):
    db.execute("CREATE TABLE t (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, v text); INSERT INTO t VALUES (1)")
    db.execute("PREPARE claim AS SELECT fence FROM fenced_claim(NULL::t, $1, $2)")
    db.execute("PREPARE change AS SELECT fenced_update('t', $1, $2, $3)")
    assert db.execute("EXECUTE claim('1', '5')").fetchall() == [(5,)]
    assert db.execute("EXECUTE change('1', '5', '{\"v\": \"x\"}')").fetchall() == [(True,)]


@pytest.fixture
def pairs(typed):
    """A connection to a table with a key of two columns, declared in another order than its columns."""
    typed.execute("CREATE TABLE pairs (tag text, v int, no int, fence bigint NOT NULL DEFAULT 0, PRIMARY KEY (no, tag))")
    typed.execute("INSERT INTO pairs VALUES ('a', 0, 1), ('b', 0, 1), ('a', 0, 2)")
    return typed


WHOLE_KEYS = (
    "ROW(1, 'b')",
    "ROW('1'::text, 'b'::text)",
    "ROW(1::bigint, 'b'::varchar)",
    "(1, 'b')",
    "ROW(1, 'b')::pair",
    "'{\"no\": 1, \"tag\": \"b\"}'::jsonb",
    "'{\"tag\": \"b\", \"no\": 1}'::jsonb",
    "'{\"no\": \"1\", \"tag\": \"b\"}'",
    "(SELECT jsonb_build_object('no', no, 'tag', tag) FROM pairs WHERE tag = 'b')",
)


def test_a_key_of_several_columns_is_a_row_or_an_object_in_any_order(pairs):
    for fence, key in enumerate(WHOLE_KEYS, 1):
        assert pairs.execute(f"SELECT no, tag, fence FROM fenced_claim(NULL::pairs, {key}, {fence})").fetchall() == [(1, "b", fence)], key
        assert pairs.execute(f"SELECT fenced_update('pairs', {key}, {fence}, '{{\"v\": {fence}}}')").fetchall() == [(True,)]
    assert pairs.execute("SELECT no, tag FROM pairs WHERE fence = 0 ORDER BY 1").fetchall() == [(1, "a"), (2, "a")]


BAD_KEYS = {
    "1": "22023",
    "'1'": "22023",
    "ROW(1)": "22023",
    "ROW(1, 'b', 2)": "22023",
    "ROW('b', 1)": "22P02",
    "ROW(1, NULL)": "22004",
    "ROW(NULL, NULL)": "22004",
    "ROW(1.5, 'b')": "P0002",
    "ROW('1.5', 'b')": "22P02",
    "ROW(1, 2)": "42804",
    "'{\"no\": 1}'::jsonb": "22023",
    "'{\"no\": 1, \"tag\": \"b\", \"v\": 0}'::jsonb": "22023",
    "'{\"no\": 1, \"Tag\": \"b\"}'::jsonb": "22023",
    "'{\"no\": 1, \"tag\": null}'::jsonb": "22004",
    "'[1, \"b\"]'::jsonb": "22023",
    "'{\"no\": 1'": "22P02",
    "ROW(9, 'b')": "P0002",
}


def test_a_key_that_is_partial_or_over_full_is_refused(pairs):
    before = pairs.execute("SELECT * FROM pairs").fetchall()
    calls = {key: f"SELECT fenced_claim_json('pairs', {key}, 5)" for key in BAD_KEYS}
    assert {key: refusal(pairs, sql).sqlstate for key, sql in calls.items()} == BAD_KEYS
    assert pairs.execute("SELECT * FROM pairs").fetchall() == before


def test_a_refused_key_names_the_columns_that_are_wanted(pairs):
    refused = refusal(pairs, "SELECT fenced_claim_json('pairs', ROW(1, 'b', 2), 5)")
    assert refused.diag.message_primary == "the key has 3 columns, the primary key 2"
    assert refused.diag.message_detail == 'The primary key of table "pairs" is (no, tag).'
    assert refused.diag.message_hint == "Pass ROW(no, tag) in this order, or a jsonb object of exactly these columns."
    assert refusal(pairs, "SELECT fenced_claim_json('pairs', '{\"no\": 1}'::jsonb, 5)").diag.message_primary == 'the key lacks column "tag"'


MANY = (
    "ARRAY[ROW(2, 'a'), ROW(1, 'b'), ROW(1, 'a'), ROW(1, 'b')]",
    "'[{\"no\": 2, \"tag\": \"a\"}, {\"no\": 1, \"tag\": \"b\"}, {\"tag\": \"a\", \"no\": 1}]'::jsonb",
    "'[{\"no\": 2, \"tag\": \"a\"}, {\"no\": 1, \"tag\": \"b\"}, {\"tag\": \"a\", \"no\": 1}]'",
    "ARRAY['{\"no\": 2, \"tag\": \"a\"}', '{\"no\": 1, \"tag\": \"b\"}', '{\"tag\": \"a\", \"no\": 1}']::jsonb[]",
)


def test_many_keys_of_several_columns_come_in_key_order(pairs):
    for fence, keys in enumerate(MANY, 1):
        claimed = pairs.execute(f"SELECT no, tag FROM fenced_claim_many(NULL::pairs, {keys}, {fence})").fetchall()
        assert claimed == [(1, "a"), (1, "b"), (2, "a")], keys


def test_rows_of_unlike_types_in_one_array_are_compared_as_the_columns_are(pairs):
    keys = "ARRAY[ROW(2::bigint, 'a'::name), ROW(1::numeric, 'b'::char(5)), ROW('1'::text, 'a'::varchar)]"
    assert pairs.execute(f"SELECT no, tag FROM fenced_claim_many(NULL::pairs, {keys}, 5)").fetchall() == [(1, "a"), (1, "b"), (2, "a")]
    same = "ARRAY[ROW(1, 'a'::name), ROW(1::bigint, 'a'::text), ROW('1'::text, 'a'::varchar)]"
    assert pairs.execute(f"SELECT no, tag FROM fenced_claim_many(NULL::pairs, {same}, 5)").fetchall() == [(1, "a")]


def test_a_long_key_is_cut_in_the_error_text(typed):
    typed.execute("CREATE TABLE t (id text PRIMARY KEY, fence bigint NOT NULL DEFAULT 0)")
    refused = refusal(typed, "SELECT fenced_claim_json('t', repeat('é', 1000000), 5)")
    assert refused.sqlstate == "P0002"
    assert refused.diag.message_detail == f"Key (id)=({'é' * 100}...) does not exist, or a row-security policy hides it from the caller."


def test_a_jsonb_parameter_is_a_whole_key(pairs):
    assert pairs.execute("SELECT fence FROM fenced_claim(NULL::pairs, %s, 5)", (Jsonb({"no": 1, "tag": "b"}),)).fetchall() == [(5,)]


def test_a_nondeterministic_collation_compares_keys_as_the_index_does(db):
    if not db.execute("SELECT FROM pg_collation WHERE collprovider = 'i'").fetchone():
        return  # this server is built without ICU
    db.execute("CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    db.execute('CREATE TABLE t (id text COLLATE nocase PRIMARY KEY, fence bigint NOT NULL DEFAULT 0); INSERT INTO t VALUES (\'Bob\')')
    assert db.execute("SELECT id FROM fenced_claim(NULL::t, 'bOB', 5)").fetchall() == [("Bob",)]
