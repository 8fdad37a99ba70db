"""Deleted rows that a stale holder would bring back: new rows that must carry a fence, and deletions that are remembered."""

import random
import threading

import psycopg
import pytest

from majors import others_in_long_runs
import seeds
from harness import eventually
from refusals import outcome, refusal

TABLE = "CREATE TABLE acct (id int PRIMARY KEY, bal int NOT NULL DEFAULT 0, fence bigint NOT NULL DEFAULT 0)"
SHOWN = "SELECT target::text, inserts, deletes, deletions::text, open_by FROM fence_protected ORDER BY target::text"
REMEMBERED = "SELECT id, fence FROM acct_deletions ORDER BY id"


@pytest.fixture
def acct(db):
    """A table whose deletions are remembered, with row 7 deleted under fence 42 and row 8 held under it."""
    db.execute(f"{TABLE}; SELECT fence_protect('acct', deletes => 'remembered'); INSERT INTO acct VALUES (7, 70), (8, 80)")
    db.execute("SELECT * FROM fenced_claim_many(NULL::acct, ARRAY[7, 8], 42); SELECT fenced_delete('acct', 7, 42)")
    return db


def under(db, *fences, do):
    """What statements give in a transaction that has declared these fences; it is kept where all are accepted."""
    db.execute("BEGIN")
    for fence in fences:
        db.execute("SELECT fence_use(%s)", (fence,))
    answers = []
    for statement in do:
        answers.append(outcome(db, statement))
        if isinstance(answers[-1], str):
            break
    db.execute("ROLLBACK" if isinstance(answers[-1], str) else "COMMIT")
    return answers[-1]


def test_the_story(db):
    """Row 7 is deleted under fence 42; the stale holder, fence 41, whose UPDATE hits nothing inserts it again."""
    story = ["UPDATE acct SET bal = 71 WHERE id = 7", "INSERT INTO acct VALUES (7, 71, {})"]
    for deletes, answers in (("plain", [1, 1]), ("remembered", ["LF001", "LF001"])):
        for fence, answer in zip((0, 41), answers):
            db.execute(f"DROP TABLE IF EXISTS acct; {TABLE}; INSERT INTO acct VALUES (7, 70)")
            db.execute("SELECT fence_protect('acct', deletes => %s)", (deletes,))
            db.execute("SELECT * FROM fenced_claim(NULL::acct, 7, 41); SELECT * FROM fenced_claim(NULL::acct, 7, 42)")
            assert db.execute("SELECT fenced_delete('acct', 7, 42)").fetchone() == (True,)
            told = under(db, 41, do=[statement.format(fence) for statement in story])
            assert (deletes, fence, told) == (deletes, fence, answer)
            assert db.execute("SELECT * FROM acct").fetchall() == ([] if deletes == "remembered" else [(7, 71, fence)])


# --- Which deletions are remembered, and which new rows pass.

DELETES = {
    "fenced_delete": ("SELECT fenced_delete('acct', 8, 42)", 8),
    "a plain DELETE": ("DELETE FROM acct WHERE id = 8", 8),
    "MERGE": ("MERGE INTO acct USING (VALUES (8)) s (id) ON s.id = acct.id WHEN MATCHED THEN DELETE", 8),
    "a CTE": ("WITH d AS (DELETE FROM acct WHERE id = 8 RETURNING id) SELECT * FROM d", 8),
    "a cascade": ("DELETE FROM owner WHERE id = 8", 8),
    "a function": ("DO $$ BEGIN DELETE FROM acct WHERE id = 8; END $$", 8),
    "a rule": ("INSERT INTO ruled VALUES (8)", 8),
    "another key": ("UPDATE acct SET id = 9 WHERE id = 8", 8),
    "another key by a trigger": ("UPDATE acct SET bal = -1 WHERE id = 8", 8),
    "another key by a cascade": ("UPDATE owner SET id = 9 WHERE id = 8", 8),
    "another key by fenced_write": ("SELECT fenced_write('acct', 8, 43, '{\"bal\": -1}')", 8),
    "no other key": ("UPDATE acct SET id = id, bal = 3 WHERE id = 8", None),
    "no row": ("DELETE FROM acct WHERE id = 77", None),
}


def test_whatever_deletes_a_row_or_changes_its_key_is_remembered_with_its_fence(acct):
    acct.execute("""CREATE TABLE owner (id int PRIMARY KEY); INSERT INTO owner VALUES (7), (8);
        ALTER TABLE acct ADD FOREIGN KEY (id) REFERENCES owner ON DELETE CASCADE ON UPDATE CASCADE NOT VALID;
        CREATE TABLE ruled (id int); CREATE RULE r AS ON INSERT TO ruled DO INSTEAD DELETE FROM acct WHERE id = NEW.id;
        CREATE FUNCTION rekey() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.bal = -1 THEN NEW.id := 9; END IF; RETURN NEW; END $$;
        CREATE TRIGGER rekey BEFORE UPDATE ON acct FOR EACH ROW EXECUTE FUNCTION rekey(); INSERT INTO owner VALUES (9)""")
    for name, (statement, key) in DELETES.items():
        with acct.transaction(force_rollback=True):
            acct.execute("SELECT fence_use(42)")
            if "cascade" in name and "key" in name:
                acct.execute("DELETE FROM owner WHERE id = 9")
            acct.execute(statement)
            fence = 43 if "fenced_write" in name else 42
            assert (name, acct.execute(REMEMBERED).fetchall()) == (name, [(7, 42)] + ([(key, fence)] if key else []))
        assert acct.execute(REMEMBERED).fetchall() == [(7, 42)], "as long as its transaction counts"


# The fences that are declared, the fence of the new row, and what an insert of the deleted key 7 gives.
INSERTS = [
    ((), 0, "LF003"),
    ((), 42, "LF003"),
    ((41,), 0, "LF001"),
    ((41,), 41, "LF001"),
    ((40, 41), 40, "LF001"),
    ((42,), 42, 1),
    ((42,), 0, "LF003"),
    ((41, 42), 41, "LF003"),
    ((43,), 43, 1),
    ((43,), 0, "LF003"),
]


def test_a_new_row_passes_under_the_fence_of_the_deletion_or_a_newer_one(acct):
    for declared, fence, answer in INSERTS:
        told = under(acct, *declared, do=["SAVEPOINT s", f"INSERT INTO acct VALUES (7, 1, {fence})", "ROLLBACK TO s"][: 3 if answer == 1 else 2])
        assert (declared, fence, told) == (declared, fence, -1 if answer == 1 else answer)
    assert under(acct, do=["INSERT INTO acct VALUES (9, 1)"]) == 1, "a key that was not deleted"
    assert under(acct, 42, do=["INSERT INTO acct VALUES (7, 1, 42)"]) == 1
    assert under(acct, 42, do=["DELETE FROM acct WHERE id = 7", "INSERT INTO acct VALUES (7, 2, 42)"]) == 1
    assert acct.execute("SELECT * FROM acct WHERE id = 7").fetchall() == [(7, 2, 42)]
    assert acct.execute(REMEMBERED).fetchall() == [(7, 42)]


FORMS = [
    "INSERT INTO acct VALUES (7, 1)",
    "INSERT INTO acct VALUES (9, 1), (7, 1)",
    "INSERT INTO acct SELECT 7, 1",
    "INSERT INTO acct VALUES (7, 1) ON CONFLICT DO NOTHING",
    "INSERT INTO acct VALUES (7, 1) ON CONFLICT (id) DO UPDATE SET bal = 1",
    "MERGE INTO acct USING (VALUES (7)) s (id) ON s.id = acct.id WHEN MATCHED THEN UPDATE SET bal = 1 WHEN NOT MATCHED THEN INSERT VALUES (7, 1)",
    "WITH i AS (INSERT INTO acct VALUES (7, 1) RETURNING id) SELECT * FROM i",
    "INSERT INTO shown VALUES (7, 1)",
    "SELECT by_definer()",
    "INSERT INTO ruled VALUES (7)",
    "INSERT INTO noted VALUES (7)",
    "UPDATE acct SET id = 7 WHERE id = 5",
]


def test_every_way_to_insert_is_refused(acct):
    acct.execute("""INSERT INTO acct VALUES (5, 50); SELECT * FROM fenced_claim(NULL::acct, 5, 41);
        CREATE VIEW shown AS SELECT * FROM acct; CREATE TABLE ruled (id int); CREATE TABLE noted (id int);
        CREATE RULE r AS ON INSERT TO ruled DO INSTEAD INSERT INTO acct VALUES (NEW.id, 1);
        CREATE FUNCTION by_definer() RETURNS void LANGUAGE sql SECURITY DEFINER AS 'INSERT INTO acct VALUES (7, 1)';
        CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO acct VALUES (NEW.id, 1); RETURN NEW; END $$;
        CREATE TRIGGER note AFTER INSERT ON noted FOR EACH ROW EXECUTE FUNCTION note()""")
    assert {form: under(acct, 41, do=[form]) for form in FORMS} == dict.fromkeys(FORMS, "LF001")
    with pytest.raises(psycopg.Error, check=lambda error: error.sqlstate == "LF003"), acct.cursor() as cursor, cursor.copy("COPY acct FROM STDIN") as copy:
        copy.write("7\t1\t0\n")
    assert acct.execute("SELECT id FROM acct ORDER BY id").fetchall() == [(5,), (8,)]


def test_each_refusal_says_what_to_do(acct):
    def said(*statements):
        with pytest.raises(psycopg.Error) as caught, acct.transaction():
            for statement in statements:
                acct.execute(statement)
        diag = caught.value.diag
        assert (diag.schema_name, diag.table_name) == ("public", "acct")
        return diag.sqlstate, diag.constraint_name, diag.message_primary, diag.message_detail, diag.message_hint

    assert said("SELECT fence_use(41)", "INSERT INTO acct VALUES (7, 1)") == (
        "LF001",
        "insert_stale",
        'fence 41 is stale for a new row of table "acct"',
        "Key (id)=(7) was deleted with fence 42; the newest fence of this insert is 41.",
        "Another holder has taken over. Roll back, and take the lock again. The row stays deleted.",
    )
    assert said("INSERT INTO acct VALUES (7, 1)") == (
        "LF003",
        "insert_of_deleted_key",
        'a new row of protected table "acct" has the key of a deleted one',
        "Key (id)=(7) was deleted with fence 42, and the row carries an older one or none.",
        "Call fence_use() with your lock's fence in this transaction, and insert the row with that fence.",
    )
    acct.execute("SELECT fence_protect('acct', inserts => 'fenced')")
    assert said("INSERT INTO acct VALUES (9, 1)") == (
        "LF003",
        "insert_unfenced",
        'a new row of protected table "acct" requires a fence',
        "It is protected with inserts => 'fenced': a row without a fence is not inserted.",
        "Call fence_use() with your lock's fence in this transaction, and insert the row with that fence.",
    )
    acct.execute("CREATE ROLE blind; GRANT INSERT ON acct TO blind; SELECT fence_protect('acct', inserts => 'plain')")
    try:
        acct.execute("SET ROLE blind")
        assert said("SELECT fence_use(41)", "INSERT INTO acct VALUES (7, 1)")[3] == (
            "Its key was deleted with a newer one; the newest fence of this insert is 41."
        )
        assert said("INSERT INTO acct VALUES (7, 1)")[3] == "Its key was deleted with a newer one, and the row carries an older one or none."
    finally:
        acct.execute("RESET ROLE; DROP OWNED BY blind; DROP ROLE blind")


def test_the_refused_are_counted(acct):
    under(acct, 41, do=["INSERT INTO acct VALUES (7, 1)"])
    under(acct, do=["INSERT INTO acct VALUES (7, 1)"])
    counts = acct.execute("SELECT writes_stale, last_stale_fence, stored_fence_then, unfenced_refused FROM pg_stat_fence WHERE kind IS DISTINCT FROM 'other tables'").fetchall()
    assert counts in ([(1, 41, 42, 1)], [(None,) * 4])


def test_what_a_savepoint_takes_back_is_not_remembered(acct):
    acct.execute("BEGIN; SELECT fence_use(42); SAVEPOINT s; DELETE FROM acct WHERE id = 8; ROLLBACK TO s; COMMIT")
    assert acct.execute(REMEMBERED).fetchall() == [(7, 42)]


def test_a_row_that_was_never_claimed_leaves_nothing(db):
    """Only where the triggers that refuse it were disabled it is deleted at all."""
    db.execute(f"{TABLE}; SELECT fence_protect('acct', deletes => 'remembered'); INSERT INTO acct VALUES (1)")
    db.execute("ALTER TABLE acct DISABLE TRIGGER fence_protect_delete; DELETE FROM acct; INSERT INTO acct VALUES (1)")
    assert db.execute(REMEMBERED).fetchall() == []


def test_the_newest_deletion_is_remembered(acct):
    assert under(acct, 50, do=["INSERT INTO acct VALUES (7, 1, 50)"]) == 1
    assert acct.execute("SELECT fenced_delete('acct', 7, 50)").fetchone() == (True,)
    assert acct.execute(REMEMBERED).fetchall() == [(7, 50)]
    # The owner sets the fence of the row back, which must not admit what the deletion has refused.
    under(acct, 60, do=["INSERT INTO acct VALUES (7, 1, 60)"])
    acct.execute("SELECT fence_reset('acct', 7, 9); SELECT fenced_delete('acct', 7, 9)")
    assert acct.execute(REMEMBERED).fetchall() == [(7, 50)]


@pytest.mark.parametrize("name, answer", [("zz", "LF003"), ("aa", 1)])
def test_a_trigger_that_inserts_again_is_asked_where_it_fires_after_the_one_that_notes(acct, name, answer):
    acct.execute(f"""CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO acct VALUES (OLD.id, 1, 0); RETURN NULL; END';
        CREATE TRIGGER {name} AFTER DELETE ON acct FOR EACH ROW EXECUTE FUNCTION again()""")
    assert under(acct, 42, do=["DELETE FROM acct WHERE id = 8"]) == answer


def test_truncate_is_refused_and_one_that_is_let_through_forgets_nothing(acct):
    assert outcome(acct, "TRUNCATE acct") == "LF003"
    acct.execute("SET session_replication_role = replica; TRUNCATE acct; RESET session_replication_role")
    assert acct.execute(REMEMBERED).fetchall() == [(7, 42)]
    assert under(acct, 41, do=["INSERT INTO acct VALUES (8, 1, 41)"]) == 1, "nor does it remember anything"
    assert under(acct, 41, do=["INSERT INTO acct VALUES (7, 1, 41)"]) == "LF001"


def test_random_sequences_against_a_plain_account(acct):
    """Of keys and fences; what is refused, and what is remembered, is what the account says."""
    rng = random.Random(seeds.seed())
    rows, remembered = {8: 42}, {7: 42}
    for _ in range(400):
        key, fence = rng.choice([7, 8]), rng.randrange(40, 60)
        if key in rows:
            if fence < rows[key]:
                assert acct.execute("SELECT fenced_claim_json('acct', %s, %s)", (key, fence)).fetchone() == (None,)
                continue
            acct.execute("SELECT fenced_claim_json('acct', %s, %s)", (key, fence))
            rows[key] = fence
            if rng.random() < 0.6:
                statement = rng.choice([f"SELECT fenced_delete('acct', {key}, {fence})", f"DELETE FROM acct WHERE id = {key}"])
                assert under(acct, fence, do=[statement]) == 1
                remembered[key] = max(rows.pop(key), remembered.get(key, 0))
        else:
            carried = rng.choice([0, fence])
            told = under(acct, fence, do=[f"INSERT INTO acct VALUES ({key}, 1, {carried})"])
            newest = remembered.get(key, 0)
            assert told == (1 if carried >= newest else "LF001" if fence < newest else "LF003"), (key, fence, carried, newest)
            if told == 1:
                rows[key] = carried
        assert dict(acct.execute(REMEMBERED).fetchall()) == remembered
        assert dict(acct.execute("SELECT id, fence FROM acct").fetchall()) == rows


# --- Two sessions.

LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]
WAITS = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"


def start(connection, statement):
    """Sends a statement, and gives what has its outcome later."""
    told = []
    thread = threading.Thread(target=lambda: told.append(outcome(connection, statement)))
    thread.start()

    def answer():
        thread.join(60)
        return told[0]

    return answer


@others_in_long_runs
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("ends", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("deletion", ["DELETE FROM acct WHERE id = 8", "UPDATE acct SET id = 9 WHERE id = 8", "SELECT fenced_delete('acct', 8, 42)"])
def test_an_insert_waits_for_a_deletion_that_is_not_committed(acct, connect, level, ends, deletion):
    """Its snapshot is older than the deletion."""
    stale, watcher = connect(), connect()
    acct.execute("BEGIN; SELECT fence_use(42)")
    acct.execute(deletion)
    stale.execute(f"BEGIN ISOLATION LEVEL {level}; SELECT fence_use(41)")
    stale.execute("SELECT count(*) FROM acct")
    answer = start(stale, "INSERT INTO acct VALUES (8, 81, 41)")
    eventually(lambda: watcher.execute(WAITS, (stale.info.backend_pid,)).fetchone(), (1,))
    acct.execute(ends)
    assert answer() == ("23505" if ends == "ROLLBACK" else "LF001")
    stale.execute("ROLLBACK")
    assert acct.execute("SELECT id FROM acct").fetchall() == ([(8,)] if ends == "ROLLBACK" else [(9,)] if "id = 9" in deletion else [])


@pytest.mark.parametrize("level", LEVELS)
def test_an_insert_does_not_miss_a_deletion_that_is_newer_than_its_snapshot(acct, connect, level):
    stale = connect()
    stale.execute(f"BEGIN ISOLATION LEVEL {level}; SELECT fence_use(41)")
    stale.execute("SELECT count(*) FROM acct")
    assert acct.execute("SELECT fenced_delete('acct', 8, 42)").fetchone() == (True,)
    assert outcome(stale, "INSERT INTO acct VALUES (8, 81, 41)") == "LF001"
    stale.execute("ROLLBACK")


@pytest.mark.parametrize("level", LEVELS)
def test_a_row_that_comes_and_goes_in_one_transaction_is_waited_for(acct, connect, level):
    stale, watcher = connect(), connect()
    acct.execute("BEGIN; SELECT fence_use(43); INSERT INTO acct VALUES (7, 1, 43); DELETE FROM acct WHERE id = 7")
    stale.execute(f"BEGIN ISOLATION LEVEL {level}; SELECT fence_use(42)")
    answer = start(stale, "INSERT INTO acct VALUES (7, 81, 42)")
    eventually(lambda: watcher.execute(WAITS, (stale.info.backend_pid,)).fetchone(), (1,))
    acct.execute("COMMIT")
    assert answer() == "LF001"
    stale.execute("ROLLBACK")
    assert acct.execute(REMEMBERED).fetchall() == [(7, 43)]


@pytest.mark.parametrize(
    "deleting, fence, told",
    [
        ("DELETE FROM acct WHERE id = 8", 43, (True,)),
        ("SELECT fenced_delete('acct', 8, 42)", 43, (True,)),
        ("INSERT INTO acct VALUES (9, 1, 42); DELETE FROM acct WHERE id = 9", 43, (True,)),
        ("INSERT INTO acct VALUES (9, 1, 42); DELETE FROM acct WHERE id = 9", 41, "LF001"),
    ],
)
def test_fenced_upsert_waits_for_a_deletion(acct, connect, deleting, fence, told):
    """It is an error only where there was no row, with a newer fence, before it waited."""
    stale, watcher, answers, key = connect(), connect(), [], 9 if "(9" in deleting else 8
    acct.execute(f"BEGIN; SELECT fence_use(42); {deleting}")
    if key == 8:
        assert stale.execute("SELECT fenced_upsert('acct', 8, 41, '{\"bal\": 1}')").fetchone() == (False,), "the row is stale as it stands"

    def call():
        try:
            answers.append(stale.execute("SELECT fenced_upsert('acct', %s, %s, '{\"bal\": 1}')", (key, fence)).fetchone())
        except psycopg.Error as error:
            answers.append(error.sqlstate)

    thread = threading.Thread(target=call)
    thread.start()
    eventually(lambda: watcher.execute(WAITS, (stale.info.backend_pid,)).fetchone(), (1,))
    acct.execute("COMMIT")
    thread.join(60)
    assert answers == [told]


@pytest.mark.parametrize("level", LEVELS)
def test_a_deletion_under_a_snapshot_notes_its_fence_over_an_older_one(acct, connect, level):
    """What another transaction has forgotten or noted since the snapshot does not matter."""
    assert under(acct, 50, do=["INSERT INTO acct VALUES (7, 1, 50)"]) == 1
    deleting = connect()
    deleting.execute(f"BEGIN ISOLATION LEVEL {level}; SELECT fence_use(50)")
    deleting.execute("SELECT count(*) FROM acct")
    acct.execute("SELECT fence_forget_deletions('acct', interval '0')")
    assert outcome(deleting, "DELETE FROM acct WHERE id = 7") == 1
    deleting.execute("COMMIT")
    assert acct.execute(REMEMBERED).fetchall() == [(7, 50)]


def test_two_deletions_of_different_keys_do_not_wait_for_each_other(acct, connect):
    acct.execute("INSERT INTO acct VALUES (9); SELECT * FROM fenced_claim(NULL::acct, 9, 42)")
    acct.execute("BEGIN; SELECT fenced_delete('acct', 8, 42)")
    other = connect()
    other.execute("SET lock_timeout = '5s'")
    assert other.execute("SELECT fenced_delete('acct', 9, 42)").fetchone() == (True,)
    acct.execute("COMMIT")
    assert acct.execute(REMEMBERED).fetchall() == [(7, 42), (8, 42), (9, 42)]


# --- The functions that insert.


def test_fenced_functions_that_insert_answer_stale(acct):
    claim = "SELECT * FROM fenced_claim_or_insert(NULL::acct, 7, %s, '{\"bal\": 1}')"
    upsert = "SELECT fenced_upsert('acct', 7, %s, '{\"bal\": 1}')"
    assert acct.execute(claim, (41,)).fetchall() == []
    assert acct.execute(upsert, (41,)).fetchone() == (False,)
    assert acct.execute("SELECT fenced_upsert('acct', '7', 41, '{\"bal\": 1}')").fetchone() == (False,)
    assert acct.execute("SELECT id FROM acct").fetchall() == [(8,)]
    counts = acct.execute("SELECT claims_stale, writes_stale, stored_fence_then FROM pg_stat_fence WHERE kind IS DISTINCT FROM 'other tables'").fetchall()
    assert counts in ([(1, 2, 42)], [(None,) * 3])
    assert acct.execute(claim, (42,)).fetchall() == [(7, 1, 42)]
    assert acct.execute("SELECT fenced_delete('acct', 7, 42)").fetchone() == (True,)
    acct.execute("SELECT fence_protect('acct', inserts => 'fenced')")
    assert acct.execute(upsert, (43,)).fetchone() == (True,)
    assert acct.execute("SELECT * FROM acct WHERE id = 7").fetchall() == [(7, 1, 43)]


def test_many_deletions_in_one_call_are_remembered(acct):
    acct.execute("INSERT INTO acct SELECT n FROM generate_series(100, 149) n; SELECT count(*) FROM fenced_claim_many(NULL::acct, ARRAY(SELECT generate_series(100, 149)), 50)")
    acct.execute("SELECT * FROM fenced_delete_many('acct', ARRAY(SELECT generate_series(100, 149)), ARRAY[50]::bigint[])")
    assert acct.execute("SELECT count(*), min(fence), max(fence) FROM acct_deletions WHERE id >= 100").fetchone() == (50, 50, 50)


# --- New rows that must carry a fence.


@pytest.fixture
def fenced(db):
    db.execute(f"{TABLE}; SELECT fence_protect('acct', inserts => 'fenced')")
    return db


def test_a_new_row_must_carry_a_fence_in_use(fenced):
    assert fenced.execute(SHOWN).fetchall() == [("acct", "fenced", "plain", None, [])]
    for declared, fence, answer in [((), 0, "LF003"), ((), 5, "LF003"), ((5,), 0, "LF003"), ((5,), 6, "LF003"), ((5,), -5, "LF003"), ((5,), 5, 1)]:
        assert (declared, fence, under(fenced, *declared, do=[f"INSERT INTO acct VALUES (1, 1, {fence})"])) == (declared, fence, answer)
    assert outcome(fenced, "INSERT INTO acct VALUES (2)") == "LF003"
    with pytest.raises(psycopg.Error, check=lambda error: error.sqlstate == "LF003"), fenced.cursor() as cursor, cursor.copy("COPY acct FROM STDIN") as copy:
        copy.write("2\t1\t0\n")
    assert fenced.execute("SELECT * FROM acct").fetchall() == [(1, 1, 5)]


def test_the_stale_holder_s_own_fence_is_in_use_all_the_same(fenced):
    """What the option does not do."""
    under(fenced, 42, do=["INSERT INTO acct VALUES (7, 70, 42)", "DELETE FROM acct WHERE id = 7"])
    assert under(fenced, 41, do=["INSERT INTO acct VALUES (7, 70, 41)"]) == 1


def test_what_needs_no_insert_passes_as_before(fenced):
    under(fenced, 5, do=["INSERT INTO acct VALUES (1, 1, 5)"])
    assert under(fenced, 5, do=["UPDATE acct SET bal = 2 WHERE id = 1"]) == 1
    assert fenced.execute("SELECT fenced_write('acct', 1, 6, '{\"bal\": 3}')").fetchone() == (True,)
    assert outcome(fenced, "INSERT INTO acct VALUES (1) ON CONFLICT DO NOTHING") == 0


# --- The options.


def test_null_keeps_the_options_and_plain_takes_them_away(db):
    db.execute(TABLE)
    plain, fenced, remembered, both = (
        ("acct", *options, []) for options in (("plain", "plain", None), ("fenced", "plain", None), ("plain", "remembered", "acct_deletions"), ("fenced", "remembered", "acct_deletions"))
    )
    for arguments, shown in [
        ("", plain),
        (", inserts => 'fenced'", fenced),
        ("", fenced),
        (", deletes => 'remembered'", both),
        (", NULL, NULL, NULL, NULL", both),
        (", inserts => 'plain'", remembered),
        ("", remembered),
        (", deletes => 'plain'", plain),
        ("", plain),
        (", 'fence', 'fenced', 'remembered', 'newest'", both),
        (", 'fence', 'plain', 'plain', 'plain'", plain),
    ]:
        assert db.execute(f"SELECT fence_protect('acct'{arguments})").fetchone() == (1,)
        assert (arguments, db.execute(SHOWN).fetchall()) == (arguments, [shown])
        assert db.execute("SELECT to_regclass('acct_deletions')::text").fetchone() == (shown[3],)
    assert db.execute("SELECT count(*) FROM pg_trigger WHERE tgrelid = 'acct'::regclass").fetchone() == (4,)


@pytest.mark.parametrize("option, other", [("inserts", "fenced"), ("deletes", "remembered"), ("replicated", "newest")])
def test_another_value_is_an_error_and_changes_nothing(db, option, other):
    db.execute(f"{TABLE}; SELECT fence_protect('acct', {option} => '{other}')")
    shown = db.execute(SHOWN).fetchall()
    for value in ("", "PLAIN", "none", f"{other} "):
        refused = refusal(db, f"SELECT fence_protect('acct', {option} => '{value}')")
        assert (refused.sqlstate, refused.diag.constraint_name) == ("0A000", "option_not_supported")
        assert refused.diag.message_primary == f"fence_protect() does not support {option} => '{value}'"
        assert refused.diag.message_hint == f"Leave the argument out, or pass 'plain' or '{other}'."
    assert db.execute(SHOWN).fetchall() == shown


HOLES = {
    "ALTER TABLE acct DISABLE TRIGGER fence_protect_deletions_delete": ["remembered DELETE: trigger fence_protect_deletions_delete is disabled"],
    "DROP TRIGGER fence_protect_deletions_insert ON acct": ["remembered INSERT: no trigger"],
    "ALTER TRIGGER fence_protect_deletions_insert ON acct RENAME TO other": [],
    "ALTER TABLE acct ENABLE REPLICA TRIGGER fence_protect_deletions_update": [
        "remembered UPDATE: trigger fence_protect_deletions_update does not fire at this session_replication_role"
    ],
    "CREATE OR REPLACE TRIGGER fence_protect_deletions_delete AFTER DELETE ON acct FOR EACH ROW WHEN (OLD.id > 7) EXECUTE FUNCTION fence_internals.remember()": [
        "remembered DELETE: trigger fence_protect_deletions_delete is not as fence_protect() makes it"
    ],
    "CREATE OR REPLACE TRIGGER fence_protect_deletions_delete AFTER DELETE ON acct FOR EACH ROW WHEN (fence_internals.has_key('acct_deletions', OLD.bal, OLD.id)) EXECUTE FUNCTION fence_internals.remember()": [
        "remembered DELETE: trigger fence_protect_deletions_delete is not as fence_protect() makes it"
    ],
    "ALTER TABLE acct DROP CONSTRAINT acct_pkey, ADD PRIMARY KEY (bal)": ["remembered: the primary key has other columns"],
    "CREATE ROLE other; GRANT ALL ON SCHEMA public TO other; ALTER TABLE acct_deletions OWNER TO other": [
        "remembered: table acct_deletions does not belong to the owner of the table"
    ],
    "CREATE OR REPLACE TRIGGER fence_protect_insert AFTER INSERT ON acct FOR EACH ROW WHEN (NEW.fence > 5) EXECUTE FUNCTION fence_internals.refuse()": [
        "INSERT: trigger fence_protect_insert is not as fence_protect() makes it"
    ],
}


def test_the_view_shows_what_leaves_deletions_unremembered_and_fence_protect_mends_it(acct):
    for hole, shown in HOLES.items():
        acct.execute("BEGIN")
        acct.execute(hole)
        assert (hole, acct.execute(SHOWN).fetchall()[0][4]) == (hole, shown)
        if "PRIMARY KEY" not in hole:
            acct.execute("SELECT fence_protect('acct')")
            assert (hole, acct.execute(SHOWN).fetchall()) == (hole, [("acct", "plain", "remembered", "acct_deletions", [])])
        acct.execute("ROLLBACK")


def test_a_trigger_that_was_altered_refuses(acct):
    acct.execute(next(hole for hole in HOLES if "OLD.id > 7" in hole))
    assert refusal(acct, "SELECT fenced_delete('acct', 8, 42)").diag.constraint_name == "trigger_altered"
    assert acct.execute("SELECT id FROM acct").fetchall() == [(8,)]
