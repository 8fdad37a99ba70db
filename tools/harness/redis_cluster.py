"""A throw-away Redis Cluster: primaries with a replica each, every slot served.

Speaks to the nodes with raw commands and knows who serves which slot. Not a client: tests use redis-py's RedisCluster
for what a client sees. Invariant: each node is a RedisServer, with its bounds, and its second port is one that was free.
"""

import itertools
import time
import weakref

from .process import free_port
from .redis_calls import Line, Refused
from .redis_server import RedisServer, server_version
from .waiting import HANG_S, eventually

SLOTS = 16_384
READY_WITHIN_S = 120.0
_DEFAULTS = {
    "cluster-enabled": "yes",
    "cluster-announce-ip": "127.0.0.1",
    # How long a node is silent before it counts as failed: longer than a loaded machine delays one.
    "cluster-node-timeout": "2500",
    "cluster-allow-replica-migration": "no",
    # After a diskless sync a primary holds its stream back for up to a second.
    "repl-diskless-sync": "no",
    "repl-ping-replica-period": "1",
}


class ClusterNode(RedisServer):
    """One node. The port of the cluster bus is chosen again until the first start has succeeded."""

    def __init__(self, config=None, environment=None):
        super().__init__(config={**_DEFAULTS, **(config or {})}, environment=environment)
        self._started = False

    def start(self, **kwargs):
        super().start(**kwargs)
        self._started = True
        return self

    def call(self, *words, within_s=HANG_S):
        """One command on a connection of its own; an error reply is raised."""
        with Line(self.port) as line:
            reply = line.call(*words, within_s=within_s)
        if isinstance(reply, Refused):
            raise AssertionError(f"{words}: {reply}")
        return reply

    @property
    def id(self):
        """The name by which the cluster knows this node."""
        return self.call("CLUSTER", "MYID").decode()

    @property
    def bus_port(self):
        return self._config["cluster-port"]

    def facts(self, *words):
        """The lines `name:value` that a command replies, as a dict."""
        lines = self.call(*words).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def _write_config(self):
        if not self._started:
            self._config["cluster-port"] = free_port()
        return super()._write_config()


class RedisCluster:
    """Primaries and one replica of each, or none.

    config: settings of redis.conf for every node. environments: of each node's process, in the order of `nodes`.
    """

    def __init__(self, primaries=3, config=None, *, replicas=1, environments=None):
        self._count, self._replicas = primaries, replicas
        environments = environments or [None] * (primaries * (1 + replicas))
        self.nodes = [ClusterNode(config, environment) for environment in environments]
        self._finalizer = weakref.finalize(self, _close_all, list(self.nodes))

    def start(self):
        """Start all nodes, make them one cluster, and wait until every node reports that it is whole."""
        for node in self.nodes:
            node.start()
        for number, node in enumerate(self.nodes, 1):
            node.call("CLUSTER", "SET-CONFIG-EPOCH", number)
        primaries, replicas = self.nodes[: self._count], self.nodes[self._count :]
        bounds = [SLOTS * number // self._count for number in range(self._count + 1)]
        for node, (first, after) in zip(primaries, itertools.pairwise(bounds), strict=True):
            node.call("CLUSTER", "ADDSLOTSRANGE", first, after - 1)
        for node in self.nodes[1:]:
            self.nodes[0].call("CLUSTER", "MEET", "127.0.0.1", node.port, node.bus_port)
        ids = {node.id for node in self.nodes}
        eventually(lambda: [self._known_to(node) == ids for node in self.nodes].count(False), 0, within_s=READY_WITHIN_S)
        for node, primary in zip(replicas, primaries if replicas else [], strict=True):
            node.call("CLUSTER", "REPLICATE", primary.id)
        self.wait_until_whole()
        return self

    def heal(self):
        """Restart what was killed, cancel moves that a failed test has left, and wait until the cluster is whole."""
        for node in self.nodes:
            if node.pid is None:
                node.start()
        for node in self.primaries():
            for word in _mine(node):
                if word.startswith("["):
                    node.call("CLUSTER", "SETSLOT", word[1:].split("-")[0], "STABLE")
        self.wait_until_whole()

    def wait_until_whole(self):
        """Wait until all nodes agree, all slots are served, and each primary has its replica, which follows."""
        eventually(self._ailments, [], within_s=READY_WITHIN_S, retry_on=(OSError,))

    def close(self):
        """Kill all nodes and remove their folders."""
        self._finalizer()

    def slot_of(self, key):
        """The slot of a key, as a node computes it."""
        return self.nodes[0].call("CLUSTER", "KEYSLOT", key)

    def primary_of(self, slot):
        """The node that serves a slot, as it says itself."""
        [node] = [node for node in self.primaries() if slot in node_slots(node)]
        return node

    def primaries(self):
        """The nodes that are primaries, as they say themselves."""
        return [node for node in self.nodes if node.pid and node.facts("INFO", "replication")["role"] == "master"]

    def replica_of(self, primary):
        """The node that follows a primary."""
        [node] = [
            node
            for node in self.nodes
            if node.pid and node.facts("INFO", "replication").get("master_port") == str(primary.port)
        ]
        return node

    # --- moving a slot, step by step

    def begin_move(self, slot, source, target):
        """Both ends of a classic move know of it; no key has moved."""
        target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)

    def move_keys(self, slot, source, target):
        """Move every key of the slot."""
        deadline = time.monotonic() + READY_WITHIN_S
        while keys := source.call("CLUSTER", "GETKEYSINSLOT", slot, 100):
            try:
                source.call("MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, "KEYS", *keys)
            except AssertionError:  # a key may vanish while it is being moved
                if time.monotonic() > deadline:
                    raise

    def end_move(self, slot, target):
        """Notify every node which one serves the slot now, that one first."""
        name = target.id
        for node in [target, *(node for node in self.primaries() if node is not target)]:
            node.call("CLUSTER", "SETSLOT", slot, "NODE", name)

    def move_classic(self, slot, source, target):
        """Move a slot key by key, as redis-cli's reshard does."""
        self.begin_move(slot, source, target)
        self.move_keys(slot, source, target)
        # A key may be created until the source learns that the slot is not its own any more.
        self.end_move(slot, target)

    def move_atomic(self, slot, source, target):
        """Move a slot as a whole, with the server's own command, and wait for the end."""
        kind, _ = server_version()
        if kind == "Valkey":
            source.call("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target.id)
        else:
            target.call("CLUSTER", "MIGRATION", "IMPORT", slot, slot)
        eventually(lambda: slot in node_slots(target), True, within_s=READY_WITHIN_S)
        eventually(lambda: slot in node_slots(source), False, within_s=READY_WITHIN_S)

    def _known_to(self, node):
        lines = node.call("CLUSTER", "NODES").decode().splitlines()
        return {line.split()[0] for line in lines if "handshake" not in line and "noaddr" not in line}

    def _ailments(self):
        """What is not as it should be, in words."""
        found = []
        for node in self.nodes:
            told = node.facts("CLUSTER", "INFO")
            if told["cluster_state"] != "ok" or told["cluster_known_nodes"] != str(len(self.nodes)):
                found.append(f"{node.port}: {told['cluster_state']}, knows {told['cluster_known_nodes']} nodes")
            if " fail" in node.call("CLUSTER", "NODES").decode().replace(",fail", " fail"):
                found.append(f"{node.port}: sees a failed node")
            replication = node.facts("INFO", "replication")
            if replication["role"] == "slave" and replication["master_link_status"] != "up":
                found.append(f"{node.port}: follows nobody")
            online = [value for name, value in replication.items() if name.startswith("slave") and "state=online" in value]
            if replication["role"] == "master" and len(online) != self._replicas:
                found.append(f"{node.port}: {len(online)} replicas")
        if len({self._view(node) for node in self.nodes}) != 1:
            found.append("the nodes do not agree on who serves what")
        return found

    def _view(self, node):
        """Who is a primary with which slots, and who follows whom, as one node sees it."""
        lines = (line.split() for line in node.call("CLUSTER", "NODES").decode().splitlines())
        return tuple(sorted((words[0], words[2].replace("myself,", ""), words[3], _stable(words[8:])) for words in lines))


def _mine(node):
    """The slots in the line of CLUSTER NODES that a node reports of itself."""
    [mine] = [line for line in node.call("CLUSTER", "NODES").decode().splitlines() if "myself" in line]
    return mine.split()[8:]


def _stable(slots):
    """The slots in a line of CLUSTER NODES, without those that are on their way."""
    return tuple(word for word in slots if not word.startswith("["))


def node_slots(node):
    """The slots that a node serves, as it says itself."""
    slots = set()
    for word in _stable(_mine(node)):
        first, _, last = word.partition("-")
        slots.update(range(int(first), int(last or first) + 1))
    return slots


def _close_all(nodes):
    for node in nodes:
        node.close()
