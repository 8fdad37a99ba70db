"""Both servers for a person to play with: `make up` and `make down`, as `python3 -m harness.play up|down`.

The servers outlive this process. What was started is written down in target/up; a server is stopped only while its
pid is still that very process, by its start time.
"""

import json
import os
import shlex
import shutil
import signal
import sys

from . import places
from .postgres_server import PostgresServer
from .process import STOP_WITHIN_S, ServerFailed, server_account, start_time, temporary_folder, wait_until_gone
from .redis_server import RedisServer

STATE = places.TARGET / "up" / "servers.json"
DATABASE = "play"
# Something to claim, and each function once: \df shows every overload, too wide for a terminal.
OBJECTS = """
    CREATE TABLE counters (id int PRIMARY KEY, value int NOT NULL, fence bigint NOT NULL DEFAULT 0);
    INSERT INTO counters VALUES (1, 0);
    CREATE VIEW functions AS
    SELECT DISTINCT ON (p.proname) p.proname AS function, obj_description(p.oid, 'pg_proc') AS "what it does"
    FROM pg_proc p
    JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
    JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'pg_fence'
    WHERE p.pronamespace = 'public'::regnamespace AND obj_description(p.oid, 'pg_proc') !~ 'Key as|of this fence'
    ORDER BY p.proname, p.pronargs
"""


def main(arguments):
    """Run one of the two commands and return the exit status."""
    try:
        if arguments == ["up"]:
            return up()
        if arguments == ["down"]:
            return down()
    except ServerFailed as failed:
        print(failed, file=sys.stderr)
        return 1
    print("usage: python3 -m harness.play up|down", file=sys.stderr)
    return 2


def up():
    """Start what does not run, and print how to reach it."""
    state = _read()
    if state and all(_runs(server) for server in state["servers"]):
        print("Both servers run already.", file=sys.stderr)
    else:
        if state:
            down()
        state = _start()
    _say(state)
    return 0


def down():
    """Stop what `up` started, and remove its files."""
    state = _read()
    if not state:
        print("Nothing to stop.")
        return 0
    running = [server for server in state["servers"] if _runs(server)]
    for server in running:
        os.kill(server["pid"], server["signal"])
    wait_until_gone([server["pid"] for server in running], within_s=STOP_WITHIN_S)
    for server in state["servers"]:
        shutil.rmtree(server["folder"], ignore_errors=True)
    shutil.rmtree(STATE.parent)
    print(f"Stopped {len(running)} servers.")
    return 0


def _start():
    redis = RedisServer(data_dir=temporary_folder("fencelockup-redis"))
    # The manuals speak of PREPARE TRANSACTION, which the server's default refuses.
    settings = {"max_prepared_transactions": "10"}
    postgres = PostgresServer(settings=settings, folder=temporary_folder("fencelockup-pg", server_account()))
    servers = []
    try:
        redis.start(detached=True)
        servers.append(_facts("redis", redis.pid, signal.SIGTERM, redis.data_dir))
        postgres.start(detached=True)
        servers.append(_facts("postgres", postgres.pid, signal.SIGINT, postgres.data_dir.parent))
        postgres.psql(f"CREATE DATABASE {DATABASE}")
        postgres.psql("CREATE EXTENSION pg_fence", DATABASE)
        postgres.psql(OBJECTS, DATABASE)
    except BaseException:
        redis.kill()
        postgres.kill()
        shutil.rmtree(redis.data_dir, ignore_errors=True)
        shutil.rmtree(postgres.data_dir.parent, ignore_errors=True)
        raise
    state = {
        "redis_url": redis.url,
        "database_url": postgres.url(DATABASE),
        "servers": servers,
    }
    _write(state)
    _make_client("redis-cli", redis.cli_command()[0], redis.libraries, ["-u", state["redis_url"]])
    # `wrapped` fits the terminal. What is given on the command line comes later and wins.
    _make_client("psql", postgres.installation.psql, postgres.installation.libraries, ["-P", "format=wrapped", "-d", state["database_url"]])
    return state


def _say(state):
    here = os.path.relpath(STATE.parent)
    print(f"REDIS_URL={state['redis_url']}")
    print(f"DATABASE_URL={state['database_url']}")
    print()
    print("Lines to paste: a lock, a claim, a write, and what else there is to call.")
    print("The database has a table `counters` with one row.")
    print()
    print(f"  fence=$({here}/redis-cli FENCELOCK.ACQUIRE lock:play me-$$ 60000 RETRY)")
    print(f"  {here}/psql -v fence=$fence")
    print("  SELECT * FROM fenced_claim(NULL::counters, 1, :fence);")
    print("""  SELECT fenced_update('counters', 1, :fence, '{"value": 1}');""")
    print("  TABLE functions;")
    print("  \\q")
    print(f"  {here}/redis-cli DEL lock:play")
    print()
    print("Both clients open a prompt without arguments; any other client works too.")
    print("The servers listen on this machine only, trust everybody on it, and keep")
    print("nothing after `make down`.")


def _make_client(name, program, libraries, options):
    """A client of these servers. PATH may not have the program, and the system may lack its libraries."""
    paths = ":".join(map(str, libraries))
    script = STATE.parent / name
    script.write_text(
        "#!/bin/sh\n"
        f'export LD_LIBRARY_PATH="{paths}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"\n'
        f'exec {shlex.join([str(program), *options])} "$@"\n'
    )
    script.chmod(0o755)


def _facts(name, pid, stop_signal, folder):
    return {"name": name, "pid": pid, "started": start_time(pid), "signal": int(stop_signal), "folder": str(folder)}


def _runs(server):
    """Whether the pid is still the process that was started, not a later one with the same number."""
    started = start_time(server["pid"])
    return started is not None and started == server["started"]


def _read():
    try:
        return json.loads(STATE.read_text())
    except FileNotFoundError:
        return None


def _write(state):
    STATE.parent.mkdir(parents=True, exist_ok=True)
    unfinished = STATE.with_suffix(".new")
    unfinished.write_text(json.dumps(state, indent=2) + "\n")
    unfinished.replace(STATE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
