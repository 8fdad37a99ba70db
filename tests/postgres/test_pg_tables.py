"""Tables of every shape: partitioned, inheriting, temporary, with foreign keys; and tables that change between calls."""

import json
import threading

import psycopg
import pytest

from refusals import refusal


@pytest.fixture
def parts(db):
    """A connection to a table in two partitions, one of which has its columns in another order."""
    db.execute("CREATE TABLE parts (region text, id int, fence bigint NOT NULL DEFAULT 0, v int, PRIMARY KEY (region, id)) PARTITION BY LIST (region)")
    db.execute("CREATE TABLE north PARTITION OF parts FOR VALUES IN ('n')")
    db.execute("CREATE TABLE south (v int, gone int, id int NOT NULL, fence bigint NOT NULL DEFAULT 0, region text NOT NULL)")
    db.execute("ALTER TABLE south DROP gone; ALTER TABLE parts ATTACH PARTITION south FOR VALUES IN ('s')")
    db.execute("INSERT INTO parts VALUES ('n', 1, 0, 10), ('s', 1, 0, 20)")
    return db


@pytest.mark.parametrize("region", ["n", "s"])
def test_a_row_of_a_partitioned_table_is_claimed_through_the_parent(parts, region):
    key = f"ROW('{region}', 1)"
    for fence in range(1, 12):
        assert parts.execute(f"SELECT region, id, fence FROM fenced_claim(NULL::parts, {key}, {fence})").fetchall() == [(region, 1, fence)]
        assert parts.execute(f"SELECT fenced_update('parts', {key}, {fence}, '{{\"v\": {fence}}}')").fetchone() == (True,)
    assert parts.execute(f"SELECT fenced_update('parts', {key}, 10, '{{\"v\": 0}}')").fetchone() == (False,)
    assert refusal(parts, f"SELECT fenced_update('parts', {key}, 12, '{{\"v\": 0}}')").sqlstate == "LF002"
    assert parts.execute("SELECT sum(fence), max(v) FROM parts").fetchone() == (11, 20 if region == "n" else 11)
    assert parts.execute(f"SELECT fenced_delete('parts', {key}, 11)").fetchone() == (True,)


def test_a_row_is_claimed_through_its_partition_too(parts):
    assert parts.execute("SELECT v, fence FROM fenced_claim(NULL::south, ROW('s', 1), 5)").fetchall() == [(20, 5)]
    assert refusal(parts, "SELECT * FROM fenced_claim(NULL::south, ROW('n', 1), 5)").sqlstate == "P0002"


def test_partitions_that_come_and_go_between_calls_are_seen(parts):
    claim = "SELECT id FROM fenced_claim(NULL::parts, ROW('x', 1), {})"
    assert refusal(parts, claim.format(5)).sqlstate == "P0002"
    parts.execute("CREATE TABLE more PARTITION OF parts FOR VALUES IN ('x'); INSERT INTO parts VALUES ('x', 1)")
    assert parts.execute(claim.format(5)).fetchall() == [(1,)]
    parts.execute("ALTER TABLE parts DETACH PARTITION more")
    assert refusal(parts, claim.format(6)).sqlstate == "P0002"


def test_a_row_that_moves_to_another_partition_while_a_claim_waits_is_retryable(parts, connect, eventually):
    parts.execute("ALTER TABLE parts ADD UNIQUE (region, v)")
    one, two = connect(), connect()
    one.execute("BEGIN; UPDATE parts SET region = 's', id = 7 WHERE region = 'n'")
    outcome = []

    def claim():
        try:
            outcome.append(two.execute("SELECT id FROM fenced_claim(NULL::parts, ROW('n', 1), 5)").fetchall())
        except psycopg.Error as error:
            outcome.append(error.sqlstate)

    thread = threading.Thread(target=claim, daemon=True)
    thread.start()
    waits = "SELECT cardinality(pg_blocking_pids(%s)) > 0"
    eventually(lambda: parts.execute(waits, (two.info.backend_pid,)).fetchone()[0])
    one.execute("COMMIT")
    thread.join(60)
    assert outcome == ["40001"]


def test_a_partitioned_table_with_many_partitions_opens_only_the_rows_own(parts):
    parts.execute("CREATE TABLE many (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0) PARTITION BY RANGE (id)")
    for n in range(40):
        parts.execute(f"CREATE TABLE many_{n} PARTITION OF many FOR VALUES FROM ({n * 10}) TO ({n * 10 + 10})")
    parts.execute("INSERT INTO many SELECT generate_series(0, 399)")
    with parts.transaction():
        for fence in range(1, 8):
            parts.execute("SELECT * FROM fenced_claim(NULL::many, 77, %s)", (fence,))
        locked = "SELECT count(*) FROM pg_locks JOIN pg_class c ON c.oid = relation WHERE relname ~ '^many_[0-9]+$' AND pid = pg_backend_pid()"
        assert parts.execute(locked).fetchone() == (1,)


def test_an_inheritance_parent_means_its_own_row_only(db):
    db.execute("CREATE TABLE par (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, v int); CREATE TABLE kid () INHERITS (par)")
    db.execute("INSERT INTO par VALUES (1); INSERT INTO kid VALUES (1), (2)")
    assert db.execute("SELECT fence FROM fenced_claim(NULL::par, 1, 3)").fetchall() == [(3,)]
    assert db.execute("SELECT fenced_update('par', 1, 3, '{\"v\": 5}')").fetchone() == (True,)
    assert db.execute("SELECT tableoid::regclass::text, id, fence, v FROM par ORDER BY 1, 2").fetchall() == [("kid", 1, 0, None), ("kid", 2, 0, None), ("par", 1, 3, 5)]
    assert refusal(db, "SELECT * FROM fenced_claim(NULL::par, 2, 3)").sqlstate == "P0002"
    refused = refusal(db, "SELECT * FROM fenced_claim(NULL::kid, 1, 4)")
    assert (refused.sqlstate, refused.diag.message_primary) == ("55000", 'table "kid" has no primary key')
    db.execute("ALTER TABLE kid ADD PRIMARY KEY (id)")
    assert db.execute("SELECT fence FROM fenced_claim(NULL::kid, 1, 4)").fetchall() == [(4,)]
    assert db.execute("SELECT fenced_delete('par', 1, 3)").fetchone() == (True,)
    assert db.execute("SELECT count(*) FROM kid").fetchone() == (2,)


def test_foreign_keys_hold_and_cascade(db):
    db.execute("CREATE TABLE boss (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, team int); INSERT INTO boss VALUES (1), (2)")
    db.execute("CREATE TABLE team (id int PRIMARY KEY); ALTER TABLE boss ADD FOREIGN KEY (team) REFERENCES team")
    db.execute("CREATE TABLE kept (boss int REFERENCES boss); CREATE TABLE gone (boss int REFERENCES boss ON DELETE CASCADE)")
    db.execute("INSERT INTO kept VALUES (1); INSERT INTO gone VALUES (2)")
    db.execute("SELECT * FROM fenced_claim_many(NULL::boss, ARRAY[1, 2], 5)")
    assert refusal(db, "SELECT fenced_update('boss', 1, 5, '{\"team\": 9}')").sqlstate == "23503"
    assert refusal(db, "SELECT fenced_delete('boss', 1, 5)").sqlstate == "23503"
    assert db.execute("SELECT fenced_delete('boss', 2, 5)").fetchone() == (True,)
    assert db.execute("SELECT count(*) FROM gone").fetchone() == (0,)


def test_a_temporary_table_is_fenced_like_any_other(db, connect):
    db.execute("CREATE TEMP TABLE scratch (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, v int); INSERT INTO scratch VALUES (1)")
    assert db.execute("SELECT fence FROM fenced_claim(NULL::scratch, 1, 5)").fetchall() == [(5,)]
    assert db.execute("SELECT fenced_update('scratch', 1, 5, '{\"v\": 1}')").fetchone() == (True,)
    other = connect()
    oid = db.execute("SELECT 'scratch'::regclass::oid").fetchone()[0]
    assert refusal(other, f"SELECT fenced_update({oid}::regclass, 1, 5, '{{\"v\": 2}}')").sqlstate in ("0A000", "42501")


def test_a_temporary_table_per_transaction_is_known_anew_each_time(db):
    for _ in range(3):
        with db.transaction():
            db.execute("CREATE TEMP TABLE scratch (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0) ON COMMIT DROP; INSERT INTO scratch VALUES (1)")
            assert db.execute("SELECT fence FROM fenced_claim(NULL::scratch, 1, 5)").fetchall() == [(5,)]


def test_unlogged_tables_and_tables_with_dropped_columns_work(db):
    db.execute("CREATE UNLOGGED TABLE t (a text, b int, id int PRIMARY KEY, c text, fence bigint NOT NULL DEFAULT 0)")
    db.execute("ALTER TABLE t DROP a, DROP c; INSERT INTO t VALUES (2, 1)")
    assert db.execute("SELECT * FROM fenced_claim(NULL::t, 1, 5)").fetchall() == [(2, 1, 5)]
    assert db.execute("SELECT fenced_update('t', 1, 5, '{\"b\": 3}')").fetchone() == (True,)
    assert refusal(db, "SELECT fenced_update('t', 1, 5, '{\"a\": 3}')").sqlstate == "42703"
    assert refusal(db, "SELECT fenced_update('t', 1, 5, '{\"........pg.dropped.1........\": 3}')").sqlstate == "42703"


def test_a_row_with_large_values_comes_back_whole(db):
    db.execute("CREATE TABLE t (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, big text, n numeric)")
    db.execute("INSERT INTO t VALUES (1, 0, repeat('x', 3000000), 10 ^ 5000::numeric); INSERT INTO t SELECT 2, 0, string_agg(md5(n::text), ''), 1 FROM generate_series(1, 9000) n")
    assert db.execute("SELECT length(big), n = 10 ^ 5000::numeric FROM fenced_claim(NULL::t, 1, 5)").fetchall() == [(3000000, True)]
    assert db.execute("SELECT c.big = t.big FROM fenced_claim(NULL::t, 2, 5) c, t WHERE t.id = 2").fetchall() == [(True,)]
    assert db.execute("SELECT length(fenced_claim_json('t', 1, 5)->>'big')").fetchone() == (3000000,)
    assert db.execute("SELECT sum(length(big)) FROM fenced_claim_many(NULL::t, ARRAY[1,2], 6)").fetchone() == (3288000,)


# --- DDL drift: each change comes from a second session, and the call after it sees it.


@pytest.fixture
def drift(db, connect):
    """Two sessions; in the first, calls on table d have run often enough for every plan to be cached."""
    other = connect()
    db.execute("CREATE TABLE d (id int PRIMARY KEY, a text, b int, c text, fence bigint NOT NULL DEFAULT 0); INSERT INTO d VALUES (1, 'a', 2, 'c', 5)")
    for n in range(10):
        assert update(db, {"b": n, "c": "x"}) is True
        assert db.execute("SELECT b FROM fenced_claim(NULL::d, 1, 5)").fetchone() == (n,)
    return db, other


def update(db, patch, table="d", fence=5, key="1"):
    return db.execute(f"SELECT fenced_update('{table}', {key}, {fence}, %s::jsonb)", (json.dumps(patch),)).fetchone()[0]


def test_ddl_drift_columns_dropped_added_renamed_and_retyped(drift):
    db, other = drift
    other.execute("ALTER TABLE d DROP a")
    assert update(db, {"b": 20, "c": "y"}) is True
    other.execute("ALTER TABLE d ADD e text NOT NULL DEFAULT 'new'")
    assert update(db, {"e": "x", "c": "z"}) is True
    assert db.execute("SELECT b, c, e FROM d").fetchone() == (20, "z", "x")
    with pytest.raises(psycopg.errors.UndefinedColumn):
        update(db, {"a": "z"})
    other.execute("ALTER TABLE d RENAME c TO c2")
    assert update(db, {"c2": "w"}) is True
    with pytest.raises(psycopg.errors.UndefinedColumn):
        update(db, {"c": "w"})
    other.execute("ALTER TABLE d ALTER b TYPE bigint")
    assert update(db, {"b": 2**40, "c2": "v"}) is True
    other.execute("ALTER TABLE d ALTER b TYPE text USING b::text")
    assert update(db, {"b": "text now"}) is True
    other.execute("ALTER TABLE d ADD g int GENERATED ALWAYS AS (id * 2) STORED")
    with pytest.raises(psycopg.errors.GeneratedAlways):
        update(db, {"g": 1})
    assert db.execute("SELECT fenced_claim_json('d', 1, 5)").fetchone()[0] == {"id": 1, "b": "text now", "c2": "v", "e": "x", "g": 2, "fence": 5}


def test_ddl_drift_the_fence_column_and_its_nulls(drift):
    db, other = drift
    other.execute("ALTER TABLE d ALTER fence DROP NOT NULL; UPDATE d SET fence = NULL")
    assert db.execute("SELECT fence FROM fenced_claim(NULL::d, 1, 6)").fetchone() == (6,)
    other.execute("ALTER TABLE d RENAME fence TO f")
    with pytest.raises(psycopg.errors.UndefinedColumn):
        update(db, {"b": 1}, fence=6)
    assert db.execute("SELECT fenced_update('d', 1, 6, '{\"b\": 1}', 'f')").fetchone() == (True,)
    other.execute("ALTER TABLE d RENAME f TO fence; ALTER TABLE d ALTER fence TYPE int")
    assert update(db, {"b": 2}, fence=6) is True
    with pytest.raises(psycopg.Error) as raised:
        update(db, {"b": 2}, fence=3_000_000_000)
    assert raised.value.sqlstate == "LF005"


def test_ddl_drift_the_primary_key(drift):
    db, other = drift
    other.execute("ALTER TABLE d DROP CONSTRAINT d_pkey")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        update(db, {"c": "q"})
    other.execute("ALTER TABLE d ADD PRIMARY KEY (id, b)")
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        update(db, {"c": "q"})
    assert update(db, {"c": "q"}, key="ROW(1, 9)") is True
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        update(db, {"b": 1}, key="ROW(1, 9)")


def test_ddl_drift_renamed_moved_and_made_again(drift):
    db, other = drift
    oid = db.execute("SELECT 'd'::regclass::oid").fetchone()[0]
    other.execute("ALTER TABLE d RENAME TO d2")
    assert update(db, {"c": "by oid"}, table=oid) is True
    with pytest.raises(psycopg.errors.UndefinedTable):
        update(db, {"c": "by name"})
    other.execute("CREATE SCHEMA s; ALTER TABLE d2 SET SCHEMA s")
    assert update(db, {"c": "moved"}, table=oid) is True
    other.execute("CREATE TABLE d (LIKE s.d2 INCLUDING ALL); INSERT INTO d VALUES (1, 'a', 2, 'other table', 0)")
    assert update(db, {"b": 77}, table=oid) is True
    with pytest.raises(psycopg.Error) as raised:
        update(db, {"b": 78})
    assert raised.value.sqlstate == "LF002"
    assert db.execute("SELECT b, c FROM d").fetchone() == (2, "other table")
    other.execute("DROP TABLE s.d2")
    with pytest.raises(psycopg.errors.UndefinedTable):
        update(db, {"b": 79}, table=oid)


def test_ddl_drift_a_schema_that_changes_its_name_takes_its_tables_along(drift):
    db, other = drift
    other.execute("CREATE SCHEMA a; CREATE TABLE a.t (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, v text); INSERT INTO a.t VALUES (1, 0, 'first')")
    oid = db.execute("SELECT 'a.t'::regclass::oid").fetchone()[0]
    for fence in range(1, 8):
        assert db.execute(f"SELECT fenced_write({oid}::regclass, 1, {fence}, '{{\"v\": \"first\"}}')").fetchone() == (True,)
    other.execute("ALTER SCHEMA a RENAME TO b; CREATE SCHEMA a; CREATE TABLE a.t (LIKE b.t INCLUDING ALL); INSERT INTO a.t VALUES (1, 0, 'second')")
    assert db.execute(f"SELECT fenced_write({oid}::regclass, 1, 9, '{{\"v\": \"written\"}}')").fetchone() == (True,)
    assert db.execute("SELECT (SELECT v FROM a.t), (SELECT v FROM b.t)").fetchone() == ("second", "written")


def test_ddl_drift_types_and_operators_that_change_their_name(drift):
    db, other = drift
    if not db.execute("SELECT FROM pg_available_extensions WHERE name = 'citext'").fetchone():
        return  # this build of the server comes without it
    other.execute("CREATE SCHEMA ext; CREATE EXTENSION citext SCHEMA ext; CREATE DOMAIN nick AS ext.citext")
    other.execute("CREATE TABLE n (id nick PRIMARY KEY, fence bigint NOT NULL DEFAULT 0); INSERT INTO n VALUES ('Bob')")
    claim = "SELECT id::text FROM fenced_claim(NULL::n, 'bob', {})"
    assert db.execute(claim.format(1)).fetchall() == [("Bob",)]
    changes = (
        "ALTER SCHEMA ext RENAME TO ext2",
        "ALTER OPERATOR ext2.= (ext2.citext, ext2.citext) SET SCHEMA public",
        "ALTER TYPE ext2.citext RENAME TO citext2",
        "ALTER TYPE ext2.citext2 SET SCHEMA public",
    )
    for fence, change in enumerate(changes, 2):
        other.execute(change)
        # Another search path makes the server read the text of its plans again.
        db.execute(f"CREATE SCHEMA path{fence}; SET search_path = public, path{fence}")
        assert db.execute(claim.format(fence)).fetchall() == [("Bob",)], change


def test_ddl_in_the_same_transaction_is_seen(drift):
    db, _ = drift
    with db.transaction():
        assert update(db, {"c": "q"}) is True
        db.execute("ALTER TABLE d ADD z int")
        db.execute("ALTER TABLE d RENAME c TO c9")
        assert update(db, {"c9": "r", "z": 1}) is True
        db.execute("SAVEPOINT s; ALTER TABLE d DROP z; ROLLBACK TO s")
        assert update(db, {"z": 2}) is True
    assert db.execute("SELECT c9, z FROM d").fetchone() == ("r", 2)


def test_roles_that_take_turns_in_one_session_keep_their_own_rights(drift):
    db, _ = drift
    db.execute("CREATE ROLE one; CREATE ROLE two; GRANT SELECT, UPDATE ON d TO one, two; ALTER TABLE d ENABLE ROW LEVEL SECURITY")
    db.execute("CREATE POLICY for_one ON d TO one USING (true); CREATE POLICY for_two ON d TO two USING (false)")
    try:
        for _ in range(4):
            db.execute("SET ROLE one")
            assert update(db, {"b": 1}) is True
            db.execute("SET ROLE two")
            with pytest.raises(psycopg.Error) as raised:
                update(db, {"b": 1})
            assert raised.value.sqlstate == "P0002"
    finally:
        db.execute("RESET ROLE; DROP OWNED BY one, two CASCADE; DROP ROLE one, two")


def test_more_tables_and_shapes_than_the_cache_holds_still_work(drift):
    db, _ = drift
    db.execute("CREATE TABLE w (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, " + ", ".join(f"c{n} int" for n in range(12)) + "); INSERT INTO w VALUES (1)")
    db.execute("""DO $$ BEGIN FOR n IN 1..4095 LOOP
        PERFORM fenced_write('w', 1, 5, (SELECT jsonb_object_agg('c' || b, n) FROM generate_series(0, 11) b WHERE (n >> b) & 1 = 1));
    END LOOP; END $$""")
    assert db.execute("SELECT c0, c11 FROM w").fetchone() == (4095, 4095)
    db.execute("DO $$ BEGIN FOR n IN 1..700 LOOP EXECUTE format('CREATE TABLE m%s (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, v int)', n); EXECUTE format('INSERT INTO m%s VALUES (1)', n); END LOOP; END $$")
    for round_number in (1, 2):
        db.execute(f"""DO $$ BEGIN FOR n IN 1..700 LOOP
            PERFORM fenced_claim_json(('m' || n)::regclass, 1, {round_number});
            PERFORM fenced_update(('m' || n)::regclass, 1, {round_number}, '{{"v": {round_number}}}');
        END LOOP; END $$""")
        assert db.execute("SELECT fence, v FROM m700").fetchone() == (round_number, round_number)
    plans = "SELECT count(*) FROM pg_backend_memory_contexts WHERE name = 'CachedPlanSource'"
    assert 100 < db.execute(plans).fetchone()[0] <= 2_000
    assert update(db, {"b": 1}) is True


def test_a_trigger_may_call_fenced_functions_on_its_own_table(db):
    db.execute("CREATE TABLE chain (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, v int); INSERT INTO chain SELECT generate_series(1, 60)")
    db.execute("""CREATE FUNCTION pull() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF NEW.id < 60 THEN PERFORM fenced_write('chain', NEW.id + 1, NEW.fence, jsonb_build_object('v', NEW.id)); END IF;
        RETURN NULL; END $$""")
    db.execute("CREATE TRIGGER pull AFTER UPDATE ON chain FOR EACH ROW EXECUTE FUNCTION pull()")
    assert db.execute("SELECT fence FROM fenced_claim(NULL::chain, 1, 5)").fetchall() == [(5,)]
    assert db.execute("SELECT count(*), max(v) FROM chain WHERE fence = 5").fetchone() == (60, 59)


def test_plans_in_use_survive_a_cache_that_is_emptied_meanwhile(db):
    columns = ", ".join(f"c{n} int" for n in range(11))
    db.execute(f"CREATE TABLE inner_t (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, {columns}); INSERT INTO inner_t VALUES (1)")
    db.execute("CREATE TABLE outer_t (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, v int); INSERT INTO outer_t VALUES (1)")
    db.execute("""CREATE FUNCTION flood() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN FOR n IN 1..2047 LOOP
        PERFORM fenced_write('inner_t', 1, 5, (SELECT jsonb_object_agg('c' || b, n) FROM generate_series(0, 10) b WHERE (n >> b) & 1 = 1));
        END LOOP; RETURN NEW; END $$""")
    db.execute("CREATE TRIGGER flood BEFORE UPDATE ON outer_t FOR EACH ROW EXECUTE FUNCTION flood()")
    for fence in (5, 6):
        assert db.execute("SELECT fence FROM fenced_claim(NULL::outer_t, 1, %s)", (fence,)).fetchall() == [(fence,)]
    assert db.execute("SELECT fenced_update('outer_t', 1, 6, '{\"v\": 1}')").fetchone() == (True,)


def test_rows_of_many_claims_can_be_fetched_by_a_cursor(db):
    db.execute("CREATE TABLE t (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0); INSERT INTO t SELECT generate_series(1, 50)")
    with db.transaction():
        db.execute("DECLARE c SCROLL CURSOR FOR SELECT id FROM fenced_claim_many(NULL::t, ARRAY(SELECT generate_series(50, 1, -1)), 5)")
        assert db.execute("FETCH 2 FROM c").fetchall() == [(1,), (2,)]
        assert db.execute("FETCH LAST FROM c").fetchall() == [(50,)]
        assert db.execute("FETCH BACKWARD 1 FROM c").fetchall() == [(49,)]


def test_a_function_sees_new_columns_when_it_is_called_again(db):
    db.execute("CREATE TABLE grown (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0); INSERT INTO grown VALUES (1)")
    db.execute(
        "CREATE FUNCTION claimed(fence bigint) RETURNS grown LANGUAGE plpgsql AS"
        " 'DECLARE r grown; BEGIN SELECT * INTO r FROM fenced_claim(NULL::grown, 1, $1); RETURN r; END'"
    )
    assert db.execute("SELECT * FROM claimed(1)").fetchone() == (1, 1)
    db.execute("ALTER TABLE grown ADD tax int NOT NULL DEFAULT 5")
    assert db.execute("SELECT * FROM claimed(2)").fetchone() == (1, 2, 5)
    assert db.execute("SELECT fenced_claim_json('grown', 1, 3) ->> 'tax'").fetchone() == ("5",)


@pytest.mark.parametrize(
    "call",
    [
        "fenced_update('gone', 1, 9, '{}')",
        "fenced_delete('gone', 1, 9)",
        "fenced_claim_json('gone', 1, 9)",
        "fence_reset('gone', 1, 9)",
        "fence_protect('gone')",
        "fence_unprotect('gone')",
    ],
)
def test_a_table_that_is_dropped_while_a_call_waits_for_it_is_an_error(db, connect, eventually, call):
    """Whether the session knew it before or not; it goes on afterwards."""
    one, two = connect(), connect()
    for is_known in (False, True):
        db.execute("CREATE TABLE gone (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0); INSERT INTO gone VALUES (1)")
        if is_known:
            two.execute("SELECT fenced_claim_json('gone', 1, 1)")
        one.execute("BEGIN; DROP TABLE gone")
        outcome = []
        thread = threading.Thread(target=lambda: outcome.append(refusal(two, f"SELECT {call}")), daemon=True)
        thread.start()
        waits = "SELECT cardinality(pg_blocking_pids(%s)) > 0"
        eventually(lambda: db.execute(waits, (two.info.backend_pid,)).fetchone()[0])
        one.execute("COMMIT")
        thread.join(60)
        assert outcome[0].sqlstate in ("42P01", "XX000"), outcome
        assert two.execute("SELECT 1").fetchone() == (1,)
