"""The whole protocol in two statements: acquire and claim, update and release. And what a lock's row costs over many of them."""

import itertools

import pytest

from harness import eventually
from leases import TTL, Leases, Waiting, queue
from refusals import refusal, refused

ENTER = """SELECT f.mine, c.value FROM fencelock_acquire('l', %s, 60000, %s) AS f(mine),
    LATERAL fenced_claim(NULL::counters, %s, f.mine) AS c WHERE f.mine IS NOT NULL"""
ENTER_ANYHOW = """SELECT f.mine, c.value FROM fencelock_acquire('l', %s, 60000, %s) AS f(mine)
    LEFT JOIN LATERAL fenced_claim(NULL::counters, %s, f.mine) AS c ON true WHERE f.mine IS NOT NULL"""
LEAVE = "SELECT fenced_update('counters', %s, %s, %s::jsonb), fencelock_release('l', %s, %s)"


@pytest.fixture
def leases(db):
    db.execute("CREATE TABLE counters (id int PRIMARY KEY, value int NOT NULL CHECK (value < 100), fence bigint NOT NULL DEFAULT 0)")
    db.execute("INSERT INTO counters VALUES (1, 0)")
    return Leases(db)


def enter(leases, owner="me", wait_ms=None, row=1, statement=ENTER):
    return leases.connection.execute(statement, (owner, wait_ms, row)).fetchone()


def leave(leases, fence, value, owner="me", row=1):
    return leases.connection.execute(LEAVE, (row, fence, f'{{"value": {value}}}', owner, fence)).fetchone()


def test_two_statements_are_the_whole_protocol(leases, connect):
    fence, value = enter(leases)
    other = Leases(connect())
    assert (value, enter(other, "b")) == (0, None)
    assert leave(leases, fence, 1) == (True, True)
    newer, value = enter(other, "b")
    assert newer > fence and value == 1
    assert leave(leases, fence, 9) == (False, False)
    assert leave(other, newer, 2, "b") == (True, True)
    assert leases.one("SELECT value FROM counters") == 2


def test_a_stale_holder_is_refused_although_its_lease_has_gone(leases, connect):
    fence, _ = enter(leases)
    leases.one("SELECT fencelock_free('l')")
    newer, _ = enter(Leases(connect()), "b")
    assert leave(leases, fence, 9) == (False, False)
    assert leases.check(newer) is True


def test_a_claim_that_is_stale_keeps_the_lease_and_both_forms_say_so(leases):
    leases.connection.execute("UPDATE counters SET fence = 9000000000000000")
    assert enter(leases) is None and leases.inspect()["owner"] == "me"
    leases.release()
    fence, value = enter(leases, statement=ENTER_ANYHOW)
    assert value is None and leases.check(fence) is True


def test_an_error_of_the_claim_undoes_the_grant(leases):
    assert refusal(leases.connection, ENTER, ("me", None, 99)).sqlstate == "P0002"
    assert leases.inspect() is None and leases.acquire(owner="b") is not None


def test_without_the_filter_a_busy_lock_is_an_error_that_says_null(leases, connect):
    leases.acquire()
    other = connect()
    error = refusal(other, ENTER.partition(" WHERE")[0], ("b", None, 1))
    assert (error.sqlstate, error.diag.message_primary) == ("LF005", "the fence is null")


@pytest.mark.parametrize(
    "source",
    [
        "(SELECT fencelock_acquire('l', 'b', 60000)) AS f(mine)",
        "(SELECT fencelock_acquire('l', 'b', 60000) AS mine OFFSET 0) AS f",
        "fencelock_acquire('l', 'b', 60000) AS f(mine)",
        "f",
    ],
)
def test_null_reaches_no_claim_in_any_form_of_the_statement(leases, connect, source):
    leases.acquire()
    with_ = "WITH f AS MATERIALIZED (SELECT fencelock_acquire('l', 'b', 60000) AS mine) " if source == "f" else ""
    statement = f"{with_}SELECT f.mine, c.value FROM {source}, LATERAL fenced_claim(NULL::counters, 1, f.mine) AS c WHERE f.mine IS NOT NULL"
    other = connect()
    assert other.execute(statement).fetchall() == []
    leases.release()
    assert other.execute(statement).fetchone()[1] == 0


def test_an_update_that_raises_undoes_the_release_and_release_alone_works_then(leases):
    fence, _ = enter(leases)
    with refused("23514"):
        leave(leases, fence, 100)
    assert leases.check(fence) is True
    assert leases.release("l", "me", fence) is True


def test_the_claim_reads_what_was_committed_during_the_wait_and_a_sub_select_does_not(leases, connect):
    """The warning of the manual."""
    fence, _ = enter(leases)
    statement = ENTER.replace("c.value", "c.value, (SELECT value FROM counters WHERE id = 1)")
    waiter = Waiting(connect(), lambda own: own.connection.execute(statement, ("b", 100_000, 1)).fetchone())
    eventually(leases.waiters, 1)
    assert leave(leases, fence, 77) == (True, True)
    newer, claimed, selected = waiter.answer()
    assert (claimed, selected) == (77, 0) and newer > fence


def test_a_serializable_claim_of_what_changed_is_40001_and_undoes_the_grant(leases, connect):
    session = connect()
    session.execute("SET pg_fence.lease_in_transaction = on")
    session.execute("BEGIN ISOLATION LEVEL SERIALIZABLE")
    session.execute("SELECT count(*) FROM pg_class")
    fence, _ = enter(leases)
    leave(leases, fence, 1)
    assert refusal(session, ENTER, ("b", None, 1)).sqlstate == "40001"
    session.execute("ROLLBACK")
    assert leases.inspect() is None


# --- the room that a row takes


@pytest.fixture
def quiet(make_pg, connect):
    """Sessions of a server that never vacuums."""
    server = make_pg(settings={"autovacuum": "off"})
    server.psql("CREATE EXTENSION pg_fence")
    return lambda: Leases(connect(url=server.url()))


CYCLES = "DO $$ BEGIN FOR n IN 1..{} LOOP PERFORM fencelock_acquire('{}', 'me', 60000); COMMIT; PERFORM fencelock_release('{}', 'me'); COMMIT; END LOOP; END $$"
PAGES = "SELECT pg_relation_size('fence_internals.leases') / 8192"


@pytest.mark.parametrize("cycles", [4_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_many_cycles_on_one_lock_stay_on_one_page(quiet, cycles):
    one, two = quiet(), quiet()
    for session in (one, two, one):
        session.connection.execute(CYCLES.format(cycles // 3, "l", "l"))
    assert one.one(PAGES) == 1


def test_many_locks_stay_on_their_pages(quiet):
    leases = quiet()
    leases.connection.execute("SELECT fencelock_acquire('l' || n, 'me', 60000), fencelock_release('l' || n, 'me') FROM generate_series(1, 300) n")
    pages = leases.one(PAGES)
    for number in range(1, 301, 7):
        leases.connection.execute(CYCLES.format(20, f"l{number}", f"l{number}"))
    assert leases.one(PAGES) <= pages + 3


def test_under_an_old_snapshot_every_session_finds_the_newest_version(quiet):
    reader, one, two = quiet(), quiet(), quiet()
    reader.connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    reader.connection.execute("SELECT count(*) FROM pg_class")
    fences = []
    for cycle, session in zip(range(600), itertools.cycle([one, two]), strict=False):
        if cycle % 3 == 0:
            session.connection.execute(CYCLES.format(20, "l", "l"))
        fences.append(session.acquire())
        assert fences[-1] is not None and session.release("l", "me", fences[-1]) is True
    assert fences == sorted(set(fences))
    reader.connection.execute("COMMIT")
    one.connection.execute("VACUUM fence_internals.leases")
    assert two.acquire() > fences[-1] and one.acquire() is None


def test_a_hint_that_leads_nowhere_is_no_error(quiet):
    """The table gets shorter, or another row lies where this one was."""
    one, two = quiet(), quiet()
    two.connection.execute("SELECT fencelock_acquire('fill' || n, 'me', 60000), fencelock_release('fill' || n, 'me') FROM generate_series(1, 500) n")
    last = one.acquire("last")
    one.release("last")
    assert one.one(PAGES) > 3
    two.one("SELECT fencelock_forget(9007199254740991)")
    two.connection.execute("VACUUM fence_internals.leases")
    assert two.one(PAGES) == 0
    assert one.acquire("last") > last
    two.connection.execute("SELECT fencelock_acquire('again' || n, 'me', 60000), fencelock_release('again' || n, 'me') FROM generate_series(1, 500) n")
    two.one("SELECT fencelock_forget(9007199254740991)")
    two.connection.execute("VACUUM fence_internals.leases")
    two.connection.execute("SELECT fencelock_acquire('fill' || n, 'me', 60000) FROM generate_series(1, 500) n")
    assert one.release("last") is True and one.acquire("fill7") is None
    assert two.release("fill7") is True and one.acquire("fill7") is not None


def test_sixteen_waiters_get_the_lock_equally_often(quiet):
    """The loops run in the server. Each hold lasts until all others wait again, so that all of them want every grant."""
    clients, rounds = 16, 10
    leases = quiet()
    leases.connection.execute("CREATE TABLE grants (client int, fence bigint)")
    leases.acquire()
    loop = """DO $$ DECLARE f bigint; BEGIN
        FOR n IN 1..{rounds} LOOP
            f := fencelock_acquire('l', 'o{client}', 60000, 600000);
            INSERT INTO grants VALUES ({client}, f);
            COMMIT;
            WHILE n < {rounds} AND (SELECT waiters FROM fencelock_inspect('l')) < {others} LOOP
                PERFORM pg_sleep(0.001);
            END LOOP;
            PERFORM fencelock_release('l', 'o{client}', f);
            COMMIT;
        END LOOP; END $$"""
    waiting = []
    for client in range(clients):
        session = quiet()
        session.connection.execute("SET pg_fence.max_waiters_per_lock = 100")
        sql = loop.format(client=client, rounds=rounds, others=clients - 1)
        waiting.append(Waiting(session.connection, lambda own, sql=sql: own.connection.execute(sql) and "done"))
        eventually(leases.waiters, client + 1)
    leases.release()
    assert [waiter.answer() for waiter in waiting] == ["done"] * clients
    granted = [client for (client,) in leases.connection.execute("SELECT client FROM grants ORDER BY fence").fetchall()]
    assert granted == list(range(clients)) * rounds


def test_who_waits_sleeps_with_no_polling_and_says_for_what(pg, leases, connect):
    """The head of the queue sleeps until it is woken: it takes no lock again while the holder keeps its lease. Those behind
    wait for its place. Before version 17 an extension cannot name what it waits for."""
    leases.acquire(ttl_ms=TTL * 10)
    waiter, behind = queue([connect(), connect()], leases)
    events = "SELECT wait_event_type, wait_event FROM pg_stat_activity WHERE pid = %s"
    names = [("Extension", "pg_fence_lease")] * 2
    if pg.major < 17:
        names = [("Extension", "Extension"), ("Lock", "userlock")]
    for waiting, named in zip((waiter, behind), names, strict=True):
        pid = waiting.connection.info.backend_pid
        eventually(lambda pid=pid: leases.connection.execute(events, (pid,)).fetchone(), named)
    behind.connection.cancel()
    assert behind.answer() == "57014"
    leases.release()
    assert waiter.answer() is not None
