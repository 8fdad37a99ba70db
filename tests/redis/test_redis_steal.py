"""FENCELOCK.STEAL: who takes a lock over, from whom, and what becomes of the holder, the queue, the delay and the copies."""

import pytest
import redis

from harness import eventually
from harness.locks import NO_RETRY, acquire, extend, inspect, release
from harness.redis_calls import Lines
from harness.redis_server import server_version
from test_redis_replication import follow, promote, wait_until_equal

LONG_MS = 60_000
FAST_SYNC = {"repl-diskless-sync": "no", "repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1"}


@pytest.fixture
def clients(redis_server, closing):
    """A factory of further clients of the shared server; `protocol` is 2 or 3."""
    return lambda protocol=2: closing(redis.Redis(port=redis_server.port, protocol=protocol))


def steal(client, key, owner, ttl_ms=LONG_MS, *options):
    """The fence, or None."""
    return client.execute_command("FENCELOCK.STEAL", key, owner, ttl_ms, *options)


@pytest.mark.parametrize("way", ["RESP2", "RESP3", "MULTI", "script"])
def test_a_steal_takes_a_held_lock_at_once_and_the_holder_has_lost_it(r, clients, way):
    first = acquire(r, "k", "A", LONG_MS)
    words = ("FENCELOCK.STEAL", "k", "B", 30_000, "MAXHOLD", 40_000)
    match way:
        case "MULTI":
            with r.pipeline() as pipeline:
                (fence,) = pipeline.execute_command(*words).execute()
        case "script":
            fence = r.eval("return redis.call(unpack(ARGV))", 1, *words[1:2], *words)
        case _:
            fence = clients(protocol=int(way[-1])).execute_command(*words)
    assert fence > first
    lock = inspect(r, "k")
    assert (lock.hold, lock.ttl_ms <= 30_000, lock.maxhold_left_ms <= 40_000) == ((b"B", fence), True, True)
    assert (extend(r, "k", "A", LONG_MS), release(r, "k", "A", first)) == (0, 0)
    assert r.execute_command("FENCELOCK.CHECK", "k", first) == 0
    assert release(r, "k", "B", fence) == 1


def test_a_free_lock_and_one_whose_lease_is_over_are_granted(r):
    fence = steal(r, "k", "B", 30)
    eventually(lambda: inspect(r, "k"), None)
    assert steal(r, "k", "C") > fence
    assert inspect(r, "k").owner == b"C"


def test_a_steal_that_names_a_fence_robs_no_successor_and_changes_nothing(r):
    first = acquire(r, "k", "A", LONG_MS)
    release(r, "k", "A")
    # Nobody holds it: that hold is over.
    assert steal(r, "k", "B", LONG_MS, "FENCE", first) is None
    assert r.exists("k") == 0
    second = acquire(r, "k", "C", LONG_MS)
    watched = r.pipeline()
    watched.watch("k")
    issued = r.info("fencelock")["fencelock_last_fence"]
    assert steal(r, "k", "B", LONG_MS, "FENCE", first) is None
    assert inspect(r, "k").hold == (b"C", second)
    assert r.info("fencelock")["fencelock_last_fence"] == issued
    watched.multi()
    watched.exists("k")
    assert watched.execute() == [1]
    third = steal(r, "k", "B", LONG_MS, "FENCE", second)
    assert third > second
    assert inspect(r, "k").hold == (b"B", third)


def test_waiters_stay_queued_behind_the_thief(lines):
    lines.control.call("FENCELOCK.ACQUIRE", "k", "A", LONG_MS)
    waiters = [lines.queue("k", f"W{number}", LONG_MS, LONG_MS) for number in range(2)]
    fence = lines.control.call("FENCELOCK.STEAL", "k", "B", LONG_MS)
    assert lines.count("waiters") == 2
    assert lines.control.call("FENCELOCK.RELEASE", "k", "A") == 0
    assert not waiters[0].has_reply()
    lines.control.call("FENCELOCK.RELEASE", "k", "B")
    first = waiters[0].only_reply()
    assert first > fence
    waiters[0].call("FENCELOCK.RELEASE", "k", "W0")
    assert waiters[1].only_reply() > first


def test_the_lease_of_a_thief_ends_for_those_who_wait(lines):
    """The queue was to be served when the lease of the holder ends, which is much later."""
    lines.control.call("FENCELOCK.ACQUIRE", "k", "A", 3_600_000)
    waiter = lines.queue("k", "W", LONG_MS, LONG_MS)
    fence = lines.control.call("FENCELOCK.STEAL", "k", "B", 200)
    assert waiter.only_reply() > fence


@pytest.mark.parametrize("named", [False, True], ids=["whoever holds it", "FENCE"])
def test_a_delay_runs_before_anybody_gets_the_lock(lines, named):
    call = lines.control.call
    fence = call("FENCELOCK.ACQUIRE", "k", "A", LONG_MS, "DELAY", 400)
    waiter = lines.queue("k", "W", LONG_MS, LONG_MS)
    last = lines.count("last-fence")
    # In one write, so that the delay still runs.
    stolen, stats, told, *refused = lines.control.call_all(
        ("FENCELOCK.STEAL", "k", "B", LONG_MS, *(("FENCE", fence) if named else ())),
        ("FENCELOCK.STATS",),
        ("FENCELOCK.INSPECT", "k"),
        ("FENCELOCK.EXTEND", "k", "A", LONG_MS),
        ("FENCELOCK.CHECK", "k", fence),
        ("FENCELOCK.STEAL", "k", "B", LONG_MS),
    )
    assert stolen is None
    assert stats[stats.index(b"last-fence") + 1] == last
    assert (told[1], told[3], told[-1]) == (b"A", fence, b"delay")
    assert refused == [0, 0, None]
    # Who waited is served first.
    assert waiter.only_reply() > fence
    assert call("FENCELOCK.STEAL", "k", "B", LONG_MS) > fence


def test_del_overrides_a_delay(lines):
    call = lines.control.call
    fence = call("FENCELOCK.ACQUIRE", "k", "A", LONG_MS, "DELAY", LONG_MS)
    assert call("FENCELOCK.STEAL", "k", "B", LONG_MS) is None
    assert call("DEL", "k") == 1
    assert call("FENCELOCK.STEAL", "k", "B", LONG_MS) > fence


def test_a_stolen_hold_with_a_delay_leaves_no_key_behind(lines):
    lines.control.call("FENCELOCK.ACQUIRE", "k", "A", LONG_MS, "DELAY", 200)
    ran_out = lines.count("ran-out")
    assert lines.control.call("FENCELOCK.STEAL", "k", "B", LONG_MS) is None
    eventually(lambda: (lines.control.call("EXISTS", "k"), lines.count("live-leases")), (0, 0))
    assert lines.count("ran-out") == ran_out


@pytest.mark.parametrize("delay", [(), ("DELAY", LONG_MS)], ids=["no delay", "delay"])
def test_the_end_of_the_connection_of_a_robbed_holder_ends_nothing(lines, delay):
    holder = lines.open()
    fence = holder.call("FENCELOCK.ACQUIRE", "k", "A", LONG_MS, "EPHEMERAL", *delay)
    stolen = lines.control.call("FENCELOCK.STEAL", "k", "B", LONG_MS)
    other = lines.open()
    ephemeral = other.call("FENCELOCK.ACQUIRE", "other", "A", LONG_MS, "EPHEMERAL")
    holder.close()
    other.close()
    # Those that are bound end in the same step.
    eventually(lambda: lines.control.call("FENCELOCK.CHECK", "other", ephemeral), 0)
    if delay:
        told = lines.control.call("FENCELOCK.INSPECT", "k")
        assert (told[3], told[-1]) == (fence, b"delay")
    else:
        assert lines.control.call("FENCELOCK.CHECK", "k", stolen) == 1


def test_a_key_of_another_type_is_refused(r):
    r.set("k", "v")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        steal(r, "k", "B")
    assert r.get("k") == b"v"


def test_a_steal_clears_a_time_to_live_and_aborts_a_watch(r):
    acquire(r, "k", "A", LONG_MS)
    r.expire("k", 1_000)
    watched = r.pipeline()
    watched.watch("k")
    steal(r, "k", "B")
    assert r.ttl("k") == -1
    watched.multi()
    watched.exists("k")
    with pytest.raises(redis.WatchError):
        watched.execute()


def test_a_grant_on_its_way_to_a_client_that_is_gone_takes_nothing_from_the_thief(lines):
    lines.control.call("FENCELOCK.ACQUIRE", "k", "A", LONG_MS)
    gone = lines.queue("k", "W", LONG_MS, LONG_MS)
    replies = lines.open().call_all(
        ("FENCELOCK.RELEASE", "k", "A"), ("FENCELOCK.STEAL", "k", "B", LONG_MS), ("CLIENT", "KILL", "ID", gone.id)
    )
    fence = replies[1]
    lines.control.call("PING")
    eventually(lambda: lines.blocked(), 0)
    assert lines.control.call("FENCELOCK.CHECK", "k", fence) == 1


def test_the_events_of_a_steal(lines):
    lines.control.call("CONFIG", "SET", "notify-keyspace-events", "Kd")
    try:
        listener = lines.open()
        listener.call("PSUBSCRIBE", "__keyspace@0__:*")
        lines.control.call("FENCELOCK.ACQUIRE", "k", "A", LONG_MS)
        lines.control.call("FENCELOCK.STEAL", "k", "B", LONG_MS)
        lines.control.call("FENCELOCK.STEAL", "k", "C", LONG_MS, "FENCE", 1)
        lines.control.call("FENCELOCK.RELEASE", "k", "B")
        lines.control.call("FENCELOCK.STEAL", "k", "A", LONG_MS, "DELAY", 10)
        lines.control.call("FENCELOCK.STEAL", "k", "B", LONG_MS)
        published = [listener.reply()[-1] for _ in range(6)]
    finally:
        lines.control.call("CONFIG", "SET", "notify-keyspace-events", "")
    names = ("granted", "stolen", "granted", "released", "granted", "stolen")
    assert published == [b"fencelock." + name.encode() for name in names]


# --- copies


@pytest.fixture
def node(make_redis, closing):
    """A factory of (server, client); `of` is the server whose replica it becomes."""

    def make(of=None, **config):
        server = make_redis((), {**FAST_SYNC, **{name.replace("_", "-"): value for name, value in config.items()}})
        client = closing(redis.Redis(port=server.port, protocol=2, **NO_RETRY))
        if of is not None:
            follow(client, of)
        return server, client

    return make


def test_a_replica_and_an_append_only_file_have_the_thief(node):
    server, primary = node(appendonly="yes", appendfsync="always")
    _, replica = node(of=server)
    acquire(primary, "k", "A", LONG_MS)
    acquire(primary, "delayed", "A", LONG_MS, "DELAY", LONG_MS)
    fence = steal(primary, "k", "B")
    assert steal(primary, "delayed", "B") is None
    assert steal(primary, "k", "C", LONG_MS, "FENCE", 1) is None
    wait_until_equal(primary, replica)
    for client in (primary, replica):
        assert inspect(client, "k").hold == (b"B", fence)
        assert (inspect(client, "delayed").owner, inspect(client, "delayed").state) == (b"A", b"delay")
    calls = replica.info("commandstats")
    assert {name.lower(): stats["calls"] for name, stats in calls.items()}["cmdstat_fencelock._apply"] == 4
    with pytest.raises(redis.ReadOnlyError):
        steal(replica, "k", "C")
    promote(replica)
    assert inspect(replica, "delayed").state == b"delay"
    assert steal(replica, "k", "D", LONG_MS, "FENCE", fence) > fence
    server.restart()
    eventually(lambda: inspect(primary, "k").hold, (b"B", fence))
    assert inspect(primary, "delayed").state == b"delay"
    assert steal(primary, "k", "E") > fence


@pytest.mark.parametrize("way", ["from its file", "as a new primary"])
def test_a_server_that_takes_over_a_delay_counts_no_second_end(node, way):
    """The hold was stolen, or it has expired and that was counted: there is nothing to count or to publish again."""
    server, client = node(appendonly="yes", appendfsync="always")
    acquire(client, "stolen", "A", LONG_MS, "DELAY", LONG_MS)
    assert steal(client, "stolen", "B") is None
    acquire(client, "expired", "A", 20, "DELAY", LONG_MS)
    eventually(lambda: count(client, "ran-out"), 1)
    if way == "from its file":
        server.restart()
    else:
        primary, (server, client) = client, node(of=server)
        wait_until_equal(primary, client)
        promote(client)
    # Leases are ended in the order of their deadlines.
    acquire(client, "later", "A", 20)
    eventually(lambda: inspect(client, "later"), None)
    eventually(lambda: client.exists("later"), 0)
    assert count(client, "ran-out") == 1
    for key in ("stolen", "expired"):
        assert inspect(client, key).state == b"delay"
        # A release is late once for each hold.
        assert (release(client, key, "A"), release(client, key, "A")) == (0, 0)
    assert [count(client, name) for name in ("late-releases", "unknown-releases")] == [2, 2]


def count(client, name):
    told = client.execute_command("FENCELOCK.STATS")
    return dict(zip(told[::2], told[1::2], strict=True))[name.encode()]


def test_a_user_without_dangerous_commands_steals_nothing(make_redis):
    """From Redis 7.2 and Valkey 8 on; on Redis 7.0 commands of modules are in no category."""
    kind, version = server_version()
    with Lines(make_redis().port) as lines:
        lines.control.call("ACL", "SETUSER", "worker", "on", ">secret", "~*", "+@all", "-@dangerous")
        worker = lines.open()
        worker.call("AUTH", "worker", "secret")
        told = worker.call("FENCELOCK.STEAL", "k", "B", LONG_MS)
        may = kind == "Redis" and version < (7, 2)
        assert (told.code == "NOPERM") is not may if not isinstance(told, int) else may
