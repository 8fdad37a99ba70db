"""PostgreSQL fails over and loses its last commits: what do the accepted writes rest on then?

Nobody is late and Redis forgets nothing. Eight holders in turn write up to 60 times under one lock, each time from what they
wrote before, while the primary is killed every second and a standby promoted that lags by up to half a second (`chaos.lossy`).
"""

from chaos.holders import UNFENCED, Habits
from chaos.lossy import Lossy

# What holders use, and whether the server asks for the life in which a row was claimed.
MODES = {
    "no fence": (UNFENCED, True),
    "fences alone": ("row", False),
    "claim first": ("row", True),
}


def measure(seed, repeats, seconds):
    """The facts of each run, by mode."""
    return {mode: [_run(seed + number, seconds, *how) for number in range(repeats)] for mode, how in MODES.items()}


def _run(seed, seconds, way, checks_life):
    habits = Habits(ways=(way,), writes=60, stalls=0, lease_ms=10_000)
    with Lossy("pg-failover", seed, is_calm=True, habits=habits, checks_life=checks_life) as world:
        run = world.record(seconds, ["fail_over"])
    chains = run.history
    return {
        "seed": seed,
        "failovers": run.faults["fail_over"],
        "acknowledged": len(chains.acknowledged),
        "lost": chains.lost(),
        "wrong": chains.wrong(),
        "violations": len(chains.violations()),
        "outlived": run.refused.get("LF006", 0),
    }


def surprises(facts):
    """What is not as it must be, in words; empty is good."""
    wrong = sum(run["violations"] for run in facts.get("claim first", []))
    return [f"claim first built {wrong} writes on lost ones when PostgreSQL failed over"] if wrong else []
