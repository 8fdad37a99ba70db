"""A throw-away PostgreSQL server with the extension at hand.

Every run uses a private copy of the server's files, so the extension is installed without touching the user's own
PostgreSQL or a copy that another run uses, and the files lie where the account that runs the server can reach them.
Listens on 127.0.0.1 alone and trusts whoever connects: for throw-away data only.
"""

import functools
import hashlib
import os
import re
import shutil
import signal
import subprocess
import weakref
from pathlib import Path

from . import places
from .process import (
    Remains,
    ServerFailed,
    as_account,
    own,
    server_account,
    server_environment,
    spawn,
    temporary_folder,
)
from .server import Server
from .waiting import eventually

SUPERUSER = "postgres"

# A crash of the machine may lose throw-away data; SIGKILL for every server process does not (synchronous_commit=off
# would lose commits then). The data is in memory, so it stays small. `durable=True` leaves these at the server's own
# defaults, on disk.
_FAST = {"fsync": "off", "full_page_writes": "off", "max_wal_size": "128MB"}
_DEFAULTS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "100",
    "shared_buffers": "32MB",
    "dynamic_shared_memory_type": "posix",
    # The unpacked Debian server comes without LLVM, and no query here is long enough to gain.
    "jit": "off",
    "log_min_messages": "warning",
    "log_line_prefix": "%m [%p] ",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class PostgresServer(Server):
    """One postmaster and its data folder, made from an initialised template.

    major: a fetched major. pg_config: the user's own server instead.
    settings: of postgresql.conf, by name. extension: whether pg_fence's files are installed in its private copy.
    durable: fsync and full page writes on, and the data on disk, as a real server has them.
    wrapper: a program that runs the server, such as valgrind.
    """

    _name = "postgres"
    # A fast shutdown, which ends open sessions and writes a checkpoint.
    _stop_signal = signal.SIGINT

    def __init__(self, major=None, settings=None, *, pg_config=None, extension=True, durable=False, folder=None, wrapper=()):
        if pg_config is None:
            pg_config = places.pg_config_of(major) if major else places.chosen_pg_config() or places.pg_config_of(places.MAJORS[0])
        if folder is None:
            self.installation = _shared_installation(Path(pg_config), extension)
            self._folder = temporary_folder("fencelock-pg", self.installation.account, in_memory=not durable)
            remains = Remains(self._folder)
        else:
            self._folder = Path(folder)
            self.installation = Installation(Path(pg_config), self._folder / "server", extension)
            remains = Remains()
        self.major = self.installation.major
        self._settings = {**_DEFAULTS, **({} if durable else _FAST), **(settings or {})}
        self._wrapper = wrapper
        super().__init__(self._folder / "postgres.log", remains)

    @property
    def data_dir(self):
        """The data folder."""
        return self._folder / "data"

    def url(self, database="postgres"):
        """The URL of a database, as the superuser."""
        return f"postgresql://{SUPERUSER}@127.0.0.1:{self.port}/{database}"

    def start(self, *, detached=False):
        """Start on a free port (on the same one again after a stop or kill) and wait until it takes connections."""
        if not self.data_dir.exists():
            self.installation.new_data_folder(self.data_dir)
        return super().start(detached=detached)

    def psql(self, sql, database="postgres", *, options=("-qAtX",), check=True):
        """Run SQL with psql and return what it prints, without the last newline; ServerFailed when psql fails."""
        done = subprocess.run(
            [
                str(word)
                for word in (self.installation.psql, *options, "-v", "ON_ERROR_STOP=1", "-d", self.url(database))
            ],
            input=sql,
            env=self.installation.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        if check and done.returncode != 0:
            raise ServerFailed(f"psql ended with status {done.returncode}: {done.stdout}")
        return done.stdout.rstrip("\n")

    def crash(self):
        """SIGKILL one of its processes, and wait until the postmaster has ended all others and has recovered."""
        ask = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'"
        before = self.psql(ask)
        os.kill(int(before), signal.SIGKILL)
        # Connections succeed until the postmaster notices; a new checkpointer exists only after that.
        eventually(lambda: self.psql(ask) not in ("", before), retry_on=(ServerFailed,))

    def _run(self, detached):
        settings = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        command = [self.installation.program("postgres"), "-D", self.data_dir, "-c", f"port={self.port}", *settings]
        return spawn(
            [*self._wrapper, *command],
            log=self._log,
            environment=self.installation.environment,
            cwd=self._folder,
            account=self.installation.account,
            # The postmaster's immediate shutdown: it takes its children along, which SIGKILL would not.
            end_with_owner=None if detached else signal.SIGQUIT,
        )

    def _is_ready(self, process, written):
        """What pg_ctl reads: the eighth line of postmaster.pid, when the first is this very process."""
        try:
            lines = (self.data_dir / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) > 7 and lines[0].strip() == str(process.pid) and lines[7].strip() == "ready"


class Installation:
    """A private copy of a PostgreSQL server's files, with the extension in it when asked for."""

    def __init__(self, pg_config, folder, extension=True):
        self.account = server_account()
        self._copy = _Copy(Path(pg_config), Path(folder))
        self.libraries = self._copy.libraries
        self.environment = server_environment(self.libraries)
        self.version = self._run("postgres", "--version").split()[2]
        self.major = int(re.match(r"\d+", self.version)[0])
        if extension:
            self.install_extension()

    def program(self, name):
        """The path of one of the server's programs."""
        return self._copy.bin / name

    @property
    def psql(self):
        """A psql: this server's own, else a fetched one, else the one on PATH."""
        own_psql = self.program("psql")
        return own_psql if own_psql.exists() else Path(shutil.which("psql") or own_psql)

    def install_extension(self):
        """Copy the extension's files in: written under another name and then renamed, as a running server has the
        old library mapped."""
        for source, kind, name in places.extension_files(self.major):
            if not source.exists():
                raise ServerFailed(f"{source} is missing: run `make build`")
            folder = self._copy.pkglib if kind == "lib" else self._copy.share / "extension"
            new = folder / f".{name}.new"
            shutil.copyfile(source, new)
            new.chmod(0o755 if kind == "lib" else 0o644)
            new.replace(folder / name)

    def new_data_folder(self, folder):
        """Make an initialised data folder, as a copy of the template of this version."""
        shutil.copytree(self._template(), folder, symlinks=True)
        own(folder, self.account)
        folder.chmod(0o700)

    def _template(self):
        """The template data folder, made by the first run: initdb takes a second or two, a copy a tenth."""
        facts = "\n".join([self.version, str(self._copy.origin)])
        name = f"initdb-{self.major}-{hashlib.sha256(facts.encode()).hexdigest()[:12]}"
        template = places.SERVERS / name
        if template.exists():
            return template
        scratch = temporary_folder("fencelock-initdb", self.account)
        try:
            self._initdb(scratch / "data")
            places.SERVERS.mkdir(parents=True, exist_ok=True)
            return _publish(scratch / "data", template)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _initdb(self, folder):
        done = subprocess.run(
            [
                *(str(self.program("initdb")), "-D", str(folder), "-U", SUPERUSER, "--auth=trust"),
                *("--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"),
            ],
            env=self.environment,
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **as_account(self.account),
        )
        if done.returncode != 0:
            raise ServerFailed(f"initdb ended with status {done.returncode}\n{done.stdout}")

    def _run(self, name, *args):
        return subprocess.run(
            [str(self.program(name)), *args],
            env=self.environment,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout


class _Copy:
    """The copied folders of one server, at the same places relative to each other, as PostgreSQL finds its files."""

    def __init__(self, pg_config, folder):
        facts = _pg_config(pg_config)
        self.origin = facts["BINDIR"]
        root = places.fetched_root(pg_config)
        if root is not None:
            base = root
            shutil.copytree(root, folder, symlinks=True, ignore=_NOT_COPIED, copy_function=_link)
        else:
            base = Path(os.path.commonpath([facts["BINDIR"], facts["PKGLIBDIR"], facts["SHAREDIR"]]))
            for source in (facts["PKGLIBDIR"], facts["SHAREDIR"]):
                target = folder / source.relative_to(base)
                shutil.copytree(source, target, ignore=_NOT_COPIED, ignore_dangling_symlinks=True, dirs_exist_ok=True)
            _copy_programs(facts["BINDIR"], folder / facts["BINDIR"].relative_to(base))
        # Whatever our umask is: the account that runs the server passes through.
        for entered in (folder, *folder.rglob("*")):
            if entered.is_dir() and not entered.is_symlink():
                entered.chmod(entered.stat().st_mode | 0o055)
        self.bin = folder / facts["BINDIR"].relative_to(base)
        self.pkglib = folder / facts["PKGLIBDIR"].relative_to(base)
        self.share = folder / facts["SHAREDIR"].relative_to(base)
        # A user's own build may have its libpq beside it and nowhere the loader looks.
        self.libraries = places.shared_libraries(folder) if root is not None else (facts["LIBDIR"],)


@functools.cache
def _shared_installation(pg_config, extension):
    """One copy per server and process, for all its data folders."""
    remains = Remains(temporary_folder("fencelock-pg-server", server_account()))
    try:
        installation = Installation(pg_config, remains.folder / "server", extension)
    except BaseException:
        remains.remove()
        raise
    weakref.finalize(installation, remains.remove)
    return installation


def _pg_config(path):
    """What pg_config says, as paths by name."""
    root = places.fetched_root(path)
    environment = server_environment(places.shared_libraries(root) if root else ())
    try:
        said = subprocess.run([str(path)], env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    except OSError as error:
        raise ServerFailed(f"{path}: {error.strerror}; run tools/setup, or name your own with PG_CONFIG=...") from None
    lines = (line.split(" = ", 1) for line in said.splitlines() if " = " in line)
    return {name: Path(value) for name, value in lines}


# Half of the files, and none that a running server opens.
_NOT_COPIED = shutil.ignore_patterns("include", "doc", "man", "locale", "pgxs", "pkgconfig", "bitcode", "*.a")


# What the harness and the tests run; a user's server may share its folder with all programs of the system.
_PROGRAMS = ("postgres", "initdb", "psql", "pg_ctl", "pg_dump", "pg_dumpall", "pg_restore", "pg_basebackup", "pgbench")


def _copy_programs(source, target):
    target.mkdir(parents=True, exist_ok=True)
    for name in _PROGRAMS:
        if (source / name).exists():
            shutil.copy2(source / name, target / name)


def _link(source, target):
    """A hard link where that is possible, as it takes no time and no space; only for files of ours."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _publish(made, final):
    """Put a finished folder at its place in one step; another run may have been faster, and its copy is as good."""
    beside = final.with_name(f".{final.name}.{os.getpid()}")
    shutil.copytree(made, beside, symlinks=True)
    try:
        beside.rename(final)
    except OSError:
        shutil.rmtree(beside)
        if not final.exists():
            raise
    return final
