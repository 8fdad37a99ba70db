"""Connections to Redis that send without waiting for the reply: what a test of waiting clients needs.

Not a client library: one socket, commands as raw words, and replies as they come, so that a test sees each single reply
and the silence between them. Replies are int, bytes, str (simple strings), None, list, dict (RESP3 maps) or `Refused`.
"""

import re
import select
import socket
import struct
import time

from .waiting import HANG_S, eventually


class Refused(str):
    """An error reply; its first word is the code."""

    __slots__ = ()

    @property
    def code(self):
        """The code word."""
        return self.split(" ", 1)[0]


class Closed(Exception):
    """The server closed the connection."""


def encoded(words):
    """One command as the bytes that go over the wire."""
    words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


class Line:
    """One connection. It reads only what it is asked for."""

    def __init__(self, port, *, protocol=2, db=0):
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        self._id = None
        if protocol == 3:
            self.call("HELLO", 3)
        if db:
            self.call("SELECT", db)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @property
    def id(self):
        """The server's number of this connection, asked for once (so: before the connection waits)."""
        if self._id is None:
            self._id = self.call("CLIENT", "ID")
        return self._id

    def fileno(self):
        """For select."""
        return self._socket.fileno()

    def send(self, *words):
        """Send one command; returns self, so that a connection can be opened and wait in one line."""
        self._socket.sendall(encoded(words))
        return self

    def send_all(self, *commands):
        """Send several commands in one write, so that the server reads them in one turn."""
        self._socket.sendall(b"".join(encoded(words) for words in commands))
        return self

    def call(self, *words, within_s=HANG_S):
        """Send one command and return its reply."""
        return self.send(*words).reply(within_s)

    def call_all(self, *commands, within_s=HANG_S):
        """Send several commands in one write and return their replies."""
        self.send_all(*commands)
        return [self.reply(within_s) for _ in commands]

    def reply(self, within_s=HANG_S):
        """The next reply. TimeoutError when none comes, Closed when none can come any more."""
        deadline = time.monotonic() + within_s
        while True:
            reply, end = _parse(self._buffer, 0)
            if end is not None:
                del self._buffer[:end]
                return reply
            self._receive(deadline)

    def only_reply(self, within_s=HANG_S):
        """The next reply, after which no other has come: an echo sent now is answered next."""
        reply = self.reply(within_s)
        mark = b"mark %d" % time.monotonic_ns()
        next_reply = self.call("ECHO", mark)
        assert next_reply == mark, f"a second reply: {next_reply!r} after {reply!r}"
        return reply

    def has_reply(self):
        """Whether anything has come that was not read yet."""
        return bool(self._buffer) or self._readable(0)

    def close(self):
        """Close in good order."""
        self._socket.close()

    def abort(self):
        """Close as a crash does: with a TCP reset."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def _readable(self, within_s):
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(within_s * 1000))

    def _receive(self, deadline):
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not self._readable(left_s):
            raise TimeoutError(f"no reply in time; so far: {bytes(self._buffer)!r}")
        try:
            chunk = self._socket.recv(1 << 20)
        except ConnectionResetError:
            chunk = b""
        if not chunk:
            raise Closed
        self._buffer += chunk


def _parse(buffer, start):
    """The reply at `start` and where it ends; the end is None while it has not come whole."""
    line_end = buffer.find(b"\r\n", start)
    if line_end < 0:
        return None, None
    kind, line, at = buffer[start : start + 1], bytes(buffer[start + 1 : line_end]), line_end + 2
    if kind == b":":
        return int(line), at
    if kind == b"+":
        return line.decode(), at
    if kind == b"-":
        return Refused(line.decode(errors="replace")), at
    if kind == b"_":
        return None, at
    if kind in b"#,":
        return (line == b"t" if kind == b"#" else float(line)), at
    size = int(line)
    if size < 0:
        return None, at
    if kind in b"$=":
        return (bytes(buffer[at : at + size]), at + size + 2) if len(buffer) >= at + size + 2 else (None, None)
    items = []
    for _ in range(size * 2 if kind == b"%" else size):
        item, at = _parse(buffer, at)
        if at is None:
            return None, None
        items.append(item)
    return (dict(zip(items[::2], items[1::2], strict=True)) if kind == b"%" else items), at


class Lines:
    """The connections of one test to one server, closed at its end, and one more to ask the server with."""

    def __init__(self, port):
        self.port = port
        self._lines = []
        self.control = self.open()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Close every connection."""
        for line in self._lines:
            line.close()

    def drain(self):
        """Close all connections but the one to ask with, and wait until the server has no waiters."""
        for line in self._lines:
            if line is not self.control:
                line.close()
        eventually(lambda: (self.count("waiters"), self.blocked()), (0, 0))

    def open(self, **kwargs):
        """A new connection."""
        line = Line(self.port, **kwargs)
        self._lines.append(line)
        return line

    def queue(self, key, owner, ttl_ms, wait_ms, *options, **kwargs):
        """A new connection that waits for the lock, once the server has counted its wait, which may be over by then."""
        return self._blocking("waits", ("FENCELOCK.ACQUIRE", key, owner, ttl_ms, "WAIT", wait_ms, *options), kwargs)

    def awaiting(self, key, fence, ms, **kwargs):
        """A new connection that awaits the end of a hold, once the server has counted that, which may be over by then."""
        return self._blocking("awaits", ("FENCELOCK.AWAIT", key, fence, ms), kwargs)

    def _blocking(self, counter, words, kwargs):
        line = self.open(**kwargs)
        # Asked for now, because the connection is about to block.
        assert line.id
        before = self.count(counter)
        line.send(*words)
        # The counter is of all connections.
        eventually(lambda: self.count(counter) > before and (self._is_blocked(line) or line.has_reply()))
        return line

    def _is_blocked(self, line):
        return re.search(rb" flags=\S*b", self.control.call("CLIENT", "LIST", "ID", line.id)) is not None

    def stats(self, *key):
        """STATS as a dict, or None when the name is not counted."""
        told = self.control.call("FENCELOCK.STATS", *key)
        if told is None:
            return None
        return {name.decode(): value for name, value in zip(told[::2], told[1::2], strict=True)}

    def count(self, name):
        """One number of STATS."""
        return self.stats()[name]

    def blocked(self):
        """How many clients are blocked, as the server itself counts them."""
        return self.info("clients")["blocked_clients"]

    def memory(self):
        """The bytes that the server has in use."""
        return self.info("memory")["used_memory"]

    def info(self, section):
        """The integers of a section of INFO."""
        lines = self.control.call("INFO", section).decode().splitlines()
        pairs = (line.partition(":")[::2] for line in lines if ":" in line)
        return {name: int(value) for name, value in pairs if value.isdigit()}
