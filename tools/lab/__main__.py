"""`python -m lab [--quick] [--only EXPERIMENT]`: run all experiments, several at once, and write results.json.

Ends with status 1 when claim first lost an update, a loss has no explanation, or a fault came out otherwise than it must.
"""

import argparse
import concurrent.futures
import gzip
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import redis

from harness import PostgresServer, RedisServer, places

from . import calls, delays, faults, lost_commits, report
from .locks import MODES, PostgresAlone
from .updates import Job, run

SEED = 20261129
# Runs at a time, each on its own servers with its own workers: they sleep nearly all the time.
AT_ONCE = 4


def jobs(seed, repeats, quick):
    """All runs of the lost-update experiments, the long ones first. The plan of stalls depends on the seed alone."""
    experiments = [
        ("overlap", {"sections": 200 if quick else 2_000, "stalling": 0.05, "work_ms": 100, "stall_ms": (100, 300)}),
        (
            "set",
            {
                "sections": 15 if quick else 100,
                "workers": 5,
                "lease_ms": 2_000,
                "work_ms": 1_000,
                "resource": "set",
                "trouble": "pauses",
            },
        ),
        *(
            (f"stalls {100 * share:g}%", {"sections": 1_000 if quick else 10_000, "stalling": share})
            for share in (0.05, 0.01, 0.001)
        ),
        (
            "failover",
            {"sections": 80 if quick else 400, "work_ms": 100, "trouble": "failovers", "trouble_every_s": 3.0},
        ),
    ]
    return [
        Job(experiment, mode, f"{seed}/{repeat}", **parameters)
        for experiment, parameters in experiments
        for repeat in range(1, repeats + 1)
        for mode in MODES
        # Where PostgreSQL grants the leases, there is no other lock server to fail over.
        if not (MODES[mode].servers is PostgresAlone and parameters.get("trouble") == "failovers")
    ]


def main():
    """Run everything; the exit status."""
    options = _options()
    repeats = 1 if options.quick else options.repeats
    print(f"seed {options.seed}, {repeats} repeats, {options.at_once} runs at once", flush=True)
    results = {"seed": options.seed, "quick": options.quick, "repeats": repeats, "at_once": options.at_once, **_machine()}
    began = time.time()
    if not options.only:
        # Alone on the machine, as far as this program is concerned: these measure milliseconds.
        results["calls"] = calls.measure(20 if options.quick else 2_000)
        results["delays"] = _delays(options)
        results["faults"] = faults.run()
        print(f"delays and faults: {time.time() - began:.0f} s", flush=True)
        results["lost commits"] = _lost_commits(options)
        print(f"fail-overs of PostgreSQL: {time.time() - began:.0f} s", flush=True)
    chosen = [job for job in jobs(options.seed, repeats, options.quick) if options.only in ("", job.experiment)]
    results["runs"], results["failed"] = [], []
    with concurrent.futures.ProcessPoolExecutor(options.at_once) as pool:
        running = [pool.submit(_run, job, options.events) for job in chosen]
        for ready in concurrent.futures.as_completed(running):
            if (error := ready.exception()) is not None:
                results["failed"].append(repr(error))
                print(f"FAILED: {error!r}", flush=True)
                continue
            _say(ready.result())
            results["runs"].append(ready.result())
    results["seconds"] = round(time.time() - began)
    results["runs"].sort(key=lambda one: (one["experiment"], list(MODES).index(one["mode"]), one["seed"]))
    print(f"\n{report.text(results)}\n\nevent logs: {options.events}")
    if not options.only:
        _write(options.out / "results.json", results)
        print(f"{options.out / 'results.json'}: {results['seconds']} s")
    wrong = report.broken_promises(results)
    for line in wrong:
        print(f"NOT SO: {line}", file=sys.stderr)
    return 1 if wrong else 0


def _options():
    parser = argparse.ArgumentParser(prog="python -m lab", description=sys.modules["lab"].__doc__)
    parser.add_argument("--quick", action="store_true", help="one short run of each")
    parser.add_argument("--only", default="", metavar="EXPERIMENT", help="its runs alone; no results.json")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="runs at a time, each on servers of its own")
    parser.add_argument("--out", type=Path, default=places.TARGET / "lab", help="where results.json goes")
    parser.add_argument("--events", type=Path, default=places.TARGET / "lab" / "events", help="where the event logs go")
    options = parser.parse_args()
    for folder in (options.out, options.events):
        folder.mkdir(parents=True, exist_ok=True)
    return options


def _delays(options):
    load = os.getloadavg()
    measured = delays.measure(options.seed, *((20, 3) if options.quick else (200, 25)))
    return {**measured, "load": [round(one, 1) for one in (load[0], os.getloadavg()[0])]}


def _lost_commits(options):
    measured = lost_commits.measure(options.seed, *((1, 8) if options.quick else (options.repeats, 30)))
    return {"date": time.strftime("%Y-%m-%d", time.gmtime()), "commit": _commit(), "runs": measured}


def _run(job, events):
    """One run; its event log goes into a file, one line for each attempt, trouble and loss."""
    result, log = run(job)
    name = f"{job.experiment} {job.mode} {job.seed}".replace(" ", "-").replace("/", "-").replace("%", "")
    with gzip.open(events / f"{name}.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(event) + "\n" for event in log)
    return result


def _say(result):
    print(
        "{experiment:12} {mode:12} seed {seed}: {sections} sections, {stalls} stalls, {rejected} rejected, {lost} lost"
        " {causes} in {seconds} s, load {load}".format(**result),
        flush=True,
    )


def _write(path, results):
    """One line for each fact and each run."""
    runs = ",\n".join(f"  {json.dumps(one)}" for one in results["runs"])
    facts = [f" {json.dumps(name)}: {json.dumps(fact)}" for name, fact in results.items() if name != "runs"]
    unfinished = path.with_suffix(".new")
    unfinished.write_text("{\n" + ",\n".join([*facts, f' "runs": [\n{runs}\n ]']) + "\n}\n")
    unfinished.replace(path)


def _machine():
    """What it ran on, and with what."""
    cpus = [line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    server, postgres = RedisServer().start(), PostgresServer().start()
    try:
        with redis.Redis(port=server.port) as client, psycopg.connect(postgres.url()) as db:
            servers = {
                "redis": client.info("server")["redis_version"],
                "postgres": db.execute("SHOW server_version").fetchone()[0].split()[0],
            }
    finally:
        server.close()
        postgres.close()
    return {
        "machine": f"{len(cpus)} x {cpus[0] if cpus else platform.machine()}, {memory / 2**30:.0f} GiB",
        "kernel": platform.release().split("-")[0],
        "versions": {
            "python": platform.python_version(),
            "redis-py": redis.__version__,
            "psycopg": psycopg.__version__,
            **servers,
        },
        "module": hashlib.sha256(places.MODULE.read_bytes()).hexdigest(),
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def _commit():
    """The commit of the checkout, or nothing outside of one."""
    command = ["git", "-C", str(places.ROOT), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.strip()
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
