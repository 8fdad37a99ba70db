"""One row under one fence: what each function does, what it answers, and that the rule is the same in all of them."""

import pytest

from refusals import refusal

CLAIM = "SELECT * FROM fenced_claim(NULL::counters, %s, %s)"
UPDATE = "SELECT fenced_update('counters', %s, %s, %s::jsonb)"


@pytest.fixture
def counters(db):
    """A connection to a table of counters: rows 1 and 2, never claimed."""
    db.execute("CREATE TABLE counters (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, value int NOT NULL DEFAULT 0)")
    db.execute("INSERT INTO counters (id) VALUES (1), (2)")
    return db


def rows(db):
    return db.execute("SELECT id, fence, value FROM counters ORDER BY id").fetchall()


def answer(db, sql, *parameters):
    return db.execute(sql, parameters).fetchone()[0]


def test_a_claim_returns_the_row_with_the_new_fence(counters):
    assert counters.execute(CLAIM, (1, 33)).fetchall() == [(1, 33, 0)]
    assert rows(counters) == [(1, 33, 0), (2, 0, 0)]


def test_a_claim_answers_with_the_tables_own_columns(counters):
    cursor = counters.execute(CLAIM, (1, 33))
    assert [column.name for column in cursor.description] == ["id", "fence", "value"]


def test_a_stale_claim_returns_no_row_and_changes_nothing(counters):
    counters.execute(CLAIM, (1, 34))
    assert counters.execute(CLAIM, (1, 33)).fetchall() == []
    assert rows(counters) == [(1, 34, 0), (2, 0, 0)]


def test_a_claim_with_the_stored_fence_is_accepted_again(counters):
    assert counters.execute(CLAIM, (1, 33)).fetchall() == counters.execute(CLAIM, (1, 33)).fetchall() == [(1, 33, 0)]


def test_an_update_under_the_claim_writes_the_row(counters):
    counters.execute(CLAIM, (1, 33))
    assert answer(counters, UPDATE, 1, 33, '{"value": 7}') is True
    assert rows(counters) == [(1, 33, 7), (2, 0, 0)]


def test_an_update_with_an_older_fence_is_false_and_changes_nothing(counters):
    counters.execute(CLAIM, (1, 34))
    assert answer(counters, UPDATE, 1, 33, '{"value": 7}') is False
    assert rows(counters) == [(1, 34, 0), (2, 0, 0)]


def test_an_update_without_a_claim_is_an_error_and_changes_nothing(counters):
    counters.execute(CLAIM, (1, 33))
    assert refusal(counters, UPDATE, (1, 34, '{"value": 7}')).sqlstate == "LF002"
    assert rows(counters) == [(1, 33, 0), (2, 0, 0)]


def test_a_stale_holder_is_refused_between_the_successors_claim_and_write(counters):
    counters.execute(CLAIM, (1, 33))
    counters.execute(CLAIM, (1, 34))
    assert answer(counters, UPDATE, 1, 33, '{"value": 1}') is False
    assert answer(counters, UPDATE, 1, 34, '{"value": 1}') is True
    assert answer(counters, UPDATE, 1, 33, '{"value": 2}') is False
    assert rows(counters) == [(1, 34, 1), (2, 0, 0)]


@pytest.mark.parametrize(
    "call",
    [
        "SELECT * FROM fenced_claim(NULL::counters, 9, 5)",
        "SELECT fenced_claim_json('counters', 9, 5)",
        "SELECT * FROM fenced_claim_many(NULL::counters, ARRAY[1, 9], 5)",
        "SELECT fenced_update('counters', 9, 5, '{\"value\": 1}')",
        "SELECT * FROM fenced_update_returning(NULL::counters, 9, 5, '{\"value\": 1}')",
        "SELECT fenced_write('counters', 9, 5, '{\"value\": 1}')",
        "SELECT fenced_delete('counters', 9, 5)",
        "SELECT fence_reset('counters', 9, 5)",
    ],
)
def test_a_missing_row_is_no_data_found_and_changes_nothing(counters, call):
    assert refusal(counters, call).sqlstate == "P0002"
    assert rows(counters) == [(1, 0, 0), (2, 0, 0)]


def test_the_largest_fences_compare_exactly(counters):
    counters.execute("SET pg_fence.max_fence_ahead = '68 years'".replace("68 years", "24800 d"))
    counters.execute("UPDATE counters SET fence = 9007199254740991 WHERE id = 1")
    assert counters.execute(CLAIM, (1, 3_000_000_000_000_000)).fetchall() == []
    counters.execute("UPDATE counters SET fence = 2999999999999999 WHERE id = 1")
    assert counters.execute(CLAIM, (1, 3_000_000_000_000_000)).fetchall() == [(1, 3_000_000_000_000_000, 0)]


def test_a_json_claim_returns_the_row_as_jsonb_and_null_when_stale(counters):
    claim = "SELECT fenced_claim_json('counters', %s, %s)"
    assert answer(counters, claim, 1, 33) == {"id": 1, "fence": 33, "value": 0}
    assert answer(counters, claim, 1, 32) is None
    assert rows(counters) == [(1, 33, 0), (2, 0, 0)]


def test_a_returning_update_gives_the_row_as_written_and_no_row_when_stale(counters):
    update = "SELECT * FROM fenced_update_returning(NULL::counters, %s, %s, %s::jsonb)"
    counters.execute(CLAIM, (1, 33))
    assert counters.execute(update, (1, 33, '{"value": 7}')).fetchall() == [(1, 33, 7)]
    assert counters.execute(update, (1, 32, '{"value": 8}')).fetchall() == []
    assert refusal(counters, update, (1, 34, '{"value": 8}')).sqlstate == "LF002"
    assert rows(counters) == [(1, 33, 7), (2, 0, 0)]


def test_a_fenced_write_stamps_and_sets_at_once(counters):
    write = "SELECT fenced_write('counters', %s, %s, %s::jsonb)"
    assert answer(counters, write, 1, 33, '{"value": 7}') is True
    assert answer(counters, write, 1, 33, '{"value": 8}') is True
    assert answer(counters, write, 1, 32, '{"value": 9}') is False
    assert rows(counters) == [(1, 33, 8), (2, 0, 0)]


def test_a_delete_needs_the_rows_own_claim(counters):
    delete = "SELECT fenced_delete('counters', %s, %s)"
    counters.execute(CLAIM, (1, 33))
    assert answer(counters, delete, 1, 32) is False
    assert refusal(counters, delete, (1, 34)).sqlstate == "LF002"
    assert rows(counters) == [(1, 33, 0), (2, 0, 0)]
    assert answer(counters, delete, 1, 33) is True
    assert rows(counters) == [(2, 0, 0)]


def test_many_claims_come_in_key_order_each_once_without_the_stale(counters):
    counters.execute("INSERT INTO counters (id, fence) VALUES (3, 50), (4, 0)")
    many = "SELECT id FROM fenced_claim_many(NULL::counters, %s, 33)"
    assert counters.execute(many, ([4, 3, 1, 2, 1],)).fetchall() == [(1,), (2,), (4,)]
    assert rows(counters) == [(1, 33, 0), (2, 33, 0), (3, 50, 0), (4, 33, 0)]


@pytest.mark.parametrize(
    "keys", ["ARRAY[2,1]", "ARRAY['2','1']", "'{2,1}'", "'[2,1]'::jsonb", "'[2,1]'", "' [2,1]'", "' {2,1}'", "'[0:1]={2,1}'", "'[0:1][5:5] = {{2},{1}}'", "ARRAY[2,1]::numeric[]", "ARRAY[ROW(2),ROW(1)]"]
)
def test_many_keys_may_be_written_in_any_array_form(counters, keys):
    assert counters.execute(f"SELECT id FROM fenced_claim_many(NULL::counters, {keys}, 33)").fetchall() == [(1,), (2,)]


def test_no_keys_claim_no_rows(counters):
    assert counters.execute("SELECT * FROM fenced_claim_many(NULL::counters, ARRAY[]::int[], 33)").fetchall() == []


@pytest.mark.parametrize("kind", ["anyelement", "json"])
def test_a_null_fence_in_the_row_counts_as_never_claimed(db, kind):
    db.execute("CREATE TABLE acct (id int PRIMARY KEY, fence bigint, bal int)")
    db.execute("INSERT INTO acct VALUES (1, NULL, 10)")
    claim = {"anyelement": "SELECT fence FROM fenced_claim(NULL::acct, 1, 5)", "json": "SELECT fenced_claim_json('acct', 1, 5)->'fence'"}
    refused = refusal(db, "SELECT fenced_update('acct', 1, 5, '{\"bal\": 11}')")
    assert refused.sqlstate == "LF002"
    assert "null" in refused.diag.message_detail
    assert answer(db, claim[kind]) == 5
    assert answer(db, "SELECT fenced_update('acct', 1, 5, '{\"bal\": 11}')") is True
    assert db.execute("SELECT fence, bal FROM acct").fetchall() == [(5, 11)]


def test_a_null_from_before_a_constraint_counts_as_never_claimed(db, pg):
    db.execute("CREATE TABLE acct (id int PRIMARY KEY, fence bigint); INSERT INTO acct VALUES (1)")
    if pg.major >= 18:
        db.execute("ALTER TABLE acct ADD CONSTRAINT nn NOT NULL fence NOT VALID")
    assert db.execute("SELECT fence FROM fenced_claim(NULL::acct, 1, 5)").fetchall() == [(5,)]


def test_a_negative_stored_fence_counts_as_older(counters):
    counters.execute("UPDATE counters SET fence = -7")
    assert counters.execute(CLAIM, (1, 1)).fetchall() == [(1, 1, 0)]


def test_an_integer_fence_column_takes_what_fits_and_refuses_the_rest(db):
    db.execute("CREATE TABLE small (id int PRIMARY KEY, fence int NOT NULL DEFAULT 0)")
    db.execute("INSERT INTO small VALUES (1)")
    assert answer(db, "SELECT fence FROM fenced_claim(NULL::small, 1, 2147483647)") == 2147483647
    db.execute("UPDATE small SET fence = 0")
    refused = refusal(db, "SELECT fence FROM fenced_claim(NULL::small, 1, 3000000000)")
    assert refused.sqlstate == "LF005"
    assert "2147483647" in refused.diag.message_detail
    assert db.execute("SELECT fence FROM small").fetchall() == [(0,)]


@pytest.mark.parametrize("type_name", ["numeric", "text", "smallint", "xid8", "bigint[]"])
def test_a_fence_column_of_another_type_is_refused_by_name(db, type_name):
    db.execute(f"CREATE TABLE odd (id int PRIMARY KEY, fence {type_name})")
    db.execute("INSERT INTO odd VALUES (1)")
    refused = refusal(db, "SELECT * FROM fenced_claim(NULL::odd, 1, 5)")
    assert refused.sqlstate == "42804"
    assert type_name in refused.diag.message_primary
    assert db.execute("SELECT fence FROM odd").fetchall() == [(None,)]


def test_a_fence_column_may_be_a_domain_whose_check_holds(db):
    db.execute("CREATE DOMAIN token AS bigint CHECK (VALUE < 100)")
    db.execute("CREATE TABLE t (id int PRIMARY KEY, fence token)")
    db.execute("INSERT INTO t VALUES (1)")
    assert answer(db, "SELECT fence FROM fenced_claim(NULL::t, 1, 99)") == 99
    assert refusal(db, "SELECT fence FROM fenced_claim(NULL::t, 1, 100)").sqlstate == "23514"
    assert answer(db, "SELECT fence FROM t") == 99


def test_the_fence_column_may_have_another_name(db):
    db.execute("CREATE TABLE jobs (id int PRIMARY KEY, lock_fence bigint NOT NULL DEFAULT 0, fence text, state text)")
    db.execute("INSERT INTO jobs VALUES (1, 0, 'a picket fence', 'new')")
    named = "fence_column => 'lock_fence'"
    assert answer(db, f"SELECT lock_fence FROM fenced_claim(NULL::jobs, 1, 5, {named})") == 5
    assert answer(db, f"SELECT fenced_update('jobs', 1, 5, '{{\"state\": \"done\", \"fence\": \"none\"}}', {named})") is True
    assert answer(db, f"SELECT fenced_claim_json('jobs', 1, 4, {named})") is None
    assert db.execute(f"SELECT fence FROM fenced_claim_many(NULL::jobs, ARRAY[1], 6, {named})").fetchall() == [("none",)]
    assert answer(db, f"SELECT state FROM fenced_update_returning(NULL::jobs, 1, 6, '{{\"state\": \"x\"}}', {named})") == "x"
    assert answer(db, f"SELECT fenced_write('jobs', 1, 7, '{{\"state\": \"y\"}}', {named})") is True
    assert answer(db, f"SELECT fence_reset('jobs', 1, 8, {named})") == 7
    assert answer(db, f"SELECT fenced_delete('jobs', 1, 8, {named})") is True


def test_a_claim_in_a_select_list_gives_rows_too(counters):
    assert counters.execute("SELECT (fenced_claim(NULL::counters, id, 5)).fence FROM counters").fetchall() == [(5,), (5,)]
    assert counters.execute("SELECT fenced_claim(NULL::counters, 1, 4)").fetchall() == []


def test_the_row_argument_may_be_a_domain_over_the_row_type(counters):
    counters.execute("CREATE DOMAIN positive AS counters")
    assert counters.execute("SELECT fence FROM fenced_claim(NULL::positive, 1, 5)").fetchall() == [(5,)]
