"""results.json: what was last seen in each cell."""

import json

from harness import places

FILE = places.ROOT / "tools" / "matrix" / "results.json"


def read():
    """By the names of the cells."""
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def write(name, result):
    """Put one cell's result in the place of the one before."""
    FILE.write_text(json.dumps({**read(), name: result}, indent=1, sort_keys=True) + "\n")
