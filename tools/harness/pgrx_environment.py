"""Prints what pgrx must have in its environment to build for one server: `python3 -m harness.pgrx_environment MAJOR`.

The server is the one that PG_CONFIG names, else the fetched one of that major. Used by the Makefile.
"""

import sys

from . import places


def pgrx_environment(major):
    """The variables by name."""
    pg_config = places.chosen_pg_config() or places.pg_config_of(major)
    environment = {"PGRX_PG_CONFIG_PATH": pg_config}
    root = places.fetched_root(pg_config)
    if root is not None and (root / "usr" / "include").is_dir():
        # Debian's server headers include others, which were unpacked beside them. Not by BINDGEN_EXTRA_CLANG_ARGS:
        # cargo rebuilds bindgen itself when that changes, so that every other build would take half a minute more.
        environment["C_INCLUDE_PATH"] = root / "usr" / "include"
    return environment


if __name__ == "__main__":
    print(*(f"{name}={value}" for name, value in pgrx_environment(int(sys.argv[1])).items()))
