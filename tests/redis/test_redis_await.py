"""FENCELOCK.AWAIT: who is answered when a hold ends, why it is said to have ended, and what becomes of those who wait.

What replicas say of a hold is in test_redis_await_replica, what a cluster says in test_redis_await_cluster.
"""

import os
import signal
import time

import pytest

from harness import RedisServer, eventually
from harness.redis_calls import Closed, Lines
from harness.redis_server import server_version

LONG_MS = 60_000
SHORT_MS = 50


def acquire(line, owner="A", ttl_ms=LONG_MS, *options, key="k"):
    return line.call("FENCELOCK.ACQUIRE", key, owner, ttl_ms, *options)


def await_end(line, fence, ms=LONG_MS, key="k"):
    return line.call("FENCELOCK.AWAIT", key, fence, ms)


# --- why a hold ended: how it is taken, what ends it, the word


def call(*words):
    return lambda lines, holder: lines.control.call(*words)


def restore_another(lines, holder):
    acquire(lines.control, "B", LONG_MS, key="other")
    assert lines.control.call("RESTORE", "k", 0, lines.control.call("DUMP", "other"), "REPLACE") == "OK"


def evict(lines, holder):
    lines.control.call("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
    lines.control.call_all(("CONFIG", "SET", "maxmemory", "1"), ("PING",), ("CONFIG", "SET", "maxmemory", "0"))


def rename_over(lines, holder):
    lines.control.call("SET", "other", "v")
    assert lines.control.call("RENAME", "other", "k") == "OK"


NOTHING = call("PING")
TRANSACTION = (("MULTI",), ("FENCELOCK.RELEASE", "k", "A"), ("FENCELOCK.ACQUIRE", "k", "A", LONG_MS), ("EXEC",))
ENDS = {
    "a release": ((LONG_MS,), call("FENCELOCK.RELEASE", "k", "A"), b"released"),
    "a release and a grant in one step": ((LONG_MS,), lambda lines, _: lines.control.call_all(*TRANSACTION), b"released"),
    "a release in a script": (
        (LONG_MS,),
        call("EVAL", "return redis.call('FENCELOCK.RELEASE', KEYS[1], 'A')", 1, "k"),
        b"released",
    ),
    "time": ((300,), NOTHING, b"expired"),
    "a shorter lease": ((LONG_MS,), call("FENCELOCK.EXTEND", "k", "A", SHORT_MS), b"expired"),
    "time, with a delay": ((300, "DELAY", LONG_MS), NOTHING, b"expired"),
    "the end of the connection": ((LONG_MS, "EPHEMERAL"), lambda _, holder: holder.close(), b"expired"),
    "the end of the connection, with a delay": (
        (LONG_MS, "EPHEMERAL", "DELAY", LONG_MS),
        lambda _, holder: holder.close(),
        b"expired",
    ),
    "MAXHOLD": ((LONG_MS, "MAXHOLD", 300), NOTHING, b"maxhold"),
    "MAXHOLD, with a delay": ((LONG_MS, "MAXHOLD", 300, "DELAY", LONG_MS), NOTHING, b"maxhold"),
    "STEAL": ((LONG_MS,), call("FENCELOCK.STEAL", "k", "B", LONG_MS), b"stolen"),
    "STEAL, with a delay": ((LONG_MS, "DELAY", LONG_MS), call("FENCELOCK.STEAL", "k", "B", LONG_MS), b"stolen"),
    "DEL": ((LONG_MS,), call("DEL", "k"), b"deleted"),
    "UNLINK": ((LONG_MS,), call("UNLINK", "k"), b"deleted"),
    "SET": ((LONG_MS,), call("SET", "k", "v"), b"deleted"),
    "RENAME": ((LONG_MS,), call("RENAME", "k", "other"), b"deleted"),
    "RENAME over it": ((LONG_MS,), rename_over, b"deleted"),
    "MOVE": ((LONG_MS,), call("MOVE", "k", 1), b"deleted"),
    "a time to live": ((LONG_MS,), call("PEXPIRE", "k", 1), b"deleted"),
    "RESTORE": ((LONG_MS,), restore_another, b"deleted"),
    "SWAPDB": ((LONG_MS,), call("SWAPDB", 0, 1), b"deleted"),
    "FLUSHALL": ((LONG_MS,), call("FLUSHALL", "SYNC"), b"flushed"),
    "FLUSHALL ASYNC": ((LONG_MS,), call("FLUSHALL", "ASYNC"), b"flushed"),
    "FLUSHDB": ((LONG_MS,), call("FLUSHDB"), b"flushed"),
    "an eviction": ((LONG_MS,), evict, b"evicted"),
}


@pytest.fixture(scope="module")
def one_server():
    """A server whose settings the tests change."""
    server = RedisServer().start()
    yield server
    server.close()


@pytest.fixture
def own(one_server):
    with Lines(one_server.port) as lines:
        lines.control.call("FLUSHALL")
        yield lines
        lines.drain()


@pytest.mark.parametrize(("terms", "end", "word"), ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("others", [0, 2], ids=["nobody waits", "somebody waits"])
def test_those_who_await_a_hold_get_one_reply_with_the_reason(own, terms, end, word, others):
    holder = own.open()
    other = acquire(own.control, key="untouched")
    untouched = own.awaiting("untouched", other, LONG_MS)
    fence, waiters, awaiters = in_place(own, holder, terms, others)
    end(own, holder)
    assert [awaiter.only_reply() for awaiter in awaiters] == [word] * 3
    # Whoever asks now gets no reason.
    told = await_end(own.control, fence)
    assert told == b"ended" or told.code == "WRONGTYPE"
    if own.control.call("FENCELOCK.CHECK", "untouched", other) == 1:
        assert not untouched.has_reply()
        assert own.count("awaiters") == 1
    else:
        assert untouched.only_reply() == word
    for waiter in waiters:
        waiter.close()
    own.control.call("FLUSHALL")


def in_place(own, holder, terms, others):
    """The fence of A's hold, those who wait for the lock, and those who await the end, who all came before it."""
    while True:
        waiters = [own.open() for _ in range(others)]
        awaiters = [own.open(protocol=protocol) for protocol in (2, 3, 2)]
        before = own.stats()
        fence = acquire(holder, "A", *terms)
        for number, line in enumerate(waiters):
            line.send("FENCELOCK.ACQUIRE", "k", f"W{number}", LONG_MS, "WAIT", LONG_MS)
        for line in awaiters:
            line.send("FENCELOCK.AWAIT", "k", fence, LONG_MS)

        def all_came():
            told = own.stats()
            return [told[name] - before[name] for name in ("waits", "awaits")] == [others, 3]

        eventually(lambda: all_came() or own.control.call("FENCELOCK.CHECK", "k", fence) == 0)
        if all_came():
            return fence, waiters, awaiters
        # A short lease may end before.
        for line in (*waiters, *awaiters):
            line.close()
        eventually(lambda: (own.blocked(), own.count("waiters")), (1, 0))
        own.control.call("DEL", "k")


def test_the_holder_learns_of_its_loss_and_the_next_one_of_its_grant(lines):
    """In no promised order."""
    fence = acquire(lines.control)
    waiter = lines.queue("k", "W", LONG_MS, LONG_MS)
    loser = lines.awaiting("k", fence, LONG_MS)
    lines.control.call("FENCELOCK.EXTEND", "k", "A", SHORT_MS)
    assert loser.only_reply() == b"expired"
    assert waiter.only_reply() > fence


def test_a_hold_that_is_extended_is_not_ended(lines):
    fence = acquire(lines.control)
    awaiter = lines.awaiting("k", fence, LONG_MS)
    assert min(lines.control.call_all(*(("FENCELOCK.EXTEND", "k", "A", ttl_ms) for ttl_ms in (500, 30_000, 60_000)))) > 0
    passed = time.monotonic() + 0.55
    eventually(lambda: time.monotonic() > passed)
    assert not awaiter.has_reply()
    lines.control.call("FENCELOCK.RELEASE", "k", "A")
    assert awaiter.only_reply() == b"released"


@pytest.mark.parametrize("protocol", [2, 3])
def test_null_when_the_time_is_over_and_it_still_holds(lines, protocol):
    fence = acquire(lines.control)
    line, began = lines.open(protocol=protocol), time.monotonic()
    assert await_end(line, fence, 200) is None
    assert time.monotonic() - began >= 0.2
    assert line.call("PING") == "PONG"
    assert lines.count("awaiters") == 0
    assert lines.control.call("FENCELOCK.CHECK", "k", fence) == 1


@pytest.mark.parametrize("paused", [False, True], ids=["", "in a pause of writes"])
def test_a_lease_that_ended_before_the_time_was_over_is_an_end_however_late_the_server_is(start, paused):
    """The server stands still over both."""
    lines = start(("fence-clock", "no"), {"enable-debug-command": "yes"})
    awaiters = []
    for fence, key, options in ((1, "k", ()), (2, "delayed", ("MAXHOLD", 100, "DELAY", LONG_MS))):
        # In one write, so that the lease is live when its end is awaited.
        calls = ("FENCELOCK.ACQUIRE", key, "A", 100, *options), ("FENCELOCK.AWAIT", key, fence, 200)
        awaiters.append(lines.open().send_all(*calls))
        assert awaiters[-1].reply() == fence
    if paused:
        lines.control.call("CLIENT", "PAUSE", 20_000, "WRITE")
    lines.control.call("DEBUG", "SLEEP", "0.5")
    assert [awaiter.only_reply() for awaiter in awaiters] == [b"expired", b"maxhold"]


def test_a_lease_that_ends_while_writes_are_paused_is_an_end(lines):
    fence = acquire(lines.control)
    awaiter = lines.awaiting("k", fence, LONG_MS)
    # In one write, so that the lease is live when the pause begins.
    lines.control.call_all(("FENCELOCK.EXTEND", "k", "A", 300), ("CLIENT", "PAUSE", 20_000, "WRITE"))
    try:
        assert awaiter.only_reply() == b"expired"
        assert lines.control.call("EXISTS", "k") == 1
    finally:
        lines.control.call("CLIENT", "UNPAUSE")


NOT_LIVE = {
    "an earlier hold": lambda line: [acquire(line), line.call("FENCELOCK.RELEASE", "k", "A"), acquire(line, "B")][0],
    "the hold of another lock": lambda line: acquire(line, key="other"),
    "the hold of another database": lambda line: line.call_all(
        ("SELECT", 1), ("FENCELOCK.ACQUIRE", "k", "A", LONG_MS), ("SELECT", 0)
    )[1],
    "a hold that expired": lambda line: [acquire(line, "A", 1), eventually(lambda: line.call("FENCELOCK.INSPECT", "k"), None)][0],
    "a hold in its delay": lambda line: [
        acquire(line, "A", 1, "DELAY", LONG_MS),
        eventually(lambda: line.call("FENCELOCK.INSPECT", "k")[-1], b"delay"),
    ][0],
    "a number that was never granted": lambda line: [acquire(line), 7][1],
}


@pytest.mark.parametrize("make", NOT_LIVE.values(), ids=NOT_LIVE)
def test_what_is_not_the_live_hold_has_ended(lines, make):
    fence = make(lines.control)
    assert await_end(lines.control, fence) == b"ended"
    assert lines.control.call("EVAL", "return redis.call('FENCELOCK.AWAIT', KEYS[1], ARGV[1], 1000)", 1, "k", fence) == b"ended"
    assert (lines.count("awaiters"), lines.blocked()) == (0, 0)


def test_a_fence_above_the_last_one_is_an_error_on_a_primary(lines):
    acquire(lines.control)
    last = lines.count("last-fence")
    told = await_end(lines.control, last + 1)
    assert told == f"ERR fence {last + 1} is above {last}, the last one issued: there is no such hold"
    assert lines.count("awaiters") == 0


def test_a_key_of_another_type_is_refused(lines):
    lines.control.call("SET", "k", "v")
    assert await_end(lines.control, 1).code == "WRONGTYPE"


@pytest.mark.parametrize("way", ["MULTI", "EVAL", "FCALL"])
def test_where_blocking_is_not_allowed_the_answer_comes_at_once(lines, way):
    fence = acquire(lines.control)
    line = lines.open()
    words = ("FENCELOCK.AWAIT", "k", fence, LONG_MS)
    match way:
        case "MULTI":
            told = line.call_all(("MULTI",), words, ("PING",), ("EXEC",))[-1]
            assert told == [None, "PONG"]
        case "EVAL":
            assert line.call("EVAL", "return {redis.call(unpack(ARGV)) == false and 'null'}", 1, "k", *words) == [b"null"]
        case _:
            body = "return {redis.call('FENCELOCK.AWAIT', keys[1], args[1], 60000) == false and 'null'}"
            line.call("FUNCTION", "LOAD", "REPLACE", f"#!lua name=awaits\nredis.register_function{{function_name='awaits', flags={{'no-writes'}}, callback=function(keys, args) {body} end}}")
            assert line.call("FCALL_RO", "awaits", 1, "k", fence) == [b"null"]
    assert (lines.count("awaiters"), lines.blocked()) == (0, 0)


def test_a_subscriber_that_may_not_block_is_answered_at_once(lines):
    """On Valkey; Redis lets it block."""
    fence = acquire(lines.control)
    line = lines.open(protocol=3)
    line.call("SUBSCRIBE", "channel")
    line.send("FENCELOCK.AWAIT", "k", fence, LONG_MS)
    if server_version()[0] == "Valkey":
        assert line.only_reply() is None
    else:
        eventually(lambda: lines.count("awaiters"), 1)
        lines.control.call("FENCELOCK.RELEASE", "k", "A")
        assert line.only_reply() == b"released"


LEAVES = {
    "closes": lambda lines, line: line.close(),
    "is cut off": lambda lines, line: line.abort(),
    "CLIENT KILL": lambda lines, line: lines.control.call("CLIENT", "KILL", "ID", line.id),
}


@pytest.mark.parametrize("leave", LEAVES.values(), ids=LEAVES)
def test_a_client_that_is_gone_awaits_nothing(lines, leave):
    fence = acquire(lines.control)
    gone, stays = (lines.awaiting("k", fence, LONG_MS) for _ in range(2))
    leave(lines, gone)
    eventually(lambda: (lines.count("awaiters"), lines.blocked()), (1, 1))
    lines.control.call("FENCELOCK.RELEASE", "k", "A")
    assert stays.only_reply() == b"released"
    assert (lines.count("awaiters"), lines.blocked()) == (0, 0)


@pytest.mark.parametrize("how", ["TIMEOUT", "ERROR"])
def test_client_unblock_ends_the_wait(lines, how):
    fence = acquire(lines.control)
    awaiter = lines.awaiting("k", fence, LONG_MS)
    assert lines.control.call("CLIENT", "UNBLOCK", awaiter.id, how) == 1
    told = awaiter.only_reply()
    assert told is None if how == "TIMEOUT" else told.code == "UNBLOCKED"
    assert (lines.count("awaiters"), lines.blocked()) == (0, 0)
    lines.control.call("FENCELOCK.RELEASE", "k", "A")
    assert awaiter.call("PING") == "PONG"


def test_an_end_that_meets_the_end_of_the_client_is_lost_with_it(lines):
    for ending in (("CLIENT", "UNBLOCK"), ("CLIENT", "KILL", "ID")):
        fence = acquire(lines.control)
        awaiter, stays = (lines.awaiting("k", fence, LONG_MS) for _ in range(2))
        lines.open().call_all(("FENCELOCK.RELEASE", "k", "A"), (*ending, awaiter.id))
        assert stays.only_reply() == b"released"
        eventually(lambda: (lines.count("awaiters"), lines.blocked()), (0, 0))
        awaiter.close()


def test_the_number_of_those_who_await_is_bounded(start):
    lines = start(("max-awaiters", 3))
    fence = acquire(lines.control)
    awaiters = [lines.awaiting("k", fence, LONG_MS) for _ in range(3)]
    told = await_end(lines.control, fence)
    assert told == "ERR too many clients await the end of a hold (fencelock.max-awaiters is 3)"
    # What needs no wait needs no place.
    assert await_end(lines.control, 1) == b"ended"
    awaiters.pop().close()
    eventually(lambda: lines.count("awaiters"), 2)
    awaiters.append(lines.awaiting("k", fence, LONG_MS))
    lines.control.call("CONFIG", "SET", "fencelock.max-awaiters", 0)
    assert "fencelock.max-awaiters is 0" in await_end(lines.control, fence)
    lines.control.call("FENCELOCK.RELEASE", "k", "A")
    assert [awaiter.only_reply() for awaiter in awaiters] == [b"released"] * 3


def test_many_are_told_and_each_of_its_own_hold(lines):
    fences = {f"lock:{number}": acquire(lines.control, key=f"lock:{number}") for number in range(20)}
    awaiters = {name: [lines.open() for _ in range(15)] for name in fences}
    for name, fence in fences.items():
        for line in awaiters[name]:
            line.send("FENCELOCK.AWAIT", name, fence, LONG_MS)
    eventually(lambda: lines.count("awaiters"), 300)
    for number, name in enumerate(fences):
        words = ("FENCELOCK.RELEASE", name, "A") if number % 2 else ("FENCELOCK.STEAL", name, "B", LONG_MS)
        lines.control.call(*words)
    for number, name in enumerate(fences):
        told = {line.only_reply() for line in awaiters[name]}
        assert told == {b"released" if number % 2 else b"stolen"}, name
    assert lines.count("awaiters") == 0


def test_a_hold_that_went_away_and_came_back_was_deleted(lines):
    """RENAME and back in one step: who asked before is answered so, who asks afterwards waits."""
    fence = acquire(lines.control)
    before = lines.awaiting("k", fence, LONG_MS)
    lines.control.call_all(("MULTI",), ("RENAME", "k", "other"), ("RENAME", "other", "k"), ("EXEC",))
    assert before.only_reply() == b"deleted"
    after = lines.awaiting("k", fence, LONG_MS)
    lines.control.call("FENCELOCK.RELEASE", "k", "A")
    assert after.only_reply() == b"released"


def test_two_locks_with_one_fence_are_two_holds(lines):
    """A dump that is restored makes a second key with the same hold."""
    fence = acquire(lines.control)
    assert lines.control.call("RESTORE", "copy", 0, lines.control.call("DUMP", "k")) == "OK"
    original, copy = lines.awaiting("k", fence, LONG_MS), lines.awaiting("copy", fence, LONG_MS)
    lines.control.call("DEL", "copy")
    assert copy.only_reply() == b"deleted"
    assert not original.has_reply()
    lines.control.call("FENCELOCK.RELEASE", "k", "A")
    assert original.only_reply() == b"released"


def test_a_reload_ends_no_wait(start):
    lines = start(config={"enable-debug-command": "yes"})
    fence = acquire(lines.control)
    awaiter = lines.awaiting("k", fence, LONG_MS)
    assert lines.control.call("DEBUG", "RELOAD") == "OK"
    lines.control.call("PING")
    assert lines.control.call("FENCELOCK.CHECK", "k", fence) == 1
    assert not awaiter.has_reply()
    assert lines.control.call("FENCELOCK.RELEASE", "k", "A") == 1
    assert awaiter.only_reply() == b"released"


def test_an_await_changes_nothing_and_may_be_all_that_a_user_may(start):
    lines = start()
    fence = acquire(lines.control)
    lines.control.call("ACL", "SETUSER", "observer", "on", ">secret", "%R~k", "+fencelock.await")
    observer = lines.open()
    observer.call("AUTH", "observer", "secret")
    dirty = lines.info("persistence")["rdb_changes_since_last_save"]
    assert observer.call("FENCELOCK.AWAIT", "k", fence, 20) is None
    assert observer.call("FENCELOCK.AWAIT", "other", fence, 20).code == "NOPERM"
    assert lines.info("persistence")["rdb_changes_since_last_save"] == dirty


def test_those_who_await_get_no_reply_from_a_server_that_goes_down(make_redis):
    server = make_redis()
    with Lines(server.port) as lines:
        awaiter = lines.awaiting("k", acquire(lines.control), LONG_MS)
        os.kill(server.pid, signal.SIGTERM)
        with pytest.raises(Closed):
            awaiter.reply()
    eventually(lambda: server.pid, None)
