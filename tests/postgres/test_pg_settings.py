"""The settings, the reset of a poisoned fence and its line in the log, and what the extension's catalog entries say."""

import re
import threading

import psycopg
import pytest

from refusals import refusal

CLAIM = "SELECT fence FROM fenced_claim(NULL::t, 1, %s)"


@pytest.fixture
def t(db):
    """A connection to a table with one row, never claimed."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, small int NOT NULL DEFAULT 0); INSERT INTO t VALUES (1)")
    return db


def clock_us(db):
    return db.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").fetchone()[0]


def test_the_defaults_are_two_days_and_two_to_the_53_less_one(t):
    t.execute(CLAIM, (1,))
    assert t.execute("SHOW pg_fence.max_fence_ahead").fetchone() == ("2d",)
    assert t.execute("SHOW pg_fence.max_fence").fetchone() == ("9007199254740991",)


def test_the_settings_are_described_and_for_superusers_but_the_one_that_opens_nothing(t):
    t.execute(CLAIM, (1,))
    settings = "SELECT name, context, unit, short_desc <> '' FROM pg_settings WHERE name LIKE 'pg_fence.%' ORDER BY 1"
    assert t.execute(settings).fetchall() == [
        ("pg_fence.check_life", "superuser", None, True),
        ("pg_fence.lease_in_transaction", "user", None, True),
        ("pg_fence.max_fence", "superuser", None, True),
        ("pg_fence.max_fence_ahead", "superuser", "s", True),
        ("pg_fence.max_ttl", "superuser", "s", True),
        ("pg_fence.max_waiters_per_lock", "superuser", None, True),
        ("pg_fence.plan_memory", "superuser", "kB", True),
        ("pg_fence.track", "superuser", None, True),
    ]


def test_a_fence_may_be_as_far_ahead_as_the_setting_says(t):
    day = 24 * 60 * 60 * 1_000_000
    assert t.execute(CLAIM, (clock_us(t) + 2 * day - 5_000_000,)).fetchall()
    refused = refusal(t, CLAIM, (clock_us(t) + 2 * day + 5_000_000,))
    assert refused.sqlstate == "LF005"
    horizon = int(re.search(r"now is (\d+):", refused.diag.message_detail)[1])
    assert abs(horizon - clock_us(t) - 2 * day) < 60_000_000
    t.execute("SET pg_fence.max_fence_ahead = '3d'")
    assert t.execute(CLAIM, (clock_us(t) + 2 * day + 5_000_000,)).fetchall()
    t.execute("SET pg_fence.max_fence_ahead = 0")
    assert refusal(t, CLAIM, (clock_us(t) + 5_000_000,)).sqlstate == "LF005"


def test_a_fence_may_be_as_large_as_the_setting_says(t):
    t.execute("SET pg_fence.max_fence = 1000")
    assert t.execute(CLAIM, (1000,)).fetchall() == [(1000,)]
    refused = refusal(t, CLAIM, (1001,))
    assert (refused.sqlstate, refused.diag.message_detail) == ("LF005", "pg_fence.max_fence is 1000.")
    assert "pg_fence.max_fence" in refused.diag.message_hint
    t.execute("RESET pg_fence.max_fence")
    assert t.execute(CLAIM, (1001,)).fetchall() == [(1001,)]


def test_a_setting_ends_with_its_transaction(t):
    with t.transaction():
        t.execute("SET LOCAL pg_fence.max_fence = 5")
        t.execute("SAVEPOINT s; SET LOCAL pg_fence.max_fence = 3; ROLLBACK TO s")
        assert t.execute(CLAIM, (5,)).fetchall() == [(5,)]
    assert t.execute(CLAIM, (6,)).fetchall() == [(6,)]


@pytest.mark.parametrize("value", ["0", "-1", "", " 5", "5 ", "05", "+5", "1.5", "1e3", "0x10", "x", "9007199254740992", "99999999999999999999", "5s"])
def test_a_largest_fence_that_is_none_is_refused(t, value):
    t.execute(CLAIM, (1,))
    assert refusal(t, f"SET pg_fence.max_fence = '{value}'").sqlstate == "22023"
    assert t.execute("SHOW pg_fence.max_fence").fetchone() == ("9007199254740991",)


@pytest.mark.parametrize("value", ["-1", "x", "2147483648s"])
def test_a_distance_that_is_none_is_refused(t, value):
    t.execute(CLAIM, (1,))
    assert refusal(t, f"SET pg_fence.max_fence_ahead = '{value}'").sqlstate == "22023"


def test_an_unknown_setting_of_the_prefix_is_refused(t):
    t.execute(CLAIM, (1,))
    assert refusal(t, "SET pg_fence.nosuch = 1").sqlstate == "42602"


def test_an_ordinary_role_cannot_set_them_not_even_before_the_library_is_loaded(t, connect, pg, dsn):
    t.execute("CREATE ROLE worker LOGIN; GRANT SELECT, UPDATE ON t TO worker")
    try:
        worker = connect(url=dsn.replace("postgres@", "worker@"))
        worker.execute("SET pg_fence.max_fence = 3")
        assert worker.execute(CLAIM, (7,)).fetchall() == [(7,)]
        assert worker.execute("SHOW pg_fence.max_fence").fetchone() == ("9007199254740991",)
        assert refusal(worker, "SET pg_fence.max_fence_ahead = '10d'").sqlstate == "42501"
        worker.close()
    finally:
        t.execute("DROP OWNED BY worker; DROP ROLE worker")


def test_the_settings_may_stand_in_the_configuration(make_pg):
    server = make_pg(settings={"pg_fence.max_fence": "50", "pg_fence.max_fence_ahead": "1h"})
    with psycopg.connect(server.url(), autocommit=True) as db:
        db.execute("CREATE EXTENSION pg_fence; CREATE TABLE t (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0); INSERT INTO t VALUES (1)")
        assert db.execute(CLAIM, (50,)).fetchall() == [(50,)]
        assert refusal(db, CLAIM, (51,)).diag.message_detail == "pg_fence.max_fence is 50."


# --- The way out of a poisoned fence.


def test_a_reset_stores_what_it_is_given_and_returns_what_was_there(t):
    t.execute("UPDATE t SET fence = 9223372036854775807")
    assert t.execute(CLAIM, (5,)).fetchall() == []
    assert t.execute("SELECT fence_reset('t', 1, 7)").fetchone() == (9223372036854775807,)
    assert t.execute("SELECT fence_reset('t', 1, 0)").fetchone() == (7,)
    assert t.execute("SELECT fence_reset('t', 1, 3, fence_column => 'small')").fetchone() == (0,)
    assert t.execute("SELECT * FROM t").fetchall() == [(1, 0, 3)]
    t.execute("ALTER TABLE t ALTER fence DROP NOT NULL; UPDATE t SET fence = NULL")
    assert t.execute("SELECT fence_reset('t', '1', 4)").fetchone() == (None,)


def test_a_reset_is_written_to_the_log_with_both_fences(t, pg):
    t.execute(CLAIM, (41,))
    t.execute("SELECT fence_reset('t', 1, 17)")
    assert 'LOG:  pg_fence: fence of "public"."t" (id)=(1) reset from 41 to 17' in pg.log()


def test_a_stale_call_is_told_to_whoever_looks_at_level_debug1(t):
    told = []
    t.add_notice_handler(lambda diag: told.append((diag.severity_nonlocalized, diag.message_primary)))
    t.execute(CLAIM, (41,))
    assert t.execute(CLAIM, (33,)).fetchall() == []
    assert told == []
    t.execute("SET client_min_messages = debug1")
    assert t.execute(CLAIM, (33,)).fetchall() == []
    assert ("DEBUG", 'pg_fence: fence 33 is stale for "public"."t" (id)=(1), which has 41') in told


def test_a_reset_is_for_the_tables_owner(t):
    t.execute("CREATE ROLE worker; GRANT ALL ON t TO worker; SET ROLE worker")
    try:
        refused = refusal(t, "SELECT fence_reset('t', 1, 7)")
        assert (refused.sqlstate, refused.diag.message_primary) == ("42501", "must be owner of table t")
        t.execute("RESET ROLE; ALTER TABLE t OWNER TO worker; SET ROLE worker")
        assert t.execute("SELECT fence_reset('t', 1, 7)").fetchone() == (0,)
    finally:
        t.execute("RESET ROLE; DROP OWNED BY worker CASCADE; DROP ROLE worker")


def test_a_reset_waits_for_a_claim_and_reports_what_that_stored(t, connect, eventually):
    one, two, old = connect(), connect(), []
    one.execute("BEGIN")
    one.execute(CLAIM, (9,))
    thread = threading.Thread(target=lambda: old.append(two.execute("SELECT fence_reset('t', 1, 2)").fetchone()[0]), daemon=True)
    thread.start()
    eventually(lambda: t.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", (two.info.backend_pid,)).fetchone()[0])
    one.execute("COMMIT")
    thread.join(60)
    assert old == [9]


# --- What the catalog says of the extension.

FUNCTIONS = """SELECT p.oid::regprocedure::text, p.provolatile, p.proparallel, p.proisstrict, p.prosecdef, p.proretset,
    p.pronargdefaults, obj_description(p.oid, 'pg_proc'), has_function_privilege('public', p.oid, 'EXECUTE')
    FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
    JOIN pg_extension e ON e.oid = d.refobjid WHERE e.extname = 'pg_fence' ORDER BY 1"""


def test_every_function_says_what_it_is(t):
    functions = t.execute(FUNCTIONS).fetchall()
    assert len(functions) >= 16
    for name, volatility, parallel, strict, definer, _, defaults, comment, public in functions:
        said = (volatility, parallel, strict, definer, defaults, public)
        is_granted_on = re.search(r"guard(?!_holders)|new_life|fence_internals\.stat\(|pg_stat|fencelock_|fence_internals\.leases\(", name) is not None
        # The functions of rows that are called all the time have no default: they are there without the argument.
        defaults_of = {"fence_reset": 2, "fence_protect": 5, "fencelock_acquire": 4, "fencelock_wait": 1}
        assert (name, said) == (name, ("v", "u", False, False, defaults_of.get(name.partition("(")[0], 0), not is_granted_on))
        assert comment and comment[0].isupper() and comment.endswith("."), name


def test_everything_in_the_extension_has_a_comment(t):
    bare = t.execute("""SELECT pg_describe_object(classid, objid, objsubid) FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
        WHERE e.extname = 'pg_fence' AND d.deptype = 'e' AND d.classid <> 'pg_type'::regclass AND obj_description(objid, classid::regclass::text::name) IS NULL""").fetchall()
    assert bare == []


def test_what_users_do_not_call_is_in_a_schema_of_its_own(t):
    """A dump carries triggers and guards, so these signatures and columns stay for ever. None carries given()."""
    kept = t.execute("SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'fence_internals'::regnamespace ORDER BY 1").fetchall()
    assert [name.removeprefix("fence_internals.") for (name,) in kept] == [
        'changes_key(regclass,bigint,bigint,"any")',
        "given()",
        "guard_holders()",
        'has_key(regclass,bigint,"any")',
        "in_life(xid)",
        "keep_newer()",
        "leases()",
        "refuse()",
        "refuse_guards()",
        "refuses_delete(oid,tid,xid,bigint,text)",
        "refuses_insert(oid,tid,bigint,text)",
        "refuses_unfenced_insert(oid,tid,bigint,text)",
        "refuses_update(oid,tid,xid,bigint,bigint,text,text)",
        "remember()",
        "stat()",
        "trigger_column(pg_node_tree,smallint)",
        "trigger_deletions(pg_node_tree,smallint)",
        "trigger_inserts(pg_node_tree,smallint)",
        "trigger_owner(pg_node_tree,smallint)",
    ]
    columns = t.execute("SELECT attname, atttypid::regtype::text FROM pg_attribute WHERE attrelid = 'fence_internals.guards'::regclass AND attnum > 0 ORDER BY attnum").fetchall()
    assert columns == [("resource", "text"), ("fence", "bigint"), ("owner", "text")]
    columns = t.execute("SELECT attname, atttypid::regtype::text FROM pg_attribute WHERE attrelid = 'fence_internals.leases'::regclass AND attnum > 0 ORDER BY attnum").fetchall()
    assert columns[:2] == [("name", "text"), ("owner", "text")]
    assert columns[2:] == [(name, "bigint") for name in ("fence", "granted_us", "deadline_us", "limit_us", "delay_us", "epoch", "offset_us")]
    usage = "SELECT has_schema_privilege('public', 'fence_internals', 'USAGE'), has_schema_privilege('public', 'fence_internals', 'CREATE')"
    assert t.execute(usage).fetchone() == (True, False)


def test_a_schema_that_somebody_else_has_made_stops_the_installation(t):
    t.execute("DROP EXTENSION pg_fence; CREATE SCHEMA fence_internals")
    assert refusal(t, "CREATE EXTENSION pg_fence").sqlstate == "42P06"
    t.execute("DROP SCHEMA fence_internals; CREATE EXTENSION pg_fence")


def test_the_extension_says_its_version_and_needs_no_superuser(t):
    row = t.execute("SELECT version, superuser, trusted, relocatable, schema, requires FROM pg_available_extension_versions WHERE name = 'pg_fence' ORDER BY version").fetchall()
    assert row == [("0.1.0", True, True, False, None, None)]
    assert t.execute("SELECT comment FROM pg_available_extensions WHERE name = 'pg_fence'").fetchone()[0]


def test_dropping_the_extension_leaves_tables_and_their_fences(t):
    t.execute(CLAIM, (5,))
    t.execute("DROP EXTENSION pg_fence")
    assert t.execute("SELECT fence FROM t").fetchone() == (5,)
    t.execute("CREATE EXTENSION pg_fence")
    assert t.execute(CLAIM, (6,)).fetchall() == [(6,)]


def test_the_library_loads_when_it_is_preloaded_too(make_pg):
    server = make_pg(settings={"shared_preload_libraries": "pg_fence"})
    with psycopg.connect(server.url(), autocommit=True) as db:
        db.execute("CREATE EXTENSION pg_fence; CREATE TABLE t (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0); INSERT INTO t VALUES (1)")
        assert db.execute(CLAIM, (5,)).fetchall() == [(5,)]


STANDBY_CALLS = {
    "fenced_claim": "SELECT * FROM fenced_claim(NULL::t, 1, 5)",
    "fenced_claim_json": "SELECT fenced_claim_json('t', 1, 5)",
    "fenced_claim_many": "SELECT * FROM fenced_claim_many(NULL::t, ARRAY[1], 5)",
    "fenced_update": "SELECT fenced_update('t', 1, 5, '{\"small\": 1}')",
    "fenced_update_returning": "SELECT * FROM fenced_update_returning(NULL::t, 1, 5, '{\"small\": 1}')",
    "fenced_write": "SELECT fenced_write('t', 1, 5, '{\"small\": 1}')",
    "fenced_claim_or_insert": "SELECT * FROM fenced_claim_or_insert(NULL::t, 1, 5, '{}')",
    "fenced_upsert": "SELECT fenced_upsert('t', 1, 5, '{\"small\": 1}')",
    "fenced_delete": "SELECT fenced_delete('t', 1, 5)",
    "fence_reset": "SELECT fence_reset('t', 1, 5)",
    "fenced_guard": "SELECT fenced_guard('r', 5)",
    "fence_guard_reset": "SELECT fence_guard_reset('r', 5)",
    "fence_life": "SELECT fence_life()",
    "fence_new_life": "SELECT fence_new_life()",
    "fence_guard_forget": "SELECT fence_guard_forget(5)",
    "fencelock_acquire": "SELECT fencelock_acquire('l', 'o', 1)",
    "fencelock_wait": "CALL fencelock_wait('l', 'o', 1, 1)",
    "fencelock_extend": "SELECT fencelock_extend('l', 'o', 1)",
    "fencelock_release": "SELECT fencelock_release('l', 'o')",
    "fencelock_raise": "SELECT fencelock_raise(1)",
    "fencelock_free": "SELECT fencelock_free('l')",
    "fencelock_forget": "SELECT fencelock_forget(1)",
    "fence_protect": "SELECT fence_protect('t')",
    "fence_unprotect": "SELECT fence_unprotect('t')",
}


def test_a_standby_refuses_every_call_and_names_it(make_pg):
    server = make_pg()
    with psycopg.connect(server.url(), autocommit=True) as db:
        db.execute("CREATE EXTENSION pg_fence; CREATE TABLE t (id int PRIMARY KEY, fence bigint, small int); INSERT INTO t VALUES (1)")
    server.stop()
    (server.data_dir / "standby.signal").touch()
    server.start()
    with psycopg.connect(server.url(), autocommit=True) as db:
        for function, call in STANDBY_CALLS.items():
            refused = refusal(db, call)
            assert refused.sqlstate == "25006"
            assert f"{function}()" in refused.diag.message_primary
        assert db.execute("SELECT * FROM fence_protected").fetchall() == []
        db.execute("SELECT * FROM pg_stat_fence")
