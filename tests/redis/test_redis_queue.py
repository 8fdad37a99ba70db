"""ACQUIRE ... WAIT: who waits, in which order, and how a wait ends.

A wait ends in exactly one reply: a fence, null, or an error. Nobody overtakes. What the options add is in
test_redis_options, what the world does to a waiter in test_redis_world.
"""

import contextlib
import os
import resource
import select
import signal
import statistics
import threading
import time
from pathlib import Path

import pytest

from harness import RedisServer, eventually
from harness.redis_calls import Closed, Line, Lines, Refused
from harness.waiting import HANG_S

LONG_MS = 60_000
# A script that keeps the server busy for a while, some 150 ms, and then runs a command. It cannot read the clock:
# in a script the server's stands still.
BUSY_THEN = "for turn = 1, ARGV[1] do end return redis.call(unpack(ARGV, 2))"
TURNS = 30_000_000


def acquire(line, key, owner, ttl_ms, *options):
    return line.call("FENCELOCK.ACQUIRE", key, owner, ttl_ms, *options)


def release(line, key, owner):
    return line.call("FENCELOCK.RELEASE", key, owner)


def inspect(line, key):
    return as_dict(line.call("FENCELOCK.INSPECT", key))


def as_dict(told):
    return told and {name.decode(): value for name, value in zip(told[::2], told[1::2], strict=True)}


def hold(lines, key="k", owner="A", ttl_ms=LONG_MS):
    """A connection that holds the lock, and its fence."""
    line = lines.open()
    return line, acquire(line, key, owner, ttl_ms)


# --- order


def test_waiters_are_served_first_in_first_out(lines):
    holder, fence = hold(lines)
    waiters = [lines.queue("k", f"W{number}", LONG_MS, LONG_MS) for number in range(300)]
    assert inspect(lines.control, "k")["waiters"] == 300
    fences = [fence]
    assert release(holder, "k", "A") == 1
    for number, waiter in enumerate(waiters):
        fences.append(waiter.only_reply())
        assert not any(later.has_reply() for later in waiters[number + 1 :])
        assert inspect(lines.control, "k")["owner"] == f"W{number}".encode()
        assert release(waiter, "k", f"W{number}") == 1
    assert fences == sorted(set(fences))
    assert inspect(lines.control, "k") is None


def test_queues_of_other_names_and_databases_are_apart(lines):
    lines.control.call("SELECT", 1)
    hold(lines, "k")
    hold(lines, "k2")
    elsewhere = lines.open(db=1)
    acquire(elsewhere, "k", "A", LONG_MS)
    lines.control.call("SELECT", 0)
    first, other, third = (
        lines.queue("k", "W", LONG_MS, LONG_MS),
        lines.queue("k2", "W", LONG_MS, LONG_MS),
        lines.queue("k", "W", LONG_MS, LONG_MS, db=1),
    )
    assert release(elsewhere, "k", "A") == 1
    assert third.only_reply() > 0
    assert release(lines.control, "k2", "A") == 1
    assert other.only_reply() > 0
    assert not first.has_reply()
    assert release(lines.control, "k", "A") == 1
    assert first.only_reply() > 0


def test_a_lease_that_runs_out_is_handed_over_without_a_call(lines):
    """Three waiters whose leases all expire: each is served at the end of the one before, and not earlier."""
    holder, _ = hold(lines)
    waiters = [lines.queue("k", f"W{number}", 150, LONG_MS) for number in range(3)]
    asked = time.monotonic()
    assert holder.call("FENCELOCK.EXTEND", "k", "A", 200) > 0
    for number, waiter in enumerate(waiters):
        waiter.only_reply()
        came = time.monotonic() - asked
        due = 0.2 + 0.15 * number
        assert came >= due, f"waiter {number} was served after {came:.3f} s"


@pytest.mark.timing
def test_a_hand_over_after_a_lease_ran_out_comes_within_milliseconds(start):
    """The best of a few tries: what the machine adds is not the server's."""
    lines = start()
    late = []
    while len(late) < 5 and min(late, default=1) > 0.005:
        holder, waiter = lines.open(), None
        acquire(holder, "k", "A", LONG_MS)
        waiter = lines.queue("k", "W", LONG_MS, LONG_MS)
        asked = time.monotonic()
        holder.call("FENCELOCK.EXTEND", "k", "A", 50)
        waiter.reply()
        late.append(time.monotonic() - asked - 0.05)
        release(waiter, "k", "W")
    assert min(late) <= 0.005, late


def test_lease_and_fence_start_at_the_grant_with_the_whole_ttl(lines):
    holder, _ = hold(lines)
    waiter = lines.queue("k", "W", 1_000, LONG_MS)
    eventually(lambda: inspect(lines.control, "k")["held-ms"] >= 300)
    before_us = time.time_ns() // 1_000
    # In one step, so that no time passes after the grant.
    released, told = holder.call_all(("MULTI",), ("FENCELOCK.RELEASE", "k", "A"), ("FENCELOCK.INSPECT", "k"), ("EXEC",))[-1]
    assert released == 1
    lock = as_dict(told)
    fence = waiter.only_reply()
    assert before_us <= fence <= time.time_ns() // 1_000
    assert (lock["owner"], lock["fence"]) == (b"W", fence)
    assert 700 < lock["ttl-ms"] <= 1_000
    assert lock["held-ms"] < 300


@pytest.mark.parametrize("extended_ms", [150, 800])
def test_a_waiter_follows_the_deadline_when_the_holder_extends(lines, extended_ms):
    holder, _ = hold(lines)
    waiter = lines.queue("k", "W", LONG_MS, LONG_MS)
    asked = time.monotonic()
    assert min(holder.call_all(*(("FENCELOCK.EXTEND", "k", "A", ttl_ms) for ttl_ms in (500, extended_ms)))) > 0
    assert waiter.only_reply() > 0
    assert time.monotonic() - asked >= extended_ms / 1000


# --- no barging


def test_a_newcomer_does_not_overtake_a_release(lines):
    holder, _ = hold(lines)
    waiter = lines.queue("k", "W", LONG_MS, LONG_MS)
    assert holder.call_all(
        ("FENCELOCK.RELEASE", "k", "A"), ("FENCELOCK.ACQUIRE", "k", "N", LONG_MS), ("FENCELOCK.RELEASE", "k", "N")
    ) == [1, None, 0]
    assert inspect(lines.control, "k")["owner"] == b"W"
    assert waiter.only_reply() == inspect(lines.control, "k")["fence"]


@pytest.mark.parametrize("options", [(), ("RETRY",)], ids=["plain", "RETRY"])
def test_nobody_overtakes_between_the_end_of_a_lease_and_its_hand_over(lines, options):
    """The server is busy when the lease ends, and a newcomer's call is the very next thing that it does."""
    holder, _ = hold(lines)
    waiter = lines.queue("k", "W", LONG_MS, LONG_MS)
    newcomer = lines.open()
    began = time.monotonic()
    told = newcomer.call_all(
        ("FENCELOCK.EXTEND", "k", "A", 30),
        ("EVAL", BUSY_THEN, 0, TURNS, "FENCELOCK.ACQUIRE", "k", "N", LONG_MS, *options),
        ("FENCELOCK.ACQUIRE", "k", "N", LONG_MS, *options),
    )
    assert time.monotonic() - began > 0.05
    assert told[0] > 0
    assert told[1:] == [None, None]
    assert inspect(lines.control, "k")["owner"] == b"W"
    assert waiter.only_reply() == inspect(lines.control, "k")["fence"]


def test_after_a_freeze_the_waiters_come_before_those_who_knocked_during_it(start, make_redis):
    """The process is stopped past the end of the lease; newcomers' calls lie ready when it goes on."""
    server = make_redis()
    with Lines(server.port) as lines:
        holder, fence = hold(lines)
        waiters = [lines.queue("k", f"W{number}", LONG_MS, LONG_MS) for number in range(2)]
        newcomers = [lines.open() for _ in range(20)]
        holder.call("FENCELOCK.EXTEND", "k", "A", 60)
        with frozen(server.pid):
            for number, newcomer in enumerate(newcomers):
                newcomer.send("FENCELOCK.ACQUIRE", "k", f"N{number}", 100, *(("WAIT", LONG_MS) if number % 2 else ()))
            time.sleep(0.15)  # past the end of the lease
        replies = [newcomer.only_reply() for newcomer in newcomers[::2]]
        assert replies == [None] * 10
        first = waiters[0].only_reply()
        release(waiters[0], "k", "W0")
        second = waiters[1].only_reply()
        release(waiters[1], "k", "W1")
        queued = [newcomer.only_reply() for newcomer in newcomers[1::2]]
        assert fence < first < second < min(queued)


@contextlib.contextmanager
def frozen(pid):
    """The process does nothing inside the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        eventually(lambda: Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0], "T")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


# --- ways out of the queue


def test_a_wait_that_runs_out_is_null_and_leaves_the_queue(lines):
    hold(lines)
    before = lines.count("wait-timeouts")
    waiter = lines.open()
    asked = time.monotonic()
    assert acquire(waiter, "k", "W", LONG_MS, "WAIT", 100) is None
    assert time.monotonic() - asked >= 0.1
    assert lines.count("waiters") == 0
    assert lines.count("wait-timeouts") == before + 1
    assert inspect(lines.control, "k")["owner"] == b"A"


def test_the_head_of_the_queue_may_give_up_and_the_next_is_served(lines):
    holder, _ = hold(lines)
    first = lines.queue("k", "W1", LONG_MS, 100)
    second = lines.queue("k", "W2", LONG_MS, LONG_MS)
    assert first.only_reply() is None
    assert release(holder, "k", "A") == 1
    assert second.only_reply() > 0


WAYS_OUT = {
    "close": lambda lines, waiter: waiter.close(),
    "reset of the connection": lambda lines, waiter: waiter.abort(),
    "CLIENT KILL": lambda lines, waiter: lines.control.call("CLIENT", "KILL", "ID", waiter.id),
    "CLIENT UNBLOCK": lambda lines, waiter: lines.control.call("CLIENT", "UNBLOCK", waiter.id),
    "CLIENT UNBLOCK TIMEOUT": lambda lines, waiter: lines.control.call("CLIENT", "UNBLOCK", waiter.id, "TIMEOUT"),
    "CLIENT UNBLOCK ERROR": lambda lines, waiter: lines.control.call("CLIENT", "UNBLOCK", waiter.id, "ERROR"),
}
TOLD = {"CLIENT UNBLOCK": None, "CLIENT UNBLOCK TIMEOUT": None, "CLIENT UNBLOCK ERROR": "UNBLOCKED"}


@pytest.mark.parametrize("way", WAYS_OUT)
@pytest.mark.parametrize("place", [0, 1, 2], ids=["head", "middle", "tail"])
def test_a_waiter_that_is_taken_out_gets_one_reply_and_holds_nobody_up(lines, way, place):
    holder, fence = hold(lines)
    waiters = [lines.queue("k", f"W{number}", LONG_MS, LONG_MS) for number in range(3)]
    leaving = waiters.pop(place)
    WAYS_OUT[way](lines, leaving)
    eventually(lambda: (lines.count("waiters"), lines.blocked()), (2, 2))
    if way in TOLD:
        told = leaving.only_reply()
        assert (told.code if isinstance(told, Refused) else told) == TOLD[way]
    assert release(holder, "k", "A") == 1
    for waiter in waiters:
        later = waiter.only_reply()
        assert later > fence
        fence = later
        lines.control.call("FENCELOCK.RELEASE", "k", inspect(lines.control, "k")["owner"])
    assert inspect(lines.control, "k") is None


@pytest.mark.parametrize("together", ["MULTI", "pipeline", "script"])
def test_a_grant_to_a_client_that_is_killed_in_the_same_turn_is_passed_on(lines, together):
    hold(lines)
    gone = lines.queue("k", "W1", LONG_MS, LONG_MS)
    stays = lines.queue("k", "W2", LONG_MS, LONG_MS)
    undone = lines.count("undone-grants")
    calls = [("FENCELOCK.RELEASE", "k", "A"), ("CLIENT", "KILL", "ID", gone.id)]
    caller = lines.open()
    match together:
        case "MULTI":
            told = caller.call_all(("MULTI",), *calls, ("EXEC",))[-1]
        case "pipeline":
            told = caller.call_all(*calls)
        case "script":
            run = "return redis.call('FENCELOCK.RELEASE', 'k', 'A')"
            told = caller.call_all(("EVAL", run, 0), calls[1])
    assert told == [1, 1]
    fence = stays.only_reply()
    assert (inspect(lines.control, "k")["owner"], inspect(lines.control, "k")["fence"]) == (b"W2", fence)
    assert lines.count("undone-grants") == undone + 1
    with pytest.raises(Closed):
        gone.reply()


def test_a_grant_to_the_last_waiter_that_is_gone_leaves_the_lock_free(lines):
    hold(lines)
    gone = lines.queue("k", "W1", LONG_MS, LONG_MS)
    lines.open().call_all(("FENCELOCK.RELEASE", "k", "A"), ("CLIENT", "KILL", "ID", gone.id))
    eventually(lambda: inspect(lines.control, "k"), None)
    assert lines.count("live-leases") == 0


def test_a_grant_whose_client_was_gone_and_whose_delay_was_asked_for_is_passed_on_at_once(lines):
    """No client ever got it, so it did not expire: no delay."""
    hold(lines)
    gone = lines.queue("k", "W1", LONG_MS, LONG_MS, "DELAY", LONG_MS, "EPHEMERAL")
    stays = lines.queue("k", "W2", LONG_MS, LONG_MS)
    lines.open().call_all(("FENCELOCK.RELEASE", "k", "A"), ("CLIENT", "KILL", "ID", gone.id))
    assert stays.only_reply() > 0


def test_waiters_that_vanish_while_the_server_is_frozen_hold_nobody_up(make_redis):
    """Whichever the server sees first, the release or the closed connection, the living waiter gets the lock."""
    server = make_redis()
    with Lines(server.port) as lines:
        for number in range(40):
            key = f"k{number}"
            holder, _ = hold(lines, key)
            gone = [lines.queue(key, f"gone{one}", LONG_MS, LONG_MS) for one in range(3)]
            stays = lines.queue(key, "stays", LONG_MS, LONG_MS)
            with frozen(server.pid):
                for one, line in enumerate(gone):
                    if one == number % 3:
                        holder.send("FENCELOCK.RELEASE", key, "A")
                    line.abort() if number % 2 else line.close()
            assert stays.only_reply() > 0
            assert inspect(lines.control, key)["owner"] == b"stays"
        eventually(lambda: (lines.count("waiters"), lines.blocked()), (0, 0))


@pytest.mark.parametrize("form", ["TIMEOUT", "ERROR"])
def test_a_waiter_that_is_unblocked_in_the_turn_of_its_grant_is_told_or_does_not_keep_the_lock(lines, form):
    """Some servers leave it blocked until it gets a reply, others without any reply: then its connection is closed."""
    hold(lines)
    unblocked = lines.queue("k", "W1", LONG_MS, LONG_MS)
    stays = lines.queue("k", "W2", LONG_MS, LONG_MS)
    calls = (("FENCELOCK.RELEASE", "k", "A"), ("CLIENT", "UNBLOCK", unblocked.id, form))
    assert lines.open().call_all(("MULTI",), *calls, ("EXEC",))[-1] == [1, 1]
    told = []
    with contextlib.suppress(Closed):
        told.append(unblocked.reply())
        if isinstance(told[0], int):
            assert inspect(lines.control, "k")["fence"] == told[0]
            release(unblocked, "k", "W1")
        else:
            assert told[0].code == "UNBLOCKED"
            told.append(unblocked.reply())
    assert len(told) <= 1, told
    assert stays.only_reply() > 0


@pytest.mark.parametrize("form", ["TIMEOUT", "ERROR"])
def test_a_waiter_that_is_unblocked_in_the_turn_of_its_replacement_is_not_left_without_a_reply(lines, form):
    hold(lines)
    older = lines.queue("k", "W", LONG_MS, LONG_MS)
    calls = (("FENCELOCK.ACQUIRE", "k", "W", LONG_MS, "RETRY"), ("CLIENT", "UNBLOCK", older.id, form))
    assert lines.open().call_all(("MULTI",), *calls, ("EXEC",))[-1][0] is None
    try:
        told = older.reply()
    except Closed:
        return
    assert told is None or told.code == "UNBLOCKED"


@pytest.mark.parametrize("order", ["killed, then repeated", "repeated, then killed"])
def test_a_grant_that_was_confirmed_to_a_repeated_call_is_not_undone(lines, order):
    """W's first connection dies in the turn of its grant, and W's second call learns the fence in the same turn."""
    hold(lines)
    dying = lines.queue("k", "W", LONG_MS, LONG_MS)
    other = lines.queue("k", "W2", LONG_MS, LONG_MS)
    kill = ("CLIENT", "KILL", "ID", dying.id)
    repeat = ("FENCELOCK.ACQUIRE", "k", "W", LONG_MS, "RETRY")
    calls = [kill, repeat] if order.startswith("killed") else [repeat, kill]
    told = lines.open().call_all(("MULTI",), ("FENCELOCK.RELEASE", "k", "A"), *calls, ("EXEC",))[-1]
    fence = told[1 + calls.index(repeat)]
    assert fence > 0
    # Two turns of the server later everything that it had to do is done.
    lines.control.call("PING")
    lines.open().call("PING")
    assert (inspect(lines.control, "k")["owner"], inspect(lines.control, "k")["fence"]) == (b"W", fence)
    assert not other.has_reply()


def test_commands_behind_a_waiting_call_are_answered_after_it(lines):
    holder, _ = hold(lines)
    waiter = lines.queue("k", "W", LONG_MS, LONG_MS)
    waiter.send_all(("ECHO", "one"), ("FENCELOCK.RELEASE", "k", "W"), ("FENCELOCK.ACQUIRE", "k", "W", LONG_MS))
    assert not waiter.has_reply()
    release(holder, "k", "A")
    first = waiter.reply()
    assert [waiter.reply() for _ in range(2)] == [b"one", 1]
    assert waiter.only_reply() > first


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_waiter_is_answered_in_its_own_protocol(lines, protocol):
    holder, fence = hold(lines)
    gets = lines.queue("k", "W1", LONG_MS, LONG_MS, protocol=protocol)
    gets_nothing = lines.queue("k", "W2", LONG_MS, 50, protocol=protocol)
    assert gets_nothing.only_reply() is None
    release(holder, "k", "A")
    assert gets.only_reply() > fence


def test_waiting_for_a_free_lock_is_a_grant_at_once(lines):
    assert acquire(lines.open(), "k", "A", LONG_MS, "WAIT", LONG_MS) > 0
    assert lines.count("waiters") == 0


def test_an_owner_may_wait_for_its_own_lock_and_in_several_places(lines):
    """Two threads that share an owner must not both enter: without RETRY they are like anyone else."""
    holder, fence = hold(lines, owner="W")
    waiters = [lines.queue("k", "W", LONG_MS, LONG_MS) for _ in range(3)]
    for waiter in waiters:
        assert release(holder, "k", "W") == 1
        later = waiter.only_reply()
        assert later > fence
        fence = later


# --- callers that gave up


def test_a_caller_that_gave_up_stays_in_the_queue_until_it_leaves(lines):
    """What a client-side time-out makes of a WAIT: the connection lives, and nobody reads from it."""
    holder, _ = hold(lines)
    given_up = lines.queue("k", "W", LONG_MS, LONG_MS)
    behind = lines.queue("k", "N", LONG_MS, LONG_MS)
    assert release(lines.control, "k", "W") == 0
    assert inspect(lines.control, "k")["waiters"] == 2
    assert lines.control.call("FENCELOCK.RELEASE", "k", "W", "QUEUED") == 1
    assert given_up.only_reply() is None
    assert inspect(lines.control, "k")["waiters"] == 1
    assert inspect(lines.control, "k")["owner"] == b"A"
    assert release(holder, "k", "A") == 1
    assert behind.only_reply() > 0


def test_a_caller_that_gave_up_may_leave_in_two_calls(lines):
    hold(lines)
    given_up = lines.queue("k", "W", LONG_MS, LONG_MS)
    assert acquire(lines.control, "k", "W", LONG_MS, "RETRY") is None
    assert given_up.only_reply() is None
    assert lines.count("waiters") == 0
    given_up = lines.queue("k", "W", LONG_MS, LONG_MS)
    fence = lines.control.call_all(("FENCELOCK.RELEASE", "k", "A"), ("FENCELOCK.ACQUIRE", "k", "W", LONG_MS, "RETRY"))[1]
    assert fence == given_up.only_reply()
    assert release(lines.control, "k", "W") == 1
    assert inspect(lines.control, "k") is None


def test_an_owner_leaves_the_queue_with_all_its_places_and_takes_nobody_with_it(lines):
    _, fence = hold(lines)
    owners = ["W", "N", "W", "W", "N"]
    waiters = [lines.queue("k", owner, LONG_MS, LONG_MS) for owner in owners]
    other = lines.open(db=1)
    acquire(other, "k", "A", LONG_MS)
    elsewhere = lines.queue("k", "W", LONG_MS, LONG_MS, db=1)
    assert lines.control.call("FENCELOCK.RELEASE", "k", "W", "queued") == 1
    assert [waiter.only_reply() for waiter, owner in zip(waiters, owners, strict=True) if owner == "W"] == [None] * 3
    assert not any(line.has_reply() for line in (waiters[1], waiters[4], elsewhere))
    assert inspect(lines.control, "k")["waiters"] == 2
    assert lines.control.call("FENCELOCK.CHECK", "k", fence) == 1
    assert lines.control.call("FENCELOCK.RELEASE", "k", "W", "QUEUED") == 0
    assert lines.control.call("FENCELOCK.RELEASE", "nothing", "W", "QUEUED") == 0


def test_an_owner_that_holds_and_waits_does_neither_afterwards(lines):
    hold(lines, owner="W")
    waits, next_in_line = lines.queue("k", "W", LONG_MS, LONG_MS), lines.queue("k", "N", LONG_MS, LONG_MS)
    assert lines.control.call("FENCELOCK.RELEASE", "k", "W", "QUEUED") == 1
    assert waits.only_reply() is None
    assert inspect(lines.control, "k")["owner"] == b"N"
    assert next_in_line.only_reply() > 0


def test_giving_up_in_the_turn_of_the_grant_ends_the_hold(lines):
    hold(lines)
    given_up, behind = lines.queue("k", "W", LONG_MS, LONG_MS), lines.queue("k", "N", LONG_MS, LONG_MS)
    told = lines.open().call_all(("FENCELOCK.RELEASE", "k", "A"), ("FENCELOCK.RELEASE", "k", "W", "QUEUED"))
    assert told == [1, 1]
    assert given_up.only_reply() < behind.only_reply()
    assert inspect(lines.control, "k")["owner"] == b"N"


@pytest.mark.parametrize("form", ["MULTI", "script"])
def test_the_queue_can_be_left_in_a_transaction_and_a_script(lines, form):
    hold(lines)
    given_up = lines.queue("k", "W", LONG_MS, LONG_MS)
    words = ("FENCELOCK.RELEASE", "k", "W", "QUEUED")
    if form == "MULTI":
        assert lines.control.call_all(("MULTI",), words, ("EXEC",))[-1] == [1]
    else:
        assert lines.control.call("EVAL", "return redis.call(unpack(ARGV))", 0, *words) == 1
    assert given_up.only_reply() is None
    assert lines.count("waiters") == 0


# --- how many may wait


def test_more_waiters_than_the_setting_allows_are_refused_with_a_clear_error(start):
    lines = start(("max-waiters-per-lock", 2))
    holder, _ = hold(lines)
    waiters = [lines.queue("k", f"W{number}", LONG_MS, LONG_MS) for number in range(2)]
    told = acquire(lines.open(), "k", "W9", LONG_MS, "WAIT", LONG_MS)
    assert told == "ERR too many waiters for this lock (fencelock.max-waiters-per-lock is 2)"
    # Busy stays busy for those who do not wait, another lock has its own queue, and a repeated call takes no place.
    assert acquire(lines.open(), "k", "N", LONG_MS) is None
    hold(lines, "k2")
    lines.queue("k2", "W", LONG_MS, LONG_MS)
    again = lines.open().send("FENCELOCK.ACQUIRE", "k", "W0", LONG_MS, "WAIT", LONG_MS, "RETRY")
    assert waiters[0].only_reply() is None
    assert lines.count("waiters") == 3
    waiters[1].close()
    eventually(lambda: lines.count("waiters"), 2)
    lines.queue("k", "W2", LONG_MS, LONG_MS)
    release(holder, "k", "A")
    assert again.only_reply() > 0


def test_a_limit_of_no_waiters_turns_waiting_off_and_nothing_else(start):
    lines = start(("max-waiters-per-lock", 0))
    line = lines.open()
    assert acquire(line, "k", "A", LONG_MS, "WAIT", LONG_MS) > 0
    told = acquire(line, "k", "B", LONG_MS, "WAIT", LONG_MS)
    assert told == "ERR too many waiters for this lock (fencelock.max-waiters-per-lock is 0)"
    assert acquire(line, "k", "A", LONG_MS, "WAIT", LONG_MS, "RETRY") > 0


def test_a_lower_limit_removes_nobody(start):
    lines = start()
    holder, _ = hold(lines)
    waiters = [lines.queue("k", f"W{number}", LONG_MS, LONG_MS) for number in range(3)]
    lines.control.call("CONFIG", "SET", "fencelock.max-waiters-per-lock", 1)
    assert lines.count("waiters") == 3
    for number, waiter in enumerate(waiters):
        release(holder, "k", "A" if number == 0 else f"W{number - 1}")
        assert waiter.only_reply() > 0


# --- on time


@pytest.mark.timing
def test_time_outs_come_within_five_milliseconds(start):
    """The 99th of 100 waits that end one by one on an idle server, beyond what the machine adds to any sleep."""
    lines = start()
    hold(lines)
    rounds = []
    while len(rounds) < 5 and min(rounds, default=1) > 0.005:
        with Sleeper() as sleeper:
            late = lateness_of_time_outs(lines, 500)
        rounds.append(percentile(late, 99) - percentile(sleeper.late, 99))
    assert min(rounds) <= 0.005, rounds


def percentile(values, percent):
    return statistics.quantiles(values, n=100)[percent - 1]


class Sleeper:
    """Sleeps 2 ms over and over inside the block and notes how late it wakes: the noise of the machine."""

    def __init__(self):
        self.late = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _run(self):
        while not self._stop.is_set():
            asleep = time.monotonic()
            time.sleep(0.002)  # the measurement itself
            self.late.append(time.monotonic() - asleep - 0.002)


def lateness_of_time_outs(lines, count):
    """How late `count` waits end, of which each ends 2 ms after the one before."""
    waiters = [lines.open() for _ in range(count)]
    # The server has accepted them all, so none of this is counted as lateness.
    assert len({waiter.id for waiter in waiters}) == count
    due, late = {}, []
    for number, waiter in enumerate(waiters):
        wait_ms = 300 + 2 * number
        due[waiter.fileno()] = time.monotonic() + wait_ms / 1000
        waiter.send("FENCELOCK.ACQUIRE", "k", f"W{number}", LONG_MS, "WAIT", wait_ms)
    with select.epoll() as poll:
        for number in due:
            poll.register(number, select.EPOLLIN)
        while due:
            ready = poll.poll(5)
            now = time.monotonic()
            assert ready, "a wait did not end"
            for number, _ in ready:
                poll.unregister(number)
                late.append(now - due.pop(number))
    assert [waiter.only_reply() for waiter in waiters] == [None] * count
    assert min(late) > -0.001
    for waiter in waiters:
        waiter.abort()
    return late


@pytest.mark.timing
def test_thousands_of_waits_that_end_together_delay_nobody(start):
    """They go in slices, between which others are served: all at once would take longer than this. Once more when the
    first round is slow, as what else the machine does comes on top."""
    allow_files(5_000)
    lines = start(config={"maxclients": 5_100})
    hold(lines)
    rounds = []
    while len(rounds) < 2 and min(rounds, default=1) >= 0.1:
        rounds.append(longest_ping_while_waits_end(lines, 5_000))
    assert min(rounds) < 0.1, rounds


def longest_ping_while_waits_end(lines, count):
    waiters = [lines.open() for _ in range(count)]
    assert waiters[-1].id
    end = time.monotonic() + 1.5
    for number, waiter in enumerate(waiters):
        # All waits end in one moment, however long it takes to send them.
        waiter.send("FENCELOCK.ACQUIRE", "k", f"W{number}", LONG_MS, "WAIT", round((end - time.monotonic()) * 1000))
    pings = []
    while lines.count("waiters"):
        began = time.monotonic()
        lines.control.call("PING")
        pings.append(time.monotonic() - began)
        assert began < end + HANG_S
    assert time.monotonic() >= end - 0.05
    assert [waiter.only_reply() for waiter in waiters] == [None] * count
    for waiter in waiters:
        waiter.abort()
    return max(pings)


def allow_files(count):
    """Let this process and the servers that it starts have that many files open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard == resource.RLIM_INFINITY or hard >= count + 1_000, f"only {hard} files may be open"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 1_000), hard))


# --- bounds

FEW, MANY, MEASURED, BATCHES = 100, 10_000, 250, 3


@pytest.fixture(scope="module")
def costs():
    """CPU time per operation on a server with FEW and with MANY waiters, of each kind of queue; measured once."""
    allow_files(MANY + MEASURED)
    measured = {}
    for kind in ("one lock", "a lock each"):
        server = RedisServer(config={"maxclients": MANY + MEASURED + 100}).start()
        try:
            with Lines(server.port) as lines, contextlib.ExitStack() as closing:
                for count in (FEW, MANY):
                    measured[kind, count] = cost_of_waiters(server, lines, closing, kind, count)
        finally:
            server.close()
    return measured


@pytest.mark.timing
@pytest.mark.parametrize("kind", ["one lock", "a lock each"])
@pytest.mark.parametrize("what", ["enqueue", "hand-over", "time-out", "disconnect"])
def test_the_cost_of_a_waiter_does_not_grow_with_the_number_waiting(costs, kind, what):
    few, many = costs[kind, FEW][what], costs[kind, MANY][what]
    assert many <= 3 * few, f"{many / 1000:.1f} us with {MANY} waiters, {few / 1000:.1f} us with {FEW}"


def cost_of_waiters(server, lines, closing, kind, count):
    """Nanoseconds of the server's CPU for each operation, with `count` clients waiting; the best of some batches."""
    one_lock = kind == "one lock"
    key = (lambda _number: "k") if one_lock else (lambda number: f"k{number}")
    # A waiter of the crowd has the lock to itself or comes first in its queue; the measured ones come last.
    measured_key = (lambda _number: "k") if one_lock else (lambda number: f"m{number}")
    lines.control.call("FLUSHALL")
    hold_all(lines, {key(number) for number in range(count)} | {measured_key(number) for number in range(MEASURED)})
    # Connections of the crowd that do not wait are there all the same: they have costs of their own.
    crowd = [closing.enter_context(Line(server.port)) for _ in range(MANY)]
    wait(lines, [(crowd[number], key(number), f"W{number}", 600_000) for number in range(count)])
    costs = {"enqueue": [], "disconnect": [], "time-out": [], "hand-over": []}

    def measure(what, operations, act):
        with CpuOf(server) as cpu:
            act()
        costs[what].append(cpu.ns / operations)

    def disconnect(gone):
        for line in gone:
            line.abort()
        eventually(lambda: lines.count("waiters"), count)

    for _ in range(BATCHES):
        measured = [closing.enter_context(Line(server.port)) for _ in range(MEASURED)]
        assert measured[-1].id
        calls = [(line, measured_key(number), f"M{number}", 600_000) for number, line in enumerate(measured)]
        measure("enqueue", MEASURED, lambda calls=calls: wait(lines, calls))
        measure("disconnect", MEASURED, lambda measured=measured: disconnect(measured))
        measured = [closing.enter_context(Line(server.port)) for _ in range(MEASURED)]
        assert measured[-1].id
        wait(lines, [(line, measured_key(number), f"M{number}", 150) for number, line in enumerate(measured)])
        measure("time-out", MEASURED, lambda measured=measured: [line.reply() for line in measured])
        disconnect(measured)
    for first in range(0, FEW, FEW // BATCHES):
        numbers = range(first, min(first + FEW // BATCHES, FEW))
        owners = {number: f"W{number - 1}" if one_lock and number else "A" for number in numbers}
        calls = [("FENCELOCK.RELEASE", key(number), owner) for number, owner in owners.items()]
        granted = []

        def hand_over(calls=calls, numbers=numbers, granted=granted):
            lines.control.call_all(*calls)
            granted.extend(crowd[number].reply() for number in numbers)

        measure("hand-over", len(calls), hand_over)
        assert min(granted) > 0
    for line in crowd:
        line.abort()
    eventually(lambda: (lines.count("waiters"), lines.blocked()), (0, 0))
    return {what: min(batches) for what, batches in costs.items()}


def test_the_memory_of_waiters_comes_back(start):
    """The first round leaves what is kept for the next waiters; the second leaves nothing."""
    lines = start()
    memory_kept_of_waiters(lines, 300)
    assert memory_kept_of_waiters(lines, 300) < 30_000


@pytest.mark.long
def test_the_memory_of_ten_thousand_waiters_comes_back(start):
    allow_files(MANY)
    lines = start(config={"maxclients": MANY + 100})
    assert memory_kept_of_waiters(lines, MANY) < 2**20


def memory_kept_of_waiters(lines, count):
    """What is left of the memory of waiters that are gone, in bytes, once the server has freed its own part.

    It keeps two helpers of 17 kB for each blocked client and frees 500 of them in a second.
    """
    before = lines.memory()
    hold_all(lines, {"k"})
    crowd = [lines.open() for _ in range(count)]
    wait(lines, [(line, "k", f"W{number}", 600_000) for number, line in enumerate(crowd)])
    assert lines.memory() - before > count * 1_000
    for line in crowd:
        line.abort()
    release(lines.control, "k", "A")
    memory = []
    while len(memory) < 2 or memory[-1] < memory[-2]:
        memory.append(lines.memory())
        time.sleep(0.3)  # the server's own pace
    return memory[-1] - before


def hold_all(lines, keys):
    calls = [("FENCELOCK.ACQUIRE", key, "A", 600_000) for key in keys]
    assert all(fence > 0 for fence in lines.control.call_all(*calls))


def wait(lines, calls):
    """Send all calls, and return when the server counts all of them among its waiters."""
    before = lines.count("waiters")
    for line, key, owner, wait_ms in calls:
        line.send("FENCELOCK.ACQUIRE", key, owner, 600_000, "WAIT", wait_ms)
    eventually(lambda: lines.count("waiters"), before + len(calls))


class CpuOf:
    """The CPU time that the main thread of a server uses inside the block and for what is left of it, in nanoseconds.

    The kernel accounts for a thread when it goes to sleep: what a running one has used since it woke is missing.
    """

    def __init__(self, server):
        self._thread = Path(f"/proc/{server.pid}/task/{server.pid}")
        self.ns = 0

    def __enter__(self):
        self.ns = -self._read()
        return self

    def __exit__(self, *_):
        self.ns += self._read()

    def _read(self):
        eventually(lambda: (self._thread / "stat").read_text().rpartition(") ")[2][0], "S")
        return int((self._thread / "schedstat").read_text().split()[0])


# --- what the server does not allow, and a timer that comes late


def test_a_subscriber_that_asks_to_wait_gets_null_in_time_and_harms_nobody(lines):
    """Valkey does not let it block: then it is answered at once, as in a transaction."""
    hold(lines)
    subscriber = lines.open(protocol=3)
    subscriber.call("SUBSCRIBE", "channel")
    assert acquire(subscriber, "k", "B", LONG_MS, "WAIT", 30) is None
    assert (lines.count("waiters"), lines.control.call("PING")) == (0, "PONG")


def test_a_waiter_is_not_granted_after_its_time_however_late_the_server_is(lines):
    """The server is busy past the end of the wait, and releases the lock before it has checked the time."""
    holder, fence = hold(lines)
    ended = lines.count("wait-timeouts")
    late = [lines.queue("k", f"late{number}", LONG_MS, 40) for number in range(3)]
    stays = lines.queue("k", "stays", LONG_MS, LONG_MS)
    holder.call("EVAL", BUSY_THEN, 0, TURNS, "FENCELOCK.RELEASE", "k", "A")
    assert [line.only_reply() for line in late] == [None] * 3
    assert stays.only_reply() > fence
    assert lines.count("wait-timeouts") == ended + 3


def test_a_lock_whose_waiters_are_all_too_late_is_free(lines):
    holder, fence = hold(lines)
    late = lines.queue("k", "late", LONG_MS, 40)
    script = (
        "for turn = 1, ARGV[1] do end redis.call('FENCELOCK.RELEASE', 'k', 'A') "
        "return redis.call('FENCELOCK.ACQUIRE', 'k', 'new', 60000)"
    )
    assert holder.call("EVAL", script, 0, TURNS) > fence
    assert late.only_reply() is None


def test_many_whose_wait_ends_in_one_call_get_one_reply_each(lines):
    """More than are unblocked in one go. Some are unblocked or killed by others before their turn comes."""
    holder, _ = hold(lines)
    ended, count = lines.count("wait-timeouts"), 700
    waiting = [lines.open() for _ in range(count)]
    ids = [line.id for line in waiting[-3:]]
    for line in waiting:
        line.send("FENCELOCK.ACQUIRE", "k", "W", LONG_MS, "WAIT", 200)
    eventually(lambda: (told := lines.stats())["waiters"] + told["wait-timeouts"] - ended, count)
    holder.send_all(
        ("MULTI",),
        ("EVAL", BUSY_THEN, 0, 4 * TURNS, "FENCELOCK.RELEASE", "k", "A"),
        ("CLIENT", "UNBLOCK", ids[0], "TIMEOUT"),
        ("CLIENT", "UNBLOCK", ids[1], "ERROR"),
        ("CLIENT", "KILL", "ID", ids[2]),
        ("EXEC",),
    )
    assert [line.only_reply() for line in waiting[:-2]] == [None] * (count - 2)
    told = waiting[-2].only_reply()
    assert told is None or told.code == "UNBLOCKED"
    with pytest.raises(Closed):
        # Null comes first where its wait had ended before it was killed.
        assert waiting[-1].reply() is None
        waiting[-1].reply()
    eventually(lambda: (lines.count("waiters"), lines.blocked()), (0, 0))
    assert (inspect(lines.control, "k"), lines.count("wait-timeouts")) == (None, ended + count)
