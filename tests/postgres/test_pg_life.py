"""A claim counts in the life of the server in which it was made: a start, a promotion, a restore or the crash of a backend can
have lost what was written after it."""

import os
import re
import shutil
import threading

import psycopg
import pytest

from harness import PostgresServer, places
from harness.process import own, server_account, temporary_folder

TABLES = """
    CREATE EXTENSION pg_fence;
    CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL DEFAULT 0, fence bigint NOT NULL DEFAULT 0);
    CREATE TABLE nullable (id int PRIMARY KEY, v int, fence int);
    CREATE TABLE parts (r text, id int, v int NOT NULL DEFAULT 0, fence bigint NOT NULL DEFAULT 0, PRIMARY KEY (r, id)) PARTITION BY LIST (r);
    CREATE TABLE pa PARTITION OF parts FOR VALUES IN ('a'); CREATE TABLE pb PARTITION OF parts FOR VALUES IN ('b');
    CREATE TABLE guarded (LIKE t INCLUDING ALL);
    INSERT INTO t (id) SELECT generate_series(1, 9); INSERT INTO nullable VALUES (1); INSERT INTO parts VALUES ('a', 1), ('a', 2);
    INSERT INTO guarded SELECT * FROM t; SELECT fence_protect('guarded'), fence_protect('parts');
"""
CLAIMS = """
    SELECT fenced_claim_json('t', id, 5) FROM t ORDER BY id; SELECT fenced_claim_json('guarded', id, 5) FROM guarded ORDER BY id;
    SELECT fenced_claim_json('nullable', 1, 5); SELECT fenced_claim_json('parts', ROW('a'::text, id), 5) FROM parts ORDER BY id
"""
# What relies on a claim of fence 5, and how many rows it writes.
FUNCTIONS = {
    "SELECT fenced_update('t', 1, 5, '{\"v\": 1}')": 1,
    "SELECT * FROM fenced_update_returning(NULL::t, 1, 5, '{\"v\": 1}')": 1,
    "SELECT fenced_write('t', 1, 5, '{\"v\": 1}')": 1,
    "SELECT fenced_write('nullable', 1, 5, '{\"v\": 1}')": 1,
    "SELECT fenced_delete('t', 2, 5)": 1,
    "SELECT fenced_update('guarded', 1, 5, '{\"v\": 1}')": 1,
    "SELECT fenced_update('parts', ROW('a'::text, 1), 5, '{\"v\": 1}')": 1,
}
PLAIN = {
    "UPDATE guarded SET v = 1 WHERE id = 1": 1,
    "UPDATE guarded SET v = 1": 9,
    "DELETE FROM guarded WHERE id = 2": 1,
    "INSERT INTO guarded VALUES (1) ON CONFLICT (id) DO UPDATE SET v = 1": 1,
    "MERGE INTO guarded USING (VALUES (1)) s (id) ON guarded.id = s.id WHEN MATCHED THEN UPDATE SET v = 1": 1,
    "UPDATE parts SET v = 1 WHERE id = 1": 1,
    "UPDATE parts SET r = 'b' WHERE id = 1": 1,
}
# What does not.
OTHERS = {
    "SELECT fenced_claim_json('t', 3, 5)": 1,
    "SELECT fenced_write('t', 4, 6, '{\"v\": 1}')": 1,
    "SELECT fenced_write('nullable', 1, 6, '{\"v\": 1}')": 1,
    "SELECT fence_reset('t', 4, 5)": 1,
    "INSERT INTO guarded VALUES (99, 0, 5)": 1,
    "SELECT fenced_guard('r', 5)": 1,
}
STALE = ("SELECT fenced_update('t', 1, 4, '{\"v\": 1}')", "SELECT fenced_write('t', 1, 4, '{\"v\": 1}')")


def outcome(db, statement, *before):
    """The SQLSTATE, or how many rows it gave or wrote; rolled back."""
    db.execute("BEGIN")
    try:
        for one in before:
            db.execute(one)
        return db.execute(statement).rowcount
    except psycopg.Error as error:
        return error.sqlstate
    finally:
        db.execute("ROLLBACK")


def outcomes(db):
    return {**{one: outcome(db, one) for one in FUNCTIONS}, **{one: outcome(db, one, "SELECT fence_use(5)") for one in PLAIN}}


def others(db):
    return {one: outcome(db, one, "SELECT fence_use(5)") for one in OTHERS}


HELD = {**FUNCTIONS, **PLAIN}
OUTLIVED = dict.fromkeys(HELD, "LF006")


def restart(server):
    server.restart()


def power_failure(server):
    server.kill()
    server.start()


def crash_of_a_process(server):
    server.crash()


def promotion(server):
    server.stop()
    (server.data_dir / "standby.signal").touch()
    server.start()
    with psycopg.connect(server.url(), autocommit=True) as db:
        assert outcome(db, "SELECT fenced_update('t', 1, 5, '{\"v\": 1}')") == "25006"
        assert db.execute("SELECT pg_promote()").fetchone() == (True,)
        assert outcomes(db) == OUTLIVED, "in a session from before the promotion, too"


def restore_of_a_cold_copy(server):
    server.stop()
    copy = server.data_dir.with_name("copy")
    shutil.copytree(server.data_dir, copy, symlinks=True)
    shutil.rmtree(server.data_dir)
    copy.rename(server.data_dir)
    if os.geteuid() == 0:
        owner = server.data_dir.parent.stat()
        for path in [server.data_dir, *server.data_dir.rglob("*")]:
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
    server.start()


ENDS = [restart, power_failure, crash_of_a_process, promotion, restore_of_a_cold_copy]


@pytest.fixture(params=["", "pg_fence"], ids=["loaded at a call", "preloaded"])
def server(pg, request):
    chosen = {} if places.chosen_pg_config() else {"major": pg.major}
    server = PostgresServer(**chosen, settings={"shared_preload_libraries": request.param, "max_prepared_transactions": 2}).start()
    server.psql(TABLES)
    yield server
    server.close()


def claimed(server):
    """A session after the claims, which another has made."""
    server.psql(CLAIMS)
    return psycopg.connect(server.url(), autocommit=True)


def test_a_claim_of_another_life_is_refused_and_a_new_one_cures_it(server):
    with claimed(server) as db:
        assert outcomes(db) == HELD, "in the life in which they were made"
    for end in ENDS:
        end(server)
        with psycopg.connect(server.url(), autocommit=True) as db:
            assert (end.__name__, outcomes(db)) == (end.__name__, OUTLIVED)
            assert others(db) == OTHERS
            assert [db.execute(stale).fetchone() for stale in STALE] == [(False,)] * 2, "stale is stale in any life"
            assert outcome(db, "SELECT fenced_update('t', 1, 6, '{\"v\": 1}')") == "LF002"
        with claimed(server) as db:
            assert (end.__name__, outcomes(db)) == (end.__name__, HELD)


def test_the_refusal_says_since_when_claims_count_and_what_to_do(server):
    claimed(server).close()
    server.restart()
    with psycopg.connect(server.url(), autocommit=True) as db:
        for word, row, statements in [
            ("claim_outlived", "Key (id)=(1)", ["SELECT fenced_update('t', 1, 5, '{\"v\": 1}')"]),
            ("plain_write_outlived", "The row", ["SELECT fence_use(5)", "UPDATE guarded SET v = 1 WHERE id = 1"]),
        ]:
            with pytest.raises(psycopg.Error) as caught, db.transaction():
                for statement in statements:
                    db.execute(statement)
            diag = caught.value.diag
            assert (diag.sqlstate, diag.constraint_name) == ("LF006", word)
            assert "in another life of the server" in diag.message_primary
            assert diag.message_detail.startswith(f"{row} was last written before 20"), diag.message_detail
            assert diag.message_hint == "Claim all rows of the unit with fence 5 and read them again, then write."
        if db.execute("SELECT kind FROM pg_stat_fence").fetchone() != (None,):
            counted = "SELECT target::text, outlived, unclaimed, unfenced_refused FROM pg_stat_fence WHERE outlived > 0 ORDER BY 1"
            assert db.execute(counted).fetchall() == [("guarded", 1, 0, 0), ("t", 1, 0, 0)]
        db.execute("SET pg_fence.check_life = off")
        assert outcomes(db) == HELD


def test_what_keeps_the_version_keeps_the_claim_of_its_life(server):
    """And nothing of it makes a claim of another life count."""
    maintenance = ["VACUUM FREEZE t", "VACUUM FULL t", "CLUSTER t USING t_pkey", "ALTER TABLE t ADD more int DEFAULT 7", "SELECT * FROM t FOR UPDATE"]
    statement = "SELECT fenced_update('t', 1, 5, '{\"v\": 1}')"
    with claimed(server) as db:
        for one in maintenance:
            db.execute(one)
            assert (one, outcome(db, statement)) == (one, 1)
        db.execute("ALTER TABLE t DROP more")
    server.restart()
    with psycopg.connect(server.url(), autocommit=True) as db:
        for one in maintenance:
            db.execute(one)
            assert (one, outcome(db, statement)) == (one, "LF006")


def test_rights_on_columns_suffice(server):
    with claimed(server) as db:
        db.execute("CREATE ROLE clerk; GRANT SELECT (id, fence), UPDATE (v, fence) ON t, parts, guarded TO clerk")
        statements = ["SELECT fenced_update('t', 1, 5, '{\"v\": 1}')", "SELECT fenced_write('t', 1, 5, '{\"v\": 1}')", "SELECT fenced_update('guarded', 1, 5, '{\"v\": 1}')"]
        for statement in statements:
            assert outcome(db, statement, "SET LOCAL ROLE clerk") == 1
        assert outcome(db, "SELECT xmin FROM t", "SET LOCAL ROLE clerk") == "42501"


def test_of_many_rows_each_is_judged_by_the_life_of_its_claim(server):
    """With rights on columns that do not include the one that says who wrote a row."""
    claimed(server).close()
    server.restart()
    with psycopg.connect(server.url(), autocommit=True) as db:
        db.execute("CREATE ROLE clerk; GRANT SELECT (id, fence), UPDATE (v, fence), DELETE ON t, guarded TO clerk; GRANT SELECT, UPDATE ON parts, nullable TO clerk")
        db.execute("SELECT pg_stat_fence_reset()")
        for table in ("t", "guarded"):
            db.execute(f"SELECT fenced_claim_json('{table}', 2, 5), fenced_claim_json('{table}', 3, 6)")
            db.execute("SET ROLE clerk")
            patched = "SELECT verdict, stored_fence FROM fenced_{}_many('%s', ARRAY[4, 3, 2, 1, 99], '{5,5,5,5,5}', '{\"v\": 1}')" % table
            judged = [("outlived", 5), ("stale", 6), ("written", 5), ("outlived", 5), ("missing", None)]
            assert db.execute(patched.replace("{}", "update")).fetchall() == judged
            assert db.execute(patched.replace("{}", "write")).fetchall() == judged
            assert db.execute(f"SELECT verdict, stored_fence FROM fenced_delete_many('{table}', ARRAY[1, 2, 3], '{{5}}')").fetchall() == [("outlived", 5), ("written", None), ("stale", 6)]
            assert db.execute(f"SELECT verdict FROM fenced_update_many('{table}', ARRAY[1, 3], '{{6}}', '{{\"v\": 1}}')").fetchall() == [("unclaimed",), ("written",)]
            assert db.execute(f"SELECT verdict FROM fenced_write_many('{table}', ARRAY[1, 4], '{{6}}', '{{\"v\": 1}}')").fetchall() == [("written",)] * 2, "a newer stamp relies on nothing"
            db.execute("RESET ROLE")
        for call, expected in (("'parts', ARRAY[ROW('a'::text, 1), ROW('a'::text, 2)]", ["outlived"] * 2), ("'nullable', ARRAY[1]", ["outlived"])):
            assert [row[0] for row in db.execute(f"SELECT verdict FROM fenced_update_many({call}, '{{5}}', '{{\"v\": 1}}')")] == expected
        if db.execute("SELECT kind FROM pg_stat_fence").fetchone() != (None,):
            assert dict(db.execute("SELECT target::text, outlived FROM pg_stat_fence").fetchall()) == {"t": 5, "guarded": 5, "parts": 2, "nullable": 1}
        db.execute("SET pg_fence.check_life = off")
        assert [row[0] for row in db.execute("SELECT verdict FROM fenced_update_many('t', ARRAY[5, 6], '{5}', '{\"v\": 1}')")] == ["written"] * 2


def test_what_is_prepared_in_another_life_is_refused(server):
    with claimed(server) as db:
        for name, row in {"before": 1, "after": 2}.items():
            db.execute(f"BEGIN; SELECT fenced_claim_json('t', {row}, 7); PREPARE TRANSACTION '{name}'")
            if name == "before":
                db.close()
                server.restart()
                db = psycopg.connect(server.url(), autocommit=True)
        db.execute("COMMIT PREPARED 'before'")
        db.execute("COMMIT PREPARED 'after'")
        assert outcome(db, "SELECT fenced_update('t', 1, 7, '{\"v\": 1}')") == "LF006"
        assert outcome(db, "SELECT fenced_update('t', 2, 7, '{\"v\": 1}')") == 1
        db.close()


def test_a_transaction_that_began_before_anybody_asked_is_of_this_life(server):
    """One that has its number before the library is loaded, and one of which that is true in a savepoint."""
    server.restart()
    with psycopg.connect(server.url(), autocommit=True) as early, psycopg.connect(server.url(), autocommit=True) as late:
        early.execute("BEGIN; CREATE TEMP TABLE gives_it_a_number (); SAVEPOINT s; SELECT pg_current_xact_id()")
        assert outcome(late, "SELECT fenced_update('t', 1, 5, '{\"v\": 1}')") == "LF002"
        late.execute("SELECT fenced_claim_json('t', 2, 5)")
        early.execute("SELECT fenced_claim_json('t', 1, 5); COMMIT")
        for db in (early, late):
            for row in (1, 2):
                assert outcome(db, f"SELECT fenced_update('t', {row}, 5, '{{\"v\": 1}}')") == 1


def test_a_trigger_that_blocks_is_told_apart_from_another_life(server):
    """Also one in which a fenced call meets a version of another life, and catches the refusal."""
    claimed(server).close()
    server.restart()
    with psycopg.connect(server.url(), autocommit=True) as db:
        db.execute("""SELECT fenced_claim_json('t', 1, 5);
            CREATE FUNCTION block() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                BEGIN PERFORM fenced_update('guarded', 1, 5, '{"v": 1}'); EXCEPTION WHEN SQLSTATE 'LF006' THEN NULL; END;
                RETURN NULL; END $$;
            CREATE TRIGGER block BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION block()""")
        assert outcome(db, "SELECT fenced_update('t', 1, 5, '{\"v\": 1}')") == "LF004"
        assert outcome(db, "SELECT fenced_update('t', 2, 5, '{\"v\": 1}')") == "LF006"


@pytest.mark.parametrize("writes", [400, pytest.param(10_000, marks=pytest.mark.long)])
def test_nothing_is_refused_that_was_claimed_since_the_start(server, writes):
    """From the first moment, by sessions that load the library one after the other."""
    claimed(server).close()
    server.restart()
    problems = []
    fence = 10
    for _ in range(writes // 20):
        with psycopg.connect(server.url(), autocommit=True) as db:
            for row in range(1, 6):
                fence += 1
                for statement in [
                    f"SELECT fenced_claim_json('t', {row}, {fence})",
                    f"SELECT fenced_update('t', {row}, {fence}, '{{\"v\": 1}}')",
                    f"BEGIN; SELECT fenced_claim_json('guarded', {row}, {fence}); SELECT fence_use({fence}); UPDATE guarded SET v = 1 WHERE id = {row}; COMMIT",
                    f"SELECT fenced_write('t', {row}, {fence}, '{{\"v\": 2}}')",
                ]:
                    try:
                        db.execute(statement)
                    except psycopg.Error as error:
                        problems.append((statement, error.sqlstate))
                        db.execute("ROLLBACK")
    assert problems == []


def test_a_parallel_worker_loads_the_library(server):
    with claimed(server) as db:
        forced = "debug_parallel_query" if db.info.server_version >= 160000 else "force_parallel_mode"
        db.execute(f"SELECT fenced_claim_json('t', 1, 5); SET {forced} = on; SET max_parallel_workers_per_gather = 2")
        assert "Workers Launched: 1" in str(db.execute("EXPLAIN (ANALYZE, TIMING off) SELECT count(*) FROM t").fetchall())
        assert outcomes(db) == HELD


def test_without_shared_memory_a_session_counts_its_own_claims(pg, make_pg):
    """The server can make no more of it: nothing fails, and what is not known to be of this life is refused."""
    if pg.major < 17:
        return  # the life is in the server's main segment there
    server = make_pg(settings={"dynamic_shared_memory_type": "mmap"})
    server.psql(TABLES)
    server.psql(CLAIMS)
    server.restart()
    folder = server.data_dir / "pg_dynshmem"
    folder.chmod(0o500)
    try:
        with psycopg.connect(server.url(), autocommit=True) as one, psycopg.connect(server.url(), autocommit=True) as other:
            assert outcomes(one) == OUTLIVED
            for statement in CLAIMS.split(";"):
                one.execute(statement)
            assert outcomes(one) == HELD
            assert outcome(other, "SELECT fenced_update('t', 1, 5, '{\"v\": 1}')") == "LF006"
            other.execute("SELECT fenced_claim_json('t', 1, 5)")
            assert outcome(other, "SELECT fenced_update('t', 1, 5, '{\"v\": 1}')") == 1
    finally:
        folder.chmod(0o700)


# --- Guards.

ENTER, ENTER_IN = "SELECT fenced_guard('r', 5)", "SELECT fenced_guard('r', %s, %s)"


def life_of(db):
    return db.execute("SELECT fence_life()").fetchone()[0]


def enter(db, fence, life):
    """The SQLSTATE and the code word, or None; in a transaction of its own."""
    try:
        with db.transaction():
            assert db.execute(ENTER_IN, (fence, life)).fetchone() == (fence,)
    except psycopg.Error as error:
        return error.sqlstate, error.diag.constraint_name
    return None


def test_a_guard_refuses_who_has_read_in_another_life(server):
    before = None
    for end in [None, *ENDS]:
        if end:
            claimed(server).close()
            end(server)
        with psycopg.connect(server.url(), autocommit=True) as db, psycopg.connect(server.url(), autocommit=True) as other:
            db.execute("SELECT fence_guard_forget(9)")
            if before:
                for fence, stored in [(5, 4), (5, 5), (6, 5)]:
                    assert enter(db, stored, "") is None
                    assert enter(db, fence, before) == ("LF006", "guard_outlived"), end
                    assert db.execute("SELECT fence FROM fence_internals.guards").fetchone() == (stored,), "nothing is stamped"
                assert enter(db, 4, before) == ("LF001", "guard_stale"), "stale is stale in any life"
                assert enter(db, 6, before) == ("LF006", "guard_outlived")
                db.execute("SET pg_fence.check_life = off")
                assert enter(db, 6, before) is None
                db.execute("RESET pg_fence.check_life")
            life = life_of(db)
            assert life != before and life == life_of(other), "the same for all sessions"
            for fence in (7, 7, 8):
                assert enter(other, fence, life) is None
            assert enter(db, 8, "") is None and enter(db, 8, life) is None
            before = life


def test_a_life_that_is_none_is_refused_and_changes_nothing(db):
    assert enter(db, 5, "") is None
    life = life_of(db)
    for bad in ["x", life.upper() + " ", life[:-1], "0" * 16, "\u00e4" * 8, "f" * 1000]:
        assert enter(db, 6, bad) == ("22023", "not_a_life"), bad
    assert enter(db, 6, None) == ("22004", "null_argument")
    with pytest.raises(psycopg.Error) as caught, db.transaction():
        db.execute(ENTER_IN, (5, "x"))
    assert caught.value.diag.message_primary == 'argument "life" is "x", which fence_life() does not return'
    assert db.execute("SELECT fence FROM fence_internals.guards").fetchone() == (5,)


def test_the_refusal_at_a_guard_says_what_to_do_and_is_counted(pg, db):
    assert enter(db, 5, "") is None
    other = f"{int(life_of(db), 16) ^ 1:016x}"
    with pytest.raises(psycopg.Error) as caught, db.transaction():
        db.execute(ENTER_IN, (5, other))
    diag = caught.value.diag
    assert diag.message_primary == 'fence 5 has read in another life of the server, at guard "r"'
    assert diag.message_detail.startswith('Argument "life" is of another life than the one that counts since 20')
    assert diag.message_hint == "Begin again: call the guard without a life, call fence_life(), read again, then write."
    if pg.major is None or pg.major >= 17:
        assert db.execute("SELECT outlived, claims FROM pg_stat_fence WHERE kind = 'guard'").fetchone() == (1, 1)


# --- A life that an operator begins.


def test_an_operator_begins_a_life_for_all_databases(server):
    server.psql("CREATE DATABASE other")
    server.psql(TABLES, "other")
    with claimed(server) as db, psycopg.connect(server.url("other"), autocommit=True) as other:
        for statement in CLAIMS.split(";"):
            other.execute(statement)
        assert outcomes(db) == outcomes(other) == HELD
        before = life_of(other)
        db.execute("BEGIN")
        (new,) = db.execute("SELECT fence_new_life()").fetchone()
        db.execute("ROLLBACK")
        assert new == life_of(db) == life_of(other) != before
        assert outcomes(db) == outcomes(other) == OUTLIVED, "it is no matter of the transaction"
        assert enter(other, 5, before) == ("LF006", "guard_outlived") and enter(other, 5, new) is None
        for statement in CLAIMS.split(";"):
            other.execute(statement)
        assert (outcomes(db), outcomes(other)) == (OUTLIVED, HELD)
    assert "pg_fence: fence_new_life() began another life: no claim from before transaction" in server.log()


def test_a_transaction_that_is_under_way_is_of_the_life_before(server):
    """It revives nothing that was claimed while it ran, either."""
    with claimed(server) as db, psycopg.connect(server.url(), autocommit=True) as early:
        early.execute("BEGIN; CREATE TEMP TABLE gives_it_a_number ()")
        db.execute("SELECT fenced_claim_json('t', 1, 5); SELECT fence_new_life()")
        early.execute("SELECT fenced_claim_json('t', 3, 5)")
        assert outcome(db, "SELECT fenced_update('t', 1, 5, '{\"v\": 1}')") == "LF006"
        early.execute("COMMIT")
        assert outcome(db, "SELECT fenced_update('t', 3, 5, '{\"v\": 1}')") == "LF006"
        for row in (1, 3):
            early.execute(f"SELECT fenced_claim_json('t', {row}, 5)")
            assert outcome(db, f"SELECT fenced_update('t', {row}, 5, '{{\"v\": 1}}')") == 1


def test_nobody_but_its_owner_begins_a_life_unless_it_is_granted(db):
    db.execute("CREATE ROLE clerk; SET ROLE clerk")
    try:
        assert outcome(db, "SELECT fence_new_life()") == "42501"
        assert outcome(db, "SELECT fence_life()") == 1
    finally:
        db.execute("RESET ROLE; DROP ROLE clerk")


def test_a_library_whose_loading_is_cancelled_is_loaded_by_the_next_call(pg, dsn):
    """The planner evaluates both functions: the one leaves a cancel pending, and the other loads the library, which warns of a
    setting that it does not know. The server looks for cancels at each warning."""
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute(TABLES.replace("CREATE EXTENSION pg_fence;", ""))
        db.execute("""
            CREATE FUNCTION cancel(pid int) RETURNS bool IMMUTABLE STRICT LANGUAGE internal AS 'pg_cancel_backend';
            CREATE FUNCTION use(fence bigint) RETURNS bigint IMMUTABLE STRICT LANGUAGE c AS '$libdir/pg_fence', 'pg_fence_use'""")
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute("SET pg_fence.unknown = 1")
        assert outcome(db, f"SELECT cancel({db.info.backend_pid}) AND use(5) = 5") == "57014"
        db.execute("SELECT fenced_claim_json('guarded', 1, 5)")
        assert outcome(db, "UPDATE guarded SET v = 1 WHERE id = 1", "SELECT fence_use(5)") == 1
        assert outcome(db, "UPDATE guarded SET v = 1 WHERE id = 1") == "LF003"
        assert db.execute("SHOW pg_fence.check_life").fetchone() == ("on",)


# --- A standby that lacks the files of the extension.


def test_a_server_without_the_files_lets_nothing_through_until_it_has_them(pg, make_pg, closing):
    primary = make_pg()
    primary.psql(f"{TABLES} {CLAIMS}")
    primary.stop()
    chosen = {} if places.chosen_pg_config() else {"major": pg.major}
    bare = closing(PostgresServer(**chosen, extension=False, folder=temporary_folder("fencelock-bare", server_account())))
    shutil.copytree(primary.data_dir, bare.data_dir, symlinks=True)
    own(bare.data_dir, server_account())
    bare.start()
    has_files = "SELECT FROM pg_available_extensions WHERE name = 'pg_fence'"
    try:
        with psycopg.connect(bare.url(), autocommit=True) as db:
            assert db.execute(has_files).rowcount == 0
            for statement in [*FUNCTIONS, "INSERT INTO guarded VALUES (99)", "UPDATE guarded SET v = 1"]:
                assert (statement, outcome(db, statement)) == (statement, "58P01")
            bare.installation.install_extension()
            assert db.execute(has_files).rowcount == 1
        with psycopg.connect(bare.url(), autocommit=True) as db:
            assert outcomes(db) == OUTLIVED
            assert outcome(db, "INSERT INTO guarded VALUES (99)") == 1
    finally:
        bare.kill()
        shutil.rmtree(bare.data_dir.parent)


# --- A cancelled wait for a synchronous standby.


def test_a_cancelled_wait_for_the_standby_answers_true_with_a_warning_alone(make_pg, eventually):
    """So the runbook says that its answer is not to be relied on."""
    server = make_pg(settings={"synchronous_standby_names": "nobody"})
    server.psql(f"SET synchronous_commit = local; {TABLES} {CLAIMS}")
    warnings, answers = [], []
    with psycopg.connect(server.url(), autocommit=True) as db, psycopg.connect(server.url(), autocommit=True) as other:
        db.add_notice_handler(lambda diag: warnings.append(diag.message_primary))
        writer = threading.Thread(target=lambda: answers.append(db.execute("SELECT fenced_update('t', 1, 5, '{\"v\": 1}')").fetchone()))
        writer.start()
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        eventually(lambda: other.execute(waits).fetchone(), (1,))
        other.execute("SELECT pg_cancel_backend(%s)", (db.info.backend_pid,))
        writer.join(60)
    assert answers == [(True,)]
    (runbook,) = re.findall(r"\(`(canceling wait [^`]*)`", (places.ROOT / "docs" / "operations.md").read_text())
    assert warnings == [runbook]
