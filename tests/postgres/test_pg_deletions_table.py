"""The table of the deletions: of every kind of key and table, through every change of both, and out of reach of others."""

import os
import subprocess

import psycopg
import pytest

from majors import others_in_long_runs
from harness import eventually
from refusals import outcome, refusal

TABLE = "CREATE TABLE acct (id int PRIMARY KEY, bal int NOT NULL DEFAULT 0, fence bigint NOT NULL DEFAULT 0)"
REMEMBER = "SELECT fence_protect('acct', deletes => 'remembered')"
SHOWN = "SELECT target::text, deletes, deletions::text, open_by FROM fence_protected ORDER BY target::text"


@pytest.fixture
def acct(db):
    """A table whose deletions are remembered, with row 7 deleted under fence 42 and row 8 held under it."""
    db.execute(f"{TABLE}; {REMEMBER}; INSERT INTO acct VALUES (7, 70), (8, 80)")
    db.execute("SELECT * FROM fenced_claim_many(NULL::acct, ARRAY[7, 8], 42); SELECT fenced_delete('acct', 7, 42)")
    return db


def under(db, fence, statement):
    """What a statement gives in a transaction that has declared the fence; it is rolled back."""
    db.execute("BEGIN")
    try:
        db.execute("SELECT fence_use(%s)", (fence,))
        return outcome(db, statement)
    finally:
        db.execute("ROLLBACK")


# --- Keys.

KEYS = {
    "int": ("7", "integer"),
    "bigint": ("7", "bigint"),
    "text": ("'seven'", "text"),
    'text COLLATE "C"': ("'seven'", "text"),
    "varchar(5)": ("'seven'", "character varying"),
    "char(7)": ("'seven'", "bpchar"),
    "numeric(6, 2)": ("7.50", "numeric"),
    "uuid": ("'00000000-0000-0000-0000-000000000007'", "uuid"),
    "bit(3)": ("B'111'", '"bit"'),
    "bytea": ("'\\x07'", "bytea"),
    "date": ("'2026-07-07'", "date"),
    "timestamptz(0)": ("'2026-07-07 07:07:07+00'", "timestamp with time zone"),
    "interval second(0)": ("'7 s'", "interval"),
    "jsonb": ("'{\"seven\": 7}'", "jsonb"),
    "int[]": ("'{7,7}'", "integer[]"),
    "int4range": ("'[7,8)'", "int4range"),
    "mood": ("'fine'", "mood"),
    "short": ("'seven'", "text"),
    '"Odd ""type"': ("'fine'", '"Odd ""type"'),
    "text COLLATE blind": ("'SEVEN'", "text"),
    "float8": ("7.5", "double precision"),
    "inet": ("'10.0.0.7'", "inet"),
    "name": ("'seven'", "name"),
}


@others_in_long_runs
@pytest.mark.parametrize("key", KEYS)
def test_a_key_of_every_type_is_remembered(db, key):
    literal, stored = KEYS[key]
    db.execute("""CREATE TYPE mood AS ENUM ('fine', 'bad'); CREATE TYPE "Odd ""type" AS ENUM ('fine');
        CREATE DOMAIN short AS text CHECK (length(VALUE) < 9); CREATE COLLATION blind (provider = libc, locale = 'C')""")
    db.execute(f'CREATE TABLE acct ("the Key" {key} PRIMARY KEY, fence bigint NOT NULL DEFAULT 0); {REMEMBER}')
    db.execute(f"INSERT INTO acct VALUES ({literal})")
    assert db.execute(f"SELECT fenced_claim_json('acct', {literal}::{key.split(' COLLATE')[0]}, 42) IS NOT NULL").fetchone() == (True,)
    assert under(db, 42, "DELETE FROM acct") == 1
    db.execute("BEGIN; SELECT fence_use(42); DELETE FROM acct; COMMIT")
    for declared, fence, answer in [(41, 41, "LF001"), (41, 0, "LF001"), (42, 42, 1)]:
        assert under(db, declared, f"INSERT INTO acct VALUES ({literal}, {fence})") == answer
    assert db.execute("SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'acct_deletions'::regclass AND attname = 'the Key'").fetchone() == (stored,)
    collations = "SELECT count(DISTINCT attcollation) FROM pg_attribute WHERE attrelid IN ('acct'::regclass, 'acct_deletions'::regclass) AND attname = 'the Key'"
    assert db.execute(collations).fetchone() == (1,)


def test_a_key_of_several_columns_is_compared_whole(db):
    """Its columns have the names of those beside it, and another order than the table's."""
    db.execute('CREATE TABLE acct (deleted_at timestamptz, v int, "fence" text, lock_fence int NOT NULL DEFAULT 0, PRIMARY KEY ("fence", deleted_at))')
    db.execute("SELECT fence_protect('acct', 'lock_fence', deletes => 'remembered')")
    columns = "SELECT string_agg(attname, ' ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = 'acct_deletions'::regclass AND attnum > 0"
    assert db.execute(columns).fetchone() == ("fence deleted_at fence_ deleted_at_",)
    db.execute("INSERT INTO acct VALUES ('2026-01-01', 1, 'a'), ('2026-01-01', 1, 'b')")
    db.execute("SELECT fenced_claim_json('acct', ROW('a'::text, '2026-01-01'::timestamptz), 42, 'lock_fence')")
    assert db.execute("SELECT fenced_delete('acct', ROW('a'::text, '2026-01-01'::timestamptz), 42, 'lock_fence')").fetchone() == (True,)
    assert under(db, 41, "INSERT INTO acct VALUES ('2026-01-01', 1, 'a', 41)") == "LF001"
    assert under(db, 41, "INSERT INTO acct VALUES ('2026-01-02', 1, 'a', 41)") == 1
    assert db.execute("""SELECT fenced_upsert('acct', '{"fence": "a", "deleted_at": "2026-01-01"}', 41, '{"v": 1}', 'lock_fence')""").fetchone() == (False,)
    assert db.execute("SELECT fence_forget_deletions('acct', interval '0')").fetchone() == (1,)


def test_keys_that_the_type_calls_equal_are_the_same(db):
    db.execute(f"CREATE TABLE acct (id numeric PRIMARY KEY, fence bigint NOT NULL DEFAULT 0); {REMEMBER}; INSERT INTO acct VALUES (7.0)")
    db.execute("SELECT fenced_claim_json('acct', 7, 42); BEGIN; SELECT fence_use(42); UPDATE acct SET id = 7.00; DELETE FROM acct; COMMIT")
    assert db.execute("SELECT count(*), max(fence) FROM acct_deletions").fetchone() == (1, 42)
    assert under(db, 41, "INSERT INTO acct VALUES (7, 41)") == "LF001"


def test_dropped_generated_and_identity_columns_are_passed_over(db):
    db.execute(f"""CREATE TABLE acct (gone int, id int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, v int,
        twice int GENERATED ALWAYS AS (v * 2) STORED, fence bigint NOT NULL DEFAULT 0); ALTER TABLE acct DROP gone; {REMEMBER};
        INSERT INTO acct (id, v) VALUES (7, 1); SELECT fenced_claim_json('acct', 7, 42); SELECT fenced_delete('acct', 7, 42)""")
    assert under(db, 41, "INSERT INTO acct (id, v, fence) VALUES (7, 1, 41)") == "LF001"


KEYLESS = "CREATE TABLE acct (a {}, b int, fence bigint NOT NULL DEFAULT 0, PRIMARY KEY (a, b)); {}; ALTER TABLE acct DROP CONSTRAINT acct_pkey"


@pytest.mark.parametrize("key", ["numeric", "int", "text"])
def test_nothing_is_remembered_of_a_key_with_a_null(db, key):
    db.execute(KEYLESS.format(key, REMEMBER))
    db.execute("ALTER TABLE acct ALTER a DROP NOT NULL, ALTER b DROP NOT NULL")
    for values in ("NULL, 5", "'5', NULL", "NULL, NULL"):
        db.execute(f"BEGIN; SELECT fence_use(42); INSERT INTO acct VALUES ({values}, 42)")
        assert (values, db.execute("UPDATE acct SET a = '6', b = 6").rowcount) == (values, 1)
        db.execute("UPDATE acct SET a = NULL; UPDATE acct SET a = NULL, fence = 42; DELETE FROM acct; COMMIT")
    assert db.execute("SELECT DISTINCT a::text, b FROM acct_deletions").fetchall() == [("6", 6)]


def test_a_key_that_reads_as_null_is_none(db):
    """A virtual generated column, before its value is made."""
    db.execute("CREATE TABLE dd (a numeric, b int, fence bigint, t timestamptz DEFAULT now(), PRIMARY KEY (a, b))")
    kind = "VIRTUAL" if db.info.server_version >= 180000 else "STORED"
    db.execute(f"CREATE TABLE h (id int PRIMARY KEY, k int, g numeric GENERATED ALWAYS AS (k) {kind}, z int, fence bigint NOT NULL DEFAULT 0)")
    db.execute("""CREATE TRIGGER x AFTER INSERT ON h FOR EACH ROW WHEN (fence_internals.has_key('dd'::regclass, NEW.fence, NEW.g, NEW.z))
        EXECUTE FUNCTION fence_internals.remember()""")
    assert outcome(db, "INSERT INTO h (id, k, z) VALUES (1, 1, 5)") in (1, "55000")


def test_columns_that_are_altered_in_the_middle_of_a_transaction_are_seen(db, connect):
    db.execute(f"{TABLE}; {REMEMBER}; INSERT INTO acct VALUES (1, 5)")
    for _ in range(2):
        db.execute("SELECT fenced_upsert('acct', 1, 5, '{\"bal\": 1}'); SELECT fenced_delete('acct', 1, 5)")
    db.execute("SELECT fenced_upsert('acct', 1, 5, '{\"bal\": 1}')")
    db.execute("BEGIN")
    db.execute("SELECT fenced_update('acct', 1, 5, '{\"bal\": 1}')")
    connect().execute("ALTER TABLE acct_deletions ALTER id TYPE numeric")
    refused = refusal(db, "SELECT fenced_delete('acct', 1, 5)")
    assert (refused.sqlstate, refused.diag.constraint_name) == ("55000", "deletions_of_another_key")
    db.execute("ROLLBACK")


# --- Tables of every kind.

PARTS = """
    CREATE TABLE parts (id int, r text, v int NOT NULL DEFAULT 0, fence bigint NOT NULL DEFAULT 0, PRIMARY KEY (id, r)) PARTITION BY LIST (r);
    CREATE TABLE a PARTITION OF parts FOR VALUES IN ('a');
    CREATE TABLE b (gone int, fence bigint NOT NULL DEFAULT 0, v int NOT NULL DEFAULT 0, r text NOT NULL, id int NOT NULL);
    ALTER TABLE b DROP gone; ALTER TABLE parts ATTACH PARTITION b FOR VALUES IN ('b');
    CREATE TABLE c PARTITION OF parts FOR VALUES IN ('c') PARTITION BY RANGE (id);
    CREATE TABLE c1 PARTITION OF c FOR VALUES FROM (0) TO (100);
    SELECT fence_protect('parts', deletes => 'remembered');
    INSERT INTO parts VALUES (1, 'a'), (2, 'b'), (3, 'c');
    SELECT * FROM fenced_claim_many(NULL::parts, '[{"id": 1, "r": "a"}, {"id": 2, "r": "b"}, {"id": 3, "r": "c"}]'::jsonb, 42);
"""
NOTED = "SELECT id, r, fence FROM parts_deletions ORDER BY 1, 2"


@pytest.fixture
def parts(db):
    db.execute(PARTS)
    return db


def test_partitions_share_the_table_of_their_root(parts):
    assert parts.execute(SHOWN).fetchall() == [(table, "remembered", "parts_deletions", []) for table in ("a", "b", "c", "c1", "parts")]
    for table, key, region in [("a", 1, "a"), ("parts", 2, "b"), ("c", 3, "c")]:
        parts.execute(f"BEGIN; SELECT fence_use(42); DELETE FROM {table} WHERE id = {key}; COMMIT")
        for into in {table, "parts", {"a": "a", "b": "b", "c": "c1"}[region]}:
            insert = f"INSERT INTO {into} (id, r, fence) VALUES ({key}, '{region}', {{}})"
            assert (into, under(parts, 41, insert.format(41))) == (into, "LF001")
            assert (into, under(parts, 42, insert.format(42))) == (into, 1)
    assert parts.execute(NOTED).fetchall() == [(1, "a", 42), (2, "b", 42), (3, "c", 42)]
    assert parts.execute("""SELECT fenced_upsert('c', ROW(3, 'c'), 41, '{"v": 1}')""").fetchone() == (False,)
    assert parts.execute("""SELECT fenced_upsert('parts', ROW(3, 'c'), 42, '{"v": 1}')""").fetchone() == (True,)


def test_a_row_that_moves_to_another_partition_leaves_its_key(parts):
    for move in ["UPDATE parts SET r = 'b' WHERE id = 1", "MERGE INTO parts p USING (VALUES (2)) s (id) ON p.id = s.id WHEN MATCHED THEN UPDATE SET r = 'c'"]:
        parts.execute(f"BEGIN; SELECT fence_use(42); {move}; COMMIT")
    assert parts.execute(NOTED).fetchall() == [(1, "a", 42), (2, "b", 42)]
    assert parts.execute("SELECT id, r, fence FROM parts ORDER BY 1").fetchall() == [(1, "b", 42), (2, "c", 42), (3, "c", 42)]
    assert under(parts, 41, "INSERT INTO parts VALUES (1, 'a', 1, 41)") == "LF001", "the stale holder whose row has moved"
    assert parts.execute("SELECT * FROM fenced_claim_or_insert(NULL::parts, ROW(1, 'a'), 41, '{}')").fetchall() == []
    parts.execute("BEGIN; SELECT fence_use(42); UPDATE parts SET r = 'a' WHERE id = 1; UPDATE parts SET id = 9 WHERE id = 3; COMMIT")
    assert parts.execute(NOTED).fetchall() == [(1, "a", 42), (1, "b", 42), (2, "b", 42), (3, "c", 42)], "as another key in the same partition"


def test_a_fenced_write_that_moves_rows_leaves_their_keys_with_its_fence(parts):
    parts.execute("""CREATE FUNCTION up() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.v > 8 THEN NEW.r := CASE NEW.v WHEN 9 THEN 'a' ELSE 'b' END; END IF; RETURN NEW; END $$;
        CREATE TRIGGER up BEFORE UPDATE ON a FOR EACH ROW EXECUTE FUNCTION up(); CREATE TRIGGER up BEFORE UPDATE ON b FOR EACH ROW EXECUTE FUNCTION up();
        CREATE TRIGGER up BEFORE UPDATE ON c1 FOR EACH ROW EXECUTE FUNCTION up()""")
    parts.execute("""SELECT fenced_write('parts', ROW(1, 'a'), 43, '{"v": 10}')""")
    parts.execute("""SELECT * FROM fenced_write_many('parts', '[{"id": 2, "r": "b"}, {"id": 3, "r": "c"}]'::jsonb, ARRAY[44], '{"v": 9}')""")
    assert parts.execute("SELECT id, r, fence FROM parts ORDER BY 1").fetchall() == [(1, "b", 43), (2, "a", 44), (3, "a", 44)]
    assert parts.execute(NOTED).fetchall() == [(1, "a", 43), (2, "b", 44), (3, "c", 44)]


def test_a_row_that_is_lost_on_its_way_to_another_partition_is_remembered(parts):
    parts.execute("CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; CREATE TRIGGER swallow BEFORE INSERT ON b FOR EACH ROW EXECUTE FUNCTION swallow()")
    parts.execute("BEGIN; SELECT fence_use(42); UPDATE parts SET r = 'b' WHERE id = 1; COMMIT")
    assert parts.execute("SELECT id FROM parts WHERE id = 1").fetchall() == []
    assert parts.execute("SELECT * FROM fenced_claim_or_insert(NULL::parts, ROW(1, 'a'), 41, '{}')").fetchall() == []


def test_a_row_that_moves_to_a_key_that_was_deleted_is_judged_as_a_new_one(parts):
    parts.execute("INSERT INTO parts VALUES (1, 'b'); SELECT fenced_claim_json('parts', ROW(1, 'b'), 50); SELECT fenced_delete('parts', ROW(1, 'b'), 50)")
    assert under(parts, 42, "UPDATE parts SET r = 'b' WHERE id = 1") == "LF001"


def test_a_partition_that_comes_later_is_listed_until_it_is_protected(parts):
    parts.execute("CREATE TABLE d PARTITION OF parts FOR VALUES IN ('d')")
    shown = {table: open_by for table, *_, open_by in parts.execute(SHOWN).fetchall()}
    assert shown["d"] == ["INSERT: no trigger", "TRUNCATE: no trigger", "remembered INSERT: no trigger"]
    parts.execute("INSERT INTO parts VALUES (4, 'd'); SELECT fenced_claim_json('parts', ROW(4, 'd'), 42); SELECT fenced_delete('parts', ROW(4, 'd'), 42)")
    assert parts.execute(NOTED).fetchall() == [(4, "d", 42)], "deletions are remembered at once"
    parts.execute("SELECT fence_protect('parts')")
    assert {tuple(open_by) for *_, open_by in parts.execute(SHOWN).fetchall()} == {()}
    assert under(parts, 41, "INSERT INTO parts VALUES (4, 'd', 0, 41)") == "LF001"


def test_a_partition_that_is_detached_gets_a_table_of_its_own(parts):
    parts.execute("ALTER TABLE parts DETACH PARTITION a; SELECT fence_protect('a', deletes => 'remembered')")
    assert parts.execute(SHOWN).fetchall()[0] == ("a", "remembered", "a_deletions", [])
    parts.execute("SELECT fenced_delete('a', ROW(1, 'a'), 42)")
    assert parts.execute("SELECT id, r, fence FROM a_deletions").fetchall() == [(1, "a", 42)]
    assert parts.execute(NOTED).fetchall() == []
    parts.execute("BEGIN; SELECT fence_unprotect('a'); ALTER TABLE parts ATTACH PARTITION a FOR VALUES IN ('a'); SELECT fence_protect('parts'); COMMIT")
    assert {deletions for _, _, deletions, open_by in parts.execute(SHOWN).fetchall() if not open_by} == {"parts_deletions"}


def test_children_that_inherit_have_tables_of_their_own(db):
    db.execute("CREATE TABLE par (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0); CREATE TABLE kid () INHERITS (par)")
    refused = refusal(db, "SELECT fence_protect('par', deletes => 'remembered')")
    assert (refused.sqlstate, refused.diag.message_primary) == ("55000", 'table "kid" has no primary key')
    assert db.execute(SHOWN).fetchall() == []
    db.execute("ALTER TABLE kid ADD PRIMARY KEY (id); SELECT fence_protect('par', deletes => 'remembered'); INSERT INTO par VALUES (1); INSERT INTO kid VALUES (1)")
    assert db.execute(SHOWN).fetchall() == [("kid", "remembered", "kid_deletions", []), ("par", "remembered", "par_deletions", [])]
    db.execute("SELECT fenced_claim_json('par', 1, 42); SELECT fenced_claim_json('kid', 1, 50); SELECT fenced_delete('par', 1, 42); SELECT fenced_delete('kid', 1, 50)")
    assert db.execute("SELECT p.fence, k.fence FROM par_deletions p, kid_deletions k").fetchall() == [(42, 50)]
    assert under(db, 42, "INSERT INTO par VALUES (1, 42)") == 1
    assert under(db, 42, "INSERT INTO kid VALUES (1, 42)") == "LF001"
    assert db.execute("SELECT fence_forget_deletions('par', interval '0')").fetchone() == (2,)
    db.execute("SELECT fence_protect('par', deletes => 'plain')")
    assert db.execute("SELECT to_regclass('par_deletions'), to_regclass('kid_deletions')").fetchone() == (None, None)


PERSISTENCE = "SELECT relpersistence::text FROM pg_class WHERE oid IN ('acct'::regclass, (SELECT deletions FROM fence_protected WHERE target = 'acct'::regclass))"


@pytest.mark.parametrize("kind, letter", [("UNLOGGED", "u"), ("TEMP", "t")])
def test_unlogged_and_temporary_tables(db, kind, letter):
    db.execute(f"{TABLE.replace('CREATE', f'CREATE {kind}')}; {REMEMBER}; INSERT INTO acct VALUES (7)")
    assert db.execute(PERSISTENCE).fetchall() == [(letter,)] * 2
    db.execute("SELECT fenced_claim_json('acct', 7, 42); SELECT fenced_delete('acct', 7, 42)")
    assert under(db, 41, "INSERT INTO acct VALUES (7, 1, 41)") == "LF001"
    if kind == "UNLOGGED":
        db.execute("ALTER TABLE acct SET LOGGED")
        assert db.execute(SHOWN).fetchall() == [("acct", "remembered", "acct_deletions", ["remembered: table acct_deletions is emptied by a crash, which the table is not"])]
        db.execute(REMEMBER)
        assert db.execute(SHOWN).fetchall() == [("acct", "remembered", "acct_deletions", [])]
        assert db.execute(PERSISTENCE).fetchall() == [("p",)] * 2
        db.execute(f"ALTER TABLE acct SET UNLOGGED; {REMEMBER}")
        assert db.execute(PERSISTENCE).fetchall() == [("u",)] * 2
    db.execute("DROP TABLE acct")
    assert db.execute("SELECT to_regclass('acct_deletions')").fetchone() == (None,)


# --- What becomes of it when the tables change.


def test_a_name_that_is_taken_gets_a_number(db):
    db.execute(f"CREATE TABLE acct_deletions (x int); CREATE VIEW acct_deletions1 AS SELECT 1 AS x; {TABLE}; {REMEMBER}")
    assert db.execute(SHOWN).fetchall() == [("acct", "remembered", "acct_deletions2", [])]
    db.execute(REMEMBER)
    assert db.execute(SHOWN).fetchall() == [("acct", "remembered", "acct_deletions2", [])], "no other is made"
    long = "é" * 31
    db.execute(f"""CREATE TABLE "{long}" (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0); SELECT fence_protect('"{long}"', deletes => 'remembered')""")
    (name,) = db.execute("SELECT relname FROM fence_protected JOIN pg_class c ON c.oid = deletions WHERE target = %s::regclass", (f'"{long}"',)).fetchone()
    assert name.startswith("é" * 20) and name.endswith("_deletions")


def test_it_follows_a_rename_and_another_schema_when_it_is_protected_again(acct):
    acct.execute("CREATE SCHEMA far; ALTER TABLE acct RENAME TO accounts; ALTER TABLE accounts RENAME id TO number; ALTER TABLE accounts RENAME fence TO lock_fence; ALTER TABLE accounts SET SCHEMA far")
    assert acct.execute(SHOWN).fetchall() == [("far.accounts", "remembered", "acct_deletions", [])]
    assert under(acct, 41, "INSERT INTO far.accounts VALUES (7, 1, 41)") == "LF001"
    acct.execute("SELECT fence_protect('far.accounts')")
    assert acct.execute(SHOWN).fetchall() == [("far.accounts", "remembered", "far.accounts_deletions", [])]
    assert under(acct, 41, "INSERT INTO far.accounts VALUES (7, 1, 41)") == "LF001"
    acct.execute("ALTER SCHEMA far RENAME TO near; SELECT fenced_delete('near.accounts', 8, 42, 'lock_fence')")
    assert under(acct, 41, "INSERT INTO near.accounts VALUES (8, 1, 41)") == "LF001"
    acct.execute("DROP SCHEMA near CASCADE")
    assert acct.execute("SELECT count(*) FROM pg_class WHERE relname LIKE 'acc%'").fetchone() == (0,)


def test_it_is_dropped_with_its_table_and_not_before(acct):
    assert outcome(acct, "DROP TABLE acct_deletions") == "2BP01"
    acct.execute("DROP TABLE acct")
    assert acct.execute("SELECT to_regclass('acct_deletions')").fetchone() == (None,)


@pytest.mark.parametrize(
    "statement, sqlstate",
    [
        ("ALTER TABLE acct ALTER id TYPE bigint", "0A000"),
        ("ALTER TABLE acct DROP id", "2BP01"),
        ("ALTER TABLE acct DROP fence", "2BP01"),
        ("ALTER TABLE acct ALTER fence TYPE int", "0A000"),
    ],
)
def test_what_its_triggers_name_is_neither_dropped_nor_given_another_type(acct, statement, sqlstate):
    refused = refusal(acct, statement)
    assert refused.sqlstate == sqlstate
    assert "trigger fence_protect_" in f"{refused.diag.message_detail}"


def test_the_way_to_another_type_of_the_key(acct):
    acct.execute("SELECT fence_unprotect('acct'); ALTER TABLE acct ALTER id TYPE bigint")
    refused = refusal(acct, REMEMBER)
    assert (refused.sqlstate, refused.diag.constraint_name) == ("55000", "deletions_of_another_key")
    assert refused.diag.message_primary == 'table "acct_deletions" cannot remember the deletions of table "acct"'
    assert refused.diag.message_hint == (
        "Give it these columns, or call fence_protect() with deletes => 'plain', which drops it, and then with deletes => 'remembered'."
    )
    assert acct.execute(SHOWN).fetchall() == []
    acct.execute(f"ALTER TABLE acct_deletions ALTER id TYPE bigint; {REMEMBER}")
    assert acct.execute(SHOWN).fetchall() == [("acct", "remembered", "acct_deletions", [])]
    assert under(acct, 41, "INSERT INTO acct VALUES (7, 1, 41)") == "LF001"


def test_unprotect_keeps_it_and_remembered_takes_it_up_again(acct):
    acct.execute("SELECT fence_unprotect('acct')")
    assert outcome(acct, "INSERT INTO acct VALUES (7)") == 1
    acct.execute(f"DELETE FROM acct WHERE id = 7; SELECT fence_protect('acct'); SELECT fence_protect('acct', inserts => 'fenced'); {REMEMBER}")
    assert acct.execute(SHOWN).fetchall() == [("acct", "remembered", "acct_deletions", [])]
    assert under(acct, 41, "INSERT INTO acct VALUES (7, 1, 41)") == "LF001"
    acct.execute("SELECT fence_unprotect('acct'); SELECT fence_protect('acct', deletes => 'plain')")
    assert acct.execute("SELECT to_regclass('acct_deletions')").fetchone() == (None,)


def test_the_extension_goes_and_comes_again(acct):
    assert outcome(acct, "DROP EXTENSION pg_fence") == "2BP01"
    acct.execute("DROP EXTENSION pg_fence CASCADE; INSERT INTO acct VALUES (9); DELETE FROM acct WHERE id = 9")
    assert acct.execute("SELECT id, fence FROM acct_deletions").fetchall() == [(7, 42)]
    acct.execute(f"CREATE EXTENSION pg_fence; {REMEMBER}")
    assert under(acct, 41, "INSERT INTO acct VALUES (7, 1, 41)") == "LF001"


def test_it_belongs_to_the_owner_of_the_table(db):
    db.execute("CREATE ROLE alice; CREATE ROLE bob; GRANT ALL ON SCHEMA public TO alice, bob; SET ROLE alice")
    try:
        db.execute("ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO bob, PUBLIC")
        db.execute(f"{TABLE}; REVOKE ALL ON acct FROM bob, PUBLIC; GRANT INSERT, DELETE, SELECT, UPDATE ON acct TO bob; {REMEMBER}; RESET ROLE")
        owned = "SELECT relname, relowner::regrole::text, relacl::text FROM pg_class WHERE relname LIKE 'acct_deletions%' AND relkind = 'r'"
        assert db.execute(owned).fetchall() == [("acct_deletions", "alice", "{alice=arwdDxtm/alice}" if db.info.server_version >= 170000 else "{alice=arwdDxt/alice}")]
        db.execute("SET ROLE bob; INSERT INTO acct VALUES (7); SELECT fenced_claim_json('acct', 7, 42); SELECT fenced_delete('acct', 7, 42)")
        assert under(db, 41, "INSERT INTO acct VALUES (7, 1, 41)") == "LF001"
        for statement in ["SELECT * FROM acct_deletions", "DELETE FROM acct_deletions", "SELECT fence_forget_deletions('acct', '0')"]:
            assert (statement, outcome(db, statement)) == (statement, "42501")
        db.execute("RESET ROLE; ALTER TABLE acct OWNER TO bob; SET ROLE bob")
        refused = refusal(db, "INSERT INTO acct VALUES (9)")
        assert (refused.sqlstate, refused.diag.constraint_name) == ("55000", "deletions_of_another_owner")
        assert refused.diag.message_primary == 'table "acct_deletions" does not belong to the owner of table "acct"'
        assert refused.diag.message_hint == "ALTER TABLE acct_deletions OWNER TO the owner of acct."
        assert db.execute(SHOWN).fetchall() == [("acct", "remembered", "acct_deletions", ["remembered: table acct_deletions does not belong to the owner of the table"])]
        db.execute(f"RESET ROLE; {REMEMBER}; SET ROLE bob; INSERT INTO acct VALUES (9)")
        assert under(db, 41, "INSERT INTO acct VALUES (7, 1, 41)") == "LF001"
        db.execute("RESET ROLE; REASSIGN OWNED BY bob TO alice; SET ROLE bob")
        db.execute("RESET ROLE")
        assert db.execute(owned).fetchall()[0][1] == "alice"
        assert under(db, 41, "INSERT INTO acct VALUES (7, 1, 41)") == "LF001"
    finally:
        db.execute("RESET ROLE; DROP OWNED BY alice, bob CASCADE; DROP ROLE alice, bob")


# --- Policies, and those who would use it for something else.


def test_no_policy_of_either_table_hides_a_deletion(db):
    db.execute(f"{TABLE}; {REMEMBER}; CREATE ROLE clerk; GRANT ALL ON acct TO clerk; INSERT INTO acct VALUES (7, 1), (8, 1)")
    db.execute("SELECT * FROM fenced_claim_many(NULL::acct, ARRAY[7, 8], 42)")
    try:
        db.execute("ALTER TABLE acct ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY; CREATE POLICY ones ON acct USING (bal = 1)")
        db.execute("ALTER TABLE acct_deletions ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY; SET ROLE clerk")
        assert db.execute("SELECT fenced_delete('acct', 7, 42)").fetchone() == (True,)
        assert under(db, 41, "INSERT INTO acct VALUES (7, 1, 41)") == "LF001"
        assert db.execute("""SELECT fenced_upsert('acct', 7, 41, '{"bal": 1}')""").fetchone() == (False,)
        db.execute("BEGIN; SELECT fence_use(41)")
        detail = refusal(db, "INSERT INTO acct VALUES (7, 1, 41)").diag.message_detail
        assert detail == "Its key was deleted with a newer one; the newest fence of this insert is 41.", "a policy could hide the row"
        db.execute("ROLLBACK")
    finally:
        db.execute("RESET ROLE; DROP OWNED BY clerk; DROP ROLE clerk")


def test_a_trigger_of_ones_own_reads_and_writes_no_table_of_another(db):
    """It names a table of exactly the columns of one for deletions, which belongs to somebody else."""
    db.execute(f"{TABLE}; {REMEMBER}; INSERT INTO acct VALUES (7); SELECT fenced_claim_json('acct', 7, 42); SELECT fenced_delete('acct', 7, 42)")
    db.execute("CREATE ROLE mallory; GRANT ALL ON SCHEMA public TO mallory; SET ROLE mallory")
    try:
        db.execute("CREATE TABLE mine (id int PRIMARY KEY, bal int, fence bigint NOT NULL DEFAULT 0); INSERT INTO mine VALUES (8, 0, 99)")
        for event, row in (("DELETE", "OLD"), ("INSERT", "NEW")):
            db.execute(f"""CREATE TRIGGER t{event} AFTER {event} ON mine FOR EACH ROW WHEN (fence_internals.has_key('acct_deletions', {row}.fence, {row}.id))
                EXECUTE FUNCTION fence_internals.remember()""")
        assert refusal(db, "DELETE FROM mine").diag.constraint_name == "deletions_of_another_owner"
        assert refusal(db, "INSERT INTO mine VALUES (7, 0, 41)").diag.constraint_name == "deletions_of_another_owner"
        assert outcome(db, """SELECT fenced_upsert('mine', 7, 41, '{"bal": 1}')""") == "55000"
        assert refusal(db, "SELECT fence_forget_deletions('mine', '0')").diag.constraint_name == "deletions_of_another_owner"
        # A superuser who calls it for mallory's table gives nothing away either.
        for role in ("mallory", "postgres"):
            db.execute(f"SET ROLE {role}; SELECT fence_protect('mine', deletes => 'remembered')")
            assert db.execute(SHOWN).fetchall()[1] == ("mine", "remembered", "mine_deletions", [])
        db.execute("SELECT fence_protect('mine', deletes => 'plain')")
        assert db.execute("SELECT relowner::regrole::text FROM pg_class WHERE relname = 'acct_deletions'").fetchone() == ("postgres",)
        assert db.execute("SELECT id, fence FROM acct_deletions").fetchall() == [(7, 42)]
    finally:
        db.execute("RESET ROLE; DROP OWNED BY mallory CASCADE; DROP ROLE mallory")


@pytest.fixture
def confused(db):
    """A table whose owner has another of the columns of one for deletions, and mallory, who may make triggers on the first."""
    db.execute(f"CREATE ROLE alice; CREATE ROLE mallory; GRANT ALL ON SCHEMA public TO alice, mallory; SET ROLE alice; {TABLE}; {REMEMBER}")
    db.execute("""INSERT INTO acct VALUES (7); SELECT fenced_claim_json('acct', 7, 42); SELECT fenced_delete('acct', 7, 42);
        CREATE TABLE balances (id int PRIMARY KEY, cents bigint NOT NULL, changed timestamptz NOT NULL DEFAULT now()); INSERT INTO balances VALUES (1, 123456);
        GRANT SELECT, INSERT, UPDATE, DELETE, TRIGGER ON acct TO mallory; SET ROLE mallory""")
    for event, row in (("DELETE", "OLD"), ("INSERT", "NEW")):
        db.execute(f"""CREATE TRIGGER a{event} AFTER {event} ON acct FOR EACH ROW WHEN (fence_internals.has_key('balances'::regclass, {row}.fence, {row}.id))
            EXECUTE FUNCTION fence_internals.remember()""")
    yield db
    db.execute("RESET ROLE; DROP OWNED BY alice, mallory CASCADE; DROP ROLE alice, mallory")


def balances(db):
    db.execute("RESET ROLE")
    return db.execute("SELECT id, cents FROM balances").fetchall()


def test_a_trigger_that_names_another_table_of_the_owner_reads_and_writes_nothing(confused):
    for statement in ["INSERT INTO acct VALUES (1, 0, 0)", "INSERT INTO acct VALUES (77, 0, 5)", "SELECT fenced_upsert('acct', 1, 5, '{\"bal\": 1}')"]:
        refused = refusal(confused, statement)
        assert (refused.sqlstate, refused.diag.constraint_name) == ("55000", "deletions_of_another_table")
        assert refused.diag.message_primary == 'table "balances" does not hold the deletions of table "acct"'
        assert "123456" not in str(refused.diag.message_detail)
    assert balances(confused) == [(1, 123456)]


@pytest.mark.parametrize("role", ["alice", "postgres"])
def test_such_a_table_is_neither_forgotten_nor_taken_over_nor_dropped(confused, role):
    confused.execute(f"SET ROLE {role}")
    assert confused.execute("SELECT fence_forget_deletions('acct', interval '0')").fetchone() == (1,)
    confused.execute("INSERT INTO acct_deletions VALUES (7, 42); SELECT fence_protect('acct')")
    assert confused.execute(SHOWN).fetchall() == [("acct", "remembered", "acct_deletions", [])]
    assert under(confused, 41, "INSERT INTO acct VALUES (7, 1, 41)") == "LF001"
    confused.execute("SELECT fence_protect('acct', deletes => 'plain')")
    assert balances(confused) == [(1, 123456)]
    assert confused.execute("SELECT to_regclass('acct_deletions')").fetchone() == (None,)


def test_the_view_shows_what_is_named_and_is_none(confused):
    confused.execute("RESET ROLE")
    names = [f'remembered: trigger {name} names another table' for name in ("adelete", "ainsert")]
    assert confused.execute(SHOWN).fetchall() == [("acct", "remembered", "acct_deletions", names)]
    confused.execute("SELECT fence_protect('acct'); ALTER TABLE acct_deletions DROP CONSTRAINT fence_protect_deletions")
    assert confused.execute(SHOWN).fetchall()[0][3] == ["remembered: table acct_deletions holds no deletions of the table"]
    assert refusal(confused, "INSERT INTO acct VALUES (7, 1, 41)").diag.constraint_name == "deletions_of_another_table"
    confused.execute("SELECT fence_protect('acct')")
    assert confused.execute(SHOWN).fetchall() == [("acct", "remembered", "acct_deletions", [])]
    assert under(confused, 41, "INSERT INTO acct VALUES (7, 1, 41)") == "LF001"


def test_plain_deletions_with_a_trigger_that_names_another_table(confused):
    confused.execute("RESET ROLE; SELECT fence_unprotect('acct'); SET ROLE alice")
    confused.execute("""CREATE TRIGGER a AFTER DELETE ON acct FOR EACH ROW WHEN (fence_internals.has_key('balances'::regclass, OLD.fence, OLD.id))
        EXECUTE FUNCTION fence_internals.remember()""")
    assert refusal(confused, "SELECT fence_forget_deletions('acct', interval '0')").diag.constraint_name == "deletions_of_another_table"
    confused.execute("RESET ROLE; SELECT fence_protect('acct', deletes => 'plain')")
    assert balances(confused) == [(1, 123456)]


def test_a_table_of_somebody_else_is_not_dropped(db):
    """A superuser calls it for the table of mallory, whose trigger names a table of alice."""
    db.execute("CREATE ROLE alice; CREATE ROLE mallory; GRANT ALL ON SCHEMA public TO alice, mallory; SET ROLE alice")
    db.execute("CREATE TABLE secret (id int PRIMARY KEY, cents bigint NOT NULL, changed timestamptz NOT NULL DEFAULT now()); SET ROLE mallory")
    try:
        db.execute(f"""{TABLE}; CREATE TRIGGER a AFTER DELETE ON acct FOR EACH ROW WHEN (fence_internals.has_key('secret'::regclass, OLD.fence, OLD.id))
            EXECUTE FUNCTION fence_internals.remember(); RESET ROLE; SELECT fence_protect('acct', deletes => 'plain')""")
        assert db.execute("SELECT to_regclass('secret')::text").fetchone() == ("secret",)
    finally:
        db.execute("RESET ROLE; DROP OWNED BY alice, mallory CASCADE; DROP ROLE alice, mallory")


def test_a_partition_of_another_owner_names_no_other_table_of_the_roots_owner(db):
    db.execute("CREATE ROLE alice; CREATE ROLE mallory; GRANT ALL ON SCHEMA public TO alice, mallory; SET ROLE alice")
    try:
        db.execute(f"""{PARTS}; CREATE TABLE balances (id int, r text, cents bigint NOT NULL, changed timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (id, r));
            RESET ROLE; ALTER TABLE a OWNER TO mallory; SET ROLE mallory;
            CREATE TRIGGER x AFTER INSERT ON a FOR EACH ROW WHEN (fence_internals.has_key('balances'::regclass, NEW.fence, NEW.id, NEW.r)) EXECUTE FUNCTION fence_internals.remember()""")
        assert refusal(db, "INSERT INTO a VALUES (9, 'a', 0)").diag.constraint_name == "deletions_of_another_table"
        db.execute("DROP TRIGGER x ON a; INSERT INTO a VALUES (9, 'a', 0)")
        assert refusal(db, "SELECT fence_forget_deletions('a', interval '0')").diag.constraint_name == "deletions_of_another_owner"
    finally:
        db.execute("RESET ROLE; DROP OWNED BY alice, mallory CASCADE; DROP ROLE alice, mallory")


def test_a_remembered_fence_is_shown_to_those_who_may_read_it(acct):
    acct.execute("CREATE ROLE clerk; GRANT ALL ON acct TO clerk")
    try:
        for grant, shown in [("SELECT", False), ("GRANT SELECT ON acct_deletions TO clerk", True)]:
            acct.execute(f"RESET ROLE; {grant}; SET ROLE clerk; BEGIN; SELECT fence_use(41)")
            refused = refusal(acct, "INSERT INTO acct VALUES (7, 1, 41)")
            acct.execute("ROLLBACK")
            assert (refused.sqlstate, "42" in refused.diag.message_detail) == ("LF001", shown)
    finally:
        acct.execute("RESET ROLE; DROP OWNED BY clerk; DROP ROLE clerk")


def test_who_may_not_insert_is_not_told_what_was_deleted(acct):
    acct.execute("CREATE ROLE clerk; GRANT SELECT, UPDATE ON acct TO clerk")
    try:
        for grant, key, answer in [("SELECT", 7, "42501"), ("SELECT", 9, "42501"), ("GRANT INSERT (id, bal, fence) ON acct TO clerk", 7, False)]:
            acct.execute(f"RESET ROLE; {grant}; SET ROLE clerk")
            upsert = f"""SELECT fenced_upsert('acct', {key}, 41, '{{"bal": 1}}')"""
            assert (key, acct.execute(upsert).fetchone()[0] if answer is False else outcome(acct, upsert)) == (key, answer)
    finally:
        acct.execute("RESET ROLE; DROP OWNED BY clerk; DROP ROLE clerk")


def test_a_key_of_other_columns_is_not_read_as_the_old_one(acct):
    acct.execute("ALTER TABLE acct DROP CONSTRAINT acct_pkey, ADD PRIMARY KEY (bal)")
    for statement in [
        """SELECT fenced_upsert('acct', 7, 41, '{"id": 99}')""",
        "INSERT INTO acct VALUES (99, 7)",
        "SELECT fence_protect('acct')",
        REMEMBER,
        "SELECT fence_forget_deletions('acct', interval '-1 day')",
    ]:
        assert (statement, outcome(acct, statement)) == (statement, "22023" if "forget" in statement else "55000")
    assert acct.execute("SELECT id, fence FROM acct_deletions").fetchall() == [(7, 42)]
    acct.execute(f"SELECT fence_protect('acct', deletes => 'plain'); {REMEMBER}")
    assert acct.execute(SHOWN).fetchall() == [("acct", "remembered", "acct_deletions", [])]
    assert acct.execute("""SELECT fenced_upsert('acct', 7, 41, '{"id": 99}')""").fetchone() == (True,)


def test_a_key_of_other_columns_is_not_read_as_the_old_one_after_unprotect(acct):
    acct.execute("SELECT fence_unprotect('acct'); ALTER TABLE acct DROP CONSTRAINT acct_pkey, ADD PRIMARY KEY (bal)")
    assert refusal(acct, REMEMBER).diag.constraint_name == "deletions_of_another_key"


def test_what_the_owner_makes_of_the_table_runs_with_the_owners_rights(db):
    db.execute("CREATE ROLE alice; GRANT ALL ON SCHEMA public TO alice; SET ROLE alice")
    try:
        db.execute(f"{TABLE}; {REMEMBER}; INSERT INTO acct VALUES (7), (8); CREATE TABLE seen (who name)")
        db.execute("""CREATE FUNCTION spy() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO seen VALUES (current_user); RETURN COALESCE(NEW, OLD); END $$;
            CREATE TRIGGER spy BEFORE INSERT OR DELETE ON acct_deletions FOR EACH ROW EXECUTE FUNCTION spy(); RESET ROLE""")
        db.execute("SELECT fenced_claim_json('acct', 7, 42); SELECT fenced_delete('acct', 7, 42); SELECT fence_forget_deletions('acct', '0')")
        assert set(db.execute("SELECT who FROM seen").fetchall()) == {("alice",)}
        assert db.execute("SELECT current_user").fetchone() == ("postgres",)
    finally:
        db.execute("RESET ROLE; DROP OWNED BY alice CASCADE; DROP ROLE alice")


def test_the_search_path_changes_nothing(acct):
    acct.execute("""CREATE SCHEMA evil; CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT NULL::timestamptz';
        CREATE FUNCTION evil.yes(int, int) RETURNS bool LANGUAGE sql AS 'SELECT false'; CREATE OPERATOR evil.= (LEFTARG = int, RIGHTARG = int, FUNCTION = evil.yes);
        CREATE DOMAIN evil.int8 AS text; CREATE TABLE evil.acct_deletions (id int PRIMARY KEY, fence bigint, deleted_at timestamptz); SET search_path = evil, pg_catalog, public""")
    acct.execute("SELECT public.fence_protect('public.acct'); SELECT public.fenced_delete('public.acct', 8, 42)")
    assert acct.execute("SELECT id, fence FROM public.acct_deletions ORDER BY id").fetchall() == [(7, 42), (8, 42)]
    assert under(acct, 41, "INSERT INTO public.acct VALUES (8, 1, 41)") in ("42883", "LF001")
    acct.execute("BEGIN; SELECT public.fence_use(41)")
    assert outcome(acct, "INSERT INTO public.acct VALUES (8, 1, 41)") == "LF001"
    acct.execute("ROLLBACK; SELECT public.fence_protect('public.acct', deletes => 'plain'); SELECT public.fence_protect('public.acct', deletes => 'remembered')")
    acct.execute("SET search_path = public")
    assert acct.execute(SHOWN).fetchall() == [("acct", "remembered", "acct_deletions", [])]


def test_the_functions_of_its_triggers_are_harmless_by_hand(acct):
    acct.execute("CREATE ROLE anybody; SET ROLE anybody")
    try:
        assert outcome(acct, "SELECT fence_internals.remember()") == "39P01"
        assert acct.execute("SELECT fence_internals.has_key('acct_deletions', 5, 8), fence_internals.has_key(NULL, NULL, VARIADIC ARRAY[7])").fetchone() == (True, True)
        for keys, answer in [
            ("1, 1, 'a'::text, 'a'::text", False),
            ("1, 2", True),
            ("1", True),
            ("VARIADIC ARRAY[1, 1]", True),
            ("1, 'a'::text", True),
            ("'a'::text, 1", True),
            ("'a', 'a'", False),
            ("1, NULL::int", True),
            ("NULL::int, 1", True),
            ("NULL::int, NULL::int, 1, 1", False),
        ]:
            call = f"SELECT fence_internals.changes_key('acct_deletions', 5, 5, {keys})"
            assert (keys, outcome(acct, call) if isinstance(answer, str) else acct.execute(call).fetchone()[0]) == (keys, answer)
    finally:
        acct.execute("RESET ROLE; DROP ROLE anybody")
    assert acct.execute("SELECT id, fence FROM acct_deletions").fetchall() == [(7, 42)]


# --- Forgetting.


def test_deletions_are_forgotten_by_age(acct):
    acct.execute("UPDATE acct_deletions SET deleted_at = now() - interval '2 days'; SELECT fenced_delete('acct', 8, 42)")
    for age, forgotten in [("30 days", 0), ("1 day", 1), ("1 day", 0), ("0", 1)]:
        assert (age, acct.execute("SELECT fence_forget_deletions('acct', %s)", (age,)).fetchone()) == (age, (forgotten,))
    assert under(acct, 41, "INSERT INTO acct VALUES (7, 1, 41)") == 1
    for arguments, sqlstate, word in [
        ("'acct', NULL", "22004", "null_argument"),
        ("NULL, '1 day'", "22004", "null_argument"),
        ("'acct', '-1 day'", "22023", "age_negative"),
    ]:
        refused = refusal(acct, f"SELECT fence_forget_deletions({arguments})")
        assert (arguments, refused.sqlstate, refused.diag.constraint_name) == (arguments, sqlstate, word)
    assert refused.diag.message_primary == 'argument "older_than" must not be negative, as -1 days is'
    acct.execute("SELECT fence_protect('acct', deletes => 'plain')")
    refused = refusal(acct, "SELECT fence_forget_deletions('acct', '1 day')")
    assert (refused.sqlstate, refused.diag.message_primary) == ("55000", 'deletions of table "acct" are not remembered')
    assert refused.diag.message_hint == "Call fence_protect() with deletes => 'remembered'."


def test_forgetting_waits_for_nobody(acct, connect):
    """A worker that deletes two keys anew would have it end in a deadlock."""
    worker = connect()
    acct.execute("SELECT fenced_delete('acct', 8, 42); UPDATE acct_deletions SET deleted_at = now() - interval '2 days'; BEGIN; SELECT fence_use(42); INSERT INTO acct VALUES (8, 1, 42); COMMIT")
    worker.execute("BEGIN; SELECT fence_use(42); DELETE FROM acct WHERE id = 8")
    acct.execute("SET lock_timeout = '20s'")
    assert acct.execute("SELECT fence_forget_deletions('acct', interval '1 day')").fetchone() == (1,)
    worker.execute("COMMIT")
    assert acct.execute("SELECT id, fence, deleted_at > now() - interval '1 day' FROM acct_deletions").fetchall() == [(8, 42, True)]


def test_the_owner_removes_a_single_one(acct):
    acct.execute("DELETE FROM acct_deletions WHERE id = 7")
    assert under(acct, 41, "INSERT INTO acct VALUES (7, 1, 41)") == 1


def test_a_deletion_anew_is_as_old_as_its_last(acct):
    acct.execute("UPDATE acct_deletions SET deleted_at = now() - interval '2 days'; BEGIN; SELECT fence_use(42); INSERT INTO acct VALUES (7, 1, 42); DELETE FROM acct WHERE id = 7; COMMIT")
    assert acct.execute("SELECT fence_forget_deletions('acct', '1 day')").fetchone() == (0,)


# --- Dump, restore, replication.


@pytest.fixture
def databases(pg, closing):
    """A source database whose owner is alice, a dump of it with some options, and what a restore of that says."""
    pg.psql("CREATE ROLE alice LOGIN")
    made = []

    def empty():
        made.append(f"remembered_{len(made)}")
        pg.psql(f"CREATE DATABASE {made[-1]} OWNER alice TEMPLATE template0")
        return made[-1]

    def run(program, *words):
        command = [str(pg.installation.program(program)), *words]
        done = subprocess.run(command, env={**os.environ, **pg.installation.environment}, capture_output=True, text=True, timeout=240)
        return [line for line in done.stderr.splitlines() if "error" in line.lower()]

    def open_(name):
        return closing(psycopg.connect(pg.url(name).replace("postgres@", "alice@"), autocommit=True))

    def carry(source, folder, *options, restore=()):
        target, path = empty(), str(folder / "dump")
        url = lambda name: pg.url(name).replace("postgres@", "alice@")  # noqa: E731
        assert run("pg_dump", "-Fc", *options, "-f", path, "-d", url(source)) == []
        return target, run("pg_restore", *restore, "-d", url(target), path)

    yield empty, open_, carry
    for name in made:
        pg.psql(f"DROP DATABASE {name} WITH (FORCE)")
    pg.psql("DROP ROLE alice")


SOURCE = f"""CREATE EXTENSION pg_fence; CREATE SCHEMA "Odd ""s"; SET search_path = "Odd ""s", public; CREATE DOMAIN short AS text;
    {TABLE.replace("id int", "id short")}; {REMEMBER}; INSERT INTO acct VALUES (7), (8); {PARTS}
    SELECT * FROM fenced_claim_many(NULL::acct, ARRAY['7', '8'], 42); SELECT fenced_delete('acct', '7', 42);
    SELECT fenced_delete('parts', ROW(1, 'a'), 42); SELECT fence_protect('acct', inserts => 'fenced')"""
CONTENT = [("7", 42)], [(1, "a", 42)]


def content(db):
    return db.execute("SELECT id, fence FROM acct_deletions").fetchall(), db.execute(NOTED).fetchall()


FORMS = {"whole": ((), ()), "in parallel": ((), ("-j4",)), "schema only": (("--schema-only",), ())}


@pytest.mark.parametrize("form", FORMS)
def test_a_dump_carries_it_and_its_triggers(databases, tmp_path, form):
    empty, open_, carry = databases
    source = empty()
    open_(source).execute(SOURCE)
    options, restore = FORMS[form]
    target, errors = carry(source, tmp_path, *options, restore=restore)
    assert errors == []
    db = open_(target)
    db.execute('SET search_path = "Odd ""s", public')
    assert content(db) == (([], []) if form == "schema only" else CONTENT)
    shown = db.execute("SELECT target::text, inserts, deletes, deletions::text, open_by FROM fence_protected ORDER BY 1").fetchall()
    parts = [(table, "plain", "remembered", "parts_deletions", []) for table in ("a", "b", "c", "c1", "parts")]
    assert shown == [parts[0], ("acct", "fenced", "remembered", "acct_deletions", []), *parts[1:]]
    stale = "LF001" if form != "schema only" else 1
    assert under(db, 41, "INSERT INTO acct VALUES ('7', 1, 41)") == stale
    assert under(db, 41, "INSERT INTO parts VALUES (1, 'a', 0, 41)") == stale
    if form != "schema only":
        assert db.execute("SELECT fenced_delete('acct', '8', 42)").fetchone() == (True,)
        assert db.execute("SELECT count(*) FROM acct_deletions").fetchone() == (2,)
    # A dump carries no word on what is dropped together.
    db.execute("SELECT fence_protect('acct'), fence_protect('parts'); DROP TABLE acct, parts")
    assert db.execute("SELECT to_regclass('acct_deletions'), to_regclass('parts_deletions')").fetchone() == (None, None)


def test_one_table_is_dumped_with_that_of_its_deletions(databases, tmp_path):
    empty, open_, carry = databases
    source = empty()
    open_(source).execute(f"CREATE EXTENSION pg_fence; {TABLE}; {REMEMBER}; INSERT INTO acct VALUES (7); SELECT fenced_claim_json('acct', 7, 42); SELECT fenced_delete('acct', 7, 42)")
    target, errors = carry(source, tmp_path, "-t", "acct", "-t", "acct_deletions", "-e", "pg_fence")
    assert errors == []
    db = open_(target)
    assert db.execute(SHOWN).fetchall() == [("acct", "remembered", "acct_deletions", [])]
    assert under(db, 41, "INSERT INTO acct VALUES (7, 1, 41)") == "LF001"


def test_a_subscriber_remembers_what_is_published(make_pg):
    """Both are databases of one server, so the slot is made by hand."""
    server = make_pg(settings={"wal_level": "logical"})
    for database in ("pub", "sub"):
        server.psql(f"CREATE DATABASE {database}")
        server.psql(f"CREATE EXTENSION pg_fence; {TABLE}; {REMEMBER}", database)
    server.psql("CREATE PUBLICATION p FOR TABLE acct, acct_deletions; SELECT pg_create_logical_replication_slot('s', 'pgoutput')", "pub")
    server.psql(f"CREATE SUBSCRIPTION s CONNECTION '{server.url('pub')}' PUBLICATION p WITH (create_slot = false, copy_data = false)", "sub")
    for key in (7, 8):
        server.psql(f"INSERT INTO acct VALUES ({key}); SELECT fenced_claim_json('acct', {key}, 42); SELECT fenced_delete('acct', {key}, 42)", "pub")
    server.psql("BEGIN; SELECT fence_use(50); INSERT INTO acct VALUES (8, 1, 50); DELETE FROM acct WHERE id = 8; COMMIT", "pub")
    eventually(lambda: server.psql("SELECT id, fence FROM acct_deletions ORDER BY 1", "sub"), "7|42\n8|50")
    assert "is stale for a new row" in server.psql("BEGIN; SELECT fence_use(41); INSERT INTO acct VALUES (7, 1, 41)", "sub", check=False)
    server.psql("ALTER SUBSCRIPTION s DISABLE; ALTER SUBSCRIPTION s SET (slot_name = NONE); DROP SUBSCRIPTION s", "sub")
