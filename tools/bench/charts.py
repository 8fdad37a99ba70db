"""Small charts of what was measured: one question each, our bar among those of the peers and the floor.

All bars of a chart are ratios to one peer, the line at 1. A bar of another peer is computed from two ratios of ours that
were measured in the same run: ours to the line, and ours to that peer. The tables have every figure; the charts do not.
"""

import html
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
OURS, PEER, FLOOR = "ours", "peer", "floor"
_COLOURS = {OURS: "#1a7f37", PEER: "#59636e", FLOOR: "#b6bec7"}
_REDIS = ("Redis 7.0", "Redis 8.2", "Valkey 9.1")
_PIPELINED = ", -P 16, no persistence"


@dataclass(frozen=True)
class Bar:
    """A bar: its label, whose it is, and the names of the works that give it.

    work: ours against the line, or for a floor the floor against the line. against: ours against the peer that the bar is
    of; None when the bar is the ratio of `work` itself.
    """

    label: str
    whose: str
    work: str
    against: str | None = None


@dataclass(frozen=True)
class Chart:
    """A chart: the file's name, the question that it answers, what is at 1, and the unit of its works."""

    name: str
    question: str
    line: str
    unit: str
    bars: tuple


def _of_redis(make):
    return tuple(bar for server in _REDIS for bar in make(server))


def _acquire_and_release(server):
    against, end = "ACQUIRE + RELEASE against ", f", {server}{_PIPELINED}"
    line = f"{against}SET NX PX + DEL{end}"
    return (
        Bar(f"{server}: a module's empty call", FLOOR, f"floor: CHECK of an absent key against SET NX PX + DEL{end}"),
        Bar(f"{server}: ACQUIRE + RELEASE", OURS, line),
        Bar(f"{server}: SET, compare-and-delete in Lua", PEER, line, f"{against}SET NX PX + compare-and-delete in Lua{end}"),
        Bar(f"{server}: a script with lock and counter", PEER, line, f"{against}the two-key script{end}"),
    )


def _busy(server):
    end = f", {server}{_PIPELINED}"
    return (
        Bar(f"{server}: a module's empty call", FLOOR, f"floor: CHECK of an absent key against GET{end}"),
        Bar(f"{server}: ACQUIRE of a busy lock", OURS, f"ACQUIRE of a busy lock against GET{end}"),
        Bar(f"{server}: SET NX PX of a stored key", PEER, f"floor: SET NX PX of a stored key against GET{end}"),
    )


def _extend(server):
    end = f", {server}{_PIPELINED}"
    line = f"EXTEND against PEXPIRE{end}"
    return (
        Bar(f"{server}: EXTEND", OURS, line),
        Bar(f"{server}: compare-and-extend in Lua", PEER, line, f"EXTEND against compare-and-extend in Lua{end}"),
    )


def _row(major):
    against, end = "claim + update against ", f", PostgreSQL {major}"
    line = f"{against}hand-written prepared statements{end}"
    return (
        Bar(f"{major}: fenced_claim + fenced_update", OURS, line),
        Bar(f"{major}: a PL/pgSQL function for this table", PEER, line, f"{against}one PL/pgSQL function per table{end}"),
        Bar(f"{major}: a generic PL/pgSQL function", PEER, line, f"{against}a generic PL/pgSQL version{end}"),
    )


def _protocol(workers):
    against = f"the whole protocol, {workers} against "
    line = f"{against}the two-key script and two statements"
    return (
        Bar("ACQUIRE, claim, update, RELEASE", OURS, line),
        Bar("redis-py's Lock, no fence", PEER, line, f"{against}redis-py's Lock and two statements, unfenced"),
        Bar("advisory lock, no fence", PEER, line, f"{against}an advisory lock and two statements, unfenced"),
    )


CHARTS = {
    "redis": (
        Chart(
            "redis-grant",
            "What does it cost the server to grant a lock and to release it?",
            "SET NX PX + DEL, without owner or fence",
            "CPU",
            _of_redis(_acquire_and_release),
        ),
        Chart("redis-busy", "What does it cost to find a lock busy?", "GET", "CPU", _of_redis(_busy)),
        Chart("redis-extend", "What does it cost to renew a lease?", "PEXPIRE, whoever holds it", "CPU", _of_redis(_extend)),
        Chart(
            "redis-memory",
            "How much memory does a held lock take, among a million?",
            "a lock string and a counter",
            "memory",
            tuple(
                Bar(server, OURS, f"bytes per held lock against the two-key script, 1,000,000 locks, {server}")
                for server in _REDIS
            ),
        ),
    ),
    "postgres": (
        Chart(
            "postgres-row",
            "What does it cost the backend to claim and update a row?",
            "two prepared statements written by hand",
            "instructions",
            (*_row(18), *_row(15)),
        ),
    ),
    "protocol": (
        Chart(
            "protocol-alone",
            "How long does a whole section take one worker?",
            "a script with lock and counter, two statements",
            "time",
            _protocol("one worker,"),
        ),
        Chart(
            "protocol-contended",
            "How long do the sections of 16 workers on one lock take?",
            "a script with lock and counter, two statements",
            "time",
            _protocol("16 workers on one lock,"),
        ),
    ),
}

_ROW, _LETTER, _BARS, _TOP = 22, 6.6, 320, 46


def write(folder, part, records):
    """The charts of a part for which there is something to show, as SVG files in the folder."""
    for chart in CHARTS.get(part, ()):
        bars = values(chart, records)
        if bars:
            (Path(folder) / f"{chart.name}.svg").write_text(_draw(chart, bars))


def values(chart, records):
    """The bars that were measured: label, whose, ratio to the line."""
    ratios = {record["name"]: record["ratio"] for record in records if record["unit"] == chart.unit}
    found = []
    for bar in chart.bars:
        ratio, other = ratios.get(bar.work), ratios.get(bar.against) if bar.against else 1.0
        if ratio is not None and other is not None:
            found.append((bar.label, bar.whose, ratio / other))
    return found


def _draw(chart, bars):
    names = _LETTER * max(len(label) for label, _, _ in bars) + 12
    longest = max(1.0, *(value for _, _, value in bars))
    scale = _BARS / longest
    height = _TOP + _ROW * len(bars) + 26
    width = max(names + _BARS + 60, _LETTER * (len(chart.question) + 8))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" font-family="sans-serif" font-size="12" fill="#1f2328">',
        f'<rect width="{width:.0f}" height="{height}" fill="white"/>',
        f'<text x="8" y="18" font-size="14" font-weight="bold">{html.escape(chart.question)}</text>',
        f'<text x="8" y="36" fill="#59636e">{html.escape(f"{chart.unit}; the line at 1: {chart.line}")}</text>',
    ]
    for number, (label, whose, value) in enumerate(bars):
        top = _TOP + number * _ROW
        weight = ' font-weight="bold"' if whose == OURS else ""
        parts.append(f'<text x="{names - 6:.0f}" y="{top + 15}" text-anchor="end"{weight}>{html.escape(label)}</text>')
        parts.append(
            f'<rect x="{names:.0f}" y="{top + 3}" width="{value * scale:.1f}" height="{_ROW - 6}" fill="{_COLOURS[whose]}"/>'
        )
        parts.append(f'<text x="{names + value * scale + 6:.0f}" y="{top + 15}"{weight}>{value:.2f}</text>')
    line = names + scale
    bottom = _TOP + _ROW * len(bars)
    parts.append(f'<line x1="{line:.1f}" x2="{line:.1f}" y1="{_TOP - 2}" y2="{bottom + 2}" stroke="#1f2328" stroke-dasharray="3 2"/>')
    x = names
    for whose in (OURS, PEER, FLOOR):
        if any(one == whose for _, one, _ in bars):
            parts.append(f'<rect x="{x:.0f}" y="{bottom + 8}" width="10" height="10" fill="{_COLOURS[whose]}"/>')
            parts.append(f'<text x="{x + 14:.0f}" y="{bottom + 17}">{whose}</text>')
            x += 70
    return "\n".join([*parts, "</svg>"]) + "\n"
