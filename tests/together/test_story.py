"""The story: a worker that stalls past its lease cannot overwrite its successor.

Real servers, real clients and processes, real pauses. What happens in Redis alone is in test_redis_leases, what in
PostgreSQL alone in test_pg_rows; here both halves meet.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
import redis

import workers
from harness import PostgresServer, eventually, places
from harness.locks import acquire, assert_ends_on_time, extend, inspect, release
from workers import Worker

TIMES = 20
# Written without a claim before, and refused only by a newer stamp: the check at the write, and nothing else.
WRITE_ONLY = "UPDATE counters SET fence = %(fence)s, value = %(value)s WHERE id = %(id)s AND fence <= %(fence)s"
PLAIN = "UPDATE counters SET value = %s WHERE id = %s"


def make_counters(url, count):
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("CREATE TABLE counters (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, value int NOT NULL DEFAULT 0)")
        db.execute("INSERT INTO counters (id) SELECT generate_series(1, %s)", (count,))


@pytest.fixture
def counters(dsn):
    """The URL of a database with twenty counters at 0."""
    make_counters(dsn, TIMES)
    return dsn


@pytest.fixture
def counter(counters):
    """Reads the fence and the value of one counter."""
    with psycopg.connect(counters, autocommit=True) as db:
        yield lambda row=1: db.execute("SELECT fence, value FROM counters WHERE id = %s", (row,)).fetchone()


@pytest.fixture
def make_worker(redis_server, counters, r):
    """A factory of workers with connections of their own."""
    made = []

    def make():
        made.append(Worker(redis_server.port, counters))
        return made[-1]

    yield make
    for worker in made:
        worker.close()


@pytest.fixture
def holder(redis_server, counters, r):
    """A factory of child processes that hold the lock `lock` and have read counter 1; see workers.hold."""
    made = []

    def make(**kwargs):
        made.append(Child("hold", redis_port=redis_server.port, dsn=counters, lock="lock", owner="A", row=1, **kwargs))
        return made[-1]

    yield make
    for child in made:
        child.close()


class Child:
    """A worker in a process of its own."""

    def __init__(self, what, **kwargs):
        self._process = subprocess.Popen(
            [sys.executable, workers.__file__, what, json.dumps(kwargs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(places.ROOT / "tools")},
        )

    def hears(self):
        """The next line that it says."""
        line = self._process.stdout.readline()
        assert line, "the worker ended before it had anything to say"
        return json.loads(line)

    def go_on(self):
        """Let it write."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def signal(self, number):
        """Send it a signal; wait for its end if it is SIGKILL."""
        os.kill(self._process.pid, number)
        if number == signal.SIGKILL:
            self._process.wait()

    def close(self):
        """Kill it if it is still there."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


def at_once(story, count=TIMES):
    """Run a story for the rows 1 to `count` at the same time, and return what each returns."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(story, range(1, count + 1)))


# --- the stall


class Stall:
    """A takes the lock, reads, and sleeps past its lease; B starts a while after A, and works while A sleeps."""

    def __init__(self, redis_port, dsn, fenced, ttl_ms, stall_s, b_starts_after_s):
        self._to = redis_port, dsn
        self._fenced, self._ttl_ms = fenced, ttl_ms
        self._stall_s, self._b_starts_after_s = stall_s, b_starts_after_s

    def __call__(self, row):
        """Run it on one row; whether A's and B's first writes were accepted."""
        lock, a_has_it, b_has_written = f"lock:{row}", threading.Event(), threading.Event()

        def b():
            worker = Worker(*self._to)
            assert a_has_it.wait(60)
            time.sleep(self._b_starts_after_s)  # the story: B comes later
            fence = acquire(worker.redis, lock, "B", 60_000, "WAIT", 20_000)
            written = self._write(worker, row, fence, self._read(worker, row, fence))
            release(worker.redis, lock, "B", fence)
            b_has_written.set()
            worker.close()
            return fence, written

        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(b)
            worker = Worker(*self._to)
            mine = acquire(worker.redis, lock, "A", self._ttl_ms)
            value = self._read(worker, row, mine)
            a_has_it.set()
            time.sleep(self._stall_s)  # the story: A stalls
            # On a slow machine B may need longer; A's write must come after.
            assert b_has_written.wait(60)
            a_written = self._write(worker, row, mine, value)
            if not a_written:
                again = acquire(worker.redis, lock, "A again", 60_000)
                assert self._write(worker, row, again, self._read(worker, row, again))
            worker.close()
            theirs, b_written = other.result(30)
        assert mine < theirs
        return a_written, b_written

    def _read(self, worker, row, fence):
        return worker.claim(row, fence) if self._fenced else worker.read(row)

    def _write(self, worker, row, fence, value):
        if self._fenced:
            return worker.update(row, fence, value + 1)
        return worker.postgres.execute(PLAIN, (value + 1, row)).rowcount == 1


@pytest.mark.parametrize(("fenced", "ends_at"), [(False, 1), (True, 2)], ids=["plain SQL", "claim and update"])
@pytest.mark.parametrize(
    ("ttl_ms", "stall_s", "b_starts_after_s"), [(2_000, 3, 0.5), (300, 0.4, 0.1)], ids=["2 s lease", "300 ms lease"]
)
def test_a_worker_that_stalls_past_its_lease_loses_an_update_unless_it_is_fenced(
    redis_server, r, counters, counter, fenced, ends_at, ttl_ms, stall_s, b_starts_after_s
):
    outcomes = at_once(Stall(redis_server.port, counters, fenced, ttl_ms, stall_s, b_starts_after_s))
    assert outcomes == [(not fenced, True)] * TIMES
    assert [counter(row)[1] for row in range(1, TIMES + 1)] == [ends_at] * TIMES


# --- overlap: A writes between B's read and B's write


@pytest.mark.parametrize("row", range(1, 4))
def test_claim_first_refuses_a_write_between_the_read_and_the_write_of_the_next_holder(make_worker, counter, r, row):
    a, b = make_worker(), make_worker()
    first = acquire(a.redis, "lock", "A", 60)
    a_read = a.claim(row, first)
    second = acquire(b.redis, "lock", "B", 60_000, "WAIT", 10_000)
    b_read = b.claim(row, second)
    assert (a_read, b_read) == (0, 0)
    assert a.update(row, first, a_read + 1) is False
    assert counter(row) == (second, 0)
    assert b.update(row, second, b_read + 1) is True
    release(b.redis, "lock", "B", second)
    third = acquire(a.redis, "lock", "A", 60_000)
    assert a.update(row, third, a.claim(row, third) + 1) is True
    assert counter(row) == (third, 2)


def test_a_check_at_the_write_alone_would_lose_that_update(make_worker, counter, r):
    a, b = make_worker(), make_worker()
    first = acquire(a.redis, "lock", "A", 60)
    a_read = a.read(1)
    second = acquire(b.redis, "lock", "B", 60_000, "WAIT", 10_000)
    b_read = b.read(1)
    for worker, fence, value in ((a, first, a_read), (b, second, b_read)):
        written = worker.postgres.execute(WRITE_ONLY, {"fence": fence, "value": value + 1, "id": 1})
        assert written.rowcount == 1
    assert counter(1) == (second, 1)
    # The other order is what it does catch.
    assert a.postgres.execute(WRITE_ONLY, {"fence": first, "value": 9, "id": 1}).rowcount == 0


def test_fenced_write_is_such_a_check_and_says_so(make_worker, counter, r):
    """It is for writes that depend on nothing read: under overlap a read before it is worth nothing."""
    a, b = make_worker(), make_worker()
    first = acquire(a.redis, "lock", "A", 60)
    a_read = a.read(1)
    second = acquire(b.redis, "lock", "B", 60_000, "WAIT", 10_000)
    b_read = b.read(1)
    write = "SELECT fenced_write('counters', 1, %s, jsonb_build_object('value', %s::int))"
    assert a.postgres.execute(write, (first, a_read + 1)).fetchone() == (True,)
    assert b.postgres.execute(write, (second, b_read + 1)).fetchone() == (True,)
    assert counter(1) == (second, 1)
    assert a.postgres.execute(write, (first, 9)).fetchone() == (False,)


# --- frozen and killed processes


@pytest.mark.parametrize("claims", [True, False], ids=["A claimed", "A only read"])
@pytest.mark.parametrize(
    ("renews", "wakes"),
    [
        (False, "after B has written"),
        (True, "after B has written"),
        (True, "between B's claim and B's write"),
    ],
    ids=["without renewals", "with a renewing thread", "with a renewing thread, in the middle"],
)
def test_a_process_frozen_past_its_lease_changes_nothing_when_it_wakes(
    holder, make_worker, counter, r, renews, wakes, claims
):
    extended = extensions(r)
    frozen = holder(ttl_ms=60_000, claims=claims, renews=renews)
    told = frozen.hears()
    if renews:
        eventually(lambda: extensions(r) > extended + 2)
    assert inspect(r, "lock").hold == (b"A", told["fence"])
    frozen.signal(signal.SIGSTOP)
    expire_soon(r)
    b = make_worker()
    second = acquire(b.redis, "lock", "B", 60_000, "WAIT", 10_000)
    assert second > told["fence"]
    value = b.claim(1, second)
    if wakes == "after B has written":
        assert b.update(1, second, value + 1) is True
    before = counter()
    frozen.signal(signal.SIGCONT)
    frozen.go_on()
    refused = frozen.hears()
    assert refused == {"updated": False, "extended": 0, "released": 0, "last_renewal": 0 if renews else None}
    assert counter() == before
    lock = inspect(r, "lock")
    assert (lock.hold, 50_000 < lock.ttl_ms <= 60_000) == ((b"B", second), True)
    if wakes != "after B has written":
        assert b.update(1, second, value + 1) is True
    assert counter() == (second, 1)
    assert release(b.redis, "lock", "B", second) == 1


def extensions(r):
    return r.info("fencelock")["fencelock_extensions"]


def expire_soon(r):
    """Leave 300 ms of the lease of a process that does nothing any more; so far it was long, however late the test is."""
    r.ping()  # a renewal that was on its way has been answered
    assert extend(r, "lock", "A", 300) > 0


@pytest.mark.parametrize("renews", [False, True], ids=["without renewals", "with a renewing thread"])
def test_a_holder_killed_with_sigkill_frees_the_lock_on_time(holder, make_worker, counter, r, renews):
    extended = extensions(r)
    killed = holder(ttl_ms=60_000, claims=True, renews=renews)
    first = killed.hears()["fence"]
    if renews:
        eventually(lambda: extensions(r) > extended + 2)
    killed.signal(signal.SIGKILL)
    assert acquire(r, "lock", "B", 60_000) is None
    assert 0 < inspect(r, "lock").ttl_ms <= 60_000
    began = time.monotonic()
    expire_soon(r)
    assert_ends_on_time(r, "lock", began, time.monotonic(), 300)
    b = make_worker()
    second = acquire(b.redis, "lock", "B", 60_000)
    assert second > first
    assert b.update(1, second, b.claim(1, second) + 1) is True
    assert counter() == (second, 1)


def test_a_successor_that_waits_is_granted_the_lock_of_a_killed_holder_on_time(holder, r):
    killed = holder(ttl_ms=60_000, claims=True, renews=False)
    first = killed.hears()["fence"]
    killed.signal(signal.SIGKILL)
    began = time.monotonic()
    expire_soon(r)
    second = acquire(r, "lock", "B", 60_000, "WAIT", 10_000)
    assert time.monotonic() >= began + 0.3
    assert second > first


def test_a_caller_tells_busy_from_lost_while_it_worked(make_worker, counter, r):
    """Busy comes before the work, lost after it, and the row says the same as the lock."""
    a, b = make_worker(), make_worker()
    first = acquire(a.redis, "lock", "A", 60_000)
    assert acquire(b.redis, "lock", "B", 60_000) is None
    value = a.claim(1, first)
    extend(a.redis, "lock", "A", 60)
    second = acquire(b.redis, "lock", "B", 60_000, "WAIT", 10_000)
    b.claim(1, second)
    assert a.update(1, first, value + 1) is False
    assert release(a.redis, "lock", "A", first) == 0
    assert a.claim(1, first) is None
    assert counter() == (second, 0)


# --- many


@pytest.fixture
def every_pg(redis_server, r):
    """A server of each major with a counter, all at once."""
    servers = [PostgresServer(major).start() for major in places.majors_under_test()]
    for server in servers:
        server.psql("CREATE EXTENSION pg_fence")
        make_counters(server.url(), 1)
    yield servers
    for server in servers:
        server.close()


def test_eight_workers_that_stall_past_their_lease_lose_none_of_two_thousand_increments(every_pg, redis_server):
    """On all majors side by side: most of the time is spent in stalls."""
    count, increments = 8, 2_000
    crews = [
        [
            Child(
                "increment",
                redis_port=redis_server.port,
                dsn=server.url(),
                lock=f"crew {server.major}",
                name=f"worker {number}",
                ttl_ms=200,
                row=1,
                times=increments // count,
                stall_s=0.25,
                stalling=0.05,
                seed=number,
            )
            for number in range(count)
        ]
        for server in every_pg
    ]
    try:
        for server, crew in zip(every_pg, crews, strict=True):
            told = [worker.hears() for worker in crew]
            written = sorted(value for worker in told for value in worker["written"])
            sections, stalls, refused = (sum(worker[fact] for worker in told) for fact in ("sections", "stalls", "refused"))
            with psycopg.connect(server.url()) as db:
                assert db.execute("SELECT value FROM counters").fetchone() == (increments,)
            # No increment was lost, and none was written over another.
            assert written == list(range(1, increments + 1))
            assert 0.03 * sections < stalls < 0.07 * sections
            assert refused > stalls / 2
            assert sections == increments + refused
    finally:
        for worker in (worker for crew in crews for worker in crew):
            worker.close()
