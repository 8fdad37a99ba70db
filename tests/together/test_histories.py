"""Histories: one order of the calls explains every answer that real servers gave under faults.

What happened is recorded by processes of clients (chaos/worker.py) and judged by a checker that knows nothing of the servers
(chaos/linearizability.py). First the checker is judged: what is right passes, and each planted violation is found, in written
histories, in recorded ones that were altered, and on servers that were really broken.
"""

import dataclasses
import itertools

import psycopg
import pytest

from chaos.__main__ import judge
from chaos.history import EMPTY, GRANTS, History, freeze
from chaos.linearizability import UNKNOWN, Call, check
from chaos.cluster import Down, Moves
from chaos.kinds import FAULTS, KINDS, record, unable
from chaos.models import Lock, Resource
from chaos.pair import Pair
from chaos.world import ENOUGH_UPDATES, LOCKS, World
from harness.redis_calls import Line
from seeds import seed

# --- the checker, on written histories


def calls(*lines):
    """Calls from lines of (client, kind, arguments, invoked ms, returned ms, outcome)."""
    return [Call(client, kind, arguments, began * 1000, ended * 1000, told) for client, kind, arguments, began, ended, told in lines]


def acquire(client, began, ended, fence, *, owner=None, ttl=100, wait=0, retry=False):
    return (client, "acquire", (owner or client, ttl, wait, retry), began, ended, fence)


def steal(client, began, ended, fence, *, victim=None):
    return (client, "steal", (client, 100, victim), began, ended, fence)


RIGHT_FOR_A_LOCK = {
    "one after another": [acquire("a", 0, 1, 1), ("a", "release", ("a", 1), 2, 3, 1), acquire("b", 4, 5, 2)],
    "busy, then run out": [acquire("a", 0, 1, 1), acquire("b", 50, 51, None), acquire("b", 101, 102, 2)],
    "the moment of the grant is not known exactly": [acquire("a", 0, 50, 1), acquire("b", 105, 106, 2)],
    "and may be late": [acquire("a", 0, 50, 1), acquire("b", 149, 150, None)],
    "extended": [acquire("a", 0, 1, 1), ("a", "extend", ("a", 1, 100), 90, 91, 100), acquire("b", 180, 181, None)],
    "a lost grant, told again": [acquire("a", 0, 9, UNKNOWN), acquire("a", 10, 11, 1, retry=True), acquire("b", 12, 13, None)],
    "a lost grant, run out": [acquire("a", 0, 9, UNKNOWN), acquire("b", 10, 11, None), acquire("b", 110, 111, 2)],
    "a lost grant of one who waited, taken back": [
        *[acquire("a", 0, 9, UNKNOWN, wait=50), acquire("b", 10, 11, None), acquire("b", 12, 13, 2)]
    ],
    "a lost release": [acquire("a", 0, 1, 1), ("a", "release", ("a", 1), 2, 9, UNKNOWN), acquire("b", 10, 11, 2)],
    "a lost extension": [acquire("a", 0, 1, 1), ("a", "extend", ("a", 1, 300), 90, 95, UNKNOWN), acquire("b", 200, 201, None)],
    "one who waited gets it at the release": [
        *[acquire("a", 0, 1, 1), acquire("b", 2, 12, 2, wait=50), ("a", "release", ("a", 1), 10, 11, 1)]
    ],
    "asked": [acquire("a", 0, 1, 1), ("b", "inspect", (), 40, 41, ("a", 1, 60)), ("b", "check", ("a", 1), 42, 43, 1)],
    "a server that restarts keeps it": [
        *[acquire("a", 0, 1, 1), ("server", "restart", (0,), 10, 40, None), acquire("b", 50, 51, None), acquire("b", 106, 107, 2)]
    ],
    "a server that forgets lets two in": [
        *[acquire("a", 0, 1, 1), ("server", "forget", (0,), 10, 40, None), acquire("b", 50, 51, 2), ("a", "check", ("a", 1), 52, 53, 0)]
    ],
    "a server that forgets brings a hold back": [
        *[acquire("a", 0, 1, 1), ("a", "release", ("a", 1), 8, 9, 1), ("server", "forget", (0,), 10, 40, None)],
        *[("a", "check", ("a", 1), 50, 51, 1), acquire("b", 52, 53, None), acquire("b", 120, 121, 2)],
    ],
    "a replica that takes over keeps it, and may end it a little late": [
        *[acquire("a", 0, 1, 1), ("server", "handover", (0,), 10, 40, None), acquire("b", 50, 51, None), acquire("b", 190, 191, None)],
        acquire("b", 207, 208, 2),
    ],
    "no time passes while it moves": [
        *[acquire("a", 0, 1, 1), ("server", "move", (0,), 10, 60, None), acquire("b", 70, 71, None), acquire("b", 150, 151, None)],
        acquire("b", 157, 158, 2),
    ],
    "it is not handed on while the server may not write": [
        *[acquire("a", 0, 1, 1), ("server", "down", (0,), 90, 91, None), ("b", "inspect", (), 110, 111, None)],
        *[("server", "up", (0,), 120, 140, None), acquire("b", 150, 151, 2)],
    ],
    "a connection that closes while the server may not write": [
        *[acquire("a", 0, 1, 1, ttl=60_000), ("server", "down", (0,), 10, 11, None), ("a", "leave", ("a",), 12, 13, None)],
        *[("b", "check", ("a", 1), 14, 15, 1), ("server", "up", (0,), 20, 40, None), acquire("b", 50, 51, None)],
        *[("b", "inspect", (), 60, 61, ("a", 1, 59_940)), acquire("b", 900, 901, 2)],
    ],
    "taken over": [acquire("a", 0, 1, 1), steal("b", 10, 11, 2, victim=1), ("a", "check", ("a", 1), 12, 13, 0), acquire("c", 90, 91, None)],
    "taken over from any holder, or from none": [steal("a", 0, 1, 1), steal("b", 10, 11, 2), ("b", "check", ("b", 2), 12, 13, 1)],
    "not taken over from a successor": [acquire("a", 0, 1, 1), acquire("b", 103, 104, 2), steal("c", 105, 106, None, victim=1)],
    "not taken over from one whose lease has ended": [acquire("a", 0, 1, 1), steal("c", 102, 103, None, victim=1)],
    "a lost takeover": [acquire("a", 0, 1, 1), steal("b", 10, 11, UNKNOWN, victim=1), ("c", "inspect", (), 12, 13, ("b", 2, 98))],
    "a lost takeover that did not happen": [acquire("a", 0, 1, 1), steal("b", 10, 11, UNKNOWN), ("a", "check", ("a", 1), 12, 13, 1)],
    "taken over from a hold that a fail-over brought back": [
        *[acquire("a", 0, 1, 1), ("a", "release", ("a", 1), 8, 9, 1), ("server", "forget", (0,), 10, 40, None)],
        *[steal("b", 50, 51, 2, victim=1), ("b", "check", ("b", 2), 52, 53, 1)],
    ],
    "its end awaited": [acquire("a", 0, 1, 1), ("b", "await", (1,), 2, 52, None), ("b", "await", (1,), 60, 101, "expired")],
    "its release awaited": [acquire("a", 0, 1, 1), ("b", "await", (1,), 2, 12, "released"), ("a", "release", ("a", 1), 10, 11, 1)],
    "its way to another node awaited": [acquire("a", 0, 1, 1), ("b", "await", (1,), 2, 12, "moved"), ("a", "check", ("a", 1), 13, 14, 1)],
}

WRONG_FOR_A_LOCK = {
    "double grant": [acquire("a", 0, 1, 1), acquire("b", 50, 51, 2)],
    "double grant just before the end": [acquire("a", 0, 1, 1), acquire("b", 97, 98, 2)],
    "double grant after an extension": [acquire("a", 0, 1, 1), ("a", "extend", ("a", 1, 100), 90, 91, 100), acquire("b", 150, 151, 2)],
    "double grant after a restart": [acquire("a", 0, 1, 1), ("server", "restart", (0,), 10, 40, None), acquire("b", 50, 51, 2)],
    "a fence that goes back": [acquire("a", 0, 1, 7), ("a", "release", ("a", 7), 2, 3, 1), acquire("b", 4, 5, 6)],
    "a fence that is issued twice": [acquire("a", 0, 1, 7), ("a", "release", ("a", 7), 2, 3, 1), acquire("b", 4, 5, 7)],
    "a fence that goes back after a fail-over": [acquire("a", 0, 1, 7), ("server", "forget", (0,), 2, 3, None), acquire("b", 4, 5, 6)],
    "a lease that ends late": [acquire("a", 0, 1, 1), acquire("b", 103, 104, None)],
    "a free lock that is busy": [acquire("a", 0, 1, 1), ("a", "release", ("a", 1), 2, 3, 1), acquire("b", 4, 5, None)],
    "a lost grant that was given to two": [
        *[acquire("a", 0, 9, UNKNOWN), acquire("b", 10, 11, 2), acquire("a", 12, 13, 1, retry=True)]
    ],
    "a told grant taken back": [
        *[acquire("a", 0, 9, UNKNOWN, wait=50), acquire("a", 10, 11, 1, retry=True), acquire("b", 12, 13, 2)]
    ],
    "an extension after the end": [acquire("a", 0, 1, 1), ("a", "extend", ("a", 1, 100), 103, 104, 100)],
    "a release by another": [acquire("a", 0, 1, 1), ("b", "release", ("b", 1), 2, 3, 1)],
    "an extension that was refused to the holder": [acquire("a", 0, 1, 1), ("a", "extend", ("a", 1, 100), 4, 5, 0)],
    "a release that changes nothing": [acquire("a", 0, 1, 1), ("a", "release", ("a", 1), 2, 3, 1), ("a", "release", ("a", 1), 4, 5, 1)],
    "more time left than was granted": [acquire("a", 0, 1, 1), ("b", "inspect", (), 40, 41, ("a", 1, 64))],
    "a hold that was never granted, after a fail-over": [
        *[("server", "forget", (0,), 2, 3, None), ("a", "check", ("a", 1), 50, 51, 1)]
    ],
    "a lock that a replica lost": [acquire("a", 0, 1, 1), ("server", "handover", (0,), 10, 40, None), acquire("b", 50, 51, 2)],
    "a lease that a replica ends late": [
        *[acquire("a", 0, 1, 1), ("server", "handover", (0,), 10, 40, None), acquire("b", 210, 211, None)]
    ],
    "a release that a replica lost": [
        *[acquire("a", 0, 1, 1), ("a", "release", ("a", 1), 2, 3, 1), ("server", "handover", (0,), 10, 40, None), acquire("b", 50, 51, None)]
    ],
    "a lock that was lost on the way": [acquire("a", 0, 1, 1), ("server", "move", (0,), 10, 20, None), acquire("b", 50, 51, 2)],
    "a lease that gets shorter on the way": [
        *[acquire("a", 0, 1, 1), ("server", "move", (0,), 10, 20, None), ("b", "inspect", (), 30, 31, ("a", 1, 40))]
    ],
    "a lease that gets longer on the way": [
        *[acquire("a", 0, 1, 1), ("server", "move", (0,), 10, 20, None), acquire("b", 119, 120, None)]
    ],
    "a fence that goes back after a move": [
        *[acquire("a", 0, 1, 7), ("server", "move", (0,), 2, 3, None), ("a", "release", ("a", 7), 4, 5, 1), acquire("b", 6, 7, 6)]
    ],
    "a grant while the server may not write": [
        *[acquire("a", 0, 1, 1), ("server", "down", (0,), 90, 91, None), acquire("b", 50, 150, 2, wait=200)]
    ],
    "a release while the server may not write": [
        *[acquire("a", 0, 1, 1), ("server", "down", (0,), 10, 11, None), ("a", "release", ("a", 1), 20, 21, 1)]
    ],
    "a closed connection that keeps the lock": [acquire("a", 0, 1, 1, ttl=60_000), ("a", "leave", ("a",), 2, 3, None), acquire("b", 2100, 2101, None)],
    "a connection that closed while the server could not write and keeps the lock": [
        *[acquire("a", 0, 1, 1, ttl=60_000), ("server", "down", (0,), 10, 11, None), ("a", "leave", ("a",), 12, 13, None)],
        *[("server", "up", (0,), 20, 40, None), acquire("b", 2100, 2101, None)],
    ],
    "a lock that stays shut after a fail-over": [
        *[acquire("a", 0, 1, 1), ("server", "forget", (0,), 10, 40, None), acquire("b", 2100, 2101, None)]
    ],
    "taken over from a successor": [acquire("a", 0, 1, 1), acquire("b", 103, 104, 2), steal("c", 105, 106, 3, victim=1)],
    "taken over, and yet live": [acquire("a", 0, 1, 1), steal("b", 10, 11, 2, victim=1), ("a", "check", ("a", 1), 12, 13, 1)],
    "a takeover refused although the hold is live": [acquire("a", 0, 1, 1), steal("b", 10, 11, None, victim=1)],
    "a takeover of any refused": [acquire("a", 0, 1, 1), steal("b", 10, 11, None)],
    "a takeover with a fence that goes back": [acquire("a", 0, 1, 7), steal("b", 10, 11, 6, victim=7)],
    "taken over while the server may not write": [
        *[acquire("a", 0, 1, 1), ("server", "down", (0,), 10, 11, None), steal("b", 20, 21, 2)]
    ],
    "an end reported that has not come": [acquire("a", 0, 1, 1), ("b", "await", (1,), 2, 50, "expired")],
    "an end that is not reported": [acquire("a", 0, 1, 1), ("b", "await", (1,), 102, 152, None)],
    "a lost lock that is live": [acquire("a", 0, 1, 1), ("b", "await", (1,), 2, 3, "lost")],
}

RIGHT_FOR_A_ROW = {
    "claimed, read, written": [("a", "claim", (1,), 0, 1, "x"), ("a", "update", (1, "y"), 2, 3, True), ("b", "read", (), 4, 5, "y")],
    "claimed away": [("a", "claim", (1,), 0, 1, "x"), ("b", "claim", (2,), 2, 3, "x"), ("a", "update", (1, "y"), 4, 5, False)],
    "a stale claim": [("b", "claim", (2,), 2, 3, "x"), ("a", "claim", (1,), 4, 5, None)],
    "at the same time": [("a", "claim", (1,), 0, 1, "x"), ("b", "claim", (2,), 2, 9, "y"), ("a", "update", (1, "y"), 3, 8, True)],
    "a lost write that happened": [("a", "claim", (1,), 0, 1, "x"), ("a", "update", (1, "y"), 2, 9, UNKNOWN), ("b", "read", (), 10, 11, "y")],
    "a lost write that did not": [("a", "claim", (1,), 0, 1, "x"), ("a", "update", (1, "y"), 2, 9, UNKNOWN), ("b", "read", (), 10, 11, "x")],
    "unclaimed": [("a", "update", (1, "y"), 0, 1, "unclaimed"), ("b", "read", (), 2, 3, "x")],
    "a blind write": [("a", "write", (1, "y"), 0, 1, True), ("b", "write", (3, "z"), 2, 3, True), ("a", "write", (1, "w"), 4, 5, False)],
}

WRONG_FOR_A_ROW = {
    "a stale write accepted": [("a", "claim", (1,), 0, 1, "x"), ("b", "claim", (2,), 2, 3, "x"), ("a", "update", (1, "y"), 4, 5, True)],
    "a lost acknowledged update": [("a", "claim", (1,), 0, 1, "x"), ("a", "update", (1, "y"), 2, 3, True), ("b", "claim", (2,), 4, 5, "x")],
    "a lost acknowledged update at the end": [
        *[("a", "claim", (1,), 0, 1, "x"), ("a", "update", (1, "y"), 2, 3, True), ("end", "read", (), 4, 5, "x")]
    ],
    "a write that comes later than its call": [
        *[("a", "claim", (1,), 0, 1, "x"), ("a", "update", (1, "y"), 2, 3, UNKNOWN), ("b", "claim", (2,), 4, 5, "x")],
        ("b", "read", (), 6, 7, "y"),
    ],
    "a refused write that changes something": [
        *[("b", "claim", (2,), 0, 1, "x"), ("a", "update", (1, "y"), 2, 3, False), ("b", "read", (), 4, 5, "y")]
    ],
    "a holder refused": [("a", "claim", (1,), 0, 1, "x"), ("a", "update", (1, "y"), 2, 3, False)],
    "an update without a claim": [("a", "update", (1, "y"), 2, 3, True)],
    "a stale blind write accepted": [("a", "write", (2, "y"), 0, 1, True), ("b", "write", (1, "z"), 2, 3, True)],
    "a claim that goes back": [("b", "claim", (2,), 2, 3, "x"), ("a", "claim", (1,), 4, 5, "x")],
}


def the_lock(history):
    return Lock({0: {(call.arguments[0], call.outcome) for call in history if call.kind == "acquire"}})


@pytest.mark.parametrize("name", RIGHT_FOR_A_LOCK)
def test_the_checker_explains_a_right_history_of_a_lock(name):
    history = calls(*RIGHT_FOR_A_LOCK[name])
    assert not check(history, the_lock(history))


@pytest.mark.parametrize("name", WRONG_FOR_A_LOCK)
def test_the_checker_finds_a_planted_violation_at_a_lock(name):
    history = calls(*WRONG_FOR_A_LOCK[name])
    violation = check(history, the_lock(history))
    assert violation
    assert violation.call == history[-1]


@pytest.mark.parametrize("name", RIGHT_FOR_A_ROW)
def test_the_checker_explains_a_right_history_of_a_row(name):
    assert not check(calls(*RIGHT_FOR_A_ROW[name]), Resource("x"))


@pytest.mark.parametrize("name", WRONG_FOR_A_ROW)
def test_the_checker_finds_a_planted_violation_at_a_row(name):
    history = calls(*WRONG_FOR_A_ROW[name])
    violation = check(history, Resource("x"))
    assert violation
    assert violation.call == history[-1]


# --- real servers, under every fault


@pytest.mark.parametrize("kind", ["restart", "failover", "leases"])
def test_one_order_explains_every_answer_and_none_a_planted_one(kind):
    run = record(kind, seed(), seconds=3, pace_s=(0.02, 0.1))
    print(run)
    assert not judge(run)
    assert_worth_judging(run)
    assert_planted_violations_are_found(run.history)


def assert_worth_judging(run):
    history = run.history
    assert set(run.faults) == set(FAULTS[run.kind])
    assert history.unknown() > 0
    assert history.count("acquire", lambda told: told is None) > 0
    assert history.count("update", lambda told: told is True) >= ENOUGH_UPDATES / 2


def altered(history, key, call, **changes):
    """The history with one call changed."""
    copy = History(one_issuer=history.one_issuer, wakes=history.wakes)
    for name, calls in history.calls.items():
        for one in calls:
            copy.add(name, dataclasses.replace(one, **changes) if (name, one) == (key, call) else one)
    return copy


def found(history, is_wanted):
    """A key and a call of it."""
    return next((key, call) for key, calls in history.calls.items() for call in calls[len(calls) // 3 :] if is_wanted(call))


def assert_planted_violations_are_found(history):
    largest = max(call.outcome for call in history.all() if call.kind in GRANTS and isinstance(call.outcome, int))
    busy = found(history, lambda call: call.kind == "acquire" and call.outcome is None and not call.arguments[2])
    granted = found(history, lambda call: call.kind == "acquire" and call.outcome and call.outcome is not UNKNOWN)
    updated = found(history, lambda call: call.kind == "update" and call.outcome is True)
    claimed = found(history, lambda call: call.kind == "claim" and call.outcome not in (None, UNKNOWN, freeze(EMPTY)))
    planted = {
        "double grant": altered(history, *busy, outcome=largest + 1),
        "a fence that goes back": altered(history, *granted, outcome=1),
        "a lost acknowledged update": altered(history, *updated, outcome=False),
        "a stale read": altered(history, *claimed, outcome=freeze(EMPTY)),
    }
    assert {name for name, history in planted.items() if history.violations()} == set(planted)


class Broken(World):
    """Servers whose guarantees somebody breaks behind the clients' backs."""

    def take_the_locks_away(self):
        with Line(self.redis.port) as line:
            line.call("DEL", *LOCKS)

    def undo_updates(self):
        with psycopg.connect(self.postgres.url(), autocommit=True) as connection:
            connection.execute("UPDATE counters SET value = value - 1 WHERE value > 0")


def test_lost_locks_and_undone_updates_of_real_servers_are_found():
    with Broken("restart", seed()) as world:
        run = world.record(1, ["take_the_locks_away", "undo_updates"])
    violations = run.history.violations()
    print(run, *violations, sep="\n")
    assert any(told.startswith("lock") for told in violations)
    assert any(told.startswith("row:") for told in violations)


def test_fences_that_start_again_and_workers_that_do_not_fence_are_found():
    forgetful = {"appendonly": "no"}
    with World("restart", seed(), stalls=0.3, fenced=False, module_args=("fence-clock", "no"), config=forgetful) as world:
        run = world.record(1, ["kill_redis"])
    violations = run.history.violations()
    print(run, *violations, sep="\n")
    assert any("issued twice" in told or "went back" in told for told in violations)
    assert any(told.startswith("row:") for told in violations)


# --- for minutes


def test_a_kind_that_the_server_cannot_run_says_why():
    assert [kind for kind in KINDS if unable(kind)] in ([], ["atomic"])
    assert all("REDIS_SERVER" in unable(kind) for kind in KINDS if unable(kind))


# What the server cannot do is named at the end of the run: see conftest.py.
RUNNABLE = [kind for kind in KINDS if not unable(kind)]


@pytest.mark.long
@pytest.mark.parametrize("kind", RUNNABLE)
def test_one_order_explains_every_answer_of_a_long_run(kind):
    run = record(kind, seed(), seconds=30)
    print(run)
    assert not judge(run)
    assert set(run.faults) == set(FAULTS[kind])
    if kind != "leases":
        assert run.history.count("steal", lambda told: isinstance(told, int)) > 0
        assert run.history.count("await") > 0


class Forgetful:
    """A world whose servers lose the locks at what they should survive."""

    def _note(self, kind, *arguments):
        if kind in ("handover", "move"):
            for server, lock in itertools.product(self._servers(), self.locks):
                self._ask(server, "DEL", lock)
        super()._note(kind, *arguments)


class ForgetfulPair(Forgetful, Pair):
    pass


class ForgetfulMoves(Forgetful, Moves):
    pass


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "world", "fault"), [("clocks", ForgetfulPair, "hand_over"), ("classic", ForgetfulMoves, "move_held")]
)
def test_locks_that_are_lost_at_a_handover_or_on_the_way_are_found(kind, world, fault):
    with world(kind, seed()) as made:
        run = made.record(5, [fault])
    violations = run.history.violations()
    print(run, *violations, sep="\n")
    assert any(told.startswith("lock") for told in violations)


class Impatient(Down):
    """A cluster that one calls down while it serves."""

    def go_down(self):
        self._note("down", 0)
        super().go_down()


@pytest.mark.long
def test_grants_of_a_cluster_that_is_down_are_found():
    with Impatient("down", seed()) as world:
        run = world.record(1, ["go_down"])
    violations = run.history.violations()
    print(run, *violations, sep="\n")
    assert any(told.startswith("lock") for told in violations)
