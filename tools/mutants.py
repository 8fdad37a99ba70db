"""Changes the protocol crate in every small way that cargo-mutants knows, and fails when no test notices one.

Three rounds, each for what survived the one before: the unit tests, which take a second, then the property tests and the
kept inputs of the fuzzers, then the model. A mutant that makes the tests hang is noticed. Further arguments go to
cargo-mutants: `--file 'fence/src/wheel.rs'`.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Name, tests, seconds after which they hang, and how much the compiler optimises.
ROUNDS = [
    ("unit tests", ["--lib"], 30, 1),
    ("property tests and kept inputs", ["--test", "properties", "--test", "seeds"], 120, 2),
    ("model", ["--test", "model"], 900, 2),
]
# What cargo-mutants ends with when mutants survived, or made the tests hang.
JUDGED = (0, 2, 3)


def survivors(program, home, tests, hang_s, optimised, arguments):
    """The names of the mutants that these tests do not notice."""
    environment = {**os.environ, "CARGO_TARGET_DIR": str(home / "build"), "CARGO_PROFILE_DEV_DEBUG": "none"}
    profile = f"--config=profile.dev.package.fence.opt-level={optimised}"
    chosen = ["--dir", "fence", "--package", "fence", "--output", str(home), "--timeout", str(hang_s)]
    # What comes after -- names the tests to run, and all would be built.
    cargo = [word for argument in (profile, *tests) for word in ("--cargo-arg", argument)]
    done = subprocess.run([program, "mutants", *chosen, *cargo, *arguments], cwd=ROOT, env=environment)
    if done.returncode not in JUDGED:
        sys.exit(f"cargo mutants ended with status {done.returncode}")
    return (home / "mutants.out" / "missed.txt").read_text().splitlines()


def main():
    program, home, arguments = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    for old in home.glob("mutants.out*"):
        shutil.rmtree(old)
    left = None
    for name, tests, hang_s, optimised in ROUNDS:
        print(f"--- {name}", flush=True)
        missed = survivors(program, home, tests, hang_s, optimised, arguments)
        # cargo-mutants tries every field of a struct expression again, whatever --re names.
        missed = [mutant for mutant in missed if left is None or mutant in left]
        if not missed:
            print("No mutant survives")
            return
        left = missed
        arguments = [word for mutant in missed for word in ("--re", f"^{re.escape(mutant)}$")]
    sys.exit("\n".join([f"{len(missed)} mutants survive:", *missed]))


if __name__ == "__main__":
    main()
