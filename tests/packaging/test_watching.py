"""The exporters' recipes, the alerts and the dashboard name what the servers really have."""

import json
import re

import pytest
import redis

from harness import eventually
from harness.places import ROOT

WATCHING = ROOT / "packaging" / "watching"
# How the alerts and the dashboard ask for a counter of all locks that the script names.
OF_A_LOCK = " [0-9]+ .*"
QUERIES = (WATCHING / "pg_fence.yml").read_text()
READERS = {name: (WATCHING / name).read_text() for name in ["alerts.yml", "grafana.json"]}


def queries():
    """Of each query: its name, its text, and the columns that it promises."""
    found = re.findall(r"^(\w+):\n  query: >-\n(.*?)  metrics:\n(.*?)(?=^\w|\Z)", QUERIES, re.MULTILINE | re.DOTALL)
    return {name: (sql, re.findall(r"^    - (\w+):", columns, re.MULTILINE)) for name, sql, columns in found}


def exported():
    """The metrics that postgres_exporter makes of the queries."""
    return {f"{name}_{column}" for name, (_, columns) in queries().items() for column in columns}


def run_the_script(r, **changes):
    """What redis_exporter makes of the script: names and numbers."""
    text = (WATCHING / "fencelock.lua").read_text()
    for name, value in changes.items():
        text, replaced = re.subn(rf"^local {name} = .*$", f"local {name} = {value}", text, flags=re.MULTILINE)
        assert replaced == 1
    script = r.eval(text, 0)
    assert all(re.fullmatch(rb"\d+", value) for value in script[1::2])
    told = dict(zip(script[::2], script[1::2]))
    assert len(told) == len(script) / 2
    return {name.decode(): int(value) for name, value in told.items()}


def of_server(told):
    return {name: value for name, value in told.items() if " " not in name}


def test_the_script_gives_every_counter_as_a_string(r):
    r.execute_command("FENCELOCK.ACQUIRE", "k", "A", 60_000)
    counters = r.execute_command("FENCELOCK.STATS")
    told = run_the_script(r)
    assert of_server(told) == {name.decode(): value for name, value in zip(counters[::2], counters[1::2])}
    assert told["last-fence"] > 10**15


def test_the_script_tells_the_busiest_locks_by_name(make_redis):
    server = make_redis(("stats-names", 64))
    with redis.Redis(port=server.port, protocol=2) as r, redis.Redis(port=server.port, protocol=2, db=3) as other:
        for number in range(12):
            r.execute_command("FENCELOCK.ACQUIRE", f"lock:{number}", "A", 60_000)
            for _ in range(number):
                r.execute_command("FENCELOCK.ACQUIRE", f"lock:{number}", "B", 60_000)
        other.execute_command("FENCELOCK.ACQUIRE", b"a b\xff\n", "A", 60_000)
        for _ in range(20):
            other.execute_command("FENCELOCK.ACQUIRE", b"a b\xff\n", "B", 60_000)
        r.execute_command("FENCELOCK.ACQUIRE", "late", "A", 1)
        eventually(lambda: r.exists("late"), 0)
        r.execute_command("FENCELOCK.EXTEND", "late", "A", 60_000)
        told = run_the_script(r)
        contended = {name: value for name, value in told.items() if name.startswith("contended ") and value}
        expected = {f"contended 0 lock:{number}": number for number in range(3, 12)}
        assert contended == expected | {"contended 3 a b\\xff\\x0a": 20}
        assert told["late-extensions 0 late"] == 1
        assert told["grants 0 late"] == 1
        assert of_server(run_the_script(r, locks=0)) == run_the_script(r, locks=0)


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
        assert set(queries()) == {"pg_stat_fence", "fence_guard_blockers", "fence_protected"}
        for sql, columns in queries().values():
            assert [column.name for column in db.execute(sql).description] == columns
    finally:
        db.execute("RESET ROLE; DROP ROLE exporter_of_the_recipe")


def test_the_row_that_refused_is_found_by_the_query_of_the_recipe(db):
    db.execute("CREATE TABLE counters (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0)")
    db.execute("INSERT INTO counters SELECT generate_series(1, 9)")
    for key, fence in ((3, 41), (5, 42), (7, 43), (5, 40)):
        db.execute("SELECT fenced_claim_json('counters', %s, %s)", (key, fence))
    (query,) = re.findall(r"```sql\n(SELECT .*?)```", (WATCHING / "README.md").read_text(), re.DOTALL)
    counted = db.execute("SELECT claims_stale FROM pg_stat_fence WHERE target = 'counters'::regclass").fetchone()
    # Where nothing counts (PostgreSQL 15 and 16, not preloaded) there is no row to be found either.
    assert db.execute(query).fetchall() == ([(5, 42)] if counted else [])


@pytest.mark.parametrize("name", READERS)
def test_alerts_and_dashboard_name_metrics_that_are_there(r, name):
    text = READERS[name].replace('\\"', '"')
    counters = {counter.decode() for counter in r.execute_command("FENCELOCK.STATS")[::2]}
    # late-(releases|extensions) stands for two.
    text = re.sub(r"([a-z-]*)\((\w+)\|(\w+)\)( [^\"]*)", r"\1\2\4|\1\3\4", text)
    keys = {key for found in re.findall(r'key=~?"([^"]+)"', text) for key in found.split("|")}
    assert len(keys) > 5
    of_locks = {key for key in keys if key.endswith(OF_A_LOCK)}
    if name == "alerts.yml":
        assert of_locks
    assert keys - of_locks <= counters
    r.execute_command("FENCELOCK.ACQUIRE", "k", "A", 60_000)
    named = {counter.decode() for counter in r.execute_command("FENCELOCK.STATS", "k")[::2]}
    assert {key.removesuffix(OF_A_LOCK) for key in of_locks} <= named
    metrics = set(re.findall(r"\b((?:pg_stat_fence|fence_guard_blockers|fence_protected)_\w+)", text))
    assert len(metrics) > 3
    assert metrics <= exported()


def test_the_dashboard_is_whole():
    board = json.loads(READERS["grafana.json"])
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    variables = {variable["name"] for variable in board["templating"]["list"]}
    # Not $1, which is what label_replace has found.
    used = set(re.findall(r"\$\{?([a-z_]\w*)\}?", json.dumps(panels))) - {"__rate_interval"}
    assert used == variables
