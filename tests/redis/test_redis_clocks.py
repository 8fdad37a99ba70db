"""Hosts whose wall clocks differ, and a clock with one bad moment: leases keep their time, fences their order and limits.

Each server has a wall clock of its own, which the tests step; the monotonic ones are the machine's, which may sleep.
"""

import time

import pytest
import redis

from harness import RedisServer, eventually
from harness.frozen_clock import Clocks
from harness.locks import FENCE_MAX, NO_RETRY, acquire, extend, inspect, release
from harness.payloads import lock_payload
from harness.redis_calls import Lines
from harness.redis_cluster import RedisCluster
from test_redis_cluster import each_move, names_of
from test_redis_replication import FAST_SYNC, digest, follow, promote, wait_until_equal

LONG_MS = 60_000
LEASE_MS = 30_000
SKEW_S = 40
DAY_S = 86_400
HOUR_US = 3_600_000_000
DEBUG = {"enable-debug-command": "yes"}


@pytest.fixture
def host(tmp_path, closing):
    """A factory of (server, client, clocks): a host whose wall clock is off by so many seconds."""

    def make(off_s=0, arguments=(), **config):
        folder = tmp_path / f"host{len(list(tmp_path.iterdir()))}"
        clocks = closing(Clocks(folder))
        clocks.step_wall(off_s)
        settings = {**DEBUG, **FAST_SYNC, **{name.replace("_", "-"): value for name, value in config.items()}}
        server = closing(RedisServer(arguments, settings, data_dir=folder / "data", environment=clocks.environment)).start()
        return server, closing(redis.Redis(port=server.port, protocol=2, **NO_RETRY)), clocks

    return make


def now_us():
    return time.time_ns() // 1_000


def last_fence(client):
    told = client.execute_command("FENCELOCK.STATS")
    return dict(zip(told[::2], told[1::2], strict=True))[b"last-fence"]


def step(client, clocks, seconds):
    """Step the wall clock of a server, and wait until fences follow it."""
    clocks.step_wall(seconds)
    at_us = now_us() + seconds * 1_000_000

    def follows():
        fence = acquire(client, "step", "S", 1_000, "RETRY")
        release(client, "step", "S")
        return fence >= at_us - 1_000_000

    eventually(follows)


def wait_for_file(replica):
    """A full synchronisation has the append-only file written anew."""
    eventually(lambda: replica.info("persistence")["aof_rewrite_in_progress"], 0)


def applied(replica):
    """How many records it got."""
    calls = {name.lower(): counted["calls"] for name, counted in replica.info("commandstats").items()}
    return calls.get("cmdstat_fencelock._apply", 0)


def left_ms(client, key, began):
    """What is left of a lease of LEASE_MS, and what should be at least."""
    return inspect(client, key).ttl_ms, LEASE_MS - (time.monotonic() - began) * 1000 - 50


def assert_keeps_its_time(client, key, began):
    left, least = left_ms(client, key, began)
    assert least <= left <= LEASE_MS, f"{left} ms left, at least {least} expected"


# --- a lease travels


@pytest.mark.parametrize("off_s", [SKEW_S, -SKEW_S])
def test_a_lease_that_is_dumped_and_restored_keeps_its_time_between_hosts_whose_clocks_differ(host, off_s):
    _, one, _ = host()
    _, other, _ = host(off_s)
    began = time.monotonic()
    fence = acquire(one, "k", "A", LEASE_MS)
    other.restore("k", 0, one.dump("k"))
    assert_keeps_its_time(other, "k", began)
    assert inspect(other, "k").hold == (b"A", fence)


def test_a_dump_that_is_older_than_clocks_differ_does_not_revive_a_lease(host):
    _, client, _ = host()
    began = time.monotonic()
    client.restore("old", 0, lock_payload(fence=now_us(), left_us=90_000_000, written_us=now_us() - 100_000_000))
    client.restore("aged", 0, lock_payload(fence=now_us(), left_us=90_000_000, written_us=now_us() - 61_000_000))
    client.restore("travelled", 0, lock_payload(fence=now_us(), left_us=30_000_000, written_us=now_us() - 55_000_000))
    assert inspect(client, "old") is None
    aged_ms, travelled_ms = inspect(client, "aged").ttl_ms, inspect(client, "travelled").ttl_ms
    passed_ms = (time.monotonic() - began) * 1000
    assert 29_000 - passed_ms - 1 <= aged_ms <= 29_000
    assert 30_000 - passed_ms - 1 <= travelled_ms <= 30_000


@pytest.mark.parametrize("off_s", [SKEW_S, -SKEW_S])
def test_what_a_restore_brought_is_kept_by_the_clock_of_the_server_that_took_it(host, off_s):
    """In its append-only file and on its replica, also after that one's promotion and restart."""
    _, one, _ = host(off_s)
    server, primary, _ = host(appendonly="yes")
    replica_server, replica, _ = host(appendonly="yes")
    follow(replica, server)
    wait_for_file(replica)
    began = time.monotonic()
    fence = acquire(one, "k", "A", LEASE_MS)
    primary.restore("k", 0, one.dump("k"))
    eventually(lambda: last_fence(replica), fence)
    wait_until_equal(primary, replica)
    assert_keeps_its_time(replica, "k", began)
    for node, client in ((server, primary), (replica_server, replica)):
        node.restart()
        left, least = left_ms(client, "k", began)
        assert least - 5_000 <= left <= LEASE_MS - 1, "the time that a restart takes has passed"
        assert inspect(client, "k").hold == (b"A", fence)
    promote(replica)
    assert extend(replica, "k", "A", LEASE_MS, fence) == LEASE_MS


@pytest.mark.parametrize("off_s", [SKEW_S, -SKEW_S])
def test_a_promoted_replica_restarts_from_its_own_file_by_its_own_clock(host, off_s):
    server, primary, _ = host()
    replica_server, replica, _ = host(off_s, appendonly="yes")
    follow(replica, server)
    wait_for_file(replica)
    began = time.monotonic()
    fence = acquire(primary, "k", "A", LEASE_MS, "MAXHOLD", LONG_MS)
    wait_until_equal(primary, replica)
    promote(replica)
    replica_server.restart()
    left, least = left_ms(replica, "k", began)
    assert least - 5_000 <= left <= LEASE_MS
    assert inspect(replica, "k").hold == (b"A", fence)
    assert inspect(replica, "k").maxhold_left_ms > LEASE_MS


def test_a_restored_time_to_live_is_equal_on_all_copies(host):
    """The server's own record, which follows, takes none away."""
    server, primary, _ = host(appendonly="yes")
    _, replica, _ = host()
    follow(replica, server)
    acquire(primary, "k", "A", LEASE_MS)
    primary.restore("copy", LONG_MS, primary.dump("k"))
    eventually(lambda: applied(replica), 2)
    wait_until_equal(primary, replica)
    ends_at = [client.execute_command("PEXPIRETIME", "copy") for client in (primary, replica)]
    assert min(ends_at) > 0
    assert max(ends_at) - min(ends_at) < 1_000
    assert digest(primary) == digest(replica)
    before = primary.pttl("copy")
    server.restart()
    assert 0 < primary.pttl("copy") <= before
    assert digest(primary) == digest(replica)


# --- fences from the future


def test_after_one_bad_moment_of_the_clock_a_server_accepts_its_own_fences(host):
    _, client, clocks = host()
    step(client, clocks, 3 * DAY_S)
    fence = acquire(client, "k", "A", LONG_MS)
    clocks.step_wall(0)
    assert fence > now_us() + 2 * DAY_S * 1_000_000
    assert dict(zip(*[iter(client.execute_command("FENCELOCK.CLAIM", "resource", fence))] * 2)) == {b"fence": b"%d" % fence}
    assert client.execute_command("FENCELOCK.WRITE", "resource", fence, "f", "v") == 1
    after = acquire(client, "other", "A", LONG_MS)
    assert client.execute_command("FENCELOCK.CLAIM", "resource", after) is not None

    def refused():
        with pytest.raises(redis.ResponseError, match="more than two days ahead"):
            client.execute_command("FENCELOCK.CLAIM", f"resource {time.monotonic_ns()}", after + 60_000_000)
        return True

    # Once the module has seen the step.
    eventually(refused, retry_on=(pytest.fail.Exception,))


def test_each_limit_lets_in_what_the_one_before_has_let_in(host):
    _, client, _ = host()
    raised = now_us() + HOUR_US - 60_000_000
    assert client.execute_command("FENCELOCK.RAISE", raised) == raised
    _, later, _ = host(-60)
    fence = acquire(client, "k", "A", LONG_MS)
    later.restore("k", 0, client.dump("k"))
    assert acquire(later, "k2", "A", LONG_MS) > fence
    day = now_us() + 23 * HOUR_US
    client.restore("day", 0, lock_payload(fence=day))
    assert later.execute_command("FENCELOCK.CLAIM", "resource", day) is not None


@pytest.mark.parametrize("ahead_us", [25 * HOUR_US, None], ids=["a day", "the largest"])
def test_a_restore_on_a_writable_replica_shuts_no_other_lock_after_a_promotion(host, ahead_us):
    server, _, _ = host()
    replica_server, replica, _ = host(replica_read_only="no")
    follow(replica, server)
    fence = FENCE_MAX if ahead_us is None else now_us() + ahead_us
    replica.restore("k", 0, lock_payload(fence=fence, left_us=60_000_000, owner=b"A"))
    promote(replica)
    assert last_fence(replica) < now_us()
    # Nor by the way that a file takes, and a stream.
    assert replica.execute_command("DEBUG", "RELOAD") in (b"OK", True)
    other_server, other, _ = host()
    follow(other, replica_server)
    wait_until_equal(replica, other)
    assert inspect(other, "k").hold == (b"A", fence)
    assert last_fence(other) < now_us()
    assert acquire(replica, "free", "A", LONG_MS) <= now_us()
    # That one lock is shut, for whoever asks.
    for call in (
        lambda: acquire(replica, "k", "B", LONG_MS),
        lambda: acquire(replica, "k", "A", LONG_MS, "RETRY"),
        lambda: extend(replica, "k", "A", LONG_MS),
        lambda: release(replica, "k", "A"),
    ):
        with pytest.raises(redis.ResponseError, match="DEL the key"):
            call()
    replica.delete("k")
    assert acquire(replica, "k", "B", LONG_MS) <= now_us()


def test_a_grant_is_above_the_fence_of_the_hold_that_it_replaces(host):
    """One that was restored on a replica, where it raises nothing."""
    server, _, _ = host()
    _, replica, _ = host(replica_read_only="no")
    follow(replica, server)
    ahead = now_us() + 10 * HOUR_US
    replica.restore("k", 0, lock_payload(fence=ahead, left_us=50_000, owner=b"A"))
    assert last_fence(replica) < now_us()
    eventually(lambda: inspect(replica, "k"), None)
    promote(replica)
    assert acquire(replica, "k", "B", LONG_MS) > ahead


# --- a slot moves


@pytest.fixture
def apart(tmp_path, closing):
    """Two nodes of a cluster that move the slot of `k`: the cluster, the one that serves it, the other, and their clocks."""
    clocks = [closing(Clocks(tmp_path / name)) for name in ("one", "other")]
    cluster = closing(RedisCluster(2, replicas=0, environments=[one.environment for one in clocks])).start()
    source = cluster.primary_of(cluster.slot_of("k"))
    [target] = [node for node in cluster.nodes if node is not source]
    if source is not cluster.nodes[0]:
        clocks.reverse()
    return cluster, source, target, clocks


@each_move
def test_a_slot_takes_its_locks_along_however_far_ahead_the_fences_are(apart, way):
    cluster, source, target, clocks = apart
    clocks[0].step_wall(3 * DAY_S)
    with redis.Redis(port=source.port, protocol=2) as client:
        eventually(lambda: acquire(client, f"{{k}}{time.monotonic_ns()}", "A", 1) > now_us() + 2 * DAY_S * 1_000_000)
        fence = acquire(client, "k", "A", LONG_MS)
    clocks[0].step_wall(0)
    clocks[1].step_wall(-5)
    assert fence > now_us() + 2 * DAY_S * 1_000_000
    getattr(cluster, way)(cluster.slot_of("k"), source, target)
    with redis.Redis(port=target.port, protocol=2) as client:
        assert inspect(client, "k").hold == (b"A", fence)
        assert acquire(client, "k", "B", LONG_MS) is None
        assert release(client, "k", "A", fence) == 1
        assert acquire(client, "k", "B", LONG_MS) > fence


def raise_as_far_as_it_goes(client):
    """To 2 s below the limit: a lock is granted at once."""
    raised = now_us() + HOUR_US - 2_000_000
    assert client.execute_command("FENCELOCK.RAISE", raised) == raised
    return acquire(client, "k", "A", LONG_MS)


def assert_arrived(client, fence):
    assert inspect(client, "k").hold == (b"A", fence)
    assert acquire(client, "k", "B", LONG_MS) is None
    assert release(client, "k", "A", fence) == 1
    assert acquire(client, "k", "B", LONG_MS) > fence


@each_move
def test_a_slot_takes_a_lock_along_whose_fence_is_an_hour_ahead_to_a_host_whose_clock_is_behind(apart, way):
    """That fence is more than an hour ahead of the clock there."""
    cluster, source, target, clocks = apart
    with redis.Redis(port=source.port, protocol=2) as client:
        fence = raise_as_far_as_it_goes(client)
    clocks[1].step_wall(-5)
    [resource] = names_of(cluster, target, 1)
    with redis.Redis(port=target.port, protocol=2) as client:

        def knows_the_step():
            with pytest.raises(redis.ResponseError, match="more than two days ahead"):
                client.execute_command("FENCELOCK.CLAIM", resource, now_us() + (2 * DAY_S - 2) * 1_000_000)
            return True

        eventually(knows_the_step, retry_on=(pytest.fail.Exception,))
    getattr(cluster, way)(cluster.slot_of("k"), source, target)
    # A move that is refused is tried again, until the clock has come far enough.
    assert "a lock is refused" not in target.log()
    with redis.Redis(port=target.port, protocol=2) as client:
        assert_arrived(client, fence)


def test_a_lock_whose_fence_is_an_hour_ahead_migrates_to_a_host_whose_clock_is_behind(host):
    _, one, _ = host()
    server, other, _ = host(-5)
    fence = raise_as_far_as_it_goes(one)
    one.migrate("127.0.0.1", server.port, "k", 0, 5_000)
    assert one.exists("k") == 0
    assert_arrived(other, fence)


@each_move
def test_a_lease_keeps_its_time_when_its_slot_moves_to_a_host_whose_clock_differs(apart, way):
    cluster, source, target, clocks = apart
    clocks[1].step_wall(SKEW_S)
    began = time.monotonic()
    with redis.Redis(port=source.port, protocol=2) as client:
        fence = acquire(client, "k", "A", LEASE_MS)
    getattr(cluster, way)(cluster.slot_of("k"), source, target)
    with redis.Redis(port=target.port, protocol=2) as client:
        assert_keeps_its_time(client, "k", began)
        assert inspect(client, "k").hold == (b"A", fence)


def test_a_user_restores_no_fence_from_far_ahead_in_a_cluster(apart):
    _, source, _, _ = apart
    with redis.Redis(port=source.port, protocol=2) as client:
        with pytest.raises(redis.ResponseError, match="Bad data format"):
            client.restore("k", 0, lock_payload(fence=now_us() + 25 * HOUR_US))
        client.restore("k", 0, lock_payload(fence=now_us() + 23 * HOUR_US))


# --- a machine that sleeps: its monotonic clock stands still, the time of everybody else does not


def test_a_lease_goes_on_to_end_while_the_machine_sleeps(host):
    """Whoever comes after it may be refused until the server's next cron, and then is granted."""
    server, client, clocks = host()
    minute_s, fence = 60, acquire(client, "k", "A", 30_000)
    began = time.monotonic()
    longer = acquire(client, "longer", "A", 120_000)
    clocks.sleep(minute_s)
    assert client.execute_command("FENCELOCK.CHECK", "k", fence) == 0
    assert extend(client, "k", "A", LONG_MS, fence) == 0
    left_ms = inspect(client, "longer").ttl_ms
    assert 60_000 - (time.monotonic() - began) * 1000 - 1 <= left_ms <= 60_000
    assert eventually(lambda: acquire(client, "k", "B", LONG_MS)) > fence
    assert release(client, "longer", "A", longer) == 1


def test_a_waiter_is_served_after_the_machine_has_slept_past_the_lease_and_not_past_its_wait(host):
    server, client, clocks = host()
    with Lines(server.port) as lines:
        fence = lines.control.call("FENCELOCK.ACQUIRE", "k", "A", 30_000)
        late = lines.queue("k", "late", LONG_MS, 40_000)
        stays = lines.queue("k", "stays", LONG_MS, 600_000)
        clocks.sleep(60)
        assert stays.only_reply() > fence
        assert late.only_reply() is None


def test_what_a_file_holds_has_aged_by_the_sleep(host):
    server, client, clocks = host(appendonly="yes")
    fence = acquire(client, "k", "A", 300_000)
    clocks.sleep(60)
    server.restart()
    eventually(lambda: inspect(client, "k"), retry_on=(redis.exceptions.ConnectionError,))
    assert inspect(client, "k").fence == fence
    assert 200_000 < inspect(client, "k").ttl_ms <= 240_000


def test_a_replica_shortens_no_lease_after_the_primarys_machine_was_paused(host):
    """Twenty seconds pass for the replica alone; then the primary's wall clock is put right."""
    server, primary, primary_clocks = host()
    _, replica, replica_clocks = host()
    follow(replica, server)

    def is_shorter_by_ms(key):
        """On the replica, which is asked first: a wait between the two makes nothing red."""
        there = inspect(replica, key).ttl_ms
        return inspect(primary, key).ttl_ms - there

    first = acquire(primary, "first", "A", LONG_MS)
    wait_until_equal(primary, replica)
    eventually(lambda: -100 < is_shorter_by_ms("first") < 100)
    replica_clocks.sleep(20)
    eventually(lambda: is_shorter_by_ms("first") > 19_000)
    primary_clocks.step_wall(20)
    eventually(lambda: is_shorter_by_ms("first") < 100)
    fence = acquire(primary, "after", "A", LONG_MS)
    wait_until_equal(primary, replica)
    assert is_shorter_by_ms("after") < 100
    promote(replica)
    assert inspect(replica, "first").hold == (b"A", first)
    assert inspect(replica, "after").hold == (b"A", fence)
