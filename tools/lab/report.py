"""Tables from results.json; `python -m lab.report` writes them into the pages that have them, between the marks."""

import itertools
import json
import re
import statistics
import sys
from pathlib import Path

from . import lost_commits as commits
from .delays import ARRIVALS, WAYS, summary
from .faults import surprises
from .locks import CLAIMED, MODES

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
DOCS = HERE.parents[1] / "docs"
PAGES = (HERE / "README.md", DOCS / "stalls.md", DOCS / "performance.md")
EXPERIMENTS = ("stalls 0.1%", "stalls 1%", "stalls 5%", "overlap", "set", "failover")
_MARK = re.compile(r"(<!-- from results.json: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main():
    """Write the tables into the pages."""
    results = json.loads(RESULTS.read_text())
    for page in PAGES:
        page.write_text(filled(page.read_text(), results))
    return 0


def filled(readme, results):
    """The text with its tables made anew."""
    tables = {
        "lost": lost,
        "updates": updates,
        "delays": delays,
        "calls": calls,
        "faults": faults,
        "machine": machine,
        "commits": lost_commits,
    }
    return _MARK.sub(lambda found: f"{found[1]}\n{tables[found[2]](results)}\n\n{found[3]}", readme)


def text(results):
    """All tables that there are results for."""
    tables = {"runs": updates, "calls": calls, "delays": delays, "faults": faults, "lost commits": lost_commits}
    return "\n\n".join(table(results) for part, table in tables.items() if part in results)


def of(results, experiment, mode):
    """The runs of one experiment and mode."""
    return [run for run in results["runs"] if (run["experiment"], run["mode"]) == (experiment, mode)]


def broken_promises(results):
    """Runs that failed, runs of a claim first that lost something, faults with another outcome, in words; empty is good."""
    lost = [
        f"{run['mode']} lost {run['lost']} updates ({run['experiment']}, seed {run['seed']})"
        for run in results["runs"]
        if run["mode"] in CLAIMED and run["lost"]
    ]
    found = surprises(results.get("faults", {})), commits.surprises(results.get("lost commits", {}).get("runs", {}))
    return [*results["failed"], *lost, *itertools.chain(*found)]


def lost(results):
    """The lost updates alone, one row for each experiment."""
    rows = [
        (experiment, of(results, experiment, "no fence")[0]["sections"])
        + tuple(_spread("lost", of(results, experiment, mode)) for mode in MODES)
        for experiment in EXPERIMENTS
    ]
    return _table(("experiment", "sections", *(f"lost with {mode}" for mode in MODES)), rows)


def updates(results):
    """One row for each experiment and mode."""
    rows = []
    for experiment in EXPERIMENTS:
        for mode in MODES:
            if runs := of(results, experiment, mode):
                counts = (_spread(fact, runs) for fact in ("stalls", "rejected", "lost"))
                rows.append((experiment, mode, runs[0]["sections"], *counts, _causes(runs)))
    return _table(("experiment", "mode", "sections", "stalls", "rejected", "lost", "lost by cause, all runs"), rows)


def delays(results):
    """One row for each way to wait."""
    one, eight = results["delays"]["one waiter"], results["delays"]["eight waiters"]
    rows = [(way, _delay(one[way]), *(_delay(eight[way][arrival]) for arrival in ARRIVALS)) for way in WAYS]
    return _table(("way", "one waiter", *(f"eight waiters {arrival}" for arrival in ARRIVALS)), rows)


def calls(results):
    """One row for each way to take a free lock, in microseconds."""
    rows = [(way, *(f"{figure:.0f} µs" for figure in summary(found))) for way, found in results["calls"].items()]
    return _table(("one client, a free lock", "median", "95%"), rows)


def faults(results):
    """One row for each human fault: what it came to."""
    facts = results["faults"]
    hung, ended = facts["hung worker, renewed"], facts["hung worker, renewed, MAXHOLD"]
    loop, same = facts["blocked asyncio loop"], facts["a successor under the same owner"]
    rows = [
        (
            "A thread renews the lease of a hung worker for five leases",
            f"{hung['renewals']} renewals; the next worker {_got(hung)}",
        ),
        (
            "The same with `MAXHOLD` of two leases",
            f"the next worker {_got(ended)}; the renewer gets 0; the late write is {_accepted(ended)}",
        ),
        (
            f"An asyncio loop is blocked for {loop['blocked_ms']} ms, its renewal of {loop['lease_ms']} ms starves",
            f"after {loop['renewals_before']} renewals in time the lease expires, the next worker gets in, the renewer"
            f" gets 0, and the late write is {_accepted(loop)}",
        ),
        (
            "Two tasks share one owner string",
            f"{facts['two tasks, one owner']['entered']} of 2 enters; with `RETRY` on both calls"
            f" {facts['two tasks, one owner, RETRY']['entered']} enter, with one fence",
        ),
        (
            "A stale task shares the owner string of its successor",
            f"with `FENCE` it extends: {_yes(same['extended_with_fence'])}, releases: {_yes(same['released_with_fence'])};"
            f" without it releases the other's lease: {_yes(same['released_without_fence'])}",
        ),
    ]
    for name in ("lease shorter than the lag", "lease longer than the lag"):
        lag = facts[name]
        rows.append(
            (
                f"A lease of {lag['lease_ms']} ms, and a loop that lags up to 60 ms",
                f"in {lag['seconds']:.0f} s {lag['sections']} sections, {lag['rejected']} rejected,"
                f" {lag['late_releases']} releases too late, {lag['lost']} lost",
            )
        )
    return _table(("fault", "outcome"), rows)


def lost_commits(results):
    """One row for each mode, all repeats together, and when it was measured."""
    facts = results["lost commits"]
    names = ("failovers", "acknowledged", "lost", "outlived", "wrong")
    rows = [(mode, *(sum(run[name] for run in facts["runs"][mode]) for name in names)) for mode in commits.MODES]
    head = ("mode", "fail-overs", "writes acknowledged", "lost by PostgreSQL", "refused with LF006", "built on a lost or replaced write")
    return f"{_table(head, rows)}\n\n{facts['date']}, commit {facts['commit']}."


def machine(results):
    """Where, when and with what it ran."""
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    loads = [load for run in results["runs"] for load in run["load"]]
    return (
        f"{results['date']}, commit {results['commit']}, seed {results['seed']}, {results['repeats']} repeats,\n"
        f"{results['at_once']} runs at once on {results['machine']}, Linux {results['kernel']},\n"
        f"{versions}; {results['seconds'] / 60:.0f} minutes, load average {min(loads)} to {max(loads)}."
    )


def _spread(fact, runs):
    """Median and range over the repeats; nothing where there is no such experiment."""
    if not runs:
        return ""
    values = [run[fact] for run in runs]
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{statistics.median(values):g} ({low} to {high})"


def _causes(runs):
    """The causes of all losses of the repeats together."""
    counts = {}
    for run in runs:
        for cause, count in run["causes"].items():
            counts[cause] = counts.get(cause, 0) + count
    return ", ".join(f"{cause} {count}" for cause, count in sorted(counts.items()))


def _delay(values):
    median, p95 = summary(values)
    return f"{median:.1f} ms (95%: {p95:.1f})"


def _got(facts):
    how = f"gets in after {facts['after_leases']:.1f} leases"
    return how if facts["next_got_in"] else "never gets in"


def _accepted(facts):
    return "accepted" if facts["late_write_accepted"] else "refused"


def _yes(fact):
    return "yes" if fact else "no"


def _table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
