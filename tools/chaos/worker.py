"""A process with several clients that work under fenced locks, stall, lose replies, repeat calls, and write all of it down.

`python -m chaos.worker '{...}'` works until a line comes in and then prints its history, one call a line. Each client
takes a lock, claims the row (or the hash) of that name, adds 1 to what it read, and releases; by chance it stalls past its
lease, extends, asks, abandons the lock, takes it over from its holder, waits for the end of a hold of somebody else, or comes
back late with a hold that has ended.

After a call without a reply a client finds out when that call can have no effect any more: that is when it "returned".
"""

import json
import random
import select
import sys
import threading
import time

import psycopg

from harness.redis_calls import Closed, Line, Refused

from .history import encoded_call
from .linearizability import UNKNOWN, Call

CLAIM = "SELECT value, token FROM fenced_claim(NULL::counters, %s, %s)"
UPDATE = "SELECT fenced_update('counters', %s, %s, jsonb_build_object('value', %s::int, 'token', %s::text))"
# What a worker does instead that leaves the fence out.
UNFENCED_CLAIM = "SELECT value, token FROM counters WHERE id = %s AND %s > 0"
UNFENCED_UPDATE = "UPDATE counters SET fence = %(fence)s, value = %(value)s, token = %(token)s WHERE id = %(id)s RETURNING true"
TTLS_MS = (60, 120, 300)
WAITS_MS = (0, 0, 300)
AWAITS_MS = (20, 100, 400)
# Longer than any fault.
PATIENCE_S = 30
# How often a call is sent on before it counts as refused.
REDIRECTIONS = 50


def now_us():
    """The machine's monotonic clock, which the server reads too."""
    return time.monotonic_ns() // 1000


class NoReply(Exception):
    """The call may have been carried out or not."""


class Redis:
    """One client of Redis: a connection that is made again when it breaks; in a cluster one to each node.

    ports: (the port of a server, the port where this client reaches it) for each. Without a cluster there is one.
    """

    def __init__(self, ports):
        self._ports, self._lines, self._servers = dict(ports), {}, {}
        self._at = next(iter(self._ports))

    def call(self, name, key, *words):
        """The reply; NoReply when the connection broke. Follows a cluster to the node that serves the key."""
        self._at = self._servers.get(key, self._at)
        asking = False
        for _ in range(REDIRECTIONS):
            reply = self._reply(asking, (name, key, *words))
            code = reply.code if isinstance(reply, Refused) else ""
            if code in ("MOVED", "ASK"):
                self._at = int(reply.rpartition(":")[2])
                if code == "MOVED":
                    self._servers[key] = self._at
            elif code != "TRYAGAIN":
                return reply
            asking = code == "ASK"
            if not asking:
                # Two nodes may send it to each other until both know who serves the slot.
                time.sleep(0.002)
        return reply

    def leave(self):
        """Close the connection, as a client does that ends, and connect again."""
        self.settle()

    def close(self):
        """Close all connections; the next calls make new ones."""
        while self._lines:
            self._lines.popitem()[1].close()

    def _reply(self, asking, words):
        try:
            if self._at not in self._lines:
                self.settle()
            line = self._lines[self._at]
            if asking:
                return line.call_all(("ASKING",), words, within_s=PATIENCE_S)[1]
            return line.call(*words, within_s=PATIENCE_S)
        except (OSError, Closed) as error:
            raise NoReply from error

    def settle(self):
        """Connect again, and return when the server has done what it was sent before."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                if self._at in self._lines:
                    self._lines.pop(self._at).close()
                line = self._lines[self._at] = Line(self._ports[self._at])
                if line.call("PING") == "PONG":
                    return
            except (OSError, Closed):
                pass
            if time.monotonic() > deadline:
                raise RuntimeError("Redis does not come back")
            time.sleep(0.01)


class Postgres:
    """One client of PostgreSQL."""

    def __init__(self, dsn):
        self._dsn, self._connection = dsn, None

    def call(self, sql, values):
        """The first row; NoReply when the connection broke."""
        try:
            if self._connection is None:
                self.settle()
            return self._connection.execute(sql, values).fetchone()
        except psycopg.OperationalError as error:
            raise NoReply from error

    def settle(self):
        """Connect again, and return when the server process that served us has ended."""
        before = self._connection and self._connection.info.backend_pid
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                if self._connection is not None:
                    self._connection.close()
                self._connection = psycopg.connect(self._dsn, autocommit=True, connect_timeout=5)
                gone = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
                while before and self._connection.execute(gone, (before,)).fetchone()[0]:
                    time.sleep(0.005)
                return
            except psycopg.OperationalError:
                pass
            if time.monotonic() > deadline:
                raise RuntimeError("PostgreSQL does not come back")
            time.sleep(0.01)


class PostgresLeases:
    """A client of the leases in PostgreSQL, asked in the words of the commands of Redis."""

    def __init__(self, dsn):
        self._postgres = Postgres(dsn)
        self.settle = self._postgres.settle

    def call(self, name, lock, *words):
        """What Redis would reply."""
        return getattr(self, name.partition(".")[2].lower())(lock, *words)

    def acquire(self, lock, owner, ttl_ms, *options):
        wait_ms = options[options.index("WAIT") + 1] if "WAIT" in options else None
        return self._value("SELECT fencelock_acquire(%s, %s, %s, %s, %s)", lock, owner, ttl_ms, wait_ms, "RETRY" in options)

    def extend(self, lock, owner, ttl_ms, _, fence):
        return self._value("SELECT fencelock_extend(%s, %s, %s, %s::bigint)", lock, owner, ttl_ms, fence)

    def release(self, lock, owner, _, fence):
        return int(self._value("SELECT fencelock_release(%s, %s, %s::bigint)", lock, owner, fence))

    def check(self, lock, fence):
        return int(self._value("SELECT fencelock_check(%s, %s)", lock, fence))

    def inspect(self, lock):
        state, owner, fence, ttl_ms = self._postgres.call("SELECT state, owner, fence, ttl_ms FROM fencelock_inspect(%s)", (lock,))
        return state and [b"owner", owner.encode(), b"fence", fence, b"ttl-ms", ttl_ms]

    def _value(self, sql, *values):
        return self._postgres.call(sql, values)[0]


class Client:
    """One thread of work. `calls` is its history."""

    over = threading.Event()

    def __init__(self, name, task, seed):
        self.name, self.task, self.chance = name, task, random.Random(seed)
        self.redis = PostgresLeases(task["dsn"]) if task["leases"] else Redis(task["redis"])
        self.postgres = Postgres(task["dsn"])
        self.calls, self.refused = [], {}
        self._number = 0
        self._earlier = None
        self.failure = None

    def run(self):
        """Work until it is over."""
        try:
            self.redis.settle()
            self.postgres.settle()
            while not self.over.is_set():
                self.section()
        except BaseException as error:  # reported by the process, which would not see a thread end
            self.failure = f"{type(error).__name__}: {error}"
            raise

    def happens(self, share):
        """By chance."""
        return self.chance.random() < share

    def section(self):
        """One turn: from the acquire to the release."""
        key = self.chance.choice(self.task["keys"])
        self._number += 1
        owner, ttl_ms = f"{self.name}.{self._number}", self.chance.choice(TTLS_MS)
        fence = self.acquire(key, owner, ttl_ms, self.chance.choice(WAITS_MS), False)
        if fence is UNKNOWN and self.happens(0.8):
            fence = self.acquire(key, owner, ttl_ms, self.chance.choice(WAITS_MS), True)
        if fence is None and self.happens(0.3):
            fence = self.come_upon(key, owner, ttl_ms)
        if not isinstance(fence, int):
            if self._earlier and self.happens(0.2):
                self.come_back_late(*self._earlier)
            return
        self._earlier = (key, owner, fence)
        if self.task["hashes"] and self.happens(0.4):
            self.add_one(self.hash_claim, self.hash_update, f"hash:{key}", key, owner, fence, ttl_ms)
        else:
            self.add_one(self.row_claim, self.row_update, f"row:{key}", key, owner, fence, ttl_ms)
        if self.happens(0.95):
            self.release(key, owner, fence)

    def add_one(self, claim, update, resource, key, owner, fence, ttl_ms):
        """Claim, read, perhaps stall, write what was read plus 1."""
        read = claim(resource, fence)
        if self.happens(0.3):
            self.chance.choice([self.check, self.ask])(key, owner, fence)
        if self.happens(self.task["stalls"]):
            time.sleep(ttl_ms * 1.5 / 1000)
        elif self.happens(0.4):
            time.sleep(self.chance.random() * 0.02)
        if self.happens(0.3):
            self.extend(key, owner, fence, self.chance.choice(TTLS_MS))
        if read is None or read is UNKNOWN:
            return
        self._number += 1
        token = f"{self.name}.{self._number}"
        written = update(resource, fence, [read[0] + 1, token])
        if written is UNKNOWN:
            again = claim(resource, fence)
            if again not in (None, UNKNOWN) and again[1] != token:
                update(resource, fence, [again[0] + 1, token])

    def come_upon(self, key, owner, ttl_ms):
        """Look who holds the lock; by chance take it over or wait for the end of that hold. Returns the fence, if any."""
        held = self.inspect(key)
        if self.task["leases"]:
            return None
        fence = held[1] if held not in (None, UNKNOWN) else None
        if fence is not None and self.happens(0.3):
            self.await_end(key, fence, self.chance.choice(AWAITS_MS))
        if self.happens(0.2):
            return self.steal(key, owner, ttl_ms, fence)
        return None

    def come_back_late(self, key, owner, fence):
        """With a hold that has ended: none of this may work, and the checker knows."""
        self.chance.choice([self.check, self.release])(key, owner, fence)
        self.extend(key, owner, fence, 200)
        if not self.task["leases"]:
            self.await_end(key, fence, 1)

    # --- each call, as it is written down

    def acquire(self, key, owner, ttl_ms, wait_ms, retry, *options):
        words = ["FENCELOCK.ACQUIRE", key, owner, ttl_ms, *options]
        words += ["WAIT", wait_ms] if wait_ms else []
        words += ["RETRY"] if retry else []
        return self._redis(key, "acquire", [owner, ttl_ms, wait_ms, retry], words)

    def steal(self, key, owner, ttl_ms, victim):
        """victim: the fence of the hold to take over; None for any."""
        words = ["FENCELOCK.STEAL", key, owner, ttl_ms] + ([] if victim is None else ["FENCE", victim])
        return self._redis(key, "steal", [owner, ttl_ms, victim], words)

    def await_end(self, key, fence, wait_ms):
        return self._redis(key, "await", [fence], ["FENCELOCK.AWAIT", key, fence, wait_ms], _word)

    def extend(self, key, owner, fence, ttl_ms):
        words = ["FENCELOCK.EXTEND", key, owner, ttl_ms, "FENCE", fence]
        return self._redis(key, "extend", [owner, fence, ttl_ms], words)

    def release(self, key, owner, fence):
        return self._redis(key, "release", [owner, fence], ["FENCELOCK.RELEASE", key, owner, "FENCE", fence])

    def check(self, key, owner, fence):
        return self._redis(key, "check", [owner, fence], ["FENCELOCK.CHECK", key, fence])

    def leave(self, key, owner):
        """Close the connection, on which the owner has an EPHEMERAL hold."""

        def call():
            self.redis.leave()

        return self._recorded(key, "leave", [owner], call, self.redis)

    def ask(self, key, *_):
        return self.inspect(key)

    def inspect(self, key):
        def read(told):
            fields = dict(zip(told[::2], told[1::2], strict=True))
            return [fields[b"owner"].decode(), fields[b"fence"], fields[b"ttl-ms"]]

        return self._redis(key, "inspect", [], ["FENCELOCK.INSPECT", key], read)

    def hash_claim(self, resource, fence):
        def read(told):
            fields = dict(zip(told[::2], told[1::2], strict=True))
            return [int(fields.get(b"value", 0)), fields.get(b"token", b"").decode()]

        return self._redis(resource, "claim", [fence], ["FENCELOCK.CLAIM", resource, fence], read)

    def hash_update(self, resource, fence, value):
        words = ["FENCELOCK.WRITE", resource, fence, "value", value[0], "token", value[1]]
        return self._redis(resource, "update", [fence, value], words, bool)

    def row_claim(self, resource, fence):
        sql = CLAIM if self.task["fenced"] else UNFENCED_CLAIM
        return self._postgres(resource, "claim", [fence], sql, (self._row(resource), fence), list)

    def row_update(self, resource, fence, value):
        if not self.task["fenced"]:
            values = {"id": self._row(resource), "fence": fence, "value": value[0], "token": value[1]}
            return self._postgres(resource, "update", [fence, value], UNFENCED_UPDATE, values, lambda row: row[0])
        values = (self._row(resource), fence, *value)
        return self._postgres(resource, "update", [fence, value], UPDATE, values, lambda row: row[0])

    def _row(self, resource):
        return self.task["keys"].index(resource.partition(":")[2])

    def _redis(self, key, kind, arguments, words, read=lambda reply: reply):
        def call():
            reply = self.redis.call(*words)
            if isinstance(reply, Refused):
                if reply.code == "UNCLAIMED":
                    return "unclaimed"
                if kind == "await" and "the last one issued" in reply:
                    return "lost"
                raise reply_refused(reply)
            return None if reply is None else read(reply)

        return self._recorded(key, kind, arguments, call, self.redis)

    def _postgres(self, key, kind, arguments, sql, values, read):
        def call():
            try:
                row = self.postgres.call(sql, values)
            except psycopg.Error as error:
                if error.sqlstate in ("LF002", "LF006"):
                    return {"LF002": "unclaimed", "LF006": "outlived"}[error.sqlstate]
                raise
            return None if row is None else read(row)

        return self._recorded(key, kind, arguments, call, self.postgres)

    def _recorded(self, key, kind, arguments, call, server):
        invoked_us = now_us()
        try:
            outcome = call()
        except NoReply:
            outcome = UNKNOWN
            server.settle()
        except _Refusal as refusal:
            # The server said that it did nothing.
            code = str(refusal)
            self.refused[code] = self.refused.get(code, 0) + 1
            time.sleep(0.005)
            return None
        self.calls.append((key, Call(self.name, kind, arguments, invoked_us, now_us(), outcome)))
        return outcome


def _word(told):
    return told.decode() if isinstance(told, bytes) else told


class _Refusal(Exception):
    pass


# A call that a server refuses for one of these has changed nothing. Any other error is not expected.
REFUSALS = {"LOADING", "READONLY", "UNBLOCKED", "MASTERDOWN", "CLUSTERDOWN", "MOVED", "ASK", "TRYAGAIN"}


def reply_refused(reply):
    """The exception for an error reply."""
    return _Refusal(reply.code) if reply.code in REFUSALS else AssertionError(f"an error reply: {reply}")


def main(task):
    """Run the clients and print what they wrote down."""
    clients = [Client(f"{task['name']}{number}", task, f"{task['seed']}/{number}") for number in range(task["clients"])]
    threads = [threading.Thread(target=client.run, daemon=True) for client in clients]
    for thread in threads:
        thread.start()
    # Until it is stopped, or one of them has met what must not be.
    while not select.select([sys.stdin], [], [], 0.2)[0] and not any(client.failure for client in clients):
        pass
    Client.over.set()
    for thread in threads:
        thread.join()
    for client in clients:
        for key, call in client.calls:
            print(json.dumps(encoded_call(key, call)))
        print(json.dumps({"refused": client.refused, "failure": client.failure}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
