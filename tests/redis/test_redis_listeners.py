"""Replicas and append-only files that come while leases are granted: they miss nothing.

While nobody listens the module builds nothing to be sent, which saves a third of its work. So whoever begins to listen must
be noticed before the first command that its snapshot lacks.
"""

import itertools
import threading

import pytest
import redis

from harness import eventually
from harness.locks import NO_RETRY, acquire, extend, release

LONG = pytest.mark.long
LONG_MS = 3_600_000
SETTINGS = {"enable-debug-command": "yes", "repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1"}


@pytest.fixture
def node(make_redis, closing):
    """A factory of clients of servers of the test's own."""

    def make(**config):
        server = make_redis((), {**SETTINGS, **{name.replace("_", "-"): value for name, value in config.items()}})
        return closing(redis.Redis(port=server.port, protocol=2, **NO_RETRY))

    return make


def settle(client, seconds=1):
    """Wait until the module has looked whether anybody listens: at the first tick of the server, then once a second."""
    until = seconds + (client.info("server")["uptime_in_seconds"] if seconds > 1 else 0)
    eventually(lambda: client.info("server")["uptime_in_seconds"] >= until, True)


def port_of(client):
    return client.connection_pool.connection_kwargs["port"]


class Holders:
    """Grants, extends and releases without a pause until the block ends."""

    def __init__(self, client):
        self._client = redis.Redis(port=port_of(client), protocol=2, **NO_RETRY)
        self._thread = threading.Thread(target=self._work)
        self._over = threading.Event()
        self.granted = 0

    def _work(self):
        for number in itertools.count():
            if self._over.is_set():
                return
            acquire(self._client, f"kept {number}", "A", LONG_MS)
            acquire(self._client, f"released {number}", "A", LONG_MS)
            extend(self._client, f"kept {number}", "A", 2 * LONG_MS)
            release(self._client, f"released {number}", "A")
            self.granted = number

    def __enter__(self):
        self._thread.start()
        eventually(lambda: self.granted > 100, True)
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()
        self._client.close()

    def go_on(self):
        """Wait for some more."""
        begun = self.granted
        eventually(lambda: self.granted > begun + 200, True)


def follow(replica, primary):
    replica.replicaof("127.0.0.1", port_of(primary))
    eventually(lambda: replica.info("replication").get("master_link_status"), "up")


def assert_has_all_of(primary, replica):
    def offsets():
        return replica.info("replication")["slave_repl_offset"] >= primary.info("replication")["master_repl_offset"]

    eventually(offsets, True)
    assert replica.dbsize() == primary.dbsize()
    assert replica.execute_command("DEBUG", "DIGEST") == primary.execute_command("DEBUG", "DIGEST")


@pytest.mark.parametrize("diskless", [pytest.param("yes", marks=LONG), "no"])
def test_the_first_replica_misses_nothing_that_is_granted_while_it_comes(node, diskless):
    primary, replica = node(repl_diskless_sync=diskless), node()
    settle(primary)
    with Holders(primary) as holders:
        follow(replica, primary)
        holders.go_on()
    assert_has_all_of(primary, replica)


def test_replicas_that_wait_for_their_snapshot_miss_nothing(node):
    """A backlog is there from the arrival of the first, and the snapshot for both is made a second later."""
    primary, replicas = node(repl_diskless_sync="yes", repl_diskless_sync_delay="1"), (node(), node())
    settle(primary)
    with Holders(primary) as holders:
        for replica in replicas:
            replica.replicaof("127.0.0.1", port_of(primary))
            eventually(lambda: primary.info("replication")["repl_backlog_active"], 1)
            holders.go_on()
        for replica in replicas:
            eventually(lambda: replica.info("replication").get("master_link_status"), "up")
        holders.go_on()
    for replica in replicas:
        assert_has_all_of(primary, replica)


@LONG
def test_a_replica_that_comes_when_the_last_one_is_forgotten_misses_nothing(node):
    primary, replica = node(repl_backlog_ttl="1"), node()
    follow(replica, primary)
    acquire(primary, "before", "A", LONG_MS)
    assert_has_all_of(primary, replica)
    replica.replicaof("NO", "ONE")
    eventually(lambda: primary.info("replication")["repl_backlog_active"], 0)
    settle(primary, 3)
    with Holders(primary) as holders:
        follow(replica, primary)
        holders.go_on()
    assert_has_all_of(primary, replica)


def test_an_append_only_file_that_is_switched_on_misses_nothing(node):
    server = node()
    settle(server)
    with Holders(server) as holders:
        server.config_set("appendonly", "yes")
        holders.go_on()
        eventually(lambda: server.info("persistence")["aof_rewrite_in_progress"], 0)
        holders.go_on()
    before = server.execute_command("DEBUG", "DIGEST"), server.dbsize()
    server.execute_command("DEBUG", "LOADAOF")
    assert (server.execute_command("DEBUG", "DIGEST"), server.dbsize()) == before


@LONG
def test_a_replica_that_is_promoted_has_its_own_replicas_told(node):
    primary, middle, last = node(), node(), node()
    follow(middle, primary)
    follow(last, middle)
    middle.replicaof("NO", "ONE")
    with Holders(middle) as holders:
        holders.go_on()
    assert_has_all_of(middle, last)


def test_what_nobody_is_told_counts_as_a_change_for_the_next_snapshot(node):
    server = node()
    settle(server)
    changes = server.info("persistence")["rdb_changes_since_last_save"]
    acquire(server, "k", "A", LONG_MS)
    extend(server, "k", "A", LONG_MS)
    release(server, "k", "A")
    assert server.info("persistence")["rdb_changes_since_last_save"] == changes + 3
