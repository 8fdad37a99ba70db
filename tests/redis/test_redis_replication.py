"""Replicas: what they know of a lease, what they refuse, and what becomes of it when one is promoted.

A primary sends effects, never its commands, and the time that is left, so that a failover depends on no wall clock.
"""

import os
import re
import signal
import time

import pytest
import redis

from harness import eventually
from harness.locks import SKIPPED, NO_RETRY, acquire, assert_ends_on_time, extend, inspect, release

# The commands of replication, with words that they take.
INTERNAL = [("_APPLY", "k", "x"), ("_END", "k", "1", "released"), ("_CLOCK", "1", "2"), ("_FLOOR", "9000000000000000")]
# What a slow machine may need to send one command on.
LAG_MS = 300
DEBUG = {"enable-debug-command": "yes"}
# After a diskless one the primary holds its stream back until the first word of the replica, for up to a second.
FAST_SYNC = {"repl-diskless-sync": "no", "repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1"}


@pytest.fixture
def node(make_redis, closing):
    """A factory of (server, client); `of` is the server whose replica it becomes, which is waited for."""

    def make(of=None, arguments=(), **config):
        settings = {**DEBUG, **FAST_SYNC, **{name.replace("_", "-"): value for name, value in config.items()}}
        server = make_redis(arguments, settings)
        client = closing(redis.Redis(port=server.port, protocol=2, **NO_RETRY))
        if of is not None:
            follow(client, of)
        return server, client

    return make


def follow(replica, server):
    """Make a server the replica of another, and wait until that one sends it every write at once."""
    replica.replicaof("127.0.0.1", server.port)
    wait_for_link(replica)
    port = replica.info("server")["tcp_port"]
    with redis.Redis(port=server.port, protocol=2) as primary:

        def states():
            told = primary.info("replication")
            return [told[f"slave{n}"]["state"] for n in range(told["connected_slaves"]) if told[f"slave{n}"]["port"] == port]

        # The link is up before the primary knows it.
        eventually(states, ["online"])


def wait_for_link(replica):
    eventually(lambda: replica.info("replication").get("master_link_status"), "up")


def wait_until_equal(primary, *replicas):
    """Wait until the replicas have all that the primary has sent."""
    for replica in replicas:
        eventually(
            lambda replica=replica: replica.info("replication")["slave_repl_offset"]
            >= primary.info("replication")["master_repl_offset"],
        )


def digest(client):
    """The digest of the whole data set: equal on equal data."""
    return client.execute_command("DEBUG", "DIGEST")


def assert_same_lease(one, other, key):
    """After a full synchronisation, which takes Valkey 9.1 a second, the time is right once the leases are sent again."""
    assert inspect(other, key).hold == inspect(one, key).hold

    def apart_ms():
        mine, theirs = inspect(one, key), inspect(other, key)
        return max(abs(theirs.ttl_ms - mine.ttl_ms), abs(theirs.held_ms - mine.held_ms))

    eventually(lambda: apart_ms() <= LAG_MS, True)


def promote(client):
    client.replicaof("NO", "ONE")


def rewrite(client):
    """Have the append-only file written anew, and wait for it."""
    client.bgrewriteaof()
    state = lambda: [client.info("persistence")[f"aof_rewrite_{state}"] for state in ("scheduled", "in_progress")]  # noqa: E731
    eventually(state, [0, 0])


# --- what a replica knows


def test_a_replica_has_owner_fence_and_remaining_time(node):
    server, primary = node()
    _, replica = node(of=server)
    acquire(primary, "k", "A", 60_000)
    acquire(primary, b"a\0b", b"\xff" * 512, 60_000)
    acquire(primary, "extended", "A", 60_000)
    extend(primary, "extended", "A", 600_000)
    acquire(primary, "released", "A", 60_000)
    release(primary, "released", "A")
    wait_until_equal(primary, replica)
    for key in ("k", b"a\0b", "extended"):
        assert_same_lease(primary, replica, key)
    assert inspect(replica, "extended").ttl_ms > 500_000
    assert (replica.exists("released"), replica.dbsize()) == (0, 3)


def test_a_replica_that_comes_later_has_the_leases_too(node):
    server, primary = node()
    acquire(primary, "k", "A", 60_000)
    eventually(lambda: inspect(primary, "k").held_ms >= 150)
    _, replica = node(of=server)
    wait_until_equal(primary, replica)
    assert_same_lease(primary, replica, "k")


def test_a_replica_of_a_replica_has_it_all_and_may_be_promoted(node):
    server, primary = node(arguments=("fence-clock", "no"))
    middle_server, middle = node(of=server, arguments=("fence-clock", "no"))
    _, last = node(of=middle_server, arguments=("fence-clock", "no"))
    assert acquire(primary, "k", "A", 60_000) == 1
    assert acquire(primary, "k2", "A", 60_000) == 2
    release(primary, "k2", "A")
    wait_until_equal(primary, middle, last)
    for replica in (middle, last):
        assert_same_lease(primary, replica, "k")
        assert replica.exists("k2") == 0
    assert digest(primary) == digest(middle) == digest(last)
    promote(last)
    assert acquire(last, "k", "B", 1_000) is None
    assert acquire(last, "k2", "B", 1_000) == 3 + SKIPPED


@pytest.mark.parametrize("how", ["time", "release", "DEL", "FLUSHALL"])
def test_the_end_of_a_lease_reaches_the_replica(node, how):
    server, primary = node()
    _, replica = node(of=server)
    acquire(primary, "k", "A", 60_000)
    wait_until_equal(primary, replica)
    assert replica.exists("k") == 1
    match how:
        case "time":
            extend(primary, "k", "A", 50)
        case "release":
            release(primary, "k", "A")
        case "DEL":
            primary.delete("k")
        case _:
            primary.flushall()
    eventually(lambda: (inspect(replica, "k"), replica.exists("k")), (None, 0))


def stop_before_the_end(server, primary, replica, ttl_ms):
    """Acquire the lock `k`, and stop the primary when the replica has the lease and before the primary may have ended it."""
    while True:
        asked = time.monotonic()
        acquire(primary, "k", "A", ttl_ms)
        wait_until_equal(primary, replica)
        os.kill(server.pid, signal.SIGSTOP)
        if time.monotonic() < asked + ttl_ms / 1000:
            return
        os.kill(server.pid, signal.SIGCONT)
        eventually(lambda: primary.exists("k"), 0)


def test_a_replica_deletes_nothing_and_still_knows_that_a_lease_has_ended(node):
    server, primary = node()
    _, replica = node(of=server)
    stop_before_the_end(server, primary, replica, 300)
    try:
        eventually(lambda: inspect(replica, "k"), None)
        replica.config_set("maxmemory", "1gb")  # wakes the timer of the module
        time.sleep(0.1)  # time in which a replica that deletes would have done so
        assert replica.exists("k") == 1
    finally:
        os.kill(server.pid, signal.SIGCONT)
    eventually(lambda: replica.exists("k"), 0)


def test_the_stream_holds_effects_and_no_command_of_a_user(node):
    server, primary = node()
    _, replica = node(of=server)
    acquire(primary, "k", "A", 60_000)
    acquire(primary, "k", "B", 60_000)
    extend(primary, "k", "A", 60_000)
    extend(primary, "k", "B", 60_000)
    primary.execute_command("FENCELOCK.EXTEND", "k", "A", 30_000, "GT")
    release(primary, "k", "B")
    release(primary, "k", "A")
    primary.eval("redis.call('FENCELOCK.ACQUIRE', 'k', 'A', 60000)", 0)
    wait_until_equal(primary, replica)
    calls = {name: stats["calls"] for name, stats in replica.info("commandstats").items() if "fencelock" in name.lower()}
    # Two grants and one extension; what was refused was not sent.
    counted = {name.lower(): count for name, count in calls.items()}
    counted.pop("cmdstat_fencelock._clock", None)  # once a second
    assert counted == {"cmdstat_fencelock._apply": 3, "cmdstat_fencelock._end": 1}


def test_a_replica_is_equal_after_much_of_everything(node):
    server, primary = node()
    _, replica = node(of=server)
    with primary.pipeline(transaction=False) as pipe:
        for number in range(3_000):
            acquire(pipe, f"k{number % 97}", f"owner {number}", 30_000 if number % 3 else 20)
            extend(pipe, f"k{number % 89}", f"owner {number - 8}", 40_000)
            release(pipe, f"k{number % 83}", f"owner {number - 14}")
            if number % 50 == 0:
                pipe.rename(f"k{number % 97}", f"renamed{number}")
        pipe.execute(raise_on_error=False)
    # The short ones come to their end first, so that nothing changes while the two are compared.
    eventually(lambda: all((lock := inspect(primary, key)) and lock.ttl_ms > 1_000 for key in primary.keys()))
    eventually(lambda: digest(primary) == digest(replica))
    keys = primary.keys()
    assert len(keys) > 20
    assert sorted(replica.keys()) == sorted(keys)
    for key in keys:
        assert_same_lease(primary, replica, key)


# --- what a replica refuses


@pytest.mark.parametrize("read_only", ["yes", "no"])
def test_a_replica_grants_nothing_even_if_it_is_writable(node, read_only):
    server, primary = node()
    _, replica = node(of=server, replica_read_only=read_only)
    fence = acquire(primary, "k", "A", 60_000)
    wait_until_equal(primary, replica)
    for refused in (
        lambda: acquire(replica, "free", "B", 1_000),
        lambda: extend(replica, "k", "A", 1_000),
        lambda: release(replica, "k", "A"),
    ):
        with pytest.raises(redis.exceptions.ReadOnlyError):
            refused()
    if read_only == "no":
        with pytest.raises(redis.exceptions.ReadOnlyError):
            replica.eval("return redis.call('FENCELOCK.ACQUIRE', 'free', 'B', 1000)", 0)
    assert replica.keys() == [b"k"]
    assert inspect(replica, "k").hold == (b"A", fence)
    assert inspect(replica, "k").ttl_ms > 50_000


@pytest.mark.parametrize("words", INTERNAL, ids=[words[0] for words in INTERNAL])
def test_users_cannot_run_the_internal_commands_on_a_writable_replica(node, words):
    server, _ = node()
    _, replica = node(of=server, replica_read_only="no")
    with pytest.raises(redis.ResponseError, match="internal|unknown command"):
        replica.execute_command(f"FENCELOCK.{words[0]}", *words[1:])


# --- promotion


@pytest.mark.parametrize("clock", ["yes", "no"])
def test_a_promoted_replica_keeps_leases_ends_them_on_time_and_issues_larger_fences(node, clock):
    arguments = ("fence-clock", clock)
    server, primary = node(arguments=arguments)
    _, replica = node(of=server, arguments=arguments)
    long = acquire(primary, "long", "A", 60_000)
    began = time.monotonic()
    short = acquire(primary, "short", "A", 700)
    granted = time.monotonic()
    last = acquire(primary, "released", "A", 60_000)
    release(primary, "released", "A")
    wait_until_equal(primary, replica)
    server.kill()
    promote(replica)
    assert inspect(replica, "long").hold == (b"A", long)
    lock, next_fence = inspect(replica, "short"), acquire(replica, "short", "B", 60_000)
    # On a busy machine the lease may be over by now.
    assert time.monotonic() > began + 0.7 or (lock.hold, next_fence) == ((b"A", short), None)
    assert acquire(replica, "released", "B", 60_000) > last
    # The replica counts what is left from the moment at which it received the record.
    if next_fence is None:
        assert_ends_on_time(replica, "short", began, granted + LAG_MS / 1000, 700)
        eventually(lambda: replica.exists("short"), 0)
    assert extend(replica, "long", "A", 90_000, long) > 60_000
    assert release(replica, "long", "A", long) == 1


def test_a_promoted_replica_removes_what_ended_before(node):
    server, primary = node()
    _, replica = node(of=server)
    stop_before_the_end(server, primary, replica, 200)
    server.kill()
    eventually(lambda: inspect(replica, "k"), None)
    assert replica.exists("k") == 1
    promote(replica)
    eventually(replica.dbsize, 0)


def test_the_last_fence_is_known_to_a_replica_that_saw_no_lock(node):
    """It came with the snapshot, not with a lease."""
    server, primary = node(arguments=("fence-clock", "no"))
    for expected in range(1, 58):
        assert acquire(primary, "k", "A", 60_000) == expected
        release(primary, "k", "A")
    _, replica = node(of=server, arguments=("fence-clock", "no"))
    server.kill()
    promote(replica)
    assert acquire(replica, "k", "A", 60_000) == 58 + SKIPPED


def test_a_failover_on_command_keeps_leases_and_loses_no_server(node):
    server, primary = node()
    replica_server, replica = node(of=server)
    acquire(primary, "long", "A", 60_000)
    for number in range(300):
        acquire(primary, f"short{number}", "A", 1 + number)
    primary.execute_command("FAILOVER", "TO", "127.0.0.1", str(replica_server.port))
    eventually(lambda: replica.info("replication")["role"], "master")
    wait_for_link(primary)
    eventually(lambda: (replica.dbsize(), primary.dbsize()), (1, 1))
    assert_same_lease(replica, primary, "long")
    assert acquire(replica, "k", "B", 60_000) > inspect(replica, "long").fence
    assert [server.pid, replica_server.pid].count(None) == 0


def test_a_demoted_primary_follows_and_forgets_its_own_leases(node):
    server, primary = node()
    _, other = node()
    acquire(other, "mine", "A", 150)
    acquire(other, "mine too", "A", 60_000)
    acquire(primary, "k", "A", 60_000)
    follow(other, server)
    wait_until_equal(primary, other)
    assert other.keys() == [b"k"]
    promote(other)
    assert acquire(other, "mine", "B", 60_000)
    # Its deadline is behind that of the forgotten lease.
    acquire(other, "witness", "A", 150)
    eventually(lambda: other.exists("witness"), 0)
    assert sorted(other.keys()) == [b"k", b"mine"]


# --- while writes are held back


def test_leases_that_end_in_a_pause_are_removed_after_it_and_not_before(node):
    """A write of the module in a pause would end a primary that has replicas."""
    server, primary = node()
    _, replica = node(of=server)
    for number in range(100):
        acquire(primary, f"k{number}", "A", 60_000)
    acquire(primary, "long", "A", 60_000)
    wait_until_equal(primary, replica)
    pid = server.pid
    # In one write, so that the leases are live when the pause begins.
    with primary.pipeline(transaction=False) as pipe:
        for number in range(100):
            extend(pipe, f"k{number}", "A", 50 + number)
        pipe.execute_command("CLIENT", "PAUSE", 60_000, "WRITE").execute()
    eventually(lambda: [inspect(primary, f"k{number}") for number in (0, 99)], [None, None])
    size = primary.dbsize()
    time.sleep(0.1)  # time in which the timer fires again and again
    assert primary.dbsize() == size > 1
    primary.execute_command("CLIENT", "UNPAUSE")
    eventually(lambda: (primary.dbsize(), replica.dbsize()), (1, 1))
    assert server.pid == pid


# --- full synchronisation by every way


@pytest.mark.parametrize("sync", ["yes", "no"], ids=["diskless", "by file"])
@pytest.mark.parametrize("load", ["disabled", "on-empty-db", "swapdb"])
def test_a_full_synchronisation_brings_all_leases(node, sync, load):
    server, primary = node(repl_diskless_sync=sync)
    for number in range(200):
        acquire(primary, f"k{number}", f"owner {number}", 60_000)
    _, replica = node(repl_diskless_load=load)
    if load != "on-empty-db":
        acquire(replica, "stray", "A", 60_000)
        acquire(replica, "k1", "stray", 60_000)
    follow(replica, server)
    wait_until_equal(primary, replica)
    assert digest(primary) == digest(replica)
    for number in (0, 1, 199):
        assert_same_lease(primary, replica, f"k{number}")
    promote(replica)
    assert acquire(replica, "stray", "B", 1_000)
    assert extend(replica, "k1", "owner 1", 20) > 0
    eventually(lambda: replica.exists("k1"), 0)


def test_after_a_slow_full_synchronisation_a_replica_has_the_time_that_is_left(node):
    """The snapshot is as old as the synchronisation is long, so the primary sends every lease again."""
    server, primary = node()
    keys = [f"k{number}" for number in range(100)]
    for key in keys:
        acquire(primary, key, "A", 60_000)
    primary.config_set("rdb-key-save-delay", 15_000)  # a second and a half for the snapshot
    _, replica = node(of=server)

    def largest_difference():
        return max(abs(inspect(replica, key).ttl_ms - inspect(primary, key).ttl_ms) for key in keys)

    eventually(lambda: largest_difference() <= LAG_MS)
    assert digest(primary) == digest(replica)


def test_a_swapdb_load_while_serving_drops_the_old_leases_and_their_deadlines(node):
    """The replica answers from the old data until the new is there; then only the new has deadlines."""
    server, primary = node(repl_backlog_size="16384")
    replica_server, replica = node(of=server, repl_diskless_load="swapdb")
    for number in range(2_000):
        acquire(primary, f"old{number}", "A", 60_000)
    acquire(primary, "both", "A", 600)
    wait_until_equal(primary, replica)
    os.kill(replica_server.pid, signal.SIGSTOP)
    try:
        primary.client_kill_filter(_type="replica")
        primary.flushall()
        acquire(primary, "both", "B", 60_000)
        for number in range(2_000):
            acquire(primary, f"new{number}", "A", 60_000)
        primary.set("more than the backlog", "v" * 100_000)
    finally:
        os.kill(replica_server.pid, signal.SIGCONT)
    eventually(lambda: replica.exists("new1999"), 1)
    wait_for_link(replica)
    wait_until_equal(primary, replica)
    # Valkey calls it a primary.
    assert len(re.findall("(?i)full resync from (?:master|primary)", replica_server.log())) == 2
    assert digest(primary) == digest(replica)
    promote(replica)
    # Its deadline is behind that of the old lease of `both`.
    assert extend(replica, "new7", "A", 700) > 0
    eventually(lambda: replica.exists("new7"), 0)
    assert inspect(replica, "both").owner == b"B"
    assert replica.dbsize() == 2_001


def test_a_replica_that_is_flushed_during_a_swapdb_load_keeps_what_is_loaded(node):
    """What is loaded is in no keyspace yet, and the flush leaves it alone."""
    server, primary = node(repl_backlog_size="16384")
    slow = {"key_load_delay": "200", "loading_process_events_interval_bytes": "4096"}
    replica_server, replica = node(of=server, repl_diskless_load="swapdb", replica_read_only="no", **slow)
    fill = "for n = 1, 20000 do redis.call('FENCELOCK.ACQUIRE', ARGV[1] .. n, 'A', 600000) end"
    primary.eval(fill, 0, "old")
    wait_until_equal(primary, replica)
    os.kill(replica_server.pid, signal.SIGSTOP)
    try:
        primary.client_kill_filter(_type="replica")
        primary.flushall()
        primary.eval(fill, 0, "new")
        primary.set("more than the backlog", "v" * 100_000)
    finally:
        os.kill(replica_server.pid, signal.SIGCONT)
    eventually(lambda: replica.info("persistence").get("loading_loaded_bytes", 0) > 10_000)
    assert (replica.info("persistence")["async_loading"], replica.dbsize()) == (1, 20_000)
    # Alone it would wait for another thread on later servers.
    with replica.pipeline() as transaction:
        transaction.execute_command("FLUSHALL", "SYNC").execute()
    replica.config_set("key-load-delay", 0)
    eventually(lambda: replica.exists("new20000"))
    wait_for_link(replica)
    primary.eval(fill, 0, "later")
    wait_until_equal(primary, replica)
    assert digest(primary) == digest(replica)
    live = lambda: dict(zip(*[iter(replica.execute_command("FENCELOCK.STATS"))] * 2))[b"live-leases"]  # noqa: E731
    eventually(live, 40_000)
    assert {inspect(replica, key).owner for key in ("new1", "new20000", "later1", "later20000")} == {b"A"}


def test_a_replicas_append_only_file_keeps_the_last_fence_when_it_is_written_anew(node):
    """Also without the preamble, and with no lock in it."""
    server, primary = node()
    replica_server, replica = node(of=server, appendonly="yes", aof_use_rdb_preamble="no", appendfsync="always")
    eventually(lambda: replica.info("persistence")["aof_rewrite_in_progress"], 0)
    raised = time.time_ns() // 1_000 + 3_000_000_000
    assert primary.execute_command("FENCELOCK.RAISE", raised) == raised
    wait_until_equal(primary, replica)
    rewrite(replica)
    files = lambda: [file.read_bytes() for file in (replica_server.data_dir / "appendonlydir").glob("*.incr.aof")]  # noqa: E731
    eventually(lambda: b"FENCELOCK._FLOOR" in b"".join(files()).upper())
    replica_server.kill()
    replica_server.start()
    assert replica.info("replication")["role"] == "master"
    assert acquire(replica, "k", "A", 60_000) == raised + 1
