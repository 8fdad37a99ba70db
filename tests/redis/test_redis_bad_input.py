"""Bad input to every argument of every command: an error that names the argument, and nothing has changed.

The server counts fences without the clock, so that a fence used up by a refused call would show as a gap.
"""

import time

import pytest
import redis

from harness import RedisServer, eventually
from harness.locks import FENCE_MAX, acquire, extend, inspect, release

DAY_MS = 86_400_000
HELD, FREE, NOT_A_LOCK, RESOURCE = b"held", b"free", b"not-a-lock", b"resource"
OWNER = b"A"
HELD_FOR_MS = 600_000
STAMP = 7
HOUR_US = 3_600_000_000

NOT_CANONICAL = {
    "empty": "",
    "space before": " 5",
    "space after": "5 ",
    "newline after": "5\n",
    "plus sign": "+5",
    "minus sign": "-5",
    "leading zero": "05",
    "fraction": "1.5",
    "exponent": "1e3",
    "hex": "0x10",
    "digit of another script": "\u0665",
    "word": "soon",
    "NUL inside": "5\x005",
    "beyond 64 bits": "99999999999999999999",
    "beyond 64 bits by far": "9" * 400,
}
BAD_SPANS = NOT_CANONICAL | {
    "zero": "0",
    "one too many": str(DAY_MS + 1),
    "LLONG_MAX": "9223372036854775807",
    "near LLONG_MAX": "9223372036854775000",
    "ULLONG_MAX": "18446744073709551615",
}
BAD_FENCES = NOT_CANONICAL | {"zero": "0", "2^53": str(FENCE_MAX + 1), "LLONG_MAX": "9223372036854775807"}
BAD_OWNERS = {"empty": b"", "513 bytes": b"x" * 513, "a megabyte": b"x" * 2**20}
OTHER_TYPES = {
    "string": ("SET", NOT_A_LOCK, "v"),
    "list": ("RPUSH", NOT_A_LOCK, "v"),
    "set": ("SADD", NOT_A_LOCK, "v"),
    "sorted set": ("ZADD", NOT_A_LOCK, "1", "v"),
    "hash": ("HSET", NOT_A_LOCK, "name", "v"),
    "stream": ("XADD", NOT_A_LOCK, "*", "name", "v"),
}

SPAN = f"must be an integer from 1 to {DAY_MS}"
FENCE = f"fence must be an integer from 1 to {FENCE_MAX}"


def cases():
    """Every bad call as (id, words, what the error says)."""
    for key in (HELD, FREE):
        where = key.decode()
        for name, value in BAD_SPANS.items():
            at_once = "; omit WAIT to be answered at once" if value == "0" else ""
            yield f"ACQUIRE {where} ttl-ms {name}", ("ACQUIRE", key, OWNER, value), f"ERR ttl-ms {SPAN}"
            yield f"EXTEND {where} ttl-ms {name}", ("EXTEND", key, OWNER, value), f"ERR ttl-ms {SPAN}"
            yield f"AWAIT {where} ms {name}", ("AWAIT", key, "1", value), f"ERR ms {SPAN}"
            yield f"STEAL {where} ttl-ms {name}", ("STEAL", key, OWNER, value), f"ERR ttl-ms {SPAN}"
            for option in ("MAXHOLD", "DELAY"):
                words = ("STEAL", key, OWNER, "1000", option, value)
                yield f"STEAL {where} {option} {name}", words, f"ERR {option} {SPAN}"
            for option in ("WAIT", "MAXHOLD", "DELAY"):
                words = ("ACQUIRE", key, OWNER, "1000", option, value)
                yield f"ACQUIRE {where} {option} {name}", words, f"ERR {option} {SPAN}{at_once if option == 'WAIT' else ''}"
        for name, value in BAD_FENCES.items():
            yield f"STEAL {where} FENCE {name}", ("STEAL", key, OWNER, "1000", "FENCE", value), f"ERR {FENCE}"
            yield f"EXTEND {where} FENCE {name}", ("EXTEND", key, OWNER, "1000", "FENCE", value), f"ERR {FENCE}"
            yield f"RELEASE {where} FENCE {name}", ("RELEASE", key, OWNER, "FENCE", value), f"ERR {FENCE}"
        for name, value in BAD_OWNERS.items():
            said = f"ERR owner must have 1 to 512 bytes, not {len(value)}"
            yield f"ACQUIRE {where} owner {name}", ("ACQUIRE", key, value, "1000"), said
            yield f"STEAL {where} owner {name}", ("STEAL", key, value, "1000"), said
            yield f"EXTEND {where} owner {name}", ("EXTEND", key, value, "1000"), said
            yield f"RELEASE {where} owner {name}", ("RELEASE", key, value), said
        for command, words, option in (
            ("ACQUIRE", ("ACQUIRE", key, OWNER, "1000"), "WAIT"),
            ("ACQUIRE", ("ACQUIRE", key, OWNER, "1000"), "MAXHOLD"),
            ("ACQUIRE", ("ACQUIRE", key, OWNER, "1000"), "DELAY"),
            ("STEAL", ("STEAL", key, OWNER, "1000"), "FENCE"),
            ("STEAL", ("STEAL", key, OWNER, "1000"), "MAXHOLD"),
            ("STEAL", ("STEAL", key, OWNER, "1000"), "DELAY"),
            ("EXTEND", ("EXTEND", key, OWNER, "1000"), "FENCE"),
            ("RELEASE", ("RELEASE", key, OWNER), "FENCE"),
        ):
            at = f"{command} {where}"
            yield f"{at} {option} twice", (*words, option, "5", option.lower(), "5"), f"syntax error: option {option} is given twice"
            yield f"{at} {option} without value", (*words, option), f"syntax error: option {option} has no value"
        for command, words in (
            ("ACQUIRE", ("ACQUIRE", key, OWNER, "1000")),
            ("EXTEND", ("EXTEND", key, OWNER, "1000")),
            ("STEAL", ("STEAL", key, OWNER, "1000")),
            ("RELEASE", ("RELEASE", key, OWNER)),
        ):
            for name, word in (("unknown", "NOSUCH"), ("empty", ""), ("binary", b"\xff\x00\r\n"), ("long", "x" * 5_000)):
                yield f"{command} {where} option {name}", (*words, word), "ERR syntax error: unknown option"
        for options in (("FENCE", "1", "QUEUED"), ("queued", "fence", "1")):
            words = ("RELEASE", key, OWNER, *options)
            yield f"RELEASE {where} {options}", words, "ERR syntax error: options FENCE and QUEUED exclude each other"
        yield f"RELEASE {where} QUEUED twice", ("RELEASE", key, OWNER, "QUEUED", "queued"), "option QUEUED is given twice"
        yield f"RELEASE {where} QUEUED 1", ("RELEASE", key, OWNER, "QUEUED", "1"), "unknown option '1'"
        yield f"EXTEND {where} GT twice", ("EXTEND", key, OWNER, "1000", "GT", "gt"), "option GT is given twice"
        yield f"RELEASE {where} GT", ("RELEASE", key, OWNER, "GT"), "unknown option 'GT'"
        yield f"EXTEND {where} QUEUED", ("EXTEND", key, OWNER, "1000", "QUEUED"), "unknown option 'QUEUED'"
        for option in ("WAIT", "RETRY", "EPHEMERAL", "GT"):
            yield f"STEAL {where} {option}", ("STEAL", key, OWNER, "1000", option, "5"), f"unknown option '{option}'"
        yield f"ACQUIRE {where} FENCE", ("ACQUIRE", key, OWNER, "1000", "FENCE", "1"), "unknown option 'FENCE'"
        yield f"EXTEND {where} MAXHOLD", ("EXTEND", key, OWNER, "1000", "MAXHOLD", "1"), "unknown option 'MAXHOLD'"
        for option in ("RETRY", "EPHEMERAL"):
            words = ("ACQUIRE", key, OWNER, "1000", option, option.lower())
            yield f"ACQUIRE {where} {option} twice", words, f"syntax error: option {option} is given twice"
        # A wait of a day, and an error at once.
        words = ("ACQUIRE", key, OWNER, "1000", "WAIT", str(DAY_MS), "DELAY", "0")
        yield f"ACQUIRE {where} WAIT and a bad DELAY", words, f"ERR DELAY {SPAN}"
        for name, value in BAD_FENCES.items():
            yield f"CHECK {where} {name}", ("CHECK", key, value), f"ERR {FENCE}"
            yield f"AWAIT {where} fence {name}", ("AWAIT", key, value, "1000"), f"ERR {FENCE}"
        for words in (
            ("ACQUIRE", key, OWNER),
            ("EXTEND", key, OWNER),
            ("STEAL", key, OWNER),
            ("RELEASE", key),
            ("CHECK", key),
            ("CHECK", key, "1", "more"),
            ("INSPECT", key, "more"),
            ("AWAIT", key, "1"),
            ("AWAIT", key, "1", "1000", "more"),
            ("STATS", key, "more"),
            ("CLAIM", key),
            ("CLAIM", key, "1", "more"),
            ("WRITE", key, "1", "field"),
        ):
            yield f"{words[0]} {where} with {len(words)} words", words, "wrong number of arguments"
    for name, value in BAD_FENCES.items():
        yield f"CLAIM {name}", ("CLAIM", RESOURCE, value), f"ERR {FENCE}"
        yield f"CLAIM new {name}", ("CLAIM", FREE, value), f"ERR {FENCE}"
        yield f"WRITE {name}", ("WRITE", RESOURCE, value, "field", "new"), f"ERR {FENCE}"
        yield f"RAISE {name}", ("RAISE", value), f"ERR {FENCE}"
    far = str(FENCE_MAX)
    yield "CLAIM far ahead", ("CLAIM", RESOURCE, far), "more than two days ahead of the clock"
    yield "WRITE far ahead", ("WRITE", RESOURCE, far, "field", "new"), "more than two days ahead of the clock"
    yield "RAISE far ahead", ("RAISE", far), "more than an hour ahead of the clock"
    soon = str(time.time_ns() // 1_000 + 2 * HOUR_US)
    yield "RAISE two hours ahead", ("RAISE", soon), "more than an hour ahead of the clock"
    for fields in (("fence", "9"), ("field", "new", "fence", "9"), ("fence", "9", "field", "new")):
        yield f"WRITE {fields}", ("WRITE", RESOURCE, str(STAMP), *fields), "field must not be 'fence'"
    odd = ("WRITE", RESOURCE, str(STAMP), "field", "new", "field2")
    yield "WRITE of 3 words", odd, "field and value must come in pairs"
    yield "WRITE unclaimed", ("WRITE", RESOURCE, str(STAMP + 1), "field", "new"), "has not claimed this resource"
    yield "WRITE to nothing", ("WRITE", FREE, str(STAMP), "field", "new"), "has not claimed this resource"
    for command in ("ACQUIRE", "EXTEND", "RELEASE", "CHECK", "INSPECT", "CLAIM", "WRITE", "RAISE"):
        yield f"{command} alone", (command,), "wrong number of arguments"
    yield "RAISE twice", ("RAISE", "1", "2"), "wrong number of arguments"
    yield "TOP of nothing", ("TOP", "0"), "ERR n must be an integer from 1 to 1000"
    yield "TOP alone", ("TOP",), "wrong number of arguments"
    yield "HELP me", ("HELP", "me"), "wrong number of arguments"


CASES = list(cases())


@pytest.fixture(scope="module")
def counting_server():
    """A server that counts its fences 1, 2, 3."""
    server = RedisServer(("fence-clock", "no")).start()
    yield server
    server.close()


@pytest.fixture(scope="module")
def counting(counting_server):
    """A client of that server, where A holds the lock `held` and a resource has been claimed and written."""
    with redis.Redis(port=counting_server.port, protocol=2) as client:
        acquire(client, HELD, OWNER, HELD_FOR_MS)
        client.execute_command("FENCELOCK.CLAIM", RESOURCE, STAMP)
        client.execute_command("FENCELOCK.WRITE", RESOURCE, STAMP, "field", "old")
        yield client


@pytest.fixture
def unchanged(counting):
    """Proves after the test that it left the lease, the keys, the resource and the count of fences alone."""
    last = last_issued(counting)
    before, keys, resource = inspect(counting, HELD), sorted(counting.keys()), counting.hgetall(RESOURCE)
    yield
    after = inspect(counting, HELD)
    assert after.hold == before.hold
    assert before.ttl_ms - 60_000 < after.ttl_ms <= before.ttl_ms
    assert sorted(counting.keys()) == keys
    assert counting.hgetall(RESOURCE) == resource == {b"fence": b"%d" % STAMP, b"field": b"old"}
    assert last_issued(counting) == last + 1


def last_issued(client):
    """The last issued fence, found by issuing one more."""
    fence = acquire(client, "probe", "probe", HELD_FOR_MS)
    assert release(client, "probe", "probe", fence) == 1
    return fence


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(("words", "said"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_bad_argument_is_named_and_changes_nothing(counting, words, said):
    command, *args = words
    with pytest.raises(redis.ResponseError) as refused:
        counting.execute_command(f"FENCELOCK.{command}", *args)
    # redis-py takes the code word ERR off.
    assert said.removeprefix("ERR ") in str(refused.value)
    assert len(str(refused.value)) < 300


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("make", OTHER_TYPES.values(), ids=OTHER_TYPES)
def test_a_key_of_another_type_is_a_wrongtype_error_and_stays(counting, make):
    counting.execute_command(*make)
    before = counting.dump(NOT_A_LOCK)
    for words in (
        ("ACQUIRE", NOT_A_LOCK, OWNER, "1000"),
        ("EXTEND", NOT_A_LOCK, OWNER, "1000"),
        ("EXTEND", NOT_A_LOCK, OWNER, "1000", "FENCE", "1"),
        ("RELEASE", NOT_A_LOCK, OWNER),
        ("RELEASE", NOT_A_LOCK, OWNER, "FENCE", "1"),
        ("CHECK", NOT_A_LOCK, "1"),
        ("INSPECT", NOT_A_LOCK),
        ("ACQUIRE", NOT_A_LOCK, OWNER, "1000", "WAIT", str(DAY_MS)),
        *([] if make[0] == "HSET" else [("CLAIM", NOT_A_LOCK, "1"), ("WRITE", NOT_A_LOCK, "1", "field", "new")]),
    ):
        with pytest.raises(redis.ResponseError, match="^WRONGTYPE "):
            counting.execute_command(f"FENCELOCK.{words[0]}", *words[1:])
    assert counting.dump(NOT_A_LOCK) == before
    counting.delete(NOT_A_LOCK)


@pytest.mark.usefixtures("unchanged")
def test_a_lock_is_no_resource(counting):
    for words in (("CLAIM", HELD, "1"), ("WRITE", HELD, "1", "field", "new")):
        with pytest.raises(redis.ResponseError, match="^WRONGTYPE "):
            counting.execute_command(f"FENCELOCK.{words[0]}", *words[1:])


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "words",
    [("APPEND", "1"), ("INCR",), ("GETSET", "v"), ("HSET", "f", "v"), ("GET",), ("STRLEN",), ("SETRANGE", "0", "v")],
    ids=lambda words: words[0],
)
def test_commands_of_other_types_neither_read_nor_forge_a_lease(counting, words):
    command, *args = words
    with pytest.raises(redis.ResponseError, match="^WRONGTYPE "):
        counting.execute_command(command, HELD, *args)


@pytest.mark.usefixtures("unchanged")
def test_a_bad_call_in_a_transaction_or_script_changes_nothing(counting):
    with counting.pipeline(transaction=True) as transaction:
        transaction.execute_command("FENCELOCK.ACQUIRE", FREE, OWNER, "0")
        transaction.execute_command("FENCELOCK.EXTEND", HELD, OWNER, "1.5")
        replies = transaction.execute(raise_on_error=False)
    assert ["ttl-ms" in str(reply) for reply in replies] == [True, True]
    with pytest.raises(redis.ResponseError, match="ttl-ms"):
        counting.eval("return redis.call('FENCELOCK.ACQUIRE', KEYS[1], 'A', '0')", 1, FREE)


def test_the_bounds_themselves_are_accepted(counting):
    fence = acquire(counting, "edge", b"x" * 512, DAY_MS)
    assert extend(counting, "edge", b"x" * 512, DAY_MS, fence) == DAY_MS
    assert extend(counting, "edge", b"x" * 512, DAY_MS, FENCE_MAX) == 0
    assert extend(counting, "edge", b"x" * 512, 1, fence) == 1
    assert acquire(counting, "edge2", b"x", 1)
    # What comes next is to find the same keys before and after.
    eventually(lambda: counting.exists("edge", "edge2"), 0)


@pytest.mark.parametrize("option", ["FENCE", "fence", "Fence"])
def test_options_are_read_in_any_case(counting, option):
    fence = acquire(counting, "case", "A", 10_000)
    assert counting.execute_command("FENCELOCK.EXTEND", "case", "A", "10000", option, fence) > 0
    assert counting.execute_command("FENCELOCK.RELEASE", "case", "A", option, fence) == 1
