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
    PORT_ATTEMPTS,
    START_WITHIN_S,
    PortTaken,
    Remains,
    ServerFailed,
    as_account,
    end,
    free_port,
    kill_with_children,
    own,
    server_account,
    server_environment,
    spawn,
    tail,
    temporary_folder,
)
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


class PostgresServer:
    """One postmaster and its data folder, made from an initialised template.

    major: a fetched major. pg_config: the user's own server instead.
    settings: of postgresql.conf, by name. extension: whether pg_fence's files are installed in its private copy.
    durable: fsync and full page writes on, and the data on disk, as a real server has them.
    wrapper: a program that runs the server, such as valgrind.
    """

    def __init__(self, major=None, settings=None, *, pg_config=None, extension=True, durable=False, folder=None, wrapper=()):
        if pg_config is None:
            pg_config = places.pg_config_of(major) if major else places.chosen_pg_config() or places.pg_config_of(places.MAJORS[0])
        if folder is None:
            self.installation = _shared_installation(Path(pg_config), extension)
            self._folder = temporary_folder("fencelock-pg", self.installation.account, in_memory=not durable)
            self._remains = Remains(self._folder)
        else:
            self._folder = Path(folder)
            self.installation = Installation(Path(pg_config), self._folder / "server", extension)
            self._remains = Remains()
        self.major = self.installation.major
        self._settings = {**_DEFAULTS, **({} if durable else _FAST), **(settings or {})}
        self._wrapper = wrapper
        self.port = None
        self._finalizer = weakref.finalize(self, self._remains.remove)

    @property
    def data_dir(self):
        """The data folder."""
        return self._folder / "data"

    @property
    def pid(self):
        """The pid of the running postmaster, or None."""
        process = self._remains.process
        return process.pid if process and process.poll() is None else None

    def url(self, database="postgres"):
        """The URL of a database, as the superuser."""
        return f"postgresql://{SUPERUSER}@127.0.0.1:{self.port}/{database}"

    def start(self, *, detached=False):
        """Start on a free port (on the same one again after a stop or kill) and wait until it takes connections."""
        if self.pid:
            raise ServerFailed("it runs already")
        if not self.data_dir.exists():
            self.installation.new_data_folder(self.data_dir)
        if self.port is not None:
            return self._start_on(self.port, detached)
        for _ in range(PORT_ATTEMPTS):
            self.port = free_port()
            try:
                return self._start_on(self.port, detached)
            except PortTaken:
                continue
        raise ServerFailed(f"no free port in {PORT_ATTEMPTS} attempts")

    def stop(self):
        """Stop in good order: a fast shutdown, which ends open sessions and writes a checkpoint."""
        if self._remains.process:
            end(self._remains.process, signal.SIGINT)

    def kill(self):
        """SIGKILL for the postmaster and its children: what a power failure leaves of them."""
        if self.pid:
            kill_with_children(self._remains.process)

    def restart(self):
        """Stop in good order and start again on the same port."""
        self.stop()
        return self.start()

    def close(self):
        """Kill it and remove its temporary folder."""
        self._finalizer()

    def log(self):
        """Everything it has written to its log."""
        return self._log.read_text(errors="replace")

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

    @property
    def _log(self):
        return self._folder / "postgres.log"

    def _start_on(self, port, detached):
        mark = self._log.stat().st_size if self._log.exists() else 0
        settings = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        process = spawn(
            [*self._wrapper, self.installation.program("postgres"), "-D", self.data_dir, "-c", f"port={port}", *settings],
            log=self._log,
            environment=self.installation.environment,
            cwd=self._folder,
            account=self.installation.account,
            # The postmaster's immediate shutdown: it takes its children along, which SIGKILL would not.
            end_with_owner=None if detached else signal.SIGQUIT,
        )
        self._remains.process = process
        try:
            eventually(lambda: self._takes_connections(process, mark), within_s=START_WITHIN_S)
        except AssertionError:
            kill_with_children(process)
            raise ServerFailed(f"postgres was not ready in {START_WITHIN_S} s\n{tail(self._log)}") from None
        if detached:
            self._finalizer.detach()
        return self

    def _takes_connections(self, process, mark):
        """What pg_ctl looks at: the eighth line of postmaster.pid, when the first is this very process."""
        if process.poll() is not None:
            if b"Address already in use" in self._log.read_bytes()[mark:]:
                raise PortTaken
            raise ServerFailed(f"postgres ended with status {process.returncode}\n{tail(self._log)}")
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
