"""The seed of what a test does by chance: `SEED=...` from the environment, or a new one. pytest shows it when the test fails."""

import os
import random


def seed():
    """The seed, and a line that says how to repeat it."""
    chosen = int(os.environ.get("SEED") or random.randrange(10**6))
    print(f"to repeat this: SEED={chosen}")
    return chosen
