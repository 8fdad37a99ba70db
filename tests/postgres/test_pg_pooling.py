"""Through PgBouncer in transaction mode: statements prepared at protocol level, and nothing handed to the next client."""

import asyncio
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import asyncpg
import psycopg
import pytest

from harness import places
from harness.pgbouncer import PgBouncer
from refusals import refused

CLAIM = "SELECT v FROM fenced_claim(NULL::t, %s, %s)"
UPDATE = "SELECT fenced_update('t', %s, %s, jsonb_build_object('v', %s::int))"
ADD = "UPDATE t SET v = v + 1 WHERE id = %s"


@pytest.fixture(scope="module")
def make_bouncer(pg):
    """A PgBouncer for a number of server connections, one for each number."""
    made = {}

    def make(size):
        if size not in made:
            made[size] = PgBouncer(pg, {"default_pool_size": size}).start()
        return made[size]

    yield make
    for bouncer in made.values():
        bouncer.close()


@pytest.fixture
def through(make_bouncer, db, connect):
    """A factory of connections through a pool of some size, to a database with a protected table of twenty rows."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL DEFAULT 0, fence bigint NOT NULL DEFAULT 0)")
    db.execute("INSERT INTO t SELECT generate_series(1, 20); SELECT fence_protect('t')")

    def make(size, **kwargs):
        return connect(url=make_bouncer(size).url(db.info.dbname), **kwargs)

    make.url = lambda size: make_bouncer(size).url(db.info.dbname)
    return make


def backend(connection):
    """The server process that serves the next statement, or the open transaction."""
    return connection.execute("SELECT pg_backend_pid()").fetchone()[0]


def test_the_pooler_is_the_one_that_knows_prepared_statements():
    said = subprocess.run(
        [str(word) for word in places.pgbouncer()] + ["--version"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    major, minor = map(int, re.match(r"PgBouncer (\d+)\.(\d+)", said).groups())
    assert (major, minor) >= (1, 24)


def test_a_prepared_call_works_on_every_server_connection_of_the_pool(through):
    """A client prepares on one server connection; the pooler prepares for it on the other, when that one serves it."""
    client, other = through(2), through(2)
    served_by = set()
    for fence in range(2, 10):
        if fence % 2:
            # It gets the server connection that was used last, so that the client gets another one.
            other.execute("BEGIN")
            other.execute("SELECT 1")
        assert client.execute(CLAIM, (1, fence), prepare=True).fetchall() == [(fence - 2,)]
        assert client.execute(UPDATE, (1, fence, fence - 1), prepare=True).fetchall() == [(True,)]
        assert client.execute(UPDATE, (1, fence - 1, 99), prepare=True).fetchall() == [(False,)]
        served_by.add(client.execute("SELECT pg_backend_pid()", prepare=True).fetchone())
        other.execute("COMMIT")
    assert len(served_by) == 2


def test_a_driver_that_always_prepares_works_through_the_pool(through, db):
    """asyncpg keeps prepared statements and their parameter types per client connection."""

    async def run():
        clients = [await asyncpg.connect(through.url(2)) for _ in range(4)]
        try:
            for fence in (5, 6):
                await asyncio.gather(*(work(client, row, fence) for row, client in enumerate(clients, 1)))
        finally:
            for client in clients:
                await client.close()

    async def work(client, row, fence):
        for _ in range(5):
            claimed = await client.fetchrow("SELECT v FROM fenced_claim(NULL::t, $1::int, $2)", row, fence)
            patch = f'{{"v": {claimed["v"] + 1}}}'
            assert await client.fetchval("SELECT fenced_update('t', $1::int, $2, $3)", row, fence, patch)
            assert not await client.fetchval("SELECT fenced_update('t', $1::int, $2, $3)", row, fence - 1, patch)
            async with client.transaction():
                await client.fetchval("SELECT fenced_guard($1, $2)", "resource", fence)
                await client.execute("SELECT fence_use($1)", fence)
                assert await client.execute("UPDATE t SET v = v + 1 WHERE id = $1", row) == "UPDATE 1"

    asyncio.run(run())
    assert db.execute("SELECT id, v, fence FROM t WHERE v > 0 ORDER BY 1").fetchall() == [(row, 20, 6) for row in (1, 2, 3, 4)]


# How a client's transaction under fence_use can end.
ENDS = {
    "commit": lambda client: client.execute("COMMIT"),
    "rollback": lambda client: client.execute("ROLLBACK"),
    "an error and rollback": lambda client: (failed(client), client.execute("ROLLBACK")),
    "an error and commit": lambda client: (failed(client), client.execute("COMMIT")),
    "commit and chain, then rollback": lambda client: (client.execute("COMMIT AND CHAIN"), client.execute("ROLLBACK")),
    "the client goes": lambda client: client.close(),
    "its process dies": lambda client: client.pgconn.finish(),
}


def failed(client):
    with pytest.raises(psycopg.errors.DivisionByZero):
        client.execute("SELECT 1 / 0")


@pytest.mark.parametrize("end", ENDS)
def test_the_next_client_of_the_server_connection_gets_no_pass(through, db, eventually, end):
    db.execute("SELECT * FROM fenced_claim_many(NULL::t, ARRAY[1, 2], 5)")
    client, follower = through(1), through(1)
    client.execute("BEGIN")
    client.execute("SELECT fence_use(5)")
    client.execute(ADD, (1,))
    server = backend(client)
    ENDS[end](client)
    if end in ("the client goes", "its process dies"):
        # The pooler gives up the server connection, as its transaction is open; there is a new one for the next client.
        eventually(lambda: backend(follower) != server)
    else:
        assert backend(follower) == server
    with refused("LF003"):
        follower.execute(ADD, (1,))
    follower.execute("BEGIN")
    follower.execute("SELECT fence_use(4)")
    with refused("LF001"):
        follower.execute(ADD, (1,))
    follower.execute("ROLLBACK")
    assert db.execute("SELECT v FROM t WHERE id = 1").fetchone() == (1 if end.startswith("commit") else 0,)
    assert db.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'userlock'").fetchone() == (0,)


def test_a_pass_without_a_transaction_is_refused_through_the_pool(through):
    """It would end before the next statement, which may be another client's."""
    with refused("25P01"):
        through(1).execute("SELECT fence_use(5)")


def test_a_holder_that_is_evicted_costs_its_client_the_connection_and_nobody_else_anything(through, db, eventually):
    """The pooler makes a new server connection for the next one."""
    holder, other = through(1), through(1)
    holder.execute("BEGIN")
    holder.execute("SELECT fenced_guard('ledger', 7)")
    holder.execute("INSERT INTO t VALUES (99)")
    server = backend(holder)
    (seen,) = db.execute("SELECT pid, fence FROM fence_guard_blockers").fetchall()
    assert seen == (server, 7)
    assert db.execute("SELECT fence_guard_evict('ledger', 8)").fetchone() == ([server],)
    with pytest.raises(psycopg.OperationalError):
        holder.execute("COMMIT")
    other.execute("BEGIN")
    other.execute("SELECT fenced_guard('ledger', 8)")
    assert backend(other) != server
    other.execute("COMMIT")
    assert db.execute("SELECT count(*) FROM t WHERE id = 99").fetchone() == (0,)
    assert db.execute("SELECT pid FROM fence_guard_blockers").fetchall() == []


def test_a_guard_ends_with_its_transaction_and_not_with_its_client(through, db):
    first, second = through(1), through(1)
    first.execute("BEGIN")
    first.execute("SELECT fenced_guard('ledger', 7)")
    server = backend(first)
    first.execute("COMMIT")
    second.execute("BEGIN")
    second.execute("SELECT fenced_guard('ledger', 8)")
    assert backend(second) == server
    second.execute("COMMIT")
    first.execute("BEGIN")
    with refused("LF001"):
        first.execute("SELECT fenced_guard('ledger', 7)")
    first.execute("ROLLBACK")
    assert db.execute("SELECT resource, fence FROM fence_internals.guards").fetchall() == [("ledger", 8)]


def test_many_clients_on_few_connections_write_their_own_rows_and_no_others(through, db):
    """Each client has a lock of its own, so a fence of its own, and tries its neighbour's row each time."""
    clients, rounds = 8, 12
    opened = [through(2, prepare_threshold=1) for _ in range(clients)]

    def work(row):
        client, neighbour, passed = opened[row - 1], row % clients + 1, 0
        for _ in range(rounds):
            client.execute(CLAIM, (row, 100 + row))
            with client.transaction():
                client.execute("SELECT fence_use(%s)", (100 + row,))
                client.execute(ADD, (row,))
            try:
                with client.transaction():
                    client.execute("SELECT fence_use(%s)", (100 + row,))
                    passed += client.execute(ADD, (neighbour,)).rowcount
            except psycopg.Error as error:
                # The neighbour's fence is newer or older than ours, or it has not claimed yet.
                assert error.sqlstate in ("LF001", "LF002")
            try:
                passed += client.execute(ADD, (row,)).rowcount
            except psycopg.Error as error:
                assert error.sqlstate == "LF003"
        return passed

    with ThreadPoolExecutor(clients) as threads:
        assert list(threads.map(work, range(1, clients + 1))) == [0] * clients
    assert db.execute("SELECT v, fence FROM t WHERE v > 0 ORDER BY id").fetchall() == [
        (rounds, 100 + row) for row in range(1, clients + 1)
    ]
