"""What the fuzzers of live servers share: seeds, time, and the report of a find.

Not a fuzzer. Invariant: a find names the seed and the run that repeat it.
"""

import argparse
import os
import random
import time


class Find(AssertionError):
    """A run found a fault."""


def chances(seed, run):
    """The choices of one run: the same for the same seed and run, whatever the runs before it did."""
    return random.Random(f"{seed}/{run}")


def main(description, play, **options):
    """Run a fuzzer from the command line: `play(chance, run)` until the time is over.

    `play` returns how many calls it made. options: further arguments by name, with their defaults.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seconds", type=float, default=60, help="how long (60)")
    parser.add_argument("--seed", type=int, default=None, help="a seed that was printed; else a new one")
    parser.add_argument("--run", type=int, default=None, help="this run of the seed alone")
    for name, default in options.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    given = parser.parse_args()
    seed = int.from_bytes(os.urandom(4), "big") if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    began = told = time.monotonic()
    run, calls = given.run or 0, 0
    chosen = {name: getattr(given, name) for name in options}
    while True:
        try:
            calls += play(chances(seed, run), run, **chosen)
        except Exception:
            print(f"found with --seed {seed} --run {run}", flush=True)
            raise
        run += 1
        now = time.monotonic()
        if given.run is not None or now - began >= given.seconds:
            break
        if now - told >= 30:
            told = now
            print(f"{now - began:.0f} s: {run} runs, {calls} calls", flush=True)
    print(f"{run} runs, {calls} calls in {time.monotonic() - began:.0f} s: nothing found (seed {seed})")
