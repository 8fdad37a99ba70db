"""Throw-away Redis Sentinels that watch one primary, for tests of a failover that nobody commands.

Not a client. Invariant: they agree by majority, and each is a server process with the bounds of every other one.
"""

import weakref

from . import places
from .redis_calls import Line
from .redis_server import RedisServer
from .waiting import eventually

NAME = "fence"
# They find each other by messages that each sends every two seconds.
READY_WITHIN_S = 120.0


class Sentinel(RedisServer):
    """One sentinel. Its settings file is its own: it writes what it learns into it."""

    _name = "the sentinel"

    def __init__(self, settings):
        super().__init__(config={"save": ""}, module=None)
        self._settings = settings

    def _command(self):
        path = self.data_dir / "sentinel.conf"
        lines = [f"port {self.port}", "bind 127.0.0.1", f'dir "{self.data_dir}"', *self._settings]
        path.write_text("\n".join(lines) + "\n")
        return [places.redis_server(), path, "--sentinel"]

    def _is_ready(self, process, written):
        try:
            return f"\nprocess_id:{process.pid}\r" in ask(self.port, "INFO", "server").decode()
        except OSError:
            return False


class Sentinels:
    """Three sentinels of one primary.

    down_after_ms: how long it is silent before a sentinel takes it for dead.
    """

    def __init__(self, primary, *, down_after_ms=1_500):
        settings = [
            f"sentinel monitor {NAME} 127.0.0.1 {primary.port} 2",
            f"sentinel down-after-milliseconds {NAME} {down_after_ms}",
            f"sentinel failover-timeout {NAME} 10000",
        ]
        self.sentinels = [Sentinel(settings) for _ in range(3)]
        self._finalizer = weakref.finalize(self, _close_all, list(self.sentinels))

    def start(self, replicas=1):
        """Start all and wait until each knows the others and the replicas."""
        for sentinel in self.sentinels:
            sentinel.start()
        eventually(
            lambda: [self._knows(sentinel) for sentinel in self.sentinels],
            [(b"master", str(replicas).encode(), b"2")] * 3,
            within_s=READY_WITHIN_S,
        )
        return self

    @property
    def addresses(self):
        """Host and port of each, as a client wants them."""
        return [("127.0.0.1", sentinel.port) for sentinel in self.sentinels]

    def primary_port(self):
        """The port of the primary, as most of them say."""
        told = [ask(sentinel.port, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)[1] for sentinel in self.sentinels]
        return int(max(told, key=told.count))

    def close(self):
        """Kill them and remove their folders."""
        self._finalizer()

    def _knows(self, sentinel):
        reply = ask(sentinel.port, "SENTINEL", "MASTER", NAME)
        told = dict(zip(reply[::2], reply[1::2], strict=True))
        return told[b"flags"], told[b"num-slaves"], told[b"num-other-sentinels"]


def ask(port, *words):
    """One command on a connection of its own."""
    with Line(port) as line:
        return line.call(*words)


def _close_all(sentinels):
    for sentinel in sentinels:
        sentinel.close()
