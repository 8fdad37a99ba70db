"""What becomes of a lease when its key is deleted, renamed, moved, swapped, flushed, copied, evicted or given a TTL.

A lease ends on time wherever its key went, and neither a key nor memory is left behind.
"""

import os
import signal
import statistics
import threading
import time

import pytest
import redis

from harness import eventually
from harness.redis_server import server_version
from harness.locks import acquire, assert_ends_by, assert_ends_on_time, extend, inspect, release, wait_until_free
from harness.payloads import lock_payload
from harness.waiting import HANG_S

# Where the lock `k` of database 0 is after each of these: (database, key) pairs.
MOVES = {
    "RENAME": (lambda r: r.rename("k", "z"), [(0, "z")]),
    "RENAME and back": (lambda r: (r.rename("k", "z"), r.rename("z", "k")), [(0, "k")]),
    "RENAME over a string": (lambda r: (r.set("z", "v"), r.rename("k", "z")), [(0, "z")]),
    "RENAME over a lock": (lambda r: (acquire(r, "z", "Z", 60_000), r.rename("k", "z")), [(0, "z")]),
    "RENAMENX": (lambda r: r.renamenx("k", "z"), [(0, "z")]),
    "MOVE": (lambda r: r.move("k", 1), [(1, "k")]),
    "MOVE and RENAME": (lambda r: (r.rename("k", "z"), r.move("z", 1)), [(1, "z")]),
    "SWAPDB": (lambda r: r.swapdb(0, 1), [(1, "k")]),
    "SWAPDB with itself": (lambda r: r.swapdb(0, 0), [(0, "k")]),
    "SWAPDB twice": (lambda r: (r.swapdb(0, 1), r.swapdb(1, 2)), [(2, "k")]),
    "SWAPDB and MOVE": (lambda r: (r.swapdb(0, 1), r.swapdb(0, 1), r.move("k", 2)), [(2, "k")]),
    "DUMP and RESTORE": (lambda r: r.restore("z", 0, r.dump("k")), [(0, "k"), (0, "z")]),
    "RESTORE over itself": (lambda r: r.restore("k", 0, r.dump("k"), replace=True), [(0, "k")]),
    "RESTORE with a TTL": (lambda r: r.restore("k", 60_000, r.dump("k"), replace=True), [(0, "k")]),
    "EXPIRE": (lambda r: r.expire("k", 60), [(0, "k")]),
    "EXPIRE and PERSIST": (lambda r: (r.expire("k", 60), r.persist("k")), [(0, "k")]),
    "PERSIST": (lambda r: r.persist("k"), [(0, "k")]),
}

ENDINGS = {
    "DEL": lambda r: r.delete("k"),
    "UNLINK": lambda r: r.unlink("k"),
    "PEXPIRE in the past": lambda r: r.pexpire("k", -1),
    "PEXPIRE": lambda r: (r.pexpire("k", 1), eventually(lambda: r.exists("k"), 0)),
    "SET": lambda r: (r.set("k", "v"), r.delete("k")),
    "RENAME of another key over it": lambda r: (r.set("z", "v"), r.rename("z", "k"), r.delete("k")),
    "SORT ... STORE": lambda r: (r.rpush("list", "1"), r.sort("list", store="k"), r.delete("k", "list")),
    "FLUSHDB": lambda r: r.flushdb(),
    "FLUSHDB ASYNC": lambda r: r.flushdb(asynchronous=True),
    "FLUSHALL": lambda r: r.flushall(),
    "FLUSHALL ASYNC": lambda r: r.flushall(asynchronous=True),
}

RETURNS_OF_MEMORY = {
    "RELEASE": lambda r, keys: pipelined(r, keys, lambda pipe, key: release(pipe, key, "A")),
    "DEL": lambda r, keys: r.delete(*keys),
    "UNLINK": lambda r, keys: r.unlink(*keys),
    "SET": lambda r, keys: (r.mset(dict.fromkeys(keys, "v")), r.delete(*keys)),
    "FLUSHDB": lambda r, keys: r.flushdb(),
    "FLUSHALL ASYNC": lambda r, keys: r.flushall(asynchronous=True),
    "running out": lambda r, keys: pipelined(r, keys, lambda pipe, key: extend(pipe, key, "A", 20)),
    "RENAME and running out": lambda r, keys: (
        pipelined(r, keys, lambda pipe, key: pipe.rename(key, f"{key}-renamed")),
        pipelined(r, keys, lambda pipe, key: extend(pipe, f"{key}-renamed", "A", 20)),
    ),
    "SWAPDB and FLUSHALL": lambda r, keys: (r.swapdb(0, 1), r.flushall()),
}


@pytest.fixture
def database(redis_server, closing):
    """A factory of clients of one database of the shared server."""
    return lambda number: closing(redis.Redis(port=redis_server.port, db=number, protocol=2))


def pipelined(client, keys, call):
    """Run one command for each key in one go, and return the replies."""
    with client.pipeline(transaction=False) as pipe:
        for key in keys:
            call(pipe, key)
        return pipe.execute()


# --- the key goes elsewhere


@pytest.mark.parametrize(("move", "places"), MOVES.values(), ids=MOVES)
def test_a_lease_ends_on_time_wherever_its_key_went(r, database, move, places):
    while True:
        began = time.monotonic()
        fence = acquire(r, "k", "A", 250)
        try:
            move(r)
        except redis.RedisError:
            if time.monotonic() < began + 0.25:
                raise
        moved = time.monotonic()  # what a RESTORE takes does not count as time of the lease
        if moved < began + 0.25:
            break
        # The lease may have ended before its key went.
        r.flushall()
    for number, key in places:
        lock = inspect(database(number), key)
        # On a busy machine the lease may be over by now.
        assert time.monotonic() - began > 0.25 or (lock.hold, lock.ttl_ms <= 250) == ((b"A", fence), True)
    if (0, "k") not in places:
        assert inspect(r, "k") is None
        assert acquire(r, "k", "B", 30) > fence
    for number, key in places:
        assert_ends_on_time(database(number), key, began, moved, 250)
    for number in range(3):
        eventually(database(number).dbsize, 0)


@pytest.mark.parametrize(("move", "places"), MOVES.values(), ids=MOVES)
def test_a_lease_can_be_extended_and_released_where_its_key_is(r, database, move, places):
    fence = acquire(r, "k", "A", 60_000)
    move(r)
    for number, key in places:
        client = database(number)
        assert extend(client, key, "A", 120_000, fence) > 60_000
        assert client.pttl(key) == -1
        assert release(client, key, "A", fence) == 1
    for number in range(3):
        assert database(number).dbsize() == 0


def test_many_renamed_locks_all_end_on_time(r):
    keys = [f"k{number}" for number in range(3_000)]
    # Each in one go, so that no lease ends before its key is renamed.
    pipelined(r, keys, lambda pipe, key: (acquire(pipe, key, "A", 1_000), pipe.rename(key, f"{key}-renamed")))
    granted = time.monotonic()
    for key in (keys[0], keys[-1]):
        assert_ends_by(r, f"{key}-renamed", granted + 1)
    eventually(r.dbsize, 0)


def test_a_renamed_lock_among_many_keys_is_free_on_time_and_found_later(r):
    """The walk that finds it takes its time, so the entry outlives the lease. The lease does not."""
    r.eval("for i = 1, 10000 do redis.call('SET', 'other' .. i, 'v') end", 0)
    began = time.monotonic()
    pipelined(r, ["k"], lambda pipe, key: (acquire(pipe, key, "A", 200), pipe.rename(key, "z")))
    granted = time.monotonic()
    assert_ends_on_time(r, "z", began, granted, 200)
    eventually(lambda: r.exists("z"), 0)
    assert r.dbsize() == 10_000


def test_a_swapped_lock_among_many_keys_is_removed_on_time(r, database):
    """A swap moves no lock from its place in the index, so nothing has to be looked for."""
    r.eval("for i = 1, 50000 do redis.call('SET', 'other' .. i, 'v') end", 0)
    acquire(r, "k", "A", 250)
    granted = time.monotonic()
    r.swapdb(0, 1)
    assert_ends_by(database(1), "k", granted + 0.25)
    eventually(lambda: database(1).exists("k"), 0)
    assert database(1).dbsize() == 50_000


def test_copy_of_a_lock_is_refused(r):
    fence = acquire(r, "k", "A", 60_000)
    with pytest.raises(redis.ResponseError):
        r.copy("k", "z")
    assert r.keys() == [b"k"]
    assert inspect(r, "k").hold == (b"A", fence)


def test_a_lock_that_is_restored_within_a_minute_has_the_time_that_was_left(r):
    """Older dumps: see test_redis_clocks.py, which moves the clock."""
    # In one step each, so that the lease is live.
    asked = time.monotonic()
    with r.pipeline() as transaction:
        acquire(transaction, "k", "A", 1_500)
        transaction.dump("k")
        release(transaction, "k", "A")
        fence, dump, released = transaction.execute()
    left_s = 1.5 - (time.monotonic() - asked)  # at least
    assert released == 1
    began = time.monotonic()
    with r.pipeline() as transaction:
        transaction.restore("k", 0, dump)
        transaction.execute_command("FENCELOCK.INSPECT", "k")
        told = transaction.execute()[1]
    restored = time.monotonic()
    assert (told[1], told[3]) == (b"A", fence)
    assert_ends_by(r, "k", restored + 1.5)
    # The dump has whole milliseconds.
    assert wait_until_free(r, "k") >= began + left_s - 0.002
    assert extend(r, "k", "A", 1_000, fence) == 0
    assert acquire(r, "k", "B", 1_000) > fence


# --- the key goes away


@pytest.mark.parametrize("end", ENDINGS.values(), ids=ENDINGS)
def test_a_lock_whose_key_went_away_is_free_and_its_holder_has_lost_it(r, end):
    first = acquire(r, "k", "A", 60_000)
    end(r)
    assert r.dbsize() == 0
    assert (inspect(r, "k"), extend(r, "k", "A", 60_000, first), release(r, "k", "A", first)) == (None, 0, 0)
    second = acquire(r, "k", "B", 60_000)
    assert second > first
    assert inspect(r, "k").hold == (b"B", second)


@pytest.mark.parametrize("end", ENDINGS.values(), ids=ENDINGS)
def test_the_deadline_of_a_lease_that_went_away_does_not_touch_its_successor(r, end):
    acquire(r, "k", "A", 80)
    deadline = time.monotonic() + 0.08
    end(r)
    second = acquire(r, "k", "B", 60_000)
    eventually(lambda: time.monotonic() > deadline + 0.05)
    assert inspect(r, "k").hold == (b"B", second)


@pytest.mark.parametrize("give_back", RETURNS_OF_MEMORY.values(), ids=RETURNS_OF_MEMORY)
def test_the_memory_of_leases_comes_back(make_redis, give_back):
    count = 10_000
    with redis.Redis(port=make_redis().port, protocol=2, socket_timeout=60) as client:

        def used():
            return client.info("memory")["used_memory"]

        def take_and_give_back():
            keys = [f"k{number}" for number in range(count)]
            pipelined(client, keys, lambda pipe, key: acquire(pipe, key, "A", 600_000))
            full = used()
            give_back(client, keys)
            eventually(client.dbsize, 0)
            return full

        def pending():
            return client.info("memory")["lazyfree_pending_objects"]

        def of_the_index():
            stats = client.execute_command("FENCELOCK.STATS")
            return dict(zip(stats[::2], stats[1::2]))[b"index-bytes"]

        empty = of_the_index()
        take_and_give_back()
        # Other threads may still be freeing, and the module gives places back in slices.
        eventually(lambda: pending() == 0 and of_the_index() < empty + 100_000, True)
        eventually(lambda: used_is_steady(used))
        first = used()
        full = max(take_and_give_back() for _ in range(3))
        taken = full - first
        assert taken > count * 50
        # Three times the leases are gone: were any kept, it would be their whole size.
        eventually(lambda: used() - first < taken / 4)


def used_is_steady(used):
    """Whether the memory in use stands still for a moment: what is freed on another thread is freed."""
    before = used()
    time.sleep(0.05)  # the moment
    return abs(used() - before) < 50_000


def test_memory_usage_of_a_lock_grows_with_its_owner(r):
    acquire(r, "short", "A", 60_000)
    acquire(r, "tall", "A" * 512, 60_000)
    short, tall = r.memory_usage("short"), r.memory_usage("tall")
    # Valkey reports the value alone, Redis the key and its entry too.
    assert (24 if server_version()[0] == "Valkey" else 50) < short < 250
    assert 400 < tall - short < 700


# --- TTLs of Redis


def test_a_ttl_that_somebody_set_is_cleared_by_an_extension(r):
    acquire(r, "k", "A", 60_000)
    r.pexpire("k", 50_000)
    assert extend(r, "k", "A", 60_000) > 0
    assert r.pttl("k") == -1


def test_a_ttl_that_somebody_set_is_cleared_by_a_grant_over_a_lease_that_ran_out(r):
    """In one script, so that nothing removes the entry in between: it is free all the same."""
    told = r.eval(
        "redis.call('FENCELOCK.ACQUIRE', 'k', 'A', 1) redis.call('PEXPIRE', 'k', 60000) "
        "local calls = 0 "
        "while redis.call('FENCELOCK.INSPECT', 'k') do calls = calls + 1 end "
        "local entry = redis.call('EXISTS', 'k') "
        "return {entry, redis.call('FENCELOCK.ACQUIRE', 'k', 'B', 60000), redis.call('PTTL', 'k')}",
        0,
    )
    entry, fence, pttl = told
    assert (entry, pttl) == (1, -1)
    assert inspect(r, "k").hold == (b"B", fence)


def test_persist_does_not_make_a_lock_permanent(r):
    began = time.monotonic()
    acquire(r, "k", "A", 200)
    granted = time.monotonic()
    r.expire("k", 60)
    r.persist("k")
    assert_ends_on_time(r, "k", began, granted, 200)
    eventually(r.dbsize, 0)


# --- many at once


@pytest.mark.parametrize("at_once", [False, True], ids=["in one second", "while the server was frozen"])
def test_a_hundred_thousand_leases_end(make_redis, at_once):
    assert end_of_many_leases(make_redis, at_once)[0][-1] == 0


@pytest.mark.timing
@pytest.mark.parametrize("at_once", [False, True], ids=["in one second", "while the server was frozen"])
def test_a_hundred_thousand_leases_end_and_nobody_waits(make_redis, at_once):
    """Clients are served between slices: they see the number go down, and none waits for all of it."""
    sizes, waits = end_of_many_leases(make_redis, at_once)
    assert len({size for size in sizes if 0 < size < sizes[0]}) >= 20
    assert max(waits) < 0.1, f"{max(waits):.3f} s"
    assert statistics.median(waits) < 0.01


def end_of_many_leases(make_redis, at_once):
    """The numbers of keys that a client saw until all leases had ended, and how long it waited for each."""
    count, ttl_s = 100_000, 1.2
    server = make_redis()
    with redis.Redis(port=server.port, protocol=2, socket_timeout=60) as client:
        call = "n = n + (redis.call('FENCELOCK.ACQUIRE', 'k' .. i, 'A', ARGV[2]) and 1 or 0)"
        script = f"local n = 0 for i = 1, tonumber(ARGV[1]) do {call} end return n"
        assert client.eval(script, 0, count, int(ttl_s * 1000)) == count
        granted = time.monotonic()
        if at_once:
            os.kill(server.pid, signal.SIGSTOP)
            eventually(lambda: time.monotonic() > granted + ttl_s)
            os.kill(server.pid, signal.SIGCONT)
        # The first may have ended before the last was granted.
        sizes, waits = [client.dbsize()], []
        while sizes[-1]:
            began = time.monotonic()
            sizes.append(client.dbsize())
            waits.append(time.monotonic() - began)
            assert began < granted + HANG_S
        return sizes, waits


def test_a_server_that_evicts_locks_lives_and_issues_growing_fences(make_redis):
    server = make_redis(config={"maxmemory": "6mb", "maxmemory-policy": "allkeys-random"})
    with redis.Redis(port=server.port, protocol=2) as client:
        pid, last = server.pid, 0
        for number in range(400):
            fences = pipelined(client, range(20), lambda pipe, key: acquire(pipe, f"{number}-{key}", "A", 200))
            assert fences == sorted(set(fences))
            assert fences[0] > last
            last = fences[-1]
            client.set(f"fill{number}", "v" * 20_000)
        evicted = client.info("stats")["evicted_keys"]
        assert evicted > 100
        eventually(lambda: [key for key in client.keys() if not key.startswith(b"fill")], [])
        assert (server.pid, client.ping()) == (pid, True)


@pytest.mark.parametrize("policy", ["volatile-lru", "volatile-random", "volatile-ttl"])
def test_volatile_policies_do_not_evict_a_lock(make_redis, policy):
    server = make_redis(config={"maxmemory": "6mb", "maxmemory-policy": policy})
    with redis.Redis(port=server.port, protocol=2) as client:
        keys = [f"k{number}" for number in range(200)]
        fences = pipelined(client, keys, lambda pipe, key: acquire(pipe, key, "A", 600_000))
        for number in range(500):
            client.set(f"fill{number}", "v" * 20_000, ex=600)
        assert client.info("stats")["evicted_keys"] > 100
        assert [lock.hold for lock in (inspect(client, key) for key in keys)] == [(b"A", fence) for fence in fences]


def test_a_full_server_refuses_grants_and_lets_holders_extend_and_release(make_redis):
    server = make_redis(("fence-clock", "no"), {"maxmemory-policy": "noeviction"})
    with redis.Redis(port=server.port, protocol=2) as client:
        acquire(client, "k", "A", 10_000)
        client.config_set("maxmemory", "1")
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            acquire(client, "free", "A", 10_000)
        assert extend(client, "k", "A", 60_000) > 10_000
        assert inspect(client, "k").hold == (b"A", 1)
        assert release(client, "k", "A") == 1
        client.config_set("maxmemory", "0")
        assert acquire(client, "free", "A", 10_000) == 2


def test_keys_that_come_and_go_under_load_leave_nothing_behind(r, redis_server, database):
    """Locks are taken, renamed, moved, swapped, flushed and expire, all at once."""
    stop = threading.Event()
    failures = []

    def run(step):
        with redis.Redis(port=redis_server.port, protocol=2, db=step % 2) as client:
            number = 0
            while not stop.is_set():
                number += 1
                key = f"k{number % 50}"
                try:
                    acquire(client, key, "A", 1 + number % 40)
                    match (number + step) % 7:
                        case 0:
                            client.rename(key, f"k{(number * 7) % 50}")
                        case 1:
                            client.move(key, 1 - step % 2)
                        case 2:
                            client.unlink(key)
                        case 3:
                            extend(client, key, "A", 20)
                        case 4 if number % 50 == 0:
                            client.swapdb(0, 1)
                        case 5 if number % 70 == 0:
                            client.flushdb(asynchronous=True)
                        case 6:
                            client.restore(f"k{number % 50}", 0, lock_payload(fence=1, left_us=20_000), replace=True)
                except redis.ResponseError as error:
                    if "no such key" not in str(error):
                        failures.append(error)

    threads = [threading.Thread(target=run, args=(step,)) for step in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(2)  # the load
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    for number in (0, 1):
        eventually(database(number).dbsize, 0)


# --- flushes: what came before counts no more, at once, and everything else stays true

FLUSHES = {
    "FLUSHALL": lambda r: r.flushall(),
    "FLUSHALL ASYNC": lambda r: r.flushall(asynchronous=True),
    "FLUSHDB": lambda r: r.flushdb(),
    "FLUSHDB ASYNC": lambda r: r.flushdb(asynchronous=True),
    "FLUSHDB after SWAPDB": lambda r: (r.swapdb(0, 2), r.swapdb(0, 2), r.flushdb()),
}


def numbers(client):
    told = client.execute_command("FENCELOCK.STATS")
    return {name.decode(): value for name, value in zip(told[::2], told[1::2], strict=True)}


@pytest.mark.parametrize("flush", FLUSHES)
def test_leases_are_counted_right_through_flushes_of_one_database_and_of_all(r, database, flush):
    other, keys = database(1), [f"k{number}" for number in range(500)]
    for _ in range(3):
        for client in (r, other):
            pipelined(client, keys, lambda pipe, key: acquire(pipe, key, "A", 60_000))
        # Some live on under another name.
        pipelined(r, keys[:20], lambda pipe, key: pipe.rename(key, f"{key}-renamed"))
        FLUSHES[flush](r)
        stay = 0 if flush.startswith("FLUSHALL") else 500
        assert (numbers(r)["live-leases"], other.dbsize()) == (stay, stay)
        fences = pipelined(r, keys[:100], lambda pipe, key: acquire(pipe, key, "B", 60_000))
        assert numbers(r)["live-leases"] == stay + 100
        other.flushdb()
        assert numbers(r)["live-leases"] == 100
        assert [inspect(r, key).fence for key in keys[:100]] == fences
        pipelined(r, keys[:100], lambda pipe, key: extend(pipe, key, "B", 20))
        eventually(lambda: (r.dbsize(), numbers(r)["live-leases"]), (0, 0))
    # All places come back.
    eventually(lambda: numbers(r)["index-bytes"] < 100_000)


def test_a_lock_that_is_restored_with_no_time_to_live_leaves_nothing_however_often(r):
    """The server drops it at once and without a word."""
    acquire(r, "k", "A", 60_000)
    dump = r.dump("k")
    for _ in range(20):
        with r.pipeline(transaction=False) as pipe:
            for number in range(100):
                pipe.restore(f"k{number}", 1_000, dump, absttl=True, replace=True)
            pipe.execute()
        assert numbers(r)["live-leases"] == 1
    assert r.dbsize() == 1
