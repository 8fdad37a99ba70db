"""Commands of the server that an administrator renamed away, and writes that cannot be propagated: nothing is lost in silence.

Commands of modules cannot be renamed, so locks do not depend on any other. What cannot be propagated is refused and logged.
"""

import time

import pytest
import redis

from harness import eventually, places
from harness.locks import acquire, inspect, release
from harness.redis_calls import Lines
from test_redis_replication import follow, wait_until_equal

LONG_MS = 60_000
# What other code of the server, or of the module before, might call by name.
RENAMED = ["DEL", "UNLINK", "EXISTS", "HGETALL", "HGET", "CONFIG", "PEXPIREAT", "PERSIST", "RESTORE", "SET"]


@pytest.fixture
def renamed(make_redis, closing):
    """A factory of clients of servers without some commands; takes more settings."""

    def make(*names, **config):
        settings = {"rename-command": [f'{name} ""' for name in names]}
        server = make_redis(config={**settings, **{name.replace("_", "-"): value for name, value in config.items()}})
        return server, closing(redis.Redis(port=server.port, protocol=2))

    return make


def test_a_release_reaches_replicas_and_the_append_only_file_without_del(renamed):
    server, primary = renamed(*RENAMED, appendonly="yes", repl_diskless_sync="no", repl_ping_replica_period=1)
    _, replica = renamed(*RENAMED)
    follow(replica, server)
    for key in ("released", "handed on", "expired", "kept"):
        acquire(primary, key, "A", LONG_MS if key != "expired" else 50)
    release(primary, "released", "A")
    release(primary, "handed on", "A")
    fence = acquire(primary, "handed on", "B", LONG_MS)
    eventually(lambda: primary.dbsize(), 2)
    wait_until_equal(primary, replica)
    assert sorted(replica.keys()) == [b"handed on", b"kept"]
    server.restart()
    assert sorted(primary.keys()) == [b"handed on", b"kept"]
    assert inspect(primary, "handed on").hold == inspect(replica, "handed on").hold == (b"B", fence)


def test_a_hash_is_claimed_and_written_without_hgetall(renamed):
    _, client = renamed(*RENAMED)
    fence = acquire(client, "k", "A", LONG_MS)
    client.hset("resource", "total", 3)
    assert set(client.execute_command("FENCELOCK.CLAIM", "resource", fence)) == {b"fence", b"%d" % fence, b"total", b"3"}
    assert client.execute_command("FENCELOCK.WRITE", "resource", fence, "total", 4) == 1
    assert client.hmget("resource", "fence", "total") == [b"%d" % fence, b"4"]


def test_without_hset_a_claim_and_a_write_are_refused_and_change_nothing(renamed):
    server, client = renamed("HSET")
    fence = acquire(client, "k", "A", LONG_MS)
    client.execute_command("HMSET", "resource", "fence", fence - 1, "total", 3)
    for words in (("CLAIM", "resource", fence), ("CLAIM", "none", fence), ("WRITE", "resource", fence - 1, "total", 4)):
        with pytest.raises(redis.ResponseError, match="cannot be propagated"):
            client.execute_command(f"FENCELOCK.{words[0]}", *words[1:])
    assert client.hgetall("resource") == {b"fence": b"%d" % (fence - 1), b"total": b"3"}
    assert client.exists("none") == 0
    assert "HSET cannot be propagated" in server.log()


def test_that_locks_may_be_evicted_is_logged_without_config(renamed):
    server, client = renamed("CONFIG", maxmemory="100mb", maxmemory_policy="allkeys-lru")
    assert client.ping()
    eventually(lambda: "maxmemory-policy allkeys-lru can evict live leases" in server.log())


# --- the server refuses to propagate: the drill build has it do so once


@pytest.fixture
def drill(make_redis):
    """A server with an append-only file, whose next propagation can be made to fail."""
    server = make_redis(config={"appendonly": "yes"}, module=places.DRILL_MODULE)
    with Lines(server.port) as lines:
        yield lines
        assert "cannot be propagated" in server.log()


def fail_next(lines):
    assert lines.control.call("FENCELOCK._DRILL", "propagate") == "OK"


WRITES = {
    "ACQUIRE": ("FENCELOCK.ACQUIRE", "free", "A", LONG_MS),
    "ACQUIRE after an end": ("FENCELOCK.ACQUIRE", "delayed", "A", LONG_MS),
    "EXTEND": ("FENCELOCK.EXTEND", "held", "A", 90_000),
    "RELEASE": ("FENCELOCK.RELEASE", "held", "A"),
    "RAISE": ("FENCELOCK.RAISE",),
    "CLAIM": ("FENCELOCK.CLAIM", "resource", 9),
    "WRITE": ("FENCELOCK.WRITE", "resource", 8, "total", 4),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_that_cannot_be_propagated_is_refused_and_changes_nothing(drill, name):
    control = drill.control
    fence = control.call("FENCELOCK.ACQUIRE", "held", "A", LONG_MS)
    control.call("FENCELOCK.ACQUIRE", "delayed", "A", 1)
    control.call("HSET", "resource", "fence", 8, "total", 3)
    words = WRITES[name]
    if name == "RAISE":
        words = (*words, time.time_ns() // 1_000 + 1_000_000_000)

    def state():
        told = control.call("FENCELOCK.STATS")
        counters = dict(zip(told[::2], told[1::2], strict=True))
        noted = [counters[name] for name in (b"last-fence", b"grants", b"releases", b"extensions", b"claims", b"writes", b"live-leases")]
        return noted, sorted(control.call("KEYS", "*")), sorted(control.call("HGETALL", "resource"))

    eventually(lambda: control.call("EXISTS", "delayed"), 0)
    before = state()
    fail_next(drill)
    assert "cannot be propagated" in control.call(*words)
    assert state() == before
    assert control.call("FENCELOCK.CHECK", "held", fence) == 1
    assert not isinstance(control.call(*words), Exception)
    assert state() != before


def test_a_hand_over_that_cannot_be_propagated_is_tried_again(drill):
    control = drill.control
    first = control.call("FENCELOCK.ACQUIRE", "k", "A", LONG_MS)
    waiter = drill.queue("k", "B", LONG_MS, LONG_MS)
    fail_next(drill)
    assert "cannot be propagated" in control.call("FENCELOCK.RELEASE", "k", "A")
    assert control.call("FENCELOCK.CHECK", "k", first) == 1
    assert control.call("FENCELOCK.RELEASE", "k", "A") == 1
    assert waiter.only_reply() > first
    second = control.call("FENCELOCK.ACQUIRE", "expires", "A", LONG_MS)
    heir = drill.queue("expires", "B", LONG_MS, LONG_MS)
    # In one write, so that the handover is the next propagation.
    assert control.call_all(("FENCELOCK.EXTEND", "expires", "A", 100), ("FENCELOCK._DRILL", "propagate")) == [100, "OK"]
    assert heir.only_reply() > second


def test_an_end_that_cannot_be_propagated_is_tried_again(drill):
    # In one write, so that the end is the next propagation.
    drill.control.call_all(("FENCELOCK.ACQUIRE", "k", "A", 100), ("FENCELOCK._DRILL", "propagate"))
    eventually(lambda: drill.control.call("EXISTS", "k"), 0)
