"""Leaving: which snapshots load without the module, and the way out for those that do not."""

import pytest
import redis

from harness import ServerFailed, eventually
from harness.locks import acquire, inspect, release
from harness.redis_server import server_version

SAVING = {"save": "3600 1"}
WITHOUT_LAST_FENCE = ("save-last-fence", "no")
LONG_MS = 600_000


@pytest.fixture
def with_the_module(make_redis):
    """A server with the module, some data, and a client."""
    clients = []

    def make(arguments=(), config=SAVING):
        server = make_redis(arguments, config)
        client = redis.Redis(port=server.port, protocol=2)
        clients.append(client)
        client.set("data", "kept")
        return server, client

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def without_the_module(make_redis):
    """Start a plain server on what a stopped one has left, and give back what it has of the data."""

    def start(server, config=SAVING):
        server.stop()
        plain = make_redis(config=config, data_dir=server.data_dir, module=None)
        with redis.Redis(port=plain.port, protocol=2) as client:
            assert b"fencelock" not in {module[b"name"] for module in client.module_list()}
            return client.get("data")

    return start


def test_without_the_last_fence_a_snapshot_loads_without_the_module(with_the_module, without_the_module):
    server, client = with_the_module(WITHOUT_LAST_FENCE)
    assert client.config_get("fencelock.save-last-fence") == {"fencelock.save-last-fence": "no"}
    assert acquire(client, "k", "A", LONG_MS) > 0
    assert release(client, "k", "A") == 1
    assert without_the_module(server) == b"kept"


def test_with_it_a_snapshot_needs_the_module_once_a_fence_was_issued(with_the_module, without_the_module):
    server, client = with_the_module()
    assert client.config_get("fencelock.save-last-fence") == {"fencelock.save-last-fence": "yes"}
    acquire(client, "k", "A", LONG_MS)
    release(client, "k", "A")
    with pytest.raises(ServerFailed, match="fencelock"):
        without_the_module(server)


def test_a_server_that_issued_nothing_leaves_no_trace_but_on_redis_7_0(with_the_module, without_the_module):
    server, _client = with_the_module()
    kind, version = server_version()
    if kind == "Redis" and version < (7, 2):
        with pytest.raises(ServerFailed, match="fencelock"):
            without_the_module(server)
    else:
        assert without_the_module(server) == b"kept"


@pytest.mark.parametrize("preamble", ["yes", "no"])
@pytest.mark.parametrize("appendonly", ["yes", "no"])
def test_the_way_out_is_a_restart_without_the_last_fence(make_redis, with_the_module, without_the_module, appendonly, preamble):
    config = SAVING | {"appendonly": appendonly, "aof-use-rdb-preamble": preamble}
    server, client = with_the_module(config=config)
    acquire(client, "free", "A", LONG_MS)
    release(client, "free", "A")
    acquire(client, "held", "A", LONG_MS)
    server.stop()
    leaving = make_redis(WITHOUT_LAST_FENCE, config, server.data_dir)
    with redis.Redis(port=leaving.port, protocol=2) as client:
        assert client.delete("held") == 1
        client.save()
        if appendonly == "yes":
            client.bgrewriteaof()
            eventually(lambda: client.info("persistence")["aof_rewrite_in_progress"], 0)
            assert client.info("persistence")["aof_last_bgrewrite_status"] == "ok"
        eventually(lambda: client.execute_command("INFO", "fencelock")["fencelock_live_leases"], 0)
    assert without_the_module(leaving, config) == b"kept"


def test_fences_grow_over_a_restart_that_forgets_the_last_one(with_the_module):
    server, client = with_the_module(WITHOUT_LAST_FENCE)
    last = acquire(client, "free", "A", LONG_MS)
    release(client, "free", "A")
    server.restart()
    assert acquire(client, "free", "A", LONG_MS) > last


def test_a_lock_in_the_snapshot_keeps_what_was_issued_up_to_it(with_the_module):
    server, client = with_the_module(WITHOUT_LAST_FENCE)
    ahead = acquire(client, "free", "A", LONG_MS) + 1_000_000_000
    assert client.execute_command("FENCELOCK.RAISE", ahead)
    held = acquire(client, "held", "A", LONG_MS)
    assert held > ahead
    server.restart()
    assert inspect(client, "held").hold == (b"A", held)
    assert acquire(client, "next", "A", LONG_MS) > held


def test_a_snapshot_that_carries_the_last_fence_is_read_all_the_same(make_redis, with_the_module):
    server, client = with_the_module()
    ahead = acquire(client, "free", "A", LONG_MS) + 1_000_000_000
    client.execute_command("FENCELOCK.RAISE", ahead)
    server.stop()
    later = make_redis(WITHOUT_LAST_FENCE, SAVING, server.data_dir)
    with redis.Redis(port=later.port, protocol=2) as client:
        assert acquire(client, "next", "A", LONG_MS) > ahead
