"""`make demo` is true: the story holds, a story that does not hold is noticed, and the picture is of the run."""

import os
import pty
import re
import subprocess
import sys
import threading
from xml.etree import ElementTree

import pytest

from demo import picture as demo_picture
from harness import places
from harness.progress import progress

TOOLS = places.ROOT / "tools"
COMMITTED = TOOLS / "demo" / "demo.svg"


def tell(picture, code="pass", output=subprocess.PIPE, **environment):
    code = f"import sys; from demo import __main__ as demo; {code}; sys.exit(demo.main(['--picture', {str(picture)!r}]))"
    environment = {**os.environ, **environment}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=TOOLS, stdout=output, text=True, timeout=240, env=environment)


def words(picture):
    """The labels of a picture, without the numbers of its run."""
    texts = [text.text for text in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")]
    return sorted(re.sub(r"\d+\.\d\d|…\d{4}", "N", text) for text in texts)


def test_the_story_holds_and_ends_at_1_1_and_2(tmp_path):
    told = tell(tmp_path / "demo.svg")
    assert told.returncode == 0, told.stdout
    assert re.findall(r"the counter is (\d)", told.stdout) == ["1", "1", "2"]
    assert told.stdout.rstrip().endswith("claim first ended at 2.")
    assert "\x1b" not in told.stdout
    # The picture of the README shows what a run shows today.
    assert words(tmp_path / "demo.svg") == words(COMMITTED)


@pytest.mark.parametrize("pg", places.majors_under_test()[:1], ids=lambda major: f"pg{major or 'own'}", indirect=True)
def test_the_story_holds_on_servers_that_run_already(redis_server, r, pg, db, dsn, tmp_path):
    """Its table is there from an earlier run."""
    db.execute("CREATE TABLE counters (id int PRIMARY KEY, value int NOT NULL, fence bigint NOT NULL DEFAULT 0)")
    db.execute("INSERT INTO counters VALUES (1, 2)")
    tools = tmp_path / "bin"
    tools.mkdir()
    for program, libraries in (
        (redis_server.cli_command()[0], redis_server.libraries),
        (pg.installation.psql, pg.installation.libraries),
    ):
        paths = ":".join(map(str, libraries))
        (tools / program.name).write_text(f'#!/bin/sh\nLD_LIBRARY_PATH="{paths}" exec "{program}" "$@"\n')
        (tools / program.name).chmod(0o755)
    command = [sys.executable, "-m", "demo", "--picture", tmp_path / "demo.svg", "--redis-url", redis_server.url, "--database-url", dsn]
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    told = subprocess.run(command, cwd=TOOLS, stdout=subprocess.PIPE, text=True, timeout=240, env=environment)
    assert told.returncode == 0, told.stdout
    assert told.stdout.rstrip().endswith("claim first ended at 2.")


def test_the_story_holds_on_one_server():
    told = subprocess.run([sys.executable, "-m", "demo.postgres"], cwd=TOOLS, stdout=subprocess.PIPE, text=True, timeout=240)
    assert told.returncode == 0, told.stdout
    assert re.findall(r"the counter is (\d)", told.stdout) == ["2"] and "redis" not in told.stdout.lower()
    assert told.stdout.rstrip().endswith("the counter ended at 2.")


def test_a_story_that_does_not_hold_is_a_failure_in_a_terminal_too(tmp_path):
    """In a terminal the two workers have a lane each, and a line moves while both wait."""
    terminal, output = pty.openpty()
    os.set_inheritable(output, True)
    told = []

    def run():
        told.append(
            tell(
                tmp_path / "demo.svg",
                "demo._Worker.update = lambda *_: True",
                output,
                COLUMNS="120",
                TERM="xterm",
                PYTHONIOENCODING="utf-8",
            )
        )
        os.close(output)

    said = _read_while(run, terminal)
    assert told[0].returncode == 1
    assert "THE STORY DOES NOT HOLD" in said
    rows = [re.sub(r"\x1b\[\d*[mK]", "", line).rstrip() for line in said.splitlines()]
    # A holds the lease while B asks; then B holds it, and A's has expired.
    assert any(re.search(r"s █ +\? \(busy: A's lease is running", row) for row in rows)
    assert any(re.search(r"s ! +█ B\$ psql", row) for row in rows)
    assert any(re.search(r"s ! \(A wakes up", row) for row in rows)
    moving = re.findall(r"\r[^\r\n]*lease: (\d\.\d) s left[^\r\n]*asks for the lock", said)
    assert len(set(moving)) > 5


def _read_while(run, terminal):
    """What a terminal gets while `run` runs in a thread."""
    thread = threading.Thread(target=run)
    thread.start()
    said = b""
    try:
        while data := os.read(terminal, 65536):
            said += data
    except OSError:  # the other end is closed
        pass
    thread.join()
    os.close(terminal)
    return said.decode()


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""

    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    moved = Clock()
    monkeypatch.setattr(demo_picture, "time", moved)
    return moved


def test_the_picture_shows_the_end_of_a_lease_at_its_own_time(clock):
    act = demo_picture.Act("act", lease_s=1.5)
    clock.now += 0.25
    act.note("A", "granted", "…1", since=100.125)
    clock.now += 3
    act.note("B", "granted", "…2", since=103.0)
    assert [(when, who, kind) for when, who, kind, _ in act.events] == [
        (0.25, "A", "granted"),
        (1.625, "A", "ran out"),
        (3.25, "B", "granted"),
    ]


def test_labels_of_one_lane_stay_apart_and_in_order(clock):
    act = demo_picture.Act("act", lease_s=1.5)
    for number in range(12):
        clock.now += 0.001
        act.note("AAB"[number % 3], "reads", number)
    places_ = demo_picture._places(act.events)
    assert places_ == sorted(places_)
    for lane in "AB":
        own = [x for x, event in zip(places_, act.events, strict=True) if event[1] == lane]
        assert all(later - earlier >= demo_picture.SAME_LANE for earlier, later in zip(own, own[1:], strict=False))


def test_a_long_step_says_when_it_begins_and_what_it_took(tmp_path, capsys):
    with progress("fetching", tmp_path):
        assert capsys.readouterr().out == "fetching\n"
        (tmp_path / "file").write_bytes(bytes(3_000_000))
    assert capsys.readouterr().out == "fetching: 0 s, 3 MB\n"


def test_a_long_step_counts_in_a_terminal(tmp_path, capsys, monkeypatch, eventually):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr("harness.progress._EVERY_S", 0.01)
    shown = []
    with progress("fetching", tmp_path):
        eventually(lambda: shown.append(capsys.readouterr().out) or len("".join(shown).split("\r")) > 3)
    assert set("".join(shown).split("\r")) == {"fetching: 0 s, 0 MB", ""}
    assert capsys.readouterr().out.endswith("fetching: 0 s, 0 MB\n")
