"""A server process of the harness: how it starts, stops and ends, whichever program it runs.

Knows nothing of Redis or PostgreSQL. Invariant: it listens on a port that was free, and on the same one for as long as
the object lives.
"""

import signal
import weakref

from .process import PORT_ATTEMPTS, START_WITHIN_S, PortTaken, ServerFailed, end, free_port, kill_with_children, tail
from .waiting import eventually


class Server:
    """One process, its folder and its log.

    A subclass says how to run it (`_run`), and when it is ready (`_is_ready`); `_name`, `_stop_signal` and `_port_taken`
    are its own where they differ.
    """

    _name = "server"
    _stop_signal = signal.SIGTERM
    # What it writes to its log when another process has the port.
    _port_taken = b"Address already in use"

    def __init__(self, log, remains):
        self.port = None
        self._log = log
        self._remains = remains
        self._finalizer = weakref.finalize(self, remains.remove)

    @property
    def pid(self):
        """The pid of the running process, or None."""
        process = self._remains.process
        return process.pid if process and process.poll() is None else None

    def start(self, *, detached=False):
        """Start on a free port (on the same one again after a stop or kill) and wait until it is ready.

        detached: it outlives this process.
        """
        if self.pid:
            raise ServerFailed("it runs already")
        if self.port is not None:
            return self._start(detached)
        for _ in range(PORT_ATTEMPTS):
            self.port = free_port()
            try:
                return self._start(detached)
            except PortTaken:
                continue
        raise ServerFailed(f"no free port in {PORT_ATTEMPTS} attempts")

    def stop(self):
        """Stop it in good order, and wait for its end."""
        if self._remains.process:
            end(self._remains.process, self._stop_signal)

    def kill(self):
        """SIGKILL for it and its children: what a power failure leaves of them."""
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

    def _run(self, detached):
        """Start the process on `port` and return it."""
        raise NotImplementedError

    def _is_ready(self, process, written):
        """Whether the server on the port is this very process and takes calls; `written` is what it has logged."""
        raise NotImplementedError

    def _start(self, detached):
        mark = self._log.stat().st_size if self._log.exists() else 0
        process = self._remains.process = self._run(detached)

        def is_ready():
            written = self._log.read_bytes()[mark:]
            if process.poll() is None:
                return self._is_ready(process, written)
            if self._port_taken in written:
                raise PortTaken
            raise ServerFailed(f"{self._name} ended with status {process.returncode}\n{tail(self._log)}")

        try:
            eventually(is_ready, within_s=START_WITHIN_S)
        except AssertionError:
            kill_with_children(process)
            raise ServerFailed(f"{self._name} was not ready in {START_WITHIN_S} s\n{tail(self._log)}") from None
        if detached:
            self._finalizer.detach()
        return self
