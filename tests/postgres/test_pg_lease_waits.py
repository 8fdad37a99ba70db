"""Waiting for a lock inside PostgreSQL: first in, first out, woken by the commit of a release, whatever ends a session."""

import itertools
import os
import socket
import threading

import psycopg
import pytest

from harness import eventually
from harness.waiting import HANG_S
from leases import Leases, Waiting, queue
from refusals import refused

LONG = 120_000


@pytest.fixture
def leases(db):
    return Leases(db)


@pytest.fixture
def sessions(connect):
    """A factory of sessions."""
    return lambda count: [connect() for _ in range(count)]


def begun(connection):
    """A session in a transaction block, in which leases are allowed."""
    connection.execute("SET pg_fence.lease_in_transaction = on")
    connection.execute("BEGIN")
    return Leases(connection)


def test_waiters_get_the_lock_first_in_first_out(leases, sessions):
    first = leases.acquire()
    waiting = queue(sessions(4), leases)
    assert leases.release() is True
    fences = []
    for number, waiter in enumerate(waiting):
        fences.append(waiter.answer())
        assert all(later.still_waits for later in waiting[number + 1 :])
        assert leases.inspect()["fence"] == fences[-1]
        assert leases.release(owner=f"w{number}") is True
    assert [first, *fences] == sorted({first, *fences})


def test_the_lease_of_a_waiter_starts_at_the_grant(leases, sessions):
    leases.acquire()
    (waiter,) = queue(sessions(1), leases, ttl_ms=50_000)
    eventually(lambda: leases.inspect()["held_ms"] >= 300)
    leases.release()
    waiter.answer()
    held = leases.inspect()
    assert held["ttl_ms"] + held["held_ms"] in (50_000, 50_001)


def test_a_newcomer_does_not_overtake(leases, sessions, connect):
    """Not in the gap between the end of a lease and its handover either: the head holds a place that others cannot have."""
    leases.acquire()
    head, behind = queue(sessions(2), leases)
    newcomer = Leases(connect())
    assert newcomer.acquire(owner="new") is None
    leases.release()
    got = [head.answer()]
    assert newcomer.acquire(owner="new") is None
    assert behind.still_waits and leases.inspect()["owner"] == "w0"
    leases.release(owner="w0")
    got.append(behind.answer())
    assert leases.inspect()["owner"] == "w1" and got == sorted(got)


def test_the_wait_ends_with_null(leases, sessions):
    leases.acquire()
    # Not by way of `queue`, as a wait may be over before it is seen.
    head, behind = (Waiting(connection, lambda own: own.acquire(owner="w", wait_ms=1_500)) for connection in sessions(2))
    assert (head.answer(), behind.answer()) == (None, None)
    assert (leases.waiters(), leases.one("SELECT count(*) FROM pg_locks WHERE locktype = 'userlock'")) == (0, 0)


def test_a_lease_that_expires_goes_to_the_head(leases, sessions):
    fence = leases.acquire()
    head, behind = queue(sessions(2), leases)
    assert leases.extend(ttl_ms=500) == 500
    assert head.answer() > fence and behind.still_waits
    leases.release(owner="w0")
    assert behind.answer() is not None


def test_a_delay_is_waited_out(leases, sessions):
    leases.acquire(delay_ms=500)
    (waiter,) = queue(sessions(1), leases)
    assert leases.extend(ttl_ms=500) == 500
    assert waiter.answer() is not None
    assert leases.inspect()["owner"] == "w0"


def test_an_extension_lets_the_head_wait_on_and_a_shorter_one_wakes_it(leases, sessions):
    for number in itertools.count():
        lock = f"l{number}"
        leases.acquire(lock, ttl_ms=1_000)
        (connection,) = sessions(1)
        waiter = Waiting(connection, lambda own: own.acquire(lock, "w", wait_ms=LONG))
        eventually(lambda: leases.waiters(lock) == 1 or not waiter.still_waits)
        if leases.extend(lock, ttl_ms=LONG):
            break
        # The lease has ended before.
    eventually(lambda: leases.inspect(lock)["held_ms"] >= 1_200)
    assert waiter.still_waits
    assert leases.extend(lock, ttl_ms=1) == 1
    assert waiter.answer() is not None


def test_a_rollback_of_a_release_grants_nothing_and_the_commit_does(leases, sessions, connect):
    leases.acquire()
    (waiter,) = queue(sessions(1), leases)
    session = begun(connect())
    assert session.release() is True
    session.connection.execute("ROLLBACK")
    assert waiter.still_waits and leases.inspect()["owner"] == "me"
    session.connection.execute("BEGIN")
    session.release()
    session.connection.execute("COMMIT")
    assert waiter.answer() is not None


def test_an_uncommitted_grant_is_waited_for_and_its_rollback_hands_the_lock_over(leases, sessions, connect):
    session = begun(connect())
    session.acquire()
    waiters = [Waiting(connection, lambda own: own.acquire(owner="w", wait_ms=LONG)) for connection in sessions(2)]
    eventually(lambda: leases.one("SELECT count(*) FROM pg_locks WHERE NOT granted"), 2)
    session.connection.execute("ROLLBACK")
    eventually(lambda: sorted(waiter.still_waits for waiter in waiters), [False, True])
    leases.release(owner="w")
    assert all(waiter.answer() is not None for waiter in waiters)


def test_a_prepared_release_hands_over_when_it_is_committed(connect, make_pg):
    server = make_pg(settings={"max_prepared_transactions": "2"})
    server.psql("CREATE EXTENSION pg_fence")
    leases, session = Leases(connect(url=server.url())), begun(connect(url=server.url()))
    leases.acquire()
    (waiter,) = queue([connect(url=server.url())], leases)
    assert session.release() is True
    session.connection.execute("PREPARE TRANSACTION 'p'")
    eventually(lambda: leases.one("SELECT count(*) FROM pg_locks WHERE NOT granted"), 1)
    assert waiter.still_waits
    leases.connection.execute("COMMIT PREPARED 'p'")
    assert waiter.answer() is not None


def test_a_transaction_does_not_wait_for_itself(connect, leases):
    session = begun(connect())
    session.acquire(owner="a")
    assert session.acquire(owner="b", wait_ms=LONG) is None
    session.connection.execute("ROLLBACK")


# --- what ends a wait


PLACES = ["head", "behind"]


def in_place(place, leases, sessions, **options):
    """A waiter in this place, the waiters before it, and those behind it."""
    waiting = queue(sessions(3), leases, **options)
    number = PLACES.index(place)
    return waiting[number], waiting[:number], waiting[number + 1 :]


def the_rest_is_served(leases, before, behind, first=0):
    leases.release()
    for waiter in [*before, *behind]:
        assert waiter.answer() is not None
        owner = leases.inspect()["owner"]
        assert leases.release(owner=owner) is True
    assert leases.one("SELECT count(*) FROM pg_locks WHERE locktype = 'userlock'") == 0


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("end", "sqlstate"), [("pg_cancel_backend", "57014"), ("pg_terminate_backend", "57P01")])
def test_a_waiter_that_is_cancelled_or_terminated_leaves_its_place(leases, sessions, place, end, sqlstate):
    leases.acquire()
    waiter, before, behind = in_place(place, leases, sessions)
    assert leases.one(f"SELECT {end}(%s)", waiter.connection.info.backend_pid) is True
    assert waiter.answer() == sqlstate
    the_rest_is_served(leases, before, behind)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("setting", "sqlstate"), [("lock_timeout", "55P03"), ("statement_timeout", "57014")])
def test_the_sessions_timeouts_end_a_wait(leases, sessions, place, setting, sqlstate):
    leases.acquire()

    def made(count):
        connections = sessions(count)
        connections[PLACES.index(place)].execute(f"SET {setting} = '2s'")
        return connections

    waiter, before, behind = in_place(place, leases, made)
    assert waiter.answer() == sqlstate
    the_rest_is_served(leases, before, behind)


def test_a_timeout_of_the_session_that_is_longer_than_the_wait_is_not_its_error(leases, connect):
    leases.acquire()
    session = Leases(connect())
    session.connection.execute("SET lock_timeout = '10min'")
    assert session.acquire(owner="b", wait_ms=200) is None
    assert session.one("SHOW lock_timeout") == "10min"


@pytest.mark.parametrize("place", PLACES)
def test_a_client_that_is_gone_gets_no_lease(leases, sessions, place):
    """Nobody would release it: the server checks the connection before the grant."""
    leases.acquire()
    waiter, before, behind = in_place(place, leases, sessions)
    close_socket(waiter.connection)
    the_rest_is_served(leases, before, behind)


@pytest.mark.parametrize("place", PLACES)
def test_a_gone_client_is_noticed_while_it_waits_where_the_server_checks(leases, sessions, place):
    leases.acquire()

    def made(count):
        connections = sessions(count)
        connections[PLACES.index(place)].execute("SET client_connection_check_interval = '100ms'")
        return connections

    waiter, before, behind = in_place(place, leases, made)
    close_socket(waiter.connection)
    eventually(leases.waiters, 2)
    the_rest_is_served(leases, before, behind)


def close_socket(connection):
    """As a client that is killed does."""
    with socket.socket(fileno=os.dup(connection.fileno())) as copy:
        copy.shutdown(socket.SHUT_RDWR)


def test_a_deadlock_of_two_transactions_is_the_servers_error(leases, connect):
    one, two = begun(connect()), begun(connect())
    one.acquire("a", "one"), two.acquire("b", "two")
    waiters = [
        Waiting(one.connection, lambda own: own.acquire("b", "one", wait_ms=LONG)),
        Waiting(two.connection, lambda own: own.acquire("a", "two", wait_ms=LONG)),
    ]
    answers = [waiter.answer() for waiter in waiters]
    assert answers.count("40P01") == 1 and None not in answers


@pytest.mark.parametrize("command", ["REINDEX TABLE", "VACUUM FULL"])
def test_a_sleeper_holds_up_nobody_who_locks_the_table(leases, sessions, connect, command):
    """And so not the holder, whose release would queue behind that."""
    fence = leases.acquire()
    (waiter,) = queue(sessions(1), leases, retry=True)
    admin = connect()
    admin.execute("SET statement_timeout = '30s'")
    admin.execute(f"{command} fence_internals.leases")
    assert waiter.still_waits and leases.extend() > 0 and leases.release() is True
    assert waiter.answer() > fence


def test_leases_go_on_while_the_index_is_built_anew(db, leases, connect):
    """CONCURRENTLY leaves a second index where it is cancelled, and has one until old snapshots have ended."""
    db.execute("CREATE TABLE old (id int)")
    old, admin, other = connect(), connect(), Leases(connect())
    leases.acquire("held")
    old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM old")
    rebuilding = Waiting(admin, lambda own: own.connection.execute("REINDEX TABLE CONCURRENTLY fence_internals.leases"))
    count = "SELECT count(*) FROM pg_index WHERE indrelid = 'fence_internals.leases'::regclass"
    eventually(lambda: db.execute(count).fetchone(), (2,))

    def use():
        assert leases.extend("held") > 0 and leases.release("held") is True
        fence = leases.acquire("held")
        # New versions that do not fit on the page of the last go into the indexes.
        fences = [(other.acquire("new"), other.release("new"))[0] for _ in range(300)]
        assert fences == sorted({fence, *fences} - {fence}) and fences[0] > fence
        assert leases.inspect("held")["fence"] == fence and leases.check(fence, "held")

    use()
    db.execute("SELECT pg_cancel_backend(%s)", (admin.info.backend_pid,))
    assert rebuilding.answer() == "57014"
    use()
    old.execute("COMMIT")
    db.execute("DROP INDEX fence_internals.leases_pkey_ccnew; REINDEX TABLE fence_internals.leases")
    use()


def test_no_more_wait_than_the_setting_allows(db, leases, sessions, connect):
    leases.acquire()
    waiting = queue(sessions(10), leases)
    eleventh = Leases(connect())
    with refused("53400"):
        eleventh.acquire(owner="b", wait_ms=LONG)
    assert eleventh.acquire(owner="b") is None
    eleventh.connection.execute("SET pg_fence.max_waiters_per_lock = 11")
    late = Waiting(eleventh.connection, lambda own: own.acquire(owner="b", wait_ms=LONG))
    eventually(leases.waiters, 11)
    for waiter in [*waiting, late]:
        leases.one("SELECT pg_cancel_backend(%s)", waiter.connection.info.backend_pid)
        assert waiter.answer() == "57014"
    db.execute("SET pg_fence.max_waiters_per_lock = 0")
    with refused("53400"):
        leases.acquire(owner="b", wait_ms=LONG)


def test_an_operator_frees_a_lock_for_the_head(leases, sessions):
    leases.acquire(ttl_ms=LONG, delay_ms=LONG)
    (waiter,) = queue(sessions(1), leases)
    assert leases.one("SELECT fencelock_free('l')") is True
    assert waiter.answer() is not None


# --- a retry


def test_a_retry_gets_what_its_earlier_call_was_granted_while_it_waited(leases, sessions, connect):
    leases.acquire()
    (earlier,) = queue(sessions(1), leases)
    again = Waiting(connect(), lambda own: own.acquire(owner="w0", wait_ms=LONG, retry=True))
    eventually(leases.waiters, 2)
    leases.release()
    assert again.answer() == earlier.answer()


# --- a wait that holds back no vacuum


HORIZON = "SELECT backend_xmin IS NULL FROM pg_stat_activity WHERE pid = %s"


def test_the_procedure_holds_no_snapshot_in_either_wait(leases, sessions):
    leases.acquire()
    waiters = []
    for number, connection in enumerate(sessions(2)):
        call = f"CALL fencelock_wait('l', 'w{number}', 60000, {LONG})"
        waiters.append(Waiting(connection, lambda own, call=call: own.one(call)))
        eventually(leases.waiters, number + 1)
    for waiter in waiters:
        eventually(lambda pid=waiter.connection.info.backend_pid: leases.one(HORIZON, pid))
    leases.release()
    assert waiters[0].answer() is not None
    leases.release(owner="w0")
    assert waiters[1].answer() is not None


def test_the_procedure_works_inside_procedures_and_blocks(leases, connect, db):
    db.execute("""CREATE PROCEDURE p(INOUT f bigint DEFAULT NULL) LANGUAGE plpgsql AS $$
        DECLARE r record; BEGIN
            FOR r IN SELECT g FROM generate_series(1, 3) g LOOP
                CALL fencelock_wait('p' || r.g, 'p', 60000, 1000, f);
            END LOOP;
            PERFORM fencelock_release('p1', 'p'); COMMIT;
            CALL fencelock_wait('p1', 'q', 60000, 1000, f);
        END $$""")
    assert db.execute("CALL p()").fetchone()[0] == leases.inspect("p1")["fence"]
    assert leases.acquire("p2") is None
    assert leases.one("CALL fencelock_wait('p2', 'q', 60000, 100)") is None
    session = begun(connect())
    assert session.one("CALL fencelock_wait('b', 'q', 60000, 100)") is not None
    session.connection.execute("COMMIT")
    with refused("22004"):
        db.execute("CALL fencelock_wait('p2', 'q', 60000, NULL)")
    db.execute("CREATE TABLE t (i int); CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE n bigint; BEGIN CALL fencelock_wait('t', 'q', 60000, 100, n); RETURN NEW; END $$")
    db.execute("CREATE TRIGGER t BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()")
    db.execute("INSERT INTO t VALUES (1)")
    assert leases.inspect("t")["owner"] == "q"


# --- no wake is lost


def test_no_wake_is_lost_among_many(leases, sessions):
    """Everybody waits with a lease of an hour: a wake that is lost would leave them asleep."""
    clients, rounds = 8, 25
    inside, overlaps, fences, failures = [], [], [], []

    def work(connection, owner):
        own = Leases(connection)
        try:
            for _ in range(rounds):
                fence = own.acquire(owner=owner, ttl_ms=3_600_000, wait_ms=int(HANG_S * 1000) * 4)
                inside.append(owner)
                overlaps.append(len(inside))
                fences.append(fence)
                inside.remove(owner)
                assert own.release("l", owner, fence) is True
        except (psycopg.Error, AssertionError) as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(connection, f"c{n}")) for n, connection in enumerate(sessions(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [] and set(overlaps) == {1}
    assert len(fences) == clients * rounds and fences == sorted(set(fences))
