"""Mutated bytes where a Redis reads locks: RESTORE payloads, snapshots, append-only files, and the words of a primary.

What each carries is made by a real server, then changed: bytes flipped, cut, repeated, moved between samples, fields set to
edges. Checksums are right, so that it is the module that has to refuse. Whatever is read, the server lives (or refuses
its file in good order), every lock is sound, and fences stay near the clock.
"""

import socket
import struct
import threading
import time

from fuzz.campaign import Find, chances, main
from harness import RedisServer, ServerFailed, eventually
from harness.redis_calls import Closed, Line, Refused, encoded
from harness.payloads import MODULE_EOF, crc64, module_id, prefix, record, seal, string

TEN_YEARS_MS = 10 * 366 * 86_400_000
DAY_US = 86_400_000_000
OWNERS = [b"o", b"x" * 36, b"x" * 127, b"x" * 128, b"x" * 512]
EDGES = [0, 1, 127, 128, 255, 2**31, 2**32 - 1, 2**53 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1, TEN_YEARS_MS * 1_000]
CONFIG = {"enable-debug-command": "yes", "rdbchecksum": "no"}
RESTORES = 150
# After so many files of a kind, locks were found in some: measured, in 9 of 60 mutated snapshots.
ENOUGH_FILES = 200
NO_TTL = -1
# How the core itself ends when what it reads as the next key, behind a value of another length, was there before.
CORE_REFUSAL = "Duplicated key found in RDB file"
CRASHES = ("crashed by signal", "Guru Meditation", "ASSERTION FAILED", "internal error", "AddressSanitizer")
PLAIN_AUX = bytes([2, 1, 2, 5]) + string(b"") + bytes([MODULE_EOF])
KEYS = [b"k", b"", b"y" * 127, b"y" * 128, b"y" * 17_000]


def now_us():
    return time.time_ns() // 1_000


def samples(line):
    """Payloads of real locks: plain, with terms, in a delay, with owners of every size of length."""
    dumps = []
    for number, owner in enumerate(OWNERS):
        terms = (("MAXHOLD", 60_000), ("DELAY", 500), ("EPHEMERAL",), ())
        for at, extra in enumerate(terms):
            key = f"s{number}.{at}"
            line.call("FENCELOCK.ACQUIRE", key, owner, 60_000, *extra, *terms[at - 1])
            dumps.append(line.call("DUMP", key))
    line.call("FLUSHALL")
    assert all(isinstance(dump, bytes) for dump in dumps), dumps
    return dumps


def mutated(chance, data, others, first=0):
    """`data` with a few changes behind its first bytes."""
    data = bytearray(data)
    for _ in range(chance.choice([0, 1, 1, 1, 2, 3, 8])):
        at = chance.randrange(first, len(data) + 1)
        match chance.randrange(8):
            case 0 if at < len(data):
                data[at] ^= 1 << chance.randrange(8)
            case 1 if at < len(data):
                data[at] = chance.choice([0, 1, 2, 5, 7, 0x40, 0x7F, 0x80, 0x81, 0xC0, 0xC3, 0xFE, 0xFF])
            case 2:
                del data[at : at + chance.choice([1, 1, 2, 8, 60])]
            case 3:
                data[at:at] = chance.randbytes(chance.choice([1, 2, 8, 60, 600]))
            case 4:
                data[at:at] = data[at : at + chance.choice([1, 8, 30])]
            case 5:
                other = chance.choice(others)
                data[at:] = other[min(at, len(other)) :]
            case 6:
                data[at : at + 8] = chance.choice(EDGES).to_bytes(8, chance.choice(["little", "big"]))
            case _:
                number = now_us() + chance.randrange(-2 * DAY_US, 2 * DAY_US)
                data[at : at + 8] = number.to_bytes(8, "little")
        del data[70_000:]
    return bytes(data)


def as_it_was(_chance, data, _others, _first=0):
    """Stands for `mutated` where nothing is to be changed."""
    return data


def noted(changes):
    """`mutated` that notes each time whether anything has changed."""

    def change(chance, data, others, first=0):
        after = mutated(chance, data, others, first)
        changes.append(after != data)
        return after

    return change


def assert_sound(line, server, *, has_clock=True):
    """Every lock that was taken can be used like any other, and the next fence is near the clock."""
    found = 0
    cursor = b"0"
    while True:
        cursor, keys = line.call("SCAN", cursor, "COUNT", 500)
        for key in keys:
            found += 1
            stays = line.call("PTTL", key) == NO_TTL
            told = line.call("FENCELOCK.INSPECT", key)
            if isinstance(told, Refused):
                continue
            if told is not None:
                lock = dict(zip(told[::2], told[1::2], strict=True))
                sound = (
                    1 <= len(lock[b"owner"]) <= 512
                    and 0 < lock[b"fence"] < 2**53
                    and 0 <= lock[b"ttl-ms"] <= TEN_YEARS_MS
                    and (lock[b"state"] == b"held") == (lock[b"ttl-ms"] > 0)
                    and lock[b"held-ms"] >= 0
                )
                if not sound:
                    raise Find(f"{key!r} holds {lock!r}")
                again = line.call("FENCELOCK.ACQUIRE", key, lock[b"owner"], 10, "RETRY")
                if stays and lock[b"ttl-ms"] > 5_000 and again != lock[b"fence"]:
                    raise Find(f"{key!r} holds {lock!r} and its owner gets {again!r}")
            for words in (["DUMP", key], ["DEBUG", "DIGEST-VALUE", key], ["MEMORY", "USAGE", key]):
                line.call(*words)
        if cursor == b"0":
            break
    line.call("DEL", "the next")
    fence = line.call("FENCELOCK.ACQUIRE", "the next", "o", 60_000)
    if has_clock and not 0 < fence <= now_us() + DAY_US + 1_000_000:
        raise Find(f"the next fence is {fence}")
    assert_alive(server)
    return found


def assert_alive(server):
    log = server.log()
    if server.pid is None or any(crash in log for crash in CRASHES):
        raise Find(f"the server died or caught a panic:\n{log[:20_000]}")


def assert_refused(log, what):
    """A server that ended has refused its file, and did not fall over it."""
    if CORE_REFUSAL not in log and any(crash in log for crash in CRASHES):
        raise Find(f"{what}\n{log[:20_000]}")


def live_leases(line):
    told = line.call("FENCELOCK.STATS")
    return dict(zip(told[::2], told[1::2], strict=True))[b"live-leases"]


def leave_nothing(line):
    line.call("FLUSHALL")
    eventually(lambda: live_leases(line), 0, within_s=10)


class Restores:
    """RESTORE on a live server."""

    def __init__(self, config=CONFIG):
        self.server = RedisServer((), config).start()
        self.line = Line(self.server.port)
        self.dumps = samples(self.line)

    def play(self, chance, restores=RESTORES):
        first = len(prefix())  # the bytes before name the type; another type is the server's to read
        bodies = [dump[:-10] for dump in self.dumps]
        calls = []
        for number in range(restores):
            body = mutated(chance, chance.choice(bodies), bodies, first)
            ttl = chance.choice([0, 0, 0, 1, 50])
            options = chance.choice([["REPLACE"], [], ["REPLACE", "IDLETIME", 5], ["REPLACE", "FREQ", 1]])
            key = chance.choice([chance.choice(KEYS), f"k{number}"])
            calls.append(["RESTORE", key, ttl, seal(body), *options])
            calls += chance.choice([[], [["DEL", key]], [["RENAME", key, "k"]], [["FENCELOCK.RELEASE", key, "o"]]])
        taken = self.line.call_all(*calls, within_s=60).count("OK")
        assert_sound(self.line, self.server)
        if chance.randrange(4) == 0:
            reply = self.line.call("DEBUG", "RELOAD", within_s=60)
            if reply != "OK":
                raise Find(f"what was restored cannot be saved and loaded: {reply}\n{self.server.log()[-3_000:]}")
            assert_sound(self.line, self.server)
        leave_nothing(self.line)
        assert taken > 0 or restores < 50
        return len(calls)

    def close(self):
        self.line.close()
        self.server.close()


# --- files


def records():
    """Records of locks with every kind of terms and of owners."""
    extras = [b"", bytes(8), (60_000_000).to_bytes(8, "little"), (10**6).to_bytes(8, "little") * 2]
    terms = list(zip([0, 2, 4, 7], extras, strict=True))
    kinds = [{"version": 1}, {}, {"fields": bytes([1, 1, 4])}, {"issued": (2**64 - 1, 0), "flags": 16}]
    return [
        record(**{"fence": now_us(), "owner": owner, "extra": extra, **kind, "flags": flags | kind.get("flags", 0)})
        for owner in OWNERS
        for (flags, extra), kind in zip(terms, kinds, strict=True)
    ]


def snapshot(chance, dumps, *, aux=None, version=10, mutated=mutated):
    """An RDB file in which the last issued fence and the locks are mutated; or one of them alone, as what is wrong in the
    first hides the others."""
    locks = chance.randrange(4) if dumps else 0
    only = chance.choice([None, chance.randrange(locks + 1), locks])
    change = [mutated if only in (None, number) else as_it_was for number in range(locks + 1)]
    saved_aux = bytes([2, 1, 2, 0x81]) + struct.pack(">Q", now_us()) + string(b"") + bytes([MODULE_EOF])
    saved_aux = change[0](chance, saved_aux, [saved_aux]) if aux is None else aux
    parts = [b"REDIS%04d" % version]
    parts.append(bytes([0xF7, 0x81]) + struct.pack(">Q", module_id()) + saved_aux)
    parts.append(bytes([0xFE, 0]))
    bodies = [dump[:-10] for dump in dumps]
    for number in range(locks):
        if chance.randrange(2):
            body = change[number + 1](chance, chance.choice(bodies), bodies, len(prefix()))
        else:
            # A record of whatever length, in its frame.
            known = records()
            body = prefix() + string(change[number + 1](chance, chance.choice(known), known)) + bytes([MODULE_EOF])
        key = b"k%d" % number
        parts.append(body[:1] + bytes([len(key)]) + key + body[1:])
    body = b"".join(parts) + bytes([0xFF])
    return body + struct.pack("<Q", crc64(body))


def append_only(chance, mutated=mutated):
    """An append-only file of mutated effects."""
    known = records()
    commands = [["SELECT", chance.choice([0, 0, 3])]]
    for number in range(60):
        key = chance.choice([b"k%d" % number, *KEYS])
        commands.append(["FENCELOCK._APPLY", key, mutated(chance, chance.choice(known), known)])
        if chance.randrange(6) == 0:
            commands.append(["FENCELOCK._FLOOR", chance.choice([*EDGES, now_us(), b"x", b"", b"-1"])])
        if chance.randrange(6) == 0:
            reason = chance.choice([b"released", b"expired", b"later", b"", b"\0" * 300])
            commands.append(["FENCELOCK._END", key, chance.choice([*EDGES, now_us(), b"x", b""]), reason])
        if chance.randrange(6) == 0:
            commands.append(["FENCELOCK._CLOCK", *(chance.choice([*EDGES, now_us(), b"x", b""]) for _ in range(2))])
        if chance.randrange(9) == 0:
            commands.append(chance.choice([["DEL", key], ["SET", key, "x"], ["PEXPIREAT", key, 1], ["FLUSHALL"]]))
    return b"".join(encoded(words) for words in commands)


def load(folder_files, has_clock=False, **config):
    """Start a server on files; how many locks it found there, or None when it refused them by an exit. It may do so in
    no other way."""
    server = RedisServer((), {**CONFIG, **config})
    try:
        for name, content in folder_files.items():
            path = server.data_dir / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        try:
            server.start()
        except ServerFailed as failed:
            assert_refused(server.log(), failed)
            return None
        with Line(server.port) as line:
            found = live_leases(line)
            assert_sound(line, server, has_clock=has_clock)
            leave_nothing(line)
        return found
    finally:
        server.close()


def play_snapshot(chance, dumps, mutated=mutated):
    return load({"dump.rdb": snapshot(chance, dumps, mutated=mutated)})


def play_append_only(chance, mutated=mutated):
    manifest = b"file appendonly.aof.1.incr.aof seq 1 type i\n"
    files = {"appendonly.aof.manifest": manifest, "appendonly.aof.1.incr.aof": append_only(chance, mutated)}
    return load({f"appendonlydir/{name}": content for name, content in files.items()}, appendonly="yes")


# --- a primary that lies


class Primary:
    """Just enough of a primary to have a replica: it sends a snapshot, then the words it is given."""

    def __init__(self, snapshot, words):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._snapshot, self._words = snapshot, words
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        try:
            connection, _ = self._listener.accept()
            asked, answered = b"", 0
            with connection:
                while b"PSYNC" not in asked:
                    chunk = connection.recv(65_536)
                    if not chunk:
                        return
                    asked += chunk.upper()
                    if answered == 0 and b"PING" in asked:
                        connection.sendall(b"+PONG\r\n")
                        answered = 1
                    while answered <= asked.count(b"REPLCONF"):
                        connection.sendall(b"+OK\r\n")
                        answered += 1
                connection.sendall(b"+FULLRESYNC %s 0\r\n$%d\r\n" % (b"a" * 40, len(self._snapshot)))
                connection.sendall(self._snapshot + self._words)
                while connection.recv(65_536):
                    pass
        except OSError:
            pass

    def close(self):
        self._listener.close()


def play_stream(restores, chance):
    """The replica of a primary that sends mutated effects, behind a snapshot that may be mutated too; then it is promoted."""
    line, server = restores.line, restores.server
    is_plain = chance.randrange(3) > 0
    first = snapshot(chance, [], aux=PLAIN_AUX) if is_plain else snapshot(chance, restores.dumps)
    # The last word shows that all before it was read.
    words = append_only(chance) + encoded(["SELECT", 0]) + encoded(["SET", "read", "all"])
    primary = Primary(first, words)
    line.call("CONFIG", "SET", "repl-diskless-load", chance.choice(["disabled", "swapdb"]))

    def has_read():
        refused = not is_plain and "Failed trying to load the MASTER" in server.log()
        return refused or line.call("GET", "read") == b"all"

    try:
        line.call("REPLICAOF", "127.0.0.1", primary.port)
        eventually(has_read, within_s=20)
        line.call("REPLICAOF", "NO", "ONE")
        # A primary may say any fence: it is believed, so there is no bound by the clock any more.
        assert_sound(line, server, has_clock=False)
        leave_nothing(line)
    except (Closed, OSError):
        assert_refused(server.log(), "the replica is gone")
        if is_plain:
            raise
    finally:
        primary.close()


class Everything:
    """All routes in turn; the server with the stream in it is a new one each time, as its fences may be used up.

    A file is refused as a whole, or its commands are one by one: so locks have to be found in some.
    """

    def __init__(self):
        self.restores = None
        self.files, self.taken = 0, {"snapshot": 0, "append-only": 0}

    def play(self, chance, run=0, restores=RESTORES):
        self.restores = self.restores or Restores()
        calls = self.restores.play(chance, restores)
        if run % 3 == 0:
            calls += self.play_files(chance)
        if run % 10 == 0:
            play_stream(self.restores, chance)
            self.close()
            calls += 60
        return calls

    def play_files(self, chance):
        plays = {"snapshot": (play_snapshot, [self.restores.dumps]), "append-only": (play_append_only, [])}
        for name, (play, arguments) in plays.items():
            if self.files == 0:
                # Choices that put locks into both files.
                found = play(chances(4, "as it was"), *arguments, mutated=as_it_was)
                assert found, f"{name}: {found} locks in a file that nobody changed"
            changes = []
            found = play(chance, *arguments, mutated=noted(changes))
            self.taken[name] += bool(found) and any(changes)
        self.files += 1
        assert self.files < ENOUGH_FILES or all(self.taken.values()), f"no lock in {self.files} files: {self.taken}"
        return len(plays)

    def close(self):
        if self.restores:
            self.restores.close()
            self.restores = None


if __name__ == "__main__":
    main(__doc__.splitlines()[0], Everything().play, restores=RESTORES)
