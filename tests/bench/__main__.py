"""Measures and writes the results: `python -m bench {full|quick} LOAD [--only WORDS] [--accept]`, run by the Makefile.

full: everything, into results.json, RESULTS-table.md and results.svg of this folder. quick: a part, compared with
baseline.json; ends with 1 where a ratio is worse by more than the margin. --accept writes the baseline. --only: the works
whose name has these words; nothing is written. LOAD is the compiled `load.rs`.
"""

import argparse
import itertools
import json
import resource
import sys
import time
from pathlib import Path

from . import postgres_works, protocol_works, redis_works, report
from .works import measure

HERE = Path(__file__).parent
BASELINE = HERE / "baseline.json"
# How much worse than the baseline a ratio may be. CPU time and rates move by a tenth from run to run on a shared machine;
# instructions repeat to a tenth of a percent, and a thousandth more is a change of the code.
MARGINS = {"instructions": 0.01, "CPU": 0.15}
OTHER_MARGIN = 0.30


def main(arguments):
    """Measure; the exit status."""
    parser = argparse.ArgumentParser(prog="bench")
    parser.add_argument("extent", choices=("full", "quick"))
    parser.add_argument("load")
    parser.add_argument("--only", default="")
    parser.add_argument("--accept", action="store_true")
    options = parser.parse_args(arguments)
    _many_files()

    began, quick = time.monotonic(), options.extent == "quick"
    halves = (module.works(options.load, quick) for module in (postgres_works, redis_works, protocol_works))
    records = []
    for work in itertools.chain(*halves):
        if options.only in work.name:
            record = measure(work).record()
            print(report.line(record), flush=True)
            records.append(record)
    minutes = (time.monotonic() - began) / 60
    print(f"{len(records)} works in {minutes:.0f} minutes")
    if options.only:
        return 0
    if not quick:
        report.write(HERE, records, minutes)
        return 0
    if options.accept:
        BASELINE.write_text(json.dumps({record["name"]: record["ratio"] for record in records}, indent=1) + "\n")
        return 0
    return _compare(records)


def _compare(records):
    """Whether all ratios are as good as those of the baseline."""
    baseline, worse = json.loads(BASELINE.read_text()), []
    for record in records:
        before = baseline.get(record["name"])
        margin = MARGINS.get(record["unit"], OTHER_MARGIN)
        if before is None:
            continue
        change = before / record["ratio"] - 1 if record["at_least"] else record["ratio"] / before - 1
        if change > margin:
            worse.append(f"{record['name']}: {before:.3f} was the baseline, {record['ratio']:.3f} is worse by {change:.0%}")
    print(*worse or ["No ratio is worse than the baseline by more than its margin."], sep="\n")
    return 1 if worse else 0


def _many_files():
    """10,000 clients need as many files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
