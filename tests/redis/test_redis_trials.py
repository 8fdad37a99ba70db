"""Faults of other lock services, as trials of ours, each named for the fault.

Trials of one server that are elsewhere: a release without an ownership check, a dead lease revived and times out of
range in test_redis_leases and test_redis_bad_input; the key that disappears under waiters in test_redis_world;
persistence by another route in test_redis_persistence; the pause that outlasts the lease in test_story.
"""

import random
import subprocess
import sys
import threading
import time

import pytest

from harness import eventually
from harness.process import free_port
from harness.redis_calls import Line, Lines, Refused, encoded

LONG_MS = 60_000


@pytest.fixture
def start(make_redis, closing):
    """A factory of (server, raw connections to it); takes make_redis' arguments."""

    def make(*args, **kwargs):
        server = make_redis(*args, **kwargs)
        return server, closing(Lines(server.port))

    return make


def acquire(line, key, owner, ttl_ms, *options):
    return line.call("FENCELOCK.ACQUIRE", key, owner, ttl_ms, *options)


def release(line, key, owner, fence):
    return line.call("FENCELOCK.RELEASE", key, owner, "FENCE", fence)


def inspect(lines, key="k"):
    told = lines.control.call("FENCELOCK.INSPECT", key)
    return told and {name.decode(): value for name, value in zip(told[::2], told[1::2], strict=True)}


# --- lost reply, retry not idempotent


def test_lost_reply_of_an_acquire(start):
    """A client gave up and the server had granted. The repeats neither block on themselves nor pile up holds."""
    _, lines = start(("fence-clock", "no"))
    lines.open().send("FENCELOCK.ACQUIRE", "k", "A", LONG_MS).close()
    line = lines.open()
    eventually(lambda: inspect(lines))
    assert [acquire(line, "k", "A", LONG_MS, "RETRY") for _ in range(3)] == [1, 1, 1]
    assert [acquire(line, "k", "A", LONG_MS) for _ in range(2)] == [None, None]
    assert release(line, "k", "A", 1) == 1
    assert acquire(line, "k", "B", 1_000) == 2


def test_lost_reply_of_a_release(start):
    _, lines = start(("fence-clock", "no"))
    fence = acquire(lines.control, "k", "B", LONG_MS)
    lines.open().send("FENCELOCK.RELEASE", "k", "B", "FENCE", fence).close()
    eventually(lambda: inspect(lines), None)
    successor = acquire(lines.control, "k", "B", LONG_MS)
    assert release(lines.control, "k", "B", fence) == 0
    assert inspect(lines)["fence"] == successor


def test_lost_reply_of_a_grant_after_a_wait(start):
    """The grant of a client that is gone is undone; its repeated call waits or is granted like any other."""
    _, lines = start(("fence-clock", "no"))
    acquire(lines.control, "k", "A", LONG_MS)
    lost = lines.queue("k", "W", LONG_MS, LONG_MS)
    lost.close()
    eventually(lambda: lines.count("waiters"), 0)
    again = lines.queue("k", "W", LONG_MS, LONG_MS, "RETRY")
    release(lines.control, "k", "A", 1)
    assert again.only_reply() == 2
    assert lines.count("undone-grants") == 0


# --- stale queue entries

WAITERS_OF_ANOTHER_PROCESS = """
import socket, sys, time
port, count = int(sys.argv[1]), int(sys.argv[2])
sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
for number, one in enumerate(sockets):
    one.sendall(b"FENCELOCK.ACQUIRE k dead%d 30000 WAIT 60000\\r\\n" % number)
print("sent", flush=True)
time.sleep(600)
"""


def test_dead_waiters_at_the_head_of_the_queue(start):
    server, lines = start(("fence-clock", "no"))
    holder = lines.open()
    acquire(holder, "k", "A", LONG_MS)
    command = [sys.executable, "-c", WAITERS_OF_ANOTHER_PROCESS, str(server.port), "25"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"sent\n"
        eventually(lambda: lines.count("waiters"), 25)
        killed = [lines.queue("k", f"W{number}", 30_000, LONG_MS) for number in range(24)]
        last = lines.queue("k", "W50", 30_000, LONG_MS)
        process.kill()
    for waiter in killed:
        assert lines.control.call("CLIENT", "KILL", "ID", waiter.id) == 1
    assert release(holder, "k", "A", 1) == 1
    fence = last.only_reply()
    assert fence > 1
    assert inspect(lines)["owner"] == b"W50"
    eventually(lambda: (lines.blocked(), lines.count("waiters")), (0, 0))


# --- use after free on disconnect


@pytest.mark.parametrize("behind", [None, ("QUIT",), ("RESET",)], ids=["nothing behind", "QUIT behind", "RESET behind"])
def test_disconnect_while_waiting(start, behind):
    """Ten thousand clients in all connect, wait and are gone at once, while others take turns on the same lock."""
    rounds = 3_400
    server, lines = start()
    stop = threading.Event()
    failures, sent_by_others = [], []

    def take_turns(owner):
        with Line(server.port) as line:
            calls = ("FENCELOCK.ACQUIRE", "k", owner, 5, "WAIT", 10), ("FENCELOCK.RELEASE", "k", owner)
            while not stop.is_set():
                told = [line.call(*call) for call in calls]
                sent_by_others.append(sum(len(encoded(call)) for call in calls))
                if any(isinstance(reply, Refused) for reply in told):
                    failures.append(told)

    def come_and_go(first):
        words = lambda number: ("FENCELOCK.ACQUIRE", "k", f"W{number}", 20, "WAIT", 30)  # noqa: E731
        for number in range(first, rounds, 2):
            line = Line(server.port)
            line.send_all(words(number), *([behind] if behind else []))
            # A reset may overtake what was sent, so few of them.
            line.abort() if number % 10 == 0 else line.close()

    def settle():
        eventually(lambda: (lines.blocked(), lines.count("waiters"), lines.count("live-leases")), (0, 0, 0))
        eventually(lambda: lines.info("clients")["connected_clients"], 1)

    def storm(count):
        stop.clear()
        loops = [threading.Thread(target=take_turns, args=(f"L{number}",)) for number in range(4)]
        comers = [threading.Thread(target=come_and_go, args=(first,)) for first in range(count)]
        for thread in (*loops, *comers):
            thread.start()
        for thread in comers:
            thread.join()
        stop.set()
        for thread in loops:
            thread.join()
        settle()

    # Half of the rounds to let the server allocate what it keeps.
    storm(1)
    before = lines.memory()
    sent_by_others.clear()
    lines.control.call("CONFIG", "RESETSTAT")
    storm(2)
    assert failures == []
    # The server has read what the clients sent before they were gone.
    read = lines.info("stats")["total_net_input_bytes"] - sum(sent_by_others)
    assert read > 0.85 * rounds * len(encoded(("FENCELOCK.ACQUIRE", "k", "W999", 20, "WAIT", 30)))
    # The server keeps what it made for a blocked client, and gives 500 a second of them back.
    eventually(lambda: max(lines.memory() - before, 2**20), 2**20)
    assert acquire(lines.control, "k", "Z", 1_000, "WAIT", 500) > 0


# --- side effect after refusal


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("way", ["MULTI", "EVAL", "FCALL"])
def test_waiting_where_blocking_is_not_allowed_for_a_free_lock(start, way, protocol):
    _, lines = start(("fence-clock", "no"))
    line = lines.open(protocol=protocol)
    assert in_one_step(line, way, ("FENCELOCK.ACQUIRE", "k", "A", "60000", "WAIT", "500")) == [1]
    assert (inspect(lines)["owner"], inspect(lines)["fence"]) == (b"A", 1)


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("way", ["MULTI", "EVAL", "FCALL"])
def test_waiting_where_blocking_is_not_allowed_for_a_busy_lock(start, way, protocol):
    server, lines = start(("fence-clock", "no"))
    acquire(lines.control, "k", "B", LONG_MS)
    line = lines.open(protocol=protocol)
    told = in_one_step(
        line, way, ("SET", "x", "1"), ("FENCELOCK.ACQUIRE", "k", "A", "1000", "WAIT", "5000"), ("SET", "y", "1")
    )
    assert [told[0], told[2]] == ["OK", "OK"]
    assert told[1] is None
    assert lines.control.call("MGET", "x", "y") == [b"1", b"1"]
    assert (lines.count("waiters"), lines.blocked()) == (0, 0)
    assert release(lines.control, "k", "B", 1) == 1
    assert acquire(lines.open(), "k", "C", 1_000) == 2
    assert "ASSERT" not in server.log()


def in_one_step(line, way, *commands):
    """The replies of commands that run in a transaction, a script or a function."""
    if way == "MULTI":
        return line.call_all(("MULTI",), *commands, ("EXEC",))[-1]
    # A null would end a Lua table.
    run = "".join(
        "local reply = redis.call({}) told[#told + 1] = reply == false and 'null' or reply ".format(
            ", ".join(f"'{word}'" for word in command)
        )
        for command in commands
    )
    body = f"local told = {{}} {run} return told"
    if way == "EVAL":
        told = line.call("EVAL", body, 0)
    else:
        line.call("FUNCTION", "LOAD", f"#!lua name=lib\nredis.register_function('run', function() {body} end)")
        told = line.call("FCALL", "run", 0)
    return [None if reply == b"null" else reply for reply in told]


def test_waiting_in_a_script_on_a_replica_changes_nothing(start):
    _, lines = start()
    acquire(lines.control, "k", "A", LONG_MS)
    lines.control.call("REPLICAOF", "127.0.0.1", 1)
    told = lines.control.call("EVAL", "return redis.call('FENCELOCK.ACQUIRE', 'k', 'B', 1000, 'WAIT', 500)", 0)
    assert isinstance(told, Refused)
    assert (lines.count("waiters"), lines.blocked()) == (0, 0)
    assert inspect(lines)["owner"] == b"A"


# --- grant / time-out race


def test_time_out_meets_grant(start):
    """Five thousand waits end in the millisecond in which the lock is released or expires.

    Each gets one reply: a fence, and it is the holder; or null, and it is neither holder nor queued. No fence is
    used up without a grant.
    """
    server, lines = start(("fence-clock", "no"), {"maxclients": 2_000})
    ttl_ms, wave, waves = 100, 500, 10
    chance = random.Random(9)
    waiters = [lines.open() for _ in range(wave)]
    assert waiters[-1].id
    releaser = lines.open()
    outcomes = {"granted": 0, "timed out": 0}
    for number in range(waves):
        keys = [f"k{number}-{one}" for one in range(wave)]
        # One after the other, so that the ends are spread over some milliseconds too.
        for key, waiter in zip(keys, waiters, strict=True):
            began = time.monotonic()
            assert acquire(lines.control, key, "A", ttl_ms) > 0
            wait_ms = ttl_ms - round((time.monotonic() - began) * 1000) + chance.choice((-1, 0, 0, 0, 1))
            waiter.send_all(("FENCELOCK.ACQUIRE", key, "W", LONG_MS, "WAIT", max(wait_ms, 1)), ("ECHO", key))
            if chance.random() < 0.02:
                time.sleep(0.002)  # spreads the ends
        # Half of the locks are released at about the time when they expire.
        for key in chance.sample(keys, wave // 2):
            releaser.send("FENCELOCK.RELEASE", key, "A")
        told = {key: (waiter.reply(), waiter.reply()) for key, waiter in zip(keys, waiters, strict=True)}
        for _ in range(wave // 2):
            assert releaser.reply() in (0, 1)
        for key, (reply, mark) in told.items():
            assert mark == key.encode(), f"a second reply: {reply!r}, {mark!r}"
            holder = inspect(lines, key)
            if reply is None:
                outcomes["timed out"] += 1
                assert holder is None or holder["owner"] == b"A"
                assert holder is None or holder["waiters"] == 0
            else:
                outcomes["granted"] += 1
                assert (holder["owner"], holder["fence"]) == (b"W", reply)
        assert not any(waiter.has_reply() for waiter in waiters)
        lines.control.call("FLUSHALL")
    assert (lines.count("waiters"), lines.blocked()) == (0, 0)
    assert min(outcomes.values()) > waves * wave / 20, outcomes
    assert lines.count("last-fence") == lines.count("grants") == waves * wave + outcomes["granted"]
    assert lines.count("undone-grants") == 0
    assert lines.count("wait-timeouts") == outcomes["timed out"]
    assert server.pid


# --- cluster slots


def test_a_waiter_whose_slot_moves_away(start):
    """The node loses the slot of the lock: the waiter gets an error in about a second, and nobody gets the lock here."""
    # The port of the cluster's own talk is 10,000 higher than the server's, which may be none.
    _, lines = start(config={"cluster-enabled": "yes", "cluster-port": free_port()})
    lines.control.call("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
    eventually(lambda: b"cluster_state:ok" in lines.control.call("CLUSTER", "INFO"))
    fence = acquire(lines.control, "k", "A", LONG_MS)
    waiters = [lines.queue("k", f"W{number}", LONG_MS, LONG_MS) for number in range(2)]
    slot = lines.control.call("CLUSTER", "KEYSLOT", "k")
    # In one write, so that the lease ends when the slot is gone.
    assert lines.control.call_all(("FENCELOCK.EXTEND", "k", "A", 500), ("CLUSTER", "DELSLOTS", slot)) == [500, "OK"]
    for waiter in waiters:
        told = waiter.only_reply()
        assert told.code in ("TRYAGAIN", "MOVED", "CLUSTERDOWN"), told
    assert (lines.count("waiters"), lines.blocked()) == (0, 0)
    assert lines.count("last-fence") == fence
