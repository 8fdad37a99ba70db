"""FENCELOCK.AWAIT on a replica: it knows what its primary has propagated, and nothing else.

So its own clock ends no wait, a fence that it does not know yet may still arrive, and without the link there is no answer.
"""

import contextlib
import itertools
import os
import signal
import time

import pytest

from harness import eventually
from harness.redis_calls import Lines
from test_redis_await import acquire, await_end

LONG_MS = 60_000
FAST_SYNC = {"repl-diskless-sync": "no", "repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1"}


class Node:
    """A server and connections to it."""

    def __init__(self, server, lines):
        self.server, self.lines, self.call = server, lines, lines.control.call

    def follow(self, primary):
        """Become its replica, and wait until the stream is there."""
        self.call("REPLICAOF", "127.0.0.1", primary.server.port)
        eventually(lambda: b"master_link_status:up" in self.call("INFO", "replication"))
        port = f"port={self.server.port},state=online".encode()
        eventually(lambda: port in primary.call("INFO", "replication"))
        return self

    def offset(self):
        """How far the stream has come."""
        info = self.lines.info("replication")
        return info["slave_repl_offset"] if "slave_repl_offset" in info else info["master_repl_offset"]


@pytest.fixture
def make_node(make_redis, closing):
    """A factory of nodes; takes make_redis' arguments."""

    def make(arguments=(), **config):
        server = make_redis(arguments, {**FAST_SYNC, **{name.replace("_", "-"): value for name, value in config.items()}})
        return Node(server, closing(Lines(server.port)))

    return make


def pair_of(make_node, *arguments):
    primary, replica = make_node(*arguments), make_node(*arguments)
    replica.follow(primary)
    return primary, replica


@pytest.fixture
def pair(make_node):
    """A primary and its replica."""
    return pair_of(make_node)


@pytest.fixture
def counting(make_node):
    """The same, whose fences count 1, 2, 3."""
    return pair_of(make_node, ("fence-clock", "no"))


def arrived(primary, replica):
    eventually(lambda: replica.offset() >= primary.offset())


@contextlib.contextmanager
def frozen(node):
    """The server stands still."""
    os.kill(node.server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(node.server.pid, signal.SIGCONT)


TRANSACTION = (("MULTI",), ("FENCELOCK.RELEASE", "k", "A"), ("FENCELOCK.ACQUIRE", "k", "A", LONG_MS), ("EXEC",))
ENDS = {
    "a release": ((LONG_MS,), ("FENCELOCK.RELEASE", "k", "A"), b"released"),
    "time": ((LONG_MS,), ("FENCELOCK.EXTEND", "k", "A", 100), b"expired"),
    "time, with a delay": ((LONG_MS, "DELAY", LONG_MS), ("FENCELOCK.EXTEND", "k", "A", 100), b"expired"),
    "MAXHOLD": ((LONG_MS, "MAXHOLD", 500), ("PING",), b"maxhold"),
    "MAXHOLD, with a delay": ((LONG_MS, "MAXHOLD", 500, "DELAY", LONG_MS), ("PING",), b"maxhold"),
    "STEAL": ((LONG_MS,), ("FENCELOCK.STEAL", "k", "B", LONG_MS), b"stolen"),
    "STEAL, with a delay": ((LONG_MS, "DELAY", LONG_MS), ("FENCELOCK.STEAL", "k", "B", LONG_MS), b"stolen"),
    "DEL": ((LONG_MS,), ("DEL", "k"), b"deleted"),
    "SET": ((LONG_MS,), ("SET", "k", "v"), b"deleted"),
    "RENAME": ((LONG_MS,), ("RENAME", "k", "other"), b"deleted"),
    "MOVE": ((LONG_MS,), ("MOVE", "k", 1), b"deleted"),
    "SWAPDB": ((LONG_MS,), ("SWAPDB", 0, 1), b"deleted"),
    "FLUSHALL": ((LONG_MS,), ("FLUSHALL",), b"flushed"),
    "FLUSHDB ASYNC": ((LONG_MS,), ("FLUSHDB", "ASYNC"), b"flushed"),
}


@pytest.mark.parametrize("waiting", [False, True], ids=["nobody waits", "somebody waits"])
@pytest.mark.parametrize(("terms", "end", "word"), ENDS.values(), ids=ENDS)
def test_a_replica_says_why_the_primary_ended_a_hold(counting, terms, end, word, waiting):
    primary, replica = counting
    assert acquire(primary.lines.control, key="other") == 1
    arrived(primary, replica)
    fence = 2
    # A hold that ends by itself may end before anybody looks, so its end is awaited before it begins.
    early, late = (2, 0) if "MAXHOLD" in terms else (0, 2)
    awaiters = [replica.lines.awaiting("k", fence, LONG_MS) for _ in range(early)]
    assert acquire(primary.lines.control, "A", *terms) == fence
    if waiting:
        waiter = primary.lines.open().send("FENCELOCK.ACQUIRE", "k", "W", LONG_MS, "WAIT", LONG_MS)
        eventually(lambda: primary.lines.count("waits") == 1 or waiter.has_reply())
    arrived(primary, replica)
    awaiters += [replica.lines.awaiting("k", fence, LONG_MS) for _ in range(late)]
    primary.call(*end)
    assert [awaiter.only_reply() for awaiter in awaiters] == [word] * 2
    if word != b"deleted":
        assert await_end(replica.lines.control, fence) == b"ended"


def test_an_ephemeral_lease_ends_on_the_replica_when_the_connection_closes(pair):
    primary, replica = pair
    holder = primary.lines.open()
    fence = acquire(holder, "A", LONG_MS, "EPHEMERAL", "DELAY", LONG_MS)
    arrived(primary, replica)
    awaiter = replica.lines.awaiting("k", fence, LONG_MS)
    holder.close()
    assert awaiter.only_reply() == b"expired"


def test_a_hold_that_was_granted_again_before_anybody_looked_has_ended(pair):
    """By the same owner, in one step of the stream."""
    primary, replica = pair
    fence = acquire(primary.lines.control)
    arrived(primary, replica)
    awaiter = replica.lines.awaiting("k", fence, LONG_MS)
    *_, (_, second) = primary.lines.control.call_all(*TRANSACTION)
    assert awaiter.only_reply() == b"released"
    assert await_end(replica.lines.control, second, 20) is None


def test_the_clock_of_a_replica_ends_no_wait(pair):
    primary, replica = pair
    for number in itertools.count():
        key, asked = f"k{number}", time.monotonic()
        fence = acquire(primary.lines.control, "A", 400, key=key)
        arrived(primary, replica)
        awaiter = replica.lines.open().send("FENCELOCK.AWAIT", key, fence, LONG_MS)
        with frozen(primary):
            if time.monotonic() > asked + 0.4:
                # The primary may have ended it before.
                continue
            eventually(lambda: replica.call("FENCELOCK.CHECK", key, fence), 0)
            # Nor is it said of the lease that has ended by the clock of the replica, to whoever asks now or whose time is over.
            assert await_end(replica.lines.control, fence, 100, key) is None
            assert not awaiter.has_reply()
        assert awaiter.only_reply() == b"expired"
        break


def test_an_extension_that_is_late_in_the_stream_ends_no_wait(pair):
    """The replica stands still, with the extension on its way, until the first deadline has passed."""
    primary, replica = pair
    for number in itertools.count():
        key = f"k{number}"
        fence = acquire(primary.lines.control, "A", 1_000, key=key)
        arrived(primary, replica)
        before = replica.lines.count("awaits")
        awaiter = replica.lines.open().send("FENCELOCK.AWAIT", key, fence, LONG_MS)
        eventually(lambda: replica.lines.count("awaits") > before or awaiter.has_reply())
        with frozen(replica):
            later = acquire(primary.lines.control, "A", 1_000, key=f"later {number}")
            if not primary.call("FENCELOCK.EXTEND", key, "A", LONG_MS):
                # The lease has ended before.
                continue
            eventually(lambda: primary.call("FENCELOCK.CHECK", f"later {number}", later), 0)
        break
    arrived(primary, replica)
    assert replica.call("FENCELOCK.CHECK", key, fence) == 1
    assert not awaiter.has_reply()
    primary.call("FENCELOCK.RELEASE", key, "A")
    assert awaiter.only_reply() == b"released"


def test_a_replica_waits_for_a_hold_that_has_yet_to_arrive(counting):
    primary, replica = counting
    assert acquire(primary.lines.control, key="other") == 1
    arrived(primary, replica)
    ahead, passed = replica.lines.awaiting("k", 2, LONG_MS), replica.lines.awaiting("k", 3, LONG_MS)
    assert await_end(replica.lines.control, 2, 20) is None
    assert acquire(primary.lines.control) == 2
    assert acquire(primary.lines.control, key="third") == 3
    # The one is live, the other belongs to another lock.
    assert passed.only_reply() == b"ended"
    assert not ahead.has_reply()
    primary.call("FENCELOCK.RELEASE", "k", "A")
    assert ahead.only_reply() == b"released"


def test_a_hold_that_arrives_and_ends_in_one_step_is_told_with_its_reason(counting):
    primary, replica = counting
    assert acquire(primary.lines.control) == 1
    arrived(primary, replica)
    ahead = replica.lines.awaiting("k", 2, LONG_MS)
    primary.lines.control.call_all(*TRANSACTION[:2], ("FENCELOCK.ACQUIRE", "k", "B", LONG_MS), ("FENCELOCK.RELEASE", "k", "B"), ("EXEC",))
    assert ahead.only_reply() == b"released"


def test_a_fence_that_is_raised_over_passes_a_hold_that_never_came(counting):
    primary, replica = counting
    acquire(primary.lines.control)
    arrived(primary, replica)
    ahead = replica.lines.awaiting("k", 5, LONG_MS)
    assert primary.call("FENCELOCK.RAISE", 7) == 7
    assert ahead.only_reply() == b"ended"


def test_a_promoted_replica_goes_on_by_its_own_clock(pair):
    primary, replica = pair
    began = time.monotonic()
    fence = acquire(primary.lines.control, "A", 3_000)
    arrived(primary, replica)
    awaiter = replica.lines.awaiting("k", fence, LONG_MS)
    ahead = replica.lines.awaiting("k", fence + 10**9, LONG_MS)
    os.kill(primary.server.pid, signal.SIGSTOP)
    try:
        promoted = replica.call("REPLICAOF", "NO", "ONE")
        assert promoted == "OK"
        told = ahead.reply()
        answers = [awaiter.reply()]
    finally:
        os.kill(primary.server.pid, signal.SIGCONT)
    assert told.startswith(f"ERR fence {fence + 10**9} is above "), told
    assert answers == [b"expired"]
    assert time.monotonic() >= began + 3


def test_a_replica_whose_link_is_down_answers_with_an_error(pair):
    primary, replica = pair
    fence = acquire(primary.lines.control)
    arrived(primary, replica)
    awaiter = replica.lines.awaiting("k", fence, LONG_MS)
    primary.server.kill()
    assert awaiter.only_reply().code == "MASTERDOWN"
    told = await_end(replica.lines.control, fence)
    assert told == "MASTERDOWN the link with the primary is down: this replica cannot know when the hold ends"
    assert (replica.lines.count("awaiters"), replica.lines.blocked()) == (0, 0)


def test_a_replica_that_gets_another_primary_lets_nobody_wait_for_the_old_one(pair, make_node):
    primary, replica = pair
    fence = acquire(primary.lines.control)
    arrived(primary, replica)
    awaiter = replica.lines.awaiting("k", fence, LONG_MS)
    other = make_node()
    replica.call("REPLICAOF", "127.0.0.1", other.server.port)
    assert awaiter.reply().code in ("MASTERDOWN", "UNBLOCKED")
    eventually(lambda: replica.lines.count("awaiters"), 0)


def test_a_primary_that_becomes_a_replica_answers_with_an_error(pair, make_node):
    primary, _ = pair
    fence = acquire(primary.lines.control)
    awaiter = primary.lines.awaiting("k", fence, LONG_MS)
    primary.call("REPLICAOF", "127.0.0.1", make_node().server.port)
    assert awaiter.reply().code in ("MASTERDOWN", "UNBLOCKED")
    eventually(lambda: primary.lines.count("awaiters"), 0)


def test_a_replica_of_a_replica_knows_it_too(pair, make_node):
    primary, replica = pair
    fence = acquire(primary.lines.control)
    arrived(primary, replica)
    leaf = make_node().follow(replica)
    awaiter = leaf.lines.awaiting("k", fence, LONG_MS)
    primary.call("FENCELOCK.STEAL", "k", "B", LONG_MS)
    assert awaiter.only_reply() == b"stolen"


def test_a_replica_that_comes_in_a_delay_knows_that_the_hold_has_ended(pair, make_node):
    primary, replica = pair
    fence = acquire(primary.lines.control, "A", 100, "DELAY", LONG_MS)
    eventually(lambda: primary.call("FENCELOCK.INSPECT", "k")[-1], b"delay")
    late = make_node().follow(primary)
    for node in (replica, late):
        arrived(primary, node)
        assert await_end(node.lines.control, fence) == b"ended"


def test_a_write_of_a_client_on_a_replica_ends_the_hold_there(make_node):
    primary, replica = make_node(), make_node(replica_read_only="no")
    replica.follow(primary)
    fence = acquire(primary.lines.control)
    arrived(primary, replica)
    awaiter = replica.lines.awaiting("k", fence, LONG_MS)
    assert replica.call("DEL", "k") == 1
    assert awaiter.only_reply() == b"deleted"
