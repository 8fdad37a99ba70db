"""What a change of a fenced function opens, and nothing else: one row of one table, once, known by what it is."""

import itertools

import psycopg
import pytest

from refusals import outcome

ROWS = [(1, 10, 5), (2, 20, 5), (3, 30, 0)]


def in_transaction(connection, *statements):
    """What the last statement gives in a transaction, which is rolled back; the others must work."""
    connection.execute("BEGIN")
    try:
        for statement in statements[:-1]:
            connection.execute(statement)
        return outcome(connection, statements[-1])
    finally:
        connection.execute("ROLLBACK")


@pytest.fixture
def acct(db):
    """A connection to a protected table of the superuser, as the role clerk, who may do everything but own it."""
    db.execute("CREATE TABLE acct (id int PRIMARY KEY, bal int NOT NULL DEFAULT 0, fence bigint NOT NULL DEFAULT 0)")
    db.execute("INSERT INTO acct VALUES (1, 10, 5), (2, 20, 5), (3, 30, 0); SELECT fence_protect('acct')")
    db.execute("CREATE ROLE clerk; GRANT ALL ON acct TO clerk; GRANT CREATE ON SCHEMA public TO clerk; SET ROLE clerk")
    yield db
    db.execute("RESET ROLE; DROP OWNED BY clerk CASCADE; DROP ROLE clerk")


WRITES = {
    "lowers a fence": "UPDATE acct SET fence = 1 WHERE id = 1",
    "raises a fence": "UPDATE acct SET fence = 7 WHERE id = 1",
    "writes under the fence": "UPDATE acct SET bal = 0 WHERE id = 1",
    "writes an unclaimed row": "UPDATE acct SET bal = 0 WHERE id = 3",
    "stamps an unclaimed row": "UPDATE acct SET fence = 5 WHERE id = 3",
    "deletes": "DELETE FROM acct WHERE id = 1",
    "inserts with a fence": "INSERT INTO acct VALUES (9, 0, 5)",
}
# Where a function of the clerk's runs inside a change of the clerk's own table.
ROUTES = {
    "a constraint": "ALTER TABLE mine ADD CHECK (sly()) NOT VALID",
    "a policy": "ALTER TABLE mine ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY; CREATE POLICY p ON mine USING (sly())",
    "the condition of a trigger": "CREATE TRIGGER t BEFORE UPDATE OR DELETE ON mine FOR EACH ROW WHEN (sly()) EXECUTE FUNCTION nothing()",
    "a trigger before": "CREATE TRIGGER t BEFORE UPDATE OR DELETE ON mine FOR EACH ROW EXECUTE FUNCTION sly_trigger()",
    "a trigger after": "CREATE TRIGGER t AFTER UPDATE OR DELETE ON mine FOR EACH ROW EXECUTE FUNCTION sly_trigger()",
    "a rule": "CREATE RULE r AS ON UPDATE TO mine DO ALSO SELECT sly(); CREATE RULE d AS ON DELETE TO mine DO ALSO SELECT sly()",
    "a column": "ALTER TABLE mine ADD g bool GENERATED ALWAYS AS (sly_fixed(v)) STORED",
}
CALLS = [
    "SELECT fence_reset('mine', 1, 5)",
    "SELECT * FROM fenced_claim(NULL::mine, 1, 5)",
    "SELECT fenced_claim_json('mine', 1, 5)",
    "SELECT * FROM fenced_claim_many(NULL::mine, ARRAY[1], 5)",
    "SELECT fenced_update('mine', 1, 5, '{\"v\": 1}')",
    "SELECT * FROM fenced_update_returning(NULL::mine, 1, 5, '{\"v\": 1}')",
    "SELECT fenced_write('mine', 1, 5, '{\"v\": 1}')",
    "SELECT fenced_delete('mine', 1, 5)",
    "SELECT * FROM fenced_claim_or_insert(NULL::mine, 1, 5, '{}')",
    "SELECT fenced_upsert('mine', 1, 5, '{\"v\": 1}')",
]


@pytest.mark.parametrize("protected", [False, True], ids=["of an unprotected table", "of a protected table"])
def test_a_change_of_ones_own_table_opens_no_other(acct, protected):
    """The function does what it can to be let through: its rows have the fence and the key of the change."""
    acct.execute("""CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
        CREATE FUNCTION sly() RETURNS bool LANGUAGE plpgsql AS $$ BEGIN
            IF current_setting('sly.write', true) <> '' THEN EXECUTE current_setting('sly.write'); END IF;
            RETURN true;
        END $$;
        CREATE FUNCTION sly_fixed(int) RETURNS bool IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN sly(); END';
        CREATE FUNCTION sly_trigger() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM sly(); RETURN COALESCE(NEW, OLD); END'""")
    seen = {}
    for name, route in ROUTES.items():
        acct.execute("SET sly.write = ''; DROP TABLE IF EXISTS mine; CREATE TABLE mine (id int PRIMARY KEY, v int, fence bigint NOT NULL DEFAULT 0)")
        acct.execute(f"INSERT INTO mine VALUES (1, 0, 5); {route}")
        if protected:
            acct.execute("SELECT fence_protect('mine')")
        for (what, write), call in itertools.product(WRITES.items(), CALLS):
            acct.execute("BEGIN")
            acct.execute("SELECT set_config('sly.write', %s, true)", (write,))
            told = outcome(acct, call)
            if told == 1:  # The function did not run.
                assert (name, what, call, acct.execute("SELECT * FROM acct ORDER BY id").fetchall()) == (name, what, call, ROWS)
            seen[name, what, call] = told
            acct.execute("ROLLBACK")
    assert set(seen.values()) == {"LF003", 1}
    assert all({seen[name, what, call] for call in CALLS} > {"LF003"} or seen[name, what, CALLS[4]] == "LF003" for name in ROUTES for what in WRITES)


# The same inside the insertion of a row, whose key and fence a row of the protected table is given.
INSERT_ROUTES = {
    "a constraint": "ALTER TABLE mine ADD CHECK (sly())",
    "a policy": "ALTER TABLE mine ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY; CREATE POLICY p ON mine USING (true) WITH CHECK (sly())",
    "a default": "ALTER TABLE mine ADD d bool DEFAULT sly()",
    "the condition of a trigger": "CREATE TRIGGER t AFTER INSERT ON mine FOR EACH ROW WHEN (sly()) EXECUTE FUNCTION nothing()",
    "a trigger before": "CREATE TRIGGER t BEFORE INSERT ON mine FOR EACH ROW EXECUTE FUNCTION sly_trigger()",
    "a trigger after": "CREATE TRIGGER t AFTER INSERT ON mine FOR EACH ROW EXECUTE FUNCTION sly_trigger()",
    "a statement trigger": "CREATE TRIGGER t AFTER INSERT ON mine FOR EACH STATEMENT EXECUTE FUNCTION sly_trigger()",
    "a column": "ALTER TABLE mine ADD g bool GENERATED ALWAYS AS (sly_fixed(v)) STORED",
}
INSERTIONS = ["SELECT * FROM fenced_claim_or_insert(NULL::mine, {key}, 5, '{{}}')", "SELECT fenced_upsert('mine', {key}, 5, '{{\"v\": 1}}')"]


@pytest.mark.parametrize("protected", [False, True], ids=["of an unprotected table", "of a protected table"])
def test_an_insertion_into_ones_own_table_opens_no_other(acct, protected):
    acct.execute("""CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
        CREATE FUNCTION sly() RETURNS bool LANGUAGE plpgsql AS $$ DECLARE write text := current_setting('sly.write', true); BEGIN
            PERFORM set_config('sly.write', '', true);
            IF write <> '' THEN EXECUTE write; END IF;
            RETURN true;
        END $$;
        CREATE FUNCTION sly_fixed(int) RETURNS bool IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN sly(); END';
        CREATE FUNCTION sly_trigger() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM sly(); RETURN NEW; END'""")
    writes = WRITES | {"inserts the row of the change": "INSERT INTO acct VALUES (9, 0, 5)"}
    if protected:
        writes |= {
            "inserts the row itself": "INSERT INTO mine (id, v, fence) SELECT 9, 0, 5 WHERE NOT EXISTS (SELECT FROM mine WHERE id = 9)",
            "changes a row beside it": "UPDATE mine SET v = 1 WHERE id = 2",
            "changes the new row": "UPDATE mine SET fence = 7 WHERE id = 9",
        }
    seen = {}
    for name, route in INSERT_ROUTES.items():
        acct.execute("SET sly.write = ''; DROP TABLE IF EXISTS mine; CREATE TABLE mine (id int PRIMARY KEY, v int, fence bigint NOT NULL DEFAULT 0)")
        acct.execute(f"INSERT INTO mine VALUES (2, 0, 5); {route}")
        if protected:
            acct.execute("SELECT fence_protect('mine')")
        for (what, write), call in itertools.product(writes.items(), INSERTIONS):
            acct.execute("BEGIN")
            acct.execute("SELECT set_config('sly.write', %s, true)", (write,))
            seen[name, what, call] = told = outcome(acct, call.format(key=9))
            if told == 1:  # What was written hit no row.
                rows = acct.execute("SELECT id, fence FROM mine ORDER BY id").fetchall()
                assert (name, what, rows) == (name, what, [(2, 5), (9, 5)])
                assert (name, what, acct.execute("SELECT * FROM acct ORDER BY id").fetchall()) == (name, what, ROWS)
            acct.execute("ROLLBACK")
        acct.execute("SET sly.write = ''")
        for call in INSERTIONS:
            assert (name, in_transaction(acct, call.format(key=9))) == (name, 1)
    assert set(seen.values()) <= {"LF003", 1}
    unseen = {key for key, told in seen.items() if told == 1}
    # Nothing to change is there before the new row is, and the one who inserts it first has it.
    assert {what for _, what, _ in unseen} <= {"changes the new row", "inserts the row itself"}


RULES = {
    "ON UPDATE TO acct DO INSTEAD UPDATE other SET bal = NEW.bal WHERE id = OLD.id RETURNING other.*": "fenced_update('acct', 1, 5, '{\"bal\": 0}')",
    "ON UPDATE TO acct DO ALSO UPDATE other SET bal = NEW.bal WHERE id = OLD.id": "fenced_update('acct', 1, 5, '{\"bal\": 0}')",
    "ON UPDATE TO acct DO ALSO UPDATE other SET fence = 1 WHERE id = OLD.id": "fenced_write('acct', 1, 5, '{\"bal\": 0}')",
    "ON UPDATE TO acct DO INSTEAD DELETE FROM acct WHERE id = OLD.id + 1 RETURNING acct.*": "fenced_update('acct', 1, 5, '{\"bal\": 0}')",
    "ON UPDATE TO acct DO ALSO DELETE FROM acct WHERE id = OLD.id + 1": "fenced_update('acct', 1, 5, '{\"bal\": 0}')",
    "ON DELETE TO acct DO INSTEAD UPDATE acct SET bal = 0 WHERE id = OLD.id + 1 RETURNING acct.*": "fenced_delete('acct', 1, 5)",
    "ON DELETE TO acct DO ALSO UPDATE acct SET bal = 0 WHERE id = OLD.id + 1": "fenced_delete('acct', 1, 5)",
    "ON DELETE TO acct DO ALSO UPDATE acct SET fence = 0 WHERE id = OLD.id + 1": "fenced_delete('acct', 1, 5)",
}


def test_a_rule_cannot_turn_the_change_to_another_row_or_table(db):
    for table in ("acct", "other"):
        db.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, bal int, fence bigint NOT NULL DEFAULT 0)")
        db.execute(f"INSERT INTO {table} VALUES (1, 10, 5), (2, 20, 5); SELECT fence_protect('{table}')")
    for rule, call in RULES.items():
        assert (rule, in_transaction(db, f"CREATE RULE r AS {rule}", f"SELECT {call}")) == (rule, "LF003")


@pytest.mark.parametrize("rule", ["INSTEAD UPDATE parts SET v = NEW.v WHERE id = OLD.id + 1 RETURNING parts.*", "ALSO UPDATE parts SET v = 9 WHERE id = OLD.id"])
def test_a_rule_of_a_partition_cannot_turn_the_change_to_another_row_or_make_two(db, rule):
    """By way of the parent, which has no rule, it comes back to the same table."""
    db.execute("""CREATE TABLE parts (id int PRIMARY KEY, v int, fence bigint NOT NULL DEFAULT 0) PARTITION BY RANGE (id);
        CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (10);
        INSERT INTO parts VALUES (1, 0, 5), (2, 0, 5); SELECT fence_protect('parts')""")
    update = "SELECT fenced_update('low', 1, 5, '{\"v\": 1}')"
    assert in_transaction(db, update) == 1
    assert in_transaction(db, f"CREATE RULE r AS ON UPDATE TO low DO {rule}", update) == "LF003"


def test_a_rule_that_does_something_else_as_well_lets_the_change_pass(db):
    db.execute("CREATE TABLE acct (id int PRIMARY KEY, bal int, fence bigint NOT NULL DEFAULT 0); CREATE TABLE log (bal int)")
    db.execute("INSERT INTO acct VALUES (1, 10, 5); SELECT fence_protect('acct')")
    db.execute("CREATE RULE r AS ON UPDATE TO acct DO ALSO INSERT INTO log VALUES (NEW.bal); CREATE RULE n AS ON DELETE TO acct DO ALSO NOTIFY gone")
    assert db.execute("SELECT fenced_update('acct', 1, 5, '{\"bal\": 0}')").fetchone() == (True,)
    assert db.execute("SELECT fenced_write('acct', 1, 6, '{\"bal\": 1}')").fetchone() == (True,)
    assert db.execute("SELECT * FROM acct").fetchall() == [(1, 1, 6)]
    assert db.execute("SELECT fenced_delete('acct', 1, 6)").fetchone() == (True,)
    assert db.execute("SELECT * FROM log").fetchall() == [(0,), (1,)]


def test_a_fenced_call_inside_a_change_leaves_the_change_its_own(db):
    """Also one that fails and is caught: the change around it still passes, and nothing else does."""
    db.execute("CREATE TABLE acct (id int PRIMARY KEY, bal int, fence bigint NOT NULL DEFAULT 0); CREATE TABLE bare (id int PRIMARY KEY, v int, fence bigint)")
    db.execute("INSERT INTO acct VALUES (1, 10, 5), (2, 20, 5); INSERT INTO bare VALUES (1, 0, 5); SELECT fence_protect('acct')")
    for inside, rows in {
        "PERFORM fenced_update('acct', 2, 5, '{\"bal\": 21}')": [(1, 11, 5), (2, 21, 5)],
        "PERFORM fenced_update('bare', 1, 5, '{\"v\": 1}')": [(1, 11, 5), (2, 20, 5)],
        "BEGIN PERFORM fenced_update('acct', 2, 6, '{\"bal\": 21}'); EXCEPTION WHEN OTHERS THEN NULL; END": [(1, 11, 5), (2, 20, 5)],
        "BEGIN PERFORM fenced_update('bare', 1, 6, '{\"v\": 1}'); EXCEPTION WHEN OTHERS THEN NULL; END": [(1, 11, 5), (2, 20, 5)],
        "BEGIN UPDATE acct SET bal = 0 WHERE id = 1; EXCEPTION WHEN OTHERS THEN NULL; END": [(1, 11, 5), (2, 20, 5)],
    }.items():
        db.execute("BEGIN")
        db.execute(f"""CREATE FUNCTION inside() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN IF pg_trigger_depth() = 1 THEN {inside}; END IF; RETURN NEW; END $$;
            CREATE TRIGGER inside BEFORE UPDATE ON acct FOR EACH ROW EXECUTE FUNCTION inside()""")
        assert (inside, outcome(db, "SELECT fenced_update('acct', 1, 5, '{\"bal\": 11}')")) == (inside, 1)
        assert db.execute("SELECT * FROM acct ORDER BY id").fetchall() == rows
        assert (inside, outcome(db, "UPDATE acct SET bal = 0 WHERE id = 1")) == (inside, "LF003")
        db.execute("ROLLBACK")


# --- Rows that move between partitions.

PARTS = """
    CREATE TABLE parts (r text NOT NULL, id int NOT NULL, v int, fence bigint NOT NULL DEFAULT 0, PRIMARY KEY (r, id)) PARTITION BY LIST (r);
    CREATE TABLE pa PARTITION OF parts FOR VALUES IN ('a');
    CREATE TABLE pb (fence bigint NOT NULL DEFAULT 0, v int, id int NOT NULL, r text NOT NULL);
    ALTER TABLE parts ATTACH PARTITION pb FOR VALUES IN ('b');
    CREATE TABLE acct (id int PRIMARY KEY, v int, fence bigint NOT NULL DEFAULT 0);
    INSERT INTO parts VALUES ('a', 1, 0, 5), ('a', 2, 0, 0), ('b', 3, 0, 5); INSERT INTO acct VALUES (1, 0, 9);
"""


@pytest.fixture(params=["the parent", "each partition"])
def parts(db, request):
    """A partitioned table and a plain one, both protected; the first by its parent or one by one."""
    db.execute(PARTS)
    for table in ["parts"] if request.param == "the parent" else ["pa", "pb"]:
        if table != "parts":
            db.execute(f"ALTER TABLE {table} ADD CONSTRAINT {table}_key UNIQUE (id)")
        db.execute("SELECT fence_protect(%s::text::regclass)", (table,))
    db.execute("SELECT fence_protect('acct')")
    return db


USE_5 = "SELECT fence_use(5)"
# What is given without a fence in use, and under fence_use(5).
MOVES = {
    # A new row is new, whatever else its statement could have done.
    "INSERT INTO parts VALUES ('b', 9, 0) ON CONFLICT (r, id) DO UPDATE SET v = 1": (1, 1),
    "INSERT INTO parts VALUES ('b', 9, 0), ('a', 1, 0) ON CONFLICT (r, id) DO UPDATE SET v = 1": ("LF003", 2),
    "MERGE INTO parts USING (VALUES ('b', 9)) s (r, id) ON parts.r = s.r AND parts.id = s.id"
    " WHEN MATCHED THEN UPDATE SET v = 1 WHEN NOT MATCHED THEN INSERT VALUES ('b', 9, 0)": (1, 1),
    "WITH u AS (UPDATE parts SET v = 1 WHERE id = 1 RETURNING id) INSERT INTO acct SELECT 7 FROM u": ("LF003", 1),
    "WITH u AS (UPDATE parts SET v = 1 WHERE id = 77 RETURNING id) INSERT INTO acct SELECT 7 WHERE NOT EXISTS (SELECT FROM u)": (1, 1),
    "WITH d AS (DELETE FROM parts WHERE id = 1 RETURNING *) INSERT INTO parts SELECT 'b', id, v FROM d": ("LF003", 1),
    "WITH u AS (UPDATE parts SET r = 'b' WHERE id = 1 RETURNING id) INSERT INTO acct SELECT 7 FROM u": ("LF003", 1),
    # A row that moves keeps its fence.
    "UPDATE parts SET r = 'b' WHERE id = 1": ("LF003", 1),
    "UPDATE parts SET r = 'b', fence = 0 WHERE id = 1": ("LF003", "LF003"),
    "UPDATE parts SET r = 'b', fence = 7 WHERE id = 1": ("LF003", "LF003"),
    "UPDATE parts SET r = 'b', fence = 5 WHERE id = 2": ("LF003", "LF002"),
    "UPDATE parts SET r = 'a', fence = 0 WHERE id = 3": ("LF003", "LF003"),
    "UPDATE parts SET r = 'b', fence = 0": ("LF003", "LF003"),
    "MERGE INTO parts USING (VALUES (1)) s (id) ON parts.id = s.id WHEN MATCHED THEN UPDATE SET r = 'b', fence = 0": ("LF003", "LF003"),
    "MERGE INTO parts USING (VALUES (1), (9)) s (id) ON parts.id = s.id"
    " WHEN MATCHED THEN UPDATE SET r = 'b' WHEN NOT MATCHED THEN INSERT VALUES ('b', 9)": ("LF003", 2),
    "MERGE INTO parts USING (VALUES (1), (9)) s (id) ON parts.id = s.id"
    " WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT VALUES ('b', 9)": ("LF003", 2),
    "WITH u AS (UPDATE parts SET r = 'b', fence = 0 WHERE id = 1 RETURNING id) INSERT INTO acct SELECT 7 FROM u": ("LF003", "LF003"),
}


def test_a_row_that_moves_keeps_its_fence_and_a_new_one_is_new(parts):
    seen = {move: (in_transaction(parts, move), in_transaction(parts, USE_5, move)) for move in MOVES}
    assert seen == MOVES


def test_a_move_to_a_fence_that_is_also_in_use_says_that_it_changes_the_fence(parts):
    with pytest.raises(psycopg.Error, match="would change the fence of a row"), parts.transaction():
        parts.execute("SELECT fence_use(5), fence_use(7)")
        parts.execute("UPDATE parts SET r = 'b', fence = 7 WHERE id = 1")


def test_a_cascade_into_a_partitioned_table_leaves_later_inserts_alone(parts):
    parts.execute("""CREATE TABLE regions (r text PRIMARY KEY); INSERT INTO regions VALUES ('a'), ('b');
        ALTER TABLE parts ADD FOREIGN KEY (r) REFERENCES regions ON UPDATE CASCADE ON DELETE CASCADE;
        CREATE TABLE feed (id int); CREATE FUNCTION fed() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN INSERT INTO parts VALUES ('b', NEW.id); INSERT INTO acct VALUES (NEW.id); RETURN NEW; END $$;
        CREATE TRIGGER fed AFTER INSERT ON feed FOR EACH ROW EXECUTE FUNCTION fed()""")
    parts.execute("SELECT fence_reset('parts', ROW('a'::text, 2), 5)")
    feed = "INSERT INTO feed VALUES (11), (12)"
    for cascade in ["DELETE FROM regions WHERE r = 'a'", "INSERT INTO regions VALUES ('c')", "UPDATE regions SET r = 'b' WHERE r = 'b'"]:
        assert (cascade, in_transaction(parts, USE_5, cascade, feed)) == (cascade, 2)


def test_no_plain_update_lowers_a_fence_whatever_ran_before(parts):
    """Savepoints, failed statements and cursors that are left open included."""
    lower = ["UPDATE parts SET fence = 0 WHERE id = 3", "UPDATE acct SET fence = 0 WHERE id = 1", "UPDATE parts SET r = 'a', fence = 0 WHERE id = 3"]
    before = [
        "UPDATE parts SET r = 'b' WHERE id = 1",
        "SAVEPOINT s; UPDATE parts SET r = 'b' WHERE id = 1; ROLLBACK TO s",
        "DO $$ BEGIN UPDATE parts SET r = 'zz' WHERE id = 1; EXCEPTION WHEN OTHERS THEN NULL; END $$",
        "DO $$ BEGIN UPDATE parts SET r = 'b', fence = 0 WHERE id = 1; EXCEPTION WHEN OTHERS THEN NULL; END $$",
        "DECLARE c CURSOR FOR SELECT * FROM parts WHERE id = 1 FOR UPDATE; FETCH c; UPDATE parts SET r = 'b' WHERE CURRENT OF c",
        "SELECT fenced_write('parts', ROW('a'::text, 1), 5, '{\"v\": 1}')",
    ]
    for one, other in itertools.product(before, lower):
        told = in_transaction(parts, USE_5, one, other)
        assert (one, other, told) == (one, other, "LF001" if "acct" in other else "LF003")


def test_a_trigger_that_swallows_a_moving_row_leaves_later_statements_alone(parts):
    """The row is gone, as if it had been deleted."""
    parts.execute("""CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN CASE WHEN NEW.v = 99 THEN NULL ELSE NEW END; END $$;
        CREATE TRIGGER swallow BEFORE INSERT ON pb FOR EACH ROW EXECUTE FUNCTION swallow()""")
    assert in_transaction(parts, USE_5, "UPDATE parts SET r = 'b', v = 99 WHERE id = 1", "INSERT INTO parts VALUES ('b', 7)") == 1
    # The memory of one query is given to the next.
    inserts = ["INSERT INTO parts VALUES ('b', 7)", "INSERT INTO parts VALUES ('a', 8), ('b', 9)"] * 3
    assert in_transaction(parts, USE_5, "UPDATE parts SET r = 'b', v = 99 WHERE id = 1", *[f"SAVEPOINT s; {insert}; ROLLBACK TO s" for insert in inserts], inserts[0]) == 1


def test_one_that_merges_is_refused_where_a_row_that_it_moves_is_swallowed(parts):
    """Nothing distinguishes its new row from the one that moves: better refused than a fence lost. Two statements pass."""
    parts.execute("""CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN CASE WHEN NEW.v = 99 THEN NULL ELSE NEW END; END $$;
        CREATE TRIGGER swallow BEFORE INSERT ON pb FOR EACH ROW EXECUTE FUNCTION swallow()""")
    merge = """MERGE INTO parts USING (VALUES (1), (9)) s (id) ON parts.id = s.id
        WHEN MATCHED THEN UPDATE SET r = 'b', v = 99 WHEN NOT MATCHED THEN INSERT VALUES ('b', 9)"""
    assert in_transaction(parts, USE_5, merge) == "LF003"
    assert in_transaction(parts, USE_5, "UPDATE parts SET r = 'b', v = 99 WHERE id = 1", "INSERT INTO parts VALUES ('b', 9)") == 1


LATER = "CREATE TABLE pc PARTITION OF parts FOR VALUES IN ('c', 'cc') PARTITION BY LIST (r); CREATE TABLE pcc PARTITION OF pc DEFAULT"
MOVING = {
    "UPDATE parts SET r = 'c', fence = 0 WHERE id = 1": "LF003",
    "UPDATE parts SET r = 'c' WHERE id = 1": 1,
    "UPDATE parts SET r = 'b' WHERE id = 1": 1,
    "MERGE INTO parts USING (VALUES (1)) s (id) ON parts.id = s.id WHEN MATCHED THEN UPDATE SET r = 'c', fence = 0": "LF003",
    "WITH u AS (UPDATE parts SET r = 'c', fence = 0 WHERE id = 1 RETURNING id) INSERT INTO acct SELECT 7 FROM u": "LF003",
    "UPDATE regions SET r = 'cc' WHERE r = 'a'": 1,
}


def test_no_row_loses_its_fence_in_a_partition_that_came_later(db, connect):
    db.execute(PARTS + """DELETE FROM parts WHERE id = 2; SELECT fence_protect('parts');
        CREATE TABLE regions (r text PRIMARY KEY); INSERT INTO regions VALUES ('a'), ('b'), ('c');
        ALTER TABLE parts ADD FOREIGN KEY (r) REFERENCES regions ON UPDATE CASCADE""")
    db.execute(LATER)
    seen = {move: in_transaction(db, USE_5, move) for move in MOVING}
    assert seen == dict.fromkeys(MOVING, "LF003"), "as long as one partition would not ask"
    for stays in ["UPDATE parts SET v = 1 WHERE id = 1", "DELETE FROM parts WHERE id = 1", "INSERT INTO parts VALUES ('b', 8)"]:
        assert in_transaction(db, USE_5, stays) == 1
    with pytest.raises(psycopg.Error) as caught, db.transaction():
        db.execute(USE_5)
        db.execute("UPDATE parts SET r = 'c', fence = 0 WHERE id = 1")
    diag = caught.value.diag
    assert (diag.constraint_name, diag.table_name) == ("move_unchecked", "pa")
    assert diag.message_detail == 'Partition "pcc" has no enabled trigger that checks the fence of a new row.'

    db.execute("SELECT fence_protect('parts')")
    with connect().transaction() as transaction:
        transaction.connection.execute("LOCK TABLE pcc")
        db.execute("SET lock_timeout = '5s'")
        assert in_transaction(db, USE_5, "UPDATE parts SET r = 'b' WHERE r = 'a' AND id = 1") == 1, "other partitions are not waited for"
    assert {move: in_transaction(db, USE_5, move) for move in MOVING} == MOVING
    db.execute("ALTER TABLE pcc DISABLE TRIGGER fence_protect_insert")
    assert {move: in_transaction(db, USE_5, move) for move in MOVING} == seen


def test_a_fenced_function_moves_its_row_to_a_partition_that_came_later_and_keeps_its_fence(db):
    db.execute(PARTS + """SELECT fence_protect('parts');
        CREATE FUNCTION move() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.r := 'c'; RETURN NEW; END $$;
        CREATE TRIGGER move BEFORE UPDATE ON pa FOR EACH ROW EXECUTE FUNCTION move()""")
    db.execute(LATER)
    assert outcome(db, "SELECT fenced_write('parts', ROW('a'::text, 1), 6, '{\"v\": 1}')") == 1
    assert db.execute("SELECT r, v, fence FROM parts WHERE id = 1").fetchone() == ("c", 1, 6)
    db.execute("""CREATE FUNCTION lower() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.fence := 0; RETURN NEW; END $$;
        CREATE TRIGGER lower BEFORE INSERT ON pcc FOR EACH ROW EXECUTE FUNCTION lower()""")
    assert outcome(db, "SELECT fenced_write('parts', ROW('a'::text, 2), 6, '{\"v\": 1}')") == "LF004"


def test_a_fenced_function_moves_its_own_row_and_keeps_its_fence(parts):
    parts.execute("""CREATE FUNCTION move() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.r := 'b'; RETURN NEW; END $$;
        CREATE TRIGGER move BEFORE UPDATE ON pa FOR EACH ROW EXECUTE FUNCTION move()""")
    write = "SELECT fenced_write('parts', ROW('a'::text, 1), 6, '{\"v\": 1}')"
    assert parts.execute(write).fetchone() == (True,)
    assert parts.execute("SELECT r, v, fence FROM parts WHERE id = 1").fetchone() == ("b", 1, 6)
    parts.execute("""CREATE FUNCTION lower() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.fence := 0; RETURN NEW; END $$;
        CREATE TRIGGER lower BEFORE INSERT ON pb FOR EACH ROW EXECUTE FUNCTION lower()""")
    assert outcome(parts, "SELECT fenced_write('parts', ROW('a'::text, 2), 6, '{\"v\": 1}')") in ("LF003", "LF004")
    assert parts.execute("SELECT r, fence FROM parts WHERE id = 2").fetchone() == ("a", 0)


def test_conditions_that_are_called_by_hand_read_nothing_and_change_nothing(parts):
    """Any role may call them: they take no lock, and places that no table has do no harm."""
    sizes = "SELECT pg_relation_size('pa'), pg_relation_size('pb')"
    before = parts.execute(sizes).fetchone()
    for table in ["'pa'::regclass", "'pb'::regclass", "'pg_class'::regclass", "'parts'::regclass", "0", "4294967295", "NULL"]:
        for place in ["'(0,1)'", "'(4294967295,1)'", "'(4294967295,65533)'", "'(0,0)'", "NULL"]:
            row = f"{table}, {place}"
            call = (
                f"SELECT fence_internals.refuses_update({row}, NULL, 5, 5, NULL, NULL), fence_internals.refuses_delete({row}, NULL, 5, NULL),"
                f" fence_internals.refuses_insert({row}, 5, NULL)"
            )
            parts.execute("BEGIN")
            assert parts.execute(call).fetchone() == (True, True, True)
            locked = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND relation IN ('pa'::regclass, 'pb'::regclass)"
            assert parts.execute(locked).fetchone() == (0,)
            parts.execute("ROLLBACK")
            assert in_transaction(parts, USE_5, "UPDATE pa SET v = 1 WHERE id = 1", call) in (1, "XX001")
    assert parts.execute(sizes).fetchone() == before


def test_a_condition_that_is_called_by_hand_plants_no_fence_in_a_new_row(parts):
    """The place is that of a row that has moved away, the fence one that fence_use() would refuse."""
    too_large = 2**62
    plant = f"""WITH called AS MATERIALIZED (SELECT fence_internals.refuses_delete('pa'::regclass, '(0,1)', NULL, {too_large}, NULL) AS it)
        INSERT INTO parts (r, id, fence) SELECT 'b', 9, {too_large} FROM called WHERE it IS NOT NULL"""
    assert in_transaction(parts, USE_5, "UPDATE parts SET r = 'b' WHERE id = 1", plant) == "LF003"
