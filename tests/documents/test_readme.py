"""What the READMEs say is true: their examples run, and their tables name what is there."""

import os
import re
import subprocess
import sys
import time

import pytest

from harness.places import ROOT

README = (ROOT / "README.md").read_text()
REDIS_README = (ROOT / "redis_fencelock" / "README.md").read_text()


def documents():
    """What users read and copy."""
    pages = [path for path in ROOT.rglob("*.md") if not {"target", ".git", "node_modules"} & set(path.parts)]
    return sorted([*pages, *(ROOT / "sql" / "examples").iterdir()])


def test_the_quick_start_runs_as_it_stands(redis_server, dsn):
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    urls = {"REDIS_URL": redis_server.url, "DATABASE_URL": dsn, "PYTHONPATH": str(ROOT / "sql" / "examples")}
    for expected in ["1 10\n", "2 20\n"]:
        command = [sys.executable, "-c", example]
        done = subprocess.run(command, env={**os.environ, **urls}, capture_output=True, text=True, timeout=240)
        assert (done.stdout, done.stderr) == (expected, "")


def test_the_refusal_on_the_first_screen_comes_out_as_printed(make_redis, db, eventually):
    """With a server that counts, so that fences are as short as they are printed."""
    db.execute("CREATE TABLE counters (id int PRIMARY KEY, value int NOT NULL, fence bigint NOT NULL DEFAULT 0)")
    db.execute("INSERT INTO counters VALUES (1, 0)")
    server = make_redis(("fence-clock", "no"))
    server.cli("FENCELOCK.RAISE", "40")
    (example,) = re.findall(r"```\n(redis> .*?)```", README, re.DOTALL)
    steps = re.findall(r"^(redis|psql)[=]?> (.*)\n(.+)", example, re.MULTILINE)
    assert len(steps) == 5
    for client, command, shown in steps:
        if client == "redis":
            eventually(lambda command=command: server.cli("--no-raw", *command.split()), shown)
        else:
            (seen,) = db.execute(command).fetchone()
            assert ("tf"[not seen] if isinstance(seen, bool) else str(seen)) == shown, command


def comparable(reply):
    """A reply without what differs from run to run: fences, and times in milliseconds."""
    reply = re.sub(r"\d{4,}", "N", reply)
    return re.sub(r'("(?:held|longest-hold)-ms"\n *\d+\) \(integer\)) \d+', r"\1 N", reply)


def test_the_examples_of_the_command_reference_reply_what_is_shown(make_redis):
    server = make_redis()
    examples = re.findall(r"```\n(> .*?)```", REDIS_README, re.DOTALL)
    shown = [part.split("\n", 1) for example in examples for part in example[2:].split("\n> ")]
    assert {command.split()[0] for command, _ in shown} == set(sections()) - {"FENCELOCK.HELP"}
    fences = {}
    for command, expected in shown:
        words = [fences.get(word, word) for word in command.split()]
        replied = server.cli("--no-raw", *words)
        fences.update(zip(re.findall(r"\d{16}", expected), re.findall(r"\d{16}", replied)))
        assert comparable(replied.strip()) == comparable(expected.strip()), command


def sections():
    """The sections of the commands, by name."""
    return dict(re.findall(r"^## (FENCELOCK\.\w+)(.*?)(?=^## )", REDIS_README, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("name", sorted(sections()))
def test_every_section_of_the_reference_has_the_same_parts_in_the_same_order(name):
    parts = ["Since: ", "Complexity: ", "ACL: ", "Replies: ", "Errors:", "Replication: "]
    places = [sections()[name].find(part) for part in parts]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize("name", sorted(sections()))
def test_every_section_says_what_command_docs_says(r, name):
    (_, docs) = r.execute_command("COMMAND DOCS", name)
    told = dict(zip(docs[::2], docs[1::2]))
    text = " ".join(sections()[name].split())
    assert sections()[name].split("\n\n")[1].replace("\n", " ").startswith(f"{told[b'summary'].decode()}.")
    assert f"Since: {told[b'since'].decode()}. Complexity: {told[b'complexity'].decode()}. ACL: @" in text


def test_the_command_reference_has_a_section_for_each_command_and_no_other(r):
    documented = set(sections())
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


def test_every_target_of_make_that_the_readme_names_is_there():
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"make ([a-z-]+)", README))
    assert named <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


def test_the_release_checklist_finds_what_is_missing():
    def facts(version):
        done = subprocess.run([ROOT / "packaging" / "release", "facts", version], capture_output=True, text=True)
        return done.returncode, {line[6:].split(":")[0] for line in done.stdout.splitlines() if line.startswith("FAIL")}

    (version,) = re.findall(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    of_a_release = {
        "the changelog has a section",
        "nothing is left under Unreleased",
        "its SQL is listed as released",
        "the tag is free",
        "everything is committed",
    }
    assert facts(version)[1] <= of_a_release
    status, missing = facts("9.9.9")
    assert status == 1
    assert missing >= {
        "Cargo.toml has version 9.9.9",
        "the control file has it",
        "the SQL of it is there",
        "the library knows it",
        "every older version can be upgraded",
    }


def test_the_advice_on_pauses_measures_a_pause(monkeypatch):
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "fence" / "README.md").read_text(), re.DOTALL)
    names = {}
    exec(example, names)
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(seconds + 0.05))
    assert names["worst_pause_ms"](0.2) >= 49


# A lock command whose time is a number.
TIMED = re.compile(r"FENCELOCK\.(?:ACQUIRE|EXTEND)\W[^\n]*?\b\d[\d_]{2,}")


@pytest.mark.parametrize(
    "path",
    [path for path in documents() if TIMED.search(path.read_text())],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_an_example_with_a_number_for_a_time_says_milliseconds(path):
    text = path.read_text()
    for found in TIMED.finditer(text):
        # In the ten lines before it, or in the line after.
        near = "\n".join(text[: found.end()].split("\n")[-11:]) + text[found.end() :].split("\n\n")[0]
        assert re.search(r"(?i)milliseconds", near), f"{path.name}: {found[0]}"


def anchor(heading):
    """The anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", re.sub(r"`", "", heading).lower()).replace(" ", "-")


def test_every_link_of_the_documents_leads_somewhere():
    pages = [path for path in documents() if path.suffix == ".md"]
    assert len(pages) > 5
    for path in pages:
        text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
        for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
            file, _, fragment = link.partition("#")
            target = (path.parent / file).resolve() if file else path
            assert target.exists(), f"{path.name}: {link}"
            if fragment:
                headings = re.findall(r"^#+ (.*)", target.read_text(), re.MULTILINE)
                assert fragment in {anchor(heading) for heading in headings}, f"{path.name}: {link}"
