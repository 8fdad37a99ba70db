"""The works of the Redis half, each against the commands that a user would send to the same server.

CPU is that of the server process per command, over a run of many; redis-benchmark cannot send pairs on one key, so
`load.rs` sends them. Every reply is checked: a run in which a lock was not granted, or not given back, does not count.
"""

import contextlib
import hashlib
import itertools
import json
import os
import subprocess
import tempfile

import redis
from harness import RedisServer, eventually, places
from harness.fetch import fetch

from .meters import Callgrind, cpu_seconds
from .works import Work

# Where everything is measured: folders under target/servers/.
SERVERS = ("redis", "redis-8.2", "valkey-9.1")
OWN_SERVER = "REDIS_SERVER"

OWNER = "{c}"
TTL = 10_000
LONG = 86_400_000

ACQUIRE = f"FENCELOCK.ACQUIRE {{k}} {OWNER} {TTL}"
RELEASE = f"FENCELOCK.RELEASE {{k}} {OWNER}"
SET = f"SET {{k}} {OWNER} NX PX {TTL}"

LUA = {
    "acquire": "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return redis.call('INCR', KEYS[2]) end return 0",
    "release": "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0",
    "extend": "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0",
}


def script(name, keys, *arguments):
    """A call of one of the scripts above, which the server has been given."""
    sha = hashlib.sha1(LUA[name].encode()).hexdigest()
    return " ".join(["EVALSHA", sha, str(len(keys)), *keys, *map(str, arguments)])


LUA_ACQUIRE = script("acquire", ["{k}", "{k}:fence"], OWNER, TTL)
LUA_RELEASE = script("release", ["{k}"], OWNER)
LUA_EXTEND = script("extend", ["s{k}"], OWNER, LONG)

# What is held and stored before a run, so that the commands of the run find it.
HELD = f"FENCELOCK.ACQUIRE h{{k}} {OWNER} {LONG}"
STORED = f"SET s{{k}} {OWNER} PX {LONG}"
BUSY = [f"FENCELOCK.ACQUIRE h{{k}} another {TTL}"]
BUSY_SET = [f"SET s{{k}} another NX PX {TTL}"]
FLOOR = ["FENCELOCK.CHECK {k} 1"]


def right_answer(templates):
    """Null for a lock that is busy, 0 for a check of one that is not there, else anything that says yes."""
    if templates in (BUSY, BUSY_SET):
        return "nulls"
    return "zeros" if templates == FLOOR else "others"


class Server:
    """A Redis server with the module, and what the load generator measures on it."""

    def __init__(self, load, *, append_only=False, wrapper=()):
        config = {"appendonly": "yes", "appendfsync": "everysec"} if append_only else {}
        self._load = load
        self.server = RedisServer(config={**config, "maxclients": 12_000}, wrapper=wrapper).start()
        self.client = redis.Redis(port=self.server.port)
        for text in LUA.values():
            self.client.script_load(text)

    def close(self):
        """End the server."""
        self.client.close()
        self.server.close()

    @property
    def title(self):
        """The server's product and version."""
        told = self.client.info("server")
        product = "Valkey" if "valkey_version" in told else "Redis"
        return f"{product} {'.'.join(told[f'{product.lower()}_version'].split('.')[:2])}"

    @contextlib.contextmanager
    def on_its_own_core(self):
        """The server on one core and the load on another: how long it takes to wake a process depends on where it is."""
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) > 1:
            for task in os.listdir(f"/proc/{self.server.pid}/task"):
                os.sched_setaffinity(int(task), cores[:1])
            os.sched_setaffinity(0, cores[1:2])
        try:
            yield
        finally:
            os.sched_setaffinity(0, cores)

    def takes(self, *words):
        """Whether the server has such a command, with such options."""
        try:
            self.client.execute_command(*words)
        except redis.ResponseError:
            return False
        return True

    def load(self, mode, *words):
        """Run the load generator and answer what it says."""
        done = subprocess.run([self._load, mode, str(self.server.port), *map(str, words)], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"load {mode} {words} failed: {done.stderr}")
        return json.loads(done.stdout)

    def stream(self, commands, templates, *, depth, connections=50):
        """Send commands and check that all of them did what they are for."""
        said = self.load("stream", connections, depth, commands, *templates)
        if said[right_answer(templates)] != said["commands"]:
            raise SystemExit(f"{templates}: not all replies are what they should be: {said}")
        return said["commands"]

    def hold(self, connections=50):
        """Every key of every connection held and stored."""
        for template in (HELD, STORED):
            self.stream(8 * connections, [template], depth=1, connections=connections)

    def cpu_us(self, commands, templates, **how):
        """Microseconds of the server's CPU time per command."""
        before = cpu_seconds(self.server.pid)
        sent = self.stream(commands, templates, **how)
        return (cpu_seconds(self.server.pid) - before) / sent * 1e6

    def hand_over_cpu_us(self, waiters, few=1_000, many=31_000):
        """Microseconds of the server's CPU time per handover of a lock with a queue, the re-queueing with it."""
        least, most = (self._rotation_cpu_us(waiters, rounds) for rounds in (few, many))
        return (most - least) / (many - few)

    def _rotation_cpu_us(self, waiters, rounds):
        """With the coming and going of the waiters."""
        self.client.flushall()
        before = cpu_seconds(self.server.pid)
        self.load("rotate", waiters, rounds, f"FENCELOCK.ACQUIRE {{k}} {OWNER} {LONG} WAIT {LONG}", RELEASE)
        eventually(lambda: self.client.info("clients")["connected_clients"], 1, within_s=60)
        return (cpu_seconds(self.server.pid) - before) * 1e6

    def bytes_per_lock(self, template, count):
        """What a held lock takes of the memory that the server counts."""
        before = self.client.info("memory")["used_memory"]
        self.fill(template, count)
        return (self.client.info("memory")["used_memory"] - before) / count

    def fill(self, template, count):
        """That many keys by counting up."""
        self.stream(count, [template], depth=16, connections=10)

    def save_cpu_s(self):
        """CPU seconds of SAVE."""
        before = cpu_seconds(self.server.pid)
        self.client.save()
        return cpu_seconds(self.server.pid) - before

    def start_cpu_s(self):
        """CPU seconds of a start that loads the RDB file, up to the first answer."""
        self.server.kill()
        self.server.start()
        return cpu_seconds(self.server.pid)


def instructions(load, templates, *, few=4_000, many=24_000):
    """Instructions of the server per command, 16 at a time on one connection."""
    counts = []
    for commands in (few, many):
        with tempfile.TemporaryDirectory(prefix="fencelock-bench-") as folder:
            callgrind = Callgrind(folder)
            server = Server(load, wrapper=callgrind.wrapper)
            try:
                server.hold(connections=1)
                sent = server.stream(commands, templates, depth=16, connections=1)
                server.server.stop()
                counts.append((sent, max(callgrind.counted().values())))
            finally:
                server.close()
    (few, least), (many, most) = counts
    return (most - least) / (many - few)


class Kept:
    """A measure that gives several figures: one when called, the others afterwards, round by round."""

    def __init__(self, run, figure):
        self._run, self._figure, self._said = run, figure, []

    def __call__(self):
        self._said.append(self._run())
        return self._said[-1][self._figure]

    def later(self, figure):
        """A measure that gives this figure of each round again; of a new one where there was none."""
        rounds = itertools.count()

        def figure_of_round():
            number = next(rounds)
            if number == len(self._said):
                self()
            return self._said[number][figure]

        return figure_of_round


def pairs(where, takes):
    """The works of single commands: (name, target, stretch, our commands, the peer's)."""
    ours, plain, lua = [ACQUIRE, RELEASE], [SET, "DEL {k}"], [LUA_ACQUIRE, LUA_RELEASE]
    extend, pexpire, get = [f"FENCELOCK.EXTEND h{{k}} {OWNER} {LONG}"], [f"PEXPIRE s{{k}} {LONG}"], ["GET s{k}"]
    rows = [
        ("ACQUIRE + RELEASE against SET NX PX + DEL", 1.40, 1.30, ours, plain),
        ("ACQUIRE + RELEASE against the two-key script", 0.40, 0.33, ours, lua),
        ("ACQUIRE + RELEASE against SET NX PX + compare-and-delete in Lua", None, None, ours, [SET, LUA_RELEASE]),
        ("ACQUIRE of a busy lock against GET", 1.25, 1.15, BUSY, get),
        ("EXTEND against PEXPIRE", 1.6, None, extend, pexpire),
        ("EXTEND against compare-and-extend in Lua", 0.5, None, extend, [LUA_EXTEND]),
        ("floor: CHECK of an absent key against SET NX PX + DEL", None, None, FLOOR, plain),
        ("floor: CHECK of an absent key against GET", None, None, FLOOR, get),
        # What the server's own commands of the same kind take of the same peers.
        ("floor: SET NX PX of a stored key against GET", None, None, BUSY_SET, get),
        ("floor: SET NX PX + DEL against the two-key script", None, None, plain, lua),
        ("floor: PEXPIRE against compare-and-extend in Lua", None, None, pexpire, [LUA_EXTEND]),
    ]
    # Some servers compare without a script.
    if takes("DELEX", "absent", "IFEQ", "x"):
        peer = [SET, f"DELEX {{k}} IFEQ {OWNER}"]
        rows.append(("ACQUIRE + RELEASE against SET NX PX + DELEX IFEQ", None, None, ours, peer))
    if takes("DELIFEQ", "absent", "x"):
        peer = [SET, f"DELIFEQ {{k}} {OWNER}"]
        rows.append(("ACQUIRE + RELEASE against SET NX PX + DELIFEQ", None, None, ours, peer))
    if takes("SET", "absent", "x", "IFEQ", "x"):
        peer = [f"SET s{{k}} {OWNER} IFEQ {OWNER} PX {LONG}"]
        rows.append(("EXTEND against SET IFEQ PX", None, None, extend, peer))
    return [(f"{name}, {where}", *row) for name, *row in rows]


@contextlib.contextmanager
def started_by_default(name):
    """Has every Redis server meanwhile be this one, unless the user named another."""
    if OWN_SERVER in os.environ:
        yield
        return
    fetch(name)
    os.environ[OWN_SERVER] = str(places.SERVERS / name / "usr" / "bin" / "redis-server")
    try:
        yield
    finally:
        del os.environ[OWN_SERVER]


def servers(quick):
    """The servers to measure on."""
    return SERVERS[:1] if quick or OWN_SERVER in os.environ else SERVERS


def works(load, quick):
    """All works of this half, with their servers started and ended around them."""
    for name in servers(quick):
        with started_by_default(name):
            yield from _commands(load, quick)
            if name == SERVERS[0]:
                yield from _instructions(load, quick)
            yield from _waiting(load, quick)
            if not quick:
                yield from _many(load)


def _commands(load, quick):
    commands, rounds = 300_000, 5 if quick else 7
    for append_only in (False,) if quick else (False, True):
        with contextlib.closing(Server(load, append_only=append_only)) as server:
            server.hold()

            def cpu(templates, depth):
                # One at a time costs some five times as much.
                return lambda: server.cpu_us(commands // (1 if depth > 1 else 5), templates, depth=depth)

            for depth in (16,) if quick else (16, 1):
                where = f"{server.title}, -P {depth}, {'AOF everysec' if append_only else 'no persistence'}"
                for name, target, stretch, ours, peer in pairs(where, server.takes):
                    yield Work(name, "CPU", target, stretch, cpu(ours, depth), cpu(peer, depth), rounds=rounds)


def _instructions(load, quick):
    with contextlib.closing(Server(load)) as server:
        where = f"{server.title}, -P 16, no persistence"
    for name, target, stretch, ours, peer in pairs(where, lambda *_: False):

        def count(templates):
            return lambda: instructions(load, templates)

        if not quick or not any(word in name for word in ("floor", "Lua")):
            # Counts differ by two percent from one start of a server to the next.
            rounds = 3 if quick else 5
            yield Work(name, "instructions", target, stretch, count(ours), count(peer), rounds=rounds)


def _waiting(load, quick):
    seconds, rounds = (2, 3) if quick else (3, 5)
    waits = f"FENCELOCK.ACQUIRE {{k}} {OWNER} {TTL} WAIT 60000"
    with contextlib.closing(Server(load)) as server, server.on_its_own_core():
        on = server.title

        def contended(turns, poll_ms, spread_ms, acquire, release):
            words = ("contend", 128, seconds, turns, poll_ms, spread_ms, acquire, release)
            return Kept(lambda: server.load(*words), "cycles_per_s")

        for poll_ms, target, stretch in ((5, 4.5, 6), (100, 50, None)):
            for what, turns, spread_ms in (
                ("all at one moment, one turn each", 1, 0),
                ("at any moment, one turn each", 1, poll_ms),
                # Who comes back at once finds the lock free while all others sleep: this counts the turns of one client.
                ("over and over", 1_000_000, 0),
            ):
                ours = contended(turns, 0, spread_ms, waits, RELEASE)
                peer = contended(turns, poll_ms, spread_ms, LUA_ACQUIRE, LUA_RELEASE)
                who = f"128 clients on one lock, {what}, against Lua polled every {poll_ms} ms, {on}"
                yield Work(who, "cycles per second", target, stretch, ours, peer, at_least=True, rounds=rounds)
                longest = ours.later("longest_wait_ms"), peer.later("longest_wait_ms")
                yield Work(who, "longest wait", 0.1, None, *longest, rounds=rounds)

        turns = 2_000 if quick else 10_000
        ours = Kept(lambda: server.load("rotate", 1, turns, waits, RELEASE), "median_us")
        peer = Kept(lambda: server.load("rotate", 1, turns, "BLPOP list{k} 60", "LPUSH list{k} x"), "median_us")
        who = "RELEASE to the waiter's reply against LPUSH to a BLPOP client"
        yield Work(f"{who}, {on}", "median time", 1.2, 1.05, ours, peer, rounds=rounds)
        yield Work(f"{who}, {on}", "p99 time", 1.2, 1.05, ours.later("p99_us"), peer.later("p99_us"), rounds=rounds)

        for waiters in (100,) if quick else (100, 10_000):
            name = f"CPU of a hand-over with {waiters:,} waiters against 1, {on}"
            ours, peer = (lambda: server.hand_over_cpu_us(waiters)), (lambda: server.hand_over_cpu_us(1))
            yield Work(name, "CPU", 1.3, 1.1, ours, peer, rounds=3)


# The peer is larger there: later servers keep a string and its name in one allocation.
BYTES = {"Redis 7.0": 0.9}


def _many(load, count=1_000_000):
    held, owner = f"FENCELOCK.ACQUIRE lock:{{n}} {OWNER} {LONG}", f"lock:{{n}} {OWNER}"
    two_keys = LUA_ACQUIRE.replace("{k}", "lock:{n}").replace(f" {TTL}", f" {LONG}")
    with contextlib.closing(Server(load)) as many, contextlib.closing(Server(load)) as few:
        on = many.title
        ours, peer = many.bytes_per_lock(held, count), few.bytes_per_lock(two_keys, count)
        name = f"bytes per held lock against the two-key script, {count:,} locks, {on}"
        yield Work(name, "memory", BYTES.get(on, 1.0), None, lambda: ours, lambda: peer)

        few.client.flushall()
        few.fill(held, 160)
        pair = [ACQUIRE, RELEASE]
        at_many, at_few = (lambda server=server: server.cpu_us(300_000, pair, depth=16) for server in (many, few))
        name = f"ACQUIRE + RELEASE with {count:,} live leases against 160, {on}"
        yield Work(name, "CPU", 1.3, 1.1, at_many, at_few, rounds=7)

        few.client.flushall()
        few.fill(f"SET {owner} PX {LONG}", count)
        name = f"of {count:,} locks against strings with a TTL, {on}"
        yield Work(f"SAVE {name}", "CPU", 1.5, None, many.save_cpu_s, few.save_cpu_s, rounds=5)
        yield Work(f"load {name}", "CPU", 1.5, None, many.start_cpu_s, few.start_cpu_s, rounds=3)
