"""A primary and a replica that takes over with all that the primary has answered: nothing may be lost, ever.

`clocks`: the wall clocks of the two hosts differ by up to 50 s and are stepped while it runs; locks are dumped and restored.
`renamed`: the commands that an operator takes away are not there, neither for what the primary sends nor for what it wrote.
"""

import contextlib
import re
import shutil
import signal
import time

from harness import eventually
from harness.frozen_clock import Clocks
from harness.process import temporary_folder

from .world import PAUSES_S, World, now_us, signal_all

# Two hosts differ by at most twice this. What is on its way may look up to a minute old or young.
SKEW_S = 25
RENAMED = ("DEL", "EXISTS", "HGETALL", "CONFIG")
# Longer than any lease that began before.
SETTLED_S = 2.5
GUEST_TTL_MS = 2_000
# A lock that the workers leave alone: what it was released from stays away for longer than any run, or comes back.
ASIDE = "aside"
ASIDE_TTL_MS = 600_000
# How often a replica must have been sent its primary's clock to end leases on time; until then it ends them late.
CLOCKS = 2
STALLS_S = (*PAUSES_S, 1.5)
# One step in the server: nobody sees the lock away.
_RESTORE = """
for _, key in ipairs(KEYS) do
    local dumped = redis.call('DUMP', key)
    if dumped then redis.call('RESTORE', key, 0, dumped, 'REPLACE') end
end
"""


class Skewed(World):
    """Servers whose wall clocks are off, each by its own whole seconds: `clocks` has those of each server."""

    def __init__(self, *arguments, **habits):
        super().__init__(*arguments, **habits)
        self.clocks = {}
        self._stepped_s = time.monotonic()

    def step_clock(self):
        """A host's wall clock is set: to any time within the bounds."""
        self._chance.choice(list(self.clocks.values())).step_wall(self._some_skew())
        self._stepped_s = time.monotonic()

    def _some_skew(self):
        return self._chance.randint(-SKEW_S, SKEW_S)

    def _new_clocks(self, stack):
        folder = temporary_folder("fencelock-clocks")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        clocks = stack.enter_context(contextlib.closing(Clocks(folder)))
        clocks.step_wall(self._some_skew())
        return clocks


class Pair(Skewed):
    """See the module."""

    def __init__(self, kind, seed, *, config=None, **habits):
        renamed = {"rename-command": [f'{name} ""' for name in RENAMED]} if kind == "renamed" else {}
        # A step of the clock must not look like a broken link.
        kept = {"appendonly": "yes", "appendfsync": "always", "repl-diskless-sync": "no", "repl-timeout": "3600"}
        super().__init__(kind, seed, config={**kept, **renamed, **(config or {})}, **habits)

    def _start_redis(self, stack):
        super()._start_redis(stack)
        self.replica = self._new_replica(stack)
        self._joined()

    def _new_redis(self, stack):
        if self._kind == "renamed":
            return super()._new_redis(stack)
        clocks = self._new_clocks(stack)
        server = super()._new_redis(stack, clocks.environment)
        self.clocks[server] = clocks
        return server

    def _has_hashes(self):
        return True

    def kill_redis(self):
        """SIGKILL and a start from the file, which has the deadlines by the wall clock: by the one that is still right."""
        time.sleep(max(0, self._stepped_s + SETTLED_S - time.monotonic()))
        self._release_aside()
        invoked_us = now_us()
        self.redis.kill()
        self.redis.start()
        self._joined()
        self._note("restart", invoked_us)
        self.new_guest().inspect(ASIDE)

    def hand_over(self):
        """The replica has all and takes over: on command, or when the primary dies. By chance it lay still before."""
        eventually(lambda: self._clocks_received() >= self._clocks_before + CLOCKS, within_s=20)
        eventually(self._offsets_agree, within_s=20)
        lock, owner = self._chance.choice(self.locks), f"guest.{now_us()}"
        is_held = self._chance.random() < 0.5
        fence = self.new_guest().acquire(lock, owner, GUEST_TTL_MS, GUEST_TTL_MS, False) if is_held else None
        if self._chance.random() < 0.5:
            signal_all([self.replica.pid], signal.SIGSTOP)
            time.sleep(self._chance.choice(STALLS_S))
            signal_all([self.replica.pid], signal.SIGCONT)
        self._release_aside()
        invoked_us = now_us()
        self._swap() if self._chance.random() < 0.5 else self._replace()
        self._note("handover", invoked_us)
        self.new_guest().inspect(ASIDE)
        # Else its time ends it.
        if isinstance(fence, int) and self._chance.random() < 0.3:
            self.guest().release(lock, owner, fence)

    def restore_locks(self):
        """Each lock is dumped and put back in its place, in one step."""
        invoked_us = now_us()
        self._ask(self.redis, "EVAL", _RESTORE, len(self.locks), *self.locks)
        self._note("move", invoked_us)

    def _release_aside(self):
        """Take a lock for long and give it back: a release that is lost shows."""
        owner = f"guest.{now_us()}"
        fence = self.new_guest().acquire(ASIDE, owner, ASIDE_TTL_MS, 0, False)
        if isinstance(fence, int):
            self.guest().release(ASIDE, owner, fence)

    def _note(self, kind, invoked_us, locks=None):
        super()._note(kind, invoked_us, locks or [*self.locks, ASIDE])

    def _swap(self):
        """FAILOVER: they change their parts."""
        self._ask(self.redis, "FAILOVER")
        eventually(lambda: (self._role(self.redis), self._role(self.replica)), ("slave", "master"), within_s=20)
        self.redis, self.replica = self.replica, self.redis
        self._joined()
        self._follow()

    def _replace(self):
        """The primary takes no more writes, dies when the replica has all of them, and a new replica joins."""
        self._ask(self.redis, "CLIENT", "PAUSE", 600_000, "WRITE")
        eventually(self._offsets_agree, within_s=20)
        old, self.redis = self.redis, self.replica
        old.kill()
        self.clocks.pop(old, None)
        self._ask(self.redis, "REPLICAOF", "NO", "ONE")
        self._follow()
        self.replica = self._new_replica(self._stack)
        self._joined()
        old.close()

    def _follow(self):
        self.redis_proxy.order("target", self.redis.port)
        self.redis_proxy.order("cut")

    def _joined(self):
        """The replica follows a server that it did not follow before."""
        self._clocks_before = self._clocks_received()

    def _clocks_received(self):
        told = self._ask(self.replica, "INFO", "commandstats").decode()
        calls = re.search(r"^cmdstat_fencelock\._clock:calls=(\d+)", told, re.MULTILINE | re.IGNORECASE)
        return int(calls[1]) if calls else 0

    def _offsets_agree(self):
        """Whether the replica follows and has all that the primary sent."""
        mine, its = self._replication(self.redis), self._replication(self.replica)
        is_linked = its.get("master_link_status") == "up"
        return is_linked and mine["master_repl_offset"] == its["slave_repl_offset"]

    def _role(self, server):
        return self._replication(server)["role"]

    def _replication(self, server):
        lines = self._ask(server, "INFO", "replication").decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)
