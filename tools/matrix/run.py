"""Runs the suite in the cells and writes down what was seen: `python3 -m matrix.run [CELL...]`, by `make test-matrix`.

One cell after the other, all of them whatever becomes of one. What fails among many workers is run once more, alone: a
bound on time says something of the machine too. What failed the first time only is written down as well. A Redis cell runs every test but those of PostgreSQL
alone, with PostgreSQL 18; a PostgreSQL cell every test but those of Redis alone, with Redis 7.0. Ends with status 1 if
a test failed in a cell. A cell whose server cannot be had is "not run".
"""

import datetime
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

from harness import places
from harness.fetch import FetchFailed, fetch
from harness.process import server_environment
from matrix import results, table
from matrix.cells import CELLS, POSTGRES, REDIS

TESTS = places.ROOT / "tests"
REPORTS = places.TARGET / "matrix"
PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
# The tests of the other kind of server, and those of what is not a server.
NOT_FOR = {REDIS: ("*/test_pg_*.py",), POSTGRES: ("*/test_redis_*.py",)}
NOT_OF_A_SERVER = ("*/test_harness.py", "*/test_matrix.py", "*/test_workflows.py")


def main(names):
    """Run the named cells, or all."""
    unknown = set(names) - {cell.name for cell in CELLS}
    if unknown:
        print(f"no cell is called {', '.join(sorted(unknown))}; there are {' '.join(cell.name for cell in CELLS)}")
        return 2
    REPORTS.mkdir(parents=True, exist_ok=True)
    seen = {}
    for cell in [cell for cell in CELLS if not names or cell.name in names]:
        print(f"### {cell.name}", flush=True)
        seen[cell.name] = run(cell)
        results.write(cell.name, seen[cell.name])
        print(f"### {cell.name}: {told(seen[cell.name])}", flush=True)
    table.main()
    print("\n".join(f"{name}: {told(result)}" for name, result in seen.items()))
    return int(any(result["result"] == FAILED for result in seen.values()))


def told(result):
    """One line of what became of a cell."""
    counts = f"{result['tests']} tests" if "tests" in result else result["reason"]
    return f"{result['result']}, {result.get('version', 'no server')}, {counts}"


def run(cell):
    """What became of a cell, as results.json has it."""
    today = {"date": datetime.date.today().isoformat()}
    try:
        fetch(cell.server)
    except FetchFailed as failed:
        return {"result": NOT_RUN, "reason": str(failed), **today}
    version = version_of(cell)
    if not re.match(rf"{re.escape(cell.version)}(\D|$)", version):
        return {"result": NOT_RUN, "reason": f"the server is {version}, and not {cell.version}", **today}
    facts = {"version": version, "source": cell.source, "commit": commit(), **today}
    environment = environment_of(cell)
    built = subprocess.run(["make", "setup-test", "module", "drill", "extensions", "clients"], cwd=places.ROOT, env=environment)
    if built.returncode != 0:
        return {"result": FAILED, "reason": "the build failed", **facts}
    first = run_suite(cell, environment, "first", "-n", "4")
    if not first.get("failed"):
        return {**first, **facts}
    again = run_suite(cell, environment, "again", "--last-failed")
    if again["result"] == FAILED:
        return {**first, "failed": again.get("failed", first["failed"]), **facts}
    return {**first, "result": PASSED, "failed": [], "failed_once": first["failed"], **facts}


def run_suite(cell, environment, name, *arguments):
    """Run pytest with these arguments, and read its report."""
    report = REPORTS / f"{cell.name}.{name}.xml"
    report.unlink(missing_ok=True)
    with open(report.with_suffix(".log"), "wb") as log:
        subprocess.run([*pytest_command(cell, report), *arguments], cwd=TESTS, env=environment, stdout=log, stderr=log)
    return read(report)


def version_of(cell):
    """The version that the server itself tells."""
    if cell.kind == REDIS:
        program, pattern = places.SERVERS / cell.server / "usr" / "bin" / "redis-server", r" v=(\S+)"
    else:
        program, pattern = places.pg_config_of(cell.major), r"PostgreSQL (\S+)"
    environment = server_environment(places.shared_libraries(places.SERVERS / cell.server))
    said = subprocess.run([program, "--version"], env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    return re.search(pattern, said)[1]


def commit():
    """The commit under test; with a + when the checkout has other changes than the ones that are written here."""
    written = (f":!{path.relative_to(places.ROOT)}" for path in (results.FILE, table.PAGE))
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", ".", *written], cwd=places.ROOT).returncode
    said = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=places.ROOT, stdout=subprocess.PIPE, text=True)
    return said.stdout.strip() + ("+" if changed else "")


def environment_of(cell):
    """What makes the build and the tests use the server of the cell."""
    environment = {name: value for name, value in os.environ.items() if name not in ("REDIS_SERVER", "PG_CONFIG", "PG_MAJORS")}
    # A make that runs this has flags of its own for it.
    environment = {name: value for name, value in environment.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    if cell.kind == REDIS:
        server = {} if cell.server == "redis" else {"REDIS_SERVER": str(places.SERVERS / cell.server / "usr" / "bin" / "redis-server")}
        return {**environment, "PG_MAJORS": "18", **server}
    return {**environment, "PG_MAJORS": str(cell.major)}


def pytest_command(cell, report):
    """The suite for this kind of server."""
    python = places.ROOT / "target" / "venv" / "bin" / "python"
    ignored = [f"--ignore-glob={name}" for name in (*NOT_FOR[cell.kind], *NOT_OF_A_SERVER)]
    return [python, "-m", "pytest", "-o", f"cache_dir={REPORTS / cell.name}.cache", f"--junitxml={report}", *ignored]


def read(report):
    """What pytest's report says."""
    if not report.exists():
        return {"result": FAILED, "reason": f"pytest wrote no report: see {report.with_suffix('.log')}"}
    (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    tests, skipped, *bad = (int(suite.get(name)) for name in ("tests", "skipped", "failures", "errors"))
    failed = sorted(
        f"{case.get('classname')}::{case.get('name')}"
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    )
    result = PASSED if tests and not sum(bad) else FAILED
    return {"result": result, "tests": tests - skipped, "failed": failed}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
