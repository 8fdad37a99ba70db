"""ALTER EXTENSION pg_fence UPDATE: what a database has stored and protected, survives it.

There is one version so far, so the tests make an older one of it: one that lacks things, and has others in another form.
A library knows its own SQL alone, so a session with the library of that older version is one that was checked before.
"""

import hashlib
import os
import re
import shutil
import subprocess

import psycopg
import pytest

from harness import PostgresServer, places
from harness.process import server_account, temporary_folder

SQL = places.ROOT / "sql"
CURRENT = re.search(r"default_version = '(.*)'", (SQL / "pg_fence.control").read_text())[1]
OLDER = "0.0.9"
INSTALLED = (SQL / f"pg_fence--{CURRENT}.sql").read_text()


def statement(start):
    """A statement of the script, by its first words."""
    (found,) = re.findall(rf"^{re.escape(start)}.*?;$", INSTALLED, re.MULTILINE | re.DOTALL)
    return found


FORGET = [
    *(statement(f"{kind} FUNCTION fence_guard_forget(") for kind in ("CREATE", "COMMENT ON")),
    *re.findall(r"^(?:GRANT|REVOKE) .*fence_guard_forget.*;$", INSTALLED, re.MULTILINE),
]
REFUSES, RESET = statement("CREATE FUNCTION fence_internals.refuses_update("), statement("CREATE FUNCTION pg_stat_fence_reset(")
VIEW, VIEW_COLUMN = statement("CREATE VIEW pg_stat_fence AS"), statement("COMMENT ON COLUMN pg_stat_fence.stored_fence_then")
COMMENT = statement("COMMENT ON TABLE fence_internals.guards")


def older_script():
    """The older version: a function less, a view with a column less, other bodies and attributes of functions."""
    script = INSTALLED
    for text in (*FORGET, VIEW_COLUMN):
        script = script.replace(text, "")
    for now, then in [
        (REFUSES, REFUSES.replace("PARALLEL UNSAFE", "PARALLEL UNSAFE COST 7")),
        (RESET, "CREATE FUNCTION pg_stat_fence_reset() RETURNS void LANGUAGE sql AS $$ SELECT 1/0 $$;"),
        (VIEW, re.sub(r",\n[^\n]*stored_fence_then", "", VIEW)),
        (COMMENT, "COMMENT ON TABLE fence_internals.guards IS 'Another comment.';"),
    ]:
        assert now != then and now in script
        script = script.replace(now, then)
    return script


def upgrade_script():
    """From the older version to this one."""
    replaced = [text.replace("CREATE ", "CREATE OR REPLACE ", 1) for text in (REFUSES, RESET, VIEW)]
    revoked = "REVOKE ALL ON FUNCTION fence_guard_forget(bigint) FROM PUBLIC;"
    return "\n".join([*FORGET[:2], revoked, *FORGET[2:], *replaced, VIEW_COLUMN, COMMENT])


class Packaged:
    """A server with an installation of its own, in which an older package comes first and this one later."""

    def __init__(self, pg):
        self.folder = temporary_folder("fencelock-upgrade", server_account())
        chosen = {} if places.chosen_pg_config() else {"major": pg.major}
        self.server = PostgresServer(**chosen, folder=self.folder, settings={"shared_preload_libraries": "pg_fence"})
        self.scripts = next(self.folder.glob(f"server/**/pg_fence--{CURRENT}.sql")).parent
        self._put(f"pg_fence--{OLDER}.sql", older_script())
        self._put(f"pg_fence--{OLDER}--{CURRENT}.sql", upgrade_script())
        self.server.start()
        self.server.psql("CREATE ROLE alice LOGIN; CREATE ROLE app LOGIN")

    def database(self, name):
        """The URL of a new database of alice, as she."""
        self.server.psql(f"CREATE DATABASE {name} OWNER alice TEMPLATE template0")
        self.server.psql("GRANT ALL ON SCHEMA public TO alice", name)
        return self.server.url(name).replace("postgres@", "alice@")

    def close(self):
        self.server.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _put(self, name, text):
        (self.scripts / name).write_text(text)
        (self.scripts / name).chmod(0o644)


@pytest.fixture(scope="module")
def packaged(pg):
    made = Packaged(pg)
    yield made
    made.close()


FILL = """
    CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL DEFAULT 0, fence bigint NOT NULL DEFAULT 0);
    CREATE TABLE parts (r text PRIMARY KEY, v int, "Lock" int NOT NULL DEFAULT 0) PARTITION BY LIST (r);
    CREATE TABLE pa PARTITION OF parts FOR VALUES IN ('a');
    INSERT INTO t VALUES (1), (2); INSERT INTO parts VALUES ('a', 0);
    SELECT fence_protect('t'), fence_protect('parts', 'Lock');
    SELECT fenced_write('t', 1, 57, '{"v": 1}'), fenced_write('parts', 'a', 58, '{"v": 1}', 'Lock');
    DO $$ BEGIN PERFORM fenced_guard('ledger', 59); END $$;
    GRANT EXECUTE ON FUNCTION fenced_guard(text, bigint) TO app;
"""
CONTENT = {
    "rows": "SELECT id::text, v, fence FROM t UNION ALL SELECT r, v, \"Lock\" FROM parts ORDER BY 1",
    "guards": "SELECT resource, fence FROM fence_internals.guards",
    "protected": "SELECT target::text, fence_column::text, open_by FROM fence_protected ORDER BY 1",
    "triggers": "SELECT oid, tgrelid::regclass::text, tgname, tgenabled, tgfoid FROM pg_trigger WHERE NOT tgisinternal ORDER BY 2, 3",
    "granted": "SELECT has_function_privilege('app', 'fenced_guard(text, bigint)', 'EXECUTE')",
}
FILLED = {
    "rows": [("1", 1, 57), ("2", 0, 0), ("a", 1, 58)],
    "guards": [("ledger", 59)],
    "protected": [("pa", "Lock", []), ("parts", "Lock", []), ("t", "fence", [])],
    "granted": [(True,)],
}


def content(db):
    return {name: db.execute(query).fetchall() for name, query in CONTENT.items()}


def outcome(db, statement):
    try:
        rows = db.execute(statement)
        return rows.fetchall() if rows.description else rows.rowcount
    except psycopg.Error as error:
        return error.sqlstate


def older_session(url):
    """A session with a library that knows the older SQL, in a database that has it, and data."""
    db = psycopg.connect(url, autocommit=True)
    db.execute("CREATE TABLE looked_at (id int PRIMARY KEY, fence bigint)")
    db.execute("CREATE EXTENSION pg_fence")
    assert outcome(db, "SELECT * FROM fenced_claim(NULL::looked_at, 1, 1)") == "P0002"
    db.execute(f"DROP EXTENSION pg_fence; DROP TABLE looked_at; CREATE EXTENSION pg_fence VERSION '{OLDER}'")
    db.execute(FILL)
    return db


def test_data_guards_protection_rights_and_counts_survive_the_update(packaged):
    url = packaged.database("updated")
    with older_session(url) as db:
        before = content(db)
        assert {**before, "triggers": None} == {**FILLED, "triggers": None}
        assert len(before["triggers"]) >= 10
        with pytest.raises(psycopg.Error, check=lambda error: error.sqlstate == "55000") as caught:
            psycopg.connect(url).execute("DO $$ BEGIN PERFORM fenced_guard('ledger', 60); END $$")
        assert caught.value.diag.message_hint.endswith(f"ALTER EXTENSION pg_fence UPDATE TO '{CURRENT}'; then reconnect.")
        counts = "SELECT target::text, resource, claims, writes FROM pg_stat_fence WHERE kind IS NOT NULL ORDER BY 1, 2"
        counted = db.execute(counts).fetchall()
        assert counted == [("parts", None, 0, 1), ("t", None, 0, 1), (None, "ledger", 1, 0)]
        db.execute("PREPARE read AS SELECT v FROM fenced_claim(NULL::t, $1, $2)")

        db.execute("ALTER EXTENSION pg_fence UPDATE")

        assert db.execute("SELECT extversion FROM pg_extension WHERE extname = 'pg_fence'").fetchone() == (CURRENT,)
        assert content(db) == before
        assert db.execute(counts).fetchall() == counted
        for session in (db, psycopg.connect(url, autocommit=True)):
            with session:
                assert outcome(session, "UPDATE t SET v = 9") == "LF003"
                assert outcome(session, "UPDATE parts SET v = 9") == "LF003"
                assert outcome(session, "TRUNCATE t") == "LF003"
                assert outcome(session, "DO $$ BEGIN PERFORM fenced_guard('ledger', 58); END $$") == "LF001"
                assert outcome(session, "SELECT fenced_update('t', 1, 57, '{\"v\": 2}')") == [(True,)]
                assert outcome(session, "SELECT fenced_update('t', 1, 56, '{\"v\": 3}')") == [(False,)]
                assert outcome(session, "BEGIN; SELECT fence_use(57); UPDATE t SET v = 1 WHERE id = 1; COMMIT") == -1
                # What the older one lacked or did wrong.
                assert outcome(session, "SELECT stored_fence_then FROM pg_stat_fence WHERE target = 't'::regclass") == [(57,)]
                assert outcome(session, "SELECT fence_guard_forget(5)") == [(0,)]
                assert outcome(session, "SELECT pg_stat_fence_reset()") == [("",)]
                if session is db:
                    assert outcome(session, "EXECUTE read('1', '57')") == [(1,)]


MEMBERS = """
    SELECT i.type, i.identity, obj_description(d.objid, (SELECT relname FROM pg_class WHERE oid = d.classid)),
        coalesce(pg_get_functiondef(p.oid), pg_get_viewdef(c.oid), ''), p.proacl::text[], c.relacl::text[], n.initprivs::text[],
        (SELECT array_agg((attname, format_type(atttypid, atttypmod), attnotnull, col_description(c.oid, attnum))::text ORDER BY attnum)
            FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0),
        (SELECT array_agg(pg_get_constraintdef(k.oid) ORDER BY 1) FROM pg_constraint k WHERE k.conrelid = c.oid)
    FROM pg_depend d
    JOIN pg_extension e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
    CROSS JOIN pg_identify_object(d.classid, d.objid, d.objsubid) i
    LEFT JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
    LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
    LEFT JOIN pg_init_privs n ON n.classoid = d.classid AND n.objoid = d.objid AND n.objsubid = 0
    WHERE e.extname = 'pg_fence' ORDER BY 1, 2"""


def released(path=SQL / "released.sha256"):
    """The checksums of released scripts by file name."""
    lines = path.read_text().splitlines()
    return {name: digest for digest, name in (line.split() for line in lines if not line.startswith("#"))}


def versions(folder=SQL):
    """The versions that can be installed from scratch, without the current one."""
    found = {path.stem.removeprefix("pg_fence--") for path in folder.glob("pg_fence--*.sql") if path.stem.count("--") == 1}
    return found - {CURRENT}


@pytest.mark.parametrize("version", [OLDER, *sorted(versions())])
def test_an_updated_extension_is_the_same_as_a_new_one(packaged, version):
    with psycopg.connect(packaged.database(f"grown_{version.replace('.', '_')}"), autocommit=True) as db:
        db.execute("CREATE EXTENSION pg_fence")
        fresh = db.execute(MEMBERS).fetchall()
        db.execute(f"DROP EXTENSION pg_fence; CREATE EXTENSION pg_fence VERSION '{version}'")
        assert db.execute(MEMBERS).fetchall() != fresh, "there is something to update"
        db.execute("ALTER EXTENSION pg_fence UPDATE")
        assert len(fresh) > 30
        assert db.execute(MEMBERS).fetchall() == fresh


def test_a_dump_of_an_older_version_restores_into_this_one(packaged, tmp_path):
    """A dump names the extension without a version."""
    url = packaged.database("dumped")
    older_session(url).close()
    path = tmp_path / "dump"
    program, environment = packaged.server.installation.program, {**os.environ, **packaged.server.installation.environment}
    subprocess.run([str(program("pg_dump")), "-Fc", "-f", str(path), "-d", url], env=environment, check=True)
    restored = packaged.database("restored")
    subprocess.run([str(program("pg_restore")), "-d", restored, str(path)], env=environment, check=True)
    with psycopg.connect(restored, autocommit=True) as db:
        assert {**content(db), "triggers": None} == {**FILLED, "triggers": None}
        assert outcome(db, "SELECT fenced_update('t', 1, 57, '{\"v\": 2}')") == [(True,)]
        assert outcome(db, "UPDATE t SET v = 9") == "LF003"
        assert db.execute("SELECT extversion FROM pg_extension WHERE extname = 'pg_fence'").fetchone() == (CURRENT,)


def without_a_way(db, installable):
    """Those of the versions that cannot be updated to this one."""
    paths = db.execute(
        "SELECT source FROM pg_extension_update_paths('pg_fence') WHERE target = %s AND path IS NOT NULL", (CURRENT,)
    ).fetchall()
    return installable - {source for (source,) in paths}


def test_every_version_that_can_be_installed_can_be_updated_to_this_one(db):
    assert without_a_way(db, versions()) == set()


def test_a_version_without_an_upgrade_script_is_found(packaged):
    """The scripts of the older version of these tests are there, and none of another."""
    assert versions(packaged.scripts) == {OLDER}
    with psycopg.connect(packaged.database("ways"), autocommit=True) as db:
        assert without_a_way(db, {OLDER, "0.0.8"}) == {"0.0.8"}


def changed(digests, folder):
    """The names of those scripts in the folder that are not as they were released."""
    return {name for name, digest in digests.items() if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest}


def test_the_scripts_of_released_versions_never_change():
    assert changed(released(), SQL) == set(), "released: write an upgrade script"


def test_a_released_script_that_changed_is_found(tmp_path):
    for name in ("same", "other"):
        (tmp_path / name).write_text("SELECT 1;\n")
    listed = hashlib.sha256(b"SELECT 1;\n").hexdigest()
    (tmp_path / "list").write_text(f"# released\n{listed}  same\n{listed}  other\n")
    digests = released(tmp_path / "list")
    assert changed(digests, tmp_path) == set()
    (tmp_path / "other").write_text("SELECT 2;\n")
    assert changed(digests, tmp_path) == {"other"}


def test_every_script_of_a_released_version_is_in_the_list():
    """A version is released when the changelog has a heading for it, and when there is a newer one."""
    told = set(re.findall(r"^## \[?(\d+\.\d+\.\d+)", (places.ROOT / "CHANGELOG.md").read_text(), re.MULTILINE))
    scripts = {path.name for path in SQL.glob("pg_fence--*.sql") if path.stem.rpartition("--")[2] in told | versions()}
    assert scripts == set(released())
