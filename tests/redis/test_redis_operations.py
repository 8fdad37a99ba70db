"""What operators see and set: STATS, INFO, HELP, RAISE, settings, what the server knows of the commands, ACL, keyspace
events, and warnings in the log."""

import re
import time
from pathlib import Path

import pytest

from harness import RedisServer, ServerFailed, eventually, places
from harness.redis_calls import Line, Lines, Refused
from harness.redis_server import server_version
from harness.locks import SKIPPED, FENCE_MAX

LONG_MS = 60_000
HOUR_US = 3_600_000_000
README = places.ROOT / "redis_fencelock" / "README.md"
COMMANDS = ("ACQUIRE", "STEAL", "EXTEND", "RELEASE", "CHECK", "INSPECT", "AWAIT", "CLAIM", "WRITE", "STATS", "TOP", "RAISE", "HELP")
COUNTERS = (
    *("grants", "busy", "waits", "wait-timeouts", "hand-overs", "undone-grants", "releases", "extensions", "late-releases"),
    *("late-extensions", "unknown-releases", "unknown-extensions", "ran-out", "maxhold-ends", "steals", "awaits", "evicted-leases", "slot-probes", "claims", "claims-stale", "writes"),
    *("writes-stale", "unclaimed"),
)
GAUGES = ("live-leases", "waiters", "awaiters", "last-fence", "index-bytes")
OF_A_NAME = (
    *("grants", "busy", "waits", "wait-timeouts", "late-releases", "late-extensions", "ran-out", "claims-stale"),
    *("writes-stale", "contended", "longest-hold-ms", "longest-wait-ms", "waiters"),
)


def call(lines, command, *words):
    return lines.control.call(f"FENCELOCK.{command}", *words)


# --- STATS


def test_stats_has_exactly_the_documented_counters(lines):
    assert tuple(lines.stats()) == COUNTERS + GAUGES
    call(lines, "ACQUIRE", "k", "A", LONG_MS)
    assert tuple(lines.stats("k")) == OF_A_NAME
    text = README.read_text()
    table = text[text.index("| counter | counts |") : text.index("With a key:")]
    assert set(re.findall(r"`([a-z-]+)`", table)) == set(COUNTERS + GAUGES)
    with_a_key = text[text.index("With a key:") : text.index("`INFO fencelock`")]
    assert tuple(re.findall(r"`([a-z-]+)`", with_a_key)) == OF_A_NAME


@pytest.mark.parametrize(("protocol", "kind"), [(2, list), (3, dict)])
def test_stats_is_a_flat_array_in_resp2_and_a_map_in_resp3(lines, protocol, kind):
    call(lines, "ACQUIRE", "k", "A", LONG_MS)
    line = lines.open(protocol=protocol)
    assert isinstance(line.call("FENCELOCK.STATS"), kind)
    assert isinstance(line.call("FENCELOCK.STATS", "k"), kind)
    assert line.call("FENCELOCK.STATS", "a name that no test uses") is None


def grant_to_a_client_that_is_gone(lines):
    gone = lines.queue("held", "W", LONG_MS, LONG_MS)
    lines.open().call_all(("FENCELOCK.RELEASE", "held", "A"), ("CLIENT", "KILL", "ID", gone.id))
    eventually(lambda: call(lines, "INSPECT", "held"), None)


def hand_over(lines):
    waiter = lines.queue("held", "W", LONG_MS, LONG_MS)
    call(lines, "RELEASE", "held", "A")
    waiter.reply()


def leave_the_queue(lines):
    waiter = lines.queue("held", "W", LONG_MS, LONG_MS)
    assert call(lines, "RELEASE", "held", "W", "QUEUED") == 1
    waiter.reply()


def run_out(lines, *options):
    call(lines, "ACQUIRE", "k", "A", 20, *options)
    eventually(lambda: lines.control.call("EXISTS", "k"), 0)


def run_out_with_delay(lines):
    before = lines.stats()["ran-out"]
    call(lines, "ACQUIRE", "k", "A", 20, "DELAY", LONG_MS)
    eventually(lambda: lines.stats()["ran-out"], before + 1)


def evict(lines):
    lines.control.call("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
    lines.control.call_all(("CONFIG", "SET", "maxmemory", "1"), ("PING",), ("CONFIG", "SET", "maxmemory", "0"))


# What moves which counters, on a server where A holds `held` and 33 is the stamp of `res`.
MOVES = {
    "a grant": (lambda lines: call(lines, "ACQUIRE", "k", "A", LONG_MS), {"grants": 1}),
    "a grant in a wait that was none": (
        lambda lines: call(lines, "ACQUIRE", "k", "A", 9_999, "WAIT", 9_999),
        {"grants": 1},
    ),
    "busy": (lambda lines: call(lines, "ACQUIRE", "held", "B", LONG_MS), {"busy": 1}),
    "a repeated call": (lambda lines: call(lines, "ACQUIRE", "held", "A", LONG_MS, "RETRY"), {}),
    "a bad argument": (lambda lines: call(lines, "ACQUIRE", "held", "A", "x"), {}),
    "a wait that runs out": (
        lambda lines: call(lines, "ACQUIRE", "held", "B", LONG_MS, "WAIT", 10),
        {"waits": 1, "wait-timeouts": 1},
    ),
    "a hand-over": (hand_over, {"grants": 1, "waits": 1, "hand-overs": 1, "releases": 1}),
    "a grant undone": (
        grant_to_a_client_that_is_gone,
        {"grants": 1, "waits": 1, "hand-overs": 1, "releases": 1, "undone-grants": 1},
    ),
    "a release": (lambda lines: call(lines, "RELEASE", "held", "A"), {"releases": 1}),
    "a release by another": (lambda lines: call(lines, "RELEASE", "held", "B"), {"unknown-releases": 1}),
    "a release of nothing": (lambda lines: call(lines, "RELEASE", "never", "A"), {"unknown-releases": 1}),
    "a second release": (
        lambda lines: [call(lines, "RELEASE", "held", "A") for _ in range(2)],
        {"releases": 1, "unknown-releases": 1},
    ),
    "a release after DEL": (
        lambda lines: (lines.control.call("DEL", "held"), call(lines, "RELEASE", "held", "A")),
        {"unknown-releases": 1},
    ),
    "a late release": (
        lambda lines: (run_out(lines), call(lines, "RELEASE", "k", "A")),
        {"grants": 1, "ran-out": 1, "late-releases": 1},
    ),
    "a second late release": (
        lambda lines: (run_out(lines), [call(lines, "RELEASE", "k", "A") for _ in range(2)], call(lines, "EXTEND", "k", "A", LONG_MS)),
        {"grants": 1, "ran-out": 1, "late-releases": 1, "unknown-releases": 1, "unknown-extensions": 1},
    ),
    "a second late release during the delay": (
        lambda lines: (run_out_with_delay(lines), [call(lines, "RELEASE", "k", "A") for _ in range(2)]),
        {"grants": 1, "ran-out": 1, "late-releases": 1, "unknown-releases": 1},
    ),
    "a late release of the successor's lock": (
        lambda lines: (
            run_out(lines),
            call(lines, "ACQUIRE", "k", "B", LONG_MS),
            call(lines, "RELEASE", "k", "A"),
        ),
        {"grants": 2, "ran-out": 1, "late-releases": 1},
    ),
    "a release with the fence of another hold": (
        lambda lines: (run_out(lines), call(lines, "RELEASE", "k", "A", "FENCE", 1)),
        {"grants": 1, "ran-out": 1, "unknown-releases": 1},
    ),
    "leaving the queue": (leave_the_queue, {"waits": 1}),
    "leaving no queue": (lambda lines: call(lines, "RELEASE", "held", "B", "QUEUED"), {}),
    "a release by one that gave up": (lambda lines: call(lines, "RELEASE", "held", "A", "QUEUED"), {"releases": 1}),
    "an extension": (lambda lines: call(lines, "EXTEND", "held", "A", LONG_MS), {"extensions": 1}),
    "an extension by another": (
        lambda lines: call(lines, "EXTEND", "held", "A", LONG_MS, "FENCE", 1),
        {"unknown-extensions": 1},
    ),
    "a late extension": (
        lambda lines: (run_out(lines), call(lines, "EXTEND", "k", "A", LONG_MS)),
        {"grants": 1, "ran-out": 1, "late-extensions": 1},
    ),
    "a lease that runs out": (run_out, {"grants": 1, "ran-out": 1}),
    "a longest hold": (lambda lines: run_out(lines, "MAXHOLD", 20), {"grants": 1, "ran-out": 1, "maxhold-ends": 1}),
    "a steal": (lambda lines: call(lines, "STEAL", "held", "B", LONG_MS), {"grants": 1, "steals": 1}),
    "a steal of a free lock": (lambda lines: call(lines, "STEAL", "k", "B", LONG_MS), {"grants": 1}),
    "a steal from another hold": (lambda lines: call(lines, "STEAL", "held", "B", LONG_MS, "FENCE", 1), {}),
    "a steal of a hold with a delay": (
        lambda lines: (call(lines, "ACQUIRE", "k", "A", LONG_MS, "DELAY", LONG_MS), call(lines, "STEAL", "k", "B", LONG_MS)),
        {"grants": 1, "steals": 1},
    ),
    "a release by a robbed holder": (
        lambda lines: (call(lines, "STEAL", "held", "B", LONG_MS), call(lines, "RELEASE", "held", "A")),
        {"grants": 1, "steals": 1, "late-releases": 1},
    ),
    "an await": (
        lambda lines: call(lines, "AWAIT", "held", call(lines, "INSPECT", "held")[3], 10),
        {"awaits": 1},
    ),
    "an await of what has ended": (lambda lines: call(lines, "AWAIT", "held", 1, 10), {}),
    "DEL": (lambda lines: lines.control.call("DEL", "held"), {}),
    "FLUSHALL": (lambda lines: lines.control.call("FLUSHALL"), {}),
    "an eviction": (evict, {"evicted-leases": 1}),
    "a claim": (lambda lines: call(lines, "CLAIM", "res", 34), {"claims": 1}),
    "a claim again": (lambda lines: call(lines, "CLAIM", "res", 33), {"claims": 1}),
    "a stale claim": (lambda lines: call(lines, "CLAIM", "res", 32), {"claims-stale": 1}),
    "a write": (lambda lines: call(lines, "WRITE", "res", 33, "a", 1), {"writes": 1}),
    "a stale write": (lambda lines: call(lines, "WRITE", "res", 32, "a", 1), {"writes-stale": 1}),
    "a write without a claim": (lambda lines: call(lines, "WRITE", "res", 34, "a", 1), {"unclaimed": 1}),
    "looking": (lambda lines: (call(lines, "INSPECT", "held"), call(lines, "CHECK", "held", 1)), {}),
}


@pytest.mark.parametrize(("move", "expected"), MOVES.values(), ids=MOVES)
def test_each_counter_counts_what_it_says_and_nothing_else(counted, move, expected):
    counted.control.call("FLUSHALL")
    call(counted, "ACQUIRE", "held", "A", LONG_MS)
    counted.control.call("HSET", "res", "fence", 33)
    if move is evict:
        counted.control.call("DEL", "res")
    before = counted.stats()
    move(counted)
    after = counted.stats()
    assert {name: after[name] - before[name] for name in COUNTERS if after[name] != before[name]} == expected
    counted.drain()


@pytest.fixture(scope="module")
def counted():
    """A server whose settings the counters' tests change."""
    server = RedisServer().start()
    with Lines(server.port) as lines:
        yield lines
    server.close()


def test_gauges_show_what_is_there_now(lines):
    fence = call(lines, "ACQUIRE", "k", "A", LONG_MS)
    call(lines, "ACQUIRE", "k2", "A", LONG_MS)
    waiters = [lines.queue("k", f"W{number}", LONG_MS, LONG_MS) for number in range(3)]
    told = lines.stats()
    assert (told["live-leases"], told["waiters"]) == (2, 3)
    assert told["last-fence"] == fence + 1 or told["last-fence"] > fence
    assert told["index-bytes"] > 0
    for waiter in waiters:
        waiter.close()
    eventually(lambda: lines.count("waiters"), 0)
    lines.control.call("FLUSHALL")
    assert lines.count("live-leases") == 0
    assert lines.count("last-fence") == told["last-fence"]


def test_counters_start_at_zero_with_the_process_and_survive_a_flush(make_redis):
    server = make_redis(config={"save": "3600 1"})
    with Lines(server.port) as lines:
        assert [lines.stats()[name] for name in COUNTERS] == [0] * len(COUNTERS)
        call(lines, "ACQUIRE", "k", "A", LONG_MS)
        call(lines, "ACQUIRE", "k", "B", LONG_MS)
        lines.control.call("FLUSHALL")
        assert (lines.count("grants"), lines.count("busy")) == (1, 1)
        last = lines.count("last-fence")
        call(lines, "ACQUIRE", "k", "A", LONG_MS)
    server.restart()
    with Lines(server.port) as lines:
        assert [lines.stats()[name] for name in COUNTERS] == [0] * len(COUNTERS)
        assert lines.count("last-fence") > last
        assert lines.count("live-leases") == 1


def test_a_name_is_counted_by_itself(start):
    lines = start()
    holder = lines.open()
    began = time.monotonic()
    fence = holder.call("FENCELOCK.ACQUIRE", "k", "A", LONG_MS)
    waiter = lines.queue("k", "W", LONG_MS, LONG_MS)
    assert lines.stats("k")["waiters"] == 1
    call(lines, "ACQUIRE", "k", "B", LONG_MS)

    def held_ms():
        return dict(zip(*[iter(call(lines, "INSPECT", "k"))] * 2, strict=True))[b"held-ms"]

    waits_since_ms = held_ms()
    eventually(lambda: held_ms() >= max(60, waits_since_ms + 50))
    assert call(lines, "RELEASE", "k", "A") == 1
    waiter.reply()
    call(lines, "RELEASE", "k", "A", "FENCE", fence)
    call(lines, "EXTEND", "k", "A", LONG_MS)
    call(lines, "EXTEND", "k", "W", 1)
    eventually(lambda: lines.control.call("EXISTS", "k"), 0)
    call(lines, "EXTEND", "k", "W", LONG_MS)
    call(lines, "RELEASE", "k", "W")
    call(lines, "CLAIM", "k", 33)
    call(lines, "CLAIM", "k", 32)
    call(lines, "WRITE", "k", 32, "a", 1)
    told = lines.stats("k")
    longest = {name: told.pop(name) for name in ("longest-hold-ms", "longest-wait-ms")}
    assert told == {
        "grants": 2,
        "busy": 1,
        "waits": 1,
        "wait-timeouts": 0,
        "contended": 2,
        "late-releases": 1,
        "late-extensions": 1,
        "ran-out": 1,
        "claims-stale": 1,
        "writes-stale": 1,
        "waiters": 0,
    }
    assert 60 <= longest["longest-hold-ms"] <= (time.monotonic() - began) * 1000 + 1
    assert 50 <= longest["longest-wait-ms"] <= longest["longest-hold-ms"]
    assert lines.stats("K") is None
    lines.control.call("SELECT", 1)
    assert lines.stats("k") is None


def test_the_table_of_names_is_bounded_and_keeps_the_busy_ones(start):
    lines = start(("stats-names", 64))
    before = lines.memory()
    for number in range(3_000):
        name = f"rare{number}".ljust(200, "x")
        calls = [("FENCELOCK.ACQUIRE", key, "A", LONG_MS) for key in ("busy", name)]
        lines.control.call_all(*calls, *(("FENCELOCK.RELEASE", key, "A") for key in ("busy", name)))
    assert lines.stats("busy")["grants"] == 3_000
    assert lines.count("grants") == 6_000
    known = sum(lines.stats(f"rare{number}".ljust(200, "x")) is not None for number in range(3_000))
    assert 0 < known <= 64
    assert lines.memory() - before < 200_000


def test_a_long_name_is_counted_for_the_server_alone(start):
    lines = start()
    for length, is_told in ((1_024, True), (1_025, False)):
        call(lines, "ACQUIRE", "k" * length, "A", LONG_MS)
        assert (lines.stats("k" * length) is not None) == is_told
    assert lines.stats()["grants"] == 2


def test_the_table_of_names_can_be_emptied_turned_off_and_on(start):
    lines = start()
    call(lines, "ACQUIRE", "k", "A", LONG_MS)
    assert lines.stats("k")["grants"] == 1
    lines.control.call("CONFIG", "SET", "fencelock.stats-names", 0)
    assert lines.stats("k") is None
    call(lines, "ACQUIRE", "k", "B", LONG_MS)
    assert lines.stats("k") is None
    assert lines.count("busy") == 1
    lines.control.call("CONFIG", "SET", "fencelock.stats-names", 10)
    call(lines, "ACQUIRE", "k", "B", LONG_MS)
    assert (lines.stats("k")["busy"], lines.stats("k")["grants"]) == (1, 0)


# --- TOP


def top(lines, *words):
    return [as_dict(told) for told in call(lines, "TOP", *words)]


def names(told):
    return [(one["db"], one["key"].decode()) for one in told]


@pytest.fixture(scope="module")
def contended():
    """A server with locks of different histories: their counters are what the tests of TOP compare."""
    server = RedisServer().start()
    with Lines(server.port) as lines:
        for key, refused, waits in (("quiet", 0, 0), ("busy", 3, 0), ("queued", 1, 4), ("once", 1, 0)):
            call(lines, "ACQUIRE", key, "A", LONG_MS)
            for _ in range(refused):
                call(lines, "ACQUIRE", key, "B", LONG_MS)
            for _ in range(waits):
                call(lines, "ACQUIRE", key, "B", LONG_MS, "WAIT", 1)
        lines.control.call("SELECT", 3)
        call(lines, "ACQUIRE", b"bin\xff\n", "A", LONG_MS)
        lines.queue(b"bin\xff\n", "B", LONG_MS, LONG_MS, db=3)
        lines.queue(b"bin\xff\n", "B", LONG_MS, LONG_MS, db=3)
        lines.control.call("SELECT", 0)
        call(lines, "EXTEND", "once", "A", 1)
        eventually(lambda: lines.control.call("EXISTS", "once"), 0)
        call(lines, "RELEASE", "once", "A")
        yield lines
    server.close()


def test_the_most_contended_lock_comes_first(contended):
    told = call(contended, "TOP", 10)
    assert [(one[1], one[3]) for one in told] == [(b"queued", 0), (b"busy", 0), (b"bin\xff\n", 3), (b"once", 0)]
    values = [(one["contended"], one["busy"], one["waits"], one["wait-timeouts"]) for one in top(contended, 10)]
    assert values == [(5, 1, 4, 4), (3, 3, 0, 0), (2, 0, 2, 0), (1, 1, 0, 0)]
    assert [one["waiters"] for one in top(contended, 10)] == [0, 0, 2, 0]
    assert call(contended, "TOP", 2) == told[:2]


def test_every_counter_of_a_lock_can_put_them_in_order(contended):
    everything = {key: contended.stats(key) for key in ("quiet", "busy", "queued", "once")}
    for counter in OF_A_NAME:
        told = [one for one in top(contended, 1000, "by", counter.upper()) if one["db"] == 0]
        expected = sorted((-stats[counter], key) for key, stats in everything.items() if stats[counter])
        assert [(-one[counter], one["key"].decode()) for one in told] == expected, counter
        for one in told:
            assert tuple(one)[2:] == OF_A_NAME
            assert {name: one[name] for name in OF_A_NAME} == everything[one["key"].decode()]
    assert names(top(contended, 1, "BY", "late-releases")) == [(0, "once")]
    assert call(contended, "TOP", 1, "BY", "waiters")[0][1] == b"bin\xff\n"


def test_top_is_flat_arrays_in_resp2_and_maps_in_resp3(contended):
    flat = call(contended, "TOP", 3)
    maps = contended.open(protocol=3).call("FENCELOCK.TOP", 3)
    assert maps == [dict(zip(one[::2], one[1::2], strict=True)) for one in flat]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((0,), "ERR n must be an integer from 1 to 1000"),
        ((1001,), "ERR n must be an integer from 1 to 1000"),
        (("k",), "ERR n must be an integer from 1 to 1000"),
        ((1, "BY"), "ERR syntax error: option BY has no value"),
        ((1, "BY", "busy", "BY", "busy"), "ERR syntax error: option BY is given twice"),
        ((1, "busy"), "ERR syntax error: unknown option 'busy'"),
        ((1, "BY", "hits"), f"ERR counter must be one of {', '.join(OF_A_NAME)}"),
    ],
    ids=str,
)
def test_a_bad_argument_of_top_is_named(contended, words, said):
    assert call(contended, "TOP", *words) == said


def test_top_takes_no_lock_for_its_argument(user):
    """In a cluster and to the ACL its arguments are not keys."""
    lines, worker = user("~app:*", "+fencelock.top")
    assert lines.control.call("COMMAND", "GETKEYS", "FENCELOCK.TOP", 10).startswith("ERR")
    call(lines, "ACQUIRE", "other", "A", LONG_MS)
    call(lines, "ACQUIRE", "other", "B", LONG_MS)
    assert worker.call("FENCELOCK.TOP", 10)[0][1] == b"other"


def test_without_a_table_no_lock_is_busy(start):
    lines = start(("stats-names", 0))
    call(lines, "ACQUIRE", "k", "A", LONG_MS)
    assert call(lines, "TOP", 10, "BY", "grants") == []


# --- INFO and HELP


def test_info_has_a_section_with_the_numbers_of_stats(lines):
    call(lines, "ACQUIRE", "k", "A", LONG_MS)
    told = lines.info("fencelock")
    assert told == {f"fencelock_{name.replace('-', '_')}": value for name, value in lines.stats().items()}
    assert b"# fencelock" in lines.control.call("INFO", "modules")
    assert b"# fencelock" in lines.control.call("INFO", "everything")


def test_the_server_tells_the_version_of_the_module(lines):
    (version,) = re.findall(r'^version = "(.*)"', (places.ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    assert f"fencelock_version:{version}".encode() in lines.control.call("INFO", "fencelock").splitlines()
    (module,) = [as_dict(told) for told in lines.control.call("MODULE", "LIST") if b"fencelock" in told]
    major, minor, patch = map(int, version.split("."))
    assert module["ver"] == 10_000 * major + 100 * minor + patch
    assert f"`fencelock_version:{version}`" in README.read_text()


def test_help_has_the_syntax_of_every_command_as_the_reference_has_it(lines):
    told = [line.decode() for line in call(lines, "HELP")]
    shown = [line for line in told if not line.startswith(" ")]
    reference = [line[3:] for line in README.read_text().splitlines() if line.startswith("## FENCELOCK.")]
    assert shown == reference
    assert [line.split()[0] for line in shown] == [f"FENCELOCK.{name}" for name in COMMANDS]
    # Each is followed by what it does.
    assert all(told[told.index(line) + 1].startswith("    ") for line in shown)


def test_help_is_an_array_in_both_protocols(lines):
    assert lines.open(protocol=3).call("FENCELOCK.HELP") == lines.open(protocol=2).call("FENCELOCK.HELP")


# --- RAISE


def now_us():
    return time.time_ns() // 1_000


def test_raise_issues_nothing_at_or_below_a_fence_from_now_on(start):
    lines = start()
    fence = now_us() + 60_000_000
    assert call(lines, "RAISE", fence) == fence
    assert call(lines, "ACQUIRE", "k", "A", LONG_MS) == fence + 1
    assert lines.count("last-fence") == fence + 1


def test_raise_goes_only_upwards_and_may_be_repeated(start):
    lines = start()
    fence = now_us() + 60_000_000
    assert [call(lines, "RAISE", fence) for _ in range(3)] == [fence] * 3
    assert call(lines, "RAISE", fence - 1) == fence
    assert call(lines, "RAISE", 1) == fence
    assert call(lines, "RAISE", fence + 1) == fence + 1


def test_raise_is_bounded_by_an_hour_ahead_of_the_clock(start):
    lines = start()
    for fence in (now_us() + HOUR_US + 60_000_000, FENCE_MAX):
        told = call(lines, "RAISE", fence)
        assert f"fence {fence} is more than an hour ahead of the clock" in told
        assert lines.count("last-fence") == 0
    fence = now_us() + HOUR_US - 60_000_000
    assert call(lines, "RAISE", fence) == fence


def test_raise_in_a_transaction_and_a_script_counts_too(start):
    lines = start(("fence-clock", "no"))
    assert lines.control.call_all(("MULTI",), ("FENCELOCK.RAISE", 41), ("EXEC",))[-1] == [41]
    assert lines.control.call("EVAL", "return redis.call('FENCELOCK.RAISE', 57)", 0) == 57
    assert call(lines, "ACQUIRE", "k", "A", LONG_MS) == 58


def test_raise_reaches_replicas_and_files(make_redis):
    at_once = {"repl-diskless-sync": "no", "repl-ping-replica-period": "1"}
    server = make_redis(("fence-clock", "no"), {"appendonly": "yes", "appendfsync": "always", **at_once})
    replica = make_redis(("fence-clock", "no"), at_once)
    with Lines(server.port) as lines, Lines(replica.port) as following:
        following.control.call("REPLICAOF", "127.0.0.1", server.port)
        eventually(lambda: b"state=online" in lines.control.call("INFO", "replication"))
        assert call(lines, "RAISE", 4_000) == 4_000
        assert lines.control.call("WAIT", 1, 5_000) == 1
        assert following.count("last-fence") == 4_000
        assert call(following, "RAISE", 5_000).code == "READONLY"
        assert call(following, "TOP", 10) == []
        assert following.count("last-fence") == 4_000
    server.kill()
    server.start()
    with Lines(server.port) as lines:
        assert call(lines, "ACQUIRE", "k", "A", LONG_MS) == 4_001 + SKIPPED


# --- settings

# The default and the range of each.
SETTINGS = {
    "max-ttl-ms": (86_400_000, 1, 316_224_000_000),
    "max-waiters-per-lock": (100_000, 0, 10_000_000),
    "max-awaiters": (10_000, 0, 10_000_000),
    "stats-names": (1_024, 0, 2**20),
}


def setting(lines, name):
    return lines.control.call("CONFIG", "GET", f"fencelock.{name}")[1].decode()


def test_the_reference_lists_the_settings_with_their_defaults_and_ranges(lines):
    text = README.read_text()
    for name, (default, least, most) in SETTINGS.items():
        assert setting(lines, name) == str(default)
        row = next(line for line in text.splitlines() if line.startswith(f"| `fencelock.{name}` |"))
        assert f"| {default}" in row
        assert f"| {least} to {most}" in row
    told = lines.control.call("CONFIG", "GET", "fencelock.*")
    assert sorted(told[::2]) == sorted(f"fencelock.{name}".encode() for name in (*SETTINGS, "fence-clock", "save-last-fence"))


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_takes_its_whole_range_and_nothing_else(start, name):
    lines = start()
    default, least, most = SETTINGS[name]
    for value in (least, most, default):
        assert lines.control.call("CONFIG", "SET", f"fencelock.{name}", value) == "OK"
        assert setting(lines, name) == str(value)
    for value in (least - 1, most + 1, 2**63, -(2**63), "", "x", "1.5", "1e3", "0x10", " 5", "5 "):
        told = lines.control.call("CONFIG", "SET", f"fencelock.{name}", value)
        assert isinstance(told, Refused), value
        assert f"fencelock.{name}" in told
        assert setting(lines, name) == str(default)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_may_be_an_argument_of_the_module_and_a_line_of_the_configuration(start, name):
    _, least, most = SETTINGS[name]
    for value in (least, most):
        assert setting(start((name.upper(), value)), name) == str(value)
        assert setting(start(config={f"fencelock.{name}": value}), name) == str(value)
    # The line of the configuration is what the operator changed last.
    assert setting(start((name, least), {f"fencelock.{name}": 7}), name) == "7"


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("bad", ["below", "above", "word", "sign", "none"])
def test_a_bad_argument_of_the_module_stops_the_start_and_is_named(make_redis, name, bad):
    _, least, most = SETTINGS[name]
    values = {"below": [least - 1], "above": [most + 1], "word": ["many"], "sign": ["+5"], "none": []}[bad]
    with pytest.raises(ServerFailed) as failed:
        make_redis((name, *values))
    assert name in str(failed.value)
    assert "fencelock" in str(failed.value)


def test_an_unknown_argument_of_the_module_stops_the_start_and_is_named(make_redis):
    with pytest.raises(ServerFailed, match="there is no setting 'max-ttl'"):
        make_redis(("max-ttl", 5))


def test_the_longest_time_binds_new_calls_and_no_lease_that_is_there(start):
    lines = start()
    fence = call(lines, "ACQUIRE", "k", "A", LONG_MS, "DELAY", LONG_MS)
    lines.control.call("CONFIG", "SET", "fencelock.max-ttl-ms", 1_000)
    for words in (
        ("ACQUIRE", "k2", "A", 1_001),
        ("EXTEND", "k", "A", 1_001),
        ("ACQUIRE", "k2", "A", 1_000, "WAIT", 1_001),
        ("ACQUIRE", "k2", "A", 1_000, "MAXHOLD", 1_001),
        ("ACQUIRE", "k2", "A", 1_000, "DELAY", 1_001),
        ("STEAL", "k", "A", 1_001),
        ("AWAIT", "k", fence, 1_001),
    ):
        assert "must be an integer from 1 to 1000" in call(lines, *words)
    assert lines.control.call("FENCELOCK.CHECK", "k", fence) == 1
    assert call(lines, "EXTEND", "k", "A", 1_000) == 1_000
    assert call(lines, "ACQUIRE", "k2", "A", 1_000, "WAIT", 1_000, "MAXHOLD", 1_000, "DELAY", 1_000) > fence


def test_a_changed_setting_is_written_by_config_rewrite(make_redis):
    server = make_redis()
    with Lines(server.port) as lines:
        lines.control.call("CONFIG", "SET", "fencelock.max-ttl-ms", 12_345)
        assert lines.control.call("CONFIG", "REWRITE") == "OK"
    assert "fencelock.max-ttl-ms 12345" in Path(server.data_dir, "redis.conf").read_text().splitlines()


# --- what the server knows of the commands


def described(lines, name):
    told = lines.control.call("COMMAND", "DOCS", name)
    return as_dict(told[1])


def as_dict(flat):
    return {key.decode(): value for key, value in zip(flat[::2], flat[1::2], strict=True)}


def value_of(argument):
    """What stands behind the word of an option."""
    return "" if argument["type"] == b"pure-token" else f" {argument['name'].decode()}"


def syntax(name, arguments):
    """The syntax line that the arguments of COMMAND DOCS amount to."""
    words = [f"FENCELOCK.{name}"]
    for argument in map(as_dict, arguments):
        flags = [str(flag) for flag in argument.get("flags", [])]
        if argument["type"] == b"oneof":
            word = " | ".join(one["token"].decode() + value_of(one) for one in map(as_dict, argument["arguments"]))
        elif argument["type"] == b"block":
            word = " ".join(part["name"].decode() for part in map(as_dict, argument["arguments"]))
            word = f"{word} [{word} ...]" if "multiple" in flags else word
        elif argument["type"] == b"pure-token":
            word = argument["token"].decode()
        elif "token" in argument:
            token = argument["token"].decode()
            word = f"{token} {argument['name'].decode().removeprefix(f'{token.lower()}-')}"
        else:
            word = argument["name"].decode()
        words.append(f"[{word}]" if "optional" in flags else word)
    return " ".join(words)


@pytest.mark.parametrize("name", COMMANDS)
def test_command_docs_describes_the_syntax_of_the_reference(lines, name):
    docs = described(lines, f"fencelock.{name.lower()}")
    heading = next(line for line in README.read_text().splitlines() if re.match(rf"## FENCELOCK\.{name}\b", line))
    assert f"## {syntax(name, docs.get('arguments', []))}" == heading
    assert docs["summary"].decode()[0].isupper()
    assert docs["since"] == b"0.1.0"
    assert (docs["group"], docs["module"]) == (b"module", b"fencelock")


TIMES = {
    "acquire": {"ttl-ms", "wait-ms", "maxhold-ms", "delay-ms"},
    "steal": {"ttl-ms", "maxhold-ms", "delay-ms"},
    "extend": {"ttl-ms"},
    "await": {"ms"},
}


@pytest.mark.parametrize("name", COMMANDS)
def test_times_are_said_to_be_milliseconds_in_docs_and_help(lines, name):
    docs = described(lines, f"fencelock.{name.lower()}")
    arguments = [as_dict(argument) for argument in docs.get("arguments", [])]
    told = {one["name"].decode() for one in arguments if one.get("summary") == b"milliseconds"}
    assert told == TIMES.get(name.lower(), set())
    assert told == {one["name"].decode() for one in arguments if one["name"].endswith((b"-ms", b"ms"))}
    if told:
        assert b"milliseconds" in docs["summary"]
        helped = b"\n".join(call(lines, "HELP")).split(b"\nFENCELOCK.")
        (text,) = [text for text in helped if text.removeprefix(b"FENCELOCK.").startswith(name.encode() + b" ")]
        assert b"milliseconds" in text.split(b"\n", 1)[1]


INFOS = {
    # Arity, flags beside `module`, and the flags of the key.
    "acquire": (-4, {"write", "denyoom", "blocking", "fast"}, ["RW", "access", "update"]),
    "steal": (-4, {"write", "denyoom", "fast"}, ["RW", "access", "update"]),
    "extend": (-4, {"write", "fast"}, ["RW", "access", "update"]),
    "release": (-3, {"write", "fast"}, ["RW", "access", "delete"]),
    "check": (3, {"readonly", "fast"}, ["RO", "access"]),
    "inspect": (2, {"readonly", "fast"}, ["RO", "access"]),
    "await": (4, {"readonly", "blocking", "fast"}, ["RO", "access"]),
    "claim": (3, {"write", "denyoom"}, ["RW", "access", "update"]),
    "write": (-5, {"write", "denyoom", "fast"}, ["RW", "access", "update"]),
    "stats": (-1, {"readonly", "fast"}, ["RO", "access"]),
    "top": (-2, {"readonly"}, None),
    "raise": (2, {"write", "admin", "fast"}, None),
    "help": (1, {"loading", "stale", "fast"}, None),
}


@pytest.mark.parametrize("name", INFOS)
def test_command_info_has_arity_flags_and_key(lines, name):
    told = lines.control.call("COMMAND", "INFO", f"fencelock.{name}")[0]
    arity, flags, key = INFOS[name]
    assert told[1] == arity
    assert set(told[2]) - {"module"} == flags
    assert told[3:6] == ([1, 1, 1] if key else [0, 0, 0])
    specs = [as_dict(spec) for spec in told[8]]
    assert [sorted(spec["flags"]) for spec in specs] == ([sorted(key)] if key else [])
    for spec in specs:
        assert as_dict(as_dict(spec["begin_search"])["spec"]) == {"index": 1}


CALLS = {
    "acquire": ("k", "A", 1_000, "WAIT", 10, "RETRY", "MAXHOLD", 10, "DELAY", 10, "EPHEMERAL"),
    "steal": ("k", "A", 1_000, "FENCE", 1, "MAXHOLD", 10, "DELAY", 10),
    "extend": ("k", "A", 1_000, "FENCE", 1, "GT"),
    "release": ("k", "A", "FENCE", 1),
    "check": ("k", 1),
    "inspect": ("k",),
    "await": ("k", 1, 10),
    "claim": ("k", 1),
    "write": ("k", 1, "field", "value", "field2", "value2"),
    "stats": ("k",),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_command_names_exactly_its_one_key(lines, name):
    words = (f"FENCELOCK.{name}", *CALLS[name])
    assert lines.control.call("COMMAND", "GETKEYS", *words) == [b"k"]
    told = lines.control.call("COMMAND", "GETKEYSANDFLAGS", *words)
    assert [(key, sorted(flags)) for key, flags in told] == [(b"k", sorted(INFOS[name][2]))]


@pytest.mark.parametrize("name", INFOS)
def test_the_arity_is_what_the_command_takes(lines, name):
    arity = INFOS[name][0]
    fewest = abs(arity) - 1
    words = [str(word) for word in CALLS.get(name, ("1",) if name in ("raise", "top") else ())]
    for count in range(fewest):
        assert "wrong number of arguments" in call(lines, name, *words[:count])
    if arity > 0:
        assert "wrong number of arguments" in call(lines, name, *words[:fewest], "more")
    told = call(lines, name, *words[:fewest])
    assert not isinstance(told, Refused) or told.code == "UNCLAIMED"


# --- ACL


@pytest.fixture
def user(start):
    """A factory of (lines, connection of a user with these rules)."""
    lines = start()

    def make(*rules):
        assert lines.control.call("ACL", "SETUSER", "worker", "reset", "on", ">secret", *rules) == "OK"
        line = lines.open()
        assert line.call("AUTH", "worker", "secret") == "OK"
        return lines, line

    return make


def test_a_user_may_be_given_one_command(user):
    lines, worker = user("~*", "+fencelock.acquire")
    assert worker.call("FENCELOCK.ACQUIRE", "k", "A", LONG_MS) > 0
    for name, words in CALLS.items():
        if name != "acquire":
            assert worker.call(f"FENCELOCK.{name}", *words).code == "NOPERM"
    assert worker.call("FENCELOCK.RAISE", 1).code == "NOPERM"
    assert worker.call("FENCELOCK.HELP").code == "NOPERM"
    assert worker.call("GET", "k").code == "NOPERM"
    assert lines.count("releases") == 0


@pytest.mark.parametrize("name", CALLS)
def test_a_user_is_bound_to_its_keys_in_every_command(user, name):
    lines, worker = user("~app:*", f"+fencelock.{name}")
    # On a server that has issued no fence AWAIT refuses every one.
    lines.control.call("FENCELOCK.RAISE", 1)
    told = worker.call(f"FENCELOCK.{name}", "other:k", *CALLS[name][1:])
    assert told.code == "NOPERM"
    told = worker.call(f"FENCELOCK.{name}", "app:k", *CALLS[name][1:])
    assert getattr(told, "code", None) in (None, "UNCLAIMED")


def test_a_user_that_may_only_read_its_keys_may_look_and_not_change(user):
    lines, worker = user("%R~app:*", "+@all")
    lines.control.call("FENCELOCK.ACQUIRE", "app:k", "A", LONG_MS)
    for name, words in CALLS.items():
        told = worker.call(f"FENCELOCK.{name}", "app:k", *words[1:])
        assert (getattr(told, "code", None) == "NOPERM") == (name not in ("check", "inspect", "await", "stats")), name


def test_a_waiter_of_a_user_gets_its_lock(user):
    lines, worker = user("~app:*", "+fencelock.acquire")
    lines.control.call("FENCELOCK.ACQUIRE", "app:k", "A", LONG_MS)
    worker.send("FENCELOCK.ACQUIRE", "app:k", "W", LONG_MS, "WAIT", LONG_MS)
    eventually(lambda: lines.count("waiters"), 1)
    lines.control.call("FENCELOCK.RELEASE", "app:k", "A")
    assert worker.reply() > 0


def test_a_waiter_whose_user_is_deleted_leaves_the_queue(user):
    lines, worker = user("~*", "+fencelock.acquire")
    lines.control.call("FENCELOCK.ACQUIRE", "k", "A", LONG_MS)
    worker.send("FENCELOCK.ACQUIRE", "k", "W1", LONG_MS, "WAIT", LONG_MS)
    eventually(lambda: lines.count("waiters"), 1)
    stays = lines.queue("k", "W2", LONG_MS, LONG_MS)
    assert lines.control.call("ACL", "DELUSER", "worker") == 1
    eventually(lambda: lines.count("waiters"), 1)
    lines.control.call("FENCELOCK.RELEASE", "k", "A")
    assert stays.only_reply() > 0


CATEGORIES = {
    "write": {"acquire", "steal", "extend", "release", "claim", "write", "raise"},
    "read": {"check", "inspect", "await", "stats", "top"},
    "blocking": {"acquire", "await"},
    "dangerous": {"steal", "raise"},
    "admin": {"raise"},
    "fast": {"acquire", "steal", "extend", "release", "check", "inspect", "await", "write", "stats", "raise", "help"},
    "fencelock": set(INFOS),
}


def test_the_reference_names_the_categories():
    documented = re.findall(r"^## FENCELOCK\.(\w+).*?ACL: ([@a-z ]+)\.", README.read_text(), re.MULTILINE | re.DOTALL)
    named = {name.lower(): set(categories.replace("@", "").split()) for name, categories in documented}
    own = {category: members for category, members in CATEGORIES.items() if category != "fencelock"}
    assert named == {name: {category for category in own if name in own[category]} for name in INFOS}


def test_the_commands_are_in_their_categories_where_the_server_lets_modules_have_any(lines):
    """Redis 7.0 knows none for modules, 7.2 the server's own, Redis 7.4 and Valkey 8 `@fencelock` as well."""
    told = {name: lines.control.call("ACL", "CAT", name) for name in CATEGORIES}
    found = {
        name: {command.decode().removeprefix("fencelock.") for command in commands if command.startswith(b"fencelock.")}
        for name, commands in told.items()
        if not isinstance(commands, Refused)
    }
    server = as_dict(lines.open(protocol=2).call("HELLO"))
    version = tuple(int(part) for part in server["version"].split(b".")[:2])
    expected = dict(CATEGORIES)
    if server["server"] == b"redis" and version < (7, 4):
        del expected["fencelock"]
    if server["server"] == b"redis" and version < (7, 2):
        expected = dict.fromkeys(expected, set())
    drill = {"_drill", "_apply", "_floor"}
    assert {name: commands - drill for name, commands in found.items()} == expected


# --- keyspace events


def test_grants_releases_and_ends_are_told_as_events_of_class_d(start):
    lines = start(config={"notify-keyspace-events": "KEd"})
    listener = lines.open()
    listener.call("PSUBSCRIBE", "__key*__:*")
    holder = lines.open()
    holder.call("FENCELOCK.ACQUIRE", "k", "A", LONG_MS)
    holder.call("FENCELOCK.ACQUIRE", "k", "A", LONG_MS, "RETRY")
    holder.call("FENCELOCK.ACQUIRE", "k", "B", LONG_MS)
    holder.call("FENCELOCK.EXTEND", "k", "A", LONG_MS)
    waiter = lines.queue("k", "W", 30, LONG_MS)
    second = lines.queue("k", "W2", 30, LONG_MS)
    holder.call("FENCELOCK.RELEASE", "k", "B")
    holder.call("FENCELOCK.RELEASE", "k", "A")
    waiter.reply()
    second.reply()
    eventually(lambda: lines.control.call("EXISTS", "k"), 0)
    lines.control.call("PUBLISH", "__keyspace@0__:k", "last")
    told = [("", "")]
    while told[-1][1] != "last":
        _, _, channel, event = listener.reply()
        told.append((channel.decode(), event.decode()))
    told = told[1:-1]
    by_key = [event for channel, event in told if channel == "__keyspace@0__:k"]
    expected = ["granted", "released", "granted", "ranout", "granted", "ranout"]
    assert by_key == [f"fencelock.{event}" for event in expected]
    assert told[:2] == [("__keyspace@0__:k", "fencelock.granted"), ("__keyevent@0__:fencelock.granted", "k")]


def test_without_the_class_no_event_is_told(start):
    lines = start(config={"notify-keyspace-events": "KEg"})
    listener = lines.open()
    listener.call("PSUBSCRIBE", "__key*__:*")
    call(lines, "ACQUIRE", "k", "A", LONG_MS)
    call(lines, "RELEASE", "k", "A")
    lines.control.call("SET", "other", "v")
    lines.control.call("DEL", "other")
    _, _, channel, event = listener.reply()
    # DEL is what the replicas get, and not what happened here.
    assert (channel, event) == (b"__keyspace@0__:other", b"del")


# --- a refused call


@pytest.mark.parametrize(
    "words",
    [
        ("ACQUIRE", "k", "B", LONG_MS),
        ("ACQUIRE", "k", "A", LONG_MS, "RETRY"),
        ("ACQUIRE", "k", "B", LONG_MS, "WAIT", 10),
        ("ACQUIRE", "k", "B", LONG_MS, "RETRY"),
        ("RELEASE", "k", "B", "QUEUED"),
        ("CHECK", "k", 1),
        ("INSPECT", "k"),
        ("STATS", "k"),
        ("STATS",),
        ("TOP", 10),
        ("RAISE", 1),
        ("HELP",),
    ],
    ids=lambda words: " ".join(map(str, words)),
)
def test_a_call_that_changes_nothing_aborts_nobodys_watch(lines, words):
    call(lines, "ACQUIRE", "k", "A", LONG_MS)
    watcher = lines.open()
    watcher.call("WATCH", "k", "free")
    call(lines, *words)
    assert watcher.call_all(("MULTI",), ("ECHO", "ran"), ("EXEC",))[-1] == [b"ran"]


def test_waiters_that_come_and_go_abort_nobodys_watch(lines):
    call(lines, "ACQUIRE", "k", "A", LONG_MS)
    watcher = lines.open()
    watcher.call("WATCH", "k")
    waiter = lines.queue("k", "W", LONG_MS, LONG_MS)
    waiter.close()
    eventually(lambda: lines.count("waiters"), 0)
    assert watcher.call_all(("MULTI",), ("ECHO", "ran"), ("EXEC",))[-1] == [b"ran"]


# --- warnings

EVICTS = "can evict live leases"
PREAMBLE = "aof-use-rdb-preamble is off"
AOF = {"appendonly": "yes", "aof-use-rdb-preamble": "no"}


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
def test_a_policy_that_evicts_leases_is_warned_of_at_the_start_and_when_it_is_set(make_redis, policy):
    server = make_redis(config={"maxmemory": "100mb", "maxmemory-policy": policy})
    eventually(lambda: [line for line in server.log().splitlines() if f"maxmemory-policy {policy} {EVICTS}" in line])
    server = make_redis()
    with Lines(server.port) as lines:
        lines.control.call("CONFIG", "SET", "maxmemory", "100mb")
        assert lines.control.call("PING") == "PONG"
        assert EVICTS not in server.log()
        lines.control.call("CONFIG", "SET", "maxmemory-policy", policy)
        eventually(lambda: f"maxmemory-policy {policy} {EVICTS}" in server.log())


def test_a_file_that_may_lose_the_last_fence_is_warned_of_at_the_start_and_when_it_is_set(make_redis):
    server = make_redis(config=AOF)
    eventually(lambda: PREAMBLE in server.log())
    server = make_redis(config={"aof-use-rdb-preamble": "no"})
    with Lines(server.port) as lines:
        assert lines.control.call("PING") == "PONG"
        assert PREAMBLE not in server.log()
        lines.control.call("CONFIG", "SET", "appendonly", "yes")
        eventually(lambda: PREAMBLE in server.log())


def test_what_takes_no_lease_is_not_warned_of(make_redis):
    server = make_redis(config={"maxmemory": "100mb", "maxmemory-policy": "volatile-lru", "appendonly": "yes"})
    other = make_redis(config={"maxmemory": "0", "maxmemory-policy": "allkeys-lru"})
    for one in (server, other):
        with Lines(one.port) as lines:
            lines.control.call("CONFIG", "SET", "maxmemory-samples", 7)
            # A lease that ends shows that whatever was due has been done.
            call(lines, "ACQUIRE", "k", "A", 10)
            eventually(lambda lines=lines: lines.control.call("EXISTS", "k"), 0)
        assert "fencelock: " not in one.log()


def test_evicted_leases_are_counted_and_other_keys_are_not(start):
    lines = start(config={"maxmemory-policy": "allkeys-random"})
    for number in range(20):
        call(lines, "ACQUIRE", f"k{number}", "A", LONG_MS)
        lines.control.call("SET", f"other{number}", "v")
        lines.control.call("HSET", f"hash{number}", "fence", "1")
    # In one step, so that the server evicts all that it finds before the next command.
    lines.control.call_all(("CONFIG", "SET", "maxmemory", "1"), ("PING",), ("CONFIG", "SET", "maxmemory", "0"))
    left = sum(lines.control.call("EXISTS", f"k{number}") for number in range(20))
    evicted = lines.info("stats")["evicted_keys"]
    assert evicted + lines.control.call("DBSIZE") == 60
    assert lines.count("evicted-leases") == 20 - left > 0
    assert lines.count("live-leases") == left


# Valkey ends when it rejects a setting after the load of a module that has a data type.
REJECTED_AFTER_THE_LOAD = [("CONFIG", "fencelock.no-such-setting", "1"), ("CONFIG", "no-module.setting", "1")]
REJECTED_IN_THE_LOAD = [
    ("CONFIG", "fencelock.max-ttl-ms", "no number"),
    ("ARGS", "max-ttl-ms", "0"),
    ("ARGS", "no-such-argument", "1"),
    ("ARGS", "max-ttl-ms"),
]


@pytest.mark.parametrize(
    "words", REJECTED_IN_THE_LOAD + (REJECTED_AFTER_THE_LOAD if server_version()[0] == "Redis" else []), ids=" ".join
)
def test_a_wrong_setting_given_with_the_load_does_not_end_the_server(make_redis, words):
    """Servers that reject a load after the module has said yes crash if it holds a timer then."""
    server = make_redis(config={"enable-module-command": "yes"}, module=None)
    with Line(server.port) as line:
        told = line.call("MODULE", "LOADEX", places.MODULE, *words)
        assert told.code == "ERR"
        assert line.call("PING") == "PONG"
        [loaded] = [server.cli("MODULE", "LIST")]
        if "fencelock" not in loaded:
            assert line.call("MODULE", "LOADEX", places.MODULE, "CONFIG", "fencelock.max-ttl-ms", "5000") == "OK"
            assert line.call("CONFIG", "GET", "fencelock.max-ttl-ms")[1] == b"5000"
        assert line.call("FENCELOCK.ACQUIRE", "k", "A", 200) > 0
        eventually(lambda: line.call("EXISTS", "k"), 0)
