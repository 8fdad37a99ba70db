"""Random commands from several connections against one Redis: every lock command, whole, nearly right and hostile, mixed
with other commands about keys, clients, databases, memory and itself.

After each run the server lives, each connection got exactly one reply for each command, fences grew, no lock had two live
holders, a reload kept every hold, and no waiter, lease or memory is left.
"""

import contextlib
import os
import re
import select
import signal
import time
from collections import Counter, deque

from fuzz.campaign import Find, main
from harness import RedisServer, eventually
from harness.redis_calls import Closed, Line, Lines, Refused

STEPS = 400
LONG_MS = 60_000
# Locks that only lock commands touch: there nothing but a release or a flush lets a second holder in.
CALM = [b"calm:1", b"calm:2", b"calm:{x}"]
WILD = [b"w1", b"w2", b"w3", b"", b"\x00\xff\r\nw", b"w" * 127, b"w" * 128, b"w" * 20_000]
KEYS = CALM + WILD
HASHES = [b"h1", b"h2", b"w1"]
OWNERS = [b"A", b"B", b"C", b"8b1f0a9e-0d2c-4c69-9f3e-0c6a5f5a1f11", b"x" * 127, b"x" * 128, b"\0", b"x" * 512]
BAD_OWNERS = [b"", b"x" * 513, b"x" * 70_000]
BAD_NUMBERS = [b"0", b"-1", b"1e3", b"1.5", b" 5", b"5 ", b"05", b"+5", b"0x10", b"", b"nan", b"\xd9\xa5", b"\0"]
BAD_NUMBERS += [b"9223372036854775807", b"9223372036854775808", b"18446744073709551616", b"316224000001", b"5\r\n"]
BAD_FENCES = [b"0", b"-3", b"9007199254740992", b"9223372036854775808", b"1.0", b"", b"x", b"01"]
LOCK_COMMANDS = ("ACQUIRE", "STEAL", "EXTEND", "RELEASE", "CHECK", "INSPECT", "AWAIT", "CLAIM", "WRITE", "STATS", "TOP", "RAISE", "HELP")
CONFIG = {"enable-debug-command": "yes", "busy-reply-threshold": "50", "databases": "4", "maxclients": "500"}
SCRIPTS = (
    b"return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))",
    b"local a = redis.pcall(ARGV[1], KEYS[1], unpack(ARGV, 2)) redis.call('SET', 'w3', 'x') return a",
    b"redis.setresp(3) return redis.pcall(ARGV[1], KEYS[1], unpack(ARGV, 2))",
    b"redis.pcall('DEL', KEYS[1]) return redis.pcall(ARGV[1], KEYS[1], unpack(ARGV, 2))",
    b"for i = 1, 3 do redis.pcall(ARGV[1], KEYS[1], unpack(ARGV, 2)) end return redis.error_reply('over')",
)
ENDINGS = (b"ended", b"released", b"expired", b"maxhold", b"stolen", b"deleted", b"flushed", b"evicted")
# After these nobody knows any more who holds a calm lock.
ENDS_EVERYTHING = ("FLUSHALL", "FLUSHDB", "SWAPDB")
EVERYTHING = "everything"
# How long a command may be on its way whose outcome is unknown: a pause of the server and its turn.
UNKNOWN_S = 1.0


class Sent:
    """A command whose reply is awaited."""

    __slots__ = ("words", "at", "floor", "db", "ends", "ended_before", "client")

    def __init__(self, words, game, client):
        self.words, self.at, self.db, self.client = words, time.monotonic(), client.db, client.id
        self.floor = game.newest_fence
        self.ends = game.what_it_ends(self)
        self.ended_before = game.ended_of(self)

    @property
    def is_acquire(self):
        return len(self.words) > 3 and upper(self.words[0]) in ("FENCELOCK.ACQUIRE", "FENCELOCK.STEAL")

    @property
    def lock_and_owner(self):
        return tuple(self.words[1:3])

    @property
    def options(self):
        return [upper(word) for word in self.words[4:]]

    def option_ms(self, name):
        options = self.options
        return int(options[options.index(name) + 1]) if name in options else None


class Client:
    """One connection: what it has sent without a reply yet."""

    def __init__(self, game, port, *, protocol, db, is_calm):
        self.line = Line(port, protocol=protocol, db=db)
        self.id = self.line.id
        self.game, self.db, self.is_calm = game, db, is_calm
        self.awaited = deque()
        self.in_multi = self.is_silent = self.skips_next = False
        self.queued = []

    def send(self, *commands):
        """Commands in one write."""
        for words in commands:
            self._expect(words)
        self.line.send_all(*commands)

    def _expect(self, words):
        name = upper(words[0])
        argument = upper(words[1]) if len(words) > 1 else ""
        sent = Sent(words, self.game, self)
        self.game.begins(sent)
        was_skipped, self.skips_next = self.skips_next, False
        if name == "RESET":
            self.is_silent = self.in_multi = False
        if name == "MULTI":
            self.in_multi = True
        elif name in ("EXEC", "DISCARD"):
            self.in_multi = False
        if name == "CLIENT" and argument == "REPLY":
            how = upper(words[2])
            self.skips_next = how == "SKIP" and not self.is_silent
            self.is_silent = how == "OFF" or self.is_silent and how == "SKIP"
            if how != "ON":
                return
            was_skipped = False
        if not was_skipped and not self.is_silent:
            self.awaited.append(sent)
        else:
            self.game.lost(sent)

    def close(self):
        """The outcome of the commands stays unknown."""
        self.line.close()
        for sent in (*self.queued, *self.awaited):
            self.game.lost(sent)
        self.queued, self.awaited = [], deque()

    def read(self):
        """Take in what has come; False when the connection is closed."""
        try:
            while self.line.has_reply():
                self.take(self.line.reply(0.05))
        except TimeoutError:
            pass
        except Closed:
            return False
        return True

    def take(self, reply):
        if not self.awaited:
            raise Find(f"a reply that nobody asked for: {reply!r}")
        sent = self.awaited.popleft()
        name = upper(sent.words[0])
        if reply == "QUEUED":
            self.queued.append(sent)
            return
        if name in ("EXEC", "DISCARD", "RESET", "MULTI"):
            queued, self.queued = self.queued, []
            if name == "EXEC" and isinstance(reply, list) and len(reply) == len(queued):
                for one, its_reply in zip(queued, reply, strict=True):
                    self.game.judge(one, its_reply)
            else:
                for one in queued:
                    self.game.lost(one)
            return
        self.game.judge(sent, reply)


class Game:
    """One run."""

    def __init__(self, server, chance):
        self.server, self.chance = server, chance
        self.began = time.monotonic()
        # One or the other: Redis 7.0 falls over CLIENT UNBLOCK of a client whose write is paused, whatever the command.
        self.unblocks = chance.randrange(2) == 0
        self.newest_fence = 0
        # What may end the hold of a calm lock, by what it may end: everything, or the hold of an owner. How many such
        # commands were sent or answered, how many of them may still be on their way, and until when that is not known.
        self.ended, self.on_way, self.unknown_until = Counter(), Counter(), {}
        # Who holds each calm lock at least until when, by the reply to its client.
        self.holders = {}
        self.fences = [1]
        self.owner_of = {}
        self.granted_once = set()
        self.dumps = [b""]
        self.history = deque(maxlen=2_000)
        self.calls = 0
        self.clients = []

    # --- what is known

    def what_it_ends(self, sent):
        name = upper(sent.words[0])
        if name in ENDS_EVERYTHING or (name == "CONFIG" and "maxmemory" in sent.words):
            return EVERYTHING
        if name in ("FENCELOCK.RELEASE", "FENCELOCK.EXTEND") and len(sent.words) > 2 and sent.words[1] in CALM:
            return (sent.db, *sent.lock_and_owner)
        return None

    def ended_of(self, sent):
        return self.ended[EVERYTHING], self.ended[(sent.db, *sent.lock_and_owner)]

    def is_known(self, sent):
        """Whether nothing can have ended the hold that this call got."""
        own, now = (sent.db, *sent.lock_and_owner), time.monotonic()
        unknown = any(self.on_way[ends] or self.unknown_until.get(ends, 0) > now for ends in (EVERYTHING, own))
        return not unknown and sent.ended_before == self.ended_of(sent)

    def forget(self, ends):
        self.ended[ends] += 1
        if ends == EVERYTHING:
            self.holders.clear()
        elif self.holders.get(ends[:2], (None, None))[1] == ends[2]:
            del self.holders[ends[:2]]

    def begins(self, sent):
        """A command is about to be sent."""
        self.calls += 1
        self.tell(sent, "sent")
        if sent.ends:
            self.on_way[sent.ends] += 1
            self.forget(sent.ends)

    def ended_with(self, sent):
        if sent.ends:
            self.on_way[sent.ends] -= 1
            self.forget(sent.ends)

    def lost(self, sent):
        """No reply will show when the command was carried out."""
        self.ended_with(sent)
        if sent.ends:
            self.unknown_until[sent.ends] = time.monotonic() + UNKNOWN_S

    def tell(self, sent, what):
        """Keep for the report of a find."""
        words = [word[:20] if isinstance(word, (bytes, str)) else word for word in sent.words]
        self.history.append(f"{time.monotonic() - self.began:.4f} client {sent.client} db {sent.db} {words}: {what}"[:200])

    def judge(self, sent, reply):
        """Hold a reply against what is known."""
        self.tell(sent, reply)
        self.ended_with(sent)
        if isinstance(reply, Refused) and "internal error" in reply:
            raise Find(f"{sent.words!r} was answered {reply!r}")
        name = upper(sent.words[0])
        if name == "DUMP" and isinstance(reply, bytes) and len(reply) < 5_000:
            self.dumps.append(reply)
        if sent.is_acquire:
            if reply is not None and not isinstance(reply, (int, Refused)):
                raise Find(f"{sent.words!r} was answered {reply!r}")
            if isinstance(reply, int):
                self.granted(sent, reply)
        elif name == "FENCELOCK.AWAIT" and reply not in (None, *ENDINGS) and not isinstance(reply, Refused):
            raise Find(f"{sent.words!r} was answered {reply!r}")
        elif name == "FENCELOCK.RELEASE" and reply not in (0, 1) and not isinstance(reply, Refused):
            raise Find(f"{sent.words!r} was answered {reply!r}")

    def granted(self, sent, fence):
        now = time.monotonic()
        lock, owner = sent.lock_and_owner
        is_retry = "RETRY" in sent.options
        if not 0 < fence < 2**53:
            raise Find(f"{sent.words!r} got the fence {fence}")
        if not is_retry and fence <= sent.floor:
            raise Find(f"{sent.words!r} got the fence {fence}, when {sent.floor} had been told before it was sent")
        known = self.owner_of.setdefault(fence, owner)
        if known != owner or (fence in self.granted_once and not is_retry):
            raise Find(f"{owner!r} got the fence {fence} of {known!r}")
        if not is_retry:
            self.granted_once.add(fence)
        self.fences.append(fence)
        self.newest_fence = max(self.newest_fence, fence)
        if lock not in CALM:
            return
        held = self.holders.get((sent.db, lock))
        if held and held[0] < fence and now < held[2]:
            raise Find(f"{sent.words!r} got {lock!r} {held[2] - now:.3f} s before the lease of {held[:2]} ends")
        if not is_retry and "EPHEMERAL" not in sent.options and self.is_known(sent):
            length_ms = min(int(sent.words[3]), sent.option_ms("MAXHOLD") or LONG_MS)
            self.holders[(sent.db, lock)] = (fence, owner, sent.at + length_ms / 1000)

    # --- choices

    def pick(self, pool):
        return pool[self.chance.randrange(1 << 30) % len(pool)]

    def one_in(self, number):
        return self.chance.randrange(number) == 0

    def ms(self):
        match self.chance.randrange(40):
            case 0:
                return self.pick(BAD_NUMBERS)
            case 1 | 2 | 3:
                return LONG_MS
            case _:
                return self.chance.randrange(1, 120)

    def wait_ms(self):
        return self.pick(BAD_NUMBERS) if self.one_in(40) else self.chance.randrange(1, 400)

    def owner(self):
        return self.pick(BAD_OWNERS) if self.one_in(60) else self.pick(OWNERS)

    def fence(self):
        match self.chance.randrange(12):
            case 0:
                return self.pick(BAD_FENCES)
            case 1:
                return self.pick(self.fences) + self.chance.randrange(-2, 3)
            case _:
                # One that was reported lately.
                return self.pick(self.fences[-6:])

    def cased(self, word):
        return word.lower() if self.one_in(4) else word

    def acquire(self, key):
        words = [self.cased("FENCELOCK.ACQUIRE"), key, self.owner(), self.ms()]
        options = [["RETRY"], ["EPHEMERAL"], ["MAXHOLD", self.ms()], ["DELAY", self.chance.randrange(1, 30)]]
        chosen = [option for option in options if self.one_in(4)]
        if not self.one_in(3):
            chosen.append(["WAIT", self.wait_ms()])
        if self.one_in(50):
            chosen += self.pick([[["RETRY"]], [["WAIT"]], [["FOO", 1]], [["WAIT", 1]], [["\0" * 40]], [["FENCE", 3]]])
        self.chance.shuffle(chosen)
        return words + [self.cased(word) if isinstance(word, str) else word for one in chosen for word in one]

    def steal(self, key):
        tail = [["FENCE", self.fence()], ["DELAY", self.chance.randrange(1, 30)], ["MAXHOLD", self.ms()], ["WAIT", 5]]
        tail = [word for option, rarity in zip(tail, (2, 5, 5, 60), strict=True) if self.one_in(rarity) for word in option]
        return [self.cased("FENCELOCK.STEAL"), key, self.owner(), self.ms(), *tail]

    def lock_command(self, key):
        # Nobody knows any more who holds a lock that may be stolen.
        if key not in CALM and self.one_in(10):
            return self.steal(key)
        if self.one_in(12):
            return ["FENCELOCK.AWAIT", key, self.fence(), self.wait_ms()]
        match self.chance.randrange(12):
            case 0 | 1 | 2 | 3 | 4:
                return self.acquire(key)
            case 5 | 6:
                tail = self.pick([[], ["FENCE", self.fence()], ["FENCE", self.fence()], ["QUEUED"]])
                return ["FENCELOCK.RELEASE", key, self.owner(), *tail]
            case 7 | 8:
                tail = ["FENCE", self.fence()] if self.one_in(2) else []
                tail += ["GT"] if self.one_in(3) else []
                return ["FENCELOCK.EXTEND", key, self.owner(), self.ms(), *tail]
            case 9:
                return ["FENCELOCK.CHECK", key, self.fence()]
            case 10:
                return ["FENCELOCK.INSPECT", key]
            case _:
                return ["FENCELOCK.STATS", key] if self.one_in(2) else ["FENCELOCK.STATS"]

    def resource_command(self):
        key = self.pick(HASHES)
        fields = [self.pick([b"a", b"b", b"", b"fence", b"\0"]), self.pick([b"1", b"", b"x" * 300])]
        if self.one_in(2):
            return ["FENCELOCK.CLAIM", key, self.fence()]
        return ["FENCELOCK.WRITE", key, self.fence(), *fields * self.chance.randrange(1, 3), *fields[: self.one_in(20)]]

    def odd_lock_command(self):
        """A lock command with words missing or of whatever kind, or one that is not for users."""
        name = "FENCELOCK." + self.pick([*LOCK_COMMANDS, "_APPLY", "_END", "_CLOCK", "_FLOOR", "NONE"])
        pool = [*WILD, *OWNERS[:3], *BAD_NUMBERS, *BAD_FENCES, b"WAIT", b"RETRY", b"FENCE", b"QUEUED", b"GT", b"10"]
        return [name, *(self.pick(pool) for _ in range(self.chance.randrange(6)))]

    def key_command(self):
        key, other = self.pick(WILD), self.pick(WILD)
        return self.pick(
            [
                ["DEL", key],
                ["UNLINK", key, other],
                ["RENAME", key, other],
                ["RENAMENX", key, other],
                ["COPY", key, other, "REPLACE"],
                ["COPY", key, other, "DB", self.chance.randrange(4)],
                ["MOVE", key, self.chance.randrange(4)],
                ["EXPIRE", key, self.pick([-1, 0, 1, 100])],
                ["PEXPIRE", key, self.chance.randrange(1, 40)],
                ["PERSIST", key],
                ["DUMP", key],
                ["RESTORE", key, self.pick([0, 0, 30, 60_000]), self.pick(self.dumps), "REPLACE"],
                ["RESTORE", key, 0, self.pick(self.dumps)],
                ["SET", key, "x"],
                ["SET", key, "x", "KEEPTTL"],
                ["GETDEL", key],
                ["HSET", self.pick(HASHES), "fence", self.pick([*BAD_FENCES, b"5"])],
                ["EXISTS", key],
                ["TYPE", key],
                ["TOUCH", key],
                ["MEMORY", "USAGE", key],
                ["OBJECT", "ENCODING", key],
                ["DEBUG", "OBJECT", key],
                ["DEBUG", "DIGEST-VALUE", key],
                ["SCAN", 0, "TYPE", "fencelock"],
                ["PTTL", key],
                ["SORT", key, "STORE", other],
                ["GET", key],
            ]
        )

    def world_command(self):
        client = self.pick(self.clients)
        how = self.pick(["TIMEOUT", "ERROR"])
        return self.pick(
            [
                ["CLIENT", "KILL", "ID", client.id],
                ["CLIENT", "UNBLOCK", client.id, how] if self.unblocks else ["PING"],
                ["CLIENT", "UNBLOCK", client.id, how] if self.unblocks else ["PING"],
                ["CLIENT", "PAUSE", self.chance.randrange(1, 25), "ALL" if self.unblocks else "WRITE"],
                ["CLIENT", "LIST"],
                ["CLIENT", "NO-EVICT", "on"],
                ["FENCELOCK.RAISE", self.fence()],
                ["FENCELOCK.TOP", self.chance.randrange(1, 30), "BY", self.pick(["busy", "contended", "waiters", "late"])],
                ["INFO", "everything"],
                ["COMMAND", "DOCS", "fencelock.acquire"],
                ["MULTI"],
                ["EXEC"],
                ["EXEC"],
                ["DISCARD"],
                ["WATCH", self.pick(WILD)],
                ["UNWATCH"],
                ["SCRIPT", "FLUSH"],
                ["WAIT", 0, 1],
                ["CONFIG", "SET", "fencelock.max-ttl-ms", self.pick([1, 100, 86_400_000])],
                ["CONFIG", "SET", "fencelock.max-waiters-per-lock", self.pick([0, 1, 3, 100_000])],
                ["CONFIG", "SET", "fencelock.max-awaiters", self.pick([0, 1, 3, 10_000, 10_000])],
                ["CONFIG", "SET", "fencelock.stats-names", self.pick([0, 1, 1_024])],
                ["CONFIG", "RESETSTAT"],
                ["MEMORY", "PURGE"],
                ["MEMORY", "STATS"],
                ["LATENCY", "DOCTOR"],
            ]
        )

    def rare_commands(self):
        """What shakes the whole server."""
        both = ["SWAPDB", self.chance.randrange(4), self.chance.randrange(4)]
        return self.pick(
            [
                [["FLUSHALL", self.pick(["SYNC", "ASYNC"])]],
                [["FLUSHDB", self.pick(["SYNC", "ASYNC"])]],
                [both],
                [["DEBUG", "RELOAD"]],
                [["BGSAVE"]],
                [["BGREWRITEAOF"]],
                [["REPLICAOF", "127.0.0.1", 1], ["FENCELOCK.INSPECT", "w1"], ["REPLICAOF", "NO", "ONE"]],
                [
                    ["CONFIG", "SET", "maxmemory", 1, "maxmemory-policy", self.pick(["allkeys-lru", "volatile-ttl"])],
                    self.acquire(self.pick(WILD)),
                    ["CONFIG", "SET", "maxmemory", 0],
                ],
                [["DEBUG", "SLEEP", 0.02]],
                [["FLUSHALL"], self.acquire(self.pick(WILD)), ["FLUSHALL", "ASYNC"]],
                self.crowd(),
            ]
        )

    def crowd(self):
        """Many locks, whose memory another thread gives back while new ones are made."""
        first = [["FENCELOCK.ACQUIRE", f"n{at}", self.owner(), self.chance.choice([20, 50, LONG_MS])] for at in range(300)]
        then = [["FENCELOCK.ACQUIRE", f"n{at}", self.owner(), self.chance.randrange(1, 40)] for at in range(300)]
        return [*first, ["FLUSHALL", "ASYNC"], *then, ["FLUSHDB", "ASYNC"] if self.one_in(2) else ["PING"]]

    def script(self):
        words = self.lock_command(self.pick(WILD)) if self.one_in(2) else self.resource_command()
        if len(words) < 2:
            words = ["FENCELOCK.INSPECT", "w1"]
        return ["EVAL", self.pick(SCRIPTS), 1, words[1], words[0], *words[2:]]

    # --- steps

    def step(self):
        client = self.pick(self.clients)
        if self.one_in(40):
            return self.leave(client)
        if client.is_calm:
            return client.send(*(self.lock_command(self.pick(CALM)) for _ in range(self.chance.randrange(1, 3))))
        match self.chance.randrange(40):
            case 0:
                client.send(*self.rare_commands())
            case 1 | 2 | 3 | 4 | 5:
                client.send(self.world_command())
            case 6:
                if not client.in_multi:
                    client.send(["CLIENT", "REPLY", self.pick(["OFF", "SKIP", "ON", "ON"])])
            case 7:
                # It selects database 0 and RESP2, which changes nothing here: wild clients do not care.
                client.send(self.acquire(self.pick(WILD)), self.pick([["RESET"], ["PING"], ["RESET"]]))
            case 8:
                client.send(["SELECT", self.chance.randrange(4)])
            case 9 | 10 | 11 | 12:
                client.send(self.script())
            case 13 | 14:
                client.send(self.odd_lock_command())
            case 15 | 16 | 17 | 18 | 19 | 20 | 21 | 22:
                client.send(*(self.key_command() for _ in range(self.chance.randrange(1, 4))))
            case 23 | 24 | 25:
                client.send(self.resource_command())
            case _:
                client.send(*(self.lock_command(self.pick(WILD)) for _ in range(self.chance.randrange(1, 4))))

    def leave(self, client):
        """A connection goes away, in one of many ways, and another comes."""
        match self.chance.randrange(4):
            case 0:
                pass
            case 1:
                client.line.abort()
            case 2:
                client.send(self.acquire(self.pick(CALM if client.is_calm else WILD)))
            case _:
                client.send(self.acquire(self.pick(CALM if client.is_calm else WILD)), ["QUIT"])
        self.replace(client)

    def replace(self, client):
        client.close()
        self.clients[self.clients.index(client)] = self.new_client(client.is_calm)

    def new_client(self, is_calm):
        protocol, db = self.pick([2, 3]), self.chance.randrange(2)
        return Client(self, self.server.port, protocol=protocol, db=db, is_calm=is_calm)

    def read_all(self):
        ready = select.select([client.line for client in self.clients], [], [], 0)[0]
        for client in [client for client in self.clients if client.line in ready]:
            if not client.read():
                self.replace(client)

    def play(self, steps):
        self.clients = [self.new_client(number % 2 == 0) for number in range(8)]
        for _ in range(steps):
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.step()
            self.read_all()
            if self.server.pid is None:
                raise Find("the server is gone")

    def end(self, lines):
        """Let every waiter go, and see that each connection got one reply for each command."""
        control = lines.control
        settings = {"max-ttl-ms": 86_400_000, "max-waiters-per-lock": 100_000, "max-awaiters": 10_000, "stats-names": 1_024}
        for name, value in settings.items():
            control.call("CONFIG", "SET", f"fencelock.{name}", value)
        self.forget(EVERYTHING)
        self.unknown_until[EVERYTHING] = time.monotonic() + 60

        def nobody_waits():
            control.call("FLUSHALL")
            self.read_all()
            return (lines.count("waiters"), lines.count("awaiters"), lines.blocked()) == (0, 0, 0)

        eventually(nobody_waits, within_s=10)
        mark = b"the end"
        closing = closing_clients(control)
        for client in self.clients:
            if client.id in closing:
                client.close()
                continue
            with contextlib.suppress(BrokenPipeError, ConnectionResetError, Closed):
                if client.in_multi:
                    client.send(["DISCARD"])
                client.send(["CLIENT", "REPLY", "ON"])
                client.line.send("ECHO", mark)
                while (reply := client.line.reply(5)) != mark:
                    client.take(reply)
                if client.awaited:
                    raise Find(f"no reply to {[sent.words for sent in client.awaited]!r}")
            client.line.close()


def upper(word):
    return (word.decode("latin-1") if isinstance(word, bytes) else str(word)).upper()


def closing_clients(control):
    """The clients that the server closes once it has written something to them: never, to one that wants no replies."""
    clients = (dict(re.findall(r"(\w+)=(\S*)", line)) for line in control.call("CLIENT", "LIST").decode().splitlines())
    return {int(client["id"]) for client in clients if "c" in client["flags"]}


def holds(lines):
    """Every hold that does not end soon: the owner and the fence by database and key."""
    found = {}
    for db in range(4):
        lines.control.call("SELECT", db)
        for key in lines.control.call("KEYS", "*"):
            told = lines.control.call("FENCELOCK.INSPECT", key)
            if isinstance(told, list) and told[5] > LONG_MS // 2 and lines.control.call("PTTL", key) == -1:
                found[db, key] = told[1], told[3]
    lines.control.call("SELECT", 0)
    return found


def assert_a_reload_keeps_holds(lines):
    before = holds(lines)
    # A child that saves is in the way until it is done.
    eventually(lambda: lines.control.call("DEBUG", "RELOAD"), "OK", within_s=10)
    after = holds(lines)
    lost = {name: hold for name, hold in before.items() if after.get(name) != hold}
    if lost:
        raise Find(f"a reload changed {lost!r} into {[after.get(name) for name in lost]!r}")


def clean_up(lines):
    """The memory in use when all is gone."""
    for words in (["FLUSHALL", "SYNC"], ["SCRIPT", "FLUSH", "SYNC"], ["CONFIG", "RESETSTAT"]):
        lines.control.call(*words)
    eventually(lambda: (lines.count("live-leases"), lines.count("waiters"), lines.count("awaiters"), lines.blocked()), (0, 0, 0, 0), within_s=10)
    lines.control.call("CONFIG", "SET", "fencelock.stats-names", 1)
    lines.control.call("CONFIG", "SET", "fencelock.stats-names", 1_024)
    lines.control.call("MEMORY", "PURGE")
    return lines.memory()


class Table:
    """A server that is played on run after run."""

    # What the server itself may keep: the buffers of the connection that asks, and tables that grew.
    KEPT_BYTES = 300_000

    def __init__(self, number, **kwargs):
        """number: of one of the sets of settings."""
        arguments = ((), ("fence-clock", "no"))[number % 2]
        persistence = ({}, {"appendonly": "yes"}, {"appendonly": "yes", "aof-use-rdb-preamble": "no"})[number % 3]
        self.server = RedisServer(arguments, {**CONFIG, **persistence}, **kwargs).start()
        self.lines = Lines(self.server.port)
        self.baseline = None

    def play(self, chance, steps=STEPS):
        """One run; how many commands were sent."""
        game, pid = Game(self.server, chance), self.server.pid
        try:
            game.play(steps)
            # No wait is long, so that the keys rest.
            eventually(self.lines.blocked, 0, within_s=10)
            game.read_all()
            assert_a_reload_keeps_holds(self.lines)
            game.end(self.lines)
            memory = clean_up(self.lines)
            self.baseline = self.baseline or memory
            if memory > self.baseline + self.KEPT_BYTES:
                raise Find(f"{memory - self.baseline} bytes more in use than after the first run")
            if self.server.pid != pid or "internal error" in self.server.log():
                raise Find("the server died or caught a panic")
        except BaseException as error:
            if not isinstance(error, KeyboardInterrupt):
                print(*game.history, sep="\n")
                self.tell_why()
            raise
        return game.calls

    def tell_why(self):
        """What the server says of its clients; one that hangs is made to show where."""
        with contextlib.suppress(Closed, OSError):
            try:
                print(self.lines.control.call("CLIENT", "LIST").decode())
            except TimeoutError:
                os.kill(self.server.pid, signal.SIGSEGV)
                time.sleep(2)
        print(self.server.log()[-20_000:])

    def close(self):
        for line in self.lines._lines:
            line.close()
        self.server.close()


class _Tables:
    """One table for some runs, then another, with other settings."""

    RUNS = 20

    def __init__(self):
        self.table = None

    def play(self, chance, run, steps):
        if self.table is None or run % self.RUNS == 0:
            if self.table:
                self.table.close()
            self.table = Table(run // self.RUNS)
        return self.table.play(chance, steps)


if __name__ == "__main__":
    main(__doc__.splitlines()[0], _Tables().play, steps=STEPS)
