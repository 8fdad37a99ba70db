"""A Redis Cluster whose slots move, and one that goes down and comes back: neither may lose a lock, or admit two holders.

`classic` and `atomic` (the server's own migration of a whole slot): three primaries with a replica each, on hosts whose wall
clocks differ and are stepped; slots move between them with their locks held and waited for, replicas take over on command.
`down`: three primaries without replicas; one is killed until the others say that the cluster has failed, and comes back.
"""

import contextlib
import threading
import time

from harness import eventually
from harness.redis_calls import Refused
from harness.redis_cluster import RedisCluster
from harness.redis_server import server_version

from .pair import GUEST_TTL_MS, Skewed
from .world import PAUSES_S, World, now_us

# What the source may issue during a move, ahead of what it has issued: more than the microseconds that a move takes.
AHEAD_US = 5_000_000
# RAISE takes an hour; the clock goes on meanwhile.
NEARLY_AN_HOUR_US = 3_598_000_000
# How long an operator waits for a cluster.
WITHIN_S = 30


class _Cluster(World):
    """The nodes, each behind a proxy of its own."""

    # One in each of three nodes.
    locks = ("lock0", "lock2", "lock3")
    one_issuer = False

    def _start_redis(self, stack):
        self.cluster = self._new_cluster(stack)
        stack.callback(self.cluster.close)
        self.cluster.start()
        self.redis_proxies = {node.port: self._new_proxy(stack, node.port) for node in self.cluster.nodes}
        self._slots = {lock: self.cluster.slot_of(lock) for lock in self.locks}

    def _servers(self):
        return [node for node in self.cluster.nodes if node.pid]

    def _owner(self, lock):
        return self.cluster.primary_of(self._slots[lock])

    def _locks_of(self, node):
        return [lock for lock in self.locks if self._owner(lock) is node]


class Moves(_Cluster, Skewed):
    """See the module."""

    def _new_cluster(self, stack):
        # A step of a clock must neither look like a broken link nor make a replica take over what it may not have.
        config = {"repl-timeout": "3600", "cluster-replica-no-failover": "yes", **self._config}
        clocks = [self._new_clocks(stack) for _ in range(6)]
        cluster = RedisCluster(config=config, environments=[one.environment for one in clocks])
        self.clocks = dict(zip(cluster.nodes, clocks, strict=True))
        return cluster

    def move_held(self):
        """A guest holds the lock while it moves, the workers wait for it; by chance it has the largest fence there can be."""
        lock, owner = self._chance.choice(self.locks), f"guest.{now_us()}"
        source, target = self._ends(lock)
        if self._chance.random() < 0.3:
            self._ask(source, "FENCELOCK.RAISE", self._wall_us(source) + NEARLY_AN_HOUR_US)
        fence = self.new_guest().acquire(lock, owner, 2 * GUEST_TTL_MS, 2 * GUEST_TTL_MS, False)
        if not isinstance(fence, int):
            return
        self._move(lock, source, target)
        if self._chance.random() < 0.5:
            self.guest().check(lock, owner, fence)
        if self._chance.random() < 0.7:
            self.guest().release(lock, owner, fence)

    def move_busy(self):
        """It moves as it is: held, waited for or free. A free lock takes no fence along, so the operator raises the target."""
        lock = self._chance.choice(self.locks)
        source, target = self._ends(lock)
        ahead = self._ask(source, "FENCELOCK.RAISE", 1) + AHEAD_US
        if isinstance(self._ask(target, "FENCELOCK.RAISE", ahead), Refused):
            return
        self._move(lock, source, target)

    def hand_over(self):
        """A replica takes over on command, with all that its primary has answered."""
        primary = self._owner(self._chance.choice(self.locks))
        replica, locks = self.cluster.replica_of(primary), self._locks_of(primary)
        invoked_us = now_us()
        replica.call("CLUSTER", "FAILOVER")
        eventually(lambda: (self._role(primary), self._role(replica)), ("slave", "master"), within_s=WITHIN_S)
        self._note("handover", invoked_us, locks)
        self.cluster.wait_until_whole()

    def _ends(self, lock):
        source = self._owner(lock)
        return source, self._chance.choice([node for node in self.cluster.primaries() if node is not source])

    def _move(self, lock, source, target):
        invoked_us = now_us()
        getattr(self.cluster, f"move_{self._kind}")(self._slots[lock], source, target)
        self._note("move", invoked_us, [lock])
        self.cluster.wait_until_whole()

    def _wall_us(self, node):
        seconds, micros = self._ask(node, "TIME")
        return int(seconds) * 1_000_000 + int(micros)

    def _role(self, node):
        return node.facts("INFO", "replication")["role"]


class Down(_Cluster):
    """See the module."""

    def _new_cluster(self, _):
        config = {"appendonly": "yes", "appendfsync": "always", "cluster-node-timeout": "1000", **self._config}
        return RedisCluster(config=config, replicas=0)

    def go_down(self):
        """A primary dies. One guest has a lock of another for as long as it lives, and a second one waits for it."""
        lock, owner = self._chance.choice(self.locks), f"guest.{now_us()}"
        server = self._owner(lock)
        victim = self._chance.choice([node for node in self.cluster.nodes if node is not server])
        for node in self.cluster.nodes:
            node.call("CONFIG", "SET", "cluster-allow-reads-when-down", self._chance.choice(["yes", "no"]))
        fence = self.new_guest().acquire(lock, owner, 60_000, GUEST_TTL_MS, False, "EPHEMERAL")
        leaves_while_down = self._chance.random() < 0.7

        def meanwhile():
            if leaves_while_down:
                self.guest().leave(lock, owner)
            time.sleep(self._chance.choice(PAUSES_S))
            if isinstance(fence, int):
                self.guest().check(lock, owner, fence)
            time.sleep(self._chance.choice(PAUSES_S))

        with self._waiting(lock):
            self._come_back(victim, meanwhile)
            if not leaves_while_down:
                self.guest().leave(lock, owner)

    def _come_back(self, victim, meanwhile):
        """Kill a primary, wait until the others refuse to write, and start it again."""
        others = [node for node in self.cluster.nodes if node is not victim]
        lost = self._locks_of(victim)
        locks = {node: self._locks_of(node) for node in others}
        killed_us = now_us()
        victim.kill()
        for node in others:
            # Not merely out of touch with most of the others, which may pass by itself.
            self._note_when(node, lambda told: told["cluster_state"] == "fail" and told["cluster_slots_fail"] != "0", "down", None, locks[node])
        meanwhile()
        started_us = now_us()
        victim.start()
        self._note("restart", killed_us, lost)
        for node in others:
            self._note_when(node, lambda told: told["cluster_state"] == "ok", "up", started_us, locks[node])
        self.cluster.wait_until_whole()

    def _note_when(self, node, is_so, kind, since_us, locks):
        """Wait until a node says so of the cluster; it is so when the node says it, or at some moment since `since_us`."""

        def asked():
            invoked_us = now_us()
            return invoked_us if is_so(node.facts("CLUSTER", "INFO")) else None

        invoked_us = eventually(asked, within_s=WITHIN_S)
        if locks:
            self._note(kind, since_us or invoked_us, locks)

    @contextlib.contextmanager
    def _waiting(self, lock):
        """Somebody waits for the lock meanwhile, and gives back what it gets."""

        def wait():
            waiter, owner = self.guest("waiter"), f"waiter.{now_us()}"
            fence = waiter.acquire(lock, owner, GUEST_TTL_MS, 20_000, False)
            if isinstance(fence, int):
                waiter.release(lock, owner, fence)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        yield
        thread.join(WITHIN_S)
