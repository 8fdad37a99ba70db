"""A throw-away PgBouncer in front of a throw-away PostgreSQL server.

In transaction mode, with statements that are prepared at protocol level: what is prepared through one server connection
is prepared anew on the next. Listens on 127.0.0.1 alone and trusts whoever connects. Not a client.
"""

import shutil
import signal
import socket
import weakref

from . import places
from .postgres_server import SUPERUSER
from .process import (
    PORT_ATTEMPTS,
    START_WITHIN_S,
    PortTaken,
    Remains,
    ServerFailed,
    end,
    free_port,
    own,
    server_account,
    server_environment,
    spawn,
    tail,
    temporary_folder,
)
from .waiting import eventually


class PgBouncer:
    """One pgbouncer process.

    postgres: the server behind it. settings: of pgbouncer.ini, by name.
    """

    def __init__(self, postgres, settings=None):
        self._postgres = postgres
        self._settings = settings or {}
        self._account = server_account()
        self._folder = temporary_folder("fencelock-pgbouncer", self._account)
        self._remains = Remains(self._folder)
        self._finalizer = weakref.finalize(self, self._remains.remove)
        self.port = None

    def start(self):
        """Start on a free port and wait until it takes connections."""
        command = self._command()
        for _ in range(PORT_ATTEMPTS):
            self.port = free_port()
            try:
                return self._start_on(command)
            except PortTaken:
                continue
        raise ServerFailed(f"no free port in {PORT_ATTEMPTS} attempts")

    def url(self, database):
        """The URL of a database behind it."""
        return f"postgresql://{SUPERUSER}@127.0.0.1:{self.port}/{database}"

    def log(self):
        """Everything it has written to its log."""
        return self._log.read_text(errors="replace")

    def close(self):
        """Kill it and remove its folder."""
        self._finalizer()

    @property
    def _log(self):
        return self._folder / "pgbouncer.log"

    def _command(self):
        """The fetched program is copied where the account that runs it can reach it."""
        copy = self._folder / "files"
        if places.FETCHED_PGBOUNCER.exists():
            unread = shutil.ignore_patterns("share", "gconv")
            shutil.copytree(places.FETCHED_PGBOUNCER, copy, symlinks=True, ignore=unread)
            own(copy, self._account)
        return places.pgbouncer(copy)

    def _start_on(self, command):
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": self._folder / "users.txt",
            "pool_mode": "transaction",
            "max_prepared_statements": 100,
            **self._settings,
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        behind = f"[databases]\n* = host=127.0.0.1 port={self._postgres.port}\n"
        (self._folder / "users.txt").write_text(f'"{SUPERUSER}" ""\n')
        (self._folder / "pgbouncer.ini").write_text("\n".join([behind, "[pgbouncer]", *lines, ""]))
        mark = self._log.stat().st_size if self._log.exists() else 0
        process = spawn(
            [*command, self._folder / "pgbouncer.ini"],
            log=self._log,
            environment=server_environment(),
            cwd=self._folder,
            account=self._account,
        )
        self._remains.process = process
        try:
            eventually(lambda: self._listens(process, mark), within_s=START_WITHIN_S)
        except AssertionError:
            end(process, signal.SIGKILL)
            raise ServerFailed(f"pgbouncer did not listen in {START_WITHIN_S} s\n{tail(self._log)}") from None
        return self

    def _listens(self, process, mark):
        if process.poll() is not None:
            if b"in use" in self._log.read_bytes()[mark:]:
                raise PortTaken
            raise ServerFailed(f"pgbouncer ended with status {process.returncode}\n{tail(self._log)}")
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return b"process up" in self._log.read_bytes()[mark:]
        except OSError:
            return False
