"""Prints what pgrx must have in its environment to build a package for a major: `python3 packaging/oldest_minor.py 15`.

A library that was built with the headers of a late minor can need functions that earlier minors lack, and then they
cannot load it (15.20 brought two). So packages are built with the oldest minor that can be had: of 15 the oldest that
this Debian offers, of 18 the one of the wheel. What the build needs of it is unpacked under target/servers/.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

from harness import fetch, places  # noqa: E402
from harness.pgrx_environment import pgrx_environment  # noqa: E402

OLDEST_15 = places.SERVERS / "postgres-15-oldest"


def environment(major):
    """The variables by name; fetches what is missing."""
    if places.chosen_pg_config() or major != 15:
        return pgrx_environment(major)
    if not OLDEST_15.exists():
        fetch._once(OLDEST_15.name, _fetch)
    return {
        "PGRX_PG_CONFIG_PATH": OLDEST_15 / "usr/lib/postgresql/15/bin/pg_config",
        # The headers of ICU, which are fetched with the server.
        "C_INCLUDE_PATH": places.SERVERS / "postgres-15" / "usr/include",
    }


def _fetch(folder):
    apt = fetch._Apt(folder / "apt")
    offered = re.findall(r"^\S+ \| +(\S+) \|", apt._cache("madison", "postgresql-server-dev-15"), re.MULTILINE)
    # apt names the newest first.
    apt.download([f"{name}={offered[-1]}" for name in ("postgresql-server-dev-15", "postgresql-client-15")], folder)
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg", "--extract", package, folder], check=True)
        package.unlink()


if __name__ == "__main__":
    # Of standard output the Makefile makes variables: what fetching says must go elsewhere.
    sys.stdout, out = sys.stderr, sys.stdout
    print(*(f"{name}={value}" for name, value in environment(int(sys.argv[1])).items()), file=out)
