"""The Python examples that users copy, each run on real servers: locks, leaders, schedules, double submits, other resources."""

import asyncio
import hashlib
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import asyncpg
import httpx
import pytest
import redis

from harness.locks import acquire, inspect, release
from recipes import EXAMPLES, example

COUNTERS = """CREATE TABLE counters (id int PRIMARY KEY, value int NOT NULL DEFAULT 0, fence bigint NOT NULL DEFAULT 0);
    INSERT INTO counters VALUES (1)"""
CLAIM = "SELECT value FROM fenced_claim(NULL::counters, 1, $1)"
UPDATE = "SELECT fenced_update('counters', 1, $1, jsonb_build_object('value', $2::int))"


def tables(name):
    """The CREATE TABLE and INSERT statements in the text of an example."""
    return "\n".join(re.findall(r"^    ((?:CREATE TABLE|INSERT).*?;)$", (EXAMPLES / f"{name}.py").read_text(), re.MULTILINE | re.DOTALL))


class Broken:
    """A client some of whose commands fail, as they do for a host without a network."""

    def __init__(self, client, *commands, times=None):
        self.client, self.commands, self.times = client, commands, times
        self.failed = 0

    def execute_command(self, *words):
        if words[0] in self.commands and (self.times is None or self.failed < self.times):
            self.failed += 1
            raise redis.ConnectionError("no route to host")
        return self.client.execute_command(*words)


def join_holders():
    """A block does not wait for a thread whose call to Redis hangs; the client is closed after the test."""
    for thread in threading.enumerate():
        if type(thread).__name__ == "_Holder":
            thread.join(30)


class TestLease:
    def test_threads_that_contend_work_one_after_the_other(self, r, redis_server, db, connect):
        recipe = example("lease")
        db.execute(COUNTERS)

        def work(_):
            connection = connect()
            with redis.Redis(port=redis_server.port) as client:
                for _ in range(5):
                    with recipe.lease(client, "lock:counter", wait_ms=30_000) as fence:
                        (value,) = connection.execute(CLAIM.replace("$1", "%s"), (fence,)).fetchone()
                        update = UPDATE.replace("$1", "%s").replace("$2", "%s")
                        assert connection.execute(update, (fence, value + 1)).fetchone() == (True,)

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(work, range(4)))
        assert db.execute("SELECT value FROM counters").fetchone() == (20,)
        assert inspect(r, "lock:counter") is None

    def test_a_holder_that_renews_keeps_the_lock_for_many_times_its_lease(self, r, eventually):
        with example("lease").lease(r, "k", ttl_ms=2_000) as fence:
            eventually(lambda: inspect(r, "k").held_ms > 4_500)
            assert inspect(r, "k").fence == fence
        assert inspect(r, "k") is None

    def test_a_renewal_that_fails_once_is_no_lost_lease(self, r, eventually):
        broken, lost = Broken(r, "FENCELOCK.EXTEND", times=1), threading.Event()
        with example("lease").lease(broken, "k", ttl_ms=3_000, lost=lost):
            eventually(lambda: inspect(r, "k").held_ms > 4_000)
            assert broken.failed == 1 and not lost.is_set()

    def test_a_lease_that_somebody_ended_is_lost_and_the_block_can_see_it(self, r):
        recipe, lost = example("lease"), threading.Event()
        with pytest.raises(recipe.LockLost), recipe.lease(r, "k", ttl_ms=300, lost=lost):
            r.delete("k")
            newer = acquire(r, "k", "B", 60_000)
            assert lost.wait(30)
        assert inspect(r, "k").hold == (b"B", newer), "leaving has not released what the next one holds"

    def test_a_lease_that_was_lost_between_two_renewals_is_told_at_the_end(self, r):
        recipe = example("lease")
        with pytest.raises(recipe.LockLost), recipe.lease(r, "k", ttl_ms=600_000):
            r.delete("k")

    def test_silence_for_a_whole_lease_is_a_lost_lease(self, r):
        recipe, lost = example("lease"), threading.Event()
        with pytest.raises(recipe.LockLost), recipe.lease(Broken(r, "FENCELOCK.EXTEND"), "k", ttl_ms=300, lost=lost):
            assert lost.wait(30)

    def test_a_call_that_hangs_does_not_hide_that_the_lease_has_ended(self, r):
        recipe, lost, hang = example("lease"), threading.Event(), threading.Event()

        class Hanging(Broken):
            def execute_command(self, *words):
                if words[0] == "FENCELOCK.EXTEND":
                    hang.wait(60)
                return super().execute_command(*words)

        with pytest.raises(recipe.LockLost), recipe.lease(Hanging(r), "k", ttl_ms=300, lost=lost):
            assert lost.wait(30)
            hang.set()
        join_holders()

    def test_a_redis_that_hangs_keeps_nobody_in_the_block_for_longer_than_the_lease(self, r):
        recipe = example("lease")
        lost, lost_late, hang = threading.Event(), threading.Event(), threading.Event()

        class Hanging(Broken):
            def execute_command(self, *words):
                if words[0] != "FENCELOCK.ACQUIRE":
                    hang.wait(120)
                return super().execute_command(*words)

        with recipe.lease(Hanging(r), "in time", ttl_ms=3_000, lost=lost):
            """The work is done before the lease ends."""
        with pytest.raises(recipe.LockLost), recipe.lease(Hanging(r), "late", ttl_ms=300, lost=lost_late):
            assert lost_late.wait(30)
        assert not hang.is_set() and not lost.is_set()
        hang.set()
        join_holders()

    def test_a_lease_of_seconds_is_refused(self, r):
        with pytest.raises(ValueError, match="ttl_ms is in milliseconds: 30"), example("lease").lease(r, "k", ttl_ms=30):
            raise AssertionError
        assert inspect(r, "k") is None

    def test_the_lease_of_a_block_that_hangs_ends_after_its_longest_time(self, r):
        recipe, lost = example("lease"), threading.Event()
        with pytest.raises(recipe.LockLost), recipe.lease(r, "k", ttl_ms=300, max_hold_ms=500, lost=lost):
            assert lost.wait(30)

    def test_an_error_of_the_connection_is_not_a_lost_lease(self, r):
        recipe = example("lease")
        with pytest.raises(redis.ConnectionError), recipe.lease(Broken(r, "FENCELOCK.ACQUIRE"), "k"):
            raise AssertionError
        with recipe.lease(Broken(r, "FENCELOCK.RELEASE"), "k", ttl_ms=60_000) as fence:
            """What was done is done, and the lease ends by itself."""
        assert inspect(r, "k").fence == fence

    def test_a_busy_lock_is_told_at_once_or_after_the_wait(self, r):
        recipe = example("lease")
        acquire(r, "k", "A", 60_000)
        for wait_ms in (None, 10):
            with pytest.raises(recipe.LockBusy), recipe.lease(r, "k", wait_ms=wait_ms):
                raise AssertionError
        assert inspect(r, "k").waiters == 0

    def test_an_error_of_the_block_comes_out_as_it_is_and_releases(self, r):
        with pytest.raises(ZeroDivisionError), example("lease").lease(r, "k"):
            1 / 0
        assert inspect(r, "k") is None


class TestAsyncLock:
    @pytest.fixture
    def run(self, redis_server, r):
        """Runs a coroutine with a redis.asyncio client."""

        def run(work, *more):
            async def main():
                async with redis.asyncio.Redis(port=redis_server.port) as client:
                    await work(client, *more)

            asyncio.run(main())

        return run

    @pytest.fixture
    def run_with_rows(self, run, dsn, db):
        """The same with a pool of asyncpg, on a database with a counter."""
        db.execute(COUNTERS)

        def run_with_rows(work):
            async def with_pool(client):
                async with asyncpg.create_pool(dsn, min_size=0) as pool:
                    await work(client, pool)

            run(with_pool)

        return run_with_rows

    def test_tasks_that_contend_work_one_after_the_other(self, run_with_rows, db):
        lock = example("async_lock").fenced_lock

        async def work(client, pool):
            inside, fences = 0, []

            async def add():
                nonlocal inside
                async with lock(client, "lock:counter") as fence:
                    inside += 1
                    assert inside == 1
                    value = await pool.fetchval(CLAIM, fence)
                    assert await pool.fetchval(UPDATE, fence, value + 1)
                    fences.append(fence)
                    inside -= 1

            await asyncio.gather(*(add() for _ in range(20)))
            assert fences == sorted(set(fences))

        run_with_rows(work)
        assert db.execute("SELECT value FROM counters").fetchone() == (20,)

    def test_a_holder_that_renews_keeps_the_lock_for_many_times_its_lease(self, run, r):
        lock = example("async_lock").fenced_lock

        async def work(client):
            async with lock(client, "k", ttl_ms=800) as fence:
                while inspect(r, "k").held_ms < 2_000:
                    await asyncio.sleep(0.02)
                assert await client.execute_command("FENCELOCK.CHECK", "k", fence) == 1
            assert await client.execute_command("FENCELOCK.INSPECT", "k") is None

        run(work)

    def test_a_body_whose_lease_is_lost_is_cancelled_and_told_so(self, run, r):
        recipe = example("async_lock")

        async def work(client):
            with pytest.raises(recipe.LockLost):
                async with recipe.fenced_lock(client, "k", ttl_ms=300):
                    await client.delete("k")
                    await asyncio.Event().wait()
            assert asyncio.current_task().cancelling() == 0

        run(work)

    def test_a_holder_that_stalls_and_is_late_with_its_write_is_refused_at_the_row(self, run_with_rows, r, db):
        """The event loop itself is blocked, so nothing renews and nothing is cancelled."""
        recipe = example("async_lock")

        async def work(client, pool):
            with pytest.raises(recipe.LockLost):
                async with recipe.fenced_lock(client, "k", ttl_ms=600) as fence:
                    assert await pool.fetchval(CLAIM, fence) == 0
                    newer = acquire(r, "k", "B", 60_000, "WAIT", 5_000)
                    db.execute("SELECT value FROM fenced_claim(NULL::counters, 1, %s)", (newer,))
                    assert await pool.fetchval(UPDATE, fence, 1) is False
                    await asyncio.sleep(60)
            assert inspect(r, "k").hold == (b"B", newer), "leaving has not released what the next one holds"

        run_with_rows(work)

    def test_a_body_that_blocks_the_loop_past_its_lease_is_told_when_it_leaves(self, run, r, eventually):
        recipe = example("async_lock")

        async def work(client):
            with pytest.raises(recipe.LockLost):
                async with recipe.fenced_lock(client, "k", ttl_ms=200):
                    eventually(lambda: inspect(r, "k"), None)

        run(work)

    def test_a_busy_lock_and_a_cancelled_wait_leave_nothing_behind(self, run, r, eventually):
        recipe = example("async_lock")
        fence = acquire(r, "k", "A", 60_000)

        async def work(client):
            with pytest.raises(recipe.LockBusy):
                async with recipe.fenced_lock(client, "k", wait_ms=10):
                    raise AssertionError
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    async with recipe.fenced_lock(client, "k", wait_ms=4_000):
                        raise AssertionError
            eventually(lambda: inspect(r, "k").waiters, 0)
            release(r, "k", "A", fence)
            assert inspect(r, "k") is None

        run(work)

    def test_an_error_of_the_body_comes_out_as_it_is_and_releases(self, run, r):
        lock = example("async_lock").fenced_lock

        async def work(client):
            with pytest.raises(ZeroDivisionError):
                async with lock(client, "k"):
                    1 / 0

        run(work)
        assert inspect(r, "k") is None


def test_a_task_runs_exclusively_or_is_skipped(r, redis_server):
    run = example("exclusive_or_skip").run_exclusive_or_skip
    inside, leave, fences = threading.Event(), threading.Event(), []

    def work(fence, word):
        fences.append((fence, word))
        inside.set()
        leave.wait(60)

    with redis.Redis(port=redis_server.port) as other, ThreadPoolExecutor(1) as threads:
        first = threads.submit(run, other, "task", work, "first")
        assert inside.wait(60)
        assert run(r, "task", work, "second") is False
        leave.set()
        assert first.result(60) is True
    assert run(r, "task", work, "third") is True
    with pytest.raises(ZeroDivisionError):
        run(r, "task", lambda fence: 1 / 0)
    assert inspect(r, "task") is None
    assert [word for _, word in fences] == ["first", "third"]
    assert fences[0] < fences[1]


def test_a_task_keeps_its_lock_for_longer_than_its_lease(r, eventually):
    run = example("exclusive_or_skip").run_exclusive_or_skip

    def work(fence):
        eventually(lambda: inspect(r, "task").held_ms > 4_500)
        assert run(r, "task", lambda fence: None) is False

    assert run(r, "task", work, ttl_ms=2_000) is True


def test_a_task_whose_lease_was_lost_is_not_said_to_have_run_exclusively(r):
    run, recipe = example("exclusive_or_skip").run_exclusive_or_skip, example("lease")
    with pytest.raises(recipe.LockLost):
        run(r, "task", lambda fence: r.delete("task"))


def test_a_busy_lock_inside_the_work_is_not_taken_for_the_tasks_own(r):
    run, recipe = example("exclusive_or_skip").run_exclusive_or_skip, example("lease")
    acquire(r, "other", "A", 60_000)

    def work(fence):
        with recipe.lease(r, "other", wait_ms=None):
            raise AssertionError

    with pytest.raises(recipe.LockBusy):
        run(r, "task", work)


def test_a_task_of_several_schedulers_runs_once_when_it_is_due(r, redis_server, db, connect):
    run = example("scheduled_once").run_if_due
    db.execute(tables("scheduled_once"))
    db.execute("INSERT INTO schedule VALUES ('report', '1 hour', now() - interval '90 minutes'), ('soon', '1 day', now() + interval '1 day')")
    ran = []

    def host(number):
        with redis.Redis(port=redis_server.port) as client:
            connection = connect()
            for _ in range(20):
                run(client, connection, "report", lambda fence: ran.append(fence))
                run(client, connection, "soon", lambda fence: ran.append("too early"))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(host, range(4)))
    assert len(ran) == 1
    assert db.execute("SELECT fence >= %s, due - now() < every, due > now() FROM schedule WHERE task = 'report'", (ran[0],)).fetchone() == (
        True,
        True,
        True,
    ), "it goes on at its own hours, and does not make up for those that it missed"
    # It is due again; a host that has lost the lock without noticing does not run it.
    db.execute("UPDATE schedule SET due = now(), fence = fence + 60000000 WHERE task = 'report'")
    assert run(r, db, "report", lambda fence: ran.append("stale")) is False
    db.execute("SELECT fence_reset('schedule', 'report', 1)")
    assert run(r, db, "report", ran.append) is True
    assert len(ran) == 2
    # It loses its lease while it works: it has run, and may not have been alone.
    db.execute("UPDATE schedule SET due = now(), fence = 0 WHERE task = 'report'")
    with pytest.raises(example("lease").LockLost):
        run(r, db, "report", lambda fence: r.delete("schedule:report"))
    assert run(r, db, "report", ran.append) is False, "it has moved on"


class TestDoubleSubmit:
    @pytest.fixture
    def shop(self, redis_server, r, dsn, db):
        """Runs a coroutine with a client of the shop's web server and the list of what was charged."""
        db.execute(tables("double_submit"))
        charged = []

        async def charge(key, fence, order):
            charged.append((key, order.item))
            await asyncio.sleep(0.2)
            return f"paid by {key}"

        def run(work, charge=charge):
            async def main():
                async with redis.asyncio.Redis(port=redis_server.port) as client, asyncpg.create_pool(dsn, min_size=0) as pool:
                    app = example("double_submit").make_app(client, pool, charge)
                    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as browser:
                        await work(browser, charged)

            asyncio.run(main())

        return run

    def test_a_form_that_is_sent_twice_makes_one_order(self, shop, db):
        async def work(browser, charged):
            def send(key, item):
                return browser.post("/orders", json={"item": item}, headers={"Idempotency-Key": key})

            answers = await asyncio.gather(send("k1", "book"), send("k1", "book"), send("k1", "book"), send("k2", "pen"))
            assert [answer.status_code for answer in answers] == [200] * 4
            assert answers[0].json() == answers[1].json() == answers[2].json() != answers[3].json()
            assert (await send("k1", "book")).json() == answers[0].json(), "and later too"
            assert sorted(charged) == [("k1", "book"), ("k2", "pen")]

        shop(work)
        assert db.execute("SELECT item, payment FROM orders ORDER BY item").fetchall() == [("book", "paid by k1"), ("pen", "paid by k2")]

    def test_a_request_that_stalled_past_its_lease_makes_no_order(self, shop, db, r):
        """While it is being charged, a newer holder claims the form."""

        async def work(browser, charged):
            sent = asyncio.create_task(browser.post("/orders", json={"item": "book"}, headers={"Idempotency-Key": "k"}))
            while not charged:
                await asyncio.sleep(0.005)
            newer = inspect(r, "submit:k").fence + 1
            db.execute("SELECT * FROM fenced_claim(NULL::submits, 'k', %s)", (newer,))
            assert (await sent).status_code == 409

        shop(work)
        assert db.execute("SELECT (SELECT count(*) FROM orders), answer FROM submits").fetchone() == (0, None)


    def test_a_stalled_holder_and_its_successor_charge_once(self, shop, db, r):
        """A provider of payments that knows keys, as they all do. The first request is stuck behind its charge."""
        paid, fences, stuck = {}, [], asyncio.Event()

        async def charge(key, fence, order):
            fences.append(fence)
            paid.setdefault(key, 100)
            if len(fences) == 1:
                await stuck.wait()
            return key

        async def work(browser, _):
            def send():
                return browser.post("/orders", json={"item": "book"}, headers={"Idempotency-Key": "k"})

            first = asyncio.create_task(send())
            while not fences:
                await asyncio.sleep(0.005)
            r.delete("submit:k")  # as if its lease had ended unnoticed
            assert (await send()).status_code == 200
            stuck.set()
            assert (await first).status_code == 409

        shop(work, charge)
        assert fences == sorted(set(fences)) and len(fences) == 2
        assert sum(paid.values()) == 100
        assert db.execute("SELECT payment FROM orders").fetchall() == [("k",)]


class TestLeader:
    @pytest.fixture
    def candidate(self, redis_server, r, db, connect):
        """A factory of candidates that stand for election again and again, each in a thread of its own."""
        db.execute(tables("leader"))
        running = []

        def make(identity, work=None, **options):
            client = redis.Redis(port=redis_server.port)
            options = {"lease_ms": 1_000, "round_s": 0.01, **options}
            used = Broken(client, *options.pop("broken", ()))
            work = work or (lambda fence, lost: None)
            made = example("leader").Candidate(used, connect, "scheduler", identity, work, **options)
            made.losses, stop = [], threading.Event()
            thread = threading.Thread(target=run, args=(made, stop))
            thread.start()
            running.append((made, thread, client))
            made.stop_all = lambda: (stop.set(), made.stop())
            return made

        def run(made, stop):
            while not stop.is_set():
                try:
                    made.run()
                except example("lease").LockLost as lost:
                    made.losses.append(lost)

        yield make
        for made, _, _ in running:
            made.stop_all()
        for _, thread, client in running:
            thread.join(30)
            assert not thread.is_alive()
            client.close()

    @staticmethod
    def leader(db):
        # The first leader inserts the row.
        return db.execute("SELECT identity, fence FROM leaders").fetchone() or (None, None)

    def test_a_leader_leads_for_many_times_its_lease_and_hands_over_when_it_stops(self, candidate, db, r, eventually):
        rounds = []
        first = candidate("host-1", lambda fence, lost: rounds.append(fence))
        eventually(lambda: self.leader(db)[0], "host-1")
        candidate("host-2")
        eventually(lambda: inspect(r, "leader:scheduler").held_ms > 2_500)
        assert len(set(rounds)) == 1 and len(rounds) > 5, "one fence, claimed again in each round"
        assert self.leader(db) == ("host-1", rounds[0])
        first.stop_all()
        eventually(lambda: self.leader(db)[0], "host-2")
        assert self.leader(db)[1] > rounds[0]
        assert first.losses == []

    def test_a_leader_that_stalls_is_followed_and_writes_no_more(self, candidate, db, r, eventually):
        """It hangs in its work, and its renewals do not get through."""
        stalled, wake = threading.Event(), threading.Event()
        seen = []

        def hang(fence, lost):
            seen.append((fence, lost))
            stalled.set()
            wake.wait(30)

        first = candidate("host-1", hang, broken=("FENCELOCK.EXTEND",))
        assert stalled.wait(30)
        candidate("host-2")
        eventually(lambda: self.leader(db)[0], "host-2")
        (stale_fence, lost), = seen
        assert lost.is_set(), "the work could have seen it"
        first.stop_all()
        wake.set()
        eventually(lambda: len(first.losses), 1)
        newest = self.leader(db)
        stale = "SELECT fenced_update('leaders', 'scheduler', %s, '{\"identity\": \"host-1\"}')"
        assert db.execute(stale, (stale_fence,)).fetchone() == (False,)
        assert self.leader(db) == newest

    def test_a_lease_that_was_lost_unnoticed_ends_with_the_next_claim(self, candidate, db, r, eventually):
        """The failover lost the lock: both lead for a moment, and the row stops the older one."""
        rounds = []
        older = candidate("host-1", lambda fence, lost: rounds.append(fence), lease_ms=600_000)
        eventually(lambda: rounds)
        lost = inspect(r, "leader:scheduler")
        r.delete("leader:scheduler")
        candidate("host-2")
        eventually(lambda: self.leader(db)[0], "host-2")
        eventually(lambda: inspect(r, "leader:scheduler").waiters, 1)
        assert self.leader(db)[1] > lost.fence == rounds[-1], "the older one has stopped working, and waits to be elected"
        assert len(older.losses) == 1

    def test_a_leadership_ends_after_its_longest_time_however_often_it_is_renewed(self, candidate, db, eventually):
        fences = []
        candidate("host-1", lambda fence, lost: fences.append(fence), max_hold_ms=400)
        eventually(lambda: len(set(fences)) >= 3)
        assert fences == sorted(fences)


class Store(BaseHTTPRequestHandler):
    """A bucket: objects with an ETag of their body, GET, and PUT with If-Match and If-None-Match."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        with self.server.lock:
            body = self.server.objects.get(self.path)
        self._answer(404 if body is None else 200, body or b"", body)

    def do_PUT(self):
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            body = self.server.objects.get(self.path)
            wanted, unwanted = self.headers["If-Match"], self.headers["If-None-Match"]
            fits = (wanted is None or (body is not None and wanted == etag(body))) and not (unwanted == "*" and body is not None)
            if fits:
                self.server.objects[self.path] = sent
        self._answer(200 if fits else 412, b"", sent if fits else None)

    def _answer(self, status, content, tagged):
        self.send_response(status)
        if tagged is not None:
            self.send_header("ETag", etag(tagged))
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        """Nothing: pytest shows the requests that matter."""


def etag(body):
    return f'"{hashlib.md5(body).hexdigest()}"'


class TestObjectStore:
    @pytest.fixture
    def store(self):
        server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
        server.daemon_threads, server.objects, server.lock = True, {}, threading.Lock()
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        with httpx.Client(base_url=f"http://127.0.0.1:{server.server_port}/bucket/", trust_env=False) as client:
            yield client
        server.shutdown()
        thread.join()
        server.server_close()

    def test_a_stale_holder_is_refused_between_the_claim_and_the_write_of_the_next(self, store, r):
        recipe = example("object_store")
        first = acquire(r, "lock", "A", 1)
        a = recipe.claim(store, "report.json", first)
        second = acquire(r, "lock", "B", 60_000, "WAIT", 5_000)
        b = recipe.claim(store, "report.json", second)
        assert (a.data, b.data) == (None, None)
        assert recipe.write(store, a, "by A") is None
        b = recipe.write(store, b, "by B")
        b = recipe.write(store, b, "by B again")
        assert recipe.write(store, a, "by A") is None
        assert recipe.claim(store, "report.json", first) is None
        assert store.get("report.json").json() == {"fence": second, "data": "by B again"}
        assert recipe.claim(store, "report.json", second).data == "by B again", "an equal fence claims again"

    def test_holders_at_once_lose_no_increment(self, store):
        recipe = example("object_store")
        fences = iter(range(1, 10_000))

        def work(_):
            added = 0
            for _ in range(15):
                claimed = recipe.claim(store, "counter.json", next(fences))
                if claimed is not None:
                    added += recipe.write(store, claimed, (claimed.data or 0) + 1) is not None
            return added

        with ThreadPoolExecutor(4) as threads:
            added = sum(threads.map(work, range(4)))
        assert 0 < added == store.get("counter.json").json()["data"]

    def test_a_claim_in_metadata_alone_would_let_the_stale_write_in(self, store):
        """Why the fence lies in the body: the ETag of two equal bodies is the same."""
        store.put("report.json", content=b"{}")
        read_by_a = store.get("report.json").headers["ETag"]
        claimed_by_b = store.put("report.json", content=b"{}", headers={"If-Match": read_by_a, "x-amz-meta-fence": "34"})
        assert claimed_by_b.headers["ETag"] == read_by_a
        assert store.put("report.json", content=b'"by A"', headers={"If-Match": read_by_a}).status_code == 200


def test_after_a_failover_that_lost_small_fences_the_new_ones_are_above_all_rows(make_redis, db):
    """Two servers stand for the old primary and the new one, which has lost all state."""
    recipe = example("after_failover")
    db.execute(COUNTERS)
    db.execute("""CREATE TABLE "Odd" (id int PRIMARY KEY, "Lock" int NOT NULL DEFAULT 0); SELECT fence_protect('"Odd"', 'Lock')""")
    old, new = (redis.Redis(port=make_redis(("fence-clock", "no")).port) for _ in range(2))
    for owner in range(5):
        fence = acquire(old, "lock", owner, 1_000)
        release(old, "lock", owner, fence)
    claim = "SELECT id FROM fenced_claim(NULL::counters, 1, %s)"
    db.execute(claim, (fence,))
    assert recipe.newest_fence(db) == 5
    db.execute("""INSERT INTO "Odd" VALUES (1); SELECT FROM fenced_claim(NULL::"Odd", 1, 7, 'Lock')""")
    assert recipe.newest_fence(db) == 7
    db.execute("BEGIN; SELECT fenced_guard('ledger', 9); COMMIT")
    assert recipe.newest_fence(db) == 9
    db.execute("CREATE TABLE other (id int PRIMARY KEY, stamp bigint NOT NULL DEFAULT 11); INSERT INTO other VALUES (1)")
    assert recipe.newest_fence(db, [("other", "stamp")]) == 11

    refused = acquire(new, "lock", "A", 60_000)
    assert db.execute(claim, (refused,)).fetchall() == [], "a live holder, stale at once"
    assert recipe.raise_fences(new, recipe.newest_fence(db)) == 9
    assert recipe.raise_fences(new, recipe.newest_fence(db)) == 9, "it can be repeated"
    release(new, "lock", "A", refused)
    granted = acquire(new, "lock", "A", 60_000)
    assert granted == 10
    assert db.execute(claim, (granted,)).fetchall() == [(1,)]
    for client in (old, new):
        client.close()


def test_after_a_failover_fences_that_follow_the_clock_need_nothing(make_redis, db):
    db.execute(COUNTERS)
    granted = []
    for _ in range(2):
        with redis.Redis(port=make_redis().port) as client:
            granted.append(acquire(client, "lock", "A", 1_000))
        assert db.execute("SELECT id FROM fenced_claim(NULL::counters, 1, %s)", (granted[-1],)).fetchall() == [(1,)]
    assert granted == sorted(granted)


def test_rows_with_small_fences_of_a_hand_made_counter_are_claimed_as_they_are(r, db):
    db.execute(COUNTERS)
    db.execute("UPDATE counters SET fence = 57")
    fence = acquire(r, "lock", "A", 60_000)
    assert db.execute("SELECT value FROM fenced_claim(NULL::counters, 1, %s)", (fence,)).fetchall() == [(0,)]
    # The old worker's own statement, with the next number of its counter.
    assert db.execute("UPDATE counters SET value = 9, fence = 58 WHERE id = 1 AND fence <= 58").rowcount == 0


def test_small_fences_go_on_from_the_rows_when_the_column_stays_narrow(make_redis, db):
    db.execute("CREATE TABLE t (id int PRIMARY KEY, lock_fence int NOT NULL DEFAULT 0); INSERT INTO t VALUES (1, 57)")
    recipe = example("after_failover")
    with redis.Redis(port=make_redis(("fence-clock", "no")).port) as client:
        recipe.raise_fences(client, recipe.newest_fence(db, [("t", "lock_fence")]))
        fence = acquire(client, "lock", "A", 60_000)
    assert fence == 58
    assert db.execute("SELECT id FROM fenced_claim(NULL::t, 1, %s, 'lock_fence')", (fence,)).fetchall() == [(1,)]


def test_workers_of_redis_py_and_ours_exclude_each_other_on_the_way_over(r, redis_server):
    both_locks = example("from_redis_py_lock").both_locks
    with redis.Redis(port=redis_server.port) as client:
        with client.lock("job", timeout=10), pytest.raises(redis.exceptions.LockError), both_locks(r, "job", wait_ms=50):
            raise AssertionError("an old worker holds the lock")
        with both_locks(r, "job") as fence:
            assert not client.lock("job", timeout=10).acquire(blocking=False), "a new worker holds the lock"
            assert inspect(r, "fence:job").fence == fence
            # A worker of the last step, which takes no old lock.
            assert acquire(client, "fence:job", "C", 1_000) is None
        assert inspect(r, "fence:job") is None
        with pytest.raises(example("lease").LockLost), both_locks(r, "job"):
            r.delete("fence:job")
        assert client.lock("job", timeout=10).acquire(blocking=False)
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            acquire(r, "job", "D", 1_000)


HAND_MADE = """
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
    return redis.call('INCR', KEYS[2])
end
return 0
"""
HAND_MADE_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"


def test_workers_of_a_hand_made_counter_and_ours_finish_all_their_sections(r, redis_server, db, connect):
    """Both kinds add to one row, and each tenth section stalls past its lease. Nobody is refused for ever."""
    recipe, sections = example("from_counter_lock"), 15
    db.execute(COUNTERS)
    r.set("job:fence", 57)
    db.execute("UPDATE counters SET fence = 57")

    def old(number):
        connection, done = connect(), 0
        with redis.Redis(port=redis_server.port) as client:
            for attempt in range(2_000):
                fence = client.eval(HAND_MADE, 2, "job", "job:fence", f"{number}:{attempt}", 100)
                if fence == 0:
                    time.sleep(0.002)
                    continue
                claimed = "UPDATE counters SET fence = %s WHERE id = 1 AND fence < %s RETURNING value"
                row = connection.execute(claimed, (fence, fence)).fetchone()
                if row is not None:
                    stall(client, "job", attempt)
                    write = "UPDATE counters SET value = %s WHERE id = 1 AND fence = %s"
                    done += connection.execute(write, (row[0] + 1, fence)).rowcount
                client.eval(HAND_MADE_RELEASE, 1, "job", f"{number}:{attempt}")
                if done == sections:
                    return
        raise AssertionError(f"an old worker was refused again and again: {done} of {sections}")

    def new(_):
        connection, done = connect(), 0
        with redis.Redis(port=redis_server.port) as client:
            for attempt in range(2_000):
                with suppress(redis.exceptions.LockError, example("lease").LockBusy, example("lease").LockLost):
                    with recipe.locks_and_counter(client, "job", "job:fence", 100, 2_000) as fence:
                        row = connection.execute(CLAIM.replace("$1", "%s"), (fence,)).fetchone()
                        if row is not None:
                            stall(client, "job", attempt)
                            update = UPDATE.replace("$1", "%s").replace("$2", "%s")
                            done += connection.execute(update, (fence, row[0] + 1)).fetchone()[0]
                if done == sections:
                    return
        raise AssertionError(f"a new worker was refused again and again: {done} of {sections}")

    def stall(client, name, attempt):
        """Until the old lock has expired, which holds nobody of the other kind off any more."""
        if attempt % 10 == 3:
            time.sleep(client.pttl(name) / 1000 + 0.02)

    # A new worker is the first to claim, so the old counter is far below the row from the start.
    with recipe.locks_and_counter(r, "job", "job:fence") as fence:
        assert db.execute(CLAIM.replace("$1", "%s"), (fence,)).fetchone() == (0,)
    with ThreadPoolExecutor(4) as threads:
        running = [threads.submit(kind, number) for number, kind in enumerate((old, new, old, new))]
        for worker in running:
            worker.result(120)
    assert db.execute("SELECT value FROM counters").fetchone() == (4 * sections,)


def test_every_call_in_the_table_of_redis_py_is_one(r):
    """Each command in the example's table, run as it is written, after the other."""
    table = (EXAMPLES / "from_redis_py_lock.py").read_text()
    commands = re.findall(r"`(FENCELOCK\.[^`]+)`", table)
    assert len(commands) == 6
    fence = None
    for words in (command.split() for command in commands):
        reply = r.execute_command(*(str(fence) if word == "fence" else word for word in words))
        fence = fence or reply
        if words[0] == "FENCELOCK.ACQUIRE":
            assert reply == fence, "RETRY gives the same hold"
        elif words[0] in ("FENCELOCK.EXTEND", "FENCELOCK.RELEASE"):
            assert reply > 0
