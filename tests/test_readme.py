"""What the READMEs say is true: their examples run, and their tables name what is there."""

import os
import re
import subprocess
import sys

from harness.places import ROOT

README = (ROOT / "README.md").read_text()
REDIS_README = (ROOT / "redis_fencelock" / "README.md").read_text()


def test_the_quick_start_runs_as_it_stands(redis_server, dsn):
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    environment = {**os.environ, "REDIS_URL": redis_server.url, "DATABASE_URL": dsn}
    for expected in ["1\n", "2\n"]:
        done = subprocess.run([sys.executable, "-c", example], env=environment, capture_output=True, text=True, timeout=60)
        assert (done.stdout, done.stderr) == (expected, "")


def test_the_example_of_acquire_replies_what_is_shown(redis_server, r):
    (example,) = re.findall(r"```\n(> FENCELOCK.*?)```", REDIS_README, re.DOTALL)
    for command, shown in re.findall(r"> (.*)\n(.*)\n", example):
        replied = redis_server.cli("--no-raw", *command.split())
        assert re.sub(r"\d{16}", "N", replied) == re.sub(r"\d{16}", "N", shown)


def test_the_command_reference_has_a_section_for_each_command_and_no_other(r):
    documented = set(re.findall(r"^## (FENCELOCK\.\w+)", REDIS_README, re.MULTILINE))
    served = r.execute_command("COMMAND LIST", "FILTERBY", "MODULE", "fencelock")
    assert documented == {name.decode().upper() for name in served if b"._" not in name}


def test_every_counter_of_stats_is_documented(r):
    reply = r.execute_command("FENCELOCK.STATS")
    table = REDIS_README.split("| counter |")[1].split("\n\n")[0]
    assert {name.decode() for name in reply[::2]} == set(re.findall(r"`([a-z-]+)`", table))


def test_every_setting_is_documented_with_its_default(r):
    table = REDIS_README.split("| setting |")[1].split("\n\n")[0]
    documented = dict(re.findall(r"^\| `(fencelock\.[a-z-]+)` \| (\w+)", table, re.MULTILINE))
    assert r.config_get("fencelock.*") == documented


def test_every_function_of_the_extension_is_in_the_readme(db):
    names = db.execute(
        "SELECT DISTINCT p.proname FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.deptype = 'e'"
        " JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'pg_fence'"
    ).fetchall()
    table = README.split("## PostgreSQL functions")[1].split("\n\n")[1]
    assert {name for (name,) in names} == set(re.findall(r"((?:pg_stat_)?fenced?_\w+)\(", table))


def test_every_target_of_make_that_the_readme_names_is_there():
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"make ([a-z-]+)", README))
    assert named <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
