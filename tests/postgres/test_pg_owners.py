"""A fence that knows its owner: the same number of somebody else is refused at rows, whoever issued it twice."""

import random

import psycopg
import pytest
from majors import others_in_long_runs
from seeds import seed

from refusals import refusal
from test_pg_guard import Waiting

HINT = (
    "Pass the owner that acquired the lock with this fence. If it was passed, the lock server has lost its state and has issued "
    "the fence twice: roll back, raise its fences, and take the lock again."
)
PATCH = "'{\"bal\": 1}'"
# Each function on a row, with what follows its fence.
CALLS = {
    "claim": "SELECT fence FROM fenced_claim(NULL::acct, {key}, {fence}{more})",
    "claim_json": "SELECT fenced_claim_json('acct', {key}, {fence}{more})->>'fence'",
    "update": "SELECT fenced_update('acct', {key}, {fence}, {patch}{more})",
    "update_returning": "SELECT fence FROM fenced_update_returning(NULL::acct, {key}, {fence}, {patch}{more})",
    "claim_or_insert": "SELECT fence FROM fenced_claim_or_insert(NULL::acct, {key}, {fence}, {patch}{more})",
    "upsert": "SELECT fenced_upsert('acct', {key}, {fence}, {patch}{more})",
    "write": "SELECT fenced_write('acct', {key}, {fence}, {patch}{more})",
    "delete": "SELECT fenced_delete('acct', {key}, {fence}{more})",
}
INSERTING = ("claim_or_insert", "upsert")
STAMPING = ("claim", "claim_json", "write", *INSERTING)


@pytest.fixture
def acct(db):
    """A connection to a table with one row that fence 33 of owner a has claimed."""
    db.execute("CREATE TABLE acct (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, fence_owner text, bal int)")
    db.execute("INSERT INTO acct VALUES (1, 33, 'a', 0)")
    return db


def call(name, fence=33, owner=None, key="1", column=None):
    """A call of a function with an owner, or without one."""
    more = "" if owner is None else f", 'fence', {owner}" + (f", '{column}'" if column else "")
    return CALLS[name].format(key=key, fence=fence, patch=PATCH, more=more)


def everything(db):
    return db.execute("SELECT * FROM acct ORDER BY id").fetchall()


def said(error):
    return error.sqlstate, error.diag.message_primary, error.diag.message_detail, error.diag.message_hint, error.diag.constraint_name


def duplicate(owner='owner "a"', fence=33):
    message = f'fence {fence} of this row of table "acct" is another owner\'s'
    return "LF007", message, f"Key (id)=(1) has this fence of {owner}.", HINT, "fence_duplicate"


def fold(db, name):
    """Makes a collation to which a and A are equal, if the server can."""
    try:
        db.execute(f"CREATE COLLATION {name} (PROVIDER = icu, LOCALE = 'und-u-ks-level1', DETERMINISTIC = false)")
        return True
    except psycopg.errors.FeatureNotSupported:
        return False


@others_in_long_runs
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("owner", ["'b'", "'A'", "'a '", "'a'::text || chr(769)", None])
def test_an_equal_fence_of_another_owner_is_refused_and_changes_nothing(acct, name, owner):
    for key in ("1", "'1'"):
        assert said(refusal(acct, call(name, owner=owner, key=key))) == duplicate()
    assert everything(acct) == [(1, 33, "a", 0)]
    counted = acct.execute("SELECT duplicate_fence, claims, claims_stale, writes, writes_stale FROM pg_stat_fence WHERE kind = 'table'").fetchall()
    assert counted in ([(2, 0, 0, 0, 0)], []), "nothing is counted where there is no memory for it"


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("column", [None, "fence_owner"])
def test_its_owner_goes_on_with_an_equal_fence(acct, name, column):
    assert acct.execute(call(name, owner="'a'", column=column)).fetchone()[0] in (True, 33, "33")
    assert [row[:3] for row in everything(acct)] == ([] if name == "delete" else [(1, 33, "a")])


@pytest.mark.parametrize("name", CALLS)
def test_a_newer_fence_takes_the_row_whoever_had_it_and_an_older_one_is_stale(acct, name):
    stale = acct.execute(call(name, fence=32, owner="'b'")).fetchall()
    assert stale in ([(False,)], [(None,)], [])
    assert everything(acct) == [(1, 33, "a", 0)]
    if name in STAMPING:
        acct.execute(call(name, fence=34, owner="'b'"))
        assert everything(acct)[0][:3] == (1, 34, "b")
        acct.execute(call(name, fence=35))
        assert everything(acct)[0][:3] == (1, 35, None), "who does not say leaves nobody's fence"
    else:
        assert refusal(acct, call(name, fence=34, owner="'a'")).sqlstate == "LF002"
        assert everything(acct) == [(1, 33, "a", 0)]


@others_in_long_runs
@pytest.mark.parametrize("nobody, null", [("NULL", "DROP"), ("''", "DROP"), ("''", "SET")])
@pytest.mark.parametrize("name", CALLS)
def test_a_fence_of_nobody_is_anybodys_and_the_first_stamp_says_whose(acct, name, nobody, null):
    acct.execute(f"UPDATE acct SET fence_owner = {nobody}")
    acct.execute(f"ALTER TABLE acct ALTER fence_owner {null} NOT NULL")
    assert acct.execute(call(name, owner="'b'")).fetchone()[0] in (True, 33, "33")
    if name in STAMPING:
        assert everything(acct)[0][2] == "b"
        assert refusal(acct, call(name, owner="'c'")).sqlstate == "LF007"


@pytest.mark.parametrize("name", CALLS)
def test_who_says_no_owner_may_write_what_is_nobodys(acct, name):
    for nobody in ("NULL", "''"):
        with acct.transaction(force_rollback=True):
            acct.execute(f"UPDATE acct SET fence_owner = {nobody}")
            assert acct.execute(call(name)).fetchone()[0] in (True, 33, "33")


def test_a_column_that_is_never_null_keeps_nobody_as_an_empty_text(acct):
    acct.execute("ALTER TABLE acct ALTER fence_owner SET DEFAULT '', ALTER fence_owner SET NOT NULL; INSERT INTO acct (id) VALUES (2)")
    acct.execute(call("claim", fence=5, key="2"))
    acct.execute(call("claim", fence=5, owner="'b'", key="2"))
    assert refusal(acct, call("claim", fence=5, key="2")).sqlstate == "LF007"
    acct.execute(call("claim", fence=6, key="2"))
    acct.execute("SELECT fence_reset('acct', 1, 0)")
    assert [row[:3] for row in everything(acct)] == [(1, 0, ""), (2, 6, "")]


def test_a_table_without_the_column_needs_no_owner_and_refuses_one(acct):
    acct.execute("ALTER TABLE acct DROP fence_owner")
    for name in CALLS:
        assert said(refusal(acct, call(name, owner="'a'"))) == (
            "42703",
            'table "acct" has no owner column "fence_owner"',
            None,
            "Add one (ALTER TABLE ... ADD COLUMN fence_owner text), or name the column that keeps the owner with owner_column => '...'.",
            "no_owner_column",
        )
        assert refusal(acct, call(name, owner="'a'", column="nosuch")).diag.message_primary == 'table "acct" has no owner column "nosuch"'
    assert acct.execute(call("claim")).fetchall() == [(33,)]


def test_the_column_follows_the_name_of_the_fence_column(acct):
    acct.execute("ALTER TABLE acct ADD lease bigint, ADD lease_owner text, ADD other text")
    claim = "SELECT FROM fenced_claim(NULL::acct, 1, {}, 'lease', {})"
    acct.execute(claim.format(7, "'b'"))
    assert refusal(acct, claim.format(7, "'c'")).sqlstate == "LF007"
    assert acct.execute("SELECT fence, fence_owner, lease, lease_owner FROM acct").fetchall() == [(33, "a", 7, "b")]
    acct.execute(claim.format(8, "'c', 'other'"))
    assert refusal(acct, claim.format(8, "'d', 'other'")).sqlstate == "LF007"
    assert acct.execute("SELECT lease, lease_owner, other FROM acct").fetchall() == [(8, "b", "c")]


BAD = {
    "null": ("NULL", None, "22004", 'argument "owner" must not be null', "null_argument"),
    "null column": ("'a', NULL", None, "22004", 'argument "owner_column" must not be null', "null_argument"),
    "empty": ("''", None, "22023", "owner must have 1 to 512 bytes, not 0", "argument_length"),
    "long": ("repeat('é', 257)", None, "22023", "owner must have 1 to 512 bytes, not 514", "argument_length"),
    "key": ("'a'", "name", "55000", 'owner column "name" of table "acct" is part of the primary key', "owner_column_unusable"),
    "generated": ("'a'", "made", "55000", 'owner column "made" of table "acct" is a generated column', "owner_column_unusable"),
    "fence": ("'a'", "fence", "42804", 'owner column "fence" of table "acct" has type bigint', "owner_column_type"),
    "padded": ("'a'", "padded", "42804", 'owner column "padded" of table "acct" has type character', "owner_column_type"),
    "uuid": ("'a'", "id", "42804", 'owner column "id" of table "acct" has type uuid', "owner_column_type"),
    "bytes": ("'a'", "raw", "42804", 'owner column "raw" of table "acct" has type bytea', "owner_column_type"),
    "name": ("'a'", "named", "42804", 'owner column "named" of table "acct" has type name', "owner_column_type"),
    "short": ("'abcd'", "short", "22001", 'owner column "short" of table "acct" has room for 3 characters, not for 4', "owner_column_room"),
    "short, spaces": ("'abc '", "short", "22001", 'owner column "short" of table "acct" has room for 3 characters, not for 4', "owner_column_room"),
    "short domain": ("'abc '", "tight", "22001", 'owner column "tight" of table "acct" has room for 3 characters, not for 4', "owner_column_room"),
    "system": ("'a'", "ctid", "42703", 'table "acct" has no owner column "ctid"', "no_owner_column"),
}
MANY = """CREATE DOMAIN tight AS varchar(3); CREATE TABLE acct (name text, fence bigint NOT NULL DEFAULT 0, fence_owner text, bal int,
    made text GENERATED ALWAYS AS (name) STORED, padded char(9), id uuid, raw bytea, named name, short varchar(3), tight tight, PRIMARY KEY (name));
    INSERT INTO acct (name, fence) VALUES ('1', 33)"""


@pytest.mark.parametrize("bad", BAD)
def test_bad_owners_and_columns_are_refused_by_name_and_change_nothing(db, bad):
    db.execute(MANY)
    before = everything_of(db)
    owner, column, sqlstate, message, word = BAD[bad]
    for name in CALLS:
        error = refusal(db, call(name, owner=owner, column=column, key="'1'"))
        assert (error.sqlstate, error.diag.message_primary, error.diag.constraint_name) == (sqlstate, message, word)
    assert everything_of(db) == before


def everything_of(db):
    return db.execute("SELECT * FROM acct").fetchall()


def test_an_owner_fits_where_it_comes_back_as_it_was(db):
    db.execute(MANY)
    db.execute("CREATE DOMAIN who AS text CHECK (VALUE <> 'eve'); ALTER TABLE acct ADD who who, ADD long varchar(512), ADD free varchar")
    for fence, (column, owner) in enumerate([("short", "abc"), ("tight", "ä¼ "), ("who", "bob"), ("long", "x" * 512), ("free", "y " * 256)], 40):
        db.execute("SELECT FROM fenced_claim(NULL::acct, '1', %s, 'fence', %s, %s)", (fence, owner, column))
        assert db.execute(f"SELECT {column}::text FROM acct").fetchall() == [(owner,)]
        db.execute("SELECT fenced_update('acct', '1', %s, '{}', 'fence', %s, %s)".replace("{}", '{"bal": 2}'), (fence, owner, column))
    assert refusal(db, "SELECT FROM fenced_claim(NULL::acct, '1', 99, 'fence', 'eve', 'who')").sqlstate == "23514"


def test_a_type_that_folds_owners_is_refused(acct):
    if not acct.execute("SELECT FROM pg_available_extensions WHERE name = 'citext'").fetchone():
        return  # this build of the server comes without it
    acct.execute("CREATE EXTENSION citext; ALTER TABLE acct ALTER fence_owner TYPE citext")
    assert refusal(acct, call("claim", owner="'A'")).diag.message_primary == 'owner column "fence_owner" of table "acct" has type citext'
    assert acct.execute(call("claim")).fetchall() == [(33,)], "no owner column, so nobody keeps owners"


def test_owners_are_compared_by_their_bytes_whatever_the_collation(acct):
    if not fold(acct, "folding"):
        return  # this build of the server knows no such collation
    acct.execute("ALTER TABLE acct ALTER fence_owner TYPE text COLLATE folding")
    assert acct.execute("SELECT fence_owner = 'A' FROM acct").fetchone() == (True,)
    for name in CALLS:
        assert said(refusal(acct, call(name, owner="'A'"))) == duplicate()
    acct.execute("UPDATE acct SET fence_owner = chr(8203)")
    assert refusal(acct, call("claim")).sqlstate == "LF007", "an owner of ignorable characters is one"
    assert refusal(acct, call("claim", owner="'A'")).sqlstate == "LF007"


def test_a_patch_may_not_name_the_column_of_the_owner(acct):
    for more in ("", ", 'fence', 'a'", ", 'fence', 'a', 'fence_owner'"):
        for function in ("fenced_update", "fenced_write"):
            error = refusal(acct, f"SELECT {function}('acct', 1, 33, '{{\"fence_owner\": \"b\"}}'{more})")
            assert said(error) == (
                "22023",
                'the patch may not change owner column "fence_owner" of table "acct"',
                None,
                "Leave it out of the patch: a claim or a fenced write stores the owner.",
                "patch_column_owner",
            )
    assert everything(acct) == [(1, 33, "a", 0)]


@pytest.mark.parametrize("name", INSERTING)
def test_a_row_that_is_inserted_has_the_owner_of_the_call(acct, name):
    acct.execute(call(name, fence=5, owner="'b'", key="2"))
    assert refusal(acct, call(name, fence=5, owner="'c'", key="2")).sqlstate == "LF007"
    acct.execute("ALTER TABLE acct ALTER fence_owner SET DEFAULT 'somebody'")
    acct.execute(call(name, fence=6, key="3"))
    acct.execute("ALTER TABLE acct ALTER fence_owner SET DEFAULT ''; UPDATE acct SET fence_owner = COALESCE(fence_owner, ''); ALTER TABLE acct ALTER fence_owner SET NOT NULL")
    acct.execute(call(name, fence=7, key="4"))
    assert everything(acct) == [(1, 33, "a", 0), (2, 5, "b", 1), (3, 6, "", 1), (4, 7, "", 1)]
    error = refusal(acct, call(name, fence=5, owner="'b'", key="5").replace("bal", "fence_owner"))
    told = {"claim_or_insert": ("initial row may not set", "initial_column_owner"), "upsert": ("patch may not change", "patch_column_owner")}[name]
    assert (error.diag.message_primary, error.diag.constraint_name) == (f'the {told[0]} owner column "fence_owner" of table "acct"', told[1])


@pytest.mark.parametrize("name", INSERTING)
def test_an_owner_that_a_trigger_changes_in_a_new_row_is_refused(acct, name):
    acct.execute("CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.fence_owner := lower(NEW.fence_owner); RETURN NEW; END'")
    acct.execute("CREATE TRIGGER spoil BEFORE INSERT ON acct FOR EACH ROW EXECUTE FUNCTION spoil()")
    error = refusal(acct, call(name, fence=34, owner="'B'", key="2"))
    assert (error.sqlstate, error.diag.message_primary) == ("LF004", 'the owner of fence 34 was written to table "acct" but did not stay')
    acct.execute(call(name, fence=34, owner="'b'", key="2"))
    acct.execute(call(name, fence=34, key="3"))
    assert everything(acct)[1:] == [(2, 34, "b", 1), (3, 34, None, 1)]


@pytest.mark.parametrize("name", INSERTING)
def test_the_second_of_two_inserters_with_one_fence_waits_and_is_refused(acct, connect, eventually, name):
    first, second = connect(), connect()
    first.execute("BEGIN")
    first.execute(call(name, owner="'a'", key="2"))
    waiting = Waiting(second, acct, eventually, call(name, owner="'b'", key="2"))
    assert waiting.still_waits
    first.execute("COMMIT")
    assert waiting.answer() == "LF007"
    assert everything(acct)[1:] == [(2, 33, "a", 1)]


@others_in_long_runs
@pytest.mark.parametrize("change", ["lower(NEW.fence_owner)", "OLD.fence_owner", "NULL"])
@pytest.mark.parametrize("name", STAMPING)
def test_an_owner_that_a_trigger_changes_is_refused(acct, name, change):
    acct.execute(f"CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.fence_owner := {change}; RETURN NEW; END'")
    acct.execute("CREATE TRIGGER spoil BEFORE UPDATE ON acct FOR EACH ROW EXECUTE FUNCTION spoil()")
    assert said(refusal(acct, call(name, fence=34, owner="'B'"))) == (
        "LF004",
        'the owner of fence 34 was written to table "acct" but did not stay',
        "Key (id)=(1) would have been left with another owner.",
        "Check the table's BEFORE triggers: one of them sets the owner column.",
        "owner_put_back",
    )
    assert everything(acct) == [(1, 33, "a", 0)]


def test_a_trigger_that_leaves_the_owner_is_none_of_ours(acct):
    acct.execute("CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'")
    acct.execute("CREATE TRIGGER keep BEFORE UPDATE ON acct FOR EACH ROW EXECUTE FUNCTION keep()")
    for name in CALLS:
        if name != "delete":
            acct.execute(call(name, owner="'a'"))
    acct.execute("UPDATE acct SET fence_owner = NULL")
    acct.execute(call("update", owner="'b'"))
    acct.execute(call("claim", fence=40))
    assert acct.execute("SELECT fence_reset('acct', 1, 33)").fetchone() == (40,)
    assert everything(acct) == [(1, 33, None, 1)]
    assert acct.execute(call("delete", owner="'b'")).fetchone() == (True,)


def test_a_reset_that_a_trigger_leaves_with_an_owner_is_refused(acct):
    acct.execute("CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.fence_owner := OLD.fence_owner; RETURN NEW; END'")
    acct.execute("CREATE TRIGGER keep BEFORE UPDATE ON acct FOR EACH ROW EXECUTE FUNCTION keep()")
    error = refusal(acct, "SELECT fence_reset('acct', 1, 7)")
    assert (error.sqlstate, error.diag.message_primary) == ("LF004", 'the owner of fence 7 was written to table "acct" but did not stay')
    assert everything(acct) == [(1, 33, "a", 0)]


def test_a_reset_clears_the_owner_of_the_column_that_it_names(acct):
    acct.execute("ALTER TABLE acct ADD other text; UPDATE acct SET other = 'b'")
    assert acct.execute("SELECT fence_reset('acct', 1, 30)").fetchone() == (33,)
    assert everything(acct) == [(1, 30, None, 0, "b")]
    assert acct.execute("SELECT fence_reset('acct', 1, 33, owner_column => 'other')").fetchone() == (30,)
    assert everything(acct) == [(1, 33, None, 0, None)]
    assert refusal(acct, "SELECT fence_reset('acct', 1, 33, owner_column => 'nosuch')").sqlstate == "42703"


def test_the_stored_owner_is_shown_only_to_who_could_read_it(acct):
    acct.execute("CREATE ROLE clerk; GRANT SELECT (id, fence, bal), UPDATE ON acct TO clerk; CREATE ROLE teller; GRANT SELECT, UPDATE, DELETE ON acct TO teller")
    update = call("update", owner="'b'")
    acct.execute(f"CREATE FUNCTION define() RETURNS bool SECURITY DEFINER LANGUAGE sql AS $$ {update} $$")
    try:
        acct.execute("SET ROLE teller")
        for name in CALLS:
            assert said(refusal(acct, call(name, owner="'b'"))) == duplicate()
        acct.execute("SET ROLE clerk")
        for name in ("update", "write"):
            assert refusal(acct, call(name, owner="'b'")).sqlstate == "42501"
        assert said(refusal(acct, "SELECT define()")) == duplicate("another owner")
    finally:
        acct.execute("RESET ROLE; DROP FUNCTION define(); DROP OWNED BY clerk, teller; DROP ROLE clerk, teller")


@pytest.mark.parametrize("policy", ["PERMISSIVE", "RESTRICTIVE"])
def test_a_policy_on_the_owner_stays_one(acct, policy):
    acct.execute("CREATE ROLE clerk; GRANT SELECT, UPDATE ON acct TO clerk; ALTER TABLE acct ENABLE ROW LEVEL SECURITY")
    if policy == "RESTRICTIVE":
        acct.execute("CREATE POLICY everybody ON acct USING (true)")
    acct.execute(f"CREATE POLICY p ON acct AS {policy} USING (fence_owner <> 'hidden') WITH CHECK (fence_owner <> 'hidden')")
    try:
        acct.execute("SET ROLE clerk")
        assert said(refusal(acct, call("claim", owner="'b'"))) == duplicate()
        assert refusal(acct, call("claim", fence=34, owner="'hidden'")).sqlstate == "42501"
        acct.execute("RESET ROLE; UPDATE acct SET fence_owner = 'hidden'; SET ROLE clerk")
        assert refusal(acct, call("claim", owner="'b'")).sqlstate == "P0002", "nothing is said of a row that is hidden"
    finally:
        acct.execute("RESET ROLE; DROP OWNED BY clerk; DROP ROLE clerk")


@pytest.mark.parametrize("name", STAMPING)
def test_the_second_of_two_holders_of_one_fence_waits_and_is_refused(acct, connect, eventually, name):
    acct.execute("UPDATE acct SET fence = 20, fence_owner = NULL")
    first, second = connect(), connect()
    first.execute("BEGIN")
    first.execute(call("claim", owner="'a'"))
    waiting = Waiting(second, acct, eventually, call(name, owner="'b'"))
    assert waiting.still_waits
    first.execute("COMMIT")
    assert waiting.answer() == "LF007"
    assert everything(acct) == [(1, 33, "a", 0)]


def test_the_second_goes_on_where_the_first_rolls_back(acct, connect, eventually):
    acct.execute("UPDATE acct SET fence = 20, fence_owner = NULL")
    first, second = connect(), connect()
    first.execute("BEGIN")
    first.execute(call("claim", owner="'a'"))
    waiting = Waiting(second, acct, eventually, call("claim", owner="'b'"))
    first.execute("ROLLBACK")
    assert waiting.answer() == "done"
    assert everything(acct) == [(1, 33, "b", 0)]


def test_the_owner_goes_with_its_row_between_partitions_and_under_triggers(db):
    db.execute("CREATE TABLE acct (id int, r int, fence bigint NOT NULL DEFAULT 0, fence_owner text, bal int, PRIMARY KEY (id, r)) PARTITION BY LIST (r)")
    db.execute("CREATE TABLE acct0 PARTITION OF acct FOR VALUES IN (0); CREATE TABLE acct1 (fence_owner varchar, bal int, r int NOT NULL, id int NOT NULL, fence bigint NOT NULL DEFAULT 0)")
    db.execute("ALTER TABLE acct1 ALTER fence_owner TYPE text; ALTER TABLE acct ATTACH PARTITION acct1 FOR VALUES IN (1); SELECT fence_protect('acct'); INSERT INTO acct VALUES (1, 0), (2, 1)")
    for r, number in enumerate((1, 2)):
        key = f"ROW({number}, {r})"
        assert db.execute(f"SELECT fence_owner FROM fenced_claim(NULL::acct, {key}, 5, 'fence', 'a')").fetchall() == [("a",)]
        for more in ("", ", 'fence', 'b'"):
            assert refusal(db, f"SELECT fenced_update('acct', {key}, 5, {PATCH}{more})").sqlstate == "LF007"
            assert refusal(db, f"SELECT fenced_delete('acct', {key}, 5{more})").sqlstate == "LF007"
        assert db.execute(f"SELECT fenced_write('acct', {key}, 5, {PATCH}, 'fence', 'a')").fetchone() == (True,)
        assert db.execute(f"SELECT fenced_delete('acct', {key}, 5, 'fence', 'a')").fetchone() == (True,)


def test_a_dropped_and_renamed_column_is_followed(acct):
    acct.execute(call("claim", owner="'a'"))
    acct.execute("ALTER TABLE acct RENAME fence_owner TO holder")
    assert refusal(acct, call("claim", owner="'a'")).sqlstate == "42703"
    assert refusal(acct, call("claim", owner="'b'", column="holder")).sqlstate == "LF007"
    acct.execute(call("claim"))
    acct.execute("ALTER TABLE acct ADD fence_owner varchar(64)")
    acct.execute(call("claim", owner="'c'"))
    assert refusal(acct, call("claim", owner="'b'")).sqlstate == "LF007"
    acct.execute("ALTER TABLE acct DROP fence_owner")
    assert refusal(acct, call("claim", owner="'c'")).sqlstate == "42703"
    assert acct.execute(call("claim")).fetchall() == [(33,)]


def test_what_is_planted_in_the_search_path_decides_nothing(acct):
    acct.execute("CREATE SCHEMA evil; CREATE FUNCTION evil.yes(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT true'")
    acct.execute("CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.yes); CREATE DOMAIN evil.text AS pg_catalog.int4")
    fold(acct, 'evil."C"')
    acct.execute("SET search_path = evil, pg_catalog, public")
    for name in ("claim", "update", "write", "delete"):
        planted = call(name, owner="'A'").replace("fenced_", "public.fenced_").replace("acct", "public.acct")
        assert refusal(acct, planted).sqlstate == "LF007"
    acct.execute("RESET search_path")
    assert everything(acct) == [(1, 33, "a", 0)]


def test_an_older_claim_of_another_owner_is_a_duplicate_in_another_life_too(acct):
    acct.execute(call("claim", owner="'a'"))
    acct.execute("SELECT fence_new_life()")
    assert refusal(acct, call("update", owner="'a'")).sqlstate == "LF006"
    assert refusal(acct, call("update", owner="'b'")).sqlstate == "LF007"
    acct.execute(call("claim", owner="'a'"))
    assert acct.execute(call("update", owner="'a'")).fetchone() == (True,)
    acct.execute(call("write", fence=34, owner="'b'"))
    assert everything(acct) == [(1, 34, "b", 1)]


@pytest.mark.parametrize("kind", ["text", "text NOT NULL DEFAULT ''", "varchar(9)", "text COLLATE \"C\""])
def test_random_calls_of_four_owners_agree_with_a_plain_account(db, kind):
    db.execute(f"CREATE TABLE acct (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, fence_owner {kind}, bal int); INSERT INTO acct (id) VALUES (1)")
    chance = random.Random(seed())
    fence, holder = 0, None
    for _ in range(300):
        name, number, owner = chance.choice([name for name in CALLS if name != "delete"]), chance.randint(1, 6), chance.choice(["a", "b", "A", None])
        if chance.random() < 0.05:
            fence, holder = 0, None
            db.execute("SELECT fence_reset('acct', 1, 0)")
        try:
            answer = db.execute(call(name, fence=number, owner=owner and f"'{owner}'")).fetchall()
            answer = bool(answer and answer[0][0])
        except psycopg.Error as error:
            answer = error.sqlstate
        if number < fence:
            expected = False
        elif number == fence and holder and owner != holder:
            expected = "LF007"
        elif number > fence and name not in STAMPING:
            expected = "LF002"
        else:
            expected = True
            if name in STAMPING:
                fence, holder = number, owner
        assert answer == expected, (name, number, owner, fence, holder)
        assert db.execute("SELECT fence, NULLIF(fence_owner, '') FROM acct").fetchall() == [(fence, holder)]


# --- Protected tables.


@pytest.fixture
def protected(acct):
    acct.execute("SELECT fence_protect('acct')")
    return acct


def plain(db, statement, *in_use):
    """What becomes of a plain write under declared fences: how many rows it wrote, or its refusal."""
    try:
        with db.transaction():
            for fence in in_use:
                db.execute("SELECT fence_use(%s, %s)" if len(fence) == 2 else "SELECT fence_use(%s)", fence)
            return db.execute(statement).rowcount
    except psycopg.Error as error:
        return error.diag.constraint_name


def test_the_triggers_name_the_column_of_the_owner(acct):
    shown = "SELECT fence_column, owner_column, open_by FROM fence_protected"
    acct.execute("SELECT fence_protect('acct')")
    assert acct.execute(shown).fetchall() == [("fence", "fence_owner", [])]
    acct.execute("ALTER TABLE acct RENAME fence_owner TO holder; SELECT fence_protect('acct')")
    assert acct.execute(shown).fetchall() == [("fence", "holder", [])]
    acct.execute("ALTER TABLE acct ADD other varchar(9); SELECT fence_protect('acct', owner_column => 'other')")
    assert acct.execute(shown).fetchall() == [("fence", "other", [])]
    assert refusal(acct, "SELECT fence_protect('acct', owner_column => 'nosuch')").sqlstate == "42703"
    assert refusal(acct, "SELECT fence_protect('acct', owner_column => 'bal')").sqlstate == "42804"
    assert acct.execute(shown).fetchall() == [("fence", "other", [])]
    acct.execute("CREATE OR REPLACE TRIGGER fence_protect_delete AFTER DELETE ON acct FOR EACH ROW WHEN (OLD.tableoid <> 0 AND fence_internals.refuses_delete(OLD.tableoid, OLD.ctid, OLD.xmin, OLD.fence, NULL)) EXECUTE FUNCTION fence_internals.refuse()")
    assert acct.execute(shown).fetchall() == [("fence", "other", ["DELETE: trigger fence_protect_delete is not as fence_protect() makes it"])]
    acct.execute("SELECT fence_protect('acct'); SELECT fence_unprotect('acct'); ALTER TABLE acct DROP other; SELECT fence_protect('acct')")
    assert acct.execute(shown).fetchall() == [("fence", None, [])]


@pytest.mark.parametrize(
    "column, is_one",
    [
        ("fence_owner text", True),
        ("fence_owner varchar(9) NOT NULL DEFAULT ''", True),
        ("fence_owner whose", True),
        ("fence_owner char(9)", False),
        ("fence_owner int", False),
        ("fence_owner text GENERATED ALWAYS AS ('a') STORED", False),
        ("fence_owner text DEFAULT 'a', DROP CONSTRAINT acct_pkey, ADD PRIMARY KEY (id, fence_owner)", False),
        ("holder text", False),
    ],
)
def test_an_owner_column_that_no_trigger_asks_is_listed(acct, column, is_one):
    """Calls that name no column keep owners there; plain SQL of another owner passes."""
    shown = "SELECT owner_column, open_by FROM fence_protected"
    acct.execute(f"CREATE DOMAIN who AS varchar(40); CREATE DOMAIN whose AS who; ALTER TABLE acct DROP fence_owner; SELECT fence_protect('acct'); ALTER TABLE acct ADD {column}")
    assert acct.execute(shown).fetchall() == [(None, ["no trigger asks for the owner in column fence_owner"] if is_one else [])]
    acct.execute("SELECT fence_protect('acct')")
    assert acct.execute(shown).fetchall() == [("fence_owner" if is_one else None, [])]


@pytest.mark.parametrize("kind", ["varchar", "varchar(600)", "who", "text COLLATE \"C\""])
def test_an_owner_column_of_any_type_is_recognised(acct, kind):
    acct.execute(f"CREATE DOMAIN who AS varchar(40); ALTER TABLE acct ALTER fence_owner TYPE {kind}; SELECT fence_protect('acct')")
    assert acct.execute("SELECT owner_column, open_by FROM fence_protected").fetchall() == [("fence_owner", [])]
    assert plain(acct, "UPDATE acct SET bal = 1", (33, "b")) == "plain_write_duplicate"
    assert plain(acct, "UPDATE acct SET bal = 1", (33, "a")) == 1


WRITES = ("UPDATE acct SET bal = 1", "DELETE FROM acct", "MERGE INTO acct USING (SELECT 1) AS s ON true WHEN MATCHED THEN UPDATE SET bal = 1")


@pytest.mark.parametrize("statement", WRITES)
def test_plain_sql_passes_with_the_owner_of_the_row(protected, statement):
    for in_use, expected in [
        ([], "plain_write_unfenced"),
        ([(33,)], "plain_write_duplicate"),
        ([(33, "b")], "plain_write_duplicate"),
        ([(33, "A"), (32, "a"), (34, "a")], "plain_write_duplicate"),
        ([(32, "a")], "plain_write_stale"),
        ([(34, "a")], "plain_write_unclaimed"),
    ]:
        assert plain(protected, statement, *in_use) == expected, in_use
        assert everything(protected) == [(1, 33, "a", 0)]
    assert plain(protected, statement, (33, "b"), (33, "a")) == 1


def test_a_row_of_nobody_is_written_under_its_fence(protected):
    protected.execute("SELECT fence_reset('acct', 1, 33)")
    for in_use in [(33,), (33, "b")]:
        assert plain(protected, "UPDATE acct SET bal = bal + 1", in_use) == 1
    assert everything(protected) == [(1, 33, None, 2)]


def test_a_plain_write_changes_neither_the_fence_nor_its_owner(protected):
    for owner in ("'b'", "NULL", "'A'"):
        assert plain(protected, f"UPDATE acct SET fence_owner = {owner}", (33, "a")) == "plain_write_changes_owner"
    assert plain(protected, "UPDATE acct SET fence_owner = 'b', fence = 34", (33, "a"), (34, "b")) == "plain_write_changes_fence"
    assert plain(protected, "UPDATE acct SET fence_owner = 'b'") == "plain_write_unfenced"
    assert plain(protected, "UPDATE acct SET fence_owner = 'a'", (33, "a")) == 1
    error = refusal(protected, "BEGIN; SELECT fence_use(33, 'a'); UPDATE acct SET fence_owner = 'b'")
    protected.execute("ROLLBACK")
    assert said(error) == (
        "LF003",
        'a plain write on protected table "acct" would change the owner of a fence',
        "Only claims, fenced writes and fence_reset() change it.",
        "Leave the owner column out of the statement.",
        "plain_write_changes_owner",
    )
    error = refusal(protected, "BEGIN; SELECT fence_use(33, 'b'); UPDATE acct SET bal = 1")
    protected.execute("ROLLBACK")
    assert said(error) == ("LF007", duplicate()[1], 'The row has this fence of owner "a".', f"Call fence_use() with the owner. {HINT}", "plain_write_duplicate")
    assert everything(protected) == [(1, 33, "a", 0)]


def test_a_new_row_has_the_owner_of_its_fence_or_nobody(protected):
    insert = "INSERT INTO acct VALUES ({}, {}, {}, 0)"
    assert plain(protected, insert.format(2, 40, "'b'"), (40, "a")) == "plain_write_duplicate"
    assert plain(protected, insert.format(2, 40, "'b'"), (40,)) == "plain_write_duplicate"
    assert plain(protected, insert.format(2, 41, "'a'"), (40, "a")) == "insert_fence_not_in_use"
    assert plain(protected, insert.format(2, 40, "'a'"), (40, "a")) == 1
    assert plain(protected, insert.format(3, 40, "NULL"), (40, "a")) == 1
    assert plain(protected, insert.format(4, 0, "'x'")) == 1


def test_the_functions_pass_the_triggers_with_their_owners(protected):
    for name in ("claim", "claim_json", "update", "update_returning", "write", "claim_or_insert", "upsert"):
        protected.execute(call(name, fence=34 if name in STAMPING else 33, owner="'b'" if name in STAMPING else "'a'"))
        protected.execute("SELECT fence_reset('acct', 1, 0)")
        protected.execute(call("claim", owner="'a'"))
    protected.execute(call("claim_or_insert", fence=5, owner="'c'", key="2"))
    protected.execute("SELECT FROM fenced_claim_many(NULL::acct, ARRAY[1, 2], 50, 'fence', 'd')")
    assert [row[:3] for row in everything(protected)] == [(1, 50, "d"), (2, 50, "d")]
    assert protected.execute(call("delete", fence=50, owner="'d'")).fetchone() == (True,)


def test_a_plain_move_between_partitions_keeps_the_owner(db):
    db.execute("CREATE TABLE acct (id int, r int, fence bigint NOT NULL DEFAULT 0, fence_owner text, bal int, PRIMARY KEY (id, r)) PARTITION BY LIST (r)")
    db.execute("CREATE TABLE acct0 PARTITION OF acct FOR VALUES IN (0); CREATE TABLE acct1 (fence_owner text, bal int, r int NOT NULL, id int NOT NULL, fence bigint NOT NULL DEFAULT 0)")
    db.execute("ALTER TABLE acct ATTACH PARTITION acct1 FOR VALUES IN (1); INSERT INTO acct VALUES (1, 0, 33, 'a', 0); SELECT fence_protect('acct')")
    assert db.execute("SELECT DISTINCT owner_column, open_by FROM fence_protected").fetchall() == [("fence_owner", [])]
    for change, told in [("fence_owner = 'b'", "plain_write_duplicate"), ("fence_owner = NULL", "plain_write_changes_fence"), ("fence = 34", "insert_fence_not_in_use")]:
        assert plain(db, f"UPDATE acct SET r = 1, {change}", (33, "a")) == told
    assert plain(db, "UPDATE acct SET r = 1", (33, "b")) == "plain_write_duplicate"
    assert plain(db, "UPDATE acct SET r = 1", (33, "a")) == 1
    assert plain(db, "UPDATE acct SET r = 0, bal = 5", (33, "a")) == 1
    assert db.execute("SELECT fenced_update('acct', ROW(1, 0), 33, '{\"bal\": 6}', 'fence', 'a')").fetchone() == (True,)
    assert db.execute("SELECT * FROM acct").fetchall() == [(1, 0, 33, "a", 6)]


def test_a_declared_owner_ends_with_its_savepoint_and_its_transaction(protected):
    update = "UPDATE acct SET bal = bal + 1"
    with protected.transaction():
        protected.execute("SAVEPOINT s; SELECT fence_use(33, 'a'); ROLLBACK TO s; SELECT fence_use(33, 'b'); SAVEPOINT t")
        assert refusal(protected, update).sqlstate == "LF007"
        protected.execute("ROLLBACK TO t; SAVEPOINT u; SELECT fence_use(33, 'a'); RELEASE u")
        assert protected.execute(update).rowcount == 1
    assert plain(protected, update) == "plain_write_unfenced"
    for bad, sqlstate in [("NULL", "22004"), ("''", "22023"), ("repeat('x', 513)", "22023")]:
        assert refusal(protected, f"BEGIN; SELECT fence_use(33, {bad})").sqlstate == sqlstate
        protected.execute("ROLLBACK")


def test_a_remembered_deletion_knows_no_owner(acct):
    """As the manual says: at an equal fence the second owner inserts again what the first has deleted."""
    acct.execute("SELECT fence_protect('acct', deletes => 'remembered'); SELECT fenced_delete('acct', 1, 33, 'fence', 'a')")
    assert plain(acct, "INSERT INTO acct VALUES (1, 32, 'b', 0)", (32, "b")) == "insert_stale"
    assert plain(acct, "INSERT INTO acct VALUES (1, 33, 'b', 0)", (33, "b")) == 1
