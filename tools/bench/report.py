"""Writes what was measured: JSON with everything, a Markdown table, and small charts."""

import contextlib
import datetime
import json
import os
import platform
import re
from pathlib import Path

from harness import PostgresServer, RedisServer, places

from . import charts, redis_works


def line(record):
    """One result as a line of text."""
    limit = "" if record["target"] is None else f" ({_limit(record)})"
    return f"{record['verdict']:8} {record['ratio']:8.3f}{limit} {record['name']}, {record['unit']}"


def write(folder, part, machine, records, minutes):
    """JSON, a table and the charts of a part, in the folder."""
    found = {"minutes": round(minutes), **machine}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{part}.json").write_text(json.dumps({**found, "works": records}, indent=1) + "\n")
    (folder / f"{part}.md").write_text(_table(found, records))
    charts.write(folder, part, records)


def machine(part):
    """The day, the machine and the versions of what a part runs on."""
    cpu = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = int(re.search(r"^MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE)[1])
    return {
        "when": datetime.date.today().isoformat(),
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 1024**2),
        "kernel": platform.release(),
        # What else ran: above the number of cores, times say little.
        "load_before": round(os.getloadavg()[1], 1),
        "servers": list(_versions(part)),
    }


def _versions(part):
    if part != "redis":
        yield from map(_postgres_version, places.MAJORS if part in ("postgres", "leases") else places.MAJORS[:1])
    if part != "postgres":
        yield from _redis_versions(redis_works.servers(quick=part != "redis"))


def _redis_versions(names):
    for name in names:
        with redis_works.started_by_default(name), contextlib.closing(RedisServer().start()) as server:
            told = dict(line.split(":", 1) for line in server.cli("INFO", "server").splitlines() if ":" in line)
        product = "valkey" if "valkey_version" in told else "redis"
        yield f"{product} {told[f'{product}_version'].strip()}"


def _postgres_version(major):
    with contextlib.closing(PostgresServer(major).start()) as server:
        return f"postgresql {server.psql('SHOW server_version')}"


def _limit(record):
    sign = "≥" if record["at_least"] else "≤"
    stretch = "" if record["stretch"] is None else f", {record['stretch']:g}"
    return f"{sign} {record['target']:g}{stretch}"


def _table(found, records):
    lines = [
        f"{found['when']}, {found['minutes']} minutes; {found['cpu']}, {found['cores']} cores, {found['memory_gib']} GiB,",
        f"Linux {found['kernel']}, load {found['load_before']} before; {', '.join(found['servers'])}.",
        "",
        "| work | unit | target, stretch | ratio (rounds: lowest to highest) | |",
        "|---|---|---|---|---|",
    ]
    for record in records:
        limit = "-" if record["target"] is None else _limit(record)
        ratio = f"**{record['ratio']:.3f}**"
        if len(record["ours"]) > 1:
            ratio += f" ({len(record['ours'])}: {record['lowest']:.3f} to {record['highest']:.3f})"
        lines.append(f"| {record['name']} | {record['unit']} | {limit} | {ratio} | {record['verdict']} |")
    return "\n".join(lines) + "\n"
