"""`make chaos`: long runs of every kind, each judged; `python -m chaos check FILE` judges a saved history again.

`DURATION=20` sets how long each run records, `RUNS=24` how many there are (one kind after another; two of each unless it is
set), `SEED=1` the first seed, `KIND=failover` one kind alone. A kind that the chosen server cannot do is named.
"""

import os
import random
import sys
import tempfile
import time
from pathlib import Path

from .chains import Chains
from .history import History
from .kinds import KINDS, record, unable


def judge(run):
    """The violations of the history of a run, and where it is kept when there are any."""
    violations = run.history.violations()
    if violations:
        path = Path(tempfile.gettempdir()) / f"history-{run.kind}-{run.seed}.jsonl"
        run.history.save(path)
        violations.append(f"the history is in {path}; judge it again with: cd tools && python -m chaos check {path}")
    return violations


def main():
    """Run as the environment says; the status is 1 when a history was wrong."""
    if sys.argv[1:2] == ["check"]:
        saved = Path(sys.argv[2])
        violations = (Chains if saved.name.startswith("history-pg-") else History).load(saved).violations()
        print("\n".join(violations) or "every answer is explained")
        return bool(violations)
    wanted = [os.environ["KIND"]] if os.environ.get("KIND") else KINDS
    kinds = [kind for kind in wanted if not unable(kind)]
    seconds, runs = float(os.environ.get("DURATION", 20)), int(os.environ.get("RUNS") or 2 * len(kinds))
    seed = int(os.environ.get("SEED") or random.randrange(10**6))
    not_run = "".join(f"NOT RUN: {kind}: {unable(kind)}\n" for kind in wanted if unable(kind))
    print(not_run, end="", flush=True)
    if not kinds:
        return True
    wrong = 0
    for number in range(runs):
        kind = kinds[number % len(kinds)]
        run = record(kind, seed + number, seconds)
        began = time.monotonic()
        violations = judge(run)
        print(f"{run}; judged in {time.monotonic() - began:.1f} s: {'WRONG' if violations else 'right'}", flush=True)
        print("\n".join(violations), end="\n" if violations else "", flush=True)
        wrong += bool(violations)
    print(f"{runs} runs of {seconds:g} s, {wrong} wrong\n{not_run}", end="")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
