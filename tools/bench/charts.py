"""Small charts of what was measured: one question each, our bar among those of the peers and the floor.

All bars of a chart are ratios to one peer, the line at 1. A bar of another peer is computed from two ratios of ours that
were measured in the same run: ours to the line, and ours to that peer. The tables have every figure; the charts do not.
`python -m bench.charts` draws them anew from what is kept here.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from . import drawing

HERE = Path(__file__).parent
OURS, PEER, FLOOR = "ours", "peer", "floor"
_REDIS = ("Redis 7.0", "Redis 8.2", "Valkey 9.1")
_PIPELINED = ", -P 16, no persistence"


@dataclass(frozen=True)
class Bar:
    """A bar: its group, its label, whose it is, and the names of the works that give it.

    work: ours against the line, or for a floor the floor against the line; None for a bar of the line itself. against: ours
    against the peer that the bar is of; None when the bar is the ratio of `work` itself.
    """

    group: str
    label: str
    whose: str
    work: str | None
    against: str | None = None


@dataclass(frozen=True)
class Chart:
    """A chart: the file's name, the question that it answers, what is at 1, and the unit of its works."""

    name: str
    question: str
    line: str
    unit: str
    bars: tuple


def _of(groups, make):
    return tuple(bar for group in groups for bar in make(group))


def _acquire_and_release(server):
    against, end = "ACQUIRE + RELEASE against ", f", {server}{_PIPELINED}"
    line = f"{against}SET NX PX + DEL{end}"
    return (
        Bar(server, "a module's empty call", FLOOR, f"floor: CHECK of an absent key against SET NX PX + DEL{end}"),
        Bar(server, "ACQUIRE + RELEASE", OURS, line),
        Bar(server, "SET NX PX + compare-and-delete in Lua", PEER, line, f"{against}SET NX PX + compare-and-delete in Lua{end}"),
        Bar(server, "a script with a lock and a counter", PEER, line, f"{against}the two-key script{end}"),
    )


def _busy(server):
    end = f", {server}{_PIPELINED}"
    return (
        Bar(server, "a module's empty call", FLOOR, f"floor: CHECK of an absent key against GET{end}"),
        Bar(server, "ACQUIRE of a busy lock", OURS, f"ACQUIRE of a busy lock against GET{end}"),
        Bar(server, "SET NX PX of a stored key", PEER, f"floor: SET NX PX of a stored key against GET{end}"),
    )


def _extend(server):
    end = f", {server}{_PIPELINED}"
    line = f"EXTEND against PEXPIRE{end}"
    return (
        Bar(server, "EXTEND", OURS, line),
        Bar(server, "PEXPIRE, whoever holds the lock", PEER, None),
        Bar(server, "compare-and-extend in Lua", PEER, line, f"EXTEND against compare-and-extend in Lua{end}"),
    )


def _memory(server):
    return (
        Bar(server, "a lock of the module", OURS, f"bytes per held lock against the two-key script, 1,000,000 locks, {server}"),
        Bar(server, "a lock string and a counter", PEER, None),
    )


def _longest_wait(server):
    def against(poll_ms):
        return f"128 clients on one lock, all at one moment, one turn each, against Lua polled every {poll_ms} ms, {server}"

    return (
        Bar(server, "ACQUIRE with WAIT", OURS, against(5)),
        Bar(server, "a script, polled every 5 ms", PEER, None),
        Bar(server, "a script, polled every 100 ms", PEER, against(5), against(100)),
    )


def _row(major):
    against, end = "claim + update against ", f", {major}"
    line = f"{against}hand-written prepared statements{end}"
    return (
        Bar(major, "fenced_claim + fenced_update", OURS, line),
        Bar(major, "two prepared statements by hand", PEER, None),
        Bar(major, "a PL/pgSQL function for this table", PEER, line, f"{against}one PL/pgSQL function per table{end}"),
        Bar(major, "a PL/pgSQL function for any table", PEER, line, f"{against}a generic PL/pgSQL version{end}"),
    )


def _lease(major):
    against, end = "acquire + release against ", f", {major}"
    line = f"{against}upsert + UPDATE, one lock{end}"
    return (
        Bar(major, "fencelock_acquire + fencelock_release", OURS, line),
        Bar(major, "an upsert with an expiry + UPDATE", PEER, None),
        Bar(major, "an upsert with an expiry + DELETE", PEER, line, f"{against}upsert + DELETE, one lock{end}"),
        Bar(major, "pg_advisory_lock + unlock, no lease", PEER, line, f"{against}pg_advisory_lock + unlock{end}"),
    )


def _protocol(workers):
    against = f"the whole protocol, {workers} against "
    line = f"{against}the two-key script and two statements"
    return (
        Bar("", "ACQUIRE, claim, update, RELEASE", OURS, line),
        Bar("", "a script with a lock and a counter", PEER, None),
        Bar("", "redis-py's Lock, no fence", PEER, line, f"{against}redis-py's Lock and two statements, unfenced"),
        Bar("", "an advisory lock, no fence", PEER, line, f"{against}an advisory lock and two statements, unfenced"),
    )


_TWO_STATEMENTS = "a script with a lock and a counter, two statements"
CHARTS = {
    "redis": (
        Chart(
            "redis-grant",
            "What does it cost the server to grant and release a lock?",
            "SET NX PX + DEL, without owner or fence",
            "CPU",
            _of(_REDIS, _acquire_and_release),
        ),
        Chart("redis-busy", "What does it cost to find a lock busy?", "GET", "CPU", _of(_REDIS, _busy)),
        Chart("redis-extend", "What does it cost to renew a lease?", "PEXPIRE", "CPU", _of(_REDIS, _extend)),
        Chart(
            "redis-wait",
            "How long does the last of 128 clients wait for one lock?",
            "a script with a lock and a counter, polled every 5 ms",
            "longest wait",
            _of(_REDIS, _longest_wait),
        ),
        Chart(
            "redis-memory",
            "How much memory does each of a million held locks take?",
            "a lock string and a counter",
            "memory",
            _of(_REDIS, _memory),
        ),
    ),
    "postgres": (
        Chart(
            "postgres-row",
            "What does it cost to claim and update a row?",
            "two prepared statements written by hand",
            "instructions",
            _of(("PostgreSQL 18", "PostgreSQL 15"), _row),
        ),
    ),
    "leases": (
        Chart(
            "leases-grant",
            "What does it cost PostgreSQL to grant and release a lease?",
            "an upsert with an expiry + UPDATE",
            "instructions",
            _of(("PostgreSQL 18",), _lease),
        ),
    ),
    "protocol": (
        Chart(
            "protocol-alone",
            "How long does one worker take for a whole section?",
            _TWO_STATEMENTS,
            "time",
            _protocol("one worker,"),
        ),
        Chart(
            "protocol-contended",
            "How long do 16 workers on one lock take for their sections?",
            _TWO_STATEMENTS,
            "time",
            _protocol("16 workers on one lock,"),
        ),
    ),
}


def write(folder, part, records):
    """The charts of a part for which there is something to show, as SVG files in the folder."""
    for chart in CHARTS.get(part, ()):
        bars = values(chart, records)
        if bars:
            picture = drawing.bars(chart.question, f"{chart.unit}; 1 = {chart.line}; less is better", bars)
            (Path(folder) / f"{chart.name}.svg").write_text(picture)


def values(chart, records):
    """The bars that were measured: group, label, whose, ratio to the line. None when no other than the line's own was."""
    ratios = {record["name"]: record["ratio"] for record in records if record["unit"] == chart.unit}
    found = []
    for bar in chart.bars:
        ratio = ratios.get(bar.work) if bar.work else 1.0
        other = ratios.get(bar.against) if bar.against else 1.0
        if ratio is not None and other is not None:
            found.append((bar.group, bar.label, bar.whose, ratio / other))
    measured = {bar.group for bar in chart.bars if bar.work in ratios}
    return [one for one in found if one[0] in measured]


if __name__ == "__main__":
    for part in CHARTS:
        write(HERE, part, json.loads((HERE / f"{part}.json").read_text())["works"])
