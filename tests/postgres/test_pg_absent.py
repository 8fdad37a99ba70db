"""Rows that are not there yet: fenced_claim_or_insert() and fenced_upsert() make them, stamped, and nothing else differs."""

import random
import threading

import pytest
from majors import others_in_long_runs
from seeds import seed

from refusals import outcome, refusal

CLAIM = "SELECT * FROM fenced_claim_or_insert(NULL::acct, %s, %s, %s)"
UPSERT = "SELECT fenced_upsert('acct', %s, %s, %s)"
# Each with a placeholder for the table, the key and the fence; both set v to 1 in a new row.
BOTH = {
    "claim": "SELECT fence FROM fenced_claim_or_insert(NULL::{t}, {key}, {fence}, '{{\"v\": 1}}')",
    "upsert": "SELECT fenced_upsert('{t}', {key}, {fence}, '{{\"v\": 1}}')",
}


@pytest.fixture
def acct(db):
    """A connection to a table with one row, which fence 5 has claimed."""
    db.execute("CREATE TABLE acct (id int PRIMARY KEY, bal int NOT NULL DEFAULT 10, note text, fence bigint NOT NULL DEFAULT 0)")
    db.execute("INSERT INTO acct VALUES (1, 20, 'old', 5)")
    return db


@pytest.fixture
def app(db):
    """The role app, which is gone afterwards."""
    db.execute("CREATE ROLE app")
    yield db
    db.execute("RESET ROLE; DROP OWNED BY app CASCADE; DROP ROLE app")


def everything(db, table="acct"):
    db.execute("RESET ROLE")
    return db.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()


def call(which, *, table="t", key="1", fence=5):
    return BOTH[which].format(t=table, key=key, fence=fence)


# --- what they do


def test_a_missing_row_is_inserted_stamped_and_returned(acct):
    assert acct.execute(CLAIM, (2, 7, '{"note": "new"}')).fetchall() == [(2, 10, "new", 7)]
    assert acct.execute(CLAIM, (3, 7, "{}")).fetchall() == [(3, 10, None, 7)]
    assert everything(acct) == [(1, 20, "old", 5), (2, 10, "new", 7), (3, 10, None, 7)]


def test_a_row_that_is_there_is_claimed_and_keeps_what_it_has(acct):
    assert acct.execute(CLAIM, (1, 5, '{"note": "new", "bal": 0}')).fetchall() == [(1, 20, "old", 5)]
    assert acct.execute(CLAIM, (1, 6, '{"note": "new", "bal": 0}')).fetchall() == [(1, 20, "old", 6)]
    assert acct.execute(CLAIM, (1, 5, '{"note": "new", "bal": 0}')).fetchall() == []
    assert everything(acct) == [(1, 20, "old", 6)]


def test_an_upsert_inserts_writes_or_is_stale(acct):
    assert acct.execute(UPSERT, (2, 7, '{"bal": 1}')).fetchone() == (True,)
    assert acct.execute(UPSERT, (2, 7, '{"note": "again"}')).fetchone() == (True,)
    assert acct.execute(UPSERT, (2, 8, '{"bal": 2}')).fetchone() == (True,)
    assert acct.execute(UPSERT, (2, 7, '{"bal": 3}')).fetchone() == (False,)
    assert everything(acct) == [(1, 20, "old", 5), (2, 2, "again", 8)]


def test_the_new_row_is_its_holders_and_no_older_ones(acct):
    acct.execute(CLAIM, (2, 7, "{}"))
    assert acct.execute("SELECT fenced_update('acct', 2, 7, '{\"bal\": 11}')").fetchone() == (True,)
    assert acct.execute("SELECT fenced_update('acct', 2, 6, '{\"bal\": 12}')").fetchone() == (False,)
    assert acct.execute("SELECT * FROM fenced_claim(NULL::acct, 2, 6)").fetchall() == []
    assert refusal(acct, "SELECT fenced_update('acct', 2, 8, '{\"bal\": 13}')").sqlstate == "LF002"
    assert everything(acct)[1] == (2, 11, None, 7)


def test_a_patch_of_an_upsert_that_names_no_column_is_refused(acct):
    error = refusal(acct, UPSERT, (2, 7, "{}"))
    assert (error.sqlstate, error.diag.message_primary) == ("22023", "the patch names no column")
    assert everything(acct) == [(1, 20, "old", 5)]


def test_the_fence_column_may_have_another_name(db):
    db.execute("CREATE TABLE jobs (id int PRIMARY KEY, lock_fence bigint, fence text)")
    named = "fence_column => 'lock_fence'"
    assert db.execute(f"SELECT * FROM fenced_claim_or_insert(NULL::jobs, 1, 5, '{{\"fence\": \"x\"}}', {named})").fetchall() == [(1, 5, "x")]
    assert db.execute(f"SELECT fenced_upsert('jobs', 2, 5, '{{\"fence\": \"y\"}}', {named})").fetchone() == (True,)
    assert everything(db, "jobs") == [(1, 5, "x"), (2, 5, "y")]


@pytest.mark.parametrize("which", BOTH)
def test_a_domain_over_the_row_type_stands_for_it_and_is_checked(db, which):
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v int, fence bigint); CREATE DOMAIN fine AS t CHECK ((VALUE).id < 5)")
    assert db.execute("SELECT * FROM fenced_claim_or_insert(NULL::fine, 1, 5, '{}')").fetchall() == [(1, None, 5)]
    assert outcome(db, "SELECT * FROM fenced_claim_or_insert(NULL::fine, 9, 5, '{}')") == "23514"
    assert everything(db, "t") == [(1, None, 5)]


def test_a_dropped_column_is_no_hindrance(db):
    db.execute("CREATE TABLE t (gone int, id int PRIMARY KEY, v int, fence bigint); ALTER TABLE t DROP gone")
    assert db.execute(call("claim")).fetchall() == [(5,)]
    assert db.execute("SELECT * FROM fenced_claim_or_insert(NULL::t, 2, 6, '{\"v\": 3}')").fetchall() == [(2, 3, 6)]
    assert db.execute(call("upsert", key="3")).fetchone() == (True,)
    assert everything(db, "t") == [(1, 1, 5), (2, 3, 6), (3, 1, 5)]


# --- a row that is there needs nothing of INSERT


@pytest.mark.parametrize("which", BOTH)
def test_a_row_that_is_there_fires_no_insert_trigger_and_takes_no_number(db, which):
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v int, n serial, fence bigint NOT NULL DEFAULT 0); CREATE TABLE seen (what text)")
    db.execute("""CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN INSERT INTO seen VALUES (TG_WHEN || ' ' || TG_OP || ' ' || TG_LEVEL); RETURN NEW; END $$""")
    for when in ("BEFORE", "AFTER"):
        for level in ("ROW", "STATEMENT"):
            db.execute(f"CREATE TRIGGER {when}{level} {when} INSERT ON t FOR EACH {level} EXECUTE FUNCTION note()")
    db.execute(call(which, fence=5))
    assert db.execute("SELECT what FROM seen ORDER BY 1").fetchall() == [
        ("AFTER INSERT ROW",), ("AFTER INSERT STATEMENT",), ("BEFORE INSERT ROW",), ("BEFORE INSERT STATEMENT",)]  # fmt: skip
    db.execute("DELETE FROM seen")
    for fence in (5, 6, 4):
        db.execute(call(which, fence=fence))
    assert db.execute("SELECT * FROM seen").fetchall() == []
    assert db.execute("SELECT last_value FROM t_n_seq").fetchone() == (1,)


@pytest.mark.parametrize("which", BOTH)
def test_a_row_that_is_there_needs_no_right_to_insert(app, which):
    app.execute("CREATE TABLE t (id int PRIMARY KEY, v int, fence bigint NOT NULL DEFAULT 0); INSERT INTO t VALUES (1, 0, 0)")
    app.execute("GRANT SELECT, UPDATE ON t TO app; SET ROLE app")
    assert app.execute(call(which)).rowcount == 1
    assert outcome(app, call(which, key="2")) == "42501"
    app.execute("RESET ROLE; GRANT INSERT (id, fence, v) ON t TO app; SET ROLE app")
    assert app.execute(call(which, key="2")).rowcount == 1
    assert len(everything(app, "t")) == 2


@pytest.mark.parametrize("which", BOTH)
def test_a_right_to_insert_alone_is_not_enough(app, which):
    app.execute("CREATE TABLE t (id int PRIMARY KEY, v int, fence bigint NOT NULL DEFAULT 0); GRANT SELECT, INSERT ON t TO app; SET ROLE app")
    assert outcome(app, call(which)) == "42501"
    assert everything(app, "t") == []


# --- the key of the new row

STORABLE = {
    "int": ["1", "1::bigint", "1.0::numeric", "1::float8", "'1'", "'{\"id\": 1}'::jsonb", "'1'::text", "'{\"id\": 1.0}'::jsonb"],
    "bigint": ["1", "1::smallint", "'1'"],
    "numeric(4,1)": ["0.5", "0.5::float8", "'0.5'", "0.50", "'{\"id\": 0.5}'::jsonb", "7"],
    "float8": ["0.1::float8", "0.1", "0.1::float4", "'NaN'"],
    "text": ["'a'", "'a'::varchar", "'a'::name", "'a '::char(5)", "''"],
    "varchar(3)": ["'abc'", "'abc'::text"],
    "char(3)": ["'a'", "'a'::text", "'a'::char(5)"],
    "date": ["'2026-01-02'", "'2026-01-02'::date", "'2026-01-02'::timestamp"],
    "timestamp(0)": ["'2026-01-02 03:04:05'::timestamp", "'2026-01-02 03:04:05'"],
    "timestamptz": ["'2026-01-02 03:04:05.678901'::timestamp", "'2026-01-02 03:04:05.678901+00'"],
    "uuid": ["'2f1c7d0e-6a3e-4c7e-9a52-0a6a3f5f2b11'", "'2f1c7d0e-6a3e-4c7e-9a52-0a6a3f5f2b11'::uuid"],
    "jsonb": ["'{\"id\": 1}'::jsonb", "'[1]'::jsonb"],
    "mood": ["'ok'", "'ok'::mood"],
    "positive": ["1", "1::bigint", "'1'"],
    "tenth": ["0.5", "0.5::float8", "'0.5'"],
    "int[]": ["ARRAY[1, 2]", "'{1,2}'"],
    "int4range": ["int4range(1, 5)", "'[1,5)'"],
    "bytea": ["'\\x00ff'::bytea", "'\\x00ff'"],
    "oid": ["1", "'1'", "1::oid"],
    "boolean": ["true", "'t'"],
    "regclass": ["'pg_class'::regclass", "'pg_class'", "1259"],
    "name": ["'a'", "'a'::name", "'a'::text"],
    "pair": ["ROW(1, 'x')::pair", "'(1,x)'"],
    "money": ["1.50::numeric", "'1.50'", "1.50::money"],
    "interval": ["'1 day'", "'24:00'::interval"],
}  # fmt: skip


@pytest.mark.parametrize("which", BOTH)
def test_the_new_row_is_found_by_the_key_that_made_it(db, which):
    db.execute("CREATE TYPE mood AS ENUM ('ok', 'bad'); CREATE DOMAIN positive AS int CHECK (VALUE > 0); CREATE DOMAIN tenth AS numeric(4,1); CREATE TYPE pair AS (a int, b text)")
    db.execute("SET extra_float_digits = 0; SET timezone = 'Asia/Kolkata'")
    for type_name, keys in STORABLE.items():
        for key in keys:
            db.execute(f"DROP TABLE IF EXISTS t; CREATE TABLE t (id {type_name} PRIMARY KEY, v int, fence bigint NOT NULL DEFAULT 0)")
            assert (type_name, key, db.execute(call(which, key=key)).rowcount) == (type_name, key, 1)
            assert db.execute(call(which, key=key, fence=6)).rowcount == 1
            assert db.execute(f"SELECT fence FROM fenced_claim(NULL::t, {key}, 7)").fetchall() == [(7,)]
            assert (type_name, key, db.execute("SELECT v, fence FROM t").fetchall()) == (type_name, key, [(1, 7)])


UNSTORABLE = {
    "int": {"1.5": "22023", "99999999999": "22023", "1.5::float8": "22023", "'NaN'::float8": "22023", "'{\"id\": 1.5}'::jsonb": "22023"},
    "numeric(4,1)": {"0.05": "22023", "'0.05'": "22023", "0.05::float8": "22023", "12345": "22003"},
    "numeric": {},
    "varchar(3)": {"'abcd'": "22001", "'abc '": "22023", "'abc '::text": "22023"},
    "char(3)": {"'abcd'": "22001"},
    "date": {"'2026-01-02 03:04'::timestamp": "22023"},
    "timestamp(0)": {"'2026-01-02 03:04:05.6'::timestamp": "22023", "'2026-01-02 03:04:05.6'": "22023"},
    "positive": {"0": "23514", "-1": "23514", "1.5": "22023"},
    "tenth": {"0.05": "22023"},
    "oid": {"-1": "22023", "4294967296": "22023"},
    "bit(3)": {"B'01'": "22026"},
    "name": {"repeat('x', 64)": "22023"},
    "money": {"1.505": "22023"},
}


@pytest.mark.parametrize("which", BOTH)
def test_a_key_that_the_column_would_round_or_cut_makes_no_row(db, which):
    db.execute("CREATE DOMAIN positive AS int CHECK (VALUE > 0); CREATE DOMAIN tenth AS numeric(4,1)")
    for type_name, keys in UNSTORABLE.items():
        db.execute(f"DROP TABLE IF EXISTS t; CREATE TABLE t (id {type_name} PRIMARY KEY, v int, fence bigint NOT NULL DEFAULT 0)")
        assert (type_name, {key: outcome(db, call(which, key=key)) for key in keys}) == (type_name, keys)
        assert everything(db, "t") == []


def test_a_key_that_no_row_can_have_is_refused_with_these_words(db):
    db.execute("CREATE TABLE t (id numeric(4,1) PRIMARY KEY, v int, fence bigint); INSERT INTO t VALUES (0.1)")
    error = refusal(db, call("claim", key="0.05"))
    assert (error.sqlstate, error.diag.message_primary) == ("22023", 'no row of table "t" can have this key')
    assert error.diag.message_detail == "Key (id)=(0.05) is not a value of its column as it stands: it would be rounded or cut."
    assert error.diag.message_hint == "Pass a key that the columns of the primary key can hold."
    assert (error.diag.table_name, error.diag.constraint_name) == ("t", "key_not_storable")


@pytest.mark.parametrize("which", BOTH)
def test_a_key_of_several_columns_is_inserted_in_their_order(db, which):
    db.execute("CREATE TABLE t (v int, b text, a int, fence bigint, PRIMARY KEY (a, b))")
    for n, key in enumerate(["ROW(1, 'x')", "'{\"b\": \"x\", \"a\": 1}'", "'{\"a\": 1, \"b\": \"x\"}'::jsonb", "ROW(1::bigint, 'x'::varchar)"]):
        db.execute("DELETE FROM t")
        assert (key, db.execute(call(which, key=key)).rowcount) == (key, 1)
        assert db.execute("SELECT * FROM t").fetchall() == [(1, "x", 1, 5)]
        assert db.execute(call(which, key=key, fence=6)).rowcount == 1
    assert outcome(db, call(which, key="ROW(1, NULL)")) == "22004"
    assert outcome(db, call(which, key="ROW(1)")) == "22023"


GENERATED_KEYS = {
    "id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v int": ("9", "(id)=(9)", "id"),
    "v int, id int GENERATED ALWAYS AS (v * 2) STORED PRIMARY KEY": ("9", "(id)=(9)", "id"),
    "a int, v int, id int GENERATED ALWAYS AS IDENTITY, PRIMARY KEY (a, id)": ("ROW(1, 9)", "(a, id)=(1, 9)", "id"),
}


@pytest.mark.parametrize("which", BOTH)
@pytest.mark.parametrize("columns", GENERATED_KEYS)
def test_a_key_that_the_server_gives_out_cannot_be_brought(db, which, columns):
    """A sequence would give it out once more."""
    key, shown, column = GENERATED_KEYS[columns]
    db.execute(f"CREATE TABLE t ({columns}, fence bigint NOT NULL DEFAULT 0)")
    error = refusal(db, call(which, key=key))
    assert (error.sqlstate, error.diag.message_primary) == ("428C9", 'the server gives out the keys of table "t"')
    assert error.diag.message_detail == (
        f'Key {shown} does not exist, and key column "{column}" is GENERATED ALWAYS, so a new row cannot be given it.'
    )
    assert error.diag.message_hint == "Insert the row without its key, then claim it by the key that it got."
    assert (error.diag.table_name, error.diag.column_name, error.diag.constraint_name) == ("t", column, "key_generated")
    assert everything(db, "t") == []


@pytest.mark.parametrize("which", BOTH)
def test_a_row_that_is_there_is_claimed_whoever_gave_it_its_key(db, which):
    db.execute("CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v int, fence bigint NOT NULL DEFAULT 0); INSERT INTO t (v) VALUES (0)")
    assert db.execute(call(which)).rowcount == 1
    assert db.execute("SELECT fence FROM t").fetchall() == [(5,)]


@pytest.mark.parametrize("identity", ["int GENERATED BY DEFAULT AS IDENTITY", "serial"])
@pytest.mark.parametrize("which", BOTH)
def test_a_key_that_a_caller_may_bring_does_not_move_the_sequence(db, which, identity):
    db.execute(f"CREATE TABLE t (id {identity} PRIMARY KEY, v int, fence bigint NOT NULL DEFAULT 0)")
    assert db.execute(call(which, key="1")).rowcount == 1
    assert outcome(db, "INSERT INTO t (v) VALUES (7)") == "23505"
    assert everything(db, "t") == [(1, 1, 5)]


# --- the other columns


@pytest.mark.parametrize("which", BOTH)
def test_the_other_columns_get_what_they_get_in_any_insert(db, which):
    db.execute("""CREATE DOMAIN positive AS int DEFAULT 3 CHECK (VALUE > 0);
        CREATE TABLE t (id int PRIMARY KEY, v int, d text DEFAULT 'x', twice int GENERATED ALWAYS AS (id * 2) STORED,
            n int GENERATED ALWAYS AS IDENTITY, m int GENERATED BY DEFAULT AS IDENTITY, p positive, fence bigint)""")
    db.execute(call(which, key="4"))
    assert everything(db, "t") == [(4, 1, "x", 8, 1, 1, 3, 5)]
    set_all = "'{\"v\": null, \"d\": null, \"m\": 9, \"p\": 7}'"
    for key, sql in ((5, f"SELECT fenced_upsert('t', 5, 5, {set_all})"), (6, f"SELECT fenced_claim_or_insert(NULL::t, 6, 5, {set_all})")):
        db.execute(sql)
        assert db.execute("SELECT v, d, m, p FROM t WHERE id = %s", (key,)).fetchall() == [(None, None, 9, 7)]


VIOLATIONS = {
    "v int, w int NOT NULL": ("23502", None),
    "v int UNIQUE": ("23505", "t_v_key"),
    "v int UNIQUE DEFERRABLE": ("23505", "t_v_key"),
    "v int, CONSTRAINT c EXCLUDE USING btree (v WITH =)": ("23P01", "c"),
    "v int CONSTRAINT c CHECK (v > 1)": ("23514", "c"),
    "v int CONSTRAINT c REFERENCES other": ("23503", "c"),
}


@others_in_long_runs
@pytest.mark.parametrize("columns", VIOLATIONS)
@pytest.mark.parametrize("which", BOTH)
def test_a_violation_of_another_constraint_arrives_as_the_server_raises_it(db, which, columns):
    sqlstate, constraint = VIOLATIONS[columns]
    db.execute(f"CREATE TABLE other (id int PRIMARY KEY); CREATE TABLE t (id int PRIMARY KEY, fence bigint, {columns})")
    if sqlstate in ("23505", "23P01"):
        db.execute("INSERT INTO t (id, v) VALUES (8, 1)")
    before = everything(db, "t")
    error = refusal(db, call(which))
    assert (error.sqlstate, error.diag.constraint_name, error.diag.table_name) == (sqlstate, constraint, "t")
    assert everything(db, "t") == before


SAME_COLUMN = [
    "ALTER TABLE t ADD CONSTRAINT more UNIQUE (id)",
    "ALTER TABLE t ADD CONSTRAINT more UNIQUE (id) DEFERRABLE INITIALLY DEFERRED",
    "CREATE UNIQUE INDEX more ON t (id) WHERE v > 0",
    "CREATE UNIQUE INDEX more ON t (id, v)",
    "ALTER TABLE t RENAME CONSTRAINT t_pkey TO \"Other \"\"Key\"",
    "ALTER INDEX t_pkey RENAME TO \"Other \"\"Key\"",
    "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD CONSTRAINT later PRIMARY KEY (id)",
    "CREATE UNIQUE INDEX i ON t (id) INCLUDE (v); ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY USING INDEX i",
    "ALTER TABLE t RENAME TO was; ALTER TABLE was RENAME TO t",
    "CREATE SCHEMA s; ALTER TABLE t SET SCHEMA s; ALTER TABLE s.t SET SCHEMA public",
    "REINDEX INDEX CONCURRENTLY t_pkey",
]


@pytest.mark.parametrize("which", BOTH)
def test_the_primary_key_alone_says_whether_the_row_is_there_whatever_becomes_of_it(db, connect, which):
    """In a session that has inserted before, and by another one that alters the table meanwhile."""
    other = connect()
    for alter in SAME_COLUMN:
        other.execute("DROP TABLE IF EXISTS t; DROP SCHEMA IF EXISTS s; CREATE TABLE t (id int PRIMARY KEY, v int, fence bigint, w int)")
        assert db.execute(call(which)).rowcount == 1
        for statement in alter.split(";"):
            other.execute(statement)
        seen = [outcome(db, call(which, key=key, fence=fence)) for key in ("1", "2") for fence in (6, 7)]
        assert (alter, seen) == (alter, [1, 1, 1, 1])
        # A statement that this session has not run before.
        sql = "SELECT fenced_upsert('t', 3, 5, '{\"v\": 1, \"w\": 2}')" if which == "upsert" else "SELECT * FROM fenced_claim_or_insert(NULL::t, 3, 5, '{\"w\": 2}')"
        assert (alter, outcome(db, sql)) == (alter, 1)
        assert [row[0] for row in everything(db, "t")] == [1, 2, 3]


def test_what_another_index_of_the_column_takes_for_equal_is_a_violation_and_not_the_row(db):
    """As one with a collation that ignores case does. `ON CONFLICT (id)` would take that index for the primary key's."""
    functions = {"=": "eq", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
    for operator, name in functions.items():
        db.execute(f"CREATE FUNCTION {name}(int, int) RETURNS bool IMMUTABLE LANGUAGE sql AS 'SELECT $1 % 10 {operator} $2 % 10'")
        db.execute(f"CREATE OPERATOR {operator}% (FUNCTION = {name}, LEFTARG = int, RIGHTARG = int)")
    db.execute("CREATE FUNCTION cmp(int, int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1 % 10 - $2 % 10'")
    db.execute("CREATE OPERATOR CLASS last_digit FOR TYPE int USING btree AS OPERATOR 1 <%, OPERATOR 2 <=%, OPERATOR 3 =%, OPERATOR 4 >=%, OPERATOR 5 >%, FUNCTION 1 cmp(int, int)")
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v int, fence bigint); INSERT INTO t VALUES (1, 0, 0); CREATE UNIQUE INDEX i ON t (id last_digit)")
    for which in BOTH:
        error = refusal(db, call(which, key="11"))
        assert (error.sqlstate, error.diag.constraint_name) == ("23505", "i")
    assert everything(db, "t") == [(1, 0, 0)]


# --- tables of every kind


@pytest.mark.parametrize("which", BOTH)
def test_partitions_are_reached_by_the_parent_and_by_themselves(db, which):
    db.execute("""CREATE TABLE t (v int, id int, fence bigint NOT NULL DEFAULT 0, PRIMARY KEY (id)) PARTITION BY RANGE (id);
        CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10);
        CREATE TABLE high (fence bigint NOT NULL DEFAULT 0, gone int, id int NOT NULL, v int) PARTITION BY RANGE (id);
        ALTER TABLE high DROP gone; ALTER TABLE t ATTACH PARTITION high FOR VALUES FROM (10) TO (30);
        CREATE TABLE higher PARTITION OF high FOR VALUES FROM (10) TO (20)""")
    for key in ("1", "11"):
        for fence in (5, 6):
            assert db.execute(call(which, key=key, fence=fence)).rowcount == 1
    assert db.execute(call(which, table="low", key="2")).rowcount == 1
    assert db.execute(call(which, table="higher", key="12")).rowcount == 1
    assert db.execute(call(which, key="12", fence=7)).rowcount == 1
    rows = db.execute("SELECT tableoid::regclass::text, id, v, fence FROM t ORDER BY id").fetchall()
    assert rows == [("low", 1, 1, 6), ("low", 2, 1, 5), ("higher", 11, 1, 6), ("higher", 12, 1, 7)]
    # No partition takes them: the server's own errors.
    assert [outcome(db, call(which, key=key)) for key in ("25", "99")] == ["23514", "23514"]
    assert outcome(db, call(which, table="low", key="15")) == "23514"


@pytest.mark.parametrize("which", BOTH)
def test_a_parent_means_its_own_rows(db, which):
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v int, fence bigint); CREATE TABLE child () INHERITS (t); INSERT INTO child VALUES (1, 0, 9)")
    assert db.execute(call(which)).rowcount == 1
    assert db.execute("SELECT tableoid::regclass::text, id, v, fence FROM t ORDER BY 1").fetchall() == [("child", 1, 0, 9), ("t", 1, 1, 5)]


@pytest.mark.parametrize("kind", ["TEMP", "UNLOGGED"])
@pytest.mark.parametrize("which", BOTH)
def test_temporary_and_unlogged_tables_work(db, which, kind):
    db.execute(f"CREATE {kind} TABLE t (id int PRIMARY KEY, v int, fence bigint)")
    assert [db.execute(call(which, fence=fence)).rowcount for fence in (5, 6)] == [1, 1]
    assert db.execute("SELECT * FROM t").fetchall() == [(1, 1, 6)]


@pytest.mark.parametrize("rule", ["ON INSERT TO t DO INSTEAD NOTHING", "ON INSERT TO t DO ALSO NOTIFY x", "ON UPDATE TO t DO ALSO NOTIFY x"])
@pytest.mark.parametrize("which", BOTH)
def test_a_table_with_a_rule_takes_no_new_row_by_the_servers_own_refusal(db, which, rule):
    db.execute(f"CREATE TABLE t (id int PRIMARY KEY, v int, fence bigint); CREATE RULE r AS {rule}")
    assert outcome(db, call(which)) == "0A000"
    assert everything(db, "t") == []
    db.execute("ALTER TABLE t DISABLE RULE r; INSERT INTO t VALUES (1, 0, 0); ALTER TABLE t ENABLE RULE r")
    assert db.execute(call(which)).rowcount == 1, "one that is there needs no INSERT"


@pytest.mark.parametrize("which", BOTH)
def test_a_read_only_transaction_refuses_it(db, which):
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v int, fence bigint); SET default_transaction_read_only = on")
    assert outcome(db, call(which)) == "25006"


# --- row security


@pytest.fixture
def owned(app):
    """A connection as app to a table with row security: rows 1 and 2 have the owners app and bob."""
    app.execute("CREATE TABLE t (id int PRIMARY KEY, v int, owner name DEFAULT current_user, fence bigint NOT NULL DEFAULT 0)")
    app.execute("INSERT INTO t VALUES (1, 0, 'app', 3), (2, 0, 'bob', 3); ALTER TABLE t ENABLE ROW LEVEL SECURITY; GRANT ALL ON t TO app")
    return app


HIDDEN = 'INSERT on table "t" was accepted but inserted no row'


@pytest.mark.parametrize("which", BOTH)
def test_a_row_that_a_policy_hides_is_neither_claimed_nor_a_reason_to_try_for_ever(owned, which):
    owned.execute("CREATE POLICY own ON t USING (owner = current_user); SET ROLE app")
    assert owned.execute(call(which, key="1")).rowcount == 1
    assert owned.execute(call(which, key="3")).rowcount == 1
    error = refusal(owned, call(which, key="2"))
    assert (error.sqlstate, error.diag.message_primary) == ("LF004", HIDDEN)
    assert error.diag.message_detail == "Key (id)=(2) does not exist for the caller, and no new row has it."
    assert error.diag.message_hint == (
        "Check the table's row-security policies for SELECT and its BEFORE INSERT triggers: a policy hides the row that has "
        "this key, or a trigger drops the new one."
    )
    assert (error.diag.table_name, error.diag.constraint_name) == ("t", "insert_blocked")
    assert [(row[0], row[2], row[3]) for row in everything(owned, "t")] == [(1, "app", 5), (2, "bob", 3), (3, "app", 5)]


@pytest.mark.parametrize(
    "policies",
    [
        "CREATE POLICY p ON t USING (true) WITH CHECK (id < 3)",
        "CREATE POLICY p ON t FOR SELECT USING (true); CREATE POLICY q ON t FOR UPDATE USING (true); CREATE POLICY r ON t FOR INSERT WITH CHECK (id < 3)",
        "CREATE POLICY p ON t FOR SELECT USING (true); CREATE POLICY q ON t FOR UPDATE USING (true)",
        "CREATE POLICY p ON t FOR SELECT USING (id < 3); CREATE POLICY q ON t FOR UPDATE USING (true); CREATE POLICY r ON t FOR INSERT WITH CHECK (true)",
        "CREATE POLICY p ON t USING (true); CREATE POLICY r ON t AS RESTRICTIVE FOR INSERT WITH CHECK (fence < 5)",
    ],
)
@pytest.mark.parametrize("which", BOTH)
def test_a_policy_that_refuses_the_new_row_is_the_servers_own_error(owned, which, policies):
    owned.execute(f"{policies}; SET ROLE app")
    error = refusal(owned, call(which, key="3"))
    assert (error.sqlstate, "row-level security policy" in error.diag.message_primary) == ("42501", True)
    assert owned.execute(call(which, key="2")).rowcount == 1, "a row that is there is not asked"
    assert len(everything(owned, "t")) == 2


@pytest.mark.parametrize("which", BOTH)
def test_a_row_that_may_be_seen_but_not_changed_is_blocked_and_stale_wins(owned, which):
    owned.execute("CREATE POLICY p ON t FOR SELECT USING (true); CREATE POLICY q ON t FOR UPDATE USING (id <> 2); CREATE POLICY r ON t FOR INSERT WITH CHECK (true); SET ROLE app")
    error = refusal(owned, call(which, key="2"))
    assert (error.sqlstate, error.diag.message_primary) == ("LF004", 'UPDATE on table "t" was accepted but changed no row')
    assert owned.execute(call(which, key="2", fence=2)).fetchall() in ([], [(False,)])
    assert len(everything(owned, "t")) == 2


@pytest.mark.parametrize("which", BOTH)
def test_forced_row_security_binds_the_owner_too(owned, which):
    owned.execute("ALTER TABLE t OWNER TO app; GRANT USAGE ON SCHEMA public TO app; ALTER TABLE t FORCE ROW LEVEL SECURITY; CREATE POLICY own ON t USING (owner = current_user); SET ROLE app")
    assert outcome(owned, call(which, key="2")) == "LF004"
    assert owned.execute(call(which, key="3")).rowcount == 1


# --- triggers


def spoil(db, body, timing="BEFORE INSERT", table="t"):
    db.execute(f"CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$")
    db.execute(f"CREATE TRIGGER spoil {timing} ON {table} FOR EACH ROW EXECUTE FUNCTION spoil()")


@pytest.fixture(params=["plain", "partitioned", "protected"])
def table(request, db):
    """A connection to an empty table t of some kind. Where it is partitioned, triggers are on the partition."""
    partitioned = "PARTITION BY LIST (id); CREATE TABLE part PARTITION OF t DEFAULT" if request.param == "partitioned" else ""
    db.execute(f"CREATE TABLE t (id int PRIMARY KEY, v int, fence bigint {'NOT NULL DEFAULT 0' if request.param == 'protected' else ''}) {partitioned}")
    if request.param == "protected":
        db.execute("SELECT fence_protect('t')")
    return db


def trigger_table(db):
    return "part" if db.execute("SELECT to_regclass('part') IS NOT NULL").fetchone()[0] else "t"


@pytest.mark.parametrize("which", BOTH)
def test_a_trigger_that_drops_the_new_row_is_blocked_after_a_bounded_number_of_tries(table, which):
    table.execute("CREATE SEQUENCE tries")
    spoil(table, "PERFORM nextval('tries'); RETURN NULL;", table=trigger_table(table))
    error = refusal(table, call(which))
    assert (error.sqlstate, error.diag.message_primary) == ("LF004", HIDDEN)
    assert table.execute("SELECT last_value FROM tries").fetchone() == (10,)
    assert everything(table, "t") == []


@pytest.mark.parametrize("which", BOTH)
def test_a_trigger_that_drops_it_once_is_tried_again(table, which):
    table.execute("CREATE SEQUENCE tries")
    spoil(table, "IF nextval('tries') = 1 THEN RETURN NULL; END IF; RETURN NEW;", table=trigger_table(table))
    assert table.execute(call(which)).rowcount == 1
    assert everything(table, "t") == [(1, 1, 5)]


LEFT = {"0": "fence 0", "NULL": "fence null", "6": "fence 6", "4": "fence 4"}


@others_in_long_runs
@pytest.mark.parametrize("left", LEFT)
@pytest.mark.parametrize("which", BOTH)
def test_a_trigger_that_changes_the_fence_of_the_new_row_is_caught(table, which, left):
    if left == "NULL" and table.execute("SELECT attnotnull FROM pg_attribute WHERE attrelid = 't'::regclass AND attname = 'fence'").fetchone()[0]:
        table.execute("SELECT fence_unprotect('t'); ALTER TABLE t ALTER fence DROP NOT NULL")
    is_protected = table.execute("SELECT count(*) FROM fence_protected").fetchone() != (0,)
    spoil(table, f"NEW.fence := {left}; RETURN NEW;", table=trigger_table(table))
    error = refusal(table, call(which))
    if is_protected and left in ("4", "6"):
        # The call passes with its own fence alone.
        assert (error.sqlstate, error.diag.constraint_name) == ("LF003", "insert_fence_not_in_use")
    else:
        assert (error.sqlstate, error.diag.message_primary) == ("LF004", 'fence 5 was written to table "t" but did not stay')
        assert error.diag.message_detail == f"Key (id)=(1) would have been left with {LEFT[left]}."
    assert everything(table, "t") == []


@others_in_long_runs
@pytest.mark.parametrize("body", ["NEW.id := 77;", "NEW.id := 77; NEW.fence := 0;", "NEW.id := -NEW.id;"])
@pytest.mark.parametrize("which", BOTH)
def test_a_trigger_that_changes_the_key_of_the_new_row_is_caught(table, which, body):
    spoil(table, f"{body} RETURN NEW;", table=trigger_table(table))
    error = refusal(table, call(which))
    if error.sqlstate == "LF003":
        # On a protected table the row with another key is not the change of ours.
        assert table.execute("SELECT count(*) FROM fence_protected").fetchone() == (1,)
    else:
        assert (error.sqlstate, error.diag.message_primary) == ("LF004", 'a row was inserted into table "t" with another key')
        assert error.diag.message_detail == "Key (id)=(1) would not exist."
        assert error.diag.message_hint == "Check the table's BEFORE triggers: one of them sets a column of the primary key."
        assert error.diag.constraint_name == "key_changed"
    assert everything(table, "t") == []


@pytest.mark.parametrize("which", BOTH)
def test_a_trigger_that_changes_another_column_is_heeded(table, which):
    spoil(table, "NEW.v := 42; RETURN NEW;", table=trigger_table(table))
    assert table.execute(call(which)).rowcount == 1
    assert everything(table, "t") == [(1, 42, 5)]


@pytest.mark.parametrize("which", BOTH)
def test_a_trigger_that_deletes_the_new_row_afterwards_leaves_the_answer(table, which):
    table.execute("SELECT fence_unprotect('t')")
    spoil(table, "DELETE FROM t WHERE id = NEW.id; RETURN NULL;", "AFTER INSERT", trigger_table(table))
    assert table.execute(call(which)).rowcount == 1
    assert everything(table, "t") == []


@pytest.mark.parametrize("which", BOTH)
def test_a_trigger_that_inserts_the_row_itself_is_found(db, which):
    """The row is there then; it is claimed or written like any other."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v int, fence bigint NOT NULL DEFAULT 0)")
    spoil(db, "IF pg_trigger_depth() = 1 THEN INSERT INTO t VALUES (NEW.id, 7, 2); END IF; RETURN NEW;")
    assert db.execute(call(which)).rowcount == 1
    assert everything(db, "t") == [(1, 7 if which == "claim" else 1, 5)]


# --- protected tables


@pytest.mark.parametrize("which", BOTH)
def test_a_protected_table_admits_the_new_row_of_the_call_and_no_other(table, which):
    assert table.execute(call(which)).rowcount == 1
    assert table.execute(call(which, fence=6)).rowcount == 1
    if table.execute("SELECT count(*) FROM fence_protected").fetchone() != (0,):
        assert outcome(table, "INSERT INTO t VALUES (2, 0, 6)") == "LF003"
    assert everything(table, "t") == [(1, 1, 6)]


SLY = {
    "another row": "INSERT INTO t VALUES (2, 0, 5);",
    "the same row of another table": "INSERT INTO u VALUES (1, 0, 5);",
    "a fence of an older row": "UPDATE t SET fence = 5 WHERE id = 8;",
    "a write of an older row": "UPDATE t SET v = 5 WHERE id = 8;",
    "a deletion": "DELETE FROM t WHERE id = 8;",
}


@others_in_long_runs
@pytest.mark.parametrize("timing", ["BEFORE INSERT", "AFTER INSERT"])
@pytest.mark.parametrize("what", SLY)
@pytest.mark.parametrize("which", BOTH)
def test_what_a_trigger_does_inside_it_does_not_pass(db, which, what, timing):
    for name in ("t", "u"):
        db.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v int, fence bigint NOT NULL DEFAULT 0); INSERT INTO {name} VALUES (8, 0, 5), (9, 0, 0); SELECT fence_protect('{name}')")
    spoil(db, f"IF pg_trigger_depth() = 1 THEN {SLY[what]} END IF; RETURN NEW;", timing)
    before = everything(db, "t"), everything(db, "u")
    assert outcome(db, call(which)) == "LF003"
    assert (everything(db, "t"), everything(db, "u")) == before


@pytest.mark.parametrize("which", BOTH)
def test_the_pass_of_an_insertion_admits_no_update_of_its_own_row(db, which):
    """A BEFORE trigger inserts the row itself, without a fence, and tries to write it under the pass."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v int, fence bigint NOT NULL DEFAULT 0); SELECT fence_protect('t')")
    spoil(db, "IF pg_trigger_depth() = 1 THEN INSERT INTO t VALUES (NEW.id, 7, 0); UPDATE t SET fence = 9 WHERE id = NEW.id; END IF; RETURN NEW;")
    assert outcome(db, call(which)) == "LF003"
    assert everything(db, "t") == []


@pytest.mark.parametrize("which", BOTH)
def test_a_table_that_keeps_nothing_but_the_trigger_on_insert_admits_it_too(db, which):
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v int, fence bigint NOT NULL DEFAULT 0); SELECT fence_protect('t')")
    for (name,) in db.execute("SELECT tgname FROM pg_trigger WHERE tgrelid = 't'::regclass AND tgtype & 4 = 0").fetchall():
        db.execute(f'DROP TRIGGER "{name}" ON t')
    assert outcome(db, "INSERT INTO t VALUES (1, 0, 5)") == "LF003"
    assert db.execute(call(which)).rowcount == 1


def test_partitions_of_a_protected_table_admit_it_too(db):
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v int, fence bigint NOT NULL DEFAULT 0) PARTITION BY LIST (id); CREATE TABLE part PARTITION OF t DEFAULT; SELECT fence_protect('t')")
    for n, which in enumerate(BOTH):
        assert db.execute(call(which, key=str(n))).rowcount == 1
        assert db.execute(call(which, table="part", key=str(n + 10))).rowcount == 1
    db.execute("CREATE TABLE later PARTITION OF t FOR VALUES IN (50)")
    assert db.execute(call("upsert", key="50")).rowcount == 1
    assert db.execute("SELECT count(*), min(fence) FROM t").fetchone() == (5, 5)


def test_under_a_fence_in_use_and_under_another(db):
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v int, fence bigint NOT NULL DEFAULT 0); SELECT fence_protect('t')")
    db.execute("BEGIN; SELECT fence_use(5)")
    for n, which in enumerate(BOTH):
        for fence in (5, 6):
            assert db.execute(call(which, key=str(10 * n + fence), fence=fence)).rowcount == 1
    db.execute("COMMIT")
    assert db.execute("SELECT id, fence FROM t ORDER BY 1").fetchall() == [(5, 5), (6, 6), (15, 5), (16, 6)]


@pytest.mark.parametrize("which", BOTH)
def test_where_every_new_row_needs_a_fence_in_use_the_call_brings_its_own(db, which):
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v int, fence bigint NOT NULL DEFAULT 0); SELECT fence_protect('t', inserts => 'fenced')")
    assert outcome(db, "INSERT INTO t VALUES (1, 0, 0)") == "LF003"
    assert db.execute(call(which)).rowcount == 1
    assert everything(db, "t") == [(1, 1, 5)]


# --- the life of the server, and what is counted


def test_a_new_row_is_of_this_life_and_an_older_one_is_not(db):
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v int, fence bigint)")
    db.execute(call("claim", key="1"))
    db.execute(call("upsert", key="2"))
    for key in (1, 2):
        assert db.execute("SELECT fenced_update('t', %s, 5, '{\"v\": 2}')", (key,)).fetchone() == (True,)
    db.execute("SELECT fence_new_life()")
    for key in ("1", "2"):
        assert refusal(db, call("upsert", key=key)).sqlstate == "LF006"
        assert db.execute(call("claim", key=key)).fetchall() == [(5,)]
        assert db.execute(call("upsert", key=key)).fetchone() == (True,)
    assert db.execute(call("upsert", key="3")).fetchone() == (True,)
    db.execute("SELECT fence_new_life()")
    assert db.execute(call("upsert", key="3", fence=6)).fetchone() == (True,), "a newer stamp relies on no claim"


def test_a_new_row_counts_as_the_claim_or_the_write_that_made_it(pg, connect):
    if pg.major < 17:
        return  # not counted without preloading: test_pg_stats
    db = connect()
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v int, fence bigint)")
    for which, key in (("claim", "1"), ("upsert", "2")):
        for fence in (5, 6, 4):
            db.execute(call(which, key=key, fence=fence))
    counts = "SELECT claims, claims_stale, writes, writes_stale, last_stale_fence, stored_fence_then FROM pg_stat_fence WHERE target = 't'::regclass"
    assert db.execute(counts).fetchall() == [(2, 1, 2, 1, 4, 6)]
    spoil(db, "RETURN NULL;")
    assert outcome(db, call("claim", key="3")) == "LF004"
    assert db.execute(counts).fetchall() == [(2, 1, 2, 1, 4, 6)]


def test_an_error_changes_nothing_and_the_session_goes_on(db):
    db.execute("""CREATE TABLE t (id int PRIMARY KEY, v int UNIQUE, fence bigint NOT NULL DEFAULT 0); SELECT fence_protect('t');
        INSERT INTO t VALUES (9, 1, 0)""")
    db.execute("""DO $$ DECLARE caught int := 0; BEGIN
        FOR n IN 1..2000 LOOP
            BEGIN PERFORM fenced_upsert('t', 1, 5, '{"v": 1}');
            EXCEPTION WHEN unique_violation THEN caught := caught + 1; END;
        END LOOP;
        ASSERT caught = 2000; END $$""")
    assert outcome(db, "INSERT INTO t VALUES (1, 2, 5)") == "LF003", "no pass is left behind"
    assert db.execute("SELECT fenced_upsert('t', 1, 5, '{\"v\": 2}')").fetchone() == (True,)


def test_a_rolled_back_row_was_never_there(acct):
    with acct.transaction(force_rollback=True):
        acct.execute(CLAIM, (2, 7, "{}"))
    assert acct.execute(CLAIM, (2, 6, "{}")).fetchall() == [(2, 10, None, 6)]


def test_a_call_for_each_row_of_a_query(acct):
    made = acct.execute("SELECT n, (SELECT fence FROM fenced_claim_or_insert(NULL::acct, n, 7, '{}')) FROM generate_series(1, 3) n").fetchall()
    assert made == [(1, 7), (2, 7), (3, 7)]
    assert acct.execute("SELECT count(*) FROM acct WHERE fence = 7").fetchone() == (3,)


# --- at random, by several sessions at once

LOGGED = """
    CREATE TABLE t (id int PRIMARY KEY, v int, fence bigint NOT NULL DEFAULT 0);
    CREATE TABLE log (n bigserial, id int, old bigint, new bigint, v int);
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO log (id, old, new, v) VALUES (COALESCE(NEW.id, OLD.id), OLD.fence, NEW.fence, NEW.v); RETURN NULL; END $$;
    CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION note();
"""


class Session(threading.Thread):
    """Calls at random; keeps what was committed: (act, key, fence, value, answer)."""

    def __init__(self, db, chance):
        super().__init__(daemon=True)
        self._db, self._chance, self.told, self.error = db, chance, [], None

    def run(self):
        try:
            for _ in range(60):
                self._transaction()
        except Exception as error:
            self.error = error

    def _transaction(self):
        self._db.execute("BEGIN")
        told = [self._call(self._chance.choice(["claim", "upsert", "upsert", "delete"])) for _ in range(self._chance.choice([1, 1, 2]))]
        # One key for each transaction: nobody waits in a circle.
        ends = self._chance.choice(["COMMIT", "COMMIT", "ROLLBACK"]) if None not in told else "ROLLBACK"
        self._db.execute(ends)
        if ends == "COMMIT":
            self.told += told
        self._key = None

    _key = None

    def _call(self, act):
        self._key = self._key or self._chance.randrange(1, 4)
        key, fence, value = self._key, self._chance.randrange(1, 8), self._chance.randrange(10**9)
        if act == "delete":
            sql = f"SELECT id FROM fenced_claim_or_insert(NULL::t, {key}, {fence}, '{{\"v\": {value}}}') WHERE fenced_delete('t', id, {fence})"
        else:
            sql = BOTH[act].format(t="t", key=key, fence=fence).replace('"v": 1', f'"v": {value}')
        rows = self._db.execute(sql).fetchall()
        return act, key, fence, value, rows not in ([], [(False,)])


def test_what_sessions_do_at_once_happens_in_some_order_and_as_the_rule_says(db, connect):
    """The log of a trigger has the order in which the rows were written; a plain account of it has every answer."""
    db.execute(LOGGED)
    first = seed()
    sessions = [Session(connect(), random.Random(first + n)) for n in range(4)]
    for session in sessions:
        session.start()
    for session in sessions:
        session.join(120)
        assert (session.is_alive(), session.error) == (False, None)
    log = db.execute("SELECT id, old, new, v FROM log ORDER BY n").fetchall()
    stored = {}
    for key, old, new, _ in log:
        # A row is inserted where there is none, and no stamp goes down.
        assert stored.get(key) == old and (new is None or (old or 0) <= new)
        stored[key] = new
    assert dict(db.execute("SELECT id, fence FROM t").fetchall()) == {key: fence for key, fence in stored.items() if fence is not None}
    told = [call for session in sessions for call in session.told]
    # What was accepted is in the log, what was stale is not and met a newer fence.
    written = {v for *_, v in log}
    for act, key, fence, value, accepted in told:
        if accepted and act == "upsert":
            assert value in written
        if not accepted:
            assert value not in written
            assert any(entry[0] == key and max(entry[1] or 0, entry[2] or 0) > fence for entry in log)
    inserted = sum(old is None for _, old, _, _ in log)
    assert inserted > 1 and len(told) > 20, (inserted, len(told))
