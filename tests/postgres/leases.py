"""Leases in PostgreSQL as a test writes them: a lock server that is asked in SQL."""

import threading

import psycopg

from harness.waiting import HANG_S, eventually

TTL = 60_000


class Leases:
    """The functions of leases in one session. Each call is a statement of its own."""

    def __init__(self, connection):
        self.connection = connection

    def one(self, sql, *parameters):
        """The first column of the first row."""
        return self.connection.execute(sql, parameters).fetchone()[0]

    def acquire(self, lock="l", owner="me", ttl_ms=TTL, **options):
        named = "".join(f", {name} => %s" for name in options)
        return self.one(f"SELECT fencelock_acquire(%s, %s, %s{named})", lock, owner, ttl_ms, *options.values())

    def extend(self, lock="l", owner="me", ttl_ms=TTL, *fence):
        return self.one(f"SELECT fencelock_extend(%s, %s, %s{', %s' * len(fence)})", lock, owner, ttl_ms, *fence)

    def release(self, lock="l", owner="me", *fence):
        return self.one(f"SELECT fencelock_release(%s, %s{', %s' * len(fence)})", lock, owner, *fence)

    def check(self, fence, lock="l"):
        return self.one("SELECT fencelock_check(%s, %s)", lock, fence)

    def inspect(self, lock="l"):
        names = ("state", "owner", "fence", "ttl_ms", "held_ms", "maxhold_left_ms", "waiters")
        row = self.connection.execute("SELECT * FROM fencelock_inspect(%s)", (lock,)).fetchone()
        return None if row[0] is None else dict(zip(names, row, strict=True))

    def waiters(self, lock="l"):
        held = self.inspect(lock)
        return held and held["waiters"]

    def stored(self, lock="l"):
        """The row of the lock: its owner and its fence."""
        return self.connection.execute("SELECT owner, fence FROM fence_internals.leases WHERE name = %s", (lock,)).fetchone()


class Waiting:
    """A call that waits, in a session of its own; it is in the queue when this is made."""

    def __init__(self, connection, call):
        self.connection = connection
        self._answer = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call):
        try:
            self._answer = call(Leases(self.connection))
        except psycopg.Error as error:
            self._answer = error.sqlstate or "connection lost"

    @property
    def still_waits(self):
        return self._thread.is_alive()

    def answer(self):
        """What the call has answered; the SQLSTATE of an error."""
        self._thread.join(HANG_S)
        assert not self.still_waits, "the call hangs"
        return self._answer


def queue(connections, leases, lock="l", wait_ms=120_000, **options):
    """Calls that wait for a held lock, one behind the other, in this order: of the owners w0, w1, ..."""
    waiting = []
    for number, connection in enumerate(connections):
        owner = f"w{number}"
        waiting.append(Waiting(connection, lambda own, owner=owner: own.acquire(lock, owner, wait_ms=wait_ms, **options)))
        eventually(lambda: leases.waiters(lock), number + 1)
    return waiting
