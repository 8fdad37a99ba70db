"""Every refusal: its SQLSTATE, DETAIL and HINT, and that it changed nothing; then bad input for every argument."""

import pytest

from refusals import refusal

ROW_FUNCTIONS = {
    "fenced_claim": "SELECT * FROM fenced_claim({target}, {key}, {fence}, fence_column => {column})",
    "fenced_claim_or_insert": "SELECT * FROM fenced_claim_or_insert({target}, {key}, {fence}, {initial}, fence_column => {column})",
    "fenced_claim_json": "SELECT fenced_claim_json({target}, {key}, {fence}, fence_column => {column})",
    "fenced_claim_many": "SELECT * FROM fenced_claim_many({target}, {keys}, {fence}, fence_column => {column})",
    "fenced_update": "SELECT fenced_update({target}, {key}, {fence}, {patch}, fence_column => {column})",
    "fenced_update_returning": "SELECT * FROM fenced_update_returning({target}, {key}, {fence}, {patch}, fence_column => {column})",
    "fenced_write": "SELECT fenced_write({target}, {key}, {fence}, {patch}, fence_column => {column})",
    "fenced_upsert": "SELECT fenced_upsert({target}, {key}, {fence}, {patch}, fence_column => {column})",
    "fenced_delete": "SELECT fenced_delete({target}, {key}, {fence}, fence_column => {column})",
    "fence_reset": "SELECT fence_reset({target}, {key}, {fence}, fence_column => {column})",
}
BY_ROW_TYPE = ("fenced_claim", "fenced_claim_or_insert", "fenced_claim_many", "fenced_update_returning")
# A row that is not there is no error to them.
INSERTING = ("fenced_claim_or_insert", "fenced_upsert")


@pytest.fixture
def acct(db):
    """A connection to a table with one row that fence 33 has claimed."""
    db.execute("""CREATE TABLE acct (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, bal int NOT NULL DEFAULT 0,
        twice int GENERATED ALWAYS AS (bal * 2) STORED, no int GENERATED ALWAYS AS IDENTITY)""")
    db.execute("INSERT INTO acct (id, fence) VALUES (1, 33)")
    return db


def call(function, *, table="acct", key="1", keys="ARRAY[1]", fence="33", patch="'{\"bal\": 1}'", initial="'{}'", column="'fence'"):
    target = f"NULL::{table}" if function in BY_ROW_TYPE else f"'{table}'"
    if table == "NULL":
        target = "NULL::acct" if function in BY_ROW_TYPE else "NULL"
    return ROW_FUNCTIONS[function].format(target=target, key=key, keys=keys, fence=fence, patch=patch, initial=initial, column=column)


def everything(db):
    return db.execute("SELECT * FROM acct").fetchall()


def taking(argument):
    """The functions that take this argument."""
    return [name for name, sql in ROW_FUNCTIONS.items() if f"{{{argument}}}" in sql]


REFUSALS = {
    "unclaimed": (
        call("fenced_update", fence="34"),
        "LF002",
        'fence 34 has not claimed this row of table "acct"',
        "Key (id)=(1) has the older fence 33.",
        "Claim the row with fence 34, read it again, then write.",
    ),
    "missing": (
        call("fenced_update", key="9"),
        "P0002",
        'table "acct" has no such row',
        "Key (id)=(9) does not exist, or a row-security policy hides it from the caller.",
        "Insert the row, then claim it, or call fenced_claim_or_insert().",
    ),
    "missing, and the key looks like a fence": (
        call("fenced_claim", key="1795968243472377", fence="1"),
        "P0002",
        'table "acct" has no such row',
        "Key (id)=(1795968243472377) does not exist, or a row-security policy hides it from the caller.",
        "Key and fence may be swapped. Pass the key before the fence.",
    ),
    "fence null": (
        call("fenced_claim", fence="NULL"),
        "LF005",
        "the fence is null",
        "A fence is an integer from 1 to 9007199254740991.",
        "Pass the fence that the lock was granted with.",
    ),
    "fence zero": (
        call("fenced_claim", fence="0"),
        "LF005",
        "fence 0 is out of range",
        "A fence is an integer from 1 to 9007199254740991.",
        "Pass the fence that the lock was granted with.",
    ),
    "fence above the protocol": (
        call("fenced_claim", fence="9007199254740992"),
        "LF005",
        "fence 9007199254740992 is out of range",
        "A fence is an integer from 1 to 9007199254740991.",
        "Pass the fence that the lock was granted with.",
    ),
    "no fence column": (
        call("fenced_claim", column="'nosuch'"),
        "42703",
        'table "acct" has no fence column "nosuch"',
        None,
        "Add one (ALTER TABLE ... ADD COLUMN fence bigint NOT NULL DEFAULT 0), or name the column that holds the fence "
        "with fence_column => '...'. The owner of a fence is passed behind that name.",
    ),
    "key of another type": (
        call("fenced_claim", key="'2020-01-01'::date"),
        "42804",
        'a key of type date does not fit column "id" of type integer',
        'The primary key of table "acct" is (id).',
        "Cast the key to the type of the column.",
    ),
    "patch that is no object": (
        call("fenced_update", patch="'[]'"),
        "22023",
        "the patch is a JSON array, not a JSON object",
        None,
        "Pass an object of column names and their new values.",
    ),
    "patch that is empty": (
        call("fenced_update", patch="'{}'"),
        "22023",
        "the patch names no column",
        None,
        "Name the columns to change. To stamp the fence alone, claim the row.",
    ),
    "unknown column": (
        call("fenced_update", patch="'{\"Bal\": 1}'"),
        "42703",
        'column "Bal" of table "acct" does not exist',
        None,
        "Names match exactly, in upper and lower case.",
    ),
    "key in the patch": (
        call("fenced_update", patch="'{\"id\": 2}'"),
        "22023",
        'the patch may not change key column "id" of table "acct"',
        None,
        "Leave the key out of the patch. To give the row another key, delete and insert it.",
    ),
    "fence in the patch": (
        call("fenced_update", patch="'{\"fence\": 2}'"),
        "22023",
        'the patch may not change fence column "fence" of table "acct"',
        None,
        "Leave it out of the patch: a claim or a fenced write stamps the fence.",
    ),
    "generated column in the patch": (
        call("fenced_update", patch="'{\"twice\": 2}'"),
        "428C9",
        'the patch may not change generated column "twice" of table "acct"',
        None,
        "Leave it out of the patch: the server computes it.",
    ),
    "identity column in the patch": (
        call("fenced_update", patch="'{\"no\": 2}'"),
        "428C9",
        'the patch may not change identity column "no" of table "acct"',
        None,
        "Leave it out of the patch: it is GENERATED ALWAYS.",
    ),
    "initial row that is no object": (
        call("fenced_claim_or_insert", initial="'[]'"),
        "22023",
        "the initial row is a JSON array, not a JSON object",
        None,
        "Pass an object of column names and their values; {} has every column get its default.",
    ),
    "key in the initial row": (
        call("fenced_claim_or_insert", initial="'{\"id\": 1}'"),
        "22023",
        'the initial row may not set key column "id" of table "acct"',
        None,
        "Leave the key out of it: a new row gets the key that is passed before the fence.",
    ),
    "fence in the initial row": (
        call("fenced_claim_or_insert", initial="'{\"fence\": 33}'"),
        "22023",
        'the initial row may not set fence column "fence" of table "acct"',
        None,
        "Leave it out: a new row gets the fence that is passed.",
    ),
    "generated column in the initial row": (
        call("fenced_claim_or_insert", initial="'{\"twice\": 2}'"),
        "428C9",
        'the initial row may not set generated column "twice" of table "acct"',
        None,
        "Leave it out: the server computes it.",
    ),
    "identity column in the initial row": (
        call("fenced_claim_or_insert", initial="'{\"no\": 2}'"),
        "428C9",
        'the initial row may not set identity column "no" of table "acct"',
        None,
        "Leave it out: it is GENERATED ALWAYS.",
    ),
    "unknown column in the initial row": (
        call("fenced_claim_or_insert", initial="'{\"Bal\": 1}'"),
        "42703",
        'column "Bal" of table "acct" does not exist',
        None,
        "Names match exactly, in upper and lower case.",
    ),
    "no row type": (
        "SELECT fenced_claim(1, 1, 33)",
        "42809",
        "integer is not a table's row type",
        None,
        "Pass a null of the table's row type, as in NULL::counters.",
    ),
}


def test_a_refusal_says_what_is_wrong_and_what_to_do(acct):
    before = everything(acct)
    for sql, *expected in REFUSALS.values():
        refused = refusal(acct, sql)
        diag = refused.diag
        assert [refused.sqlstate, diag.message_primary, diag.message_detail, diag.message_hint] == expected
    assert everything(acct) == before


def test_a_refusal_about_a_table_names_it_in_its_fields(acct):
    refused = refusal(acct, call("fenced_update", patch="'{\"nosuch\": 1}'"))
    assert (refused.diag.schema_name, refused.diag.table_name, refused.diag.column_name) == ("public", "acct", "nosuch")


def test_the_table_itself_must_fit(acct):
    acct.execute("CREATE TABLE keyless (id int, fence bigint)")
    acct.execute("CREATE TABLE deferred (id int PRIMARY KEY DEFERRABLE, fence bigint)")
    acct.execute("CREATE TABLE stamped_key (fence bigint PRIMARY KEY)")
    acct.execute("CREATE TABLE computed (id int PRIMARY KEY, a int, fence bigint GENERATED ALWAYS AS (a) STORED)")
    acct.execute("CREATE TABLE identity (id int PRIMARY KEY, fence bigint GENERATED ALWAYS AS IDENTITY)")
    for table, sqlstate, words in (
        ("keyless", "55000", "has no primary key"),
        ("deferred", "55000", "has a deferrable primary key"),
        ("stamped_key", "55000", "is part of the primary key"),
        ("computed", "55000", "is a generated column"),
        ("identity", "55000", "is an identity column"),
    ):
        refused = refusal(acct, call("fenced_claim", table=table))
        assert refused.sqlstate == sqlstate
        assert words in refused.diag.message_primary
        assert refused.diag.message_hint


def test_a_primary_key_without_overlaps_is_refused(acct, pg):
    if pg.major < 18:
        return  # such keys are new in version 18
    acct.execute("CREATE EXTENSION btree_gist")
    acct.execute("CREATE TABLE stays (room int, during tsrange, fence bigint, PRIMARY KEY (room, during WITHOUT OVERLAPS))")
    refused = refusal(acct, "SELECT fenced_claim_json('stays', ROW(1, 'empty'::tsrange), 5)")
    assert (refused.sqlstate, refused.diag.message_primary) == ("55000", 'table "stays" has a primary key WITHOUT OVERLAPS')


KINDS = {
    "a view": "CREATE VIEW other AS SELECT * FROM acct",
    "a materialized view": "CREATE MATERIALIZED VIEW other AS SELECT * FROM acct",
    "a sequence": "CREATE SEQUENCE other",
    "an index": "CREATE INDEX other ON acct (bal)",
    "a composite type": "CREATE TYPE other AS (id int, fence bigint)",
}


def test_what_is_no_table_is_refused_by_kind(acct):
    before = everything(acct)
    for kind, create in KINDS.items():
        with acct.transaction(force_rollback=True):
            acct.execute(create)
            function = "fenced_claim" if kind == "a composite type" else "fenced_update"
            refused = refusal(acct, call(function, table="other"))
            assert (refused.sqlstate, refused.diag.message_primary) == ("42809", f'"other" is {kind}')
            assert refused.diag.message_hint
    assert everything(acct) == before


def test_a_foreign_table_is_refused_by_kind(acct):
    acct.execute("CREATE FOREIGN DATA WRAPPER nowhere; CREATE SERVER nowhere FOREIGN DATA WRAPPER nowhere")
    acct.execute("CREATE FOREIGN TABLE other (id int, fence bigint) SERVER nowhere")
    assert refusal(acct, call("fenced_claim", table="other")).diag.message_primary == '"other" is a foreign table'


def test_a_system_catalog_is_refused(acct):
    assert refusal(acct, call("fenced_delete", table="pg_catalog.pg_class")).sqlstate == "42809"


def test_an_oid_that_names_no_relation_is_refused(acct):
    assert refusal(acct, "SELECT fenced_delete(4000000000::oid::regclass, 1, 33)").sqlstate == "42P01"


def test_a_null_argument_is_refused_by_name(acct):
    names = {"table": "target", "key": "key", "keys": "keys", "patch": "patch", "initial": "initial", "column": "fence_column"}
    before = everything(acct)
    for argument, name in names.items():
        functions = taking("target" if argument == "table" else argument)
        for function in functions:
            if argument == "table" and function in BY_ROW_TYPE:
                continue  # there a null is what is passed
            refused = refusal(acct, call(function, **{argument: "NULL"}))
            said = (function, refused.sqlstate, refused.diag.message_primary)
            assert said == (function, "22004", f'argument "{name}" must not be null')
    assert everything(acct) == before


def test_a_row_type_that_another_session_dropped_before_the_first_call_is_an_error_of_its_own(acct, connect):
    with connect(autocommit=False) as session:
        session.execute("DECLARE c CURSOR FOR SELECT fenced_claim(NULL::acct, 1, 34)")
        acct.execute("DROP TABLE acct")
        error = refusal(session, "FETCH FROM c")
    assert (error.sqlstate, error.diag.message_primary) == ("0A000", "cached plan must not change result type")
    assert "its table has been dropped" in error.diag.message_detail



BAD_FENCES = ("NULL", "0", "-1", "-9223372036854775808", "9007199254740991", "9007199254740992", "9223372036854775807")


@pytest.mark.parametrize("function", ROW_FUNCTIONS)
def test_a_fence_out_of_range_is_refused_by_every_function(acct, function):
    before = everything(acct)
    for fence in BAD_FENCES:
        if (function, fence) == ("fence_reset", "0"):
            continue  # there 0 means never claimed
        refused = refusal(acct, call(function, fence=fence))
        assert (fence, refused.sqlstate) == (fence, "LF005")
        assert "fence" in refused.diag.message_primary
        assert refused.diag.message_detail and refused.diag.message_hint
    assert everything(acct) == before


BAD_KEYS = {
    "'one'": "22P02",
    "''": "22P02",
    "'1.5'": "22P02",
    "'99999999999999999999'": "22003",
    "1.5": "P0002",
    "99999999999999999999": "P0002",
    "'1'::uuid": "22P02",
    "true": "42804",
    "'x'::bytea": "42804",
    "now()": "42804",
    "ARRAY[1]": "42804",
    "ROW(1, 2)": "22023",
    "ROW(NULL)": "22004",
    "ROW()": "22023",
    "'{}'::jsonb": "22023",
    "'[1]'::jsonb": "22023",
    "'1'::jsonb": "22023",
    "'null'::jsonb": "22023",
    "'{\"id\": null}'::jsonb": "22004",
    "'{\"ID\": 1}'::jsonb": "22023",
    "'{\"id\": 1, \"bal\": 0}'::jsonb": "22023",
    "'{\"id\": 1.5}'::jsonb": "P0002",
    "'{\"id\": [1]}'::jsonb": "22P02",
}


@pytest.mark.parametrize("function", taking("key"))
def test_a_key_that_does_not_fit_is_refused(acct, function):
    before = everything(acct)
    # What no row of the table can be is not there, and cannot be inserted.
    expected = {key: "22023" if sqlstate == "P0002" and function in INSERTING else sqlstate for key, sqlstate in BAD_KEYS.items()}
    assert {key: refusal(acct, call(function, key=key)).sqlstate for key in BAD_KEYS} == expected
    assert everything(acct) == before


BAD_KEY_ARRAYS = {
    "1": "42804",
    "'1'": "22P02",
    "'{1'": "22P02",
    "ARRAY[1, NULL]": "22004",
    "'[1, null]'": "22004",
    "'{\"id\": 1}'::jsonb": "42804",
    "ARRAY[true]": "42804",
    "ARRAY['a']": "22P02",
    "ROW(1)": "42804",
}


def test_keys_that_are_no_array_of_keys_are_refused(acct):
    before = everything(acct)
    calls = {keys: call("fenced_claim_many", keys=keys, fence="40") for keys in BAD_KEY_ARRAYS}
    assert {keys: refusal(acct, sql).sqlstate for keys, sql in calls.items()} == BAD_KEY_ARRAYS
    assert everything(acct) == before


def test_an_error_about_an_element_names_its_place(acct):
    update = "SELECT * FROM fenced_update_many('acct', ARRAY[1, 2], ARRAY[40], {})".format
    messages = {
        call("fenced_claim_many", keys="'[1, null]'", fence="40"): 'element 2 of "keys": argument "key" must not be null',
        call("fenced_claim_many", keys="'[1, {\"no\": 1}]'", fence="40"): 'element 2 of "keys": the primary key has no column "no"',
        call("fenced_claim_many", keys="ARRAY[1, 99]", fence="40"): 'element 2 of "keys": table "acct" has no such row',
        update("'[{\"bal\": 1}, {}]'"): 'element 2 of "patches": the patch names no column',
    }
    assert {sql: refusal(acct, sql).diag.message_primary for sql in messages} == messages
    contexts = {
        call("fenced_claim_many", keys="ARRAY['1', 'x']", fence="40"): 'key column "id"\nargument "keys", element 2',
        call("fenced_claim_many", keys="'[1, \"x\"]'", fence="40"): 'key column "id"\nargument "keys", element 2',
        call("fenced_claim_many", keys="'{1,1,x}'", fence="40"): 'key column "id"\nargument "keys", element 3',
        update("'[{\"bal\": 1}, {\"bal\": \"x\"}]'"): 'column "bal"\nargument "patches", element 2',
    }
    assert {sql: (refusal(acct, sql).sqlstate, refusal(acct, sql).diag.context) for sql in contexts} == {
        sql: ("22P02", context) for sql, context in contexts.items()
    }


# What an operator chooses was granted to nobody: the error names the argument, and says what to choose.
CHOSEN = {
    "fence_guard_forget(NULL)": ('argument "older_than": the fence is null', "no holder can have any more"),
    "fence_guard_forget(0)": ('argument "older_than": fence 0 is out of range', "no holder can have any more"),
    "fence_guard_reset('r', NULL)": ('argument "new_fence": the fence is null', "Pass 0 for never stamped"),
    "fence_guard_reset('r', -1)": ('argument "new_fence": fence -1 is out of range', "Pass 0 for never stamped"),
    "fence_reset('acct', 1, NULL)": ('argument "new_fence": the fence is null', "Pass 0 for never stamped"),
    "fence_reset('acct', 1, -1)": ('argument "new_fence": fence -1 is out of range', "Pass 0 for never stamped"),
    "fence_reset('acct', 1, 9007199254740991)": ('argument "new_fence": fence 9007199254740991 is too far ahead of the clock', "Compare the clocks"),
    "fence_guard_evict('r', NULL)": ('argument "fence": the fence is null', "fence_guard_blockers"),
}


def test_an_error_about_a_fence_that_an_operator_chooses_names_the_argument(acct):
    for chosen, (message, hint) in CHOSEN.items():
        error = refusal(acct, f"SELECT {chosen}")
        assert (error.sqlstate, error.diag.message_primary) == ("LF005", message)
        assert hint in error.diag.message_hint and "was granted" not in error.diag.message_hint


BAD_PATCHES = {
    "'{}'": "22023",
    "'[]'": "22023",
    "'null'": "22023",
    "'1'": "22023",
    "'\"x\"'": "22023",
    "'true'": "22023",
    "'[{\"bal\": 1}]'": "22023",
    "'{'": "22P02",
    "'{\"nosuch\": 1}'": "42703",
    "'{\"BAL\": 1}'": "42703",
    "'{\"ctid\": \"(0,1)\"}'": "42703",
    "'{\"\": 1}'": "42703",
    "'{\"id\": 1}'": "22023",
    "'{\"fence\": 99}'": "22023",
    "'{\"fence\": null}'": "22023",
    "'{\"twice\": 9}'": "428C9",
    "'{\"no\": 9}'": "428C9",
    "'{\"bal\": null}'": "23502",
    "'{\"bal\": \"x\"}'": "22P02",
    "'{\"bal\": 1.5}'": "22P02",
    "'{\"bal\": 3000000000}'": "22003",
    "'{\"bal\": [1]}'": "22P02",
    "'{\"bal\": {}}'": "22P02",
    "'{\"bal\": true}'": "22P02",
    "'{\"bal\": 5, \"twice\": 9}'": "428C9",
}


@pytest.mark.parametrize("function", taking("patch"))
def test_a_patch_that_does_not_fit_is_refused(acct, function):
    before = everything(acct)
    assert {patch: refusal(acct, call(function, patch=patch)).sqlstate for patch in BAD_PATCHES} == BAD_PATCHES
    assert everything(acct) == before


# Those of a row that is not there: only then does NOT NULL say something of them.
BAD_INITIALS = {patch: sqlstate for patch, sqlstate in BAD_PATCHES.items() if patch not in ("'{}'", "'{\"bal\": null}'")}


@pytest.mark.parametrize("key", ["1", "2"])
def test_an_initial_row_that_does_not_fit_is_refused_whether_the_row_is_there_or_not(acct, key):
    before = everything(acct)
    calls = {initial: call("fenced_claim_or_insert", key=key, initial=initial) for initial in BAD_INITIALS}
    assert {initial: refusal(acct, sql).sqlstate for initial, sql in calls.items()} == BAD_INITIALS
    assert refusal(acct, call("fenced_claim_or_insert", key="2", initial="'{\"bal\": null}'")).sqlstate == "23502"
    assert everything(acct) == before


BAD_FENCE_COLUMNS = {
    "''": "42703",
    "'Fence'": "42703",
    "'xmin'": "42703",
    "'id'": "55000",
    "'twice'": "55000",
    "repeat('x', 99)::name": "42703",
}


@pytest.mark.parametrize("function", ROW_FUNCTIONS)
def test_a_fence_column_that_cannot_be_one_is_refused(acct, function):
    before = everything(acct)
    calls = {column: call(function, column=column) for column in BAD_FENCE_COLUMNS}
    assert {column: refusal(acct, sql).sqlstate for column, sql in calls.items()} == BAD_FENCE_COLUMNS
    assert everything(acct) == before


def test_errors_of_constraints_keep_the_names_that_clients_map(acct):
    acct.execute("ALTER TABLE acct ADD CONSTRAINT no_debt CHECK (bal >= 0)")
    refused = refusal(acct, call("fenced_update", patch="'{\"bal\": -1}'"))
    assert (refused.sqlstate, refused.diag.constraint_name, refused.diag.table_name) == ("23514", "no_debt", "acct")


def test_errors_of_a_users_trigger_arrive_as_they_were_raised(acct):
    acct.execute("""CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        RAISE 'not today' USING ERRCODE = 'ZZ123', DETAIL = 'a detail', HINT = 'a hint', CONSTRAINT = 'a name'; END $$""")
    acct.execute("CREATE TRIGGER refuse BEFORE UPDATE ON acct FOR EACH ROW EXECUTE FUNCTION refuse()")
    diag = refusal(acct, call("fenced_claim")).diag
    assert (diag.sqlstate, diag.message_primary) == ("ZZ123", "not today")
    assert (diag.message_detail, diag.message_hint, diag.constraint_name) == ("a detail", "a hint", "a name")


def test_thousands_of_refusals_leave_the_session_usable(acct):
    acct.execute("""DO $$ DECLARE caught int := 0; BEGIN
        FOR n IN 1..5000 LOOP
            BEGIN PERFORM fenced_update('acct', 1, 34, '{"bal": 1}');
            EXCEPTION WHEN SQLSTATE 'LF002' THEN caught := caught + 1; END;
        END LOOP;
        ASSERT caught = 5000; END $$""")
    assert acct.execute(call("fenced_update")).fetchone() == (True,)


SWAPPED = "Key and fence may be swapped. Pass the key before the fence."
INSERT_IT = "Insert the row, then claim it, or call fenced_claim_or_insert()."
CLOCK = "1795968243472377"


@pytest.mark.parametrize("function", [function for function in taking("key") if function not in INSERTING])
def test_a_missing_key_that_looks_like_a_fence_may_have_been_swapped(acct, function):
    for key_type in ("int", "bigint", "numeric", "text"):
        acct.execute(f"DROP TABLE IF EXISTS keyed; CREATE TABLE keyed (id {key_type} PRIMARY KEY, bal int, fence bigint)")
        keys = [CLOCK] if key_type == "int" else [CLOCK, f"'{CLOCK}'", f"'{CLOCK}'::text"]
        if key_type == "text":
            keys = keys[1:]
        assert {refusal(acct, call(function, table="keyed", key=key, fence="1")).diag.message_hint for key in keys} == {SWAPPED}
        key = "'7'" if key_type == "text" else "7"
        assert refusal(acct, call(function, table="keyed", key=key, fence=CLOCK)).diag.message_hint == INSERT_IT
        assert refusal(acct, call(function, table="keyed", key=keys[0], fence=CLOCK)).diag.message_hint == INSERT_IT


@pytest.mark.parametrize("keys", [f"ARRAY[{CLOCK}]", f"'[{CLOCK}]'"])
def test_so_may_a_key_among_many(acct, keys):
    acct.execute("CREATE TABLE keyed (id bigint PRIMARY KEY, fence bigint)")
    assert refusal(acct, call("fenced_claim_many", table="keyed", keys=keys, fence="1")).diag.message_hint == SWAPPED


def test_the_key_of_several_columns_is_never_taken_for_a_fence(acct):
    acct.execute("CREATE TABLE keyed (a bigint, b int, fence bigint, PRIMARY KEY (a, b))")
    assert refusal(acct, call("fenced_claim", table="keyed", key=f"ROW({CLOCK}, 1)", fence="1")).diag.message_hint == INSERT_IT
