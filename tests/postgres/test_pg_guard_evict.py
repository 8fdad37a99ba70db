"""Who holds a guard, as `fence_guard_blockers` shows it; ending older holders with `fence_guard_evict`."""

import itertools
import threading

import psycopg
import pytest

from harness.waiting import HANG_S
from refusals import refusal, refused
from test_pg_guard import GUARD, Waiting, guard, sessions, stored  # noqa: F401

ALL = "SELECT resource, pid, fence, state, waiters, gid FROM fence_guard_blockers ORDER BY resource, pid"


def pid(connection):
    return connection.info.backend_pid


def begun(connection, fence, resource="r"):
    """The session, with the guard in a transaction that stays open."""
    connection.execute("BEGIN")
    guard(connection, fence, resource)
    return connection


def blockers(db):
    return db.execute(ALL).fetchall()


def fences(db):
    """The fences of the holders, by process."""
    return dict(db.execute("SELECT pid, fence FROM fence_guard_blockers").fetchall())


def evict(db, fence, resource="r"):
    return db.execute("SELECT fence_guard_evict(%s, %s)", (resource, fence)).fetchone()[0]


def not_older(guard, fence):
    """The notice of a call with too small a fence. It does not name the other: who evicts may not be one who sees it."""
    return (
        f'no session is terminated: guard "{guard}" is held with a fence that is not older than {fence}',
        "Pass the fence of the newer holder. To end the holder itself, pass the fence that fence_guard_blockers shows, plus one.",
    )


def notices(connection):
    """A list that gets the notices of a session, with their hints."""
    said = []
    connection.add_notice_handler(lambda notice: said.append((notice.message_primary, notice.message_hint)))
    return said


def is_there(db, connection):
    return db.execute("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s)", (pid(connection),)).fetchone()[0]


@pytest.fixture
def role(db):
    """A factory of roles without any rights, dropped afterwards."""
    names = []

    def make(name, grants=""):
        db.execute(f"CREATE ROLE {name} LOGIN; {grants}")
        names.append(name)
        return name

    yield make
    for name in names:
        db.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.fixture
def as_role(dsn, connect):
    """A factory of sessions of a role."""
    return lambda name: connect(url=dsn, user=name)


# --- the story


def test_a_holder_that_is_idle_is_named_and_evicted_and_writes_nothing(pg, db, sessions, eventually):
    db.execute("CREATE TABLE t (v int)")
    old, new = sessions(2)
    begun(old, 41, "ledger").execute("INSERT INTO t VALUES (41)")
    number = pid(old)
    newer = Waiting(new, db, eventually, GUARD, ("ledger", 42))
    assert blockers(db) == [("ledger", pid(old), 41, "idle in transaction", 1, None)]
    began = "SELECT xact_start = (SELECT xact_start FROM pg_stat_activity AS a WHERE a.pid = b.pid) FROM fence_guard_blockers AS b"
    assert db.execute(began).fetchall() == [(True,)]
    assert evict(db, 42, "ledger") == [pid(old)]
    assert newer.answer() == "done"
    with refused("57P01"):
        old.execute("COMMIT")
    assert old.closed
    assert db.execute("SELECT count(*) FROM t").fetchone() == (0,)
    assert stored(db, "ledger") == 42
    line = f'role "postgres" evicts process {number} of role "postgres" from guard "ledger": it holds fence 41, older than 42'
    assert f"LOG:  pg_fence: {line}\n" in pg.log()
    assert blockers(db) == []


def test_a_worker_that_has_waited_long_enough_evicts_and_enters(db, sessions, eventually):
    old, new = sessions(2)
    begun(old, 41)
    new.execute("SET lock_timeout = '50ms'; BEGIN")
    with refused("55P03"):
        guard(new, 42)
    new.execute("ROLLBACK")
    assert evict(new, 42) == [pid(old)]
    new.execute("SET lock_timeout = 0")
    guard(new, 42)
    assert stored(db) == 42


# --- who is a holder, and with which fence


def test_all_who_share_an_older_fence_are_evicted(db, sessions, eventually):
    guard(db, 41)
    reads, writes, other, new = sessions(4)
    db.execute("CREATE TABLE t (v int)")
    begun(reads, 41)
    begun(writes, 41).execute("INSERT INTO t VALUES (1)")
    begun(other, 41, "another")
    newer = Waiting(new, db, eventually, GUARD, ("r", 42))
    assert fences(db) == dict.fromkeys(map(pid, (reads, writes, other)), 41)
    assert [row[4] for row in blockers(db)] == [0, 1, 1], "waiters are of their guard"
    assert sorted(evict(db, 42)) == sorted([pid(reads), pid(writes)])
    assert newer.answer() == "done"
    other.execute("COMMIT")


def test_a_holder_with_the_same_or_a_newer_fence_is_not_evicted(db, sessions):
    guard(db, 42)
    shares, too = (begun(session, 42) for session in sessions(2))
    said = notices(db)
    assert evict(db, 42) == evict(db, 41) == evict(db, 1) == []
    assert said == [not_older("r", fence) for fence in (42, 41, 1)]
    for session in (shares, too):
        session.execute("COMMIT")
    (alone,) = sessions(1)
    begun(alone, 50)
    said.clear()
    assert evict(db, 50) == evict(db, 49) == []
    assert said == [not_older("r", fence) for fence in (50, 49)]
    assert evict(db, 51, "r2") == []
    assert len(said) == 2, "nobody holds it"
    alone.execute("COMMIT")
    assert stored(db) == 50


def test_the_fence_is_that_of_the_transaction_and_not_the_committed_one(db, sessions):
    """The new fence is not committed yet: by the row that others can read, the holder would be an old one."""
    guard(db, 10)
    (holder,) = sessions(1)
    begun(holder, 50)
    assert fences(db) == {pid(holder): 50}
    assert evict(db, 20) == []
    holder.execute("COMMIT")


def test_who_waits_is_no_holder(db, sessions, eventually):
    holder, waits, behind = sessions(3)
    begun(holder, 50)
    older = Waiting(waits, db, eventually, GUARD, ("r", 41))
    newer = Waiting(behind, db, eventually, GUARD, ("r", 60))
    assert blockers(db) == [("r", pid(holder), 50, "idle in transaction", 2, None)]
    assert evict(db, 45) == []
    assert older.still_waits and newer.still_waits
    holder.execute("COMMIT")
    assert (older.answer(), newer.answer()) == ("LF001", "done")


def test_savepoints_change_what_is_held(db, sessions):
    (holder,) = sessions(1)
    holder.execute("BEGIN; SAVEPOINT a")
    guard(holder, 41)
    assert fences(db) == {pid(holder): 41}
    holder.execute("ROLLBACK TO a")
    assert (blockers(db), evict(db, 99)) == ([], [])
    guard(holder, 43)
    holder.execute("SAVEPOINT b")
    guard(holder, 45)
    holder.execute("RELEASE b; SAVEPOINT c")
    guard(holder, 47)
    assert (fences(db), evict(db, 47)) == ({pid(holder): 47}, [])
    holder.execute("ROLLBACK TO c")
    assert (fences(db), evict(db, 45)) == ({pid(holder): 45}, [])
    assert evict(db, 46) == [pid(holder)]


def test_a_holder_of_many_subtransactions_is_found(db, sessions):
    """More than a session keeps at hand: their parents are looked up."""
    guard(db, 5)
    (holder,) = sessions(1)
    holder.execute("CREATE TABLE parts (n int); BEGIN")
    holder.execute("""DO $$ BEGIN FOR n IN 1..200 LOOP
        BEGIN INSERT INTO parts VALUES (n); EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP;
        BEGIN PERFORM fenced_guard('r', 41); EXCEPTION WHEN division_by_zero THEN NULL; END; END $$""")
    assert fences(db) == {pid(holder): 41}
    assert evict(db, 42) == [pid(holder)]


def test_an_own_guard_is_shown_and_never_evicted(db):
    guard(db, 3)
    with db.transaction():
        guard(db, 3)
        assert fences(db) == {pid(db): 3}
        assert evict(db, 42) == []
        guard(db, 41)
        assert fences(db) == {pid(db): 41}
        assert evict(db, 42) == []
    assert stored(db) == 41


def test_a_reset_that_stays_open_is_a_holder_of_what_it_has_stored(db, sessions):
    guard(db, 41)
    (operator,) = sessions(1)
    operator.execute("BEGIN; SELECT fence_guard_reset('r', 7)")
    assert fences(db) == {pid(operator): 7}
    assert evict(db, 8) == [pid(operator)]
    assert stored(db) == 41


def test_a_holder_whose_guard_was_forgotten_is_shown_without_a_name(db, sessions):
    guard(db, 41)
    (holder,) = sessions(1)
    begun(holder, 41)
    assert db.execute("SELECT fence_guard_forget(50)").fetchone() == (1,)
    assert blockers(db) == [(None, pid(holder), None, "idle in transaction", 0, None)]
    said = notices(db)
    assert evict(db, 60) == [], "with which fence is not known any more"
    assert [message for message, _ in said] == ['no session is terminated: guard "r" is held with a fence that is not known']
    holder.execute("COMMIT")


def test_guards_of_other_databases_are_not_shown_and_not_evicted(pg, db, sessions):
    (holder,) = sessions(1)
    begun(holder, 41)
    pg.psql("CREATE DATABASE other TEMPLATE fence_template")
    try:
        with psycopg.connect(pg.url("other"), autocommit=True) as other:
            assert (blockers(other), evict(other, 42)) == ([], [])
    finally:
        pg.psql("DROP DATABASE other WITH (FORCE)")
    assert is_there(db, holder)


def test_among_other_guards_and_locks_the_right_one_is_found(db, sessions):
    for number in range(200):
        guard(db, 41, f"r{number}")
    (holder,) = sessions(1)
    holder.execute("BEGIN; SELECT count(fenced_guard('r' || n, 41)) FROM generate_series(50, 149) n")
    seen = [row[:3] for row in blockers(db)]
    assert seen == [(f"r{number}", pid(holder), 41) for number in sorted(range(50, 150), key=lambda n: f"r{n}")]
    assert evict(db, 42, "r49") == []
    assert evict(db, 42, "r50") == [pid(holder)]


EVICTING = """DO $$ DECLARE pids int[]; BEGIN FOR n IN 1..{rounds} LOOP
    SELECT fence_guard_evict('r', fence + 1) INTO pids FROM fence_internals.guards WHERE resource = 'r';
    IF cardinality(pids) > 0 THEN RAISE 'evicted: %', pids; END IF;
END LOOP; END $$"""


def test_who_comes_in_with_a_newer_fence_is_never_evicted_not_even_while_it_is_being_admitted(db, sessions):
    """Each transaction has a fence newer than all before. Whoever looks whether it may share the guard with what is stored
    does not hold it, whoever is alone has not stamped it yet: neither has an older fence."""
    numbers, lock, ends = itertools.count(10, 10), threading.Lock(), threading.Event()
    entered, problems = [], []
    guard(db, 1)

    def run(connection):
        try:
            while not ends.is_set():
                with lock:
                    fence = next(numbers)
                try:
                    guard(connection, fence)
                    entered.append(fence)
                except psycopg.Error as error:
                    if error.sqlstate != "LF001":
                        raise
        except psycopg.Error as error:
            problems.append(error)

    threads = [threading.Thread(target=run, args=(session,), daemon=True) for session in sessions(3)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        db.execute(EVICTING.format(rounds=100))
        if len(entered) > 300:
            break
    ends.set()
    for thread in threads:
        thread.join(HANG_S)
    assert problems == []
    assert len(entered) > 100


# --- prepared transactions


def test_a_prepared_transaction_is_shown_and_not_evicted(make_pg, eventually):
    server = make_pg(settings={"max_prepared_transactions": "5"})
    server.psql("CREATE EXTENSION pg_fence; CREATE ROLE app LOGIN; CREATE ROLE other LOGIN; GRANT EXECUTE ON FUNCTION fenced_guard(text, bigint) TO app")

    def session(**kwargs):
        return psycopg.connect(server.url(), autocommit=True, **kwargs)

    with session() as db:
        guard(db, 41, "shared")
    with session(user="app") as one:
        begun(one, 41, "alone").execute("SAVEPOINT s")
        guard(one, 41, "shared")
        one.execute("PREPARE TRANSACTION 'stuck'")
        one.execute("SELECT 1")
    for _ in range(2):
        with session() as db:
            assert blockers(db) == [(name, None, 41, "prepared", 0, "stuck") for name in ("alone", "shared")]
            assert db.execute("SELECT count(*) FROM fence_guard_blockers AS b JOIN pg_prepared_xacts AS p ON p.prepared = b.xact_start").fetchone() == (2,)
            said = notices(db)
            assert evict(db, 42, "alone") == evict(db, 41, "alone") == []
            prepared = (
                'a prepared transaction holds guard "alone" with fence 41, and no session has it',
                "Roll it back, or commit it, by the gid in fence_guard_blockers.",
            )
            assert said == [prepared, not_older("alone", 41)]
        with session(user="app") as app, session(user="other") as other:
            assert (len(blockers(app)), blockers(other)) == (2, [])
        server.kill()
        server.start()
    with session() as db, session() as new:
        newer = Waiting(new, db, eventually, GUARD, ("alone", 42))
        db.execute("ROLLBACK PREPARED 'stuck'")
        assert newer.answer() == "done"
        assert blockers(db) == []


# --- what is not ended


def test_a_session_that_has_committed_and_waits_for_a_standby_is_left(make_pg, eventually):
    server = make_pg(settings={"synchronous_standby_names": "nobody"})

    def session():
        return psycopg.connect(server.url(), autocommit=True, options="-c synchronous_commit=local")

    with session() as db, session() as holder:
        db.execute("CREATE EXTENSION pg_fence")
        begun(holder, 41).execute("SET LOCAL synchronous_commit = on")
        commits = threading.Thread(target=holder.execute, args=("COMMIT",), daemon=True)
        commits.start()
        eventually(lambda: db.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'").fetchone(), (1,))
        said = notices(db)
        assert fences(db) == {pid(holder): 41}
        assert evict(db, 42) == []
        assert said == [
            (
                f"process {pid(holder)} is not terminated: it has committed, and waits for a standby",
                "See to the standby, or to synchronous_standby_names.",
            )
        ]
        db.execute("SELECT pg_cancel_backend(%s)", (pid(holder),))
        commits.join(HANG_S)
        assert not commits.is_alive() and not holder.closed, "it goes on after the standby's answer, or without it"
        assert stored(db) == 41


# --- rights


def test_only_those_who_were_granted_it_may_evict(db, role, sessions):
    (holder,) = sessions(1)
    begun(holder, 41)
    db.execute(f"SET ROLE {role('worker')}")
    for call in ["fence_guard_evict('r', 42)", "fence_guard_evict(NULL, NULL)"]:
        assert refusal(db, f"SELECT {call}").sqlstate == "42501"
    db.execute("RESET ROLE")
    assert is_there(db, holder)


def test_whoever_was_granted_it_evicts_any_role_but_a_superuser(db, role, as_role, eventually):
    db.execute("CREATE ROLE boss LOGIN SUPERUSER")
    try:
        for name in ("app", "app2"):
            role(name, f"GRANT EXECUTE ON FUNCTION fenced_guard(text, bigint) TO {name}")
        role("operator", "GRANT EXECUTE ON FUNCTION fence_guard_evict(text, bigint) TO operator")
        guard(db, 41)
        app, app2, operator = as_role("app"), as_role("app2"), as_role("operator")
        begun(app, 41)
        assert evict(operator, 42) == [pid(app)]
        eventually(lambda: is_there(db, app), False)
        boss = as_role("boss")
        begun(app2, 41)
        begun(boss, 41)
        error = refusal(operator, "SELECT fence_guard_evict('r', 42)")
        assert (error.sqlstate, error.diag.constraint_name, error.diag.message_primary, error.diag.message_detail, error.diag.message_hint) == (
            "42501",
            "evicted_superuser",
            f"permission denied to terminate process {pid(boss)}",
            'It holds guard "r", and is a superuser\'s: only a superuser may terminate it.',
            "Have a superuser call fence_guard_evict().",
        )
        assert is_there(db, app2) and is_there(db, boss), "none is terminated where one may not be"
        boss.execute("ROLLBACK")
        assert evict(operator, 42) == [pid(app2)]
        eventually(lambda: is_there(db, app2), False)
        begun(boss, 41)
        assert evict(db, 42) == [pid(boss)]
        assert refusal(operator, "SELECT pg_terminate_backend(%s)", (pid(db),)).sqlstate == "42501"
    finally:
        db.execute("DROP OWNED BY boss; DROP ROLE boss")


def test_a_session_is_of_the_role_that_has_logged_in(db, role, as_role):
    """As pg_terminate_backend() has it: a superuser who has set another role is still one."""
    role("app", "GRANT EXECUTE ON FUNCTION fenced_guard(text, bigint) TO app")
    role("operator", "GRANT EXECUTE ON FUNCTION fence_guard_evict(text, bigint) TO operator")
    with psycopg.connect(db.info.dsn, autocommit=True) as disguised:
        disguised.execute("SET SESSION AUTHORIZATION app")
        begun(disguised, 41)
        assert refusal(as_role("operator"), "SELECT fence_guard_evict('r', 42)").sqlstate == "42501"


def test_each_sees_what_pg_stat_activity_shows_to_it(db, role, as_role):
    for name in ("app", "other"):
        role(name, f"GRANT EXECUTE ON FUNCTION fenced_guard(text, bigint) TO {name}")
    role("monitor", "GRANT pg_read_all_stats TO monitor")
    role("leader", "GRANT app TO leader")
    role("operator", "GRANT EXECUTE ON FUNCTION fence_guard_evict(text, bigint) TO operator")
    one, two = begun(as_role("app"), 41, "one"), begun(as_role("other"), 41, "two")
    seen = {name: [row[:2] for row in blockers(as_role(name))] for name in ("app", "other", "monitor", "leader", "operator")}
    first, second = ("one", pid(one)), ("two", pid(two))
    assert seen == {"app": [first], "other": [second], "monitor": [first, second], "leader": [first], "operator": []}
    assert [row[:2] for row in blockers(db)] == [first, second]
    direct = "SELECT resource FROM fence_internals.guard_holders()"
    assert as_role("app").execute(direct).fetchall() == [("one",)], "the function under the view shows no more"


# --- bad input


@pytest.mark.parametrize(
    ("resource", "fence", "sqlstate", "code"),
    [
        (None, 5, "22004", "null_argument"),
        ("", 5, "22023", "resource_name_length"),
        ("x" * 1025, 5, "22023", "resource_name_length"),
        ("r", None, "LF005", "fence_null"),
        ("r", 0, "LF005", "fence_not_positive"),
        ("r", 2**53, "LF005", "fence_above_protocol"),
        ("r", 2**53 - 1, "LF005", "fence_ahead_of_clock"),
    ],
)
def test_bad_input_is_named_and_ends_nobody(db, sessions, resource, fence, sqlstate, code):
    (holder,) = sessions(1)
    begun(holder, 41)
    error = refusal(db, "SELECT fence_guard_evict(%s, %s)", (resource, fence))
    assert (error.sqlstate, error.diag.constraint_name) == (sqlstate, code)
    assert is_there(db, holder)


def test_a_guard_that_is_not_there_has_no_holders(db):
    assert evict(db, 5, "nobody's") == []


def test_it_works_in_a_read_only_transaction_and_has_happened_if_that_is_rolled_back(db, sessions, eventually):
    (holder,) = sessions(1)
    begun(holder, 41)
    db.execute("BEGIN READ ONLY")
    assert fences(db) == {pid(holder): 41}
    assert evict(db, 42) == [pid(holder)]
    db.execute("ROLLBACK")
    eventually(lambda: is_there(db, holder), False)


def test_on_a_standby_nobody_holds_a_guard(make_pg):
    """What the primary's transactions hold is not replayed there, and nobody can enter."""
    server = make_pg()
    server.psql("CREATE EXTENSION pg_fence; BEGIN; SELECT fenced_guard('r', 41); COMMIT")
    server.stop()
    (server.data_dir / "standby.signal").touch()
    server.start()
    with psycopg.connect(server.url(), autocommit=True) as db:
        assert blockers(db) == []
        assert refusal(db, "SELECT fence_guard_evict('r', 42)").sqlstate == "25006"


def test_a_table_of_guards_that_is_not_as_made_is_refused(db):
    db.execute("ALTER TABLE fence_internals.guards ADD COLUMN more int")
    for statement in ("SELECT fence_guard_evict('r', 5)", "SELECT * FROM fence_guard_blockers"):
        error = refusal(db, statement)
        assert (error.sqlstate, error.diag.constraint_name, error.diag.message_primary, error.diag.message_hint) == (
            "55000",
            "guard_table_unusable",
            'table "fence_internals.guards" is not as the extension made it',
            "Create the extension again.",
        )


# --- seen from outside

EVENT = "SELECT wait_event_type, wait_event FROM pg_stat_activity WHERE pid = %s"


def test_a_wait_for_a_guard_has_a_name(pg, db, sessions, eventually):
    """Before version 17 an extension cannot name one: all that the server says is that it is a lock."""
    holder, waits = sessions(2)
    begun(holder, 41)
    newer = Waiting(waits, db, eventually, GUARD, ("r", 42))
    named = ("Extension", "pg_fence_guard") if pg.major > 16 else ("Lock", "userlock")
    eventually(lambda: db.execute(EVENT, (pid(waits),)).fetchone(), named)
    assert db.execute("SELECT pg_blocking_pids(%s)", (pid(waits),)).fetchone() == ([pid(holder)],)
    holder.execute("COMMIT")
    assert newer.answer() == "done"
    eventually(lambda: db.execute(EVENT, (pid(waits),)).fetchone(), ("Client", "ClientRead"))


@pytest.mark.parametrize("end", ["pg_cancel_backend", "pg_terminate_backend"])
def test_the_name_of_a_wait_goes_with_a_wait_that_is_ended(db, sessions, eventually, end):
    holder, waits = sessions(2)
    begun(holder, 41)
    newer = Waiting(waits, db, eventually, GUARD, ("r", 42))
    db.execute(f"SELECT {end}(%s)", (pid(waits),))
    assert newer.answer() == ("57014" if end == "pg_cancel_backend" else "57P01")
    left = [("Client", "ClientRead")] if end == "pg_cancel_backend" else []
    eventually(lambda: db.execute(EVENT, (pid(waits),)).fetchall(), left)
    holder.execute("COMMIT")
