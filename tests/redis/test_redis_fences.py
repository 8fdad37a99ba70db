"""Fences: they only grow, whatever happens to the keys, and follow the clock unless set otherwise; and the settings."""

import time

import pytest
import redis

from harness import ServerFailed, eventually
from harness.process import free_port
from harness.locks import SKIPPED, FENCE_MAX, acquire, extend, inspect, release, wait_until_free
from harness.payloads import lock_payload

HOUR_US = 3_600_000_000
TEN_YEARS_MS = 10 * 366 * 86_400_000

FORGETS = {
    "release": lambda client: release(client, "k", "A"),
    "running out": lambda client: (extend(client, "k", "A", 1), eventually(client.dbsize, 0)),
    "DEL": lambda client: client.delete("k"),
    "UNLINK": lambda client: client.unlink("k"),
    "overwriting": lambda client: (client.set("k", "v"), client.delete("k")),
    "FLUSHDB": lambda client: client.flushdb(),
    "FLUSHALL": lambda client: client.flushall(),
    "FLUSHALL ASYNC": lambda client: client.flushall(asynchronous=True),
    "SWAPDB": lambda client: client.swapdb(0, 1),
    "RENAME": lambda client: client.rename("k", "elsewhere"),
    "eviction": lambda client: evict_all(client),
}


def evict_all(client):
    """Evict every key: the memory that is allowed is less than an empty server takes."""
    client.config_set("maxmemory-policy", "allkeys-random")
    client.config_set("maxmemory", "1")
    eventually(lambda: client.get("k") is None and client.dbsize(), 0)
    client.config_set("maxmemory", "0")


@pytest.fixture
def counting(make_redis):
    """A client of a server that counts fences without the clock."""
    with redis.Redis(port=make_redis(("fence-clock", "no")).port, protocol=2) as client:
        yield client


def cluster():
    """The settings of a cluster of one node. Its second port is by default 10,000 above the first, which may be too high."""
    return {"cluster-enabled": "yes", "cluster-port": free_port()}


def now_us():
    return time.time_ns() // 1_000


def test_a_fence_is_the_unix_time_in_microseconds(r):
    before = now_us()
    fence = acquire(r, "k", "A", 10_000)
    assert before <= fence <= now_us() + 1


def test_fences_grow_over_all_names(r):
    fences = [acquire(r, f"k{number % 7}-{number}", "A", 10_000) for number in range(300)]
    assert fences == sorted(set(fences))


def test_without_the_clock_fences_count_from_one(counting):
    assert [acquire(counting, f"k{number}", "A", 10_000) for number in range(1, 6)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("forget", FORGETS.values(), ids=FORGETS)
def test_fences_do_not_go_back_when_a_lock_is_forgotten(counting, forget):
    for expected in (1, 2, 3):
        assert acquire(counting, "k", "A", 60_000) == expected
        forget(counting)
        counting.flushall()


def test_refused_calls_use_up_no_fence(counting):
    assert acquire(counting, "k", "A", 60_000) == 1
    assert [acquire(counting, "k", owner, 60_000) for owner in "AB"] == [None, None]
    assert [extend(counting, "k", "B", 60_000), release(counting, "k", "B"), release(counting, "free", "B")] == [0, 0, 0]
    assert extend(counting, "k", "A", 60_000) > 0
    assert release(counting, "k", "A") == 1
    assert acquire(counting, "k", "B", 60_000) == 2


def test_a_fence_ahead_of_the_clock_is_counted_on_from(make_redis):
    """As after a step of the clock: a restored lock brings the fence of a server whose clock was ahead."""
    with redis.Redis(port=make_redis().port, protocol=2) as client:
        ahead = now_us() + HOUR_US // 2
        client.restore("ahead", 0, lock_payload(fence=ahead))
        assert [acquire(client, f"k{number}", "A", 10_000) for number in (1, 2, 3)] == [ahead + 1, ahead + 2, ahead + 3]


def test_released_locks_cost_no_memory(make_redis):
    """A hundred thousand names: a record for each would be megabytes."""
    with redis.Redis(port=make_redis().port, protocol=2, socket_timeout=60) as client:
        script = client.register_script(
            "for i = 1, tonumber(ARGV[2]) do local key = ARGV[1] .. i "
            "redis.call('FENCELOCK.ACQUIRE', key, 'A', 60000) redis.call('FENCELOCK.RELEASE', key, 'A') end"
        )
        script(args=["warm", 1_000])
        before = client.info("memory")["used_memory"]
        script(args=["name", 100_000])
        assert client.dbsize() == 0
        assert client.info("memory")["used_memory"] - before < 1_000_000


def test_when_all_fences_are_issued_a_grant_is_refused(make_redis):
    """An append-only file brings the last fence but one: limits bind what users pass, not what a file carries."""
    server = make_redis(("fence-clock", "no"), {"appendonly": "yes", "appendfsync": "always", "auto-aof-rewrite-percentage": "0"})
    with redis.Redis(port=server.port, protocol=2) as client:
        assert acquire(client, "held", "A", 600_000) == 1
    server.stop()
    last_file = max((server.data_dir / "appendonlydir").glob("*.incr.aof"))
    floor = str(FENCE_MAX - 1 - SKIPPED).encode()
    with last_file.open("ab") as file:
        file.write(b"*2\r\n$16\r\nFENCELOCK._FLOOR\r\n$%d\r\n%s\r\n" % (len(floor), floor))
    server.start()
    with redis.Redis(port=server.port, protocol=2) as client:
        assert acquire(client, "k", "A", 600_000) == FENCE_MAX
        with pytest.raises(redis.ResponseError, match=str(FENCE_MAX)):
            acquire(client, "k2", "A", 600_000)
        assert sorted(client.keys()) == [b"held", b"k"]
        assert extend(client, "k", "A", 600_000, FENCE_MAX) > 0
        assert release(client, "held", "A", 1) == 1


# --- settings


@pytest.mark.parametrize(
    ("arguments", "config"),
    [
        (("fence-clock", "no"), {}),
        (("FENCE-CLOCK", "NO"), {}),
        ((), {"fencelock.fence-clock": "no"}),
        (("fence-clock", "yes"), {"fencelock.fence-clock": "no"}),
    ],
    ids=["argument", "argument in capitals", "redis.conf", "redis.conf over argument"],
)
def test_fence_clock_is_an_argument_of_the_module_and_a_setting(make_redis, arguments, config):
    with redis.Redis(port=make_redis(arguments, config).port, protocol=2) as client:
        assert acquire(client, "k", "A", 10_000) == 1
        assert client.config_get("fencelock.fence-clock") == {"fencelock.fence-clock": "no"}


def test_fence_clock_is_on_unless_set(r):
    assert r.config_get("fencelock.fence-clock") == {"fencelock.fence-clock": "yes"}


def test_fence_clock_cannot_be_changed_while_the_server_runs(r, counting):
    for client, value, other in ((r, "yes", "no"), (counting, "no", "yes")):
        with pytest.raises(redis.ResponseError, match="immutable"):
            client.config_set("fencelock.fence-clock", other)
        assert client.config_get("fencelock.fence-clock") == {"fencelock.fence-clock": value}
    assert acquire(counting, "k", "A", 10_000) == 1


@pytest.mark.parametrize(
    ("arguments", "config"),
    [(("fence-clock", "no"), {}), ((), {"fencelock.fence-clock": "no"})],
    ids=["argument", "redis.conf"],
)
def test_fences_without_the_clock_are_refused_in_a_cluster(make_redis, arguments, config):
    with pytest.raises(ServerFailed, match="fence-clock no is refused in a cluster"):
        make_redis(arguments, {**cluster(), **config})


def test_fences_without_the_clock_require_that_the_last_one_is_saved(make_redis):
    with pytest.raises(ServerFailed, match="fence-clock no requires save-last-fence yes"):
        make_redis(("fence-clock", "no", "save-last-fence", "no"))


def test_a_lock_works_in_a_cluster(make_redis):
    server = make_redis(config=cluster())
    with redis.Redis(port=server.port, protocol=2) as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        eventually(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"))
        for key in (b"job{1", b"{}x", b"a{b}c", b"{b}", b"", b"a\0b\n"):
            fence = acquire(client, key, "A", 10_000)
            assert extend(client, key, "A", 20_000, fence) > 0
            assert release(client, key, "A", fence) == 1
        acquire(client, "{b}short", "A", 50)
        eventually(client.dbsize, 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fence-clock", "maybe"), "fence-clock must be yes or no"),
        (("fence-clock",), "fence-clock has no value"),
        (("save-last-fence", "1"), "save-last-fence must be yes or no"),
        (("max-ttl-ms", "0"), "max-ttl-ms must be an integer"),
        (("max-ttl-ms", "1.5"), "max-ttl-ms must be an integer"),
        (("max-ttl-ms", str(TEN_YEARS_MS + 1)), "max-ttl-ms must be an integer"),
        (("fence-cluck", "no"), "there is no setting 'fence-cluck'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_bad_argument_of_the_module_stops_the_start_and_is_named(make_redis, arguments, said):
    with pytest.raises(ServerFailed, match=said):
        make_redis(arguments)


def test_the_longest_lease_is_a_setting(make_redis):
    with redis.Redis(port=make_redis(("max-ttl-ms", "5000")).port, protocol=2) as client:
        with pytest.raises(redis.ResponseError, match="ttl-ms must be an integer from 1 to 5000"):
            acquire(client, "k", "A", 5_001)
        client.config_set("fencelock.max-ttl-ms", TEN_YEARS_MS)
        assert acquire(client, "k", "A", TEN_YEARS_MS)
        client.config_set("fencelock.max-ttl-ms", 100)
        assert inspect(client, "k").ttl_ms > TEN_YEARS_MS - 60_000
        with pytest.raises(redis.ResponseError, match="ttl-ms must be an integer from 1 to 100"):
            extend(client, "k", "A", 101)
        assert extend(client, "k", "A", 100) > 0
        wait_until_free(client, "k")


@pytest.mark.parametrize("value", ["0", "-1", "1.5", str(TEN_YEARS_MS + 1), "soon", ""])
def test_the_longest_lease_cannot_be_set_out_of_its_range(r, value):
    before = r.config_get("fencelock.max-ttl-ms")
    with pytest.raises(redis.ResponseError):
        r.config_set("fencelock.max-ttl-ms", value)
    assert r.config_get("fencelock.max-ttl-ms") == before == {"fencelock.max-ttl-ms": "86400000"}
