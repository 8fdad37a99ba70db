"""What many calls cost: memory stays flat, and a call costs the same however many tables the database has."""

import psycopg
import pytest


def resident_kb(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))


def in_contexts(db):
    return db.execute("SELECT sum(used_bytes)::bigint FROM pg_backend_memory_contexts").fetchone()[0]


# Each row is written once: the server itself keeps a note of every row that one transaction writes twice.
CALLS = """DO $$ BEGIN FOR n IN {first}..{last} LOOP
    PERFORM * FROM fenced_claim(NULL::claimed, n, 5);
    PERFORM fenced_update('updated', n, 5, '{{"v": 1, "a": ["x", "y"], "j": {{"k": [1]}}}}');
    PERFORM fenced_write('written', jsonb_build_object('id', n), 5, '{{"v": 2}}');
    PERFORM fenced_claim_json('updated', n::text, 4);
    PERFORM * FROM fenced_claim_many(NULL::updated, ARRAY[n, n - 1], 4);
END LOOP; END $$"""


@pytest.mark.parametrize("rows", [2_000, pytest.param(20_000, marks=pytest.mark.long)])
def test_many_calls_in_one_transaction_keep_memory_flat(db, rows):
    for table in ("claimed", "updated", "written"):
        db.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, v int, a text[], j jsonb)")
        db.execute(f"INSERT INTO {table} (id, fence) SELECT n, CASE '{table}' WHEN 'updated' THEN 5 ELSE 0 END FROM generate_series(0, {rows} + 1000) n")
    pid = db.info.backend_pid
    with db.transaction():
        db.execute(CALLS.format(first=1, last=1_000))
        contexts, resident = in_contexts(db), resident_kb(pid)
        db.execute(CALLS.format(first=1_001, last=rows + 1_000))
        assert in_contexts(db) - contexts < 200_000
        assert resident_kb(pid) - resident < 2_000


def peak_kb(pid):
    """The most memory of its own that a process has had: without what it has touched of the shared memory, which stays."""
    with open(f"/proc/{pid}/status") as status:
        sizes = {line.split(":")[0]: int(line.split()[1]) for line in status if line.endswith("kB\n")}
    return sizes["VmHWM"] - sizes["RssShmem"]


MANY = """SELECT count(*) FILTER (WHERE verdict = 'written'), count(*) FROM fenced_update_many('jobs',
    (SELECT array_agg(n ORDER BY random()) FROM generate_series(1, {rows}) n), {fences}, {patches})"""
# One fence and one patch for all; one of each for each row.
ARGUMENTS = {
    "one": ("'{5}'", "'{\"v\": 1}'"),
    "each": ("(SELECT array_agg(5::bigint) FROM generate_series(1, ROWS))", "(SELECT jsonb_agg(jsonb_build_object('v', n)) FROM generate_series(1, ROWS) n)"),
}


def jobs(db, rows):
    db.execute("CREATE UNLOGGED TABLE jobs (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 5, v int) WITH (autovacuum_enabled = off, fillfactor = 45)")
    db.execute(f"INSERT INTO jobs (id) SELECT generate_series(1, {rows}); ANALYZE jobs")


@pytest.mark.parametrize("arguments", ARGUMENTS)
@pytest.mark.parametrize("rows", [20_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_a_call_on_many_rows_takes_some_bytes_a_row_and_gives_them_back(db, connect, rows, arguments):
    """Beyond what the arguments take, which are built in the same session before: the same query without the call."""
    fences, patches = (text.replace("ROWS", str(rows)) for text in ARGUMENTS[arguments])
    jobs(db, rows)
    plain, caller = connect(), connect()
    for session in (plain, caller):
        session.execute("SELECT FROM fenced_update_many('jobs', ARRAY[1], '{5}', '{\"v\": 0}')")
    built = MANY.format(rows=rows, fences=fences, patches=patches)
    arrays = built[built.index("(SELECT array_agg(n ORDER") : built.rindex(")")]
    plain.execute(f"SELECT num_nulls({arrays})")
    plain.execute("SELECT count(*) FROM jobs")
    assert caller.execute(built).fetchone() == (rows, rows)
    used = peak_kb(caller.info.backend_pid) - peak_kb(plain.info.backend_pid)
    assert used * 1024 < 8_000_000 + 130 * rows, f"{used * 1024 / rows:.0f} bytes a row"
    before = in_contexts(caller)
    caller.execute(built)
    assert in_contexts(caller) - before < 100_000


@pytest.mark.long
@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_a_call_on_a_million_rows_can_be_cancelled_at_any_time(db, connect, eventually, arguments):
    rows = 1_000_000
    fences, patches = (text.replace("ROWS", str(rows)) for text in ARGUMENTS[arguments])
    jobs(db, rows)
    for timeout in (300, 900, 1_500, 2_500, 4_000):
        session = connect()
        session.execute(f"SET statement_timeout = {timeout}")
        with pytest.raises(psycopg.errors.QueryCanceled):
            session.execute(MANY.format(rows=rows, fences=fences, patches=patches))
        session.execute("RESET statement_timeout")
        assert session.execute("SELECT verdict FROM fenced_update_many('jobs', ARRAY[1], '{5}', '{\"v\": 0}')").fetchone() == ("written",)
        session.close()
    assert db.execute("SELECT count(*) FROM jobs WHERE v <> 0").fetchone() == (0,)


@pytest.mark.long
def test_a_call_costs_the_same_among_10_000_tables(db):
    make = "DO $$ BEGIN FOR n IN {}..{} LOOP EXECUTE format('CREATE TABLE m%s (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0)', n); EXECUTE format('INSERT INTO m%s VALUES (1)', n); END LOOP; END $$"
    for start in range(1, 10_001, 500):
        db.execute(make.format(start, start + 499))
    db.execute("CREATE TEMP TABLE spent (tables int, us double precision)")
    measure = """DO $$ DECLARE oids regclass[]; began timestamptz; BEGIN
        SELECT array_agg(('m' || n * 10)::regclass) INTO oids FROM generate_series(1, {tables}) n;
        FOR round_number IN 1..6 LOOP
            began := clock_timestamp();
            FOR n IN 0..1999 LOOP PERFORM fenced_claim_json(oids[1 + n % {tables}], 1, 5); END LOOP;
            INSERT INTO spent VALUES ({tables}, extract(epoch FROM clock_timestamp() - began) * 500);
        END LOOP; END $$"""
    for tables in (1, 500):
        db.execute(measure.format(tables=tables))
    best = dict(db.execute("SELECT tables, min(us) FROM spent GROUP BY 1").fetchall())
    assert best[500] < 2 * best[1], best
