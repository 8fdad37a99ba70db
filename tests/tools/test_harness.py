"""What the harness promises: own servers, on 127.0.0.1 alone, that end with their owner and leave nothing behind."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import psycopg
import pytest
import redis

from harness import (
    PostgresServer,
    RedisServer,
    ServerFailed,
    eventually,
    places,
    postgres_server,
    process,
)

MAKE_LIST = places.ROOT / "Makefile"


def run_python(code, *, cwd=places.ROOT / "tools", **kwargs):
    """Start a Python of our own in tools/, with its output to read."""
    return subprocess.Popen([sys.executable, "-c", code], cwd=cwd, stdout=subprocess.PIPE, text=True, **kwargs)


# --- waiting


def test_eventually_shows_both_sides_when_the_time_has_passed():
    with pytest.raises(AssertionError, match=r"(?s)expected: 2.*last saw: 1"):
        eventually(lambda: 1, 2, within_s=0.02)


def test_eventually_returns_what_it_waited_for():
    answers = iter([0, "", "there"])
    assert eventually(lambda: next(answers)) == "there"


# --- Redis


def test_a_redis_server_keeps_its_port_and_its_data_over_kill_and_start(make_redis):
    server = make_redis(config={"appendonly": "yes", "appendfsync": "always"}, module=None)
    port = server.port
    assert server.cli("SET", "kept", "yes") == "OK"
    server.kill()
    server.start()
    assert (server.port, server.cli("GET", "kept")) == (port, "yes")


def test_a_redis_server_that_cannot_start_says_why(make_redis):
    with pytest.raises(ServerFailed, match="no-such-setting"):
        make_redis(config={"no-such-setting": "1"}, module=None)


def test_module_arguments_reach_the_module(make_redis):
    server = make_redis(("fence-clock", "no"))
    assert server.cli("FENCELOCK.ACQUIRE", "k", "o", "1000") == "1"


@pytest.mark.parametrize(
    "make", [lambda: RedisServer(module=None), lambda: PostgresServer(18, extension=False)], ids=["redis", "postgres"]
)
def test_a_port_that_another_process_took_is_given_up(make, closing, monkeypatch):
    taken = closing(RedisServer(module=None)).start()
    offers = iter([taken.port, process.free_port()])
    monkeypatch.setattr("harness.server.free_port", lambda: next(offers))
    assert closing(make()).start().port != taken.port


# --- PostgreSQL


def test_a_postgres_server_keeps_its_port_and_its_data_over_kill_and_start(make_pg):
    server = make_pg()
    port = server.port
    server.psql("CREATE TABLE kept AS SELECT 1 AS yes")
    server.kill()
    server.start()
    assert (server.port, server.psql("SELECT yes FROM kept")) == (port, "1")


def test_a_durable_postgres_server_is_on_disk_and_syncs(make_pg):
    server = make_pg(durable=True)
    assert server.psql("SHOW fsync") == "on"
    assert not str(server.data_dir).startswith("/dev/shm")


def test_kill_leaves_no_process_of_a_postgres_server(make_pg):
    server = make_pg()
    pids = [server.pid, *process.children_of(server.pid)]
    assert len(pids) > 3
    server.kill()
    assert [pid for pid in pids if process.start_time(pid)] == []


def test_postgres_never_runs_as_root(pg):
    assert os.stat(f"/proc/{pg.pid}").st_uid != 0


def test_postgres_runs_where_no_postgres_account_exists(monkeypatch, tmp_path):
    real = process.pwd.getpwnam

    def without_postgres(name):
        if name == "postgres":
            raise KeyError(name)
        return real(name)

    monkeypatch.setattr(process.pwd, "getpwnam", without_postgres)
    # A folder of its own, as the shared copy of the server was made for the usual account.
    folder = process.temporary_folder("fencelock-pg", process.server_account())
    server = PostgresServer(18, folder=folder).start()
    assert server.psql("SELECT 1") == "1"
    expected = real("nobody").pw_uid if os.geteuid() == 0 else os.geteuid()
    assert os.stat(f"/proc/{server.pid}").st_uid == expected
    server.close()
    shutil.rmtree(folder)


def test_postgres_runs_from_a_checkout_in_a_closed_folder(tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    checkout = closed / "checkout"
    for source, inside in (
        (places.ROOT / "tools" / "harness", "tools/harness"),
        (places.ROOT / "sql", "sql"),
        (places.SERVERS / "postgres-18", "target/servers/postgres-18"),
        (places.TARGET / "pg_fence", "target/pg_fence"),
    ):
        shutil.copytree(source, checkout / inside, symlinks=True, copy_function=postgres_server._link)
    code = (
        "from harness import PostgresServer\n"
        "server = PostgresServer(18).start()\n"
        "print(server.psql('CREATE EXTENSION pg_fence; SELECT 1'))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "CARGO_TARGET_DIR"}
    child = run_python(code, cwd=checkout / "tools", env={**environment, "TMPDIR": str(closed)})
    assert child.communicate(timeout=240)[0].strip() == "1"
    assert child.returncode == 0


@pytest.mark.parametrize("turn", ["one test", "the next"])
def test_each_test_has_a_fresh_database_with_the_extension(turn, db):
    assert db.execute("SELECT count(*) FROM pg_extension WHERE extname = 'pg_fence'").fetchone() == (1,)
    # The other turn's table would be in the way.
    db.execute("CREATE TABLE left_behind ()")


def test_the_majors_under_test_are_both_there():
    assert places.MAJORS == (18, 15) or places.chosen_pg_config() or os.environ["PG_MAJORS"] != "18 15"


# --- the end of the owner


@pytest.mark.parametrize("start", ["RedisServer(module=None)", "PostgresServer(18, extension=False)"])
def test_a_server_ends_with_its_owner_even_when_that_is_killed(start):
    scratch = process.temporary_folder("fencelock-test", process.server_account())
    code = (
        "import time\n"
        "from harness import RedisServer, PostgresServer\n"
        f"server = {start}.start()\n"
        "print(server.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    owner = run_python(code, env={**os.environ, "TMPDIR": str(scratch)})
    pid = int(owner.stdout.readline())
    family = [pid, *process.children_of(pid)]
    owner.kill()
    owner.communicate()
    process.wait_until_gone(family, within_s=10)
    # Nobody was left to remove its files.
    shutil.rmtree(scratch)


def test_what_a_killed_run_left_is_removed_a_day_later(tmp_path, monkeypatch):
    gone = run_python("")
    gone.communicate()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(process.tempfile, "tempdir", None)
    left = [tmp_path / f"fencelock-pg-{pid}-{age}" for pid in (gone.pid, os.getpid()) for age in ("old", "new")]
    for folder in left:
        folder.mkdir()
        if folder.name.endswith("old"):
            os.utime(folder, (0, 0))
    process.temporary_folder("fencelock-redis").rmdir()
    assert [folder for folder in left if not folder.exists()] == [left[0]]


@pytest.mark.parametrize("start", ["RedisServer(module=None)", "PostgresServer(18, extension=False)"])
def test_an_owner_that_exits_leaves_no_files(start, tmp_path):
    code = f"from harness import RedisServer, PostgresServer\nserver = {start}.start()\n"
    account = process.server_account()
    scratch = process.temporary_folder("fencelock-test", account)
    owner = run_python(code, env={**os.environ, "TMPDIR": str(scratch)})
    owner.communicate(timeout=240)
    assert owner.returncode == 0
    assert list(scratch.iterdir()) == []
    scratch.rmdir()


def test_a_server_whose_extension_is_not_built_says_so_and_leaves_no_files(tmp_path):
    scratch = process.temporary_folder("fencelock-test", process.server_account())
    environment = {**os.environ, "TMPDIR": str(scratch), "CARGO_TARGET_DIR": str(tmp_path)}
    code = (
        "from harness import PostgresServer, ServerFailed\n"
        "try:\n    PostgresServer(18)\n"
        "except ServerFailed as failed:\n    print(failed, flush=True)\n"
        "import os; os._exit(0)\n"
    )
    owner = run_python(code, env=environment)
    assert "make build" in owner.communicate(timeout=240)[0]
    assert list(scratch.iterdir()) == []
    scratch.rmdir()


def test_a_forked_child_that_exits_does_not_end_the_server():
    server = RedisServer(module=None).start()
    child = os.fork()
    if child == 0:
        server._finalizer()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert server.cli("PING") == "PONG"
    server.close()


# --- make up, make down, make install, make help


@pytest.fixture
def play(tmp_path):
    """Runs `harness.play` with a target folder of its own, so that a person's `make up` is left alone."""
    target = tmp_path / "target"
    target.mkdir()
    for name in ("release", "pg_fence"):
        (target / name).symlink_to(places.TARGET / name)

    def run(command):
        environment = {**os.environ, "CARGO_TARGET_DIR": str(target)}
        child = run_python(f"import sys; from harness import play; sys.exit(play.main(['{command}']))", env=environment)
        said = child.communicate(timeout=240)[0]
        assert child.returncode == 0
        return said

    yield run
    run("down")


def test_up_prints_urls_that_work_and_down_stops_the_servers(play):
    said = play("up")
    redis_url = re.search(r"^REDIS_URL=(\S+)$", said, re.MULTILINE)[1]
    database_url = re.search(r"^DATABASE_URL=(\S+)$", said, re.MULTILINE)[1]
    with redis.Redis.from_url(redis_url) as client, psycopg.connect(database_url) as connection:
        fence = client.execute_command("FENCELOCK.ACQUIRE", "lock:report", "me", 30000)
        connection.execute("CREATE TABLE report (id int PRIMARY KEY, fence bigint NOT NULL DEFAULT 0)")
        connection.execute("INSERT INTO report VALUES (1)")
        assert connection.execute("SELECT * FROM fenced_claim(NULL::report, 1, %s)", (fence,)).fetchone() == (1, fence)
    assert play("up") == said
    play("down")
    with pytest.raises(redis.ConnectionError):
        redis.Redis.from_url(redis_url).ping()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(database_url)


def test_the_lines_that_up_offers_to_paste_work_and_fit_a_small_terminal(play):
    said = play("up")
    folder = re.search(r"\$\((\S+)/redis-cli", said)[1]
    assert max(map(len, said.replace(folder, "target/up").splitlines())) <= 80
    shell = re.findall(r"^  (\S*(?:fence=|/psql).*)$", said, re.MULTILINE)
    sql = re.findall(r"^  (SELECT .*|TABLE .*)$", said, re.MULTILINE)
    (free,) = re.findall(r"^  (\S*/redis-cli DEL .*)$", said, re.MULTILINE)
    assert (len(shell), len(sql)) == (2, 3)
    for _ in range(2):  # it may be pasted twice
        script = "\n".join([*shell, *sql]).replace("=$fence", "=$fence -P columns=80 <<'END'", 1) + f"\nEND\n{free} >&2\n"
        done = subprocess.run(script, shell=True, cwd=places.ROOT / "tools", stdout=subprocess.PIPE, text=True)
        assert done.returncode == 0
        claimed, written, listed = done.stdout.split("\n\n", 2)
        assert re.search(r"^ +1 \| +\d \| \d{16}$", claimed, re.MULTILINE)
        assert written.splitlines()[2].strip() == "t"
        assert max(map(len, listed.splitlines())) <= 80
        names = re.findall(r"^ (\w+) +\|", listed.split("\n", 2)[2], re.MULTILINE)
        assert {"fenced_claim", "fenced_guard", "fence_protect"} <= set(names) and len(names) == len(set(names))


def test_down_leaves_a_process_alone_that_only_has_the_pid(play, tmp_path):
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    facts = {
        "name": "redis",
        "pid": bystander.pid,
        "started": "long ago",
        "signal": signal.SIGTERM,
        "folder": "/nowhere",
    }
    state = tmp_path / "target" / "up" / "servers.json"
    state.parent.mkdir()
    state.write_text(json.dumps({"servers": [facts]}))
    assert "Stopped 0 servers" in play("down")
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def test_install_puts_every_file_under_destdir(pg, tmp_path):
    pg_config = places.chosen_pg_config() or places.pg_config_of(pg.major)
    command = ["make", "--no-print-directory", "install", f"PG_CONFIG={pg_config}", f"DESTDIR={tmp_path}"]
    done = subprocess.run(command, cwd=places.ROOT, check=True, stdout=subprocess.PIPE, text=True)
    module = tmp_path / "usr" / "lib" / "redis" / "modules" / "redis_fencelock.so"
    assert "loadmodule /usr/lib/redis/modules/redis_fencelock.so" in done.stdout
    assert module.stat().st_mode & 0o777 == 0o755, "Redis loads no module that is not executable"
    module.unlink()
    installed = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_file()}
    assert installed == {name: 0o755 if kind == "lib" else 0o644 for _, kind, name in places.extension_files(pg.major)}


def test_the_commands_of_the_install_page_remove_what_install_put_and_nothing_else(pg, tmp_path):
    pg_config = places.chosen_pg_config() or places.pg_config_of(pg.major)
    command = ["make", "--no-print-directory", "install", f"PG_CONFIG={pg_config}", f"DESTDIR={tmp_path}"]
    subprocess.run(command, cwd=places.ROOT, check=True, stdout=subprocess.PIPE)
    (extensions,) = tmp_path.rglob("extension")
    (extensions / "pg_fence_of_others.control").touch()
    (block,) = re.findall(r"```sh\n(sudo rm .*?)```", (places.ROOT / "docs" / "install.md").read_text(), re.DOTALL)
    here = block.replace("sudo rm /", f"rm {tmp_path}/").replace("sudo ", "").replace("$(/path/to/pg_config", f"{tmp_path}$({pg_config}")
    subprocess.run(["sh", "-e", "-c", here], check=True)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["pg_fence_of_others.control"]


def test_install_without_a_server_puts_the_module_alone(tmp_path):
    command = ["make", "--no-print-directory", "install", f"DESTDIR={tmp_path}", "MODULE_DIR=/opt/modules"]
    environment = {name: value for name, value in os.environ.items() if name != "PG_CONFIG"}
    subprocess.run(command, cwd=places.ROOT, check=True, stdout=subprocess.PIPE, env=environment)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "opt" / "modules" / "redis_fencelock.so"]


def test_help_names_every_target_that_is_meant_for_people():
    meant = re.search(r"^\.PHONY: help (.*?) setup-demo", MAKE_LIST.read_text(), re.MULTILINE)[1].split()
    said = subprocess.run(["make"], cwd=places.ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert [name for name in meant if not re.search(rf"^make {name}\b", said, re.MULTILINE)] == []
    assert len(meant) >= 18
