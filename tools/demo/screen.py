"""How the demo is shown: plain text, or in a terminal the two workers side by side while it happens.

Decides nothing of the story. In a terminal every row has the time since the act began, and each worker's bar shows
whether its lease is running, is gone while the worker goes on, or was never taken. A line with both workers' state moves
while nobody says anything.
"""

import os
import shutil
import sys
import textwrap
import time

# Two lanes side by side hold the longest word of a command in this many columns.
NARROWEST = 96
FRAME_S = 0.1

_GREEN, _RED, _YELLOW, _DIM, _BOLD, _OFF = "\x1b[32m", "\x1b[31m", "\x1b[33m", "\x1b[2m", "\x1b[1m", "\x1b[0m"
_BARS = "█!?│" if "utf" in (sys.stdout.encoding or "").lower() else "#!?|"
_HOLDS, _LOST, _ASKS, _NONE = _BARS
_COLOURS = (_GREEN, _RED, _YELLOW, _DIM, _BOLD, _OFF)


def choose():
    """Timelines in a terminal that is wide enough and can move its cursor, else plain text."""
    columns = shutil.get_terminal_size().columns
    capable = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return Timelines(columns) if capable and columns >= NARROWEST else Plain()


class Plain:
    """One thing after the other; A$ and B$ say who."""

    def text(self, *lines):
        """Lines of the narrator."""
        for line in lines:
            print(line, flush=True)

    def act(self, title):
        """The heading of an act."""
        self.text("", f"=== {title}", "")

    def begin(self, lease_s):
        """The workers begin; a lease lasts this long."""

    def command(self, who, command):
        """A command that somebody runs."""
        self.text(f"{who}$ {command}")

    def reply(self, who, said):
        """What it answered."""
        self.text("\n".join(f"   {line}".rstrip() for line in said.splitlines()))

    def say(self, who, text):
        """What happens, in words."""
        self.text(f"   ({text})")

    def note(self, who, kind, since):
        """Something changed in a worker's state: granted (by a command begun at `since`), stalls, wakes, released ..."""

    def wait(self):
        """Nothing happens just now."""


class Timelines(Plain):
    """Two lanes, A's and B's."""

    def __init__(self, columns):
        self._lane = (min(columns, 180) - len("  0.00 s ") - 2 * len("| ") - 1) // 2
        self._colour = "NO_COLOR" not in os.environ
        self._workers = {}
        self._moving = False
        self.text(f"{_HOLDS} its lease is running   {_LOST} it has run out, and the worker goes on   {_ASKS} asks for the lock", "")

    def text(self, *lines):
        self._still()
        for line in lines:
            colour = _RED if line.startswith(("--> NOT", "THE STORY")) else _BOLD if line.startswith(("-->", "===")) else ""
            print(self._paint(f"{colour}{line}{_OFF if colour else ''}"), flush=True)

    def begin(self, lease_s):
        self._workers = {name: _State(lease_s) for name in "AB"}
        self._began = time.monotonic()
        titles = "".join(f"{_BOLD}{'  worker ' + name:<{self._lane + 2}}{_OFF}" for name in self._workers)
        self.text("", self._paint(f"{'':9}{titles}"))

    def command(self, who, command):
        self._rows(who, f"{who}$ {command}", _BOLD)

    def reply(self, who, said):
        for line in said.splitlines():
            self._rows(who, f"   {line}".rstrip(), "")

    def say(self, who, text):
        colour = _RED if text.startswith("NOT SO") else _DIM
        if who:
            self._rows(who, f"({text})", colour)
        else:
            self.text(f"{'':9}{colour}({text}){_OFF}")

    def note(self, who, kind, since):
        self._workers[who].note(kind, since)

    def wait(self):
        """Draw the moving line anew."""
        now = time.monotonic()
        states = [self._cell(state, state.words(now), _YELLOW, now) for state in self._workers.values()]
        print(self._paint(f"\r{now - self._began:6.2f} s {' '.join(states)}"), end="", flush=True)
        self._moving = True

    def _still(self):
        """Remove the moving line."""
        if self._moving:
            print("\r\x1b[2K", end="")
            self._moving = False

    def _rows(self, who, text, colour):
        """Text in a worker's lane, beside the other's bar; without a worker over both."""
        if who not in self._workers:
            return self.text(text)
        self._still()
        now = time.monotonic()
        stamp = f"{now - self._began:6.2f} s"
        for line in textwrap.wrap(text, self._lane, subsequent_indent="   ", drop_whitespace=False) or [""]:
            cells = [
                self._cell(state, line if name == who else "", colour, now) for name, state in self._workers.items()
            ]
            print(self._paint(f"{stamp} {' '.join(cells)}").rstrip(), flush=True)
            stamp = " " * len(stamp)

    def _cell(self, state, text, colour, now):
        bar, bar_colour = state.bar(now)
        return f"{bar_colour}{bar}{_OFF} {colour}{text[: self._lane]:<{self._lane}}{_OFF}"

    def _paint(self, text):
        if self._colour:
            return text
        for colour in _COLOURS:
            text = text.replace(colour, "")
        return text


class _State:
    """What a worker is up to: its lease as Redis has it, and what the worker believes."""

    def __init__(self, lease_s):
        self._lease_s = lease_s
        self._until = self._woke = None
        self._asks = self._stalls = False

    def note(self, kind, since):
        if kind == "granted":
            self._until, self._asks = since + self._lease_s, False
        elif kind in ("released", "too late"):
            self._until = None
        elif kind == "busy":
            self._asks = True
        elif kind in ("stalls", "wakes"):
            self._stalls = kind == "stalls"

    def bar(self, now):
        """A sign and its colour."""
        if self._until is None:
            return (_ASKS, _YELLOW) if self._asks else (_NONE, _DIM)
        return (_HOLDS, _GREEN) if now < self._until else (_LOST, _RED)

    def words(self, now):
        """The state in words, for the moving line."""
        if self._asks:
            return "asks for the lock again and again"
        left = max(0.0, (self._until or now) - now)
        lease = f"lease: {left:.1f} s left" if left else "its lease has run out" if self._until else ""
        return "; ".join(filter(None, ("stalled" if self._stalls else "", lease)))
