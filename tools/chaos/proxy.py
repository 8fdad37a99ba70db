"""A TCP proxy that breaks connections: before a call arrives, or after the server has acted and before its reply is out.

`python -m chaos.proxy PORT SEED` prints the port it listens on and takes orders on its standard input: `target PORT`, `cut`
(all connections, now), `drop SHARE` (of the replies, each with its connection). Knows nothing of what it carries.
Invariant: bytes are passed on in the order in which they came, over all connections, so that what a client sent on a
connection that it closed has arrived before anything it sends on the next one.
"""

import random
import selectors
import socket
import subprocess
import sys
from pathlib import Path

CHUNK = 1 << 16


class Proxy:
    """The other process, as the one that gives the orders sees it."""

    def __init__(self, port, seed):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "chaos.proxy", str(port), str(seed)],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.port = int(self.process.stdout.readline())

    def order(self, *words):
        """Give an order and wait until it is carried out."""
        print(*words, file=self.process.stdin, flush=True)
        assert self.process.stdout.readline() == "done\n", f"the proxy ended at the order {words}"

    def close(self):
        """End it."""
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class _Side:
    """One end of a connection: what it reads goes to the other end."""

    def __init__(self, connection, is_server):
        self.connection, self.is_server, self.other = connection, is_server, None


class _Loop:
    def __init__(self, target, seed):
        self._target, self._share, self._chance = target, 0.0, random.Random(seed)
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(sys.stdin, selectors.EVENT_READ, self._obey)
        self._sides = set()

    def run(self):
        print(self._listener.getsockname()[1], flush=True)
        while True:
            for key, _ in self._selector.select():
                if isinstance(key.data, _Side):
                    self._pass_on(key.data)
                else:
                    key.data()

    def _accept(self):
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(("127.0.0.1", self._target), timeout=5)
        except OSError:
            client.close()
            return
        sides = _Side(client, False), _Side(server, True)
        for side, other in (sides, sides[::-1]):
            side.other = other
            side.connection.settimeout(None)
            side.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(side.connection, selectors.EVENT_READ, side)
            self._sides.add(side)

    def _pass_on(self, side):
        if side not in self._sides:  # closed earlier in this round
            return
        try:
            data = side.connection.recv(CHUNK)
            dropped = side.is_server and self._chance.random() < self._share
            if data and not dropped:
                side.other.connection.sendall(data)
                return
        except OSError:
            pass
        self._close(side)

    def _close(self, side):
        for one in (side, side.other):
            self._sides.discard(one)
            self._selector.unregister(one.connection)
            one.connection.close()

    def _obey(self):
        word, *values = sys.stdin.readline().split() or ["end"]
        if word == "end":
            sys.exit()
        elif word == "target":
            self._target = int(values[0])
        elif word == "drop":
            self._share = float(values[0])
        elif word == "cut":
            while self._sides:
                self._close(next(iter(self._sides)))
        print("done", flush=True)


if __name__ == "__main__":
    _Loop(int(sys.argv[1]), int(sys.argv[2])).run()
