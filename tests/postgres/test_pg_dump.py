"""Dump and restore in every form, removing the extension, and a library that does not fit its SQL."""

import os
import subprocess

import psycopg
import pytest

# What a restored database is compared by.
CONTENT = {
    "rows": """SELECT 'Mixed Case', id::text, v, fence FROM "Mixed Case" UNION ALL SELECT 'parts', r, v, fence FROM parts
        UNION ALL SELECT 'far.away', id::text, v, fence FROM far.away ORDER BY 1, 2""",
    "guards": "SELECT resource, fence, owner FROM fence_internals.guards ORDER BY 1",
    "owners": 'SELECT id, "lock fence_owner"::text FROM far.away',
    "leases": "SELECT name, owner, fence = (SELECT last_value FROM fence_internals.lease_fences) FROM fence_internals.leases ORDER BY 1",
    "protected": "SELECT target::text, fence_column::text, owner_column::text, open_by, replicated FROM fence_protected ORDER BY 1",
    "granted": "SELECT has_function_privilege('app', 'fenced_guard(text, bigint)', 'EXECUTE')",
}
ROWS = [("Mixed Case", "1", 1, 57), ("far.away", "3", 1, 57), ("parts", "a", 1, 57), ("parts", "b", 1, 57)]
LEASES = [("held", "né 'x'", True), ("released", None, False)]
GUARDS = [("ledger", 57, "né x"), ("né 'x'", 58, None)]
PROTECTED = [
    ("\"Mixed Case\"", "fence", None, [], "plain"),
    ("far.away", "lock fence", "lock fence_owner", [], "plain"),
    *((table, "fence", None, [], "newest") for table in ("pa", "parts", "pb")),
]
SOURCE = """
    CREATE EXTENSION pg_fence;
    CREATE TABLE "Mixed Case" (id int PRIMARY KEY, v int, fence bigint NOT NULL DEFAULT 0);
    CREATE TABLE parts (r text PRIMARY KEY, v int, fence int NOT NULL DEFAULT 0) PARTITION BY LIST (r);
    CREATE TABLE pa PARTITION OF parts FOR VALUES IN ('a');
    CREATE TABLE pb PARTITION OF parts FOR VALUES IN ('b');
    CREATE SCHEMA far;
    CREATE TABLE far.away (dropped int, id int PRIMARY KEY, v int, fence bigint NOT NULL DEFAULT 0);
    ALTER TABLE far.away DROP COLUMN dropped;
    ALTER TABLE far.away RENAME fence TO "lock fence";
    ALTER TABLE far.away ADD "lock fence_owner" varchar(40);
    INSERT INTO "Mixed Case" VALUES (1, 0);
    INSERT INTO parts VALUES ('a', 0), ('b', 0);
    INSERT INTO far.away VALUES (3, 0);
    SELECT fence_protect('"Mixed Case"'), fence_protect('parts', replicated => 'newest'), fence_protect('far.away', 'lock fence');
    SELECT fenced_write('"Mixed Case"', 1, 57, '{"v": 1}'), fenced_write('far.away', 3, 57, '{"v": 1}', 'lock fence', 'né x');
    SELECT fenced_write('parts', r, 57, '{"v": 1}') FROM (VALUES ('a'), ('b')) p (r);
    SELECT fenced_guard('ledger', 57, '', 'né x'), fenced_guard('né ''x''', 58);
    SET pg_fence.lease_in_transaction = on;
    SELECT fencelock_acquire('released', 'a', 86400000), fencelock_release('released', 'a'), fencelock_acquire('held', 'né ''x''', 86400000);
    GRANT EXECUTE ON FUNCTION fenced_guard(text, bigint) TO app;
"""
CONTENT["rows"] = CONTENT["rows"].replace("v, fence FROM far.away", 'v, "lock fence" FROM far.away')


class Databases:
    """A source database of a plain owner, dumps of it, and empty databases to restore into."""

    def __init__(self, server, folder):
        self.server, self.folder, self._made = server, folder, []
        server.psql("CREATE ROLE alice LOGIN; CREATE ROLE app")
        self.source = self.empty()
        with psycopg.connect(self.url(self.source), autocommit=True) as db:
            db.execute(SOURCE)

    def empty(self, sql=None):
        name = f"dump_{len(self._made)}"
        self._made.append(name)
        self.server.psql(f"CREATE DATABASE {name} OWNER alice TEMPLATE template0")
        self.server.psql("GRANT ALL ON SCHEMA public TO alice", name)
        if sql:
            self.server.psql(sql, name)
        return name

    def run(self, program, *words):
        command = [str(self.server.installation.program(program)), *words]
        environment = {**os.environ, **self.server.installation.environment}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)

    def dump(self, *options, user="alice", source=None):
        path = self.folder / f"dump{len(list(self.folder.iterdir()))}"
        done = self.run("pg_dump", *options, "-f", str(path), "-d", self.url(source or self.source, user))
        assert (done.returncode, done.stderr) == (0, "")
        return path

    def restore(self, path, database, *options, user="alice"):
        """What went wrong, one line per error."""
        if path.is_dir() or path.read_bytes()[:5] == b"PGDMP":
            done = self.run("pg_restore", *options, "-d", self.url(database, user), str(path))
        else:
            done = self.run(str(self.server.installation.psql), "-qX", "-f", str(path), "-d", self.url(database, user))
        return [line for line in done.stderr.splitlines() if "ERROR" in line or "error:" in line]

    def url(self, database, user="alice"):
        return self.server.url(database).replace("postgres@", f"{user}@")

    def content(self, database):
        with psycopg.connect(self.server.url(database)) as db:
            return {name: db.execute(query).fetchall() for name, query in CONTENT.items()}

    def close(self):
        for name in self._made:
            self.server.psql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        self.server.psql("DROP ROLE alice; DROP ROLE app")


@pytest.fixture(scope="module")
def databases(pg, tmp_path_factory):
    made = Databases(pg, tmp_path_factory.mktemp("dumps"))
    yield made
    made.close()


WHOLE = {"rows": ROWS, "owners": [(3, "né x")], "guards": GUARDS, "leases": LEASES, "protected": PROTECTED, "granted": [(True,)]}
FORMS = {
    "plain": ((), ()),
    "custom": (("-Fc",), ()),
    "custom in parallel": (("-Fc",), ("-j4",)),
    "directory in parallel": (("-Fd", "-j2"), ("-j4",)),
    "inserts": (("--inserts",), ()),
}


def test_the_source_is_as_the_tests_say(databases):
    assert databases.content(databases.source) == WHOLE


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("user", ["alice", "postgres"])
def test_a_whole_dump_restores_without_an_error(databases, form, user):
    dump_options, restore_options = FORMS[form]
    restored = databases.empty()
    assert databases.restore(databases.dump(*dump_options, user=user), restored, *restore_options, user=user) == []
    assert databases.content(restored) == WHOLE


def test_what_was_restored_works_for_its_owner(databases):
    restored = databases.empty()
    databases.restore(databases.dump(), restored)
    with psycopg.connect(databases.url(restored), autocommit=True) as db:
        assert db.execute("SELECT fenced_update('parts', 'a', 57, '{\"v\": 2}')").fetchone() == (True,)
        assert db.execute("SELECT fenced_update('parts', 'a', 56, '{\"v\": 3}')").fetchone() == (False,)
        for sqlstate, statement in [("LF003", "UPDATE parts SET v = 9"), ("LF001", "DO $$ BEGIN PERFORM fenced_guard('ledger', 56); END $$")]:
            with pytest.raises(psycopg.Error) as caught:
                db.execute(statement)
            assert caught.value.sqlstate == sqlstate
        db.execute("DO $$ BEGIN PERFORM fenced_guard('ledger', 60); END $$")
        (last,) = db.execute("SELECT max(fence) FROM fence_internals.leases").fetchone()
        assert db.execute("SELECT fencelock_acquire('held', 'b', 1000)").fetchone() == (None,)
        assert db.execute("SELECT fencelock_acquire('released', 'b', 1000) > %s", (last,)).fetchone() == (True,)
        assert db.execute("SELECT fencelock_release('held', 'né ''x''')").fetchone() == (True,)
        second = databases.empty()
        assert databases.restore(databases.dump(source=restored), second) == []
        assert ("ledger", 60, None) in databases.content(second)["guards"]


def test_a_schema_only_dump_restores_the_protection_and_no_guard(databases):
    restored = databases.empty()
    assert databases.restore(databases.dump("--schema-only"), restored) == []
    assert databases.content(restored) == {**WHOLE, "rows": [], "owners": [], "guards": [], "leases": []}


def test_a_data_only_dump_is_refused_by_protected_tables_with_advice(databases):
    restored = databases.empty()
    databases.restore(databases.dump("--schema-only"), restored)
    path = databases.dump("--data-only")
    errors = databases.restore(path, restored)
    assert len(errors) == 4
    assert all("which is not in use" in error for error in errors)
    psql = databases.run(str(databases.server.installation.psql), "-qX", "-f", str(path), "-d", databases.url(restored))
    assert "To restore data alone, use --disable-triggers." in psql.stderr
    assert databases.content(restored)["rows"] == []


def test_a_data_only_dump_restores_with_disabled_triggers(databases):
    restored = databases.empty()
    databases.restore(databases.dump("--schema-only"), restored)
    assert databases.restore(databases.dump("--data-only", "--disable-triggers"), restored, user="postgres") == []
    with psycopg.connect(databases.url(restored), autocommit=True) as db:
        opened = "SELECT target::text FROM fence_protected WHERE open_by <> '{}' ORDER BY 1"
        assert db.execute(opened).fetchall() == [("pa",), ("pb",)], "the server enables all triggers as ordinary ones"
        db.execute("SELECT fence_protect('parts')")
    assert databases.content(restored) == WHOLE


def test_a_plain_owner_restores_data_into_tables_that_are_not_protected(databases):
    restored = databases.empty()
    databases.restore(databases.dump("--schema-only"), restored)
    tables = ["\"Mixed Case\"", "parts", "far.away"]
    with psycopg.connect(databases.url(restored), autocommit=True) as db:
        for table in tables:
            db.execute("SELECT fence_unprotect(%s::text::regclass)", (table,))
        assert databases.restore(databases.dump("--data-only"), restored) == []
        for table in tables:
            column, replicated = "lock fence" if table == "far.away" else "fence", "newest" if table == "parts" else None
            db.execute("SELECT fence_protect(%s::text::regclass, %s, replicated => %s)", (table, column, replicated))
    assert databases.content(restored) == WHOLE


@pytest.mark.parametrize("options", [("-t", "far.away"), ("-n", "far")])
def test_a_part_restores_into_a_database_that_has_the_extension(databases, options):
    restored = databases.empty("CREATE EXTENSION pg_fence; CREATE SCHEMA IF NOT EXISTS far AUTHORIZATION alice")
    errors = databases.restore(databases.dump(*options), restored)
    assert [error for error in errors if 'schema "far" already exists' not in error] == []
    with psycopg.connect(databases.server.url(restored)) as db:
        assert db.execute('SELECT id, v, "lock fence" FROM far.away').fetchall() == [(3, 1, 57)]
        assert db.execute(CONTENT["protected"]).fetchall() == [("far.away", "lock fence", "lock fence_owner", [], "plain")]


def test_the_extension_may_lie_in_any_schema(databases):
    source = databases.empty('CREATE SCHEMA "My Fences"; CREATE EXTENSION pg_fence SCHEMA "My Fences"')
    fill = """SET search_path = public, "My Fences";
        CREATE TABLE t (id int PRIMARY KEY, v int, fence bigint NOT NULL DEFAULT 0); INSERT INTO t VALUES (1, 0);
        SELECT fence_protect('t'), fenced_write('t', 1, 7, '{"v": 1}');
        DO $$ BEGIN PERFORM fenced_guard('r', 8); END $$"""
    databases.server.psql(fill, source)
    restored = databases.empty()
    assert databases.restore(databases.dump(user="postgres", source=source), restored, user="postgres") == []
    with psycopg.connect(databases.server.url(restored), autocommit=True) as db:
        assert db.execute('SELECT target::text, open_by FROM "My Fences".fence_protected').fetchall() == [("t", [])]
        assert db.execute("SELECT fence FROM fence_internals.guards").fetchall() == [(8,)]
        with pytest.raises(psycopg.Error, match="requires a fence"):
            db.execute("UPDATE t SET v = 2")
        assert db.execute("""SELECT "My Fences".fenced_update('t', 1, 7, '{"v": 2}')""").fetchone() == (True,)


def test_the_schema_of_the_extension_may_be_renamed_under_a_session(pg):
    pg.psql("CREATE DATABASE renamed")
    try:
        with psycopg.connect(pg.url("renamed"), autocommit=True) as db:
            db.execute("CREATE SCHEMA one; CREATE EXTENSION pg_fence SCHEMA one")
            db.execute("CREATE TABLE t (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0); SELECT one.fence_protect('t')")
            db.execute("DO $$ BEGIN PERFORM one.fenced_guard('r', 5), one.fenced_guard('s', 5); END $$")
            db.execute("ALTER SCHEMA one RENAME TO two; CREATE SCHEMA one; CREATE TABLE one.guards (resource text, fence bigint)")
            db.execute("DO $$ BEGIN PERFORM two.fenced_guard('r', 6), two.fenced_guard('new', 6), two.fence_guard_reset('s', 7); END $$")
            guards = db.execute("SELECT resource, fence FROM fence_internals.guards ORDER BY 1").fetchall()
            assert guards == [("new", 6), ("r", 6), ("s", 7)]
            assert db.execute("SELECT count(*) FROM one.guards").fetchone() == (0,)
            db.execute("INSERT INTO t VALUES (1)")
            with pytest.raises(psycopg.Error, match="requires a fence"):
                db.execute("UPDATE t SET id = 2")
            assert db.execute("SELECT open_by FROM two.fence_protected").fetchall() == [([],)]
    finally:
        pg.psql("DROP DATABASE renamed WITH (FORCE)")


def test_the_extension_cannot_be_dropped_from_under_protected_tables(db):
    db.execute("CREATE TABLE t (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0); INSERT INTO t VALUES (1)")
    db.execute("SELECT fence_protect('t'); SELECT * FROM fenced_claim(NULL::t, 1, 57); DO $$ BEGIN PERFORM fenced_guard('r', 5); END $$")
    with pytest.raises(psycopg.errors.DependentObjectsStillExist):
        db.execute("DROP EXTENSION pg_fence")
    db.execute("DROP EXTENSION pg_fence CASCADE")
    assert db.execute("SELECT * FROM t").fetchall() == [(1, 57)]
    assert db.execute("SELECT tgname FROM pg_trigger WHERE NOT tgisinternal").fetchall() == []
    db.execute("UPDATE t SET id = 2; CREATE EXTENSION pg_fence; SELECT fence_protect('t')")
    assert db.execute("SELECT open_by FROM fence_protected").fetchall() == [([],)]
    db.execute("DO $$ BEGIN PERFORM fenced_guard('r', 1); END $$")
    db.execute("SELECT fence_unprotect('t'); DROP EXTENSION pg_fence")


def test_a_library_that_does_not_know_its_sql_says_so(db, connect):
    db.execute("CREATE TABLE t (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0); INSERT INTO t VALUES (1); SELECT fence_protect('t')")
    db.execute("UPDATE pg_extension SET extversion = '9.9.9' WHERE extname = 'pg_fence'")
    for statement in ["SELECT * FROM fenced_claim(NULL::t, 1, 5)", "UPDATE t SET id = 2", "DO $$ BEGIN PERFORM fenced_guard('r', 5); END $$"]:
        with pytest.raises(psycopg.Error) as caught:
            connect().execute(statement)
        assert (caught.value.sqlstate, caught.value.diag.message_primary) == (
            "55000",
            "pg_fence library is version 0.1.0, but the SQL objects in this database are version 9.9.9",
        )
        assert caught.value.diag.message_hint == (
            "Install the library of that version, or run ALTER EXTENSION pg_fence UPDATE TO '0.1.0'; then reconnect."
        )
    db.execute("UPDATE pg_extension SET extversion = '0.1.0' WHERE extname = 'pg_fence'")
    assert connect().execute("SELECT id FROM fenced_claim(NULL::t, 1, 5)").fetchone() == (1,)


def test_a_pooled_connection_hands_nothing_to_its_next_user(db, connect):
    """One session, many users behind a pool in transaction mode, each with a fence of its own."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL DEFAULT 0, fence bigint NOT NULL DEFAULT 0)")
    db.execute("INSERT INTO t SELECT generate_series(1, 20); SELECT fence_protect('t')")
    pooled = connect()
    for user in range(1, 21):
        pooled.execute("SELECT id FROM fenced_claim(NULL::t, %s, %s)", (user, 100 + user))
        pooled.execute("BEGIN")
        pooled.execute("SELECT fence_use(%s), fenced_guard('r', 7)", (100 + user,))
        pooled.execute("UPDATE t SET v = v + 1 WHERE id = %s", (user,))
        if user > 1:
            with pytest.raises(psycopg.Error) as caught:
                pooled.execute("UPDATE t SET v = v + 1 WHERE id = %s", (user - 1,))
            assert caught.value.sqlstate == "LF002", "only the user's own fence is in use"
            pooled.execute("ROLLBACK")
        else:
            pooled.execute("COMMIT")
        with pytest.raises(psycopg.Error) as caught:
            pooled.execute("UPDATE t SET v = v + 1 WHERE id = %s", (user,))
        assert caught.value.sqlstate == "LF003"
        assert db.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'userlock'").fetchone() == (0,)
    assert db.execute("SELECT sum(v)::int FROM t").fetchone() == (1,)
