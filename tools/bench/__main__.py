"""Measures and writes the results: `python -m bench {full|quick} LOAD [options]`, run by the Makefile.

full: everything; JSON, a table and a plot of each part, in this folder. quick: some of it, compared with baseline.json;
ends with 1 where a ratio is worse by more than the margin. --accept writes the baseline. --part: one part alone. --only: the
works whose name has these words; --rounds: at most so many of each; then nothing is written, unless --into names a folder.
LOAD is the compiled `load.rs`.
"""

import argparse
import json
import resource
import sys
import time
from pathlib import Path

from . import lease_works, postgres_works, protocol_works, redis_works, report
from .works import measure

HERE = Path(__file__).parent
PARTS = {"postgres": postgres_works, "leases": lease_works, "redis": redis_works, "protocol": protocol_works}
BASELINE = HERE / "baseline.json"
# How much worse than the baseline a ratio may be. Instructions repeat to 3% on Redis, whose cron comes by chance, and to
# half a percent on PostgreSQL; CPU time to a tenth. Times and rates swing with whatever else the machine does, so they
# only catch what has become another thing.
MARGINS = {"instructions": 0.04, "CPU": 0.15}
OTHER_MARGIN = 0.50
# Who polls has luck or not: from run to run this doubles.
LOTTERY = ("cycles per second", "longest wait")
ALL_ROUNDS = 99


def main(arguments):
    """Measure; the exit status."""
    parser = argparse.ArgumentParser(prog="bench")
    parser.add_argument("extent", choices=("full", "quick"))
    parser.add_argument("load")
    parser.add_argument("--only", default="")
    parser.add_argument("--accept", action="store_true")
    parser.add_argument("--rounds", type=int, default=ALL_ROUNDS)
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--into", type=Path)
    options = parser.parse_args(arguments)
    _many_files()

    is_whole = options.extent == "full" and not options.only and options.rounds == ALL_ROUNDS
    into = options.into or (HERE if is_whole else None)
    records = [record for part in PARTS if options.part in (None, part) for record in _measured(part, options, into)]
    if options.only or options.part or options.extent == "full":
        return 0
    if options.accept:
        ratios = {_key(record): record["ratio"] for record in filter(_is_judged, records)}
        BASELINE.write_text(json.dumps(ratios, indent=1) + "\n")
        return 0
    return _compare(records)


def _measured(part, options, into):
    """The records of a part. They are written after each work, so that what is there of a run that is cut short is seen."""
    began, records = time.monotonic(), []
    machine = report.machine(part) if into else None
    for work in PARTS[part].works(options.load, options.extent == "quick"):
        if options.only in work.name:
            records.append(measure(work, options.rounds).record())
            print(report.line(records[-1]), flush=True)
            if into:
                report.write(into, part, machine, records, (time.monotonic() - began) / 60)
    print(f"{part}: {len(records)} works in {(time.monotonic() - began) / 60:.0f} minutes")
    return records


def _key(record):
    """One work can be measured in two units."""
    return f"{record['name']}, {record['unit']}"


def _is_judged(record):
    """Times and rates without a target are for information: they swing too much to be held to anything."""
    return record["unit"] in MARGINS or (record["target"] is not None and record["unit"] not in LOTTERY)


def _compare(records):
    """0 if all ratios are as good as those of the baseline, and all of those are measured; else 1."""
    baseline, worse = json.loads(BASELINE.read_text()), []
    for record in filter(_is_judged, records):
        before = baseline.pop(_key(record), None)
        margin = MARGINS.get(record["unit"], OTHER_MARGIN)
        if before is None:
            worse.append(f"{_key(record)}: not in the baseline; look at it, then --accept")
            continue
        change = before / record["ratio"] - 1 if record["at_least"] else record["ratio"] / before - 1
        if change > margin:
            worse.append(f"{_key(record)}: {before:.3f} was the baseline, {record['ratio']:.3f} is worse by {change:.0%}")
    worse += [f"{key}: in the baseline, and not measured" for key in baseline]
    print(*worse or ["No ratio is worse than the baseline by more than its margin."], sep="\n")
    return 1 if worse else 0


def _many_files():
    """10,000 clients need as many files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
