"""A throw-away Redis server with the module loaded.

Listens on 127.0.0.1 alone. Its folder (RDB, AOF, log) is its own, and stays across kill() and restart(), so tests can
read what survives. Not a client: `cli` runs redis-cli and returns its text.
"""

import functools
import signal
import socket
import subprocess
from pathlib import Path

from . import places
from .process import Remains, server_environment, spawn, temporary_folder
from .server import Server

# Nothing is saved unless a test asks for it, and a failing background save must not turn writes off.
_DEFAULTS = {"save": "", "appendonly": "no", "stop-writes-on-bgsave-error": "no", "daemonize": "no"}


class RedisServer(Server):
    """One redis-server process and its folder.

    module_args: the arguments of the module, as in a redis.conf line, for example ("fence-clock", "no").
    config: settings of redis.conf by name; a list gives the setting several times.
    data_dir: a folder to use and keep; without it a temporary one, removed by `close` and at exit.
    module: the library to load; None for a server without it. wrapper: a program that runs the server, such as valgrind.
    """

    _name = "redis-server"

    def __init__(self, module_args=(), config=None, data_dir=None, *, module=places.MODULE, environment=None, wrapper=()):
        self._module_args = [str(argument) for argument in module_args]
        self._config = {**_DEFAULTS, **(config or {})}
        self._module = module
        self._extra_environment = environment
        self._wrapper = wrapper
        self.data_dir = temporary_folder("fencelock-redis") if data_dir is None else Path(data_dir)
        self.data_dir.mkdir(parents=True, exist_ok=True)
        super().__init__(self.data_dir / "redis.log", Remains(self.data_dir if data_dir is None else None))

    @property
    def url(self):
        """The URL of database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    def cli(self, *args, stdin=None):
        """Run redis-cli with these arguments, and a file to read, and return what it prints, without the last newline."""
        done = subprocess.run(
            [str(word) for word in self.cli_command(*args)],
            env=self._environment(),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        return done.stdout.rstrip("\n")

    def cli_command(self, *args):
        """The redis-cli command line for these arguments."""
        return [places.redis_cli(), "-h", "127.0.0.1", "-p", self.port, *args]

    def _run(self, detached):
        return spawn(
            self._command(),
            log=self._log,
            environment=self._environment(),
            cwd=self.data_dir,
            end_with_owner=None if detached else signal.SIGKILL,
        )

    def _command(self):
        return [*self._wrapper, places.redis_server(), self._write_config()]

    def _is_ready(self, process, written):
        said = _ask(self.port, b"INFO")
        return said.startswith(b"-NOAUTH") or (
            f"\nprocess_id:{process.pid}\r".encode() in said and b"\nloading:0\r" in said
        )

    def _write_config(self):
        path = self.data_dir / "redis.conf"
        lines = [f"port {self.port}", "bind 127.0.0.1", f'dir "{self.data_dir}"']
        if self._module is not None:
            lines.append(" ".join(["loadmodule", f'"{self._module}"', *self._module_args]))
        for name, value in self._config.items():
            for one in value if isinstance(value, (list, tuple)) else [value]:
                lines.append(f"{name} {one}" if str(one) else f'{name} ""')
        path.write_text("\n".join(lines) + "\n")
        return path

    @property
    def libraries(self):
        """The folders of shared libraries that the fetched server needs and the system may lack."""
        fetched = places.redis_server() == places.FETCHED_REDIS
        return places.shared_libraries(places.SERVERS / "redis") if fetched else []

    def _environment(self):
        return server_environment(self.libraries, self._extra_environment)


@functools.cache
def server_version():
    """The chosen server's kind and version, for example ("Redis", (7, 0, 15))."""
    said = subprocess.run(
        [places.redis_server(), "--version"],
        env=RedisServer(module=None)._environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    version = said.split(" v=")[1].split()[0]
    return said.split()[0], tuple(int(part) for part in version.split("."))


def _ask(port, command):
    """One inline command on a connection of its own; the start of the reply, or nothing while nobody listens."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(command + b"\r\nQUIT\r\n")
            said = b""
            while chunk := connection.recv(65536):
                said += chunk
            return said
    except OSError:
        return b""
