"""What the manual warns of is so: what callers, Lua, connections, ACLs and copies of files make of a lock.

Callers that gave up are in test_redis_queue.
"""

import json
import re

import pytest

from harness import eventually, places
from harness.redis_calls import Closed, Lines, Refused

LONG_MS = 60_000
README = (places.ROOT / "redis_fencelock" / "README.md").read_text()


def acquire(line, key, *options, owner="A", ttl_ms=LONG_MS):
    return line.call("FENCELOCK.ACQUIRE", key, owner, ttl_ms, *options)


def check(lines, key, fence):
    return lines.control.call("FENCELOCK.CHECK", key, fence)


# --- a fence in Lua and JSON

PRINTED = """
local fence = redis.call('FENCELOCK.ACQUIRE', KEYS[1], 'A', 60000)
local claimed = redis.call('FENCELOCK.CLAIM', KEYS[2], fence)
return {fence, tostring(fence), '' .. fence, cjson.encode(fence), string.format('%.0f', fence), claimed[2]}
"""


def test_lua_prints_a_fence_wrongly_in_every_way_but_one(lines):
    fence, as_text, joined, as_json, whole, claimed = lines.control.call("EVAL", PRINTED, 2, "k", "resource")
    assert fence > 10**15
    for wrong in (as_text, joined, as_json):
        assert re.fullmatch(rb"\d\.\d{1,13}e\+15", wrong)
    assert whole == claimed == str(fence).encode()
    # Refused as text, and silently another number through JSON.
    assert "fence must be an integer" in lines.control.call("FENCELOCK.CHECK", "k", as_text)
    through_json = json.loads(as_json)
    assert through_json == pytest.approx(fence)
    assert int(through_json) != fence or fence % 100 == 0


# --- connections


def test_a_release_behind_a_wait_on_one_connection_waits_with_it(lines):
    """So a client that shares a connection blocks itself: it waits for the lock that it would release."""
    shared = lines.open()
    acquire(shared, "mine")
    acquire(lines.control, "theirs", owner="B")
    shared.send_all(("FENCELOCK.ACQUIRE", "theirs", "A", LONG_MS, "WAIT", LONG_MS), ("FENCELOCK.RELEASE", "mine", "A"))
    eventually(lambda: lines.count("waiters"), 1)
    assert lines.control.call("EXISTS", "mine") == 1
    lines.control.call("FENCELOCK.RELEASE", "theirs", "B")
    assert shared.reply() > 0
    assert shared.only_reply() == 1


def test_the_time_out_of_the_server_ends_ephemeral_leases_and_no_wait(start):
    lines = start()
    acquire(lines.control, "held")
    waiter = lines.queue("held", "W", LONG_MS, LONG_MS)
    idle = lines.open()
    fence = acquire(idle, "k", "EPHEMERAL")
    lines.control.call("CONFIG", "SET", "timeout", 1)
    eventually(lambda: check(lines, "k", fence), 0)
    with pytest.raises(Closed):
        idle.reply()
    assert lines.count("waiters") == 1
    lines.control.call("FENCELOCK.RELEASE", "held", "A")
    assert waiter.reply() > 0


def test_reset_keeps_an_ephemeral_lease_and_closing_ends_it(lines):
    line = lines.open()
    fence = acquire(line, "k", "EPHEMERAL")
    assert line.call("RESET") == "RESET"
    assert line.call("PING") == "PONG"
    assert check(lines, "k", fence) == 1
    line.close()
    eventually(lambda: check(lines, "k", fence), 0)


def test_a_repeated_call_does_not_tell_that_the_lease_is_nearly_over(lines):
    fence = acquire(lines.control, "k", ttl_ms=5_000)
    assert acquire(lines.control, "k", "RETRY") == fence
    told = lines.control.call("FENCELOCK.INSPECT", "k")
    assert told[told.index(b"ttl-ms") + 1] <= 5_000
    assert lines.control.call("FENCELOCK.EXTEND", "k", "A", LONG_MS, "FENCE", fence) == LONG_MS


def test_a_time_to_live_of_the_stamp_lets_a_stale_fence_claim(lines):
    for claimed in (41, 42):
        lines.control.call("FENCELOCK.CLAIM", "resource", claimed)
    assert lines.control.call("FENCELOCK.CLAIM", "resource", 41) is None
    told = lines.control.call("HPEXPIRE", "resource", 1, "FIELDS", 1, "fence")
    if isinstance(told, Refused):
        # Older servers have no such thing, and the same comes of HDEL.
        assert "unknown command" in told
        lines.control.call("HDEL", "resource", "fence")
    eventually(lambda: lines.control.call("FENCELOCK.CLAIM", "resource", 41), [b"fence", b"41"])


def test_an_ephemeral_lease_costs_no_more_than_the_manual_says(start):
    (said,) = re.findall(r"Costs some (\d+) bytes more", README)
    lines, count = start(), 5_000

    def cost(*options):
        holder, before = lines.open(), lines.memory()
        for first in range(0, count, 500):
            names = [f"lock:{number:06d}" for number in range(first, first + 500)]
            holder.call_all(*(("FENCELOCK.ACQUIRE", name, "o" * 36, LONG_MS, *options) for name in names))
        used = lines.memory() - before
        lines.control.call("FLUSHALL")
        return used / count

    # Some rounds also pay for tables that the server makes anew.
    ephemeral, plain = (min(cost(*options) for _ in range(4)) for options in (("EPHEMERAL",), ()))
    assert ephemeral - plain <= 1.3 * int(said)


# --- ACL


def user_of(lines, name):
    """A connection of the user that a line of the manual makes."""
    (line,) = re.findall(rf"^ACL SETUSER {name} .*$", README, re.MULTILINE)
    assert lines.control.call(*line.split()) == "OK"
    connection = lines.open()
    assert connection.call("AUTH", name, "secret") == "OK"
    return connection


def test_the_worker_of_the_manual_may_lock_what_it_owns_and_nothing_else(start):
    lines = start()
    worker = user_of(lines, "worker")
    fence = acquire(worker, "app:k")
    assert worker.call("FENCELOCK.EXTEND", "app:k", "A", LONG_MS) == LONG_MS
    assert worker.call("FENCELOCK.CHECK", "app:k", fence) == 1
    assert len(worker.call("FENCELOCK.INSPECT", "app:k")) == 14
    assert worker.call("FENCELOCK.RELEASE", "app:k", "A") == 1
    for words in (
        ("FENCELOCK.ACQUIRE", "k", "A", LONG_MS),
        ("FENCELOCK.RAISE", 1),
        ("FENCELOCK.TOP", 1),
        ("FENCELOCK.CLAIM", "app:r", 1),
        ("GET", "app:k"),
    ):
        assert worker.call(*words).code == "NOPERM", words


def test_the_user_of_the_manual_may_not_raise_fences(start):
    lines = start()
    app = user_of(lines, "app")
    assert app.call("FENCELOCK.RAISE", 1).code == "NOPERM"
    assert app.call("FLUSHALL").code == "NOPERM"
    assert acquire(app, "k") > 0
    assert app.call("SET", "other", 1) == "OK"


def test_categories_bind_the_commands_only_where_modules_may_have_any(start):
    lines = start()
    has_categories = b"fencelock.raise" in lines.control.call("ACL", "CAT", "dangerous")
    raises, reads = lines.open(), lines.open()
    lines.control.call("ACL", "SETUSER", "raises", "on", ">secret", "~*", "+@all", "-@dangerous", "-@admin")
    lines.control.call("ACL", "SETUSER", "reads", "on", ">secret", "~*", "+@all", "-@write")
    raises.call("AUTH", "raises", "secret")
    reads.call("AUTH", "reads", "secret")
    refused = [isinstance(told, Refused) for told in (raises.call("FENCELOCK.RAISE", 1), acquire(reads, "k"))]
    assert refused == [has_categories] * 2


# --- what carries a lock


def test_a_pipe_of_the_append_only_file_carries_other_keys_and_no_lock(make_redis):
    source = make_redis(config={"appendonly": "yes", "appendfsync": "always"})
    target = make_redis()
    with Lines(source.port) as lines, Lines(target.port) as copied:
        acquire(lines.control, "k")
        lines.control.call("SET", "other", "v")
        (file,) = source.data_dir.glob("appendonlydir/*.incr.aof")
        with file.open("rb") as commands:
            piped = target.cli("--pipe", stdin=commands)
        assert re.search(r"errors: [1-9]", piped), piped
        assert copied.control.call("KEYS", "*") == [b"other"]
        assert lines.control.call("KEYS", "k") == [b"k"]
