"""Every form of a call resolves in one way, whatever a driver says of the types of its parameters.

Overloads are prefixes of each other: an argument more is another function, and no argument has a default. Each form is called
with parameters by drivers of several languages, with literals by psql, and from a prepared statement.
"""

import os
import subprocess

import pg8000.native
import psycopg
import pytest

from clients import roster
from harness import places

EVERY = os.environ.get("CLIENTS") == "all"
CALLERS = [caller for caller in roster.CALLERS if EVERY or roster.there(caller.runtime)]
MAJORS = places.majors_under_test()[: None if EVERY else 1]
on_one_major = pytest.mark.parametrize("pg", MAJORS, ids=lambda major: f"pg{major or 'own'}", indirect=True)

# A table with the usual fence column, and one with another.
TABLES = """
    CREATE TABLE plain (id int PRIMARY KEY, v int, fence bigint NOT NULL DEFAULT 0);
    CREATE TABLE other (id int PRIMARY KEY, v int, "Lock" bigint NOT NULL DEFAULT 0);
"""
# A call, its parameters, and the first column of what it answers. Each begins with empty tables but the last three, which go
# on. {row} stands for the table as a row, {table} for its name.
FORMS = [
    ("SELECT id FROM fenced_claim_or_insert({row}, $1, $2, $3)", [1, 5, '{"v": 1}'], "1"),
    ("SELECT id FROM fenced_claim_or_insert({row}, $1, $2, $3)", [1, 4, '{"v": 1}'], ""),
    ("SELECT fenced_upsert({table}, $1, $2, $3)", [2, 5, '{"v": 1}'], True),
    ("SELECT fenced_upsert({table}, $1, $2, $3)", [2, 4, '{"v": 2}'], False),
    ("SELECT fenced_upsert({table}, $1, $2, $3)", [2, 6, '{"v": 3}'], True),
]


def calls(*, key, patch):
    """The forms, with and without the name of the fence column: statement, parameters, expected."""
    for table, more in (("plain", []), ("other", ["Lock"])):
        for sql, parameters, expected in FORMS:
            sql = sql.format(row=f"NULL::{table}", table=f"'{table}'").replace("$1", key).replace("$3", patch)
            sql = sql[:-1] + (f", ${len(parameters) + 1})" if more else ")")
            yield sql, [*parameters, *more], expected


@pytest.fixture
def tables(dsn, db):
    db.execute(TABLES)
    return dsn


@on_one_major
@pytest.mark.parametrize("as_text", [False, True], ids=["key as it is", "key as text"])
@pytest.mark.parametrize("caller", CALLERS, ids=lambda caller: caller.name)
def test_every_form_resolves(caller, as_text, pg, tables):
    if not roster.there(caller.runtime):
        pytest.fail(f"{caller.runtime.name} is missing: run `make test-clients`", pytrace=False)
    key = "$1" if as_text or not caller.asks_for_types else "$1::int"
    asked = list(calls(key=key, patch="$3" if not caller.casts_json else "$3::jsonb"))
    lines = ["\t".join([sql, *(field(value, n == 0 and as_text) for n, value in enumerate(values))]) for sql, values, _ in asked]
    command = [str(word) for word in caller.command]
    done = subprocess.run(command, env={**os.environ, "DATABASE_URL": tables}, input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    truths = {"t": True, "true": True, "f": False, "false": False}
    seen = [truths.get(line, line) for line in done.stdout.splitlines()]
    assert list(zip(lines, seen, strict=True)) == list(zip(lines, [expected for *_, expected in asked], strict=True))


def field(value, as_text):
    kind = "i" if isinstance(value, int) and not as_text else "j" if str(value).startswith("{") else "s"
    return f"{kind}:{value}"


def literal(value):
    return str(value) if isinstance(value, int) else f"'{value}'"


def with_literals(sql, values, quote_key):
    for n, value in reversed(list(enumerate(values, 1))):
        sql = sql.replace(f"${n}", f"'{value}'" if n == 1 and quote_key else literal(value))
    return sql


@on_one_major
@pytest.mark.parametrize("quote_key", [False, True])
def test_every_form_resolves_with_literals_of_psql(pg, tables, quote_key):
    asked = list(calls(key="$1", patch="$3"))
    script = "".join(f"{with_literals(sql, values, quote_key)};\n\\echo .\n" for sql, values, _ in asked)
    said = pg.psql(script, tables.rpartition("/")[2], options=("-qAtX",))
    # A line with a point ends what each has answered, which may be no line.
    words = {True: "t\n", False: "f\n", "": ""}
    assert f"{said.strip()}\n" == "".join(words.get(expected, f"{expected}\n") + ".\n" for *_, expected in asked)


@on_one_major
@pytest.mark.parametrize("types", ["", "int", "bigint", "text", "varchar", "numeric", "unknown"])
def test_every_form_resolves_from_a_prepared_statement_whatever_the_type_of_the_key(pg, tables, db, types):
    for n, (sql, values, expected) in enumerate(calls(key="$1", patch="$3")):
        declared = f"({types})" if types else ""
        db.execute(f"PREPARE p{n} {declared} AS {sql}")
        given = ", ".join(f"'{value}'" if n else (f"'{value}'" if types in ("text", "varchar", "unknown", "") else str(value)) for n, value in enumerate(values))
        rows = [row[0] for row in db.execute(f"EXECUTE p{n}({given})")]
        seen = rows[0] if isinstance(expected, bool) else ",".join(map(str, rows))
        assert (sql, seen) == (sql, expected)


@on_one_major
def test_every_form_resolves_for_pg8000(pg, tables):
    parts = psycopg.conninfo.conninfo_to_dict(tables)
    db = pg8000.native.Connection(parts["user"], host=parts["host"], port=int(parts["port"]), database=parts["dbname"])
    try:
        for sql, values, expected in calls(key="$1", patch="$3"):
            named = sql
            for n in range(1, len(values) + 1):
                named = named.replace(f"${n}", f":p{n}")
            rows = [row[0] for row in db.run(named, **{f"p{n}": value for n, value in enumerate(values, 1)})]
            assert (sql, rows[0] if isinstance(expected, bool) else ",".join(map(str, rows))) == (sql, expected)
    finally:
        db.close()
