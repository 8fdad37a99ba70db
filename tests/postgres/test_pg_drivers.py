"""Bind parameters in the habits of drivers: text, binary, typed, untyped, prepared at protocol level, pipelined, simple.

Each driver runs one and the same story, with keys of many types. What a pooler between driver and server changes is in
test_pg_pooling.
"""

import asyncio
import datetime
import decimal
import json
import re
import uuid

import asyncpg
import pg8000.native
import psycopg
import pytest
import sqlalchemy
from psycopg.types.json import Jsonb

from harness import places

UTC = datetime.timezone.utc
# For each type a key as a driver has it, and its text.
KEYS = {
    "smallint": (7, "7"),
    "int": (70_000, "70000"),
    "bigint": (2**40, str(2**40)),
    "text": ("a'b \\ é", "a'b \\ é"),
    "varchar(9)": ("seven", "seven"),
    "uuid": (uuid.UUID(int=7), str(uuid.UUID(int=7))),
    "numeric": (decimal.Decimal("1.50"), "1.50"),
    "date": (datetime.date(2026, 2, 28), "2026-02-28"),
    "timestamptz": (datetime.datetime(2026, 2, 28, 1, 2, 3, 456789, UTC), "2026-02-28 01:02:03.456789+00"),
    "bytea": (b"\x00\xff'", "\\x00ff27"),
    "boolean": (True, "t"),
}


def fetched(cursor):
    """The rows of a statement; none for one that returns none."""
    try:
        return cursor.fetchall()
    except psycopg.ProgrammingError:
        return []


class Psycopg:
    """psycopg 3; the options are those of its cursors and of execute."""

    def __init__(self, url, cursor=psycopg.Cursor, marker="%s", **options):
        self._connection = psycopg.connect(url, autocommit=True, cursor_factory=cursor)
        self._marker, self._options = marker, options

    casts = False

    def key(self, value, text):
        return value

    def patch(self, value):
        return Jsonb(value)

    def run(self, sql, *parameters):
        if self._marker == "$":
            cursor = self._connection.execute(sql, parameters, **self._options)
        else:
            order = [int(number) - 1 for number in re.findall(r"\$(\d)", sql)]
            marked = re.sub(r"\$\d", self._marker, sql)
            cursor = self._connection.execute(marked, [parameters[at] for at in order] or None, **self._options)
        return fetched(cursor)

    def close(self):
        self._connection.close()


class Pipelined(Psycopg):
    """Several statements on their way before the first answer is read."""

    def run(self, sql, *parameters):
        with self._connection.pipeline():
            first = self._connection.execute("SELECT %s::int", (1,))
            rows = super().run(sql, *parameters)
            assert first.fetchone() == (1,)
            return rows


class Texts(Psycopg):
    """Every parameter as text without a type, as libpq sends what it is given."""

    def key(self, value, text):
        return text

    def patch(self, value):
        return json.dumps(value)

    def run(self, sql, *parameters):
        texts = [parameter.encode() if isinstance(parameter, str) else str(parameter).encode() for parameter in parameters]
        result = self._connection.pgconn.exec_params(sql.encode(), texts)
        if result.status not in (psycopg.pq.ExecStatus.TUPLES_OK, psycopg.pq.ExecStatus.COMMAND_OK):
            raise psycopg.errors.error_from_result(result)
        rows = [[result.get_value(row, column) for column in range(result.nfields)] for row in range(result.ntuples)]
        types = {20: int, 23: int, 16: lambda value: value == b"t", 25: bytes.decode}
        return [
            tuple(value if value is None else types.get(result.ftype(at), bytes)(value) for at, value in enumerate(row))
            for row in rows
        ]


class Asyncpg:
    """Asks the server for the types of parameters and sends them in binary form, from prepared statements it keeps."""

    def __init__(self, url, casts=False):
        self._loop, self.casts = asyncio.new_event_loop(), casts
        self._connection = self._loop.run_until_complete(asyncpg.connect(url))

    def key(self, value, text):
        return value if self.casts else text

    def patch(self, value):
        return json.dumps(value)

    def run(self, sql, *parameters):
        return [tuple(row) for row in self.fetch(sql, *parameters)]

    def fetch(self, sql, *parameters):
        """As the driver's own, with the wait for it."""
        return self._loop.run_until_complete(self._connection.fetch(sql, *parameters))

    def close(self):
        self._loop.run_until_complete(self._connection.close())
        self._loop.close()


class Pg8000:
    """In plain Python: parameters as text, with the types of the Python values."""

    casts = False

    def __init__(self, url):
        parts = psycopg.conninfo.conninfo_to_dict(url)
        self.connection = pg8000.native.Connection(
            parts["user"], host=parts["host"], port=int(parts["port"]), database=parts["dbname"]
        )

    def key(self, value, text):
        return value

    def patch(self, value):
        return json.dumps(value)

    def run(self, sql, *parameters):
        named = re.sub(r"\$(\d)", r":p\1", sql)
        values = {f"p{number}": value for number, value in enumerate(parameters, 1)}
        return [tuple(row) for row in self.connection.run(named, **values) or []]

    def close(self):
        self.connection.close()


DRIVERS = {
    "psycopg": Psycopg,
    "psycopg binary": lambda url: Psycopg(url, marker="%b", binary=True),
    "psycopg text": lambda url: Psycopg(url, marker="%t"),
    "psycopg prepared": lambda url: Psycopg(url, prepare=True),
    "psycopg in a pipeline": Pipelined,
    "psycopg raw, server-side": lambda url: Psycopg(url, psycopg.RawCursor, marker="$"),
    "psycopg client-side, simple protocol": lambda url: Psycopg(url, psycopg.ClientCursor),
    "untyped texts": Texts,
    "asyncpg, key as text": Asyncpg,
    "asyncpg, key with a cast": lambda url: Asyncpg(url, casts=True),
    "pg8000": Pg8000,
}
# Clock-sized, so that no driver can take them for 32-bit numbers.
OLD, NEW = 1_795_968_243_472_377, 1_795_968_244_978_354
SEATS = "CREATE TABLE seats (plane text, seat int, guest text, fence bigint NOT NULL DEFAULT 0, PRIMARY KEY (plane, seat))"


@pytest.fixture(params=DRIVERS)
def driver(request, dsn, db):
    """A driver's connection to a database with a table for each type of key: t0, t1, ..."""
    for number, (type_name, (key, _)) in enumerate(KEYS.items()):
        db.execute(f"CREATE TABLE t{number} (id {type_name} PRIMARY KEY, v text, fence bigint NOT NULL DEFAULT 0)")
        db.execute(f"INSERT INTO t{number} VALUES (%s, 'new')", (key,))
    driver = DRIVERS[request.param](dsn)
    yield driver
    driver.close()


def test_every_function_takes_what_a_driver_binds(driver, db):
    for number, (type_name, (value, text)) in enumerate(KEYS.items()):
        key, patch = driver.key(value, text), driver.patch
        bound = f"$1::{type_name}" if driver.casts else "$1"
        row, table = f"NULL::t{number}, {bound}", f"'t{number}', {bound}"
        # Twice, as some drivers prepare a statement when they see it again.
        for fence in (OLD - 1, OLD):
            assert driver.run(f"SELECT v, fence FROM fenced_claim({row}, $2)", key, fence) == [("new", fence)], type_name
        assert driver.run(f"SELECT fenced_claim_json({table}, $2)->>'v'", key, OLD) == [("new",)]
        assert driver.run(f"SELECT fenced_update({table}, $2, $3)", key, OLD, patch({"v": "a"})) == [(True,)]
        returned = driver.run(f"SELECT v FROM fenced_update_returning({row}, $2, $3)", key, OLD, patch({"v": "b"}))
        assert returned == [("b",)]
        assert driver.run(f"SELECT fenced_write({table}, $2, $3)", key, NEW, patch({"v": "c"})) == [(True,)]
        assert driver.run(f"SELECT v FROM fenced_claim({row}, $2)", key, OLD) == []
        assert driver.run(f"SELECT fenced_update({table}, $2, $3)", key, OLD, patch({"v": "d"})) == [(False,)]
        assert db.execute(f"SELECT v, fence FROM t{number}").fetchall() == [("c", NEW)], "the stale call changed nothing"
        assert driver.run(f"SELECT fenced_delete({table}, $2)", key, OLD) == [(False,)]
        assert driver.run(f"SELECT fenced_delete({table}, $2)", key, NEW) == [(True,)]
        for fence, seen in ((NEW, [("n", NEW)]), (OLD, [])):
            assert driver.run(f"SELECT v, fence FROM fenced_claim_or_insert({row}, $2, $3)", key, fence, patch({"v": "n"})) == seen
        assert driver.run(f"SELECT id::text FROM t{number}") == db.execute(f"SELECT %s::{type_name}::text", (text,)).fetchall()
        db.execute(f"DELETE FROM t{number}")
        for fence, seen in ((NEW, True), (OLD, False)):
            assert driver.run(f"SELECT fenced_upsert({table}, $2, $3)", key, fence, patch({"v": "m"})) == [(seen,)]
        assert db.execute(f"SELECT v, fence FROM t{number}").fetchall() == [("m", NEW)]


def test_guards_passes_arrays_rows_as_keys_and_errors_in_every_driver(driver, db):
    number = list(KEYS).index("int")
    db.execute(f"ALTER TABLE t{number} RENAME TO t; INSERT INTO t VALUES (3); SELECT fence_protect('t')")
    db.execute(f"{SEATS}; INSERT INTO seats VALUES ('LH 1', 12)")
    key = driver.key(*KEYS["int"])
    bound = "$1::int" if driver.casts else "$1"
    for expected, fence in [("LF002", NEW), ("LF005", 0)]:
        with pytest.raises((psycopg.Error, asyncpg.PostgresError, pg8000.native.DatabaseError)) as caught:
            driver.run(f"SELECT fenced_update('t', {bound}, $2, $3)", key, fence, driver.patch({"v": "a"}))
        assert sqlstate(caught.value) == expected
    assert driver.run(f"SELECT fence FROM fenced_claim(NULL::t, {bound}, $2)", key, OLD) == [(OLD,)]
    driver.run("BEGIN")
    driver.run("SELECT fenced_guard($1, $2)", "resource", OLD)
    driver.run("SELECT fence_use($1)", OLD)
    driver.run("UPDATE t SET v = $1 WHERE v = $2", "plain", "new")
    driver.run("COMMIT")
    assert db.execute("SELECT v, fence FROM t WHERE id > 3").fetchall() == [("plain", OLD)]
    assert db.execute("SELECT resource, fence FROM fence_internals.guards").fetchall() == [("resource", OLD)]

    keys = "{70000,3}" if isinstance(driver, Texts) else [70_000, 3]
    assert driver.run("SELECT id FROM fenced_claim_many(NULL::t, $1::int[], $2)", keys, OLD) == [(3,), (70_000,)]
    seat, seats = driver.patch({"seat": 12, "plane": "LH 1"}), driver.patch([{"seat": 12, "plane": "LH 1"}])
    assert driver.run("SELECT fence FROM fenced_claim(NULL::seats, $1::jsonb, $2)", seat, OLD) == [(OLD,)]
    assert driver.run("SELECT fence FROM fenced_claim(NULL::seats, ROW($1::text, $2::int), $3)", "LH 1", 12, OLD) == [(OLD,)]
    assert driver.run("SELECT fence FROM fenced_claim_many(NULL::seats, $1::jsonb, $2)", seats, NEW) == [(NEW,)]


def test_every_form_with_an_owner_takes_what_a_driver_binds(driver, db):
    """The name of the fence column in the SQL or bound, the owner bound, the name of its column in either way or left out."""
    for number, (type_name, (value, text)) in enumerate(KEYS.items()):
        db.execute(f"ALTER TABLE t{number} ADD fence_owner text")
        key, patch = driver.key(value, text), driver.patch
        bound = f"$1::{type_name}" if driver.casts else "$1"
        row, table = f"NULL::t{number}, {bound}", f"'t{number}', {bound}"
        for named, names in [("'fence', $4", ()), ("'fence', $4, 'fence_owner'", ()), ("$5, $4", ("fence",)), ("$5, $4, $6", ("fence", "fence_owner"))]:
            at3 = re.sub(r"\$(\d)", lambda match: f"${int(match[1]) - 1}", named)
            assert driver.run(f"SELECT fence_owner FROM fenced_claim({row}, $2, {at3})", key, OLD, "A", *names) == [("A",)]
            assert driver.run(f"SELECT fenced_claim_json({table}, $2, {at3})->>'fence_owner'", key, OLD, "A", *names) == [("A",)]
            for function in ("fenced_update", "fenced_write", "fenced_upsert"):
                assert driver.run(f"SELECT {function}({table}, $2, $3, {named})", key, OLD, patch({"v": "a"}), "A", *names) == [(True,)]
            for function in ("fenced_update_returning", "fenced_claim_or_insert"):
                assert driver.run(f"SELECT v FROM {function}({row}, $2, $3, {named})", key, OLD, patch({"v": "a"}), "A", *names) == [("a",)]
            with pytest.raises((psycopg.Error, asyncpg.PostgresError, pg8000.native.DatabaseError)) as caught:
                driver.run(f"SELECT fenced_delete({table}, $2, {at3})", key, OLD, "B", *names)
            assert sqlstate(caught.value) == "LF007"
        assert driver.run(f"SELECT fenced_delete({table}, $2, 'fence', $3)", key, OLD, "A") == [(True,)]
    guard = ("SELECT fenced_guard($1, $2, $3, $4)", "resource", OLD, "")
    for _ in range(2):
        driver.run("BEGIN")
        assert driver.run(*guard, "A") == [(OLD,)]
        driver.run("COMMIT")
    driver.run("BEGIN")
    with pytest.raises((psycopg.Error, asyncpg.PostgresError, pg8000.native.DatabaseError)) as caught:
        driver.run(*guard, "B")
    assert sqlstate(caught.value) == "LF007"


def test_many_rows_take_the_arrays_that_a_driver_binds(driver, db):
    """Keys as a list where the driver knows their types, else as the text of an array; fences as a list; patches as JSON."""
    as_text = isinstance(driver, Texts) or (isinstance(driver, Asyncpg) and not driver.casts)
    fences = (lambda *fences: "{" + ",".join(map(str, fences)) + "}") if isinstance(driver, Texts) else (lambda *fences: list(fences))
    for number, (type_name, (value, text)) in enumerate(KEYS.items()):
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        keys, patch = (f'{{"{escaped}"}}' if as_text else [value]), driver.patch
        bound = f"$1::{type_name}[]" if driver.casts else "$1"
        call = f"SELECT ordinal, verdict, stored_fence FROM fenced_{{}}_many('t{number}', {bound}, $2"
        for fence in (OLD, NEW):
            assert driver.run(call.format("write") + ", $3)", keys, fences(fence), patch({"v": "a"})) == [(1, "written", fence)], type_name
        assert driver.run(call.format("update") + ", $3)", keys, fences(NEW), patch([{"v": "b"}])) == [(1, "written", NEW)]
        assert driver.run(call.format("update") + ", $3, 'fence')", keys, fences(OLD), patch([{"v": "c"}])) == [(1, "stale", NEW)]
        assert db.execute(f"SELECT v, fence FROM t{number}").fetchall() == [("b", NEW)]
        assert driver.run(call.format("delete") + ")", keys, fences(OLD)) == [(1, "stale", NEW)]
        assert driver.run(call.format("delete") + ", 'fence')", keys, fences(NEW)) == [(1, "written", None)]


def sqlstate(error):
    """The SQLSTATE, wherever a driver keeps it."""
    return getattr(error, "sqlstate", None) or error.args[0]["C"]


def test_the_readmes_table_of_drivers_is_run_as_it_stands(dsn, db):
    """Each call of the table, with that driver's own connection as `db`."""
    section = (places.ROOT / "pg_fence" / "README.md").read_text().split("## Drivers\n")[1].split("\n## ")[0]
    calls = dict(re.findall(r"^\| (\w+) \| (`db\..*`) \|$", section, re.MULTILINE))
    engine = sqlalchemy.create_engine(dsn.replace("postgresql://", "postgresql+psycopg://"))
    asynchronous, plain, mapped, pg8000_driver = Asyncpg(dsn), psycopg.connect(dsn), engine.connect(), Pg8000(dsn)
    opened = {"psycopg": plain, "asyncpg": asynchronous, "pg8000": pg8000_driver.connection, "SQLAlchemy": mapped}
    assert list(calls) == list(opened)
    for fence, (name, code) in enumerate(calls.items(), 1_000):
        db.execute("DROP TABLE IF EXISTS counters; CREATE TABLE counters (id int PRIMARY KEY, value int, fence bigint)")
        db.execute("INSERT INTO counters VALUES (1, 1, 0)")
        names = {"db": opened[name], "fence": fence, "json": json, "Jsonb": Jsonb, "text": sqlalchemy.text}
        answers = [[tuple(row) for row in eval(call, names)] for call in re.findall("`([^`]+)`", code)]
        assert answers == [[(1, 1, fence)], [(True,)]], name
        for connection in (plain, mapped):
            connection.commit()
        assert db.execute("SELECT value FROM counters").fetchone() == (2,)
    for connection in (plain, mapped, asynchronous, pg8000_driver):
        connection.close()
    engine.dispose()
