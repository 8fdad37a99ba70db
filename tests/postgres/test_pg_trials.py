"""Faults of other projects that no other file is about: what is counted, what is truncated, which names and calls meet."""

import psycopg
import pytest

from refusals import refused

CLAIM = "SELECT fence FROM fenced_claim(NULL::acct, %s, %s)"
UPDATE = "SELECT fenced_update('acct', 1, {}, '{{\"bal\": 11}}')"


@pytest.fixture
def acct(db):
    """A connection to a table with three rows, the first claimed with fence 5."""
    db.execute("CREATE TABLE acct (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, bal int NOT NULL DEFAULT 10)")
    db.execute("INSERT INTO acct (id) VALUES (1), (2), (3)")
    db.execute(CLAIM, (1, 5))
    return db


def test_statement_level_hole_truncate_right_after_an_accepted_write(acct):
    """The pass of a fenced function is for its own change alone; that of fence_use for rows that carry the fence."""
    acct.execute("SELECT fence_protect('acct'); CREATE TABLE child (id int REFERENCES acct)")
    for before in ["SELECT 1", "SELECT fence_use(5)"]:
        for write in [UPDATE.format(5), "SELECT fenced_write('acct', 2, 6, '{\"bal\": 1}')", "SELECT fenced_delete('acct', 1, 5)"]:
            for truncate in ["TRUNCATE acct, child", "TRUNCATE acct CASCADE"]:
                acct.execute("BEGIN")
                acct.execute(before)
                assert acct.execute(write).fetchone() == (True,)
                with refused("LF003"):
                    acct.execute(truncate)
                acct.execute("ROLLBACK")
    assert acct.execute("SELECT count(*) FROM acct").fetchone() == (3,)


def test_identifier_length_tables_with_a_long_common_beginning_keep_their_own_protection(acct):
    """No name that is made of the table's own is cut until it is another's."""
    begin = "a_rather_long_table_name_of_which_sixty_bytes_are_the_same__"
    assert len(begin) == 60
    acct.execute("CREATE SCHEMA one; CREATE SCHEMA two")
    tables = [f"{schema}.{begin}{end}" for schema in ("one", "two") for end in ("abc", "abd")]
    for table in tables:
        acct.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0); INSERT INTO {table} VALUES (1)")
        acct.execute(f"SELECT fence_protect('{table}')")
    acct.execute(f"SELECT fence_unprotect('{tables[0]}')")
    shown = acct.execute("SELECT target::text, open_by FROM fence_protected ORDER BY 1").fetchall()
    assert shown == [(table, []) for table in sorted(tables[1:])]
    assert acct.execute(f"DELETE FROM {tables[0]}").rowcount == 1
    for table in tables[1:]:
        with refused("LF003"):
            acct.execute(f"DELETE FROM {table}")


def test_unwritable_columns_a_serial_key_and_defaults(db):
    db.execute("CREATE TABLE tg (id serial PRIMARY KEY, base int DEFAULT 3, at timestamptz DEFAULT now(), fence bigint NOT NULL DEFAULT 0)")
    db.execute("INSERT INTO tg DEFAULT VALUES")
    assert db.execute("SELECT base, fence FROM fenced_claim(NULL::tg, 1, 5)").fetchone() == (3, 5)
    assert db.execute("SELECT fenced_update('tg', 1, 5, '{\"base\": 4}')").fetchone() == (True,)
    with refused("22023"):
        db.execute("SELECT fenced_write('tg', 1, 6, '{\"id\": 1, \"base\": 5}')")
    assert db.execute("SELECT id, base, fence FROM tg").fetchall() == [(1, 4, 5)]


# Every function with a parameter of the name `fence`, called with an older one than is stored: 7 in row 1 and in the guard.
OLDER = {
    "fenced_claim": ("SELECT * FROM fenced_claim(NULL::acct, {key}, 6)", []),
    "fenced_claim_or_insert": ("SELECT * FROM fenced_claim_or_insert(NULL::acct, {key}, 6, '{{\"bal\": 99}}')", []),
    "fenced_claim_json": ("SELECT fenced_claim_json('acct', {key}, 6)", [(None,)]),
    "fenced_claim_many": ("SELECT * FROM fenced_claim_many(NULL::acct, {keys}, 6)", []),
    "fenced_update": ("SELECT fenced_update('acct', {key}, 6, '{{\"bal\": 99}}')", [(False,)]),
    "fenced_update_returning": ("SELECT * FROM fenced_update_returning(NULL::acct, {key}, 6, '{{\"bal\": 99}}')", []),
    "fenced_write": ("SELECT fenced_write('acct', {key}, 6, '{{\"bal\": 99}}')", [(False,)]),
    "fenced_upsert": ("SELECT fenced_upsert('acct', {key}, 6, '{{\"bal\": 99}}')", [(False,)]),
    "fenced_delete": ("SELECT fenced_delete('acct', {key}, 6)", [(False,)]),
    "fenced_guard": ("DO $$ BEGIN PERFORM fenced_guard('acct', 6); END $$", "LF001"),
    # It ends nobody who has a newer one.
    "fence_guard_evict": ("SELECT fence_guard_evict('acct', 6)", [([],)]),
    "fence_use": ("BEGIN; SELECT fence_use(6); UPDATE acct SET bal = 99 WHERE id = 1", "LF001"),
}


def test_missing_check_every_function_that_takes_a_fence_refuses_an_older_one(acct):
    acct.execute("SELECT fence_protect('acct'); DO $$ BEGIN PERFORM fenced_guard('acct', 7); END $$")
    acct.execute(CLAIM, (1, 7))
    taking = acct.execute("SELECT DISTINCT proname FROM pg_proc WHERE proname ~ '^fenced?_' AND 'fence' = ANY (proargnames)").fetchall()
    assert {name for (name,) in taking} == set(OLDER)
    for name, (call, expected) in OLDER.items():
        for key, keys in [("1", "ARRAY[1]"), ("'1'", "'{1}'"), ("'{\"id\": 1}'::jsonb", "'[{\"id\": 1}]'::jsonb")]:
            try:
                seen = acct.execute(call.format(key=key, keys=keys)).fetchall()
            except psycopg.Error as error:
                seen = error.sqlstate
                acct.execute("ROLLBACK")
            assert (name, key, seen) == (name, key, expected)
    assert acct.execute("SELECT * FROM acct WHERE id = 1").fetchall() == [(1, 7, 10)]


PLANS = "SELECT count(*) FROM pg_backend_memory_contexts WHERE name LIKE 'CachedPlan%'"


def test_patches_of_the_same_columns_reuse_one_plan_whatever_their_values_and_order(acct):
    acct.execute("ALTER TABLE acct ADD note text, ADD tags text[]")
    write = "SELECT fenced_write('acct', 1, %s, %s::jsonb)"

    def plans_after(*patches):
        for patch in patches:
            # Several times: a plan is first made for each call, and later kept.
            for fence in range(6, 14):
                assert acct.execute(write, (fence, patch), prepare=False).fetchone() == (True,)
            acct.execute("SELECT fence_reset('acct', 1, 1)", prepare=False)
        return acct.execute(PLANS, prepare=False).fetchone()[0]

    first = plans_after('{"bal": 1, "note": "x"}')
    same = plans_after('{"note": "a much longer text", "bal": 2}', '{"bal": 3, "note": null}', '{"note": {"a": [1]}, "bal": "4"}')
    assert same == first
    # Other columns are another plan, so the count sees one when there is one.
    assert plans_after('{"bal": 5, "tags": ["x"]}') > first
