"""Protected tables: every way to write without a fence is refused, and each pass ends where it should."""

import psycopg
import pytest

from harness import eventually
from refusals import outcome, refusal

CLAIM = "SELECT * FROM fenced_claim(NULL::acct, %s, %s)"
ROWS = [(1, 10, 5), (2, 20, 5), (3, 30, 0)]
READ = "SELECT id, bal, fence FROM acct ORDER BY id"


@pytest.fixture
def acct(db):
    """A connection to a protected table: rows 1 and 2 are claimed with fence 5, row 3 never was."""
    db.execute("CREATE TABLE acct (id int PRIMARY KEY, bal int NOT NULL DEFAULT 0, fence bigint NOT NULL DEFAULT 0)")
    db.execute("SELECT fence_protect('acct')")
    db.execute("INSERT INTO acct VALUES (1, 10), (2, 20), (3, 30)")
    for row in (1, 2):
        db.execute(CLAIM, (row, 5))
    yield db
    db.execute("ROLLBACK")


def in_transaction(connection, *statements):
    """What the last statement gives in a transaction, which is rolled back; the others must work."""
    connection.execute("BEGIN")
    try:
        for statement in statements[:-1]:
            connection.execute(statement)
        return outcome(connection, statements[-1])
    finally:
        connection.execute("ROLLBACK")


# Each way to write, with what it gives: when no fence is in use, and under fence_use(5).
WRITES = {
    "UPDATE acct SET bal = 0 WHERE id = 1": ("LF003", 1),
    "UPDATE acct SET bal = 0 WHERE id < 3": ("LF003", 2),
    "UPDATE acct SET bal = 0": ("LF003", "LF002"),
    "UPDATE acct SET bal = bal WHERE id = 1": ("LF003", 1),
    "UPDATE acct SET id = 9 WHERE id = 1": ("LF003", 1),
    "UPDATE acct SET bal = 0 WHERE id = 77": (0, 0),
    "UPDATE acct SET fence = 6 WHERE id = 1": ("LF003", "LF003"),
    "UPDATE acct SET fence = 4 WHERE id = 1": ("LF003", "LF003"),
    "UPDATE acct SET fence = 0 WHERE id = 1": ("LF003", "LF003"),
    "UPDATE acct SET fence = -1 WHERE id = 1": ("LF003", "LF003"),
    "UPDATE acct SET fence = DEFAULT WHERE id = 1": ("LF003", "LF003"),
    "UPDATE acct SET fence = NULL WHERE id = 1": ("23502", "23502"),
    "UPDATE acct SET fence = 5 WHERE id = 3": ("LF003", "LF002"),
    "UPDATE acct SET bal = 0 WHERE id = 3": ("LF003", "LF002"),
    "DELETE FROM acct WHERE id = 1": ("LF003", 1),
    "DELETE FROM acct WHERE id = 3": ("LF003", "LF002"),
    "DELETE FROM acct": ("LF003", "LF002"),
    "INSERT INTO acct VALUES (4, 40)": (1, 1),
    "INSERT INTO acct VALUES (4, 40, 5)": ("LF003", 1),
    "INSERT INTO acct VALUES (4, 40, 6)": ("LF003", "LF003"),
    "INSERT INTO acct VALUES (4, 40, -1)": ("LF003", "LF003"),
    "INSERT INTO acct SELECT 4, 40, 6": ("LF003", "LF003"),
    "INSERT INTO acct VALUES (1, 0) ON CONFLICT DO NOTHING": (0, 0),
    "INSERT INTO acct VALUES (1, 0) ON CONFLICT (id) DO UPDATE SET bal = 0": ("LF003", 1),
    "INSERT INTO acct VALUES (3, 0) ON CONFLICT (id) DO UPDATE SET bal = 0": ("LF003", "LF002"),
    "INSERT INTO acct VALUES (1, 0) ON CONFLICT (id) DO UPDATE SET fence = 0": ("LF003", "LF003"),
    "MERGE INTO acct USING (VALUES (1)) s (id) ON s.id = acct.id WHEN MATCHED THEN UPDATE SET bal = 0": ("LF003", 1),
    "MERGE INTO acct USING (VALUES (1)) s (id) ON s.id = acct.id WHEN MATCHED THEN DELETE": ("LF003", 1),
    "MERGE INTO acct USING (VALUES (4)) s (id) ON s.id = acct.id WHEN NOT MATCHED THEN INSERT VALUES (4, 1, 9)": (
        "LF003",
        "LF003",
    ),
    "WITH w AS (UPDATE acct SET bal = 0 WHERE id = 1 RETURNING 1) SELECT * FROM w": ("LF003", 1),
    "WITH w AS (DELETE FROM acct WHERE id = 1 RETURNING 1) INSERT INTO acct SELECT 5, 0 FROM w": ("LF003", 1),
    "UPDATE shown SET bal = 0 WHERE id = 1": ("LF003", 1),
    "DELETE FROM shown WHERE id = 1": ("LF003", 1),
    "INSERT INTO ruled VALUES (1)": ("LF003", 0),
    "DELETE FROM owner WHERE id = 1": ("LF003", 1),
    "INSERT INTO noted VALUES (1)": ("LF003", 1),
    "SELECT by_definer(1)": ("LF003", 1),
    "DO $$ BEGIN EXECUTE 'UPDATE acct SET bal = 0 WHERE id = 1'; END $$": ("LF003", -1),
    "DO $$ BEGIN FOR i IN 1..2 LOOP UPDATE acct SET bal = 0 WHERE id = i; END LOOP; END $$": ("LF003", -1),
    "TRUNCATE acct": ("LF003", "LF003"),
    "TRUNCATE ONLY acct": ("LF003", "LF003"),
    "TRUNCATE owner CASCADE": ("LF003", "LF003"),
    "TRUNCATE noted, acct": ("LF003", "LF003"),
    "SELECT id FROM acct FOR UPDATE": (3, 3),
}

AROUND = """
    CREATE TABLE owner (id int PRIMARY KEY);
    INSERT INTO owner VALUES (1), (2), (3);
    ALTER TABLE acct ADD FOREIGN KEY (id) REFERENCES owner ON DELETE CASCADE NOT VALID;
    INSERT INTO owner VALUES (4), (5), (9);
    CREATE VIEW shown AS SELECT * FROM acct WHERE bal > 0;
    CREATE TABLE ruled (id int);
    CREATE RULE r AS ON INSERT TO ruled DO INSTEAD UPDATE acct SET bal = 0 WHERE id = NEW.id;
    CREATE TABLE noted (id int);
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN UPDATE acct SET bal = 0 WHERE id = NEW.id; RETURN NEW; END $$;
    CREATE TRIGGER note AFTER INSERT ON noted FOR EACH ROW EXECUTE FUNCTION note();
    CREATE FUNCTION by_definer(int) RETURNS void LANGUAGE sql SECURITY DEFINER AS
        $$ UPDATE acct SET bal = 0 WHERE id = $1 $$;
"""


def test_every_way_to_write_is_refused_or_passes_as_documented(acct):
    """As the superuser and owner, who gets no exception."""
    acct.execute(AROUND)
    seen = {}
    for write in WRITES:
        seen[write] = (in_transaction(acct, write), in_transaction(acct, "SELECT fence_use(5)", write))
    assert seen == WRITES
    assert acct.execute(READ).fetchall() == ROWS


def test_copy_follows_the_rule_of_inserts(acct):
    def copy(line):
        try:
            with acct.cursor() as cursor, cursor.copy("COPY acct FROM STDIN") as into:
                into.write(line)
            return "copied"
        except psycopg.Error as error:
            return error.sqlstate

    assert copy("4\t40\t0\n") == "copied"
    assert copy("5\t50\t0\n6\t60\t7\n") == "LF003"
    assert acct.execute(READ).fetchall() == [*ROWS, (4, 40, 0)]


def test_a_cursor_writes_by_the_same_rule(acct):
    for fences, answer in [((), "LF003"), ((5,), 1), ((4,), "LF001"), ((6,), "LF002")]:
        uses = [f"SELECT fence_use({fence})" for fence in fences]
        declare = ["DECLARE c CURSOR FOR SELECT * FROM acct WHERE id = 1 FOR UPDATE", "FETCH c"]
        update = "UPDATE acct SET bal = 0 WHERE CURRENT OF c"
        assert (fences, in_transaction(acct, *uses, *declare, update)) == (fences, answer)


def test_each_refusal_says_what_to_do(acct):
    def said(*statements):
        with pytest.raises(psycopg.Error) as caught, acct.transaction():
            for statement in statements:
                acct.execute(statement)
        diag = caught.value.diag
        assert (diag.schema_name, diag.table_name) == ("public", "acct")
        return diag.sqlstate, diag.message_primary, diag.message_detail, diag.message_hint

    update = "UPDATE acct SET bal = 0 WHERE id = 1"
    use = "Use a fenced_* function, or claim the row and call fence_use() with your lock's fence in this transaction."
    assert said(update) == (
        "LF003",
        'UPDATE on protected table "acct" requires a fence',
        "The write came from neither a fenced_* function nor a transaction that declared the row's fence with fence_use().",
        use,
    )
    assert said("SELECT fence_use(3), fence_use(4)", update) == (
        "LF001",
        'fence 4 is stale at a row of table "acct"',
        "The row has fence 5; the newest declared in this transaction is 4.",
        "Another holder has taken over. Roll back, and take the lock again. All writers of a row must take the same lock.",
    )
    assert said("SELECT fence_use(9), fence_use(3)", update) == (
        "LF002",
        'fence 9 has not claimed this row of table "acct"',
        "The row has the older fence 5.",
        "Claim the row with fence 9, read it again, then write.",
    )
    assert said("TRUNCATE acct")[2:] == (
        "Its rows can have fences of many holders.",
        "DELETE the rows under their fences, or call fence_unprotect() first.",
    )


def test_the_functions_pass_and_keep_their_answers(acct):
    def one(sql):
        return acct.execute(sql).fetchone()

    assert one("SELECT fenced_update('acct', 1, 5, '{\"bal\": 11}')") == (True,)
    assert one("SELECT fenced_update('acct', 1, 4, '{\"bal\": 12}')") == (False,)
    assert one("SELECT fenced_write('acct', 3, 7, '{\"bal\": 31}')") == (True,)
    assert one("SELECT fenced_claim_json('acct', 2, 6)") == ({"id": 2, "bal": 20, "fence": 6},)
    assert one("SELECT count(*) FROM fenced_claim_many(NULL::acct, ARRAY[1, 2, 3], 8)") == (3,)
    assert one("SELECT bal FROM fenced_update_returning(NULL::acct, 3, 8, '{\"bal\": 32}')") == (32,)
    assert one("SELECT fenced_delete('acct', 2, 8)") == (True,)
    assert one("SELECT fence_reset('acct', 1, 2)") == (8,)
    assert acct.execute(READ).fetchall() == [(1, 11, 2), (3, 32, 8)]
    assert outcome(acct, "UPDATE acct SET bal = 0 WHERE id = 1") == "LF003", "no pass is left behind"


INSIDE = {
    "the same row": "UPDATE acct SET bal = bal + 1 WHERE id = NEW.id",
    "another row of the fence": "UPDATE acct SET bal = 0 WHERE id = 2",
    "a row that was never claimed": "UPDATE acct SET fence = 5 WHERE id = 3",
    "a delete": "DELETE FROM acct WHERE id = 2",
    "an insert": "INSERT INTO acct VALUES (4, 40, 5)",
}


@pytest.mark.parametrize("when", ["BEFORE", "AFTER"])
def test_a_fenced_function_does_not_pass_for_what_a_users_trigger_does_inside(acct, when):
    for name, statement in INSIDE.items():
        acct.execute(
            f"CREATE OR REPLACE FUNCTION inside() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN IF pg_trigger_depth() = 1 THEN {statement}; END IF; RETURN NEW; END $$"
        )
        acct.execute(f"CREATE OR REPLACE TRIGGER inside {when} UPDATE ON acct FOR EACH ROW EXECUTE FUNCTION inside()")
        call = "SELECT fenced_update('acct', 1, 5, '{\"bal\": 11}')"
        assert (name, outcome(acct, call)) == (name, "LF003")
        if name == "another row of the fence":
            assert in_transaction(acct, "SELECT fence_use(5)", call) == 1, "fence_use passes there too"
    assert acct.execute(READ).fetchall() == ROWS


def test_a_function_in_an_expression_of_the_change_does_not_pass_with_it(acct):
    """It runs no deeper in triggers than the change itself; the change would pass once, and here twice is needed."""
    acct.execute(
        """CREATE FUNCTION sly(int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN
            IF current_setting('sly.done', true) IS DISTINCT FROM 'yes' THEN
                PERFORM set_config('sly.done', 'yes', true);
                UPDATE acct SET bal = 0 WHERE id = 2;
            END IF;
            RETURN true;
        END $$"""
    )
    acct.execute("ALTER TABLE acct ADD CHECK (sly(bal)) NOT VALID")
    assert outcome(acct, "SELECT fenced_update('acct', 1, 5, '{\"bal\": 11}')") == "LF003"
    assert acct.execute(READ).fetchall() == ROWS


SLY_POLICY = """
    CREATE FUNCTION sly(int) RETURNS bool LANGUAGE plpgsql SECURITY DEFINER COST 0.0001 AS $$ BEGIN
        UPDATE acct SET {} WHERE id = 2 AND fence = 5;
        RETURN true;
    END $$;
    ALTER TABLE acct ENABLE ROW LEVEL SECURITY;
    CREATE POLICY seen ON acct FOR SELECT USING (true);
    CREATE POLICY sly ON acct FOR UPDATE USING (sly(id));
"""


@pytest.mark.parametrize("change", ["bal = 0", "fence = 4"])
@pytest.mark.parametrize("uses", [(), ("SELECT fence_use(5)",)])
def test_a_policy_cannot_use_the_pass_of_a_change_that_reaches_no_row(acct, change, uses):
    """The change of row 1 is stale and would answer false; the policy's function writes row 2, which has its fence."""
    acct.execute(SLY_POLICY.format(change))
    acct.execute(CLAIM, (1, 9))
    acct.execute("CREATE ROLE clerk; GRANT ALL ON acct TO clerk")
    try:
        for fence in (5, 9):
            acct.execute("BEGIN; SET LOCAL ROLE clerk")
            for use in uses:
                acct.execute(use)
            passes_anyway = bool(uses) and change == "bal = 0"
            assert outcome(acct, f"SELECT fenced_update('acct', 1, {fence}, '{{\"bal\": 11}}')") == (1 if passes_anyway else "LF003")
            acct.execute("ROLLBACK")
    finally:
        acct.execute("DROP OWNED BY clerk; DROP ROLE clerk")


def test_a_policy_cannot_change_a_fence_with_the_pass_of_a_change_that_needs_none(acct):
    """The change of row 1 passes by fence_use; what its function did to row 2 is refused all the same."""
    acct.execute(SLY_POLICY.format("fence = 4"))
    acct.execute("CREATE ROLE clerk; GRANT ALL ON acct TO clerk")
    try:
        acct.execute("BEGIN; SET LOCAL ROLE clerk; SELECT fence_use(5)")
        assert outcome(acct, "SELECT fenced_update('acct', 1, 5, '{\"bal\": 11}')") == "LF003"
        acct.execute("ROLLBACK")
    finally:
        acct.execute("ROLLBACK; DROP OWNED BY clerk; DROP ROLE clerk")
    assert acct.execute(READ).fetchall() == ROWS


def test_a_fenced_function_does_not_pass_for_a_cascade(acct):
    acct.execute("CREATE TABLE item (acct_id int REFERENCES acct ON DELETE CASCADE, id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0)")
    acct.execute("SELECT fence_protect('item')")
    acct.execute("INSERT INTO item VALUES (1, 1)")
    acct.execute("SELECT * FROM fenced_claim(NULL::item, 1, 5)")
    delete = "SELECT fenced_delete('acct', 1, 5)"
    assert outcome(acct, delete) == "LF003"
    assert in_transaction(acct, "SELECT fence_use(5)", delete) == 1


def test_a_users_trigger_may_call_fenced_functions(acct):
    acct.execute("CREATE TABLE feed (id int)")
    acct.execute(
        """CREATE FUNCTION fed() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM fenced_write('acct', NEW.id, 9, '{"bal": 1}'); RETURN NEW; END $$"""
    )
    acct.execute("CREATE TRIGGER fed AFTER INSERT ON feed FOR EACH ROW EXECUTE FUNCTION fed()")
    acct.execute("INSERT INTO feed VALUES (1), (2)")
    assert acct.execute(READ).fetchall() == [(1, 1, 9), (2, 1, 9), (3, 30, 0)]


def test_a_trigger_that_sets_the_fence_is_caught_as_before(acct):
    acct.execute("CREATE FUNCTION back() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.fence := 1; RETURN NEW; END $$")
    acct.execute("CREATE TRIGGER back BEFORE UPDATE ON acct FOR EACH ROW EXECUTE FUNCTION back()")
    assert outcome(acct, CLAIM, (1, 9)) == "LF004"
    assert in_transaction(acct, "SELECT fence_use(5)", "UPDATE acct SET bal = 0 WHERE id = 1") == "LF003"


UPDATE_1 = "UPDATE acct SET bal = 0 WHERE id = 1"


def test_a_pass_ends_with_its_savepoint_or_its_transaction(acct):
    use = "SELECT fence_use(5)"
    assert in_transaction(acct, "SAVEPOINT s", use, "ROLLBACK TO s", UPDATE_1) == "LF003"
    assert in_transaction(acct, "SAVEPOINT s", use, "RELEASE s", UPDATE_1) == 1
    assert in_transaction(acct, "SAVEPOINT o", "SAVEPOINT s", use, "RELEASE s", "ROLLBACK TO o", UPDATE_1) == "LF003"
    assert in_transaction(acct, use, "SAVEPOINT s", use, "ROLLBACK TO s", UPDATE_1) == 1
    assert in_transaction(acct, use, "SAVEPOINT s", "SELECT fence_use(6)", "ROLLBACK TO s", UPDATE_1) == 1
    caught = "DO $$ BEGIN PERFORM fence_use(5); RAISE 'x'; EXCEPTION WHEN raise_exception THEN NULL; END $$"
    assert in_transaction(acct, caught, UPDATE_1) == "LF003"
    for end in ["COMMIT", "ROLLBACK", "COMMIT AND CHAIN", "ROLLBACK AND CHAIN"]:
        acct.execute(f"BEGIN; {use}; {end}")
        assert (end, outcome(acct, UPDATE_1)) == (end, "LF003")
        acct.execute("ROLLBACK")
    assert acct.execute(READ).fetchall() == ROWS


def test_no_pass_is_left_after_an_error_in_a_fenced_function(acct):
    acct.execute("ALTER TABLE acct ADD CHECK (bal < 100)")
    fails = (
        "DO $$ BEGIN PERFORM fenced_update('acct', 1, 5, '{\"bal\": 100}');"
        " EXCEPTION WHEN check_violation THEN UPDATE acct SET bal = 0 WHERE id = 1; END $$"
    )
    assert outcome(acct, fails) == "LF003"
    acct.execute("BEGIN; SAVEPOINT s")
    assert outcome(acct, "SELECT fenced_update('acct', 1, 5, '{\"bal\": 100}')") == "23514"
    acct.execute("ROLLBACK TO s")
    assert outcome(acct, UPDATE_1) == "LF003"


def test_fence_use_outside_of_a_transaction_block_is_an_error(acct):
    assert outcome(acct, "SELECT fence_use(5)") == "25P01"
    acct.execute("SELECT fence_use(5); UPDATE acct SET bal = 11 WHERE id = 1")
    assert outcome(acct, UPDATE_1) == "LF003", "several statements in one message are one transaction"


def test_fence_use_takes_a_fence_and_a_bounded_number_of_them(acct):
    for fence in (None, 0, -5, 2**53):
        acct.execute("BEGIN")
        assert (fence, outcome(acct, "SELECT fence_use(%s)", (fence,))) == (fence, "LF005")
        acct.execute("ROLLBACK")
    thousand = "SELECT count(fence_use(n)) FROM generate_series(6, 1005) n"
    assert in_transaction(acct, thousand, "SELECT fence_use(1006)") == "54000"
    assert in_transaction(acct, thousand, "SELECT fence_use(7)") == 1


def test_several_fences_open_the_rows_of_each(acct):
    acct.execute(CLAIM, (2, 8))
    uses = ("SELECT fence_use(5)", "SELECT fence_use(8)")
    assert in_transaction(acct, *uses, "UPDATE acct SET bal = 0 WHERE id < 3") == 2
    assert in_transaction(acct, *uses[:1], "UPDATE acct SET bal = 0 WHERE id < 3") == "LF001"
    assert in_transaction(acct, *uses, "UPDATE acct SET fence = 8 WHERE id = 1") == "LF003"


def test_a_stale_worker_with_plain_sql_is_refused_at_the_row(acct, connect):
    """The story of A and B, where A's ORM writes plain SQL."""
    stale = connect()
    stale.execute("BEGIN; SELECT fence_use(5)")
    acct.execute(CLAIM, (1, 6))
    assert outcome(stale, UPDATE_1) == "LF001"
    stale.execute("ROLLBACK")


def test_no_setting_of_an_ordinary_role_opens_the_gate(acct):
    acct.execute("CREATE ROLE clerk; GRANT ALL ON acct TO clerk; SET ROLE clerk")
    try:
        for setting in ["session_replication_role", "pg_fence.max_fence", "pg_fence.max_fence_ahead"]:
            assert outcome(acct, f"SET {setting} = DEFAULT") == "42501"
            assert outcome(acct, "SELECT set_config(%s, '1', false)", (setting,)) in ("42501", "22023")
        for name in ["pg_fence.fence", "pg_fence.token", "pg_fence.use"]:
            assert outcome(acct, "SELECT set_config(%s, '5', false)", (name,)) == "42602"
        assert outcome(acct, UPDATE_1) == "LF003"
        for ddl in ["SELECT fence_unprotect('acct')", "SELECT fence_protect('acct')", "ALTER TABLE acct DISABLE TRIGGER USER"]:
            assert outcome(acct, ddl) == "42501"
        assert outcome(acct, "SELECT fence_internals.refuse()") == "39P01"
        calls = (
            "SELECT fence_internals.refuses_update('acct'::regclass, '(0,1)', '3', 5, 5, NULL, NULL),"
            " fence_internals.refuses_delete('acct'::regclass, '(0,1)', '3', 5, NULL),"
            " fence_internals.refuses_insert('acct'::regclass, '(0,1)', 5, NULL)"
        )
        assert acct.execute(calls).fetchone() == (True, True, True)
        assert in_transaction(acct, calls, UPDATE_1) == "LF003"
    finally:
        acct.execute("RESET ROLE; DROP OWNED BY clerk; DROP ROLE clerk")


def test_a_role_learns_the_stored_fence_only_if_it_may_read_it(acct):
    acct.execute(CLAIM, (3, 5))
    acct.execute("CREATE ROLE blind; GRANT UPDATE ON acct TO blind; SET ROLE blind")
    try:
        with pytest.raises(psycopg.Error) as caught, acct.transaction():
            acct.execute("SELECT fence_use(4)")
            acct.execute("UPDATE acct SET bal = 0")
        assert caught.value.diag.message_detail == "The row has a newer one; the newest declared in this transaction is 4."
    finally:
        acct.execute("RESET ROLE; DROP OWNED BY blind; DROP ROLE blind")


def test_discard_all_leaves_nothing_and_harms_nothing(acct):
    acct.execute("DISCARD ALL")
    assert outcome(acct, UPDATE_1) == "LF003"
    assert in_transaction(acct, "SELECT fence_use(5)", UPDATE_1) == 1


def test_prepare_transaction_ends_the_pass_and_keeps_the_write(make_pg):
    server = make_pg(settings={"max_prepared_transactions": "2"})
    with psycopg.connect(server.url(), autocommit=True) as db:
        db.execute("CREATE EXTENSION pg_fence; CREATE TABLE acct (id int PRIMARY KEY, bal int, fence bigint NOT NULL DEFAULT 0)")
        db.execute("INSERT INTO acct VALUES (1, 1), (2, 2); SELECT fence_protect('acct')")
        db.execute("SELECT * FROM fenced_claim_many(NULL::acct, ARRAY[1, 2], 5)")
        db.execute("BEGIN; SELECT fence_use(5); UPDATE acct SET bal = 9 WHERE id = 1; PREPARE TRANSACTION 'p'")
        assert outcome(db, "UPDATE acct SET bal = 0 WHERE id = 2") == "LF003"
        db.execute("COMMIT PREPARED 'p'")
        assert db.execute("SELECT bal FROM acct ORDER BY id").fetchall() == [(9,), (2,)]


def test_deferred_triggers_still_pass_at_commit(acct):
    acct.execute("CREATE TABLE later (id int)")
    acct.execute(
        "CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN UPDATE acct SET bal = 7 WHERE id = NEW.id; RETURN NEW; END $$"
    )
    acct.execute(
        "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON later DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION late()"
    )
    acct.execute("BEGIN; SELECT fence_use(5); INSERT INTO later VALUES (1); COMMIT")
    assert acct.execute(READ).fetchone() == (1, 7, 5)
    acct.execute("BEGIN; INSERT INTO later VALUES (1)")
    assert outcome(acct, "COMMIT") == "LF003"


# The tables themselves.

OPEN = "SELECT open_by FROM fence_protected WHERE target = %s::regclass"


def open_by(db, table="acct"):
    row = db.execute(OPEN, (table,)).fetchone()
    return row and row[0]


def test_the_view_shows_the_table_and_its_column(acct):
    shown = "SELECT target::text, fence_column, open_by FROM fence_protected"
    assert acct.execute(shown).fetchall() == [("acct", "fence", [])]
    acct.execute("ALTER TABLE acct RENAME fence TO version; ALTER TABLE acct RENAME TO accounts")
    assert acct.execute(shown).fetchall() == [("accounts", "version", [])]
    assert outcome(acct, "UPDATE accounts SET bal = 0 WHERE id = 1") == "LF003"
    acct.execute("SELECT fence_unprotect('accounts')")
    assert acct.execute(shown).fetchall() == []
    assert outcome(acct, "UPDATE accounts SET bal = 0, version = 1 WHERE id = 1") == 1
    acct.execute("SELECT fence_unprotect('accounts')")


def altered(name):
    return f"trigger fence_protect_{name.lower()} is not as fence_protect() makes it"


def condition(fences="OLD.fence, NEW.fence"):
    """What fence_protect() writes behind WHEN of the trigger on UPDATE."""
    return f"OLD.tableoid <> '0'::oid AND fence_internals.refuses_update(OLD.tableoid, OLD.ctid, OLD.xmin, {fences}, NULL, NULL)"


HOLES = {
    "ALTER TABLE acct DISABLE TRIGGER fence_protect_update": ["UPDATE: trigger fence_protect_update is disabled"],
    "ALTER TABLE acct DISABLE TRIGGER ALL": [
        f"{command}: trigger fence_protect_{command.lower()} is disabled" for command in ("UPDATE", "DELETE", "INSERT", "TRUNCATE")
    ],
    "DROP TRIGGER fence_protect_truncate ON acct": ["TRUNCATE: no trigger"],
    "DROP TRIGGER fence_protect_delete ON acct": ["DELETE: no trigger"],
    "ALTER TABLE acct ALTER fence DROP NOT NULL": ["the fence column can be null"],
    "SET session_replication_role = replica": [
        f"{command}: trigger fence_protect_{command.lower()} does not fire at this session_replication_role"
        for command in ("UPDATE", "DELETE", "INSERT", "TRUNCATE")
    ],
    "ALTER TABLE acct ENABLE REPLICA TRIGGER fence_protect_insert": [
        "INSERT: trigger fence_protect_insert does not fire at this session_replication_role"
    ],
    "CREATE OR REPLACE TRIGGER fence_protect_update AFTER UPDATE ON acct FOR EACH ROW WHEN (false)"
    " EXECUTE FUNCTION fence_internals.refuse()": [f"UPDATE: {altered('UPDATE')}"],
    "CREATE OR REPLACE TRIGGER fence_protect_update AFTER UPDATE ON acct FOR EACH ROW"
    f" WHEN ({condition().partition(' AND ')[2]}) EXECUTE FUNCTION fence_internals.refuse()": [f"UPDATE: {altered('UPDATE')}"],
    "CREATE OR REPLACE TRIGGER fence_protect_update AFTER UPDATE ON acct FOR EACH ROW"
    f" WHEN ({condition().replace('<>', '=')}) EXECUTE FUNCTION fence_internals.refuse()": [f"UPDATE: {altered('UPDATE')}"],
    "CREATE OR REPLACE TRIGGER fence_protect_update AFTER UPDATE ON acct FOR EACH ROW"
    f" WHEN ({condition().replace('OLD.xmin', 'NULL')}) EXECUTE FUNCTION fence_internals.refuse()": [f"UPDATE: {altered('UPDATE')}"],
    "CREATE OR REPLACE TRIGGER fence_protect_update AFTER UPDATE ON acct FOR EACH ROW"
    f" WHEN ({condition('OLD.fence, OLD.fence')}) EXECUTE FUNCTION fence_internals.refuse()": [f"UPDATE: {altered('UPDATE')}"],
    "CREATE OR REPLACE TRIGGER fence_protect_update AFTER UPDATE ON acct FOR EACH ROW"
    f" WHEN ({condition('OLD.bal, NEW.bal')}) EXECUTE FUNCTION fence_internals.refuse()": [f"UPDATE: {altered('UPDATE')}"],
    "CREATE OR REPLACE TRIGGER fence_protect_update AFTER UPDATE OF bal ON acct FOR EACH ROW"
    f" WHEN ({condition()}) EXECUTE FUNCTION fence_internals.refuse()": [f"UPDATE: {altered('UPDATE')}"],
    "CREATE OR REPLACE TRIGGER fence_protect_update AFTER UPDATE ON acct FOR EACH ROW"
    f" WHEN ({condition()}) EXECUTE FUNCTION mine()": ["UPDATE: no trigger"],
    "CREATE OR REPLACE TRIGGER fence_protect_update AFTER UPDATE ON acct FOR EACH ROW"
    f" WHEN ({condition().replace('fence_internals', 'evil')}) EXECUTE FUNCTION fence_internals.refuse()": [f"UPDATE: {altered('UPDATE')}"],
    "CREATE OR REPLACE TRIGGER fence_protect_update AFTER UPDATE ON acct EXECUTE FUNCTION fence_internals.refuse()": ["UPDATE: no trigger"],
    "CREATE OR REPLACE TRIGGER fence_protect_truncate BEFORE TRUNCATE ON acct WHEN (false) EXECUTE FUNCTION fence_internals.refuse()": [
        f"TRUNCATE: {altered('TRUNCATE')}"
    ],
}


def test_the_view_shows_everything_that_leaves_a_table_open(acct):
    acct.execute("CREATE FUNCTION mine() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'")
    acct.execute("CREATE SCHEMA evil; CREATE FUNCTION evil.refuses_update(oid, tid, xid, bigint, bigint, text, text) RETURNS bool LANGUAGE sql AS 'SELECT false'")
    for hole, shown in HOLES.items():
        acct.execute("BEGIN")
        acct.execute(hole)
        assert (hole, open_by(acct)) == (hole, shown)
        if "session_replication_role" in hole:
            acct.execute("ROLLBACK")
            continue
        acct.execute("ALTER TABLE acct ALTER fence SET NOT NULL")
        if "ON acct EXECUTE" not in hole:
            acct.execute("SELECT fence_protect('acct')")
            assert (hole, open_by(acct)) == (hole, []), "fence_protect() repairs it"
        acct.execute("ROLLBACK")
    acct.execute("ALTER TABLE acct ENABLE ALWAYS TRIGGER fence_protect_update")
    assert open_by(acct) == []


def test_what_cannot_be_protected_is_refused_with_its_reason(db):
    db.execute("CREATE TABLE nullable (id int PRIMARY KEY, fence bigint)")
    db.execute("CREATE TABLE keyless (id int, fence bigint NOT NULL DEFAULT 0)")
    db.execute("CREATE TABLE bare (id int PRIMARY KEY)")
    db.execute("CREATE VIEW v AS SELECT 1 AS id")
    cases = {"nullable": "55000", "keyless": "55000", "bare": "42703", "v": "42809", "pg_class": "42809"}
    for table, sqlstate in cases.items():
        assert (table, outcome(db, "SELECT fence_protect(%s::text::regclass)", (table,))) == (table, sqlstate)
    assert outcome(db, "SELECT fence_protect(NULL)") == "22004"


def test_the_hint_about_a_column_that_can_be_null_runs_as_it_stands(db):
    db.execute("""CREATE SCHEMA aside; CREATE TABLE aside."Odd T" (id int PRIMARY KEY, "Lock 'f" bigint)""")
    db.execute("""INSERT INTO aside."Odd T" VALUES (1), (2)""")
    protect = """SELECT fence_protect('aside."Odd T"', 'Lock ''f')"""
    error = refusal(db, protect)
    assert error.diag.message_primary == """fence column "Lock 'f" of table "Odd T" can be null"""
    db.execute(error.diag.message_hint.removeprefix("Run: "))
    db.execute(protect)


@pytest.mark.parametrize("column_type", ["int", "small_fence", "big_fence"])
def test_a_fence_column_of_another_name_and_type_is_protected_as_well(db, column_type):
    db.execute("CREATE DOMAIN small_fence AS int; CREATE DOMAIN big_fence AS bigint")
    db.execute(f"""CREATE TABLE "Odd ""T" (id int PRIMARY KEY, v int, "Lock 'f" {column_type} NOT NULL DEFAULT 0)""")
    db.execute("""SELECT fence_protect('"Odd ""T"', 'Lock ''f'); INSERT INTO "Odd ""T" VALUES (1, 1)""")
    assert db.execute("SELECT fence_column, open_by FROM fence_protected").fetchall() == [("Lock 'f", [])]
    db.execute("""SELECT fenced_write('"Odd ""T"', 1, 7, '{"v": 2}', 'Lock ''f')""")
    update = """UPDATE "Odd ""T" SET v = 3"""
    assert in_transaction(db, "SELECT fence_use(6)", update) == "LF001"
    assert in_transaction(db, "SELECT fence_use(7)", update) == 1
    assert outcome(db, update) == "LF003"


def test_maintenance_and_schema_changes_work(acct):
    acct.execute("CREATE INDEX by_bal ON acct (bal)")
    for statement in [
        "ALTER TABLE acct ALTER bal TYPE bigint",
        "ALTER TABLE acct ADD COLUMN note text DEFAULT 'x'",
        "ALTER TABLE acct DROP COLUMN note",
        "VACUUM FULL acct",
        "CLUSTER acct USING by_bal",
        "REINDEX TABLE acct",
        "ANALYZE acct",
        "ALTER TABLE acct SET UNLOGGED",
    ]:
        acct.execute(statement)
    assert outcome(acct, "ALTER TABLE acct ALTER fence TYPE int") == "0A000", "its triggers name the column"
    assert outcome(acct, "ALTER TABLE acct DROP COLUMN fence") == "2BP01"
    assert acct.execute(READ).fetchall() == ROWS
    assert outcome(acct, UPDATE_1) == "LF003"
    assert open_by(acct) == []
    acct.execute("DROP TABLE acct")


def test_triggers_that_do_not_fire_are_the_superusers_way(acct):
    acct.execute("SET session_replication_role = replica")
    assert outcome(acct, "UPDATE acct SET bal = 0, fence = 9 WHERE id = 1") == 1
    acct.execute("RESET session_replication_role; ALTER TABLE acct DISABLE TRIGGER USER")
    assert outcome(acct, "TRUNCATE acct") == -1
    acct.execute("ALTER TABLE acct ENABLE TRIGGER USER")
    assert open_by(acct) == []


def test_a_bulk_update_of_a_protected_table_writes_no_more_wal(db):
    """BEFORE triggers would: they lock each row first."""
    rows = 5_000
    for table in ("plain", "guarded"):
        db.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v int NOT NULL, fence bigint NOT NULL)")
        db.execute(f"INSERT INTO {table} SELECT n, 0, 5 FROM generate_series(1, {rows}) n")
        db.execute(f"VACUUM FULL {table}")
    db.execute("SELECT fence_protect('guarded')")
    written = {}
    for table in ("plain", "guarded"):
        db.execute("BEGIN; SELECT fence_use(5)")
        before = db.execute("SELECT pg_current_wal_insert_lsn()").fetchone()[0]
        assert db.execute(f"UPDATE {table} SET v = v + 1").rowcount == rows
        written[table] = db.execute("SELECT (pg_current_wal_insert_lsn() - %s::pg_lsn)::int", (before,)).fetchone()[0]
        db.execute("COMMIT")
    assert written["guarded"] < 1.05 * written["plain"], written


# Partitions and children.


@pytest.fixture
def parts(db):
    """A protected partitioned table with a partition that is partitioned again; rows 1 (in a) and 2 (in b1)."""
    db.execute(
        """CREATE TABLE parts (id int, r text, v int NOT NULL DEFAULT 0, fence bigint NOT NULL DEFAULT 0, PRIMARY KEY (id, r))
            PARTITION BY LIST (r);
        CREATE TABLE a PARTITION OF parts FOR VALUES IN ('a');
        CREATE TABLE b PARTITION OF parts FOR VALUES IN ('b') PARTITION BY RANGE (id);
        CREATE TABLE b1 PARTITION OF b FOR VALUES FROM (0) TO (100);
        CREATE TABLE b2 PARTITION OF b FOR VALUES FROM (100) TO (200);
        SELECT fence_protect('parts');
        INSERT INTO parts VALUES (1, 'a'), (2, 'b');
        SELECT * FROM fenced_claim_many(NULL::parts, '[{"id": 1, "r": "a"}, {"id": 2, "r": "b"}]'::jsonb, 5)"""
    )
    yield db
    db.execute("ROLLBACK")


PARTS = "SELECT id, r, v, fence FROM parts ORDER BY id"


def test_partitions_are_covered_however_they_are_addressed(parts):
    shown = dict(parts.execute("SELECT target::text, open_by FROM fence_protected").fetchall())
    assert shown == {"parts": [], "a": [], "b": [], "b1": [], "b2": []}
    for table in ["parts", "a", "b", "b1"]:
        seen = [outcome(parts, f"UPDATE {table} SET v = 1"), outcome(parts, f"DELETE FROM {table}")]
        seen += [outcome(parts, f"TRUNCATE {table}"), in_transaction(parts, "SELECT fence_use(5)", f"UPDATE {table} SET v = 1")]
        assert (table, seen) == (table, ["LF003", "LF003", "LF003", 2 if table == "parts" else 1])
    assert outcome(parts, "INSERT INTO b1 VALUES (3, 'b', 0, 9)") == "LF003"
    assert outcome(parts, "TRUNCATE b2") == "LF003", "a leaf without rows as well"
    assert parts.execute(PARTS).fetchall() == [(1, "a", 0, 5), (2, "b", 0, 5)]


MOVES = {
    "UPDATE parts SET r = 'b' WHERE id = 1": ("LF003", 1),
    "UPDATE parts SET r = 'b', fence = 0 WHERE id = 1": ("LF003", "LF003"),
    "UPDATE parts SET r = 'b', fence = 9 WHERE id = 1": ("LF003", "LF003"),
    "UPDATE b SET id = 150 WHERE id = 2": ("LF003", 1),
    "UPDATE b SET id = 150, fence = 0 WHERE id = 2": ("LF003", "LF003"),
    "MERGE INTO parts p USING (VALUES (1)) s (id) ON p.id = s.id WHEN MATCHED THEN UPDATE SET r = 'b'": ("LF003", 1),
    "MERGE INTO parts p USING (VALUES (1)) s (id) ON p.id = s.id WHEN MATCHED THEN UPDATE SET r = 'b', fence = 0": (
        "LF003",
        "LF003",
    ),
    "INSERT INTO parts VALUES (3, 'a')": (1, 1),
}


def test_a_row_that_moves_between_partitions_follows_the_same_rule(parts):
    seen = {}
    for move in MOVES:
        seen[move] = (in_transaction(parts, move), in_transaction(parts, "SELECT fence_use(5)", move))
    assert seen == MOVES
    parts.execute("BEGIN; SELECT fence_use(5); UPDATE parts SET r = 'b' WHERE id = 1; INSERT INTO parts VALUES (3, 'a')")
    parts.execute("SAVEPOINT s")
    assert outcome(parts, "UPDATE parts SET r = 'a', v = 1 / (id - 1) WHERE id < 3") == "22012"
    parts.execute("ROLLBACK TO s; INSERT INTO parts VALUES (4, 'a'); COMMIT")
    assert parts.execute(PARTS).fetchall() == [(1, "b", 0, 5), (2, "b", 0, 5), (3, "a", 0, 0), (4, "a", 0, 0)]


def test_fenced_functions_move_rows(parts):
    assert parts.execute("""SELECT fenced_write('parts', ROW(1, 'a'), 7, '{"v": 1}')""").fetchone() == (True,)
    parts.execute(
        """CREATE FUNCTION move() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.r := 'b'; RETURN NEW; END $$;
        CREATE TRIGGER move BEFORE UPDATE ON parts FOR EACH ROW EXECUTE FUNCTION move()"""
    )
    for fence in (7, 8):
        parts.execute("BEGIN")
        verb = "fenced_update" if fence == 7 else "fenced_write"
        call = f"""SELECT {verb}('parts', ROW(1, 'a'), {fence}, '{{"v": 2}}')"""
        assert parts.execute(call).fetchone() == (True,)
        assert parts.execute("SELECT v, fence FROM b1 WHERE id = 1").fetchone() == (2, fence)
        parts.execute("ROLLBACK")


def test_a_partition_that_comes_later_is_listed_until_it_is_protected(parts):
    parts.execute("CREATE TABLE c PARTITION OF parts FOR VALUES IN ('c')")
    assert open_by(parts, "c") == ["INSERT: no trigger", "TRUNCATE: no trigger"]
    parts.execute("INSERT INTO parts VALUES (5, 'c')")
    assert outcome(parts, "UPDATE c SET v = 1") == "LF003", "those of rows that are there come with the parent"
    parts.execute("SELECT fence_protect('parts')")
    assert open_by(parts, "c") == []
    assert outcome(parts, "TRUNCATE c") == "LF003"
    assert outcome(parts, "INSERT INTO parts VALUES (6, 'c', 0, 9)") == "LF003"


def test_detach_and_attach_again(parts):
    parts.execute("ALTER TABLE parts DETACH PARTITION a")
    assert open_by(parts, "a") == ["UPDATE: no trigger", "DELETE: no trigger"]
    parts.execute("ALTER TABLE parts ATTACH PARTITION a FOR VALUES IN ('a')")
    assert open_by(parts, "a") == []
    assert outcome(parts, "UPDATE a SET v = 1") == "LF003"
    parts.execute("ALTER TABLE parts DETACH PARTITION a; SELECT fence_protect('a')")
    assert open_by(parts, "a") == []
    attach = "ALTER TABLE parts ATTACH PARTITION a FOR VALUES IN ('a')"
    assert outcome(parts, attach) == "42710", "it has triggers of its own: unprotect it first"
    parts.execute(f"BEGIN; SELECT fence_unprotect('a'); {attach}; SELECT fence_protect('parts'); COMMIT")
    assert open_by(parts, "a") == []


def test_a_partition_alone_is_protected_by_its_parent_only(parts):
    for function in ("fence_protect", "fence_unprotect"):
        for partition in ("a", "b", "b1"):
            with pytest.raises(psycopg.Error, match='"parts" is protected') as caught:
                parts.execute(f"SELECT {function}(%s::text::regclass)", (partition,))
            assert caught.value.sqlstate == "55000"
    parts.execute("SELECT fence_unprotect('parts')")
    assert parts.execute("SELECT * FROM fence_protected").fetchall() == []
    parts.execute("SELECT fence_protect('a')")
    assert outcome(parts, "UPDATE parts SET v = 1 WHERE id = 1") == "LF003"
    assert outcome(parts, "UPDATE parts SET v = 1 WHERE id = 2") == 1
    parts.execute("SELECT fence_protect('parts')")
    assert parts.execute("SELECT count(*) FROM fence_protected WHERE open_by = '{}'").fetchone() == (5,)
    parts.execute("SELECT fence_unprotect('parts')")
    assert parts.execute("SELECT * FROM fence_protected").fetchall() == []


def test_children_that_inherit_are_protected_and_later_ones_listed(db):
    db.execute("CREATE TABLE par (id int PRIMARY KEY, v int, fence bigint NOT NULL DEFAULT 0)")
    db.execute("CREATE TABLE kid () INHERITS (par); INSERT INTO par VALUES (1, 1); INSERT INTO kid VALUES (1, 1)")
    db.execute("SELECT fence_protect('par')")
    for write in ["UPDATE par SET v = 8 WHERE tableoid = 'kid'::regclass", "UPDATE kid SET v = 9", "UPDATE ONLY par SET v = 9", "TRUNCATE kid"]:
        assert (write, outcome(db, write)) == (write, "LF003")
    db.execute("CREATE TABLE late () INHERITS (par)")
    assert open_by(db, "late") == [f"{command}: no trigger" for command in ("UPDATE", "DELETE", "INSERT", "TRUNCATE")]
    db.execute("SELECT fence_protect('par')")
    assert open_by(db, "late") == []
    assert db.execute("SELECT v, fence FROM fenced_claim(NULL::par, 1, 3)").fetchall() == [(1, 3)]
    assert db.execute("SELECT v, fence FROM kid").fetchall() == [(1, 0)]


def test_what_the_publisher_let_through_is_applied_by_a_subscriber_that_is_protected_too(make_pg):
    """Both are databases of one server, so the slot is made by hand."""
    server = make_pg(settings={"wal_level": "logical"})
    for database in ("pub", "sub"):
        server.psql(f"CREATE DATABASE {database}")
        server.psql(
            "CREATE EXTENSION pg_fence; CREATE TABLE acct (id int PRIMARY KEY, bal int, fence bigint NOT NULL DEFAULT 0);"
            "SELECT fence_protect('acct')",
            database,
        )
    server.psql("CREATE PUBLICATION p FOR TABLE acct; SELECT pg_create_logical_replication_slot('s', 'pgoutput')", "pub")
    server.psql(
        f"CREATE SUBSCRIPTION s CONNECTION '{server.url('pub')}' PUBLICATION p WITH (create_slot = false, copy_data = false)", "sub"
    )
    server.psql("INSERT INTO acct VALUES (1, 1), (2, 2); SELECT fenced_write('acct', 1, 7, '{\"bal\": 10}')", "pub")
    server.psql("BEGIN; SELECT * FROM fenced_claim(NULL::acct, 2, 8); SELECT fence_use(8); DELETE FROM acct WHERE id = 2; COMMIT", "pub")
    read = "SELECT id, bal, fence FROM acct"
    eventually(lambda: server.psql(read, "sub"), "1|10|7")
    assert "LF003" not in server.psql("UPDATE acct SET bal = 0", "sub", check=False)
    assert "requires a fence" in server.psql("UPDATE acct SET bal = 0", "sub", check=False)
    assert server.psql("SELECT fenced_update('acct', 1, 7, '{\"bal\": 11}')", "pub") == "t"
    eventually(lambda: server.psql(read, "sub"), "1|11|7")
    server.psql("ALTER SUBSCRIPTION s DISABLE; ALTER SUBSCRIPTION s SET (slot_name = NONE); DROP SUBSCRIPTION s", "sub")


# --- What fence_protect() takes and returns.


def test_an_argument_that_is_left_out_keeps_what_the_triggers_have(acct):
    def column():
        return acct.execute("SELECT fence_column::text FROM fence_protected WHERE target = 'acct'::regclass").fetchone()[0]

    acct.execute("ALTER TABLE acct ADD lock_fence bigint NOT NULL DEFAULT 0")
    for call, told in [
        ("fence_protect('acct')", "fence"),
        ("fence_protect('acct', 'lock_fence')", "lock_fence"),
        ("fence_protect('acct')", "lock_fence"),
        ("fence_protect('acct', NULL, 'plain', 'plain', 'plain')", "lock_fence"),
        ("fence_protect('acct', deletes => 'plain', fence_column => 'fence')", "fence"),
        ("fence_protect('acct', replicated => NULL)", "fence"),
    ]:
        assert acct.execute(f"SELECT {call}").fetchone() == (1,)
        assert (call, column()) == (call, told)
    assert open_by(acct) == []


def test_an_option_that_is_not_known_is_an_error_and_changes_nothing(acct):
    acct.execute("SELECT fence_unprotect('acct')")
    for option in ("inserts", "deletes", "replicated"):
        for value in ("none", "", "PLAIN"):
            assert outcome(acct, f"SELECT fence_protect('acct', {option} => '{value}')") == "0A000"
    assert acct.execute("SELECT * FROM fence_protected").fetchall() == []


def test_the_number_of_tables_is_returned(db):
    db.execute("""CREATE TABLE p (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0) PARTITION BY LIST (id);
        CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1); CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2)""")
    for call, count in [("fence_unprotect", 0), ("fence_protect", 3), ("fence_protect", 3), ("fence_unprotect", 3), ("fence_unprotect", 0)]:
        assert db.execute(f"SELECT {call}('p')").fetchone() == (count,)
    assert db.execute("SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal AND tgrelid::regclass::text ~ '^p'").fetchone() == (0,)


def test_a_renamed_trigger_is_found_by_its_function(acct):
    acct.execute("ALTER TRIGGER fence_protect_update ON acct RENAME TO other; ALTER TRIGGER fence_protect_truncate ON acct RENAME TO another")
    assert acct.execute("SELECT fence_unprotect('acct')").fetchone() == (1,)
    assert acct.execute("SELECT count(*) FROM pg_trigger WHERE tgrelid = 'acct'::regclass").fetchone() == (0,)


def test_a_row_of_a_referenced_partitioned_table_moves_under_its_fence(db):
    """The server evaluates the condition of the parent's trigger on a copy of the row that has no system columns."""
    for columns in ["id int, fence bigint NOT NULL DEFAULT 0", "gone text, fence bigint NOT NULL DEFAULT 0, id int"]:
        # The parent's rows have the form of the partitions' here, and there they have not.
        db.execute(f"""DROP TABLE IF EXISTS refers, p;
            CREATE TABLE p ({columns}, PRIMARY KEY (id)) PARTITION BY LIST (id);
            CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);
            CREATE TABLE p2 (fence bigint NOT NULL DEFAULT 0, extra int, id int NOT NULL);
            ALTER TABLE p2 DROP extra; ALTER TABLE p DROP IF EXISTS gone;
            ALTER TABLE p ATTACH PARTITION p2 FOR VALUES IN (2);
            CREATE TABLE refers (id int REFERENCES p ON UPDATE CASCADE);
            INSERT INTO p (id) VALUES (1);
            INSERT INTO refers VALUES (1); SELECT fence_protect('p'); SELECT * FROM fenced_claim(NULL::p, 1, 5)""")
        assert outcome(db, "UPDATE p SET id = 2") == "LF003"
        assert in_transaction(db, "SELECT fence_use(4)", "UPDATE p SET id = 2") == "LF001"
        assert in_transaction(db, "SELECT fence_use(5)", "UPDATE p SET id = 2, fence = 0") == "LF003"
        assert in_transaction(db, "SELECT fence_use(5)", "UPDATE p SET id = 2") == 1
