"""A server that stops being the primary, and one that becomes it: what the waiters get, and what is lost.

By command, by Sentinels after a crash that loses the last writes, by a restart from an old snapshot. What a replica knows
and what each file keeps is in test_redis_replication and test_redis_persistence, clusters are in test_redis_cluster.
"""

import contextlib
import os
import shutil
import signal
import socket
import time

import psycopg
import pytest
import redis
from redis.sentinel import Sentinel

from contenders import Contenders
from harness import RedisServer, eventually
from harness.redis_calls import Closed, Lines
from harness.redis_sentinel import NAME, READY_WITHIN_S, Sentinels
from harness.locks import SKIPPED, NO_RETRY, acquire, assert_ends_by, extend, inspect, release
from test_redis_replication import FAST_SYNC, LAG_MS, assert_same_lease, digest, follow, wait_for_link, wait_until_equal

LONG_MS = 60_000
AOF = {"appendonly": "yes", "appendfsync": "always", "auto-aof-rewrite-percentage": "0"}
DEBUG = {"enable-debug-command": "yes"}


class Member:
    """A server, a redis-py client of it, and raw connections to it."""

    def __init__(self, server):
        self.server = server
        self.client = redis.Redis(port=server.port, protocol=2, **NO_RETRY)
        self.lines = Lines(server.port)

    def close(self):
        self.client.close()
        self.lines.close()

    @property
    def port(self):
        return self.server.port

    @property
    def role(self):
        return self.client.info("replication")["role"]

    def call(self, *words):
        """A command on a raw connection; an error is returned."""
        return self.lines.control.call(*words)

    def reconnected(self):
        """The same server after a restart."""
        self.close()
        return Member(self.server)


@pytest.fixture
def member(make_redis, closing):
    """A factory of members; `of` is the one that it follows."""

    def make(of=None, arguments=(), **config):
        settings = {**DEBUG, **FAST_SYNC, **{name.replace("_", "-"): value for name, value in config.items()}}
        made = closing(Member(make_redis(arguments, settings)))
        if of is not None:
            follow(made.client, of.server)
        return made

    return make


@contextlib.contextmanager
def frozen(server):
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def cut_off(primary, replica):
    """Freeze a replica and close its link: what the primary does from now on never reaches it. Ends with SIGCONT."""
    os.kill(replica.server.pid, signal.SIGSTOP)
    primary.client.client_kill_filter(_type="replica")


def told_once(line):
    """The one reply of a waiter, after which the connection is closed or silent."""
    reply = line.reply()
    with contextlib.suppress(Closed):
        assert line.call("ECHO", "mark") == b"mark", f"a second reply after {reply!r}"
    return reply


# --- role changes


def failover_on_command(primary, replica):
    assert primary.call("FAILOVER", "TO", "127.0.0.1", replica.port) == "OK"


def failover_by_force(primary, replica):
    """The replica is frozen, so the primary gives up waiting for it and steps down all the same."""
    with frozen(replica.server):
        assert primary.call("FAILOVER", "TO", "127.0.0.1", replica.port, "FORCE", "TIMEOUT", 50) == "OK"
        eventually(lambda: primary.client.info("replication")["role"], "slave")


def failover_by_hand(primary, replica):
    replica.client.replicaof("NO", "ONE")
    primary.client.replicaof("127.0.0.1", replica.port)


@pytest.mark.parametrize("fail_over", [failover_on_command, failover_by_force, failover_by_hand])
def test_waiters_are_told_at_once_and_the_promoted_server_serves_its_own(member, fail_over):
    primary = member()
    replica = member(of=primary)
    first = acquire(primary.client, "k", "A", LONG_MS)
    waiters = [primary.lines.queue("k", f"W{number}", LONG_MS, LONG_MS) for number in range(5)]
    acquire(primary.client, "other", "A", LONG_MS)
    waiters.append(primary.lines.queue("other", "W", LONG_MS, LONG_MS))
    began = time.monotonic()
    assert extend(primary.client, "k", "A", 2_500) > 0
    granted = time.monotonic()
    wait_until_equal(primary.client, replica.client)
    grants = primary.lines.count("grants")
    fail_over(primary, replica)
    assert {told_once(waiter).code for waiter in waiters} == {"UNBLOCKED"}
    eventually(lambda: replica.role, "master")
    eventually(lambda: (primary.lines.count("waiters"), primary.lines.blocked()), (0, 0))
    # The lease went over whole; its deadline is kept, and the first in the new queue gets the lock then.
    assert_ends_by(replica.client, "k", granted + (2_500 + LAG_MS) / 1000)
    # On a busy machine the lease may be over by now, and the first has the lock at once.
    one = replica.lines.open().send("FENCELOCK.ACQUIRE", "k", "again 0", LONG_MS, "WAIT", LONG_MS)
    eventually(lambda: replica.lines.count("waiters") == 1 or one.has_reply())
    two = replica.lines.queue("k", "again 1", LONG_MS, LONG_MS)
    second = one.only_reply()
    assert time.monotonic() >= began + 2.5
    assert second > first
    assert release(replica.client, "k", "again 0", second) == 1
    assert two.only_reply() > second
    # The former primary follows, answers and grants nothing.
    wait_for_link(primary.client)
    wait_until_equal(replica.client, primary.client)
    assert_same_lease(replica.client, primary.client, "k")
    assert primary.call("FENCELOCK.ACQUIRE", "free", "B", LONG_MS, "WAIT", LONG_MS).code == "READONLY"
    assert primary.lines.count("grants") == grants


def test_a_primary_that_is_demoted_and_finds_no_primary_grants_nothing(member):
    """Neither by a command nor by its timer: the deadline passes and the entry stays."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # taken, and nobody listens
        one = member()
        acquire(one.client, "k", "A", LONG_MS)
        long = acquire(one.client, "long", "A", LONG_MS)
        acquire(one.client, "ephemeral", "A", LONG_MS, "EPHEMERAL")
        waiter = one.lines.queue("k", "W", LONG_MS, LONG_MS)
        bound = one.lines.open()
        last = bound.call("FENCELOCK.ACQUIRE", "bound", "A", LONG_MS, "EPHEMERAL")
        # In one write, so that the lease is live when the server is demoted.
        calls = ("FENCELOCK.EXTEND", "k", "A", 300), ("REPLICAOF", "127.0.0.1", nobody.getsockname()[1])
        assert one.lines.control.call_all(*calls) == [300, "OK"]
        assert told_once(waiter).code == "UNBLOCKED"
        bound.close()
        eventually(lambda: inspect(one.client, "k"), None)
        for words in (
            ("FENCELOCK.ACQUIRE", "k", "B", LONG_MS),
            ("FENCELOCK.ACQUIRE", "k", "B", LONG_MS, "WAIT", LONG_MS),
            ("FENCELOCK.EXTEND", "long", "A", LONG_MS),
            ("FENCELOCK.RELEASE", "long", "A"),
            ("FENCELOCK.RAISE", last),
        ):
            assert one.call(*words).code == "READONLY", words
        one.client.config_set("maxmemory", "1gb")  # wakes the timer of the module
        time.sleep(0.2)  # time in which a server that writes would have done so
        assert sorted(one.client.keys()) == [b"bound", b"ephemeral", b"k", b"long"]
        assert (one.lines.count("last-fence"), one.lines.count("grants")) == (last, 4)
        assert one.client.execute_command("FENCELOCK.CHECK", "long", long) == 1
        # As a primary again it removes what has ended and serves. Who was bound to a connection has the lease alone.
        one.client.replicaof("NO", "ONE")
        eventually(lambda: sorted(one.client.keys()), [b"bound", b"ephemeral", b"long"])
        assert release(one.client, "long", "A", long) == 1
        assert acquire(one.client, "k", "B", LONG_MS) > last
        assert one.lines.queue("bound", "W", LONG_MS, 50).only_reply() is None


def test_hundreds_of_waiters_of_a_demoted_primary_are_told_within_a_second(member):
    primary, other = member(), member()
    keys = [f"k{number}" for number in range(20)]
    for key in keys:
        acquire(primary.client, key, "A", LONG_MS)
    waiters = [primary.lines.open().send("FENCELOCK.ACQUIRE", keys[n % 20], "W", LONG_MS, "WAIT", LONG_MS) for n in range(700)]
    eventually(lambda: primary.lines.count("waiters"), 700)
    primary.call("REPLICAOF", "127.0.0.1", other.port)
    assert {waiter.reply().code for waiter in waiters} == {"UNBLOCKED"}
    eventually(lambda: (primary.lines.count("waiters"), primary.lines.blocked()), (0, 0))


@pytest.mark.parametrize("together", ["pipeline", "MULTI"])
def test_a_waiter_that_is_granted_in_the_turn_of_the_demotion_is_told_one_thing(member, together):
    primary, other = member(), member()
    acquire(primary.client, "k", "A", LONG_MS)
    waiter = primary.lines.queue("k", "W", LONG_MS, LONG_MS)
    behind = primary.lines.queue("k", "behind", LONG_MS, LONG_MS)
    calls = (("FENCELOCK.RELEASE", "k", "A"), ("REPLICAOF", "127.0.0.1", other.port))
    if together == "MULTI":
        assert primary.lines.control.call_all(("MULTI",), *calls, ("EXEC",))[-1] == [1, "OK"]
    else:
        assert primary.lines.control.call_all(*calls) == [1, "OK"]
    told = told_once(waiter)
    assert isinstance(told, int) or told.code == "UNBLOCKED"
    assert told_once(behind).code == "UNBLOCKED"
    eventually(lambda: (primary.lines.count("waiters"), primary.lines.blocked()), (0, 0))
    assert primary.lines.count("undone-grants") == 0
    assert primary.server.pid


def test_nothing_is_granted_while_a_failover_is_under_way_and_all_of_it_when_it_is_called_off(member):
    """A write of the module between the pause and its end would end the server or be lost."""
    primary = member()
    replica = member(of=primary)
    short = acquire(primary.client, "short", "A", LONG_MS)
    gone = primary.lines.open()
    gone.call("FENCELOCK.ACQUIRE", "ephemeral", "A", LONG_MS, "EPHEMERAL")
    waiters = [primary.lines.queue(key, "W", LONG_MS, LONG_MS) for key in ("short", "ephemeral")]
    brief = primary.lines.queue("short", "brief", LONG_MS, 500)
    grants = primary.lines.count("grants")
    with frozen(replica.server):
        # Else the primary finds that the replica has it all, and does not wait for it.
        primary.client.set("more", "than the replica has")
        # In one write, so that the lease is live when the failover begins.
        calls = ("FENCELOCK.EXTEND", "short", "A", 400), ("FAILOVER", "TO", "127.0.0.1", replica.port)
        assert primary.lines.control.call_all(*calls) == [400, "OK"]
        gone.close()
        assert brief.only_reply() is None
        eventually(lambda: inspect(primary.client, "short"), None)
        assert not any(waiter.has_reply() for waiter in waiters)
        assert (primary.lines.count("grants"), primary.lines.count("waiters")) == (grants, 2)
        assert primary.client.info("replication")["master_failover_state"] == "waiting-for-sync"
        assert primary.call("FAILOVER", "ABORT") == "OK"
        fences = [waiter.only_reply() for waiter in waiters]
    assert min(fences) > short
    wait_until_equal(primary.client, replica.client)
    assert [inspect(replica.client, key).hold for key in ("short", "ephemeral")] == [(b"W", fence) for fence in fences]


class EitherServer:
    """A client of two servers, one of which is the primary: after an error it turns to the other."""

    def __init__(self, *ports):
        self._clients = [redis.Redis(port=port, protocol=2, **NO_RETRY) for port in ports]

    def execute_command(self, *words):
        try:
            return self._clients[0].execute_command(*words)
        except redis.RedisError:
            self._clients.append(self._clients.pop(0))
            raise

    def close(self):
        for client in self._clients:
            client.close()


def test_failovers_back_and_forth_under_load_let_no_second_holder_in_and_lose_no_hold(member):
    one = member()
    two = member(of=one)
    names = [f"lock {number}" for number in range(3)]
    with Contenders(lambda: EitherServer(one.port, two.port), names) as load:
        for primary, replica in [(one, two), (two, one)] * 2:
            load.go_on()
            assert primary.call("FAILOVER", "TO", "127.0.0.1", replica.port) == "OK"
            eventually(lambda replica=replica: replica.role, "master")
            eventually(lambda p=primary: p.client.info("replication")["master_failover_state"], "no-failover")
            wait_for_link(primary.client)
            eventually(lambda r=replica: r.client.info("replication").get("slave0", {}).get("state"), "online")
        load.go_on()
    load.assert_fences_grow()
    load.assert_one_holder_at_a_time()
    assert load.lost == []
    assert load.errors, "nobody saw a failover"
    wait_until_equal(one.client, two.client)
    assert digest(one.client) == digest(two.client)
    assert (one.client.dbsize(), one.server.pid is None, two.server.pid is None) == (0, False, False)


# --- the same history for everybody


def events(member, reconnect):
    """Everything that begins or ends a hold, by a command, a timer or a closed connection; `reconnect` in between."""
    lines, client = member.lines, member.client

    def hold(key, ttl_ms=LONG_MS, *options):
        line = lines.open()
        assert line.call("FENCELOCK.ACQUIRE", key, "A", ttl_ms, *options) > 0
        return line

    hold("granted")
    hold("extended", 5_000).call("FENCELOCK.EXTEND", "extended", "A", LONG_MS)
    hold("cut", LONG_MS, "MAXHOLD", 30_000).call("FENCELOCK.EXTEND", "cut", "A", LONG_MS)
    hold("released").call("FENCELOCK.RELEASE", "released", "A")
    hold("ran out", 20)
    hold("in delay", 20, "DELAY", LONG_MS)
    reconnect()
    # To the next in the queue: by a release, a deadline, DEL, a closed connection, and from one that was gone.
    handed = {key: hold(key) for key in ("by release", "by DEL", "undone", "undone to nobody")}
    handed["by time"] = hold("by time")
    handed["by close"] = hold("by close", LONG_MS, "EPHEMERAL")
    waiting = {key: lines.queue(key, f"W of {key}", LONG_MS, LONG_MS) for key in handed}
    heir = lines.queue("undone", "heir", LONG_MS, LONG_MS, "MAXHOLD", 40_000, "DELAY", 5_000)
    reconnect()
    handed["by release"].call("FENCELOCK.RELEASE", "by release", "A")
    client.delete("by DEL")
    handed["by time"].call("FENCELOCK.EXTEND", "by time", "A", 100)
    handed["by close"].close()
    undone = lines.count("undone-grants")
    for key in ("undone", "undone to nobody"):
        calls = (("FENCELOCK.RELEASE", key, "A"), ("CLIENT", "KILL", "ID", waiting.pop(key).id))
        assert lines.open().call_all(*calls) == [1, 1]
    for waiter in (*waiting.values(), heir):
        assert waiter.only_reply() > 0
    eventually(lambda: lines.count("undone-grants"), undone + 2)
    reconnect()
    # The end of a connection, with nobody in the queue.
    bound = [hold("ended", LONG_MS, "EPHEMERAL"), hold("ended, in delay", LONG_MS, "EPHEMERAL", "DELAY", LONG_MS)]
    reconnect()
    for line in bound:
        line.close()
    hold("renamed")
    client.rename("renamed", "a new name")
    hold("moved")
    client.move("moved", 3)
    hold("overwritten")
    client.set("overwritten", "by a string")
    client.restore("restored", 0, client.dump("extended"))
    for number in range(50):
        hold(f"many {number}", 10 + number)
    gone = ("released", "ran out", "ended", "undone to nobody", *(f"many {number}" for number in range(50)))
    eventually(lambda: client.exists(*gone), 0)
    eventually(lambda: [inspect(client, key).state for key in ("in delay", "ended, in delay")], [b"delay"] * 2)
    client.execute_command("FENCELOCK.RAISE", lines.count("last-fence") + 1_000_000)


KEPT_KEYS = ["granted", "extended", "cut", "in delay", "by release", "by DEL", "undone", "by time", "by close"]
KEPT_KEYS += ["ended, in delay", "a new name", "restored"]


def assert_same_history(expected, client):
    """Keys, owner, fence, state, what is left, what the longest hold leaves, and the last issued fence."""
    keys, holds, last, seen = expected
    assert sorted(client.keys()) == keys
    for key, lock in holds.items():
        found = inspect(client, key)
        passed_ms = (time.monotonic() - seen) * 1000
        assert (found.hold, found.state) == (lock.hold, lock.state), key
        assert -2_000 - passed_ms < found.ttl_ms - lock.ttl_ms < 2_000, (key, found, lock)
        assert (found.maxhold_left_ms is None) == (lock.maxhold_left_ms is None), (key, found, lock)
        assert -2_000 - passed_ms < (found.maxhold_left_ms or 0) - (lock.maxhold_left_ms or 0) < 2_000, (key, found, lock)
    assert last_fence(client) == last
    with redis.Redis(port=client.connection_pool.connection_kwargs["port"], protocol=2, db=3) as third:
        assert inspect(third, "moved").owner == b"A"


def history(client):
    """The same as of this moment, and the moment."""
    seen = time.monotonic()
    return sorted(client.keys()), {key: inspect(client, key) for key in KEPT_KEYS}, last_fence(client), seen


def last_fence(client):
    told = client.execute_command("FENCELOCK.STATS")
    return dict(zip(told[::2], told[1::2], strict=True))[b"last-fence"]


@pytest.mark.parametrize("link", ["a link that holds", "a link that breaks and catches up"])
def test_replica_and_file_see_one_history_whatever_ended_or_granted_a_lease(member, link):
    primary = member(**AOF)
    replica = member(of=primary, **AOF)
    breaks = 0

    def reconnect():
        nonlocal breaks
        if link == "a link that holds":
            return
        with frozen(replica.server):
            primary.client.client_kill_filter(_type="replica")
            # What happens while the replica is away comes to it out of the backlog.
            acquire(primary.client, f"away {breaks}", "A", LONG_MS)
        wait_for_link(replica.client)
        breaks += 1

    events(primary, reconnect)
    reconnect()
    wait_until_equal(primary.client, replica.client)
    told = primary.client.info("stats")
    assert (told["sync_full"], told["sync_partial_ok"]) == (1, breaks)
    expected = history(primary.client)
    assert len(expected[0]) == len(KEPT_KEYS) + 1 + breaks
    assert_same_history(expected, replica.client)
    assert digest(primary.client) == digest(replica.client)
    # Each file alone: the one of the primary, and that which the replica wrote from what it was sent.
    for one in (primary, replica):
        one.server.kill()
        one.server.start()
        assert_same_history(expected, one.client)


# --- crashes


@pytest.mark.parametrize("lost_bytes", ["none", "whole records", "up to the middle of a record"])
def test_a_crash_under_everysec_may_lose_the_last_grants_and_never_the_order_of_fences(member, lost_bytes):
    """A process that dies leaves what it has written; a power failure takes what was not on the disk yet."""
    one = member(appendonly="yes", appendfsync="everysec")

    def size():
        eventually(lambda: one.client.info("persistence")["aof_buffer_length"], 0)
        return file.stat().st_size

    [file] = (one.server.data_dir / "appendonlydir").glob("*.incr.aof")
    kept = {f"kept {number}": acquire(one.client, f"kept {number}", "A", LONG_MS) for number in range(200)}
    for key in list(kept)[::3]:
        assert release(one.client, key, "A", kept.pop(key)) == 1
    whole = size()
    last = [acquire(one.client, "last", "A", LONG_MS)]
    middle = size() - 7
    for _ in range(50):
        release(one.client, "last", "A")
        last.append(acquire(one.client, "last", "A", LONG_MS))
    end = size()
    one.server.kill()
    os.truncate(file, {"none": end, "whole records": whole, "up to the middle of a record": middle}[lost_bytes])
    one.server.start()
    assert {key: inspect(one.client, key).fence for key in kept} == kept
    if lost_bytes == "none":
        assert inspect(one.client, "last").hold == (b"A", last[-1])
    else:
        assert inspect(one.client, "last") is None
        assert extend(one.client, "last", "A", LONG_MS, last[-1]) == 0
        assert acquire(one.client, "last", "B", LONG_MS) > max(last)
    assert acquire(one.client, "next", "A", LONG_MS) > max(last)


def test_a_server_that_was_down_for_a_while_gives_each_lease_what_is_left_of_it(member):
    one = member(**AOF)
    began = time.monotonic()
    fences = {
        "over": acquire(one.client, "over", "A", 200),
        "in delay": acquire(one.client, "in delay", "A", 200, "DELAY", 2_500),
        "ends soon": acquire(one.client, "ends soon", "A", 2_000),
        "cut": acquire(one.client, "cut", "A", LONG_MS, "MAXHOLD", 30_000),
    }
    granted = time.monotonic()
    one.server.kill()
    eventually(lambda: time.monotonic() > granted + 0.8)  # the downtime
    one.server.start()
    one = one.reconnected()
    try:
        assert inspect(one.client, "over") is None
        # On a busy machine the delay and the lease that ends soon may be over by now, here and below.
        in_delay = inspect(one.client, "in delay")
        assert time.monotonic() > began + 2.7 or in_delay.state == b"delay"
        assert inspect(one.client, "cut").hold == (b"A", fences["cut"])
        assert inspect(one.client, "cut").maxhold_left_ms <= 30_000 - 800
        assert extend(one.client, "cut", "A", LONG_MS) <= 30_000 - 800
        wait = lambda key: one.lines.open().send("FENCELOCK.ACQUIRE", key, "W", LONG_MS, "WAIT", LONG_MS)  # noqa: E731
        waiting = {key: wait(key) for key in ("ends soon", "in delay")}
        for key, after_s in (("ends soon", 2.0), ("in delay", 2.7)):
            if (lock := inspect(one.client, key)) and lock.owner == b"A":
                assert_ends_by(one.client, key, granted + after_s)
            assert waiting[key].only_reply() > max(fences.values())
            # A wall clock that is slewed meanwhile may move the deadline by a millisecond.
            assert time.monotonic() >= began + after_s - 0.01
    finally:
        one.close()


# --- WAIT


def test_wait_after_a_grant_tells_how_many_replicas_have_it_and_takes_nothing_back(member):
    primary = member()
    replica = member(of=primary)
    first = acquire(primary.client, "k", "A", LONG_MS)
    assert primary.client.execute_command("WAIT", 1, 20_000) == 1
    assert inspect(replica.client, "k").hold == (b"A", first)
    with frozen(replica.server):
        asked = time.monotonic()
        second = acquire(primary.client, "other", "A", LONG_MS)
        assert primary.client.execute_command("WAIT", 1, 100) == 0
        assert time.monotonic() - asked >= 0.1
        # A hint and no veto: the holder has to release what it does not trust.
        assert inspect(primary.client, "other").hold == (b"A", second)
    primary.server.kill()
    replica.client.replicaof("NO", "ONE")
    assert inspect(replica.client, "k").hold == (b"A", first)
    assert acquire(replica.client, "k", "B", LONG_MS) is None


def test_wait_after_a_grant_to_a_waiter_works_on_the_connection_that_waited(member):
    primary = member()
    replica = member(of=primary)
    acquire(primary.client, "k", "A", LONG_MS)
    waiter = primary.lines.queue("k", "W", LONG_MS, LONG_MS)
    release(primary.client, "k", "A")
    fence = waiter.only_reply()
    assert waiter.call("WAIT", 1, 5_000) == 1
    assert inspect(replica.client, "k").hold == (b"W", fence)


# --- disasters


class Disaster:
    """What a client and its successor got, on either side of a loss of the last grants."""

    def __init__(self):
        self.stale = self.newer = None
        self.load = None


@pytest.fixture(scope="module")
def after_a_sentinel_failover():
    """Under load the primary dies with grants that its replica has never seen; the Sentinels promote the replica."""
    with contextlib.ExitStack() as stack:
        settings = {**DEBUG, **FAST_SYNC, **AOF}
        primary, replica = (stack.enter_context(contextlib.closing(Member(RedisServer(config=settings).start()))) for _ in "12")
        stack.callback(primary.server.close)
        stack.callback(replica.server.close)
        follow(replica.client, primary.server)
        sentinels = stack.enter_context(contextlib.closing(Sentinels(primary.server).start()))
        told = Sentinel(sentinels.addresses, sentinel_kwargs={"protocol": 2})

        def client():
            return told.master_for(NAME, protocol=2, socket_timeout=5, **NO_RETRY)

        seen = Disaster()
        kept = acquire(client(), "kept", "A", LONG_MS)
        wait_until_equal(primary.client, replica.client)
        # A release may be among what is lost; then the lease ends by its time.
        with Contenders(client, [f"lock {number}" for number in range(3)], ttl_ms=1_000) as load:
            load.go_on()
            cut_off(primary, replica)
            load.go_on()
            seen.stale = acquire(client(), "report", "A", LONG_MS)
            assert acquire(client(), "report", "B", LONG_MS) is None
            waiter = primary.lines.queue("report", "W", LONG_MS, LONG_MS)
            primary.server.kill()
            os.kill(replica.server.pid, signal.SIGCONT)
            with pytest.raises(Closed):
                waiter.reply()
            # The Sentinels close the connections of the one that they promote.
            eventually(lambda: replica.role, "master", within_s=READY_WITHIN_S, retry_on=(redis.RedisError,))
            eventually(sentinels.primary_port, replica.port, within_s=READY_WITHIN_S)
            seen.newer = eventually(
                lambda: acquire(client(), "report", "B", LONG_MS), retry_on=(redis.RedisError,)
            )
            load.go_on()
        seen.load = load
        seen.kept = kept
        seen.promoted = replica
        # The former primary comes back with its file and follows.
        primary.server.start()
        seen.returned = primary
        seen.returned_with = inspect(primary.client, "report").hold
        primary.client.replicaof("127.0.0.1", replica.port)
        wait_for_link(primary.client)
        wait_until_equal(replica.client, primary.client)
        yield seen


def test_fences_grow_over_a_sentinel_failover_that_loses_the_last_grants(after_a_sentinel_failover):
    seen = after_a_sentinel_failover
    assert seen.newer > seen.stale
    seen.load.assert_fences_grow()
    before = [held.fence for held in seen.load.holds if held.fence < seen.stale]
    after = [held.fence for held in seen.load.holds if held.fence > seen.newer]
    assert len(before) > 20
    assert len(after) > 20


def test_what_the_replica_had_is_kept_over_a_sentinel_failover(after_a_sentinel_failover):
    seen = after_a_sentinel_failover
    assert inspect(seen.promoted.client, "kept").hold == (b"A", seen.kept)
    assert extend(seen.promoted.client, "kept", "A", LONG_MS, seen.kept) > 50_000


def test_a_holder_whose_grant_a_failover_lost_is_refused_by_the_lock_too(after_a_sentinel_failover):
    client, stale = after_a_sentinel_failover.promoted.client, after_a_sentinel_failover.stale
    assert extend(client, "report", "A", LONG_MS, stale) == 0
    assert release(client, "report", "A", stale) == 0
    assert client.execute_command("FENCELOCK.CHECK", "report", stale) == 0
    assert inspect(client, "report").hold == (b"B", after_a_sentinel_failover.newer)


def test_a_former_primary_that_returns_forgets_the_grant_that_nobody_else_knew(after_a_sentinel_failover):
    seen = after_a_sentinel_failover
    assert seen.returned_with == (b"A", seen.stale)
    assert inspect(seen.returned.client, "report").hold == (b"B", seen.newer)
    assert digest(seen.returned.client) == digest(seen.promoted.client)
    assert last_fence(seen.returned.client) >= seen.newer


@pytest.fixture(scope="module")
def after_an_old_snapshot():
    """A server is started from a snapshot that knows nothing of the last thousand grants."""
    seen = Disaster()
    with contextlib.closing(RedisServer(config={"save": ""}).start()) as server:
        with redis.Redis(port=server.port, protocol=2, **NO_RETRY) as client:
            seen.old = acquire(client, "old", "A", LONG_MS)
            client.save()
            backup = server.data_dir / "backup.rdb"
            shutil.copy(server.data_dir / "dump.rdb", backup)
            for _ in range(1_000):
                seen.last = acquire(client, "other", "A", LONG_MS)
                release(client, "other", "A", seen.last)
            release(client, "old", "A", seen.old)
            seen.stale = acquire(client, "report", "A", LONG_MS)
            client.save()
            server.kill()
            shutil.copy(backup, server.data_dir / "dump.rdb")
            server.start()
            seen.keys = client.keys()
            seen.newer = acquire(client, "report", "B", LONG_MS)
        yield seen


def test_fences_grow_over_a_restore_from_an_old_snapshot(after_an_old_snapshot):
    """A lease that was released after the snapshot is back, until its deadline."""
    assert after_an_old_snapshot.keys == [b"old"]
    assert after_an_old_snapshot.newer > after_an_old_snapshot.stale > after_an_old_snapshot.last


def test_without_the_clock_a_restore_from_an_old_snapshot_repeats_no_fence(make_redis):
    """A count skips what may have been lost, which the clock does unasked. RAISE is for a loss that is larger."""
    server = make_redis(("fence-clock", "no"))
    with redis.Redis(port=server.port, protocol=2, **NO_RETRY) as client:
        assert acquire(client, "k", "A", LONG_MS) == 1
        client.save()
        release(client, "k", "A")
        assert [acquire(client, f"k{number}", "A", LONG_MS) for number in range(2, 58)] == list(range(2, 58))
        server.kill()
        server.start()
        assert acquire(client, "lost", "B", LONG_MS) == 2 + SKIPPED
        assert client.execute_command("FENCELOCK.RAISE", 99_999) == 99_999
        assert acquire(client, "next", "B", LONG_MS) == 100_000


@pytest.mark.parametrize("disaster", ["after_a_sentinel_failover", "after_an_old_snapshot"])
def test_the_claim_of_a_stale_holder_is_refused_after_the_loss(request, dsn, disaster):
    """The row has seen the successor's fence, whatever the lock's servers have forgotten."""
    seen = request.getfixturevalue(disaster)
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute("CREATE TABLE report (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0, total int NOT NULL DEFAULT 0)")
        db.execute("INSERT INTO report (id) VALUES (1)")

        def claim(fence):
            return db.execute("SELECT total FROM fenced_claim(NULL::report, 1, %s)", (fence,)).fetchone()

        def update(fence, total):
            patch = "jsonb_build_object('total', %s::int)"
            return db.execute(f"SELECT fenced_update('report', 1, %s, {patch})", (fence, total)).fetchone()[0]

        assert claim(seen.stale) == (0,)
        assert claim(seen.newer) == (0,)
        assert update(seen.newer, 10) is True
        assert claim(seen.stale) is None
        assert update(seen.stale, 1) is False
        assert db.execute("SELECT fence, total FROM report").fetchall() == [(seen.newer, 10)]
