"""CLAIM and WRITE: a Redis hash as the resource that a fence protects.

Claim first, then read, then write while the stamp is still yours. A refused call changes nothing.
"""

import threading
import time

import pytest
import redis

from harness import eventually
from harness.redis_calls import Lines, Refused
from harness.locks import FENCE_MAX

DAY_US = 86_400_000_000


@pytest.fixture
def lines(r, redis_server):
    """Raw connections to the shared server, which is empty."""
    with Lines(redis_server.port) as lines:
        yield lines


def claim(line, fence, key="res"):
    return line.call("FENCELOCK.CLAIM", key, fence)


def write(line, fence, *fields, key="res"):
    return line.call("FENCELOCK.WRITE", key, fence, *fields)


def content(lines, key="res"):
    told = lines.control.call("HGETALL", key)
    return dict(zip(told[::2], told[1::2], strict=True))


def as_dict(reply):
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


# --- the rule


def test_a_claim_stamps_a_new_resource_and_returns_its_only_field(lines):
    assert claim(lines.control, 33) == [b"fence", b"33"]
    assert lines.control.call("TYPE", "res") == "hash"
    assert content(lines) == {b"fence": b"33"}


def test_a_claim_returns_all_fields_as_they_are_after_the_stamp(lines):
    lines.control.call("HSET", "res", "stock", 7, "name", "ünï\x00")
    assert as_dict(claim(lines.control, 33)) == {b"stock": b"7", b"name": "ünï\x00".encode(), b"fence": b"33"}


@pytest.mark.parametrize(("protocol", "kind"), [(2, list), (3, dict)])
def test_a_claim_is_told_as_hgetall_is(lines, protocol, kind):
    line = lines.open(protocol=protocol)
    line.call("HSET", "res", "a", 1, "b", 2)
    told = claim(line, 33)
    assert isinstance(told, kind)
    assert told == line.call("HGETALL", "res")
    assert write(line, 33, "a", 2) == 1
    assert claim(line, 32) is None


def test_scripts_and_transactions_claim_and_write_too(lines):
    calls = (
        "local seen = redis.call('FENCELOCK.CLAIM', 'res', 33) "
        "return {seen, redis.call('FENCELOCK.WRITE', 'res', 33, 'a', 1)}"
    )
    assert lines.control.call("EVAL", calls, 0) == [[b"fence", b"33"], 1]
    resp3 = "redis.setresp(3) return redis.call('FENCELOCK.CLAIM', 'res', 34).map.fence"
    assert lines.control.call("EVAL", resp3, 0) == b"34"
    told = lines.control.call_all(
        ("MULTI",), ("FENCELOCK.CLAIM", "res", 35), ("FENCELOCK.WRITE", "res", 35, "a", 2), ("EXEC",)
    )[-1]
    assert (as_dict(told[0])[b"fence"], told[1]) == (b"35", 1)
    assert content(lines) == {b"fence": b"35", b"a": b"2"}


def test_an_equal_fence_claims_again_and_an_older_one_is_stale(lines):
    line = lines.control
    assert claim(line, 33)
    assert write(line, 33, "stock", 7) == 1
    assert as_dict(claim(line, 33)) == {b"fence": b"33", b"stock": b"7"}
    assert claim(line, 34)
    before = content(lines)
    assert claim(line, 33) is None
    assert claim(line, 1) is None
    assert content(lines) == before


def test_a_write_passes_while_the_stamp_is_the_callers_and_is_stale_after(lines):
    line = lines.control
    claim(line, 33)
    assert write(line, 33, "stock", 7, "seen", "yes") == 1
    assert write(line, 33, "stock", 6) == 1
    claim(line, 34)
    assert write(line, 33, "stock", 0) == 0
    assert content(lines) == {b"fence": b"34", b"stock": b"6", b"seen": b"yes"}


@pytest.mark.parametrize("setup", ["nothing", "hash without a stamp", "older stamp", "stamp of 0"])
def test_a_write_without_a_claim_is_an_error_that_says_to_claim(lines, setup):
    fields = {
        "nothing": (),
        "hash without a stamp": ("a", 1),
        "older stamp": ("fence", 32),
        "stamp of 0": ("fence", 0),
    }[setup]
    if fields:
        lines.control.call("HSET", "res", *fields)
    before = content(lines)
    told = write(lines.control, 33, "stock", 7)
    assert told.code == "UNCLAIMED"
    assert f"stamp is {fields[1] if 'fence' in fields else 0}" in told
    assert "claim" in told
    assert content(lines) == before


def test_the_late_write_of_a_stale_worker_is_refused_in_the_whole_story(lines):
    """A reads 10 and stalls; B takes over and writes; A's write, and its claim, come too late."""
    a, b = lines.open(), lines.open()
    lines.control.call("HSET", "res", "balance", 10)
    fence_a = a.call("FENCELOCK.ACQUIRE", "lock", "A", 20)
    assert as_dict(claim(a, fence_a))[b"balance"] == b"10"
    fence_b = b.call("FENCELOCK.ACQUIRE", "lock", "B", 60_000, "WAIT", 60_000)
    assert fence_b > fence_a
    assert as_dict(claim(b, fence_b))[b"balance"] == b"10"
    assert write(a, fence_a, "balance", 9) == 0
    assert write(b, fence_b, "balance", 9) == 1
    assert claim(a, fence_a) is None
    assert content(lines)[b"balance"] == b"9"


def test_fences_are_compared_as_whole_numbers_and_not_as_texts_or_floats(lines):
    """9 and 10 as texts, and neighbours that a double could not distinguish without the limit."""
    line = lines.control
    assert claim(line, 9)
    assert claim(line, 10)
    assert claim(line, 9) is None
    now = time.time_ns() // 1_000
    assert claim(line, now)
    assert claim(line, now + 1)
    assert claim(line, now) is None
    assert write(line, now + 1, "a", 1) == 1
    assert write(line, now, "a", 2) == 0
    # The largest that may be stored; no caller comes near it.
    line.call("HSET", "res", "fence", FENCE_MAX)
    assert claim(line, now + 2) is None
    assert write(line, now + 2, "a", 3) == 0


@pytest.mark.parametrize(
    "stored",
    [
        *("", " 33", "33 ", "+33", "-33", "033", "33.0", "3e1", "0x21", "abc", "33\0", "３３"),
        *(str(FENCE_MAX + 1), str(2**63), str(2**64 + 33), "9" * 400),
    ],
)
@pytest.mark.parametrize("call", [claim, lambda line, fence: write(line, fence, "a", 1)], ids=["CLAIM", "WRITE"])
def test_a_stored_fence_that_is_no_fence_is_an_error_and_nothing_changes(lines, call, stored):
    lines.control.call("HSET", "res", "fence", stored, "a", 0)
    before = content(lines)
    told = call(lines.control, 33)
    assert isinstance(told, Refused)
    assert "the stored fence of this resource is not an integer up to 9007199254740991" in told
    assert content(lines) == before


@pytest.mark.parametrize("call", [claim, lambda line, fence: write(line, fence, "a", 1)], ids=["CLAIM", "WRITE"])
def test_a_fence_more_than_a_day_ahead_of_the_clock_is_refused_and_one_within_is_taken(lines, call):
    now = time.time_ns() // 1_000
    claim(lines.control, 33)
    before = content(lines)
    for fence in (now + 2 * DAY_US + 60_000_000, FENCE_MAX):
        told = call(lines.control, fence)
        assert "more than two days ahead of the clock: the largest accepted now is " in told
        horizon = int(told.rsplit(" ", 1)[1])
        assert now + 2 * DAY_US <= horizon <= now + 2 * DAY_US + 60_000_000
        assert content(lines) == before
    fence = now + 2 * DAY_US - 60_000_000
    assert as_dict(claim(lines.control, fence)) == {b"fence": str(fence).encode()}
    assert call(lines.control, fence)


def test_the_stamp_is_not_a_field_to_write_but_other_spellings_are(lines):
    line = lines.control
    claim(line, 33)
    for fields in (("fence", 99), ("a", 1, "fence", 99), ("fence", 33)):
        assert "field must not be 'fence'" in write(line, 33, *fields)
    assert content(lines) == {b"fence": b"33"}
    assert write(line, 33, "FENCE", 1, "fence ", 2, "fence\0", 3, "", 4, "value", "fence") == 1
    assert content(lines)[b"fence"] == b"33"
    assert lines.control.call("HLEN", "res") == 6


@pytest.mark.parametrize("fields", [("a",), ("a", 1, "b"), ()], ids=["no value", "odd", "none"])
def test_fields_come_in_pairs(lines, fields):
    claim(lines.control, 33)
    assert isinstance(write(lines.control, 33, *fields), Refused)
    assert content(lines) == {b"fence": b"33"}


MAKERS = {
    "string": ("SET", "res", "v"),
    "list": ("RPUSH", "res", "v"),
    "set": ("SADD", "res", "v"),
    "sorted set": ("ZADD", "res", 1, "v"),
    "stream": ("XADD", "res", "*", "f", "v"),
    "lock": ("FENCELOCK.ACQUIRE", "res", "A", 60_000),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_key_of_another_type_is_a_wrongtype_error_and_stays(lines, make):
    lines.control.call(*make)
    before = lines.control.call("DUMP", "res")
    kind = lines.control.call("TYPE", "res")
    assert claim(lines.control, 33).code == "WRONGTYPE"
    assert write(lines.control, 33, "a", 1).code == "WRONGTYPE"
    assert lines.control.call("TYPE", "res") == kind
    if kind != "fencelock":
        assert lines.control.call("DUMP", "res") == before


# --- the server around it


def test_a_ttl_of_the_resource_is_kept(lines):
    claim(lines.control, 33)
    lines.control.call("PEXPIRE", "res", 60_000)
    claim(lines.control, 34)
    write(lines.control, 34, "a", 1)
    assert 50_000 < lines.control.call("PTTL", "res") <= 60_000


def test_a_resource_that_has_expired_is_a_new_one(lines):
    claim(lines.control, 34)
    lines.control.call("PEXPIRE", "res", 1)
    eventually(lambda: lines.control.call("EXISTS", "res"), 0)
    assert claim(lines.control, 33) == [b"fence", b"33"]


def test_thousands_of_fields_are_written_and_returned(lines):
    claim(lines.control, 33)
    fields = [word for number in range(5_000) for word in (f"field{number}", f"value{number}")]
    assert write(lines.control, 33, *fields) == 1
    told = as_dict(claim(lines.control, 34))
    assert len(told) == 5_001
    assert told[b"field4999"] == b"value4999"
    assert told[b"fence"] == b"34"


def test_large_values_and_any_bytes_are_kept(lines):
    claim(lines.control, 33)
    value = bytes(range(256)) * 8_192
    assert write(lines.control, 33, b"\0\r\n", value) == 1
    assert as_dict(claim(lines.control, 33))[b"\0\r\n"] == value


def test_events_of_the_hash_are_those_of_hset(r, redis_server):
    with redis.Redis(port=redis_server.port) as listener, listener.pubsub() as events:
        r.config_set("notify-keyspace-events", "KA")
        try:
            events.psubscribe("__keyspace@0__:res")
            assert events.get_message(timeout=60)["type"] == "psubscribe"
            for words in (
                ("CLAIM", "res", 33),
                ("CLAIM", "res", 33),
                ("WRITE", "res", 33, "a", 1),
                ("CLAIM", "res", 32),
                ("WRITE", "res", 32, "a", 1),
            ):
                r.execute_command(f"FENCELOCK.{words[0]}", *words[1:])
            r.set("res", "done")
            seen = []
            while seen[-1:] != [b"set"]:
                seen.append(events.get_message(timeout=60)["data"])
        finally:
            r.config_set("notify-keyspace-events", "")
    # One for the first claim and one for the write: what changes nothing propagates nothing.
    assert seen == [b"hset", b"hset", b"set"]


@pytest.mark.parametrize(
    ("words", "aborts"),
    [
        (("CLAIM", "res", 34), True),
        (("CLAIM", "new", 34), True),
        (("WRITE", "res", 33, "a", 1), True),
        (("CLAIM", "res", 33), False),
        (("CLAIM", "res", 32), False),
        (("WRITE", "res", 32, "a", 1), False),
        (("WRITE", "res", 34, "a", 1), False),
        (("WRITE", "res", 33, "fence", 1), False),
        (("CLAIM", "broken", 33), False),
        (("CLAIM", "string", 33), False),
    ],
)
def test_only_a_change_aborts_a_watch(lines, words, aborts):
    claim(lines.control, 33)
    lines.control.call("HSET", "broken", "fence", "x")
    lines.control.call("SET", "string", "v")
    watcher = lines.open()
    watcher.call("WATCH", "res", "new", "broken", "string")
    lines.control.call(f"FENCELOCK.{words[0]}", *words[1:])
    told = watcher.call_all(("MULTI",), ("ECHO", "ran"), ("EXEC",))[-1]
    assert told == (None if aborts else [b"ran"])


def test_claims_and_writes_are_replicated_as_hset(make_redis):
    """The commands themselves read the clock, which differs: the replica and the file get the effect."""
    at_once = {"repl-diskless-sync": "no", "repl-ping-replica-period": "1"}
    server = make_redis(config={"appendonly": "yes", "appendfsync": "always", **at_once})
    replica = make_redis(config=at_once)
    with Lines(server.port) as lines, Lines(replica.port) as following:
        following.control.call("REPLICAOF", "127.0.0.1", server.port)
        eventually(lambda: b"state=online" in lines.control.call("INFO", "replication"))
        lines.control.call("CONFIG", "RESETSTAT")
        following.control.call("CONFIG", "RESETSTAT")
        claim(lines.control, 33)
        write(lines.control, 33, "a", 1, "b", 2)
        claim(lines.control, 32)
        claim(lines.control, 33)
        write(lines.control, 32, "a", 9)
        write(lines.control, 34, "a", 9)
        lines.control.call_all(
            ("MULTI",), ("FENCELOCK.CLAIM", "res", 35), ("FENCELOCK.WRITE", "res", 35, "a", 3), ("EXEC",)
        )
        assert lines.control.call("WAIT", 1, 5_000) == 1
        assert content(following) == content(lines) == {b"fence": b"35", b"a": b"3", b"b": b"2"}
        calls = following.control.call("INFO", "commandstats").decode()
        assert "cmdstat_hset:calls=4," in calls
        assert "fencelock" not in calls
        # A replica answers no claim, even where it lets clients write.
        following.control.call("CONFIG", "SET", "replica-read-only", "no")
        assert claim(following.control, 99).code == "READONLY"
        assert write(following.control, 35, "a", 9).code == "READONLY"
        assert content(following) == content(lines)
    server.kill()
    assert b"FENCELOCK.CLAIM" not in aof(server)
    server.start()
    with Lines(server.port) as lines:
        assert content(lines) == {b"fence": b"35", b"a": b"3", b"b": b"2"}
        assert claim(lines.control, 34) is None


def aof(server):
    return b"".join(file.read_bytes() for file in server.data_dir.glob("appendonlydir/*"))


def test_a_full_server_refuses_claims_and_writes_and_changes_nothing(make_redis):
    with Lines(make_redis(config={"maxmemory-policy": "noeviction"}).port) as lines:
        claim(lines.control, 33)
        lines.control.call("CONFIG", "SET", "maxmemory", "1")
        assert claim(lines.control, 34).code == "OOM"
        assert write(lines.control, 33, "a", 1).code == "OOM"
        lines.control.call("CONFIG", "SET", "maxmemory", "0")
        assert content(lines) == {b"fence": b"33"}


def test_the_stamp_is_lost_with_the_hash(lines):
    claim(lines.control, 34)
    lines.control.call("DEL", "res")
    assert claim(lines.control, 33) == [b"fence", b"33"]


def test_under_a_storm_of_claims_the_stamp_never_goes_down_and_only_its_owner_writes(redis_server, r):
    """Threads claim with rising and falling fences and write their fence into a field: it may never be above the stamp,
    and a write that was accepted was accepted under its own stamp."""
    failures = []

    def run(seed):
        with Lines(redis_server.port) as lines:
            for number in range(400):
                fence = 1 + (number * 7 + seed * 13) % 500 + number
                if claim(lines.control, fence) is not None:
                    told = write(lines.control, fence, "by", fence)
                    stamp, by = lines.control.call("HMGET", "res", "fence", "by")
                    if not isinstance(told, int) or int(by or 0) > int(stamp):
                        failures.append((fence, told, stamp, by))

    def watch(stop):
        with Lines(redis_server.port) as lines:
            last = 0
            while not stop.is_set():
                stamp = int(lines.control.call("HGET", "res", "fence") or 0)
                if stamp < last:
                    failures.append((last, stamp))
                last = stamp

    stop = threading.Event()
    watcher = threading.Thread(target=watch, args=(stop,))
    workers = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in (watcher, *workers):
        thread.start()
    for thread in workers:
        thread.join()
    stop.set()
    watcher.join()
    assert failures == []
