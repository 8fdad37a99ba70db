"""RETRY, MAXHOLD, DELAY and EPHEMERAL, alone and combined, and what is left of each after a restart and a promotion."""

import contextlib
import itertools
import time

import pytest

from harness import eventually
from harness.redis_calls import Closed, Lines

LONG_MS = 60_000
HELD = b"held"
DELAY = b"delay"


@pytest.fixture
def own_lines(closing):
    """Raw connections to servers of the test's own."""
    return lambda server: closing(Lines(server.port))


def acquire(line, owner, ttl_ms, *options, key="k"):
    return line.call("FENCELOCK.ACQUIRE", key, owner, ttl_ms, *options)


def extend(line, owner, ttl_ms, key="k"):
    return line.call("FENCELOCK.EXTEND", key, owner, ttl_ms)


def release(line, owner, key="k"):
    return line.call("FENCELOCK.RELEASE", key, owner)


def inspect(lines, key="k"):
    told = lines.control.call("FENCELOCK.INSPECT", key)
    return told and {name.decode(): value for name, value in zip(told[::2], told[1::2], strict=True)}


def state(lines, key="k"):
    told = inspect(lines, key)
    return told and told["state"]


def hold_of(lines, key="k"):
    told = inspect(lines, key)
    return told and (told["owner"], told["fence"])


# --- RETRY


def test_the_holder_that_repeats_its_call_gets_its_fence_again_and_no_longer_lease(lines):
    fence = acquire(lines.open(), "A", 30_000)
    for options in (("RETRY",), ("RETRY", "WAIT", LONG_MS), ("RETRY", "MAXHOLD", 10, "DELAY", 10)):
        assert acquire(lines.open(), "A", LONG_MS, *options) == fence
    assert inspect(lines)["ttl-ms"] <= 30_000
    assert inspect(lines)["maxhold-left-ms"] is None
    assert lines.count("waiters") == 0


@pytest.mark.parametrize("way", ["MULTI", "script"])
def test_a_call_is_repeated_in_transactions_and_scripts_too(lines, way):
    line = lines.open()
    fence = acquire(line, "A", LONG_MS)
    words = ("FENCELOCK.ACQUIRE", "k", "A", LONG_MS, "RETRY", "WAIT", LONG_MS)
    if way == "MULTI":
        assert line.call_all(("MULTI",), words, ("EXEC",))[-1] == [fence]
    else:
        assert line.call("EVAL", "return redis.call(unpack(ARGV))", 0, *words) == fence


def test_without_retry_the_same_owner_is_busy_like_anyone_else(lines):
    fence = acquire(lines.open(), "A", LONG_MS)
    assert acquire(lines.open(), "A", LONG_MS) is None
    assert acquire(lines.open(), "A", LONG_MS, "WAIT", 20) is None
    assert hold_of(lines) == (b"A", fence)


def test_a_repeated_call_of_another_owner_is_busy(lines):
    fence = acquire(lines.open(), "A", LONG_MS)
    assert acquire(lines.open(), "B", LONG_MS, "RETRY") is None
    assert hold_of(lines) == (b"A", fence)


def test_a_repeated_call_for_a_free_lock_or_a_lease_that_ended_is_a_new_grant(lines):
    first = acquire(lines.open(), "A", 30, "RETRY")
    eventually(lambda: inspect(lines), None)
    second = acquire(lines.open(), "A", LONG_MS, "RETRY")
    assert second > first > 0


def test_a_repeated_call_that_waits_takes_over_the_place_of_the_earlier_one(lines):
    holder = lines.open()
    acquire(holder, "A", LONG_MS)
    while True:
        ended = lines.count("wait-timeouts")
        older = lines.queue("k", "W", 1_000, 300)
        behind = lines.queue("k", "B", LONG_MS, LONG_MS)
        sent = time.monotonic()
        newer = lines.open().send("FENCELOCK.ACQUIRE", "k", "W", 30_000, "RETRY", "WAIT", LONG_MS)
        assert older.only_reply() is None
        if lines.count("wait-timeouts") == ended:
            break
        # Its wait had ended before the newer call came.
        newer.close(), behind.close()
        eventually(lambda: lines.count("waiters"), 0)
    assert lines.count("waiters") == 2
    # The wait is the new call's, not what was left of the older.
    eventually(lambda: time.monotonic() > sent + 0.4)
    assert not newer.has_reply()
    release(holder, "A")
    fence = newer.only_reply()
    assert hold_of(lines) == (b"W", fence)
    assert inspect(lines)["ttl-ms"] > 1_000
    assert not behind.has_reply()
    release(newer, "W")
    assert behind.only_reply() > fence


def test_a_place_is_taken_over_again_and_again(lines):
    holder = lines.open()
    acquire(holder, "A", LONG_MS)
    calls = [lines.queue("k", "W", LONG_MS, LONG_MS)]
    lines.queue("k", "B", LONG_MS, LONG_MS)
    for _ in range(5):
        calls.append(lines.open().send("FENCELOCK.ACQUIRE", "k", "W", LONG_MS, "RETRY", "WAIT", LONG_MS))
        assert calls[-2].only_reply() is None
    assert lines.count("waiters") == 2
    release(holder, "A")
    assert calls[-1].only_reply() > 0


def test_a_place_that_was_taken_over_ends_with_the_new_call(lines):
    holder = lines.open()
    acquire(holder, "A", LONG_MS)
    older = lines.queue("k", "W", LONG_MS, LONG_MS)
    newer = lines.open().send("FENCELOCK.ACQUIRE", "k", "W", LONG_MS, "RETRY", "WAIT", 100)
    assert older.only_reply() is None
    # The older connection is free for other work, and its end touches no place any more.
    older.close()
    assert newer.only_reply() is None
    assert lines.count("waiters") == 0


def test_the_first_of_several_places_of_one_owner_is_taken_over(lines):
    holder = lines.open()
    acquire(holder, "A", LONG_MS)
    first, second = (lines.queue("k", "W", LONG_MS, LONG_MS) for _ in range(2))
    newer = lines.open().send("FENCELOCK.ACQUIRE", "k", "W", LONG_MS, "RETRY", "WAIT", LONG_MS)
    assert first.only_reply() is None
    release(holder, "A")
    assert newer.only_reply() > 0
    assert not second.has_reply()


def test_a_repeated_call_that_does_not_wait_ends_the_wait_of_the_earlier_one(lines):
    holder = lines.open()
    acquire(holder, "A", LONG_MS)
    older = lines.queue("k", "W", LONG_MS, LONG_MS)
    behind = lines.queue("k", "B", LONG_MS, LONG_MS)
    assert acquire(lines.open(), "W", LONG_MS, "RETRY") is None
    assert older.only_reply() is None
    assert lines.count("waiters") == 1
    release(holder, "A")
    assert behind.only_reply() > 0


def test_a_repeated_call_takes_over_only_the_place_of_its_own_owner(lines):
    acquire(lines.open(), "A", LONG_MS)
    other = lines.queue("k", "B", LONG_MS, LONG_MS)
    elsewhere = lines.open()
    acquire(elsewhere, "A", LONG_MS, key="k2")
    same_owner = lines.queue("k2", "W", LONG_MS, LONG_MS)
    lines.queue("k", "W", LONG_MS, LONG_MS, "RETRY")
    assert lines.count("waiters") == 3
    assert not other.has_reply()
    assert not same_owner.has_reply()


# --- MAXHOLD


def test_a_ttl_and_every_extension_are_cut_to_the_longest_hold(lines):
    line = lines.open()
    acquire(line, "A", 2 * LONG_MS, "MAXHOLD", LONG_MS)
    told = inspect(lines)
    assert told["ttl-ms"] <= told["maxhold-left-ms"] <= LONG_MS
    assert 40_000 < extend(line, "A", 2 * LONG_MS) <= LONG_MS
    assert extend(line, "A", 30_000) == 30_000
    assert 10_000 < inspect(lines)["ttl-ms"] <= 30_000
    assert 40_000 < inspect(lines)["maxhold-left-ms"] <= LONG_MS
    assert 40_000 < extend(line, "A", 2 * LONG_MS) <= LONG_MS


def test_the_longest_hold_may_be_longer_than_the_ttl(lines):
    line = lines.open()
    asked = time.monotonic()
    acquire(line, "A", LONG_MS, "MAXHOLD", 2 * LONG_MS)
    assert extend(line, "A", 50) == 50
    eventually(lambda: inspect(lines), None)
    assert time.monotonic() - asked >= 0.05


def test_a_renewer_that_outlives_its_hung_worker_is_ended_by_the_longest_hold(lines):
    """It extends again and again, long after the worker that it renews for hangs; in a script, so that it is never late."""
    first = lines.open()
    acquire(first, "F", LONG_MS)
    renewer = lines.queue("k", "A", 100, LONG_MS, "MAXHOLD", 400)
    waiter = lines.queue("k", "W", LONG_MS, LONG_MS)
    before = lines.stats()
    asked = time.monotonic()
    extensions, least = lines.control.call(
        "EVAL",
        "redis.call('FENCELOCK.RELEASE', 'k', 'F') local extensions, least = 0, 100 "
        "while true do local left = redis.call('FENCELOCK.EXTEND', 'k', 'A', 100) "
        "if left == 0 then return {extensions, least} end extensions, least = extensions + 1, math.min(least, left) end",
        0,
    )
    ended = time.monotonic()
    assert renewer.only_reply() > 0
    assert extensions > 3
    # The last extensions are cut shorter and shorter.
    assert least < 100
    assert ended - asked >= 0.4
    assert waiter.only_reply() > 0
    assert extend(renewer, "A", 100) == 0
    after = lines.stats()
    assert [after[name] - before[name] for name in ("ran-out", "maxhold-ends", "late-extensions")] == [1, 1, 2]


def test_a_lease_that_ends_before_its_longest_hold_is_not_counted_as_such(lines):
    before = lines.stats()
    acquire(lines.open(), "A", 20, "MAXHOLD", LONG_MS)
    eventually(lambda: lines.count("ran-out"), before["ran-out"] + 1)
    assert lines.count("maxhold-ends") == before["maxhold-ends"]


def test_the_longest_hold_of_a_waiter_starts_at_its_grant(lines):
    holder = lines.open()
    acquire(holder, "A", LONG_MS)
    waiter = lines.queue("k", "W", LONG_MS, LONG_MS, "MAXHOLD", 1_000)
    eventually(lambda: inspect(lines)["held-ms"] >= 300)
    # In one step, so that no time passes after the grant.
    told = holder.call_all(("MULTI",), ("FENCELOCK.RELEASE", "k", "A"), ("FENCELOCK.INSPECT", "k"), ("EXEC",))[-1][1]
    assert waiter.only_reply() == told[told.index(b"fence") + 1]
    assert 700 < told[told.index(b"maxhold-left-ms") + 1] <= 1_000


# --- DELAY


def run_out_by_time(lines, *options):
    """A lease that is about to expire, and the moment before which it cannot."""
    asked = time.monotonic()
    acquire(lines.open(), "A", 60, *options)
    return asked + 0.06


def run_out_by_maxhold(lines, *options):
    asked = time.monotonic()
    acquire(lines.open(), "A", LONG_MS, "MAXHOLD", 60, *options)
    return asked + 0.06


def run_out_by_closing(lines, *options):
    line = lines.open()
    acquire(line, "A", LONG_MS, "EPHEMERAL", *options)
    asked = time.monotonic()
    line.close()
    return asked


RUN_OUTS = {"time": run_out_by_time, "MAXHOLD": run_out_by_maxhold, "closed EPHEMERAL": run_out_by_closing}


@pytest.mark.parametrize("run_out", RUN_OUTS.values(), ids=RUN_OUTS)
def test_after_a_lease_ran_out_nobody_gets_the_lock_for_the_delay(lines, run_out):
    run_out(lines, "DELAY", LONG_MS)
    fence = inspect(lines)["fence"]
    eventually(lambda: state(lines), DELAY)
    told = inspect(lines)
    assert (told["owner"], told["fence"], told["ttl-ms"]) == (b"A", fence, 0)
    line = lines.open()
    assert acquire(line, "B", LONG_MS) is None
    assert acquire(line, "A", LONG_MS, "RETRY") is None
    assert extend(line, "A", LONG_MS) == 0
    assert line.call("FENCELOCK.EXTEND", "k", "A", LONG_MS, "FENCE", fence) == 0
    assert release(line, "A") == 0
    assert line.call("FENCELOCK.CHECK", "k", fence) == 0
    assert acquire(line, "B", LONG_MS, "WAIT", 10) is None
    waiter = lines.queue("k", "W", LONG_MS, LONG_MS)
    assert state(lines) == DELAY
    assert not waiter.has_reply()
    assert lines.control.call("EXISTS", "k") == 1


@pytest.mark.parametrize("run_out", RUN_OUTS.values(), ids=RUN_OUTS)
def test_who_comes_after_the_lease_ran_out_gets_the_lock_at_the_end_of_the_delay(lines, run_out):
    earliest = run_out(lines, "DELAY", 400)
    # The state is none where the delay is over by now.
    eventually(lambda: state(lines) in (DELAY, None))
    assert acquire(lines.open(), "W", LONG_MS, "WAIT", LONG_MS) > 0
    assert time.monotonic() >= earliest + 0.4


@pytest.mark.parametrize("run_out", RUN_OUTS.values(), ids=RUN_OUTS)
def test_those_who_waited_before_the_lease_ran_out_wait_for_its_delay_too(lines, run_out):
    first = lines.open()
    acquire(first, "F", LONG_MS)
    ttl_ms, *options = {
        run_out_by_time: (60,),
        run_out_by_maxhold: (LONG_MS, "MAXHOLD", 60, "EPHEMERAL"),
        run_out_by_closing: (LONG_MS, "EPHEMERAL"),
    }[run_out]
    # The lease begins when all are in the queue.
    holder = lines.queue("k", "A", ttl_ms, LONG_MS, "DELAY", 300, *options)
    waiters = [lines.queue("k", f"W{number}", LONG_MS, LONG_MS) for number in range(2)]
    earliest = time.monotonic() + 0.06
    release(first, "F")
    holder.only_reply()
    if run_out is run_out_by_closing:
        earliest = time.monotonic()
        holder.close()
    assert waiters[0].only_reply() > 0
    assert time.monotonic() >= earliest + 0.3
    # The delay was A's and not W0's.
    release(waiters[0], "W0")
    assert waiters[1].only_reply() > 0


def test_a_lock_is_free_and_gone_after_the_delay(lines):
    earliest = run_out_by_time(lines, "DELAY", 200)
    eventually(lambda: inspect(lines), None)
    assert time.monotonic() >= earliest + 0.2
    eventually(lambda: (lines.control.call("EXISTS", "k"), lines.count("live-leases")), (0, 0))


NO_RUN_OUTS = {
    "RELEASE": lambda line: release(line, "A"),
    "DEL": lambda line: line.call("DEL", "k"),
    "UNLINK": lambda line: line.call("UNLINK", "k"),
    "FLUSHALL": lambda line: line.call("FLUSHALL"),
    "FLUSHDB ASYNC": lambda line: line.call("FLUSHDB", "ASYNC"),
    "DEL in the delay": lambda line: (
        extend(line, "A", 1),
        eventually(lambda: extend(line, "A", 1), 0),
        line.call("DEL", "k"),
    ),
}


@pytest.mark.parametrize("end", NO_RUN_OUTS.values(), ids=NO_RUN_OUTS)
@pytest.mark.parametrize("waiting", [False, True], ids=["nobody waits", "somebody waits"])
def test_a_lease_that_does_not_run_out_has_no_delay(lines, end, waiting):
    line = lines.open()
    fence = acquire(line, "A", LONG_MS, "DELAY", LONG_MS, "EPHEMERAL")
    waiter = lines.queue("k", "W", LONG_MS, LONG_MS) if waiting else None
    end(line)
    if waiting:
        assert waiter.only_reply() > fence
    else:
        assert acquire(line, "W", LONG_MS) > fence


def test_an_evicted_lease_has_no_delay(make_redis, own_lines):
    lines = own_lines(make_redis(config={"maxmemory-policy": "allkeys-random"}))
    line = lines.open()
    fence = acquire(line, "A", LONG_MS, "DELAY", LONG_MS)
    evict = [("CONFIG", "SET", "maxmemory", "1"), ("PING",), ("CONFIG", "SET", "maxmemory", "0")]
    line.call_all(*evict)
    assert line.call("EXISTS", "k") == 0
    assert acquire(line, "B", LONG_MS) > fence


# --- EPHEMERAL

CLOSINGS = {
    "close": lambda lines, line: line.close(),
    "reset of the connection": lambda lines, line: line.abort(),
    "QUIT": lambda lines, line: line.call("QUIT"),
    "CLIENT KILL": lambda lines, line: lines.control.call("CLIENT", "KILL", "ID", line.id),
    "CLIENT KILL of itself": lambda lines, line: line.call("CLIENT", "KILL", "ID", line.id, "SKIPME", "no"),
}


@pytest.mark.parametrize("close", CLOSINGS.values(), ids=CLOSINGS)
@pytest.mark.parametrize("way", ["call", "MULTI", "wait"])
def test_an_ephemeral_lease_ends_when_its_connection_closes(lines, close, way):
    line, other = lines.open(), lines.open()
    assert line.id
    words = ("FENCELOCK.ACQUIRE", "k", "A", LONG_MS, "EPHEMERAL")
    match way:
        case "call":
            fence = line.call(*words)
        case "MULTI":
            fence = line.call_all(("MULTI",), words, ("EXEC",))[-1][0]
        case "wait":
            acquire(other, "B", LONG_MS)
            line = lines.queue("k", "A", LONG_MS, LONG_MS, "EPHEMERAL")
            release(other, "B")
            fence = line.only_reply()
    assert hold_of(lines) == (b"A", fence)
    assert extend(line, "A", LONG_MS) > 0
    ran_out = lines.count("ran-out")
    close(lines, line)
    assert acquire(other, "N", LONG_MS, "WAIT", LONG_MS) > fence
    assert lines.count("ran-out") == ran_out + 1


def test_a_lease_that_is_not_ephemeral_outlives_its_connection(lines):
    line = lines.open()
    fence = acquire(line, "A", LONG_MS)
    ephemeral = acquire(line, "A", LONG_MS, "EPHEMERAL", key="k2")
    assert ephemeral > fence
    line.close()
    eventually(lambda: inspect(lines, "k2"), None)
    assert hold_of(lines) == (b"A", fence)


def test_all_ephemeral_leases_of_a_connection_end_with_it(lines):
    line = lines.open()
    for number in range(1_000):
        acquire(line, "A", LONG_MS, "EPHEMERAL", key=f"k{number}")
    line.call("SELECT", 1)
    acquire(line, "A", LONG_MS, "EPHEMERAL")
    lines.control.call("SELECT", 1)
    assert state(lines) == HELD
    line.close()
    eventually(lambda: inspect(lines), None)
    lines.control.call("SELECT", 0)
    eventually(lambda: lines.control.call("DBSIZE"), 0)


def test_the_end_of_a_connection_does_not_touch_a_later_lease_of_the_lock(lines):
    """Released, expired, deleted: what comes after is another hold."""
    line, other = lines.open(), lines.open()
    acquire(line, "A", LONG_MS, "EPHEMERAL", key="released")
    release(line, "A", key="released")
    acquire(line, "A", 20, "EPHEMERAL", key="ran out")
    eventually(lambda: inspect(lines, "ran out"), None)
    acquire(line, "A", LONG_MS, "EPHEMERAL", key="deleted")
    other.call("DEL", "deleted")
    for key in ("released", "ran out", "deleted"):
        assert acquire(other, "A", LONG_MS, key=key) > 0
    acquire(line, "A", LONG_MS, "EPHEMERAL", key="last")
    line.close()
    eventually(lambda: inspect(lines, "last"), None)
    assert [state(lines, key) for key in ("released", "ran out", "deleted")] == [HELD] * 3


def test_reset_keeps_the_connection_and_so_the_lease(lines):
    line = lines.open()
    fence = acquire(line, "A", LONG_MS, "EPHEMERAL")
    assert line.call("RESET") == "RESET"
    assert line.call("PING") == "PONG"
    assert hold_of(lines) == (b"A", fence)
    line.close()
    eventually(lambda: inspect(lines), None)


@pytest.mark.parametrize("way", ["EVAL", "FCALL"])
@pytest.mark.parametrize("free", [True, False], ids=["free", "held"])
def test_ephemeral_is_an_error_in_a_script_and_changes_nothing(lines, way, free):
    line = lines.open()
    if not free:
        acquire(line, "B", LONG_MS)
    body = "redis.call('FENCELOCK.ACQUIRE', KEYS[1], 'A', 60000, 'EPHEMERAL')"
    if way == "EVAL":
        told = line.call("EVAL", f"return {body}", 1, "k")
    else:
        code = f"#!lua name=lib\nredis.register_function('take', function(KEYS) return {body} end)"
        line.call("FUNCTION", "LOAD", "REPLACE", code)
        told = line.call("FCALL", "take", 1, "k")
        line.call("FUNCTION", "FLUSH")
    assert "EPHEMERAL is refused in a script" in told
    assert (hold_of(lines) or (None,))[0] == (None if free else b"B")


@pytest.mark.parametrize("option", [("EPHEMERAL",), ()], ids=["with the word", "without the word"])
def test_a_repeated_call_binds_an_ephemeral_lease_to_its_own_connection(lines, option):
    first, second = lines.open(), lines.open()
    fence = acquire(first, "A", LONG_MS, "EPHEMERAL")
    assert acquire(second, "A", LONG_MS, "RETRY", *option) == fence
    first.close()
    # Everything that the server does about a closed connection is done two turns later.
    eventually(lambda: lines.info("clients")["connected_clients"], 3)
    assert [lines.control.call("PING") for _ in range(2)] == ["PONG"] * 2
    assert hold_of(lines) == (b"A", fence)
    second.close()
    eventually(lambda: inspect(lines), None)


def test_a_repeated_call_does_not_make_a_lease_ephemeral(lines):
    line = lines.open()
    fence = acquire(lines.open(), "A", LONG_MS)
    assert acquire(line, "A", LONG_MS, "RETRY", "EPHEMERAL") == fence
    acquire(line, "A", LONG_MS, "EPHEMERAL", key="k2")
    line.close()
    eventually(lambda: inspect(lines, "k2"), None)
    assert hold_of(lines) == (b"A", fence)


def test_a_repeated_call_from_a_script_leaves_an_ephemeral_lease_with_its_connection(lines):
    """A script's client is not the caller's and never closes: bound to it, the lease would not end with anything."""
    line = lines.open()
    fence = acquire(line, "A", LONG_MS, "EPHEMERAL")
    repeat = "return redis.call('FENCELOCK.ACQUIRE', 'k', 'A', 60000, 'RETRY')"
    assert lines.control.call("EVAL", repeat, 0) == fence
    line.close()
    eventually(lambda: inspect(lines), None)


@pytest.mark.parametrize("move", [("MOVE", "k", 1), ("SWAPDB", 0, 1), ("RENAME", "k", "z")], ids=lambda move: move[0])
def test_an_ephemeral_lease_whose_key_went_elsewhere_ends_at_its_deadline_at_the_latest(lines, move):
    line = lines.open()
    acquire(line, "A", 300, "EPHEMERAL")
    lines.control.call(*move)
    line.close()
    lines.control.call("SELECT", 0 if move[0] == "RENAME" else 1)
    key = "z" if move[0] == "RENAME" else "k"
    eventually(lambda: inspect(lines, key), None)
    # And what is granted under the old name since is not touched.
    assert acquire(lines.open(), "N", LONG_MS) > 0


# --- all together


def test_all_options_combine(lines):
    """A wait that is repeated, a hold that is cut, ends with its connection, and shuts the lock for a while."""
    holder = lines.open()
    acquire(holder, "A", LONG_MS)
    options = ("MAXHOLD", 30_000, "DELAY", 300, "EPHEMERAL")
    older = lines.queue("k", "W", LONG_MS, LONG_MS, *options)
    newer = lines.open()
    newer.send("FENCELOCK.ACQUIRE", "k", "W", LONG_MS, *options, "RETRY", "WAIT", LONG_MS)
    assert older.only_reply() is None
    release(holder, "A")
    fence = newer.only_reply()
    told = inspect(lines)
    assert told["ttl-ms"] <= told["maxhold-left-ms"] <= 30_000
    assert 0 < extend(newer, "W", LONG_MS) <= 30_000
    next_one = lines.open()
    assert acquire(next_one, "W", LONG_MS, "RETRY", *options) == fence
    newer.close()
    assert hold_of(lines) == (b"W", fence)
    closed = time.monotonic()
    next_one.close()
    assert acquire(holder, "B", LONG_MS, "WAIT", LONG_MS) > fence
    assert time.monotonic() >= closed + 0.3


# --- restart and promotion

KEPT = {
    "append-only file": {"appendonly": "yes", "appendfsync": "always"},
    "rewritten append-only file": {"appendonly": "yes", "appendfsync": "always", "aof-use-rdb-preamble": "no"},
    "snapshot": {"save": "3600 1"},
}


@pytest.fixture(params=[*KEPT, "promotion"])
def successor(request, make_redis, own_lines):
    """Two lines: those of a server, and a function that gives those of the server that comes after it."""
    if request.param == "promotion":
        yield from promoted(make_redis, own_lines)
        return
    server = make_redis(config=KEPT[request.param])
    before = own_lines(server)

    def after():
        if request.param == "rewritten append-only file":
            before.control.call("BGREWRITEAOF")
            eventually(lambda: before.info("persistence")["aof_rewrite_in_progress"], 0)
            eventually(lambda: before.info("persistence")["aof_rewrite_scheduled"], 0)
        server.stop() if request.param == "snapshot" else server.kill()
        server.start()
        return own_lines(server)

    yield before, after


def promoted(make_redis, own_lines):
    fast = {"repl-diskless-sync": "no", "repl-ping-replica-period": "1"}
    server, replica = make_redis(config=fast), make_redis(config=fast)
    before, following = own_lines(server), own_lines(replica)
    following.control.call("REPLICAOF", "127.0.0.1", server.port)
    eventually(lambda: b"state=online" in before.control.call("INFO", "replication"))

    def after():
        # WAIT counts the writes of its own connection alone.
        def behind():
            offset = following.info("replication").get("slave_repl_offset", 0)
            return before.info("replication")["master_repl_offset"] - offset

        eventually(lambda: behind() <= 0, True)
        server.kill()
        following.control.call("REPLICAOF", "NO", "ONE")
        return following

    yield before, after


def test_longest_hold_delay_and_deadline_are_kept_and_ephemeral_falls_back_to_the_lease(successor):
    """One server and its successor for all of it: starting them is what takes time."""
    before, after = successor
    line = before.open()
    fences = {
        "maxhold": acquire(line, "A", LONG_MS, "MAXHOLD", 50_000, key="maxhold"),
        "delay": acquire(line, "A", 1_500, "DELAY", LONG_MS, key="delay"),
        "in delay": acquire(line, "A", 30, "DELAY", LONG_MS, key="in delay"),
        "ephemeral": acquire(line, "A", 50_000, "EPHEMERAL", key="ephemeral"),
        "all": acquire(line, "A", LONG_MS, "MAXHOLD", 50_000, "DELAY", LONG_MS, "EPHEMERAL", key="all"),
    }
    eventually(lambda: state(before, "in delay"), DELAY)
    lines = after()
    line = lines.open()
    assert {key: inspect(lines, key)["fence"] for key in fences} == fences
    # On a replica the lease ends later by what its record was under way.
    eventually(lambda: state(lines, "in delay"), DELAY)
    assert acquire(line, "B", LONG_MS, key="in delay") is None
    # The longest hold goes on from the grant.
    left = inspect(lines, "maxhold")["maxhold-left-ms"]
    assert 10_000 < left <= 50_000
    assert extend(line, "A", LONG_MS, key="maxhold") <= left
    assert 10_000 < inspect(lines, "all")["maxhold-left-ms"] <= 50_000
    # The connection is gone and the lease goes on, until a repeated call binds it anew.
    assert state(lines, "ephemeral") == state(lines, "all") == HELD
    assert 10_000 < inspect(lines, "ephemeral")["ttl-ms"] <= 50_000
    assert acquire(line, "A", LONG_MS, "RETRY", "EPHEMERAL", key="ephemeral") == fences["ephemeral"]
    # A lease that ends here has its delay here.
    eventually(lambda: state(lines, "delay"), DELAY)
    assert acquire(line, "B", LONG_MS, key="delay") is None
    line.close()
    eventually(lambda: inspect(lines, "ephemeral"), None)
    assert state(lines, "all") == HELD
    assert acquire(lines.open(), "N", LONG_MS, key="new") > max(fences.values())


def test_waiters_of_a_server_that_goes_down_get_no_lock_and_no_reply(make_redis, own_lines):
    server = make_redis(config={"appendonly": "yes", "appendfsync": "always"})
    lines = own_lines(server)
    fence = acquire(lines.open(), "A", LONG_MS)
    waiter = lines.queue("k", "W", LONG_MS, LONG_MS)
    server.stop()
    with pytest.raises(Closed):
        waiter.reply()
    server.start()
    lines = own_lines(server)
    assert hold_of(lines) == (b"A", fence)
    assert (lines.count("waiters"), lines.blocked()) == (0, 0)
    assert release(lines.open(), "A") == 1
    assert inspect(lines) is None


def test_waiters_of_a_primary_that_becomes_a_replica_are_told_once(make_redis, own_lines):
    server, other = make_redis(), make_redis()
    lines = own_lines(server)
    acquire(lines.open(), "A", LONG_MS)
    waiters = [lines.queue("k", f"W{number}", LONG_MS, LONG_MS) for number in range(3)]
    lines.control.call("REPLICAOF", "127.0.0.1", other.port)
    for waiter in waiters:
        assert waiter.reply().code == "UNBLOCKED"
        # The server itself closes such a connection; if it does not, nothing more is said.
        with contextlib.suppress(Closed):
            assert waiter.call("ECHO", "mark") == b"mark"
    eventually(lambda: (lines.count("waiters"), lines.blocked()), (0, 0))


# --- what is the same before and after must be read again: the end of the hold changes the key


def delayed_hold(line, way, key="k"):
    """A lease with a delay that ends in a while, or by a closed connection: returns what ends it."""
    if way == "time":
        acquire(line, "A", 2_000, "DELAY", LONG_MS, key=key)
        return lambda: None
    acquire(line, "A", LONG_MS, "DELAY", LONG_MS, "EPHEMERAL", key=key)
    return line.close


@pytest.mark.parametrize("way", ["time", "closed connection"])
def test_a_transaction_that_watches_a_lock_fails_when_its_hold_has_ended_in_a_delay(lines, way):
    before = lines.count("ran-out")
    watching, end = lines.open(), lambda: None
    # In one write, so that a lease that ends by time is live when it is watched.
    calls = [("WATCH", "k"), ("MULTI",), ("PING",), ("EXEC",), ("WATCH", "k")]
    if way == "time":
        calls.insert(0, ("FENCELOCK.ACQUIRE", "k", "A", 300, "DELAY", LONG_MS))
    else:
        end = delayed_hold(lines.open(), way)
    assert watching.call_all(*calls)[-5:] == ["OK", "OK", "QUEUED", ["PONG"], "OK"]
    end()
    eventually(lambda: b"delay" in (lines.control.call("FENCELOCK.INSPECT", "k") or []))
    eventually(lambda: lines.count("ran-out"), before + 1)
    assert watching.call_all(("MULTI",), ("PING",), ("EXEC",))[-1] is None


@pytest.mark.parametrize("way", ["time", "closed connection"])
@pytest.mark.parametrize("where", ["primary", "replica"])
def test_a_cached_check_is_invalidated_when_the_hold_has_ended_in_a_delay(make_redis, own_lines, where, way):
    primary = make_redis(config={"repl-diskless-sync-delay": "0"})
    lines = own_lines(primary)
    reading = lines
    if where == "replica":
        reading = own_lines(make_redis(config={"replicaof": f"127.0.0.1 {primary.port}"}))
        eventually(lambda: b"master_link_status:up" in reading.control.call("INFO", "replication"))
    line = lines.open()
    for number in itertools.count():
        key, asked = f"k{number}", time.monotonic()
        end = delayed_hold(line, way, key)
        fence = lines.stats()["last-fence"]
        over = lambda: way == "time" and time.monotonic() > asked + 2  # noqa: E731
        # Before it is cached: the arrival of the grant would be an invalidation of its own.
        eventually(lambda: reading.control.call("FENCELOCK.CHECK", key, fence) == 1 or over())
        cached = reading.open(protocol=3)
        cached.call("CLIENT", "TRACKING", "ON")
        live = cached.call("FENCELOCK.CHECK", key, fence)
        if not over():
            break
        # The lease may have ended before it was cached.
    assert live == 1
    end()
    assert cached.reply() == [b"invalidate", [key.encode()]]
    assert cached.call("FENCELOCK.CHECK", key, fence) == 0


# --- the bond is between a connection and one stored lease, not any copy of it


@pytest.mark.parametrize("copies", [1, 2])
def test_a_restored_copy_has_no_part_in_the_bond_of_the_original(lines, copies):
    """Deleting it unbinds nothing, and the closed connection ends the original alone."""
    line = lines.open()
    fence = acquire(line, "A", LONG_MS, "EPHEMERAL")
    dump = line.call("DUMP", "k")
    for number in range(copies):
        assert line.call("RESTORE", f"copy{number}", 0, dump) == "OK"
    lines.control.call("SELECT", 1)
    assert lines.control.call("RESTORE", "k", 0, dump) == "OK"
    assert lines.control.call("DEL", "k") == 1
    lines.control.call("SELECT", 0)
    lines.control.call("DEL", "copy0")
    assert hold_of(lines) == (b"A", fence)
    line.close()
    eventually(lambda: inspect(lines), None)
    assert [inspect(lines, f"copy{number}")["fence"] for number in range(1, copies)] == [fence] * (copies - 1)


def test_a_copy_that_is_repeated_from_another_connection_ends_with_that_one(lines):
    first, second = lines.open(), lines.open()
    fence = acquire(first, "A", LONG_MS, "EPHEMERAL")
    assert first.call("RESTORE", "copy", 0, first.call("DUMP", "k")) == "OK"
    assert acquire(second, "A", LONG_MS, "RETRY", "EPHEMERAL", key="copy") == fence
    second.close()
    eventually(lambda: inspect(lines, "copy"), None)
    assert hold_of(lines) == (b"A", fence)
    first.close()
    eventually(lambda: inspect(lines), None)


@pytest.mark.parametrize("flush", [("FLUSHALL",), ("FLUSHALL", "ASYNC"), ("FLUSHDB",), ("FLUSHDB", "ASYNC")], ids=" ".join)
def test_a_connection_that_closes_after_a_flush_ends_nothing_that_came_after_it(lines, flush):
    """And what it was granted after the flush ends with it."""
    line, other = lines.open(), lines.open()
    keys = [f"k{number}" for number in range(300)]
    line.call_all(*[("FENCELOCK.ACQUIRE", key, "A", LONG_MS, "EPHEMERAL") for key in keys])
    line.call(*flush)
    fences = other.call_all(*[("FENCELOCK.ACQUIRE", key, "A", LONG_MS) for key in keys[:150]])
    acquire(line, "A", LONG_MS, "EPHEMERAL", key="after")
    line.close()
    eventually(lambda: inspect(lines, "after"), None)
    assert [inspect(lines, key)["fence"] for key in keys[:150]] == fences
    assert lines.count("live-leases") == 150
