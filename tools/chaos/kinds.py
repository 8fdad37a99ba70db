"""The kinds of run: the world of each, its faults, and whether the chosen server can do it."""

from harness.redis_server import server_version

from .cluster import Down, Moves
from .leases import Leases
from .lossy import Lossy
from .pair import Pair
from .world import World

_ANYWHERE = ["freeze_redis", "freeze_worker", "freeze_network", "cut_connections", "drop_replies_of_redis"]
_WITH_POSTGRES = [*_ANYWHERE, "freeze_postgres", "drop_replies_of_postgres", "kill_postgres"]
_MOVES = [*_ANYWHERE, "move_held", "move_held", "move_busy", "move_busy", "hand_over", "step_clock"]

FAULTS = {
    "restart": [*_WITH_POSTGRES, "kill_redis"],
    "everysec": [*_WITH_POSTGRES, "kill_redis"],
    "failover": [*_WITH_POSTGRES, "promote_replica"],
    "clocks": [*_ANYWHERE, "step_clock", "step_clock", "hand_over", "hand_over", "kill_redis", "restore_locks"],
    "renamed": [*_ANYWHERE, "hand_over", "kill_redis", "restore_locks"],
    "classic": _MOVES,
    "atomic": _MOVES,
    "down": [*_ANYWHERE, "go_down"],
    "leases": ["freeze_worker", "freeze_network", "cut_connections", "freeze_postgres", "drop_replies_of_postgres", "kill_postgres"],
    "pg-failover": ["fail_over"],
    "pg-restore": ["restore"],
    "pg-crash": ["crash"],
}
KINDS = tuple(FAULTS)
_WORLDS = {"clocks": Pair, "renamed": Pair, "classic": Moves, "atomic": Moves, "down": Down, "leases": Leases}
_WORLDS.update(dict.fromkeys(("pg-failover", "pg-restore", "pg-crash"), Lossy))


def unable(kind):
    """Why the chosen server cannot run a kind, or None."""
    product, version = server_version()
    if kind == "atomic" and version < ((9,) if product == "Valkey" else (8, 4)):
        told = ".".join(map(str, version))
        return f"{product} {told} has no atomic slot migration; REDIS_SERVER=... of Redis 8.4 or Valkey 9 has"
    return None


def world(kind, seed, **habits):
    """The world of a kind; see World."""
    return _WORLDS.get(kind, World)(kind, seed, **habits)


def record(kind, seed, seconds, **pace):
    """One run with all the faults of its kind. `pace_s`: the shortest and the longest time between two; else the kind's own."""
    with world(kind, seed) as made:
        return made.record(seconds, FAULTS[kind], **pace)
