"""The same sequences of operations on real servers and on `fence/` alone: both must answer the same, word for word.

`fence/examples/replay.rs` is the reference: the production functions and nothing else. Sequences come from a seed and are
shortened when the two disagree. The time of the real Redis stands still and is moved by the sequence (frozen_clock.py).
"""

import random
import subprocess
import time

import psycopg
import pytest

from harness.frozen_clock import FrozenRedis
from harness import places
from harness.redis_calls import Line, Refused
from seeds import seed

CONNECTIONS = 5
KEYS, RESOURCES = ("k0", "k1"), ("r0", "r1")
# The share of the operations whose replies are compared.
COMPARED = 0.6


class Disagreement(AssertionError):
    """The two gave different answers to one operation."""


class Tie(Exception):
    """Two locks are handed over at the same moment: which one gets the smaller fence is nobody's promise."""


class Reference:
    """The process that answers for `fence/`."""

    def __init__(self, program):
        self._process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self, *facts):
        """Begin anew, whatever was left unread."""
        line = self.ask("start", *facts)
        while line != "started":
            line = self.line()

    def ask(self, *words):
        """One line of the answer."""
        print(*words, file=self._process.stdin, flush=True)
        return self.line()

    def line(self):
        """The next line of the answer."""
        line = self._process.stdout.readline()
        assert line.endswith("\n"), "the reference has ended"
        return line[:-1]

    def stops(self, first):
        """The moments of an advance that begins with the line `first`: how far time has moved, and who gets what."""
        line = first
        while line != "done":
            if line == "tie":
                raise Tie
            word, moved_us, *told = line.split(" ")
            assert word == "stop"
            yield int(moved_us), {int(one.partition("=")[0]): one.partition("=")[2] for one in told}
            line = self.line()

    def close(self):
        """End it."""
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def reference():
    build = ["cargo", "build", "--quiet", "--locked", "--ignore-rust-version", "-p", "fence", "--example", "replay"]
    subprocess.run(build, cwd=places.ROOT, check=True)
    reference = Reference(places.TARGET / "debug" / "examples" / "replay")
    yield reference
    reference.close()


def shortened(operations, disagrees, within_s=30):
    """A shorter sequence that still disagrees: without ever smaller parts of it, each tried in turn."""
    size, deadline = len(operations) // 2, time.monotonic() + within_s
    while size:
        at = 0
        while at < len(operations) and time.monotonic() < deadline:
            fewer = operations[:at] + operations[at + size :]
            if disagrees(fewer):
                operations = fewer
            else:
                at += size
        size //= 2
    return operations


def assert_agree(run, operations):
    """Run a sequence; on a disagreement fail with a short one."""

    def disagreement(some):
        try:
            run(some)
        except Disagreement as error:
            return error
        return None

    if first := disagreement(operations):
        short = shortened(operations, disagreement)
        listed = "\n".join(f"  {operation}" for operation in short)
        pytest.fail(f"{first}\n{disagreement(short)}\nthe {len(short)} operations that show it:\n{listed}")


# --- locks and hashes, in Redis


def fence_of(key, back=0, plus=0):
    """Stands for a fence that the key was granted: the last, or an earlier one, or one beside it."""
    return ("fence", key, back, plus)


def some_fence(chance, key):
    return fence_of(key, chance.choice([0, 0, 0, 0, 1, 2]), chance.choice([0, 0, 0, 0, 0, 1, -1]))


def span(chance):
    spans = ((1, 30), (30, 200), (200, 900), (900, 3_000))
    return chance.randrange(*chance.choice(spans))


BAD_NUMBERS = ("0", "01", "-1", "1.5", "x", "", "86400001", "9007199254740992", "99999999999999999999")


def redis_operation(chance):
    """One operation: what it is, the connection, the words."""
    connection, key, owner = chance.randrange(CONNECTIONS), chance.choice(KEYS), chance.choice("abc")
    resource = chance.choice(RESOURCES)
    kind = chance.choices(
        ["acquire", "steal", "extend", "release", "check", "inspect", "await", "advance", "close", "del", "claim", "write", "raise", "bad"],
        [34, 5, 10, 14, 5, 10, 10, 22, 3, 2, 6, 6, 1, 4],
    )[0]
    words = {
        "acquire": lambda: acquire_words(chance, key, owner),
        "steal": lambda: steal_words(chance, key, owner),
        "extend": lambda: ["FENCELOCK.EXTEND", key, owner, span(chance), *extend_options(chance, key)],
        "release": lambda: ["FENCELOCK.RELEASE", key, owner, *release_options(chance, key)],
        "check": lambda: ["FENCELOCK.CHECK", key, some_fence(chance, key)],
        "inspect": lambda: ["FENCELOCK.INSPECT", key],
        "await": lambda: ["FENCELOCK.AWAIT", key, some_fence(chance, key), span(chance)],
        "advance": lambda: [span(chance)],
        "close": lambda: [],
        "del": lambda: ["DEL", chance.choice([key, resource])],
        "claim": lambda: ["FENCELOCK.CLAIM", resource, some_fence(chance, key)],
        "write": lambda: write_words(chance, resource, some_fence(chance, key)),
        "raise": lambda: ["FENCELOCK.RAISE", fence_of(key, 0, chance.choice([0, 3, 4 * 3600 * 10**6]))],
        "bad": lambda: bad_words(chance, key, owner, resource),
    }[kind]()
    return (kind if kind in ("advance", "close") else "call", connection, words)


def acquire_words(chance, key, owner):
    words = ["FENCELOCK.ACQUIRE", key, owner, span(chance)]
    options = [["WAIT", span(chance)], ["RETRY"], ["MAXHOLD", span(chance)], ["DELAY", span(chance)], ["EPHEMERAL"]]
    shares = [0.6, 0.45, 0.2, 0.2, 0.1]
    chosen = [option for option, share in zip(options, shares, strict=True) if chance.random() < share]
    chance.shuffle(chosen)
    return words + [word for option in chosen for word in option]


def steal_words(chance, key, owner):
    options = [with_fence(chance, key)]
    options += [[name, span(chance)] for name in ("MAXHOLD", "DELAY") if chance.random() < 0.2]
    chance.shuffle(options)
    return ["FENCELOCK.STEAL", key, owner, span(chance), *(word for option in options for word in option)]


def with_fence(chance, key):
    return ["FENCE", some_fence(chance, key)] if chance.random() < 0.5 else []


def extend_options(chance, key):
    options = [with_fence(chance, key), ["GT"] if chance.random() < 0.4 else []]
    chance.shuffle(options)
    return options[0] + options[1]


def release_options(chance, key):
    return ["QUEUED"] if chance.random() < 0.25 else with_fence(chance, key)


def write_words(chance, resource, fence):
    if chance.random() < 0.08:
        return ["HSET", resource, "fence", chance.choice(["x", "007", "-1", "3"])]
    return ["FENCELOCK.WRITE", resource, fence, chance.choice("uv"), chance.randrange(100)]


def bad_words(chance, key, owner, resource):
    bad = chance.choice(BAD_NUMBERS)
    return chance.choice(
        [
            ["FENCELOCK.ACQUIRE", key, owner, bad],
            ["FENCELOCK.ACQUIRE", key, "", 100],
            ["FENCELOCK.ACQUIRE", key, "o" * 513, 100],
            ["FENCELOCK.ACQUIRE", key, owner, 100, chance.choice(["WAIT", "MAXHOLD", "DELAY"]), bad],
            ["FENCELOCK.ACQUIRE", key, owner, 100, "DELAY", 5, "delay", 5],
            ["FENCELOCK.ACQUIRE", key, owner, 100, "NX"],
            ["FENCELOCK.STEAL", key, owner, 100, chance.choice(["FENCE", "MAXHOLD", "DELAY", "WAIT"]), bad],
            ["FENCELOCK.EXTEND", key, owner, bad],
            ["FENCELOCK.EXTEND", key, owner, 100, "FENCE"],
            ["FENCELOCK.RELEASE", key, owner, "FENCE", bad],
            ["FENCELOCK.RELEASE", key, owner, "QUEUED", "FENCE", 1],
            ["FENCELOCK.AWAIT", key, fence_of(key), bad],
            ["FENCELOCK.AWAIT", key, bad, 100],
            ["FENCELOCK.CLAIM", resource, 9007199254740991],
            ["FENCELOCK.WRITE", resource, fence_of(key), "fence", 1],
            ["FENCELOCK.WRITE", resource, fence_of(key), "u", 1, "v"],
        ]
    )


class RedisRun:
    """Runs sequences on the reference and on one frozen server, each on an empty keyspace.

    compared: how many replies were held against those of the reference.
    """

    def __init__(self, reference, redis, follows_clock):
        self._reference, self._redis, self._fences = reference, redis, "clock" if follows_clock else "count"
        self.compared = 0

    def __call__(self, operations):
        self._redis.call("FLUSHALL")
        self._redis.move_to(self._redis.moved_us + 60_000_000)
        told = self._redis.call("FENCELOCK.STATS")
        last = told[told.index(b"last-fence") + 1]
        self._origin_us = self._redis.moved_us
        self._reference.start(self._redis.wall_us + self._origin_us, self._fences, last)
        self._lines = [Line(self._redis.server.port) for _ in range(CONNECTIONS)]
        self._waiting, self._granted = {}, {key: [] for key in KEYS}
        try:
            for number, operation in enumerate(operations):
                self._now = f"operation {number} of {len(operations)}, {operation}"
                self._run(*operation)
        except Tie:
            # What comes behind it has no one right outcome.
            pass
        finally:
            for line in self._lines:
                line.close()
            self._redis.settle()

    def _run(self, kind, connection, words):
        if kind == "advance":
            self._follow(self._reference.ask("advance", *words))
        elif kind == "close":
            self._lines[connection].close()
            self._waiting.pop(connection, None)
            self._lines[connection] = Line(self._redis.server.port)
            self._redis.settle()
            self._follow(self._reference.ask("close", connection))
        elif connection not in self._waiting:
            self._call(connection, [self._known(word) for word in words])

    def _call(self, connection, words):
        expected = self._reference.ask("call", connection, *words)
        self._lines[connection].send(*words)
        if expected == "waits":
            self._waiting[connection] = words[1]
            # It waits from now on, not from when time has moved.
            self._redis.settle()
        else:
            self._compare(connection, expected)
            if words[0] in ("FENCELOCK.ACQUIRE", "FENCELOCK.STEAL"):
                self._note_grant(words[1], expected)
        self._follow(self._reference.line())

    def _follow(self, first):
        for moved_us, told in self._reference.stops(first):
            self._redis.move_to(self._origin_us + moved_us)
            for connection, expected in told.items():
                # The server has done all that was due: the reply is there, or will not come.
                self._compare(connection, expected, within_s=5)
                self._note_grant(self._waiting.pop(connection), expected)
        for connection in self._waiting:
            if self._lines[connection].has_reply():
                raise Disagreement(f"{self._now}: {self._lines[connection].reply()} to connection {connection}, which waits")

    def _compare(self, connection, expected, within_s=10):
        try:
            reply = self._lines[connection].reply(within_s)
        except TimeoutError:
            raise Disagreement(f"{self._now}: fence/ tells connection {connection} {expected!r}, Redis nothing") from None
        said = as_words(reply)
        same = said.startswith(expected) if isinstance(reply, Refused) else said == expected
        self.compared += 1
        if not same:
            raise Disagreement(f"{self._now}: fence/ tells connection {connection} {expected!r}, Redis {said!r}")

    def _note_grant(self, key, reply):
        if reply.isdigit():
            self._granted[key].append(int(reply))

    def _known(self, word):
        if not isinstance(word, tuple):
            return word
        _, key, back, plus = word
        granted = self._granted[key]
        return max(1, (granted[-1 - back] if len(granted) > back else 1) + plus)


def as_words(reply):
    """A reply as the reference writes it."""
    if isinstance(reply, list):
        words = [as_words(word) for word in reply]
        pairs = list(zip(words[::2], words[1::2], strict=True))
        # HGETALL has no order; INSPECT has one.
        pairs = pairs if pairs and pairs[0][0] == "owner" else sorted(pairs)
        return " ".join(word for pair in pairs for word in pair)
    return "nil" if reply is None else reply.decode() if isinstance(reply, bytes) else str(reply)


@pytest.fixture(scope="module", params=["yes", "no"], ids=["clock", "count"])
def redis_run(request, reference, tmp_path_factory):
    redis = FrozenRedis(tmp_path_factory.mktemp("frozen"), ("fence-clock", request.param))
    yield RedisRun(reference, redis, request.param == "yes")
    redis.close()


def redis_sequences(run, count, length=80):
    """Run so many sequences, each of a seed of its own."""
    first, before = seed(), run.compared
    for number in range(first, first + count):
        print(f"sequence SEED={number}")
        chance = random.Random(number)
        assert_agree(run, [redis_operation(chance) for _ in range(length)])
    # Not those of a connection that waits, nor those behind a tie.
    compared = run.compared - before
    assert compared >= count * length * COMPARED, f"only {compared} replies of {count * length} operations were compared"


def test_redis_and_the_protocol_agree_on_sequences(redis_run):
    redis_sequences(redis_run, count=20)


@pytest.mark.long
def test_redis_and_the_protocol_agree_on_many_sequences(redis_run):
    redis_sequences(redis_run, count=400)


# --- rows and guards, in PostgreSQL

ROWS = (1, 2, 3)
FENCES = (1, 2, 3, 4, 5, 6)
ODD_FENCES = (0, -1, 2**53 - 1, 2**53, 2**63 - 1)
CLAIMS = {
    "row": "SELECT id FROM fenced_claim(NULL::counters, %(key)s::int, %(fence)s::bigint)",
    "json": "SELECT j FROM fenced_claim_json('counters', %(key)s::int, %(fence)s::bigint) AS j WHERE j IS NOT NULL",
}
UPDATES = {
    "boolean": "SELECT fenced_update('counters', %(key)s::int, %(fence)s::bigint, %(patch)s::jsonb)",
    "returning": "SELECT id > 0 FROM fenced_update_returning(NULL::counters, %(key)s::int, %(fence)s::bigint, %(patch)s::jsonb)",
}
WRITE = "SELECT fenced_write('counters', %(key)s::int, %(fence)s::bigint, %(patch)s::jsonb)"
INSERTING = {
    "claim-or-insert": "SELECT id FROM fenced_claim_or_insert(NULL::counters, %(key)s::int, %(fence)s::bigint, %(patch)s::jsonb)",
    "upsert": "SELECT fenced_upsert('counters', %(key)s::int, %(fence)s::bigint, %(patch)s::jsonb)",
}
DELETE = "SELECT fenced_delete('counters', %(key)s::int, %(fence)s::bigint)"


def sql_operation(chance):
    """One operation: the act, the key, the fences, the form of the call, the value it writes."""
    act = chance.choices(
        ["claim", "update", "write", "delete", "insert", "claim-or-insert", "upsert", "plain", "guard"],
        [30, 30, 12, 12, 8, 12, 12, 20, 15],
    )[0]
    if act == "plain":
        fences = chance.sample(FENCES, chance.choice([0, 1, 1, 2, 3]))
    else:
        fences = [chance.choice(ODD_FENCES if chance.random() < 0.05 else FENCES)]
    form = chance.choice(sorted({"claim": CLAIMS, "update": UPDATES}.get(act, {"": ""})))
    return act, chance.choice(ROWS), fences, form, chance.randrange(1000)


class SqlRun:
    """Runs sequences on the reference and on one database, each on an empty protected table."""

    def __init__(self, reference, db):
        self._reference, self._db = reference, db
        db.execute("CREATE TABLE counters (id int PRIMARY KEY, value int NOT NULL, fence bigint NOT NULL DEFAULT 0)")
        db.execute("SELECT fence_protect('counters')")
        self._runs = 0

    def __call__(self, operations):
        self._reference.start(time.time_ns() // 1_000, "count", 0)
        self._db.execute("SELECT fence_unprotect('counters')")
        self._db.execute("DELETE FROM counters")
        self._db.execute("SELECT fence_protect('counters')")
        self._runs += 1
        values = {}
        for number, operation in enumerate(operations):
            act, key, fences, form, value = operation
            if act == "guard":
                # A guard is for ever: each run has its own.
                expected = self._reference.ask("guard", key, fences[0])
                said = self._said("SELECT fenced_guard(%s, %s) IS NOT NULL", (f"run {self._runs}, {key}", fences[0]))
            else:
                expected = self._reference.ask("row", act, key, *fences)
                said = getattr(self, f"_{act.replace('-', '_')}")(key, fences, form, value)
                if expected == "t" and act in ("insert", "update", "write", "upsert", "plain"):
                    values[key] = value
                elif expected == "t" and act == "claim-or-insert":
                    values.setdefault(key, value)
                elif expected == "t" and act == "delete":
                    del values[key]
            stored = {row: (fence, value) for row, fence, value in self._db.execute("SELECT id, fence, value FROM counters")}
            looks = {row: self._reference.ask("row", "look", row) for row in ROWS}
            wanted = {row: (int(fence), values[row]) for row, fence in looks.items() if fence != "none"}
            if (said, stored) != (expected, wanted):
                raise Disagreement(
                    f"operation {number} of {len(operations)}, {operation}: fence/ says {expected} and stores {wanted}, "
                    f"PostgreSQL {said} and {stored} (id: (fence, value))"
                )

    def _claim(self, key, fences, form, _):
        return self._said(CLAIMS[form], {"key": key, "fence": fences[0]}, row_means_yes=True)

    def _update(self, key, fences, form, value):
        return self._said(UPDATES[form], self._change(key, fences, value))

    def _write(self, key, fences, _, value):
        return self._said(WRITE, self._change(key, fences, value))

    def _claim_or_insert(self, key, fences, _, value):
        return self._said(INSERTING["claim-or-insert"], self._change(key, fences, value), row_means_yes=True)

    def _upsert(self, key, fences, _, value):
        return self._said(INSERTING["upsert"], self._change(key, fences, value))

    def _delete(self, key, fences, *_):
        return self._said(DELETE, self._change(key, fences, 0))

    def _insert(self, key, _, __, value):
        return self._said("INSERT INTO counters (id, value) VALUES (%s, %s) RETURNING true", (key, value))

    def _plain(self, key, fences, _, value):
        try:
            with self._db.transaction():
                for fence in fences:
                    self._db.execute("SELECT fence_use(%s::bigint)", (fence,))
                changed = self._db.execute("UPDATE counters SET value = %s WHERE id = %s", (value, key))
                return "t" if changed.rowcount else "f"
        except psycopg.Error as error:
            return error.sqlstate

    def _change(self, key, fences, value):
        return {"key": key, "fence": fences[0], "patch": f'{{"value": {value}}}'}

    def _said(self, sql, values, *, row_means_yes=False):
        try:
            with self._db.transaction():
                row = self._db.execute(sql, values).fetchone()
        except psycopg.Error as error:
            return error.sqlstate
        return "t" if row and (row_means_yes or row[0]) else "f"


def sql_sequences(run, count, length=120):
    first = seed()
    for number in range(first, first + count):
        print(f"sequence SEED={number}")
        chance = random.Random(number)
        assert_agree(run, [sql_operation(chance) for _ in range(length)])


def test_postgres_and_the_protocol_agree_on_sequences(reference, db):
    sql_sequences(SqlRun(reference, db), count=8)


@pytest.mark.long
def test_postgres_and_the_protocol_agree_on_many_sequences(reference, db):
    sql_sequences(SqlRun(reference, db), count=200)


# --- the comparison itself


def test_a_disagreement_is_found_and_shortened(reference, redis_run):
    """One release makes the server grant the lock instead, and the reference does not know."""

    class Planted(RedisRun):
        def _call(self, connection, words):
            super()._call(connection, words)
            if words == ["FENCELOCK.RELEASE", "k8", "a"]:
                self._redis.call("FENCELOCK.ACQUIRE", "k8", "stranger", 60_000)

    planted = Planted(reference, redis_run._redis, redis_run._fences == "clock")
    chance = random.Random(0)
    operations = [redis_operation(chance) for _ in range(60)]
    # A connection that waits would not call.
    operations[20:20] = [("close", 0, []), ("call", 0, ["FENCELOCK.RELEASE", "k8", "a"])]
    operations += [("close", 1, []), ("call", 1, ["FENCELOCK.INSPECT", "k8"])]
    with pytest.raises(pytest.fail.Exception) as failed:
        assert_agree(planted, operations)
    assert "the 2 operations that show it" in str(failed.value)
