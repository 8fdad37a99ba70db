"""The picture of a run of the demo: SVG, from what happened and when. Standard library only.

Each act is a strip with two timelines. Time runs to the right, stretched where much happens at once, so every event
carries its time. The bars are leases as Redis had them.
"""

import time
from xml.sax.saxutils import escape

WIDTH = 1120
LEFT, RIGHT = 70, WIDTH - 50
STRIP = 232
TOP = 96
LANES = {"A": 70, "B": 146}
# How far events must be apart: in one lane by the width of a label, in two by what the eye can separate.
SAME_LANE, ANY_LANE = 92, 26

GREEN, RED, AMBER, INK, GREY = "#1a7f37", "#cf222e", "#9a6700", "#1f2328", "#59636e"

# What an event is called, and its colour.
_WORDS = {
    "granted": ("fence {}", GREEN),
    "busy": ("busy", AMBER),
    "reads": ("reads {}", INK),
    "claims": ("claims, reads {}", INK),
    "stalls": ("stalls", AMBER),
    "wakes": ("wakes up", AMBER),
    "writes": ("writes {}", GREEN),
    "refused": ("{} is refused", RED),
    "released": ("releases", INK),
    "too late": ("too late", RED),
    "ran out": ("lease over", RED),
}


class Act:
    """What happened in one act, by time."""

    def __init__(self, title, lease_s):
        self.title = title
        self.events = []
        self.counter = self.moral = None
        self._lease_s = lease_s
        self._began = time.monotonic()
        self._until = {}

    def note(self, who, kind, label="", since=None):
        """Note an event now. The end of a lease that expired before it is noted at its own time.

        since: when the command that granted a lease was begun; the lease lasts from then, if not a little longer.
        """
        now = time.monotonic() - self._began
        self._run_out(now)
        if kind == "granted":
            self._until[who] = since - self._began + self._lease_s
        elif kind == "released":
            self._until.pop(who, None)
        self.events.append((now, who, kind, label))

    def end(self, counter, moral):
        """The act is over, and the counter holds this."""
        self.counter, self.moral = counter, moral

    def _run_out(self, now):
        for who, until in list(self._until.items()):
            if until <= now:
                self.events.append((until, who, "ran out", ""))
                del self._until[who]
        self.events.sort(key=lambda event: event[0])


def draw(acts):
    """The picture of all acts."""
    height = TOP + STRIP * len(acts)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
        ' font-family="-apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="12">',
        "<title>Two workers, three ways to write: only claim first keeps both increments</title>",
        f'<defs><pattern id="stall" width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        f'<rect width="8" height="8" fill="#fff8c5"/><rect width="3" height="8" fill="#eac54f"/></pattern></defs>',
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8" fill="#ffffff" stroke="#d1d9e0"/>',
        _text(24, 36, "Two workers each add 1 to a counter; A stalls past its lease", INK, 'font-size="20" font-weight="600"'),
        _text(24, 58, "A real run. Times in seconds, stretched where much happens at once. Fences by their last digits.", GREY),
        *_legend(24, 76),
    ]
    for number, act in enumerate(acts):
        parts.append(f'<g transform="translate(0 {TOP + number * STRIP})">{"".join(_strip(act))}</g>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _strip(act):
    at = _places(act.events)
    good = act.counter == 2
    yield f'<line x1="0" x2="{WIDTH}" y1="0" y2="0" stroke="#d1d9e0"/>'
    yield _text(24, 30, act.title, INK, 'font-size="15" font-weight="600"')
    for who, y in LANES.items():
        yield _text(34, y + 5, who, INK, 'font-size="16" font-weight="600"')
        yield f'<line x1="{LEFT - 14}" x2="{RIGHT + 30}" y1="{y}" y2="{y}" stroke="#d1d9e0" stroke-width="2"/>'
        yield from _bars(act.events, at, who, y)
    for (when, who, kind, label), x in zip(act.events, at):
        words, colour = _WORDS[kind]
        y = LANES[who]
        yield _mark(x, y, colour, crossed=kind in ("refused", "too late", "ran out"))
        yield _text(x, y + 24, words.format(label), colour, 'text-anchor="middle"')
        yield _text(x, y + 38, f"{when:.2f}", GREY, 'text-anchor="middle" font-size="10"')
    colour = GREEN if good else RED
    ends = f"The counter is {act.counter}. {act.moral}"
    yield _text(24, STRIP - 18, ends, colour, 'font-size="14" font-weight="600"')


def _mark(x, y, colour, crossed):
    """A dot, or a cross for what must not rely on its colour alone."""
    dot = f'<circle cx="{x}" cy="{y}" r="5" fill="{colour}" stroke="#ffffff"/>'
    cross = f'<path d="M{x - 5} {y - 5} l10 10 m0 -10 l-10 10" stroke="{colour}" stroke-width="3" fill="none"/>'
    return cross if crossed else dot


def _bars(events, at, who, y):
    """Leases, and what a worker does that has none: a stall, and going on after the lease."""
    lease = stall = None
    for (_, whose, kind, _), x in zip(events, at):
        if whose != who:
            continue
        if kind == "granted":
            lease = x
        elif kind in ("released", "ran out") and lease is not None:
            yield f'<rect x="{lease}" y="{y - 16}" width="{x - lease}" height="12" rx="3" fill="{GREEN}" opacity="0.75"/>'
            lease = None
        if kind == "stalls":
            stall = x
        elif kind == "wakes":
            yield f'<rect x="{stall}" y="{y - 4}" width="{x - stall}" height="8" fill="url(#stall)"/>'


def _places(events):
    """An x for each event: in order, apart, and otherwise as the time goes."""
    last_in_lane, last, places = {}, LEFT - ANY_LANE, []
    for _, who, _, _ in events:
        last = max(last + ANY_LANE, last_in_lane.get(who, LEFT - SAME_LANE) + SAME_LANE)
        last_in_lane[who] = last
        places.append(last)
    spare = max(0, RIGHT - last)
    waits = [0, *(later[0] - earlier[0] for earlier, later in zip(events, events[1:]))]
    # What is left of the width goes to the waits, by their length.
    gone, placed = 0.0, []
    for place, wait in zip(places, waits):
        gone += wait
        placed.append(round(place + spare * gone / (sum(waits) or 1), 1))
    return placed


def _legend(x, y):
    yield f'<rect x="{x}" y="{y - 9}" width="26" height="10" rx="3" fill="{GREEN}" opacity="0.75"/>'
    yield _text(x + 32, y, "lease", GREY)
    yield f'<rect x="{x + 84}" y="{y - 8}" width="26" height="8" fill="url(#stall)"/>'
    yield _text(x + 116, y, "stall", GREY)


def _text(x, y, text, colour, more=""):
    return f'<text x="{x}" y="{y}" fill="{colour}" {more}>{escape(text)}</text>'
