"""The story in each client's own idioms: the programs of tests/clients/, run as they stand.

One test for each client whose runtime is on this machine; the end of the run names those that were not run. With
CLIENTS=all (`make test-clients`) all are run, and a missing runtime is a failure.
"""

import os
import re
import socket
import subprocess
import sys
import threading

import psycopg
import pytest

from clients import roster
from harness import places

EVERY = os.environ.get("CLIENTS") == "all"
CLIENTS = [client for client in roster.CLIENTS if EVERY or roster.there(client.runtime)]
# Majors differ in what the extension does, and that is tested elsewhere: the newest is enough to test a client.
MAJORS = places.majors_under_test()[: None if EVERY else 1]

each_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
on_one_major = pytest.mark.parametrize("pg", MAJORS, ids=lambda major: f"pg{major or 'own'}", indirect=True)


@pytest.fixture
def counters(dsn):
    """The URL of a database with one counter at 0."""
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute("CREATE TABLE counters (id int PRIMARY KEY, value int NOT NULL, fence bigint NOT NULL DEFAULT 0)")
        db.execute("INSERT INTO counters VALUES (1, 0)")
    return dsn


@pytest.fixture
def tell(redis_server, pg, r, counters):
    """Runs a client's program to its end; the fences of A, B and A again, and the counter, as the program saw them."""

    def run(client, redis_url=redis_server.url):
        if not roster.there(client.runtime):
            pytest.fail(f"{client.runtime.name} is missing: run `make test-clients`", pytrace=False)
        if not client.command[0] or (str(client.command[0]).startswith(str(roster.BUILT)) and not client.command[0].exists()):
            pytest.fail("it is not built: run `make clients`", pytrace=False)
        programs = (redis_server.cli_command()[0].parent, pg.installation.psql.parent)
        environment = {
            **os.environ,
            "REDIS_URL": redis_url,
            "DATABASE_URL": counters,
            "PATH": os.pathsep.join((os.environ["PATH"], *map(str, programs))),
        }
        if client.runtime is roster.SHELL:
            # Only for the two programs that were unpacked with the servers: a system's own psql has its own libraries.
            environment["PATH"] = os.pathsep.join((*map(str, programs), os.environ["PATH"]))
            libraries = (*redis_server.libraries, *pg.installation.libraries)
            environment["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, libraries))
        command = [str(word) for word in client.command]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        assert re.fullmatch(r"\d{16} \d{16} \d{16} \d\n", done.stdout), done.stdout
        return [int(word) for word in done.stdout.split()]

    return run


def assert_told(told, redis, counters):
    """What the program says it saw is what the servers hold."""
    a, b, again, value = told
    assert a < b < again
    assert value == 2
    with psycopg.connect(counters) as db:
        assert db.execute("SELECT value, fence FROM counters").fetchone() == (2, again)
    assert redis.execute_command("FENCELOCK.INSPECT", "lock:counter") is None


@on_one_major
@each_client
def test_the_story_holds(client, tell, r, counters):
    assert_told(tell(client), r, counters)


@on_one_major
@pytest.mark.parametrize("client", [client for client in CLIENTS if client.resends], ids=lambda client: client.name)
def test_the_story_holds_when_the_reply_of_a_grant_is_lost(client, tell, redis_server, r, counters):
    """The client sends the call again by itself, and RETRY gives it the grant that it has already."""
    before = grants(r)
    # Of the third, as its lease is long.
    with LosesAReply(redis_server.port, of=b"FENCELOCK.ACQUIRE", number=3) as path:
        assert_told(tell(client, path.url), r, counters)
        assert path.lost.is_set()
    assert grants(r) - before == 3


@on_one_major
def test_the_quick_start_works_when_the_reply_of_the_grant_is_lost(redis_server, pg, r, dsn):
    (example,) = re.findall(r"```python\n(.*?)```", (places.ROOT / "README.md").read_text(), re.DOTALL)
    before = grants(r)
    with LosesAReply(redis_server.port, of=b"FENCELOCK.ACQUIRE", number=1) as path:
        urls = {"REDIS_URL": path.url, "DATABASE_URL": dsn, "PYTHONPATH": str(places.ROOT / "sql" / "examples")}
        command = [sys.executable, "-c", example]
        done = subprocess.run(command, env={**os.environ, **urls}, capture_output=True, text=True, timeout=240)
        assert (done.stdout, done.stderr) == ("1 10\n", "")
        assert path.lost.is_set()
    assert grants(r) - before == 2  # one for each of its two leases


def grants(redis):
    """How many leases the server has granted."""
    stats = redis.execute_command("FENCELOCK.STATS")
    return dict(zip(stats[::2], stats[1::2], strict=True))[b"grants"]


class LosesAReply:
    """A way to the server on which one reply of a command gets lost: the connection ends in its place."""

    def __init__(self, port, of, number):
        self._to, self._of, self._before = port, of, number
        self.lost = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self):
        self._threads[0].start()
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(60)

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._to))
            loses = threading.Event()
            for work in ((self._forward, client, server, loses), (self._back, server, client, loses)):
                self._threads.append(threading.Thread(target=work[0], args=work[1:], daemon=True))
                self._threads[-1].start()

    def _forward(self, client, server, loses):
        for data in _received(client):
            self._before -= data.count(self._of)
            if self._before <= 0 and not self.lost.is_set():
                self.lost.set()
                loses.set()
            server.sendall(data)
        _end(server)

    def _back(self, server, client, loses):
        for data in _received(server):
            if loses.is_set():
                break
            client.sendall(data)
        _end(client)
        _end(server)


def _received(connection):
    try:
        while data := connection.recv(65536):
            yield data
    except OSError:
        return


def _end(connection):
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


def test_every_program_is_on_the_roster():
    sources = {path.name for path in roster.HERE.glob("*/*") if path.suffix in (".py", ".js", ".php", ".rb", ".pl", ".sh", ".java")}
    named = {os.path.basename(str(word)) for client in (*roster.PROGRAMS, *roster.CALLERS) for word in client.command}
    assert sources <= named


def test_a_runtime_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(roster, "there", lambda runtime: runtime is not roster.PERL)
    assert roster.absent() == {roster.PERL: ["perl-redis-dbi"]}


def test_the_lockfile_pins_every_package_of_npm():
    assert (places.ROOT / "tests" / "clients" / "node" / "package-lock.json").read_text().count('"integrity"') > 20
