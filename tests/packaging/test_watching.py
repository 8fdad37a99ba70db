"""The exporters' recipes, the alerts and the dashboard name what the servers really have."""

import json
import re

import pytest

from harness.places import ROOT

WATCHING = ROOT / "packaging" / "watching"
QUERIES = (WATCHING / "pg_fence.yml").read_text()
READERS = {name: (WATCHING / name).read_text() for name in ["alerts.yml", "grafana.json"]}


def queries():
    """Of each query: its name, its text, and the columns that it promises."""
    found = re.findall(r"^(\w+):\n  query: >-\n(.*?)  metrics:\n(.*?)(?=^\w|\Z)", QUERIES, re.MULTILINE | re.DOTALL)
    return {name: (sql, re.findall(r"^    - (\w+):", columns, re.MULTILINE)) for name, sql, columns in found}


def exported():
    """The metrics that postgres_exporter makes of the queries."""
    return {f"{name}_{column}" for name, (_, columns) in queries().items() for column in columns}


def test_the_script_gives_every_counter_as_a_string(r):
    r.execute_command("FENCELOCK.ACQUIRE", "k", "A", 60_000)
    counters = r.execute_command("FENCELOCK.STATS")
    script = r.eval((WATCHING / "fencelock.lua").read_text(), 0)
    assert script[::2] == counters[::2]
    told = dict(zip(script[::2], script[1::2]))
    assert told[b"last-fence"] == str(dict(zip(counters[::2], counters[1::2]))[b"last-fence"]).encode()
    assert all(re.fullmatch(rb"\d+", value) for value in script[1::2])


def test_a_user_with_the_rights_of_the_recipe_may_run_the_script(redis_server, r):
    (rights,) = re.findall(r"^ACL SETUSER (.*)", (WATCHING / "README.md").read_text(), re.MULTILINE)
    r.execute_command("ACL", "SETUSER", *rights.split())
    try:
        words = ["--user", "exporter", "--pass", "password", "--no-auth-warning"]
        said = redis_server.cli(*words, "EVAL", (WATCHING / "fencelock.lua").read_text(), "0")
        assert "live-leases" in said
        assert "NOPERM" in redis_server.cli(*words, "FENCELOCK.ACQUIRE", "k", "A", "1000")
    finally:
        r.execute_command("ACL", "DELUSER", "exporter")


def test_the_queries_have_the_columns_that_they_promise(pg, db):
    db.execute("CREATE ROLE exporter_of_the_recipe IN ROLE pg_monitor")
    db.execute("SET ROLE exporter_of_the_recipe")
    try:
        assert set(queries()) == {"pg_stat_fence", "fence_protected"}
        for sql, columns in queries().values():
            assert [column.name for column in db.execute(sql).description] == columns
    finally:
        db.execute("RESET ROLE; DROP ROLE exporter_of_the_recipe")


@pytest.mark.parametrize("name", READERS)
def test_alerts_and_dashboard_name_metrics_that_are_there(r, name):
    text = READERS[name].replace('\\"', '"')
    counters = {counter.decode() for counter in r.execute_command("FENCELOCK.STATS")[::2]}
    keys = {key for found in re.findall(r'key=~?"([^"]+)"', text) for key in found.split("|")}
    assert len(keys) > 5
    assert keys <= counters
    metrics = set(re.findall(r"\b((?:pg_stat_fence|fence_protected)_\w+)", text))
    assert len(metrics) > 3
    assert metrics <= exported()


def test_the_dashboard_is_whole():
    board = json.loads(READERS["grafana.json"])
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    variables = {variable["name"] for variable in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)\}?", json.dumps(panels))) - {"__rate_interval"}
    assert used == variables
