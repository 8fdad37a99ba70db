"""Queries that were prepared before their table was altered: refused as the server refuses `SELECT *`, so drivers heal them."""

import asyncio
import contextlib

import asyncpg
import psycopg
import pytest

from harness.pgbouncer import PgBouncer

TABLE = """
    CREATE TABLE acct (id int PRIMARY KEY, bal int NOT NULL DEFAULT 10, tag text, note varchar(9), fence bigint NOT NULL DEFAULT 0);
    INSERT INTO acct (id) SELECT generate_series(1, 3);
"""

CALLS = {
    "claim": "fenced_claim(NULL::acct, 1, 5)",
    "claim_many": "fenced_claim_many(NULL::acct, ARRAY[1], 5)",
    "update_returning": "fenced_update_returning(NULL::acct, 1, 5, '{\"tag\": \"x\"}')",
}

ALTERED = {
    "add": "ALTER TABLE acct ADD more int DEFAULT 7",
    "drop": "ALTER TABLE acct DROP bal",
    "drop the last": "ALTER TABLE acct DROP note",
    "drop and add": "ALTER TABLE acct DROP bal, ADD bal text",
    "type": "ALTER TABLE acct ALTER bal TYPE text",
    "modifier": "ALTER TABLE acct ALTER note TYPE varchar(20)",
    "rename": "ALTER TABLE acct RENAME bal TO balance",
    "table": "ALTER TABLE acct RENAME TO old; CREATE TABLE acct (LIKE old INCLUDING ALL, more int); INSERT INTO acct SELECT * FROM old; DROP TABLE old",
}

IS_STALE = ("0A000", "cached plan must not change result type", "RevalidateCachedQuery")


def said(db, *statement):
    with pytest.raises(psycopg.Error) as raised:
        db.execute(*statement)
    diag = raised.value.diag
    return (diag.sqlstate, diag.message_primary, diag.source_function)


@pytest.fixture
def acct(connect):
    """A session that prepares, and one that alters."""
    db, other = connect(), connect()
    db.execute(TABLE)
    db.execute("SELECT fenced_claim_json('acct', 1, 5)")
    return db, other


@pytest.mark.parametrize("altered", ALTERED)
@pytest.mark.parametrize("call", CALLS)
def test_a_prepared_select_star_is_refused_as_the_servers_own_and_works_when_prepared_again(acct, call, altered):
    db, other = acct
    db.execute(f"PREPARE q AS SELECT * FROM {CALLS[call]}; PREPARE plain AS SELECT * FROM acct WHERE id = 1")
    for _ in range(6):
        db.execute("EXECUTE q"), db.execute("EXECUTE plain")
    other.execute(ALTERED[altered])
    assert said(db, "EXECUTE plain") == IS_STALE, "what a plain query gets"
    for _ in range(3):
        assert said(db, "EXECUTE q") == IS_STALE
    assert db.execute("SELECT fenced_claim_json('acct', 1, 5) ->> 'fence'").fetchone() == ("5",)
    db.execute(f"DEALLOCATE q; PREPARE q AS SELECT * FROM {CALLS[call]}")
    for _ in range(6):
        found = db.execute("EXECUTE q")
        names = [column.name for column in found.description]
        there = db.execute("SELECT * FROM acct WHERE id = 1")
        assert (names, found.fetchall()) == ([column.name for column in there.description], there.fetchall())


@pytest.mark.parametrize("altered", ALTERED)
def test_a_query_that_was_prepared_and_never_run_before_is_refused_too(acct, altered):
    db, other = acct
    db.execute("PREPARE q AS SELECT * FROM fenced_claim(NULL::acct, 1, 5)")
    other.execute(ALTERED[altered])
    assert said(db, "EXECUTE q") == IS_STALE
    assert db.execute("SELECT fence FROM acct WHERE id = 2").fetchone() == (0,)


def test_a_refused_query_has_changed_nothing(acct):
    db, other = acct
    db.execute("PREPARE q(bigint) AS SELECT * FROM fenced_claim(NULL::acct, 2, $1); EXECUTE q(5)")
    other.execute(ALTERED["drop"])
    assert said(db, "EXECUTE q(9)") == IS_STALE
    assert db.execute("SELECT fence FROM acct WHERE id = 2").fetchone() == (5,)


@pytest.mark.parametrize("altered", [name for name in ALTERED if name not in ("drop", "drop and add", "type", "table", "rename")])
def test_a_query_that_names_columns_which_stay_goes_on(acct, altered):
    db, other = acct
    db.execute("PREPARE q AS SELECT fence, id, id + bal FROM fenced_claim(NULL::acct, 1, 5) WHERE bal > 0; EXECUTE q")
    other.execute(ALTERED[altered])
    for _ in range(3):
        assert db.execute("EXECUTE q").fetchall() == [(5, 1, 11)]


@pytest.mark.parametrize("altered", ALTERED)
def test_a_query_with_joins_and_subqueries_heals_within_two_runs(acct, altered):
    db, other = acct
    db.execute("""CREATE FUNCTION joined() RETURNS SETOF record LANGUAGE plpgsql AS $$ BEGIN RETURN QUERY
        SELECT to_json(c), s.n FROM (SELECT * FROM fenced_claim(NULL::acct, 1, 5)) c JOIN generate_series(1, 2) s(n) ON s.n = c.id
        UNION ALL SELECT to_json(c), c.id FROM fenced_claim(NULL::acct, 2, 5) c; END $$""")
    read = "SELECT * FROM joined() AS j(row json, n int)"
    before = db.execute(read).fetchall()
    other.execute(ALTERED[altered])
    for _ in range(2):
        try:
            after = db.execute(read).fetchall()
        except psycopg.Error as error:
            assert (error.diag.sqlstate, error.diag.source_function) == ("0A000", "RevalidateCachedQuery")
    assert [n for _, n in after] == [n for _, n in before] == [1, 2]
    assert [row for row, _ in after] == [row for (row,) in db.execute("SELECT to_json(a) FROM acct a WHERE id < 3 ORDER BY id").fetchall()]


def test_what_is_stored_in_a_view_or_a_function_is_refused_once_at_most(acct):
    db, other = acct
    db.execute("CREATE VIEW claimed AS SELECT * FROM fenced_claim(NULL::acct, 1, 5)")
    db.execute("CREATE FUNCTION stored() RETURNS SETOF bigint BEGIN ATOMIC SELECT c.fence FROM (SELECT * FROM fenced_claim(NULL::acct, 1, 5)) c; END")
    expected = db.execute("SELECT * FROM claimed").fetchall()
    assert db.execute("SELECT stored()").fetchall() == [(5,)]
    try:
        other.execute(ALTERED["add"])
    except psycopg.errors.FeatureNotSupported as not_altered:
        # PostgreSQL 15 alters no table whose row type a view uses, so there is nothing to refuse.
        assert "uses its row type" in str(not_altered)
        return
    refused = 0
    for query in ["SELECT * FROM claimed", "SELECT stored()"] * 4:
        try:
            assert db.execute(query).fetchall() in (expected, [(5,)])
        except psycopg.errors.FeatureNotSupported:
            refused += 1
    assert refused <= 1


def test_a_function_heals_by_itself(acct):
    db, other = acct
    db.execute("""CREATE FUNCTION claimed(fence bigint) RETURNS jsonb LANGUAGE plpgsql AS
        $$ DECLARE r record; BEGIN SELECT * INTO r FROM fenced_claim(NULL::acct, 1, $1); RETURN to_jsonb(r); END $$""")
    for _ in range(6):
        db.execute("SELECT claimed(5)")
    for altered in ("add", "type", "drop", "rename"):
        try:
            other.execute(ALTERED[altered])
        except psycopg.errors.UndefinedColumn:
            continue
        assert db.execute("SELECT claimed(5)").fetchone() == db.execute("SELECT to_jsonb(a) FROM acct a WHERE id = 1").fetchone()


@pytest.mark.parametrize("altered", [name for name in ALTERED if name != "table"])
@pytest.mark.parametrize("call, plan_memory", [*((call, "16MB") for call in CALLS), ("claim", 0)])
def test_a_function_whose_query_must_fit_its_result_heals_by_itself(acct, call, altered, plan_memory):
    """The server compares the columns before the query calls anything."""
    db, other = acct
    db.execute("SELECT set_config('pg_fence.plan_memory', %s, false)", (str(plan_memory),))
    db.execute(f"""CREATE FUNCTION claimed() RETURNS SETOF acct LANGUAGE plpgsql AS $$ BEGIN RETURN QUERY SELECT * FROM {CALLS[call]}; END $$;
        CREATE FUNCTION plain() RETURNS SETOF acct LANGUAGE plpgsql AS $$ BEGIN RETURN QUERY SELECT * FROM acct WHERE id = 1; END $$;
        CREATE TABLE another (LIKE acct INCLUDING ALL); INSERT INTO another VALUES (1)""")
    for _ in range(6):
        db.execute("SELECT claimed(), plain()")
        db.execute("SELECT fenced_claim_json('another', 1, 5)")
    other.execute(ALTERED[altered])
    for _ in range(2):
        assert db.execute("SELECT * FROM claimed()").fetchall() == db.execute("SELECT * FROM plain()").fetchall()


def test_a_change_of_other_columns_leaves_kept_queries_alone(acct):
    db, other = acct
    db.execute("PREPARE q AS SELECT count(*) FROM generate_series(1, 3); EXECUTE q; SELECT fenced_claim_json('acct', 1, 5)")
    plans = "SELECT generic_plans + custom_plans FROM pg_prepared_statements WHERE name = 'q'"
    other.execute("CREATE TABLE another (id int PRIMARY KEY); ALTER TABLE another ADD more int; ANALYZE another")
    assert db.execute(plans).fetchone() == (1,)


@pytest.mark.parametrize("altered", [name for name in ALTERED if name != "table"])
@pytest.mark.parametrize("call", CALLS)
def test_asyncpg_heals_by_itself(dsn, acct, call, altered):
    db, other = acct

    async def story():
        session = await asyncpg.connect(dsn)
        query = f"SELECT * FROM {CALLS[call]}"
        for _ in range(3):
            await session.fetch(query)
        other.execute(ALTERED[altered])
        found = await session.fetch(query)
        there = await session.fetch("SELECT * FROM acct WHERE id = 1")
        assert [dict(one) for one in found] == [dict(one) for one in there]
        await session.close()

    asyncio.run(story())


@pytest.mark.parametrize("altered", ["add", "drop", "type"])
def test_through_a_pooler_a_new_client_gets_what_a_plain_query_gets(pg, acct, altered):
    db, other = acct
    with contextlib.closing(PgBouncer(pg, {"default_pool_size": 1, "admin_users": "postgres"}).start()) as bouncer:
        url = bouncer.url(db.info.dbname)

        async def story():
            plain, fenced = "SELECT * FROM acct WHERE id = 1", "SELECT * FROM fenced_claim(NULL::acct, 1, 5)"
            session = await asyncpg.connect(url)
            for query in (plain, fenced) * 3:
                await session.fetch(query)
            other.execute(ALTERED[altered])
            told = {}
            for query in (plain, fenced):
                client = await asyncpg.connect(url)
                try:
                    told[query] = dict((await client.fetch(query))[0])
                except asyncpg.PostgresError as error:
                    told[query] = (error.sqlstate, error.server_source_function)
                await client.close()
            await session.close()
            assert told[fenced] == told[plain]
            # What the manual of the pooler advises after a change of a table.
            with psycopg.connect(bouncer.url("pgbouncer"), autocommit=True) as admin:
                admin.execute("RECONNECT")
            client = await asyncpg.connect(url)
            assert dict((await client.fetch(fenced))[0]) == dict((await client.fetch(plain))[0])
            await client.close()

        asyncio.run(story())


# What a function that reading a patch calls does to the table: the check of a domain, for the value 666.
DURING_A_CALL = {
    "type": "ALTER TABLE t ALTER COLUMN v TYPE int USING -4",
    "add": "ALTER TABLE t ADD COLUMN more int DEFAULT 7",
    "drop": "ALTER TABLE t DROP COLUMN v",
    "trigger": "CREATE TRIGGER keeps BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION keep_fence()",
    "primary key": "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (d)",
    "table": "DROP TABLE t",
}
DURING = {
    "update_returning": "SELECT * FROM fenced_update_returning(NULL::t, 1, 5, '{\"d\": 666}')",
    "claim_or_insert": "SELECT * FROM fenced_claim_or_insert(NULL::t, 2, 5, '{\"d\": 666}')",
    "write": "SELECT fenced_write('t', 1, 5, '{\"d\": 666}')",
    "upsert": "SELECT fenced_upsert('t', 2, 5, '{\"d\": 666}')",
    "write_many": "SELECT * FROM fenced_write_many('t', ARRAY[1], ARRAY[5], '[{\"d\": 666}]')",
}


def altering(db, altered, *, before="NULL"):
    """A domain `altering` whose check alters table t for the value 666, after this statement."""
    db.execute(f"""
        CREATE FUNCTION keep_fence() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.fence := OLD.fence; RETURN NEW; END';
        CREATE FUNCTION alter_t(given int) RETURNS boolean LANGUAGE plpgsql AS $$
            BEGIN IF given = 666 THEN PERFORM {before}; {altered}; END IF; RETURN true; END
        $$;
        CREATE DOMAIN altering AS int CHECK (alter_t(VALUE));
    """)


def assert_refused(db, call, altered):
    before = db.execute("SELECT * FROM t").fetchall()
    assert {said(db, call)[0] for _ in range(2)} == {"42P01" if altered == "table" else "0A000"}
    assert db.execute("SELECT * FROM t").fetchall() == before


@pytest.mark.parametrize("formed", [False, True], ids=["stored", "formed"])
@pytest.mark.parametrize("altered", DURING_A_CALL)
@pytest.mark.parametrize("call", DURING)
def test_a_table_that_reading_the_arguments_alters_is_refused(connect, call, altered, formed):
    """The caller's own lock does not keep the caller from it."""
    db = connect()
    db.execute("CREATE TABLE t (id int PRIMARY KEY, gone int, v text, fence bigint NOT NULL DEFAULT 0)")
    altering(db, DURING_A_CALL[altered])
    if formed:
        db.execute("ALTER TABLE t DROP gone")
    db.execute("ALTER TABLE t ADD d altering NOT NULL DEFAULT 1; INSERT INTO t (id, v) VALUES (1, 'hello')")
    db.execute("SELECT * FROM fenced_claim(NULL::t, 1, 5)")
    assert_refused(db, DURING[call], altered)


@pytest.mark.parametrize("altered", DURING_A_CALL)
def test_it_is_refused_where_the_session_has_forgotten_the_table_meanwhile(connect, altered):
    """The call for another table takes the memory of what is known of this one."""
    db = connect()
    db.execute("SET pg_fence.plan_memory = 0")
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v text, fence bigint NOT NULL DEFAULT 0); CREATE TABLE other (LIKE t INCLUDING ALL)")
    altering(db, DURING_A_CALL[altered], before="fenced_claim_json('other', 1, 5)")
    db.execute("ALTER TABLE t ADD d altering NOT NULL DEFAULT 1")
    db.execute("INSERT INTO t (id, v) VALUES (1, 'hello'); INSERT INTO other (id) VALUES (1)")
    db.execute("SELECT * FROM fenced_claim(NULL::t, 1, 5)")
    for call in DURING:
        assert_refused(db, DURING[call], altered)


@pytest.mark.parametrize("altered", [name for name in DURING_A_CALL if name != "primary key"])
def test_a_key_whose_reading_alters_the_table_is_refused(connect, altered):
    db = connect()
    altering(db, DURING_A_CALL[altered])
    db.execute("CREATE TYPE pair AS (a altering, b int)")
    db.execute("CREATE TABLE t (id pair PRIMARY KEY, v text, fence bigint NOT NULL DEFAULT 0); INSERT INTO t VALUES ('(1,1)', 'hello')")
    assert_refused(db, "SELECT * FROM fenced_claim(NULL::t, '(666,1)', 5)", altered)
