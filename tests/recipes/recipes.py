"""Loads the examples that users copy, from the very files."""

import importlib
import sys

from harness import places

EXAMPLES = places.ROOT / "sql" / "examples"


def example(name):
    """The module of an example in Python. They lie in one folder and import each other, as copies in a folder would."""
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    return importlib.import_module(name)
