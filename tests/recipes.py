"""Loads the examples that users copy, from the very files."""

import functools
import importlib.util

from harness import places

EXAMPLES = places.ROOT / "sql" / "examples"


@functools.cache
def example(name):
    """The module of an example in Python."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
