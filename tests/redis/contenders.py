"""Clients that take and release a few locks again and again while the servers change under them.

Each works until it is stopped, whatever errors it gets, and every hold is written down with the moments at which the
client was sure of it. Not a client library: raw commands, repeated with RETRY.
"""

import threading
import time
from dataclasses import dataclass

import redis

from harness import eventually
from harness.redis_cluster import READY_WITHIN_S
from harness.locks import acquire, release

WAIT_MS = 400


@dataclass(frozen=True)
class Held:
    """One hold, as its client saw it."""

    lock: str
    owner: str
    fence: int
    began: float
    ended: float
    # Whether the release was the holder's own to make: not when the servers have lost the grant.
    released: bool


class Contenders:
    """`count` threads, each with a client of its own, on the names in `locks`.

    ttl_ms: by default no lease expires during a test, so that a hold ends by its release alone.
    """

    def __init__(self, make_client, locks, count=6, hold_s=0.002, ttl_ms=600_000):
        self._make_client, self._locks, self._hold_s, self._ttl_ms = make_client, locks, hold_s, ttl_ms
        self._stop = threading.Event()
        self.holds, self.errors, self.broken = [], [], []
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(count)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *failed):
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
        if not any(failed):
            assert not self.broken, self.broken
            assert not any(thread.is_alive() for thread in self._threads)

    def go_on(self, more=40):
        """Wait until so many more holds have come and gone on every lock together, and each lock had one."""
        mark = len(self.holds)

        def reached():
            assert not self.broken, self.broken
            after = self.holds[mark:]
            return len(after) >= more and {held.lock for held in after} == set(self._locks)

        eventually(reached, within_s=READY_WITHIN_S)

    def of(self, lock):
        """The holds of one lock, in the order in which their clients came to know of them."""
        return sorted((held for held in self.holds if held.lock == lock), key=lambda held: held.began)

    def assert_fences_grow(self):
        """A client that got a lock later has a larger fence, on every lock."""
        for lock in self._locks:
            holds = self.of(lock)
            for one, after in zip(holds, holds[1:], strict=False):
                assert after.fence > one.fence, f"{after} came after {one}"

    def assert_one_holder_at_a_time(self):
        """No two clients held one lock at the same moment, but for those whose grant the servers have lost."""
        for lock in self._locks:
            holds = [held for held in self.of(lock) if held.released]
            for one, after in zip(holds, holds[1:], strict=False):
                assert after.began >= one.ended, f"{after} came before the end of {one}"

    @property
    def lost(self):
        """The holds whose grant the servers have lost."""
        return [held for held in self.holds if not held.released]

    def _run(self, me):
        try:
            client = self._make_client()
            try:
                number = 0
                while not self._stop.is_set():
                    lock = self._locks[(me + number) % len(self._locks)]
                    self._one(client, lock, f"contender {me}, {number}")
                    number += 1
            finally:
                client.close()
        except BaseException as error:  # passed to the test, which would not see a thread end
            self.broken.append(error)
            raise

    def _one(self, client, lock, owner):
        fence, _ = self._insist(lambda: acquire(client, lock, owner, self._ttl_ms, "WAIT", WAIT_MS, "RETRY"))
        if fence is None:
            return
        began = time.monotonic()
        time.sleep(self._hold_s)
        ended = time.monotonic()
        released, attempts = self._insist(lambda: release(client, lock, owner, fence))
        # A release that was repeated may have worked the first time.
        self.holds.append(Held(lock, owner, fence, began, ended, bool(released) or attempts > 1))

    def _insist(self, call):
        """The answer to a call that is repeated until there is one, and after how many attempts it came."""
        deadline = time.monotonic() + READY_WITHIN_S
        attempts = 0
        while True:
            attempts += 1
            try:
                return call(), attempts
            except redis.RedisError as error:
                self.errors.append(error)
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
