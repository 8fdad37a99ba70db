"""A lease, and two who wait for it, and everything that can happen to them in one server.

One matrix: each event of the world against a lease that nobody or two wait for. Whatever happens, at most one holder is
live, each waiter gets exactly one reply, fences grow, and nothing is left behind: no waiter, lease, key or memory.
"""

import contextlib
import os
import queue
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness.frozen_clock import Clocks
from harness import RedisServer, eventually
from harness.redis_calls import Closed, Lines, Refused
from harness.locks import FENCE_MAX
from harness.payloads import lock_payload
from harness.waiting import HANG_S

LONG_MS = 60_000
NOW, DEADLINE = "now", "deadline"
# The holder's lease from the event on, and that of each waiter. An event that ends the hold comes long before its time: a
# test that waited for the lease would give up first.
HOLDER_S, WAITER_S = {NOW: 2 * HANG_S, DEADLINE: 0.25}, 0.08
# The deadline that is read back from a snapshot is in wall time.
RELOAD_S = 0.005

# What may be left of the memory of one case: buffers of the connection that asks.
KEPT_BYTES = 150_000
WORKERS = 4
CONFIG = {"enable-debug-command": "yes", "busy-reply-threshold": "20"}


class World:
    """One server with a holder of `k`, and the waiters."""

    def __init__(self, server, lines, waiting, prepare=(), lock=DEADLINE):
        self.server, self.lines, self.control = server, lines, lines.control
        self.holder = lines.open()
        assert self.holder.id
        self.fences = [self.holder.call("FENCELOCK.ACQUIRE", "k", "A", LONG_MS)]
        self.waiters = []
        for number in range(2 if waiting else 0):
            waiter = lines.open()
            assert waiter.id
            if number == 0 and prepare:
                waiter.send(*prepare)
            waiter.send("FENCELOCK.ACQUIRE", "k", f"W{number}", round(WAITER_S * 1000), "WAIT", LONG_MS)
            eventually(lambda number=number: lines.count("waiters"), number + 1)
            self.waiters.append(waiter)
        # The moment before which the holder's lease does not expire.
        self.deadline = time.monotonic() + HOLDER_S[lock]
        assert self.holder.call("FENCELOCK.EXTEND", "k", "A", round(HOLDER_S[lock] * 1000)) > 0

    def call(self, *words):
        """A command that is not refused."""
        reply = self.control.call(*words)
        assert not isinstance(reply, Refused), reply
        return reply

    def together(self, *commands):
        """Commands that run in one turn of the server, with nothing in between."""
        replies = self.control.call_all(("MULTI",), *commands, ("EXEC",))[-1]
        assert not any(isinstance(reply, Refused) for reply in replies), replies
        return replies


class Event:
    """Something that happens.

    act: makes it happen; may return the moment before which nobody else may be granted the lock.
    lock: what that moment is otherwise: the NOW of the event, or the DEADLINE of the holder's lease.
    first, second: what the waiters get: GRANT, null, the code of an error, CLOSED or SILENCE.
    behind: what the first waiter gets after its grant. prepare: a command on its connection before it waits.
    waiters_only: the event needs a waiter.
    """

    def __init__(
        self, act, lock, *, first="GRANT", second="GRANT", behind=(), prepare=(), waiters_only=False, clock=False
    ):
        self.act, self.lock, self.first, self.second = act, lock, first, second
        self.behind, self.prepare, self.clock = behind, prepare, clock
        self.waiters_only = waiters_only or bool(behind or prepare) or first not in ("GRANT", "WRONGTYPE")


def words(*command):
    return lambda world: world.call(*command) and None


def after_s(seconds, *commands):
    """An event after which the lock is shut for so long."""

    def act(world):
        began = time.monotonic()
        world.together(*commands)
        return began + seconds

    return act


def refused(*command):
    def act(world):
        assert isinstance(world.control.call(*command), Refused)

    return act


def restored(**fields):
    def act(world):
        began = time.monotonic()
        world.call("RESTORE", "k", 0, lock_payload(**fields), "REPLACE")
        return began + fields["left_us"] / 1_000_000

    return act


def restored_from_its_own_dump(world):
    dump = world.call("DUMP", "k")
    world.together(("DEL", "k"), ("RESTORE", "k", 0, dump))


def evicted(policy):
    def act(world):
        calls = [("maxmemory-policy", policy), ("maxmemory", 1), ("maxmemory", 0), ("maxmemory-policy", "noeviction")]
        assert world.control.call_all(*(("CONFIG", "SET", *pair) for pair in calls)) == ["OK"] * 4
        if not world.waiters:
            assert world.call("EXISTS", "k") == (0 if policy.startswith("allkeys") else 1)

    return act


def paused(mode):
    def act(world):
        began = time.monotonic()
        world.call("CLIENT", "PAUSE", 500, mode)
        # The server counts whole milliseconds of the wall clock.
        return began + 0.498

    return act


def handed_over_in(both):
    """RELEASE and ACQUIRE of a newcomer in one step: the newcomer gets the lock only if nobody waits."""

    def act(world):
        began = time.monotonic()
        released, granted = both(world)
        assert released == 1
        assert (granted is None) == bool(world.waiters)
        if granted:
            world.fences.append(granted)
        return began if world.waiters else began + WAITER_S

    return act


RELEASE = ("FENCELOCK.RELEASE", "k", "A")
NEWCOMER = ("FENCELOCK.ACQUIRE", "k", "N", round(WAITER_S * 1000), "WAIT", LONG_MS)
BOTH = (
    "local function both() return {redis.call('FENCELOCK.RELEASE', 'k', 'A'), "
    "redis.call('FENCELOCK.ACQUIRE', 'k', 'N', 80, 'WAIT', 60000)} end "
)


def in_function(world):
    world.call("FUNCTION", "LOAD", "REPLACE", f"#!lua name=lib\n{BOTH} redis.register_function('both', both)")
    return world.call("FCALL", "both", 0)


def watched(world):
    """A refused call aborts nobody's transaction."""
    watcher = world.lines.open()
    assert watcher.call("WATCH", "k") == "OK"
    assert world.call("FENCELOCK.ACQUIRE", "k", "N", LONG_MS) is None
    assert world.call("FENCELOCK.RELEASE", "k", "N") == 0
    assert watcher.call_all(("MULTI",), ("ECHO", "ran"), ("EXEC",))[-1] == [b"ran"]


def busy_script(world):
    stop = "local function us() local t = redis.call('TIME') return t[1] * 1e6 + t[2] end local stop = us() + 400000 "
    return while_busy(world, ("EVAL", f"{stop} while us() < stop do end return 1", 0), ())


def killed_script(world):
    return while_busy(world, ("EVAL", "while true do end", 0), ("SCRIPT", "KILL"))


def killed_function(world):
    world.call(
        "FUNCTION",
        "LOAD",
        "REPLACE",
        "#!lua name=lib\nredis.register_function('spin', function() while true do end end)",
    )
    return while_busy(world, ("FCALL", "spin", 0), ("FUNCTION", "KILL"))


def while_busy(world, script, kill):
    """Runs a script that is too slow, over the end of the lease, and returns when it was over at the earliest."""
    runner = world.lines.open().send(*script)
    eventually(lambda: getattr(world.control.call("PING"), "code", None), "BUSY")
    began = time.monotonic()
    if kill:
        sleep_past_the_lease(world)
        began = time.monotonic()
        assert world.control.call(*kill) == "OK"
    runner.reply()
    return max(began, world.deadline)


def sleep_past_the_lease(world):
    """The server cannot be asked meanwhile."""
    time.sleep(max(0.0, world.deadline + 0.1 - time.monotonic()))


def frozen(world):
    os.kill(world.server.pid, signal.SIGSTOP)
    sleep_past_the_lease(world)
    thawed = time.monotonic()
    os.kill(world.server.pid, signal.SIGCONT)
    return thawed


def takes_fences_up_to_two_days_ahead_of(world, clock_s):
    two_days_s, margin_s = 2 * 86_400, 1_800
    near, far = (
        world.control.call("FENCELOCK.CLAIM", "resource", round((clock_s + two_days_s + margin) * 1_000_000))
        for margin in (-margin_s, margin_s)
    )
    world.call("DEL", "resource")
    return not isinstance(near, Refused) and isinstance(far, Refused)


def stepped(hours):
    def act(world):
        world.server.clocks.step_wall(hours * 3_600)
        told = int(world.call("TIME")[0]) - time.time()
        assert abs(told - hours * 3_600) < 60
        # The module sees the step as well, ten times a second: its fences follow the clock, but never back.
        eventually(lambda: takes_fences_up_to_two_days_ahead_of(world, time.time() + hours * 3_600))
        fence = world.call("FENCELOCK.ACQUIRE", "other", "o", LONG_MS)
        assert world.call("FENCELOCK.RELEASE", "other", "o") == 1
        assert fence / 1_000_000 - time.time() > max(hours, 0) * 3_600 - 60

    return act


def demoted(world):
    world.call("REPLICAOF", "127.0.0.1", 1)
    world.call("REPLICAOF", "NO", "ONE")


def kill(pick):
    return lambda world: world.call("CLIENT", "KILL", "ID", pick(world).id) and None


def unblock(form):
    return lambda world: world.call("CLIENT", "UNBLOCK", world.waiters[0].id, form) and None


def send_behind(*command):
    return lambda world: world.waiters[0].send(*command) and None


def renamed_away_and_back(world):
    world.together(("RENAME", "k", "z"), ("RENAME", "z", "k"))


def another_lock_over_it(world):
    began = time.monotonic()
    fence, _ = world.together(("FENCELOCK.ACQUIRE", "z", "Z", 150), ("RENAME", "z", "k"))
    world.fences.append(fence)
    return began + 0.15


def copied_over(world):
    world.fences.append(world.call("FENCELOCK.ACQUIRE", "z", "Z", LONG_MS))
    assert isinstance(world.control.call("COPY", "z", "k", "REPLACE"), Refused)
    assert world.call("FENCELOCK.RELEASE", "z", "Z") == 1


EVENTS = {
    "nothing": Event(lambda world: None, DEADLINE),
    "RELEASE": Event(words(*RELEASE), NOW),
    "DEL": Event(words("DEL", "k"), NOW),
    "UNLINK": Event(words("UNLINK", "k"), NOW),
    "EXPIRE": Event(words("EXPIRE", "k", 100), DEADLINE),
    "PEXPIRE that is over first": Event(words("PEXPIRE", "k", 1), NOW),
    "PEXPIREAT in the past": Event(words("PEXPIREAT", "k", 1), NOW),
    "PERSIST": Event(lambda world: world.together(("PEXPIRE", "k", 10), ("PERSIST", "k")) and None, DEADLINE),
    "RENAME away": Event(words("RENAME", "k", "z"), NOW),
    "RENAMENX away": Event(words("RENAMENX", "k", "z"), NOW),
    "RENAME away and back": Event(renamed_away_and_back, DEADLINE),
    "RENAME of a string over it": Event(
        lambda world: world.together(("SET", "z", "v"), ("RENAME", "z", "k")) and None,
        NOW,
        first="WRONGTYPE",
        second="WRONGTYPE",
    ),
    "RENAME of another lock over it": Event(another_lock_over_it, NOW),
    "COPY": Event(refused("COPY", "k", "z"), DEADLINE),
    "COPY of another lock over it": Event(copied_over, DEADLINE),
    "MOVE": Event(words("MOVE", "k", 1), NOW),
    "SWAPDB": Event(words("SWAPDB", 0, 1), NOW),
    "SWAPDB twice": Event(lambda world: world.together(("SWAPDB", 0, 1), ("SWAPDB", 0, 1)) and None, DEADLINE),
    "FLUSHDB SYNC": Event(words("FLUSHDB", "SYNC"), NOW),
    "FLUSHDB ASYNC": Event(words("FLUSHDB", "ASYNC"), NOW),
    "FLUSHALL SYNC": Event(words("FLUSHALL", "SYNC"), NOW),
    "FLUSHALL ASYNC": Event(words("FLUSHALL", "ASYNC"), NOW),
    "RESTORE of its own dump": Event(restored_from_its_own_dump, DEADLINE),
    "RESTORE of an old dump": Event(restored(fence=33, left_us=100_000), NOW),
    "RESTORE of a foreign lock": Event(
        restored(fence=time.time_ns() // 1_000 + 60_000_000, left_us=100_000, owner=b"foreign"), NOW
    ),
    "RESTORE of a hostile lock": Event(
        refused("RESTORE", "k", 0, lock_payload(fence=FENCE_MAX, left_us=100_000), "REPLACE"), DEADLINE
    ),
    "SET": Event(words("SET", "k", "v"), NOW, first="WRONGTYPE", second="WRONGTYPE"),
    "SET NX": Event(lambda world: world.call("SET", "k", "v", "NX"), DEADLINE),
    **{
        f"eviction under {policy}": Event(evicted(policy), NOW if policy.startswith("allkeys") else DEADLINE)
        for policy in (
            *("noeviction", "allkeys-lru", "allkeys-lfu", "allkeys-random"),
            *("volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl"),
        )
    },
    "DEBUG RELOAD": Event(lambda world: (world.call("DEBUG", "RELOAD"), world.deadline - RELOAD_S)[1], DEADLINE),
    "DEBUG SLEEP": Event(lambda world: (world.call("DEBUG", "SLEEP", "0.4"), world.deadline)[1], DEADLINE),
    "BGSAVE": Event(words("BGSAVE"), DEADLINE),
    "CLIENT KILL of the holder": Event(kill(lambda world: world.holder), DEADLINE),
    "CLIENT KILL of a waiter": Event(kill(lambda world: world.waiters[0]), DEADLINE, first="CLOSED"),
    "a waiter that closes": Event(lambda world: world.waiters[0].close(), DEADLINE, first="SILENCE"),
    "CLIENT UNBLOCK TIMEOUT": Event(unblock("TIMEOUT"), DEADLINE, first=None),
    "CLIENT UNBLOCK ERROR": Event(unblock("ERROR"), DEADLINE, first="UNBLOCKED"),
    "CLIENT PAUSE ALL": Event(paused("ALL"), DEADLINE),
    "CLIENT PAUSE WRITE": Event(paused("WRITE"), DEADLINE),
    "CLIENT REPLY OFF": Event(lambda world: None, DEADLINE, first="SILENCE", prepare=("CLIENT", "REPLY", "OFF")),
    "CLIENT REPLY SKIP": Event(lambda world: None, DEADLINE, first="SILENCE", prepare=("CLIENT", "REPLY", "SKIP")),
    "RESET behind a waiting call": Event(send_behind("RESET"), DEADLINE, behind=("RESET",)),
    "QUIT behind a waiting call": Event(send_behind("QUIT"), DEADLINE, behind=("OK", Closed)),
    "RESET of the holder": Event(lambda world: world.holder.call("RESET") and None, DEADLINE),
    "QUIT of the holder": Event(lambda world: world.holder.call("QUIT") and None, DEADLINE),
    "MULTI": Event(handed_over_in(lambda world: world.together(RELEASE, NEWCOMER)), NOW),
    "a script": Event(handed_over_in(lambda world: world.call("EVAL", f"{BOTH} return both()", 0)), NOW),
    "a function": Event(handed_over_in(in_function), NOW),
    "WATCH": Event(watched, DEADLINE),
    "a script that is too slow": Event(busy_script, DEADLINE),
    "SCRIPT KILL": Event(killed_script, DEADLINE),
    "FUNCTION KILL": Event(killed_function, DEADLINE),
    "the wall clock an hour ahead": Event(stepped(1), DEADLINE, clock=True),
    "the wall clock an hour back": Event(stepped(-1), DEADLINE, clock=True),
    "a server that is frozen": Event(frozen, DEADLINE),
    "REPLICAOF and back": Event(demoted, DEADLINE, first="UNBLOCKED", second="UNBLOCKED"),
}

CASES = [
    (name, waiting) for name, event in EVENTS.items() for waiting in (False, True) if waiting or not event.waiters_only
]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What became of each case, as futures: the cases run beside each other, on servers of their own."""
    free = queue.Queue()
    with contextlib.ExitStack() as stack:
        for _ in range(WORKERS):
            free.put(warm(stack.enter_context(contextlib.closing(RedisServer(config=CONFIG).start()))))
        folder = tmp_path_factory.mktemp("clock")

        def run(name, waiting):
            event = EVENTS[name]
            if event.clock:
                with contextlib.closing(
                    server_with_its_own_clock(folder / str(CASES.index((name, waiting))))
                ) as server:
                    return run_case(server, event, waiting)
            server = free.get()
            try:
                return run_case(server, event, waiting)
            finally:
                free.put(server)

        workers = stack.enter_context(ThreadPoolExecutor(WORKERS))
        yield {case: workers.submit(run, *case) for case in CASES}


@pytest.mark.parametrize(
    ("name", "waiting"), CASES, ids=[f"{name}, {'two wait' if two else 'nobody waits'}" for name, two in CASES]
)
def test_one_holder_one_reply_each_growing_fences_and_nothing_left(outcomes, name, waiting):
    outcomes[name, waiting].result()


def warm(server):
    """Lets a server allocate what it keeps for as long as it lives: helpers for a few blocked clients, above all."""
    with Lines(server.port) as lines:
        lines.control.call("FUNCTION", "FLUSH")
        lines.open().call("FENCELOCK.ACQUIRE", "k", "A", LONG_MS)
        for number in range(10):
            lines.queue("k", f"W{number}", LONG_MS, LONG_MS)
        lines.drain()
    return server


def server_with_its_own_clock(folder):
    clocks = Clocks(folder)
    server = RedisServer(config=CONFIG, data_dir=folder, environment=clocks.environment).start()
    server.clocks = clocks
    return warm(server)


def run_case(server, event, waiting):
    with Lines(server.port) as lines:
        lines.control.call("FLUSHALL")
        memory = lines.memory()
        world = World(server, lines, waiting, event.prepare, event.lock)
        began = time.monotonic()
        earliest = event.act(world)
        if earliest is None:
            earliest = began if event.lock == NOW else world.deadline
        if waiting:
            check_waiters(world, event, earliest)
        else:
            newcomer = lines.open()
            newcomer.send("FENCELOCK.ACQUIRE", "k", "N", round(WAITER_S * 1000), "WAIT", LONG_MS)
            check_reply(world, newcomer, event.first, earliest)
        check_nothing_left(world, memory)


def check_waiters(world, event, earliest):
    first, second = world.waiters
    holds = event.first == "GRANT" or bool(event.prepare)
    check_reply(world, first, event.first, earliest, event.behind)
    check_reply(world, second, event.second, earliest + WAITER_S if holds else earliest)


def check_reply(world, line, expected, earliest, behind=()):
    """The one reply of a call that waited; a grant does not come early."""
    if expected == "SILENCE":
        return
    if expected == "CLOSED":
        with pytest.raises(Closed):
            line.reply()
        return
    reply = line.reply()
    came = time.monotonic()
    if expected == "GRANT":
        assert isinstance(reply, int), reply
        assert came >= earliest, f"{earliest - came:.3f} s early"
        assert reply > max(world.fences), "fences grow"
        # Whoever held it before holds it no more.
        assert [world.call("FENCELOCK.CHECK", "k", fence) for fence in world.fences] == [0] * len(world.fences)
        world.fences.append(reply)
    else:
        assert (reply.code if isinstance(reply, Refused) else reply) == expected
    for more in behind:
        if more is Closed:
            with pytest.raises(Closed):
                line.reply()
        else:
            assert line.reply() == more
    if Closed not in behind and expected != "UNBLOCKED":
        assert line.call("ECHO", "mark") == b"mark", "a second reply"


def check_nothing_left(world, memory):
    lines = world.lines
    # The lease of a lock that went elsewhere goes on there, for longer than a test waits.
    for database in (0, 1):
        world.call("SELECT", database)
        for key in ("k", "z"):
            world.control.call("FENCELOCK.EXTEND", key, "A", 1)
    eventually(lambda: (lines.count("waiters"), lines.blocked(), lines.count("live-leases")), (0, 0, 0))
    for database in (0, 1):
        world.call("SELECT", database)
        eventually(lambda: world.call("SCAN", 0, "COUNT", 1_000, "TYPE", "fencelock")[1], [])
    world.call("FLUSHALL")
    world.call("SELECT", 0)
    fence = world.call("FENCELOCK.ACQUIRE", "k", "last", LONG_MS)
    assert fence > max(world.fences), "fences grow"
    assert world.call("FENCELOCK.RELEASE", "k", "last") == 1
    world.call("FUNCTION", "FLUSH")
    lines.drain()
    eventually(lambda: max(lines.memory() - memory, KEPT_BYTES), KEPT_BYTES)
    assert not [line for line in world.server.log().splitlines() if "ASSERT" in line or "internal error" in line]
