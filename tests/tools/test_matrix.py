"""The matrix is true: the table of docs/servers.md is what results.json gives, and a cell that was not run did not pass."""

import re

import pytest

from harness import places
from harness.fetch import PINNED, FetchFailed
from matrix import cells, results, run, table
from matrix.cells import CELLS

PASSED = {"result": "passed", "version": "7.0.15", "source": "Debian 12", "tests": 7, "date": "2026-01-31", "commit": "abc"}


def test_the_table_of_the_readme_is_what_the_results_give():
    readme = table.PAGE.read_text()
    assert table.replaced(readme, table.markdown(results.read())) == readme
    assert readme.count(table.BEGIN) == 1


def test_the_results_are_of_cells_and_of_their_versions():
    seen = results.read()
    assert set(seen) <= {cell.name for cell in CELLS}
    for cell in CELLS:
        result = seen.get(cell.name, {"result": "not run"})
        if result["result"] != "not run":
            assert re.match(rf"{re.escape(cell.version)}(\D|$)", result["version"])
        if result["result"] == "passed":
            assert result["tests"] > 300 and not result["failed"]


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (PASSED, ("tested", "7.0.15 (Debian 12), 7 tests passed on 31 Jan 2026")),
        (
            PASSED | {"failed_once": ["one"]},
            ("tested", "7.0.15 (Debian 12), 7 tests passed on 31 Jan 2026 (1 of them at the second try)"),
        ),
        (PASSED | {"result": "failed", "failed": ["one"]}, ("no", "7.0.15 (Debian 12): 1 tests failed on 31 Jan 2026")),
        ({"result": "not run", "reason": "no net", "date": "2026-01-31"}, ("expected", "not run on 31 Jan 2026: no net")),
        (None, ("expected", "not run yet")),
    ],
)
def test_only_a_cell_that_passed_is_called_tested(result, said):
    assert table.verdict(CELLS[0], result) == said


def test_a_server_that_cannot_be_fetched_is_not_run_and_the_others_are(monkeypatch, tmp_path):
    def fetch(name):
        raise FetchFailed("no net")

    monkeypatch.setattr(run, "fetch", fetch)
    monkeypatch.setattr(run, "REPORTS", tmp_path)
    monkeypatch.setattr(results, "FILE", tmp_path / "results.json")
    monkeypatch.setattr(table, "PAGE", tmp_path / "servers.md")
    table.PAGE.write_text(f"before\n{table.BEGIN}what was\n{table.END}after\n")
    assert run.main(["redis-8.2", "pg16"]) == 0
    assert {name: (seen["result"], seen["reason"]) for name, seen in results.read().items()} == {
        "redis-8.2": ("not run", "no net"),
        "pg16": ("not run", "no net"),
    }
    written = table.PAGE.read_text()
    assert written.startswith("before\n") and written.endswith("after\n") and "what was" not in written
    assert "| tested |" not in written


def test_an_unknown_cell_is_refused():
    assert run.main(["redis-1.0"]) == 2


@pytest.mark.parametrize(
    ("report", "result"),
    [
        ('<testsuite tests="3" skipped="1" failures="0" errors="0"/>', {"result": "passed", "tests": 2, "failed": []}),
        ('<testsuite tests="0" skipped="0" failures="0" errors="0"/>', {"result": "failed", "tests": 0, "failed": []}),
        (
            '<testsuite tests="2" skipped="0" failures="1" errors="0">'
            '<testcase classname="a" name="b"><failure/></testcase><testcase classname="a" name="c"/></testsuite>',
            {"result": "failed", "tests": 2, "failed": ["a::b"]},
        ),
    ],
)
def test_a_report_is_read_for_what_failed(tmp_path, report, result):
    (tmp_path / "report.xml").write_text(f"<testsuites>{report}</testsuites>")
    assert run.read(tmp_path / "report.xml") == result


def test_a_run_without_a_report_failed(tmp_path):
    assert run.read(tmp_path / "none.xml")["result"] == "failed"


def test_every_cell_has_its_server_pinned_or_made():
    pinned = PINNED.read_text()
    made = {"redis", "postgres-15", "postgres-16", "postgres-18"}
    assert [cell.server for cell in CELLS if cell.server not in made and f'"{cell.server}"' not in pinned] == []
    assert all(places.pg_config_of(cell.major) for cell in CELLS if cell.kind == cells.POSTGRES)
