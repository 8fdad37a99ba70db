"""Replicas that read their stream late: a lease ends there when it ends at the primary, and nothing is sent twice for it.

The primary says once a second what it reads on its clock of leases. By that a replica knows how late what it reads is.
"""

import os
import signal
import struct
import time

import pytest
import redis

from harness import RedisServer, eventually
from harness.frozen_clock import Clocks
from harness.locks import NO_RETRY, acquire, assert_ends_by, extend, inspect, release
from harness.payloads import record
from test_redis_replication import DEBUG, FAST_SYNC, digest, follow, node, promote, wait_until_equal  # noqa: F401
from test_redis_rolling import LONG_MS, HandMadePrimary, primary_with, snapshot, start  # noqa: F401

# What a slow machine may need to send one command on.
LAG_MS = 300
STALL_MS = 1_500
S = 1_000_000


def calls(client, command):
    """How often the replica was sent an internal command."""
    told = {name.lower(): counted["calls"] for name, counted in client.info("commandstats").items()}
    return told.get(f"cmdstat_fencelock.{command}", 0)


def wait_for_clock(*replicas):
    """Wait until they have been sent the clock twice from now on: the first may have been late."""
    for replica in replicas:
        eventually(lambda replica=replica, before=calls(replica, "_clock"): calls(replica, "_clock") >= before + 2, within_s=10)


def assert_same_left(primary, replica, key, what="ttl_ms"):
    """The replica is asked first: what passes until the primary is asked makes its time look the longer."""
    began = time.monotonic()
    apart_ms = getattr(inspect(replica, key), what) - getattr(inspect(primary, key), what)
    passed_ms = (time.monotonic() - began) * 1000
    assert -LAG_MS <= apart_ms <= LAG_MS + passed_ms, f"{apart_ms} ms more are left at the replica, asked in {passed_ms:.0f} ms"


def assert_left(client, key, left_ms, since):
    """So much was left at `since` (monotonic, seconds) or later, to 50 ms, and no more is now."""
    now_ms = inspect(client, key).ttl_ms
    passed_ms = (time.monotonic() - since) * 1000
    assert left_ms - passed_ms - 50 <= now_ms <= left_ms, f"{now_ms} ms, {passed_ms:.0f} ms later"


@pytest.fixture
def frozen():
    """A factory that stops a server, and lets it go on in the end."""
    pids = []

    def stop(server):
        os.kill(server.pid, signal.SIGSTOP)
        pids.append(server.pid)

    yield stop
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("chain", [False, True], ids=["a replica", "a replica of a replica"])
def test_a_replica_that_stalled_ends_a_lease_when_its_primary_does(node, frozen, chain):  # noqa: F811
    server, primary = node()
    late_server, late = node(of=server)
    if chain:
        late_server, late = node(of=late_server)
    acquire(primary, "before", "A", LONG_MS)
    wait_for_clock(late)
    frozen(late_server)
    acquire(primary, "k", "A", LONG_MS, "MAXHOLD", LONG_MS)
    extend(primary, "before", "A", LONG_MS)
    eventually(lambda: inspect(primary, "k").held_ms >= STALL_MS)
    os.kill(late_server.pid, signal.SIGCONT)
    wait_until_equal(primary, late)
    for key in ("k", "before"):
        assert_same_left(primary, late, key)
    promote(late)
    for key in ("k", "before"):
        assert_same_left(primary, late, key)
    assert_same_left(primary, late, "k", "maxhold_left_ms")


class Stepped:
    """A primary and its replica on one clock, which stands still but for the steps that a test makes."""

    def __init__(self, folder):
        self._clocks = Clocks(folder / "clock")
        make = lambda name: RedisServer(  # noqa: E731
            config={**DEBUG, **FAST_SYNC}, data_dir=folder / name, environment=self._clocks.environment
        ).start()
        self.servers = [make("primary"), make("replica")]
        self.primary, self.replica = (redis.Redis(port=server.port, protocol=2, **NO_RETRY) for server in self.servers)
        self.stopped = False
        follow(self.replica, self.servers[0])
        acquire(self.primary, "first", "A", LONG_MS)
        wait_for_clock(self.replica)
        self._clocks.freeze(*(clock() // 10**9 * 10**9 + 2 * 10**9 for clock in (time.monotonic_ns, time.time_ns)))
        self._moved_ms = 0
        self.step(1)

    def step(self, ms):
        """Let time pass, and wait until everything is done that it makes due."""
        self._moved_ms += ms
        self._clocks.move(self._moved_ms * 10**6)
        for client in [self.primary] if self.stopped else [self.primary, self.replica]:
            for _ in range(3):
                client.ping()
        if not self.stopped:
            wait_until_equal(self.primary, self.replica)

    def stop_replica(self):
        os.kill(self.servers[1].pid, signal.SIGSTOP)
        self.stopped = True

    def let_replica_go_on(self):
        os.kill(self.servers[1].pid, signal.SIGCONT)
        self.stopped = False
        self.step(1)

    def close(self):
        for server in self.servers:
            server.close()
        self._clocks.close()


@pytest.fixture
def stepped(tmp_path):
    pair = Stepped(tmp_path)
    yield pair
    pair.close()


@pytest.mark.parametrize("again", [False, True], ids=["one stall", "stalls all the time"])
def test_after_a_stall_of_three_seconds_and_a_promotion_a_lease_ends_within_a_tenth_of_a_second(stepped, again):
    """By the servers' own account, and never early. The lease that was there before has ended as well."""
    acquire(stepped.primary, "before", "A", 9_000)
    for _ in range(2):
        stepped.step(1_000)
    for _ in range(3 if again else 1):
        stepped.stop_replica()
        fence = acquire(stepped.primary, "k", "A", 10_000, "MAXHOLD", 12_000)
        extend(stepped.primary, "before", "A", 9_000)
        for _ in range(3):
            stepped.step(1_000)
        stepped.let_replica_go_on()
        if again:
            release(stepped.primary, "k", "A")
    if again:
        fence = acquire(stepped.primary, "k", "A", 7_000, "MAXHOLD", 9_000)
        wait_until_equal(stepped.primary, stepped.replica)
        stepped.step(1)
    os.kill(stepped.servers[0].pid, signal.SIGSTOP)
    try:
        heir = stepped.replica
        promote(heir)
        passed_ms = 1 if again else 3_001
        left_ms, most_ms = (7_000, 9_000) if again else (10_000, 12_000)
        lock = inspect(heir, "k")
        assert lock.hold == (b"A", fence)
        assert 0 <= lock.ttl_ms - (left_ms - passed_ms) <= 100
        assert 0 <= lock.maxhold_left_ms - (most_ms - passed_ms) <= 100
        assert 0 <= inspect(heir, "before").ttl_ms - (9_000 - 3_001 - (1 if again else 0)) <= 100
        stepped.primary = heir
        stepped.stopped = True
        stepped.step(left_ms - passed_ms - 1)
        assert inspect(heir, "k").hold == (b"A", fence)
        stepped.step(101)
        assert inspect(heir, "k") is None
        assert acquire(heir, "k", "B", LONG_MS) > fence
    finally:
        os.kill(stepped.servers[0].pid, signal.SIGCONT)


def test_a_stream_that_was_late_from_the_start_is_put_right_by_the_first_clock(start, primary_with):  # noqa: F811
    """And a later one that is late changes nothing. The snapshot has no lease of an issuer before."""
    empty, client = start()
    client.save()
    primary = primary_with((empty.data_dir / "dump.rdb").read_bytes())
    _, replica = start()
    replica.replicaof("127.0.0.1", primary.port)
    issued = lambda at_s: (77, at_s * S)  # noqa: E731
    sent = time.monotonic()
    primary.send("FENCELOCK._APPLY", "k", record(fence=1, left_us=50 * S, issued=issued(100), owner=b"A"))
    eventually(lambda: inspect(replica, "k"), within_s=20)
    assert_left(replica, "k", 50_000, sent)
    # It was sent 20 s ago.
    sent = time.monotonic()
    primary.send("FENCELOCK._CLOCK", *issued(120))
    eventually(lambda: inspect(replica, "k").ttl_ms <= 30_000)
    assert_left(replica, "k", 30_000, sent)
    assert 20_000 <= inspect(replica, "k").held_ms <= 20_000 + (time.monotonic() - sent) * 1000 + 50
    # What was sent 10 s after that is late by 5 s.
    primary.send("FENCELOCK._CLOCK", *issued(115))
    primary.send("FENCELOCK._APPLY", "late", record(fence=2, left_us=50 * S, issued=issued(115), owner=b"A"))
    eventually(lambda: inspect(replica, "late"))
    assert_left(replica, "late", 45_000, sent)
    assert_left(replica, "k", 30_000, sent)
    promote(replica)
    assert_left(replica, "late", 45_000, sent)
    assert acquire(replica, "k", "B", 1_000) is None


def test_a_snapshot_that_loaded_late_is_put_right_by_the_first_clock(start, primary_with, snapshot):  # noqa: F811
    at = snapshot.index(b"OWNER") - 16
    incarnation, reading = struct.unpack_from("<QQ", snapshot, at)
    primary = primary_with(snapshot)
    _, replica = start()
    since = time.monotonic()
    replica.replicaof("127.0.0.1", primary.port)
    eventually(lambda: inspect(replica, "k"), within_s=20)
    left_ms = inspect(replica, "k").ttl_ms
    assert left_ms > LONG_MS - 5_000 - (time.monotonic() - since) * 1000
    since = time.monotonic()
    primary.send("FENCELOCK._CLOCK", incarnation, reading + 40 * S)
    eventually(lambda: inspect(replica, "k").ttl_ms <= LONG_MS - 40_000)
    left_ms = inspect(replica, "k").ttl_ms
    assert left_ms > LONG_MS - 45_000 - (time.monotonic() - since) * 1000


def test_a_clock_that_cannot_be_is_refused_or_ignored(start, primary_with, snapshot):  # noqa: F811
    primary = primary_with(snapshot)
    _, replica = start()
    replica.replicaof("127.0.0.1", primary.port)
    for words in (("x", 1), (1, "x"), (-1, 1), (1, 2**64), (2**64 - 1, 2**64 - 1), (5, 0), (5, 2**63), (5, 0, 5, 2**63), (0, 0, 0, 0)):
        primary.send("FENCELOCK._CLOCK", *words)
    primary.send("FENCELOCK._APPLY", "late", record(fence=2, left_us=50 * S, issued=(5, 2**63), owner=b"A"))
    eventually(lambda: inspect(replica, "late"), within_s=20)
    promote(replica)
    fence = acquire(replica, "free", "A", LONG_MS)
    assert abs(fence - time.time_ns() // 1_000) < 60 * S
    assert release(replica, "free", "A", fence) == 1
    assert acquire(replica, "short", "A", 50)
    assert_ends_by(replica, "short", time.monotonic() + 0.05)
    eventually(lambda: replica.exists("short"), 0)


def test_a_fail_over_keeps_the_time_of_the_leases_from_before_and_after(node, frozen):  # noqa: F811
    """A second replica follows the new primary, whose first word it reads late."""
    server, primary = node()
    heir_server, heir = node(of=server)
    other_server, other = node(of=server)
    acquire(primary, "before", "A", LONG_MS)
    wait_for_clock(heir, other)
    wait_until_equal(primary, heir, other)
    promote(heir)
    follow(other, heir_server)
    assert heir.info("stats")["sync_full"] == 0, "it went on from where it was"
    frozen(other_server)
    acquire(heir, "after", "A", LONG_MS)
    eventually(lambda: inspect(heir, "after").held_ms >= STALL_MS)
    os.kill(other_server.pid, signal.SIGCONT)
    wait_until_equal(heir, other)
    # Too late at worst: asked first, it has as much left as the heir, which is asked later.
    assert all(inspect(other, key).ttl_ms >= inspect(heir, key).ttl_ms - LAG_MS for key in ("before", "after"))
    # The first word that is read in time puts it right.
    wait_for_clock(other)
    for key in ("before", "after"):
        assert_same_left(heir, other, key)
    assert_same_left(primary, other, "before")


def test_a_partial_synchronisation_sends_no_lease(node):  # noqa: F811
    server, primary = node()
    _, replica = node(of=server)
    for number in range(50):
        acquire(primary, f"k{number}", "A", LONG_MS)
    wait_for_clock(replica)
    wait_until_equal(primary, replica)
    assert calls(replica, "_apply") == 50
    replica.client_kill_filter(_type="master")
    eventually(lambda: primary.info("stats")["sync_partial_ok"], 1, within_s=20)
    wait_for_clock(replica)
    wait_until_equal(primary, replica)
    assert (calls(replica, "_apply"), primary.info("stats")["sync_full"]) == (50, 1)


def test_a_time_to_live_that_somebody_set_is_on_all_copies_after_a_synchronisation(node):  # noqa: F811
    """It stays until the next grant or extension, wherever the lease has gone."""
    server, primary = node(appendonly="yes")
    _, early = node(of=server, appendonly="yes")
    acquire(primary, "expire", "A", 600_000)
    acquire(primary, "pexpire", "A", 600_000, "MAXHOLD", 600_000)
    acquire(primary, "extended", "A", 600_000)
    assert (primary.expire("expire", 900), primary.pexpire("pexpire", 900_000), primary.expire("extended", 900)) == (1, 1, 1)
    extend(primary, "extended", "A", 600_000)
    _, late = node(of=server, appendonly="yes")
    # The clock of the primary, which comes now, changes nothing but how long a lease is.
    wait_for_clock(early, late)
    wait_until_equal(primary, early, late)
    for copy in (primary, early, late):
        assert copy.execute_command("PEXPIRETIME", "expire") == primary.execute_command("PEXPIRETIME", "expire")
        assert copy.execute_command("PEXPIRETIME", "pexpire") == primary.execute_command("PEXPIRETIME", "pexpire")
        assert 800_000 < copy.pttl("expire") <= 900_000
        assert 800_000 < copy.pttl("pexpire") <= 900_000
        assert copy.pttl("extended") == -1
        assert digest(copy) == digest(primary)
    # And in the append-only file that a replica writes for itself.
    promote(late)
    before = late.execute_command("PEXPIRETIME", "expire")
    assert late.execute_command("DEBUG", "LOADAOF") in (b"OK", True)
    assert (late.execute_command("PEXPIRETIME", "expire"), digest(late)) == (before, digest(primary))


def test_the_clock_is_sent_to_replicas_alone_and_while_a_lease_exists(node):  # noqa: F811
    server, primary = node(appendonly="yes")
    _, replica = node(of=server, appendonly="yes")
    acquire(primary, "k", "A", LONG_MS)
    wait_for_clock(replica)
    release(primary, "k", "A")
    wait_until_equal(primary, replica)
    sent = calls(replica, "_clock")
    seconds = primary.info("server")["uptime_in_seconds"]
    eventually(lambda: primary.info("server")["uptime_in_seconds"] >= seconds + 3)
    assert calls(replica, "_clock") <= sent + 1
    for client in (primary, replica):
        folder = client.config_get("dir")["dir"]
        written = b""
        for name in os.listdir(f"{folder}/appendonlydir"):
            with open(f"{folder}/appendonlydir/{name}", "rb") as file:
                written += file.read()
        assert b"FENCELOCK._CLOCK" not in written.upper()
