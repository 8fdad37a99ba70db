"""A throw-away PgBouncer in front of a throw-away PostgreSQL server.

In transaction mode, with statements that are prepared at protocol level: what is prepared through one server connection
is prepared anew on the next. Listens on 127.0.0.1 alone and trusts whoever connects. Not a client.
"""

import functools
import shutil
import socket

from . import places
from .postgres_server import SUPERUSER
from .process import Remains, own, server_account, server_environment, spawn, temporary_folder
from .server import Server


class PgBouncer(Server):
    """One pgbouncer process.

    postgres: the server behind it. settings: of pgbouncer.ini, by name.
    """

    _name = "pgbouncer"
    _port_taken = b"in use"

    def __init__(self, postgres, settings=None):
        self._postgres = postgres
        self._settings = settings or {}
        self._account = server_account()
        self._folder = temporary_folder("fencelock-pgbouncer", self._account)
        super().__init__(self._folder / "pgbouncer.log", Remains(self._folder))

    def url(self, database):
        """The URL of a database behind it."""
        return f"postgresql://{SUPERUSER}@127.0.0.1:{self.port}/{database}"

    @functools.cached_property
    def _program(self):
        """The fetched program is copied where the account that runs it can reach it."""
        copy = self._folder / "files"
        if places.FETCHED_PGBOUNCER.exists():
            unread = shutil.ignore_patterns("share", "gconv")
            shutil.copytree(places.FETCHED_PGBOUNCER, copy, symlinks=True, ignore=unread)
            own(copy, self._account)
        return places.pgbouncer(copy)

    def _run(self, detached):
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
        return spawn(
            [*self._program, self._folder / "pgbouncer.ini"],
            log=self._log,
            environment=server_environment(),
            cwd=self._folder,
            account=self._account,
        )

    def _is_ready(self, process, written):
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return b"process up" in written
        except OSError:
            return False
