"""The recipes go on when PostgreSQL is started again, or promoted behind a pooler, or when its reply is lost."""

import asyncio
import contextlib
import itertools
import threading
import uuid

import asyncpg
import httpx
import psycopg
import pytest
import redis

from chaos.proxy import Proxy
from harness.locks import inspect
from recipes import EXAMPLES, example
from test_recipes_python import tables


def new_life(db):
    """As a promotion behind a pooler: no connection is lost."""
    db.execute("SELECT fence_new_life()")


class Interrupted:
    """A connection on which another life begins before some of its statements."""

    def __init__(self, connection, db, before):
        self._connection, self._db, self._before, self.times = connection, db, before, 1

    def execute(self, statement, *values):
        if self._before in statement and self.times:
            self.times -= 1
            new_life(self._db)
        return self._connection.execute(statement, *values)

    def __getattr__(self, name):
        return getattr(self._connection, name)


# --- A lost reply.


@pytest.fixture
def accounts(db):
    db.execute(tables("lost_reply"))
    db.execute("INSERT INTO accounts VALUES (7, 0)")
    return db


@pytest.fixture
def broken(pg, dsn, closing):
    """Connects through a proxy that loses replies of the server."""
    proxy = closing(Proxy(pg.port, seed=1))
    url = dsn.replace(f":{pg.port}/", f":{proxy.port}/")
    return proxy, lambda: psycopg.connect(url, autocommit=True)


def test_deposits_whose_replies_are_lost_count_once(accounts, broken):
    """Also where the whole deposit is tried again, under the same fence or as the next holder."""
    proxy, connect = broken
    proxy.order("drop", "0.05")
    deposit, fences, lost = example("lost_reply").deposit, itertools.count(10), 0
    for n in range(100):
        attempt, fence = uuid.uuid4(), next(fences)
        while True:
            try:
                assert deposit(connect, 7, fence, 1, attempt, tries=1 + n % 3) is True
                break
            except psycopg.OperationalError:
                lost += 1
                fence = next(fences) if n % 2 else fence
    assert accounts.execute("SELECT balance FROM accounts").fetchone() == (100,)
    assert lost > 5, "replies were lost"


class LosesTheReply:
    """Connects once in such a way that the transaction commits, and the client learns nothing; meanwhile something happens."""

    def __init__(self, connect, meanwhile):
        self._connect, self._meanwhile = connect, meanwhile

    def __call__(self):
        if self._meanwhile is None:
            return self._connect()
        return self._once()

    @contextlib.contextmanager
    def _once(self):
        meanwhile, self._meanwhile = self._meanwhile, None
        with self._connect() as db:
            yield db
        meanwhile()
        raise psycopg.OperationalError("the connection was lost")


def test_false_after_a_lost_reply_can_mean_that_the_write_is_in_and_the_attempt_tells(accounts, connect):
    deposit, attempt = example("lost_reply").deposit, uuid.uuid4()

    def a_newer_holder_writes():
        assert deposit(connect, 7, 20, 1000, uuid.uuid4()) is True

    assert deposit(LosesTheReply(connect, a_newer_holder_writes), 7, 10, 1, attempt) is True
    assert accounts.execute("SELECT balance FROM accounts").fetchone() == (1001,)
    assert accounts.execute("SELECT fenced_update('accounts', 7, 10, '{\"balance\": 1}')").fetchone() == (False,)
    assert deposit(connect, 7, 30, 1, attempt) is True, "the next holder finds it, too"
    other = uuid.uuid4()
    assert deposit(connect, 7, 9, 5, other) is False
    assert accounts.execute("SELECT count(*) FROM attempts WHERE id = %s", (other,)).fetchone() == (0,)


# --- Another life of the server.


def test_a_leader_goes_on_after_a_restart_of_the_server(make_pg, redis_server, r, eventually):
    server = make_pg()
    server.psql(f"CREATE EXTENSION pg_fence; {tables('leader')}")
    rounds, losses = [], []
    client = redis.Redis(port=redis_server.port)
    connect = lambda: psycopg.connect(server.url(), autocommit=True)  # noqa: E731
    candidate = example("leader").Candidate(client, connect, "scheduler", "host-1", lambda fence, lost: rounds.append(fence), lease_ms=600_000, round_s=0.01)

    def run():
        try:
            candidate.run()
        except Exception as error:
            losses.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        eventually(lambda: len(rounds) > 3)
        server.restart()
        before = len(rounds)
        eventually(lambda: len(rounds) > before + 3 or losses)
        server.kill()
        server.start()
        before = len(rounds)
        eventually(lambda: len(rounds) > before + 3 or losses)
        assert losses == [] and len(set(rounds)) == 1, "one leadership, one fence"
        assert inspect(r, "leader:scheduler").fence == rounds[0]
    finally:
        candidate.stop()
        thread.join(30)
        client.close()


def test_a_leader_goes_on_when_another_life_begins_between_its_claim_and_its_write(redis_server, r, db, connect):
    db.execute(tables("leader"))
    interrupted, rounds = [], []

    @contextlib.contextmanager
    def connects():
        with connect() as connection:
            interrupted.append(Interrupted(connection, db, "fenced_update('leaders'"))
            yield interrupted[-1]

    def work(fence, lost):
        rounds.append(fence)
        candidate.stop()

    candidate = example("leader").Candidate(r, connects, "scheduler", "host-1", work, round_s=0.01)
    candidate.run()
    assert [one.times for one in interrupted] == [0]
    assert len(rounds) == 1
    assert db.execute("SELECT identity FROM leaders").fetchone() == ("host-1",)


def test_a_scheduled_task_runs_once_when_another_life_begins_in_between(r, db, connect):
    db.execute(tables("scheduled_once"))
    db.execute("INSERT INTO schedule VALUES ('report', '1 hour', now() - interval '90 minutes')")
    ran, run = [], example("scheduled_once").run_if_due
    interrupted = Interrupted(connect(), db, "fenced_update('schedule'")
    assert run(r, interrupted, "report", ran.append) is True
    assert interrupted.times == 0
    assert run(r, db, "report", ran.append) is False
    assert len(ran) == 1


@pytest.fixture
def jobs(db):
    text = (EXAMPLES / "job_queue.sql").read_text()
    db.execute(text[: text.index("INSERT INTO jobs")].encode())
    db.execute("INSERT INTO jobs (payload) VALUES ('1')")
    return db


def test_a_job_is_completed_after_another_life_has_begun_unless_somebody_else_has_it(jobs, connect):
    complete = "SELECT complete_job(1, %s, %s)"
    (fence,) = jobs.execute("SELECT fence FROM pick_job('0 seconds')").fetchone()
    new_life(jobs)
    with jobs.transaction(force_rollback=True):
        assert jobs.execute(complete, (fence, '"mine"')).fetchone() == (True,)
    # Another worker has picked it, and has completed it.
    (newer,) = connect().execute("SELECT fence FROM pick_job('1 minute')").fetchone()
    assert jobs.execute(complete, (fence, '"mine"')).fetchone() == (False,)
    new_life(jobs)
    assert jobs.execute(complete, (newer, '"newer"')).fetchone() == (True,)
    new_life(jobs)
    assert jobs.execute(complete, (newer, '"again"')).fetchone() == (False,), "it is done"
    assert jobs.execute("SELECT state, result FROM jobs").fetchone() == ("done", "newer")


def test_a_form_is_sent_again_when_another_life_begins_while_it_is_charged(redis_server, r, dsn, db):
    db.execute(tables("double_submit"))
    charged = []

    async def charge(key, fence, order):
        charged.append(key)
        if len(charged) == 1:
            new_life(db)
        return key

    async def main():
        async with redis.asyncio.Redis(port=redis_server.port) as client, asyncpg.create_pool(dsn, min_size=0) as pool:
            app = example("double_submit").make_app(client, pool, charge)
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as browser:
                return [(await browser.post("/orders", json={"item": "book"}, headers={"Idempotency-Key": "k"})).status_code for _ in range(2)]

    assert asyncio.run(main()) == [409, 200]
    assert set(charged) == {"k"}
    assert db.execute("SELECT payment FROM orders").fetchall() == [("k",)]

