"""What a restart keeps: owner, fence and deadline of every live lease, and the last issued fence when none is live.

By each route: snapshot, append-only file, its rewrite with and without preamble, reload, and SIGKILL under load.
"""

import contextlib
import itertools
import subprocess
import threading
import time
from pathlib import Path

import pytest
import redis

from harness import eventually, places
from harness.redis_server import server_version
from harness.locks import SKIPPED, FENCE_MAX, NO_RETRY, acquire, assert_ends_by, extend, inspect, release
from harness.payloads import prefix, record

AOF = {"appendonly": "yes", "appendfsync": "always", "auto-aof-rewrite-percentage": "0"}
NO_PREAMBLE = AOF | {"aof-use-rdb-preamble": "no"}
DEBUG = {"enable-debug-command": "yes"}

# Wall clocks of the reader and of two moments of the server: far less than the lease, more than a slow machine needs.
DEADLINE_WITHIN_S = 0.5


def connect(server):
    """A client of the server that repeats nothing."""
    return redis.Redis(port=server.port, protocol=2, **NO_RETRY)


def kill_and_start(server):
    server.kill()
    server.start()


def save_and_kill(server):
    with connect(server) as client:
        client.save()
    kill_and_start(server)


def save_in_background_and_kill(server):
    with connect(server) as client:
        client.bgsave()
        eventually(lambda: client.info("persistence")["rdb_bgsave_in_progress"], 0)
        assert client.info("persistence")["rdb_last_bgsave_status"] == "ok"
    kill_and_start(server)


def rewrite(client):
    """Rewrite the append-only file and wait for the end."""
    client.bgrewriteaof()
    wait_for_rewrite(client)


def wait_for_rewrite(client):
    def state():
        info = client.info("persistence")
        return info["aof_rewrite_in_progress"], info["aof_rewrite_scheduled"], info["aof_last_bgrewrite_status"]

    eventually(state, (0, 0, "ok"))


def rewrite_and_kill(server):
    with connect(server) as client:
        rewrite(client)
    kill_and_start(server)


def reload(server):
    with connect(server) as client:
        assert client.execute_command("DEBUG", "RELOAD") in (b"OK", True)


def load_aof(server):
    with connect(server) as client:
        assert client.execute_command("DEBUG", "LOADAOF") in (b"OK", True)


ROUTES = {
    "SAVE": ({}, save_and_kill),
    "BGSAVE": ({}, save_in_background_and_kill),
    "shutdown that saves": ({"save": "3600 1"}, lambda server: server.restart()),
    "AOF": (AOF, kill_and_start),
    "AOF rewritten": (AOF, rewrite_and_kill),
    "AOF rewritten without preamble": (NO_PREAMBLE, rewrite_and_kill),
    "AOF rewritten twice without preamble": (NO_PREAMBLE, lambda server: (rewrite(connect(server)), rewrite_and_kill(server))),
    "DEBUG RELOAD": (DEBUG, reload),
    "DEBUG RELOAD with AOF": (AOF | DEBUG, reload),
    "DEBUG LOADAOF": (AOF | DEBUG, load_aof),
    "DEBUG LOADAOF without preamble": (NO_PREAMBLE | DEBUG, load_aof),
}
each_route = pytest.mark.parametrize(("config", "route"), ROUTES.values(), ids=ROUTES)


def leases(client, keys):
    """Owner, fence and wall deadline of each lock."""
    with client.pipeline() as pipe:
        pipe.time()
        for key in keys:
            pipe.execute_command("FENCELOCK.INSPECT", key)
        (seconds, micros), *replies = pipe.execute()
    now = seconds + micros / 1_000_000
    replies = [dict(zip(reply[::2], reply[1::2], strict=True)) if reply else {} for reply in replies]
    return [(reply.get(b"owner"), reply.get(b"fence"), now + reply.get(b"ttl-ms", -3600_000) / 1000) for reply in replies]


def assert_same_leases(before, after):
    """The same holds, with the same absolute deadlines."""
    assert [lease[:2] for lease in after] == [lease[:2] for lease in before]
    apart = max(abs(one[2] - other[2]) for one, other in zip(before, after, strict=True))
    assert apart < DEADLINE_WITHIN_S, f"deadlines are {apart:.3f} s apart"


@each_route
def test_live_leases_and_the_last_fence_survive(make_redis, config, route):
    server = make_redis(("fence-clock", "no"), config)
    keys = [f"k{number}" for number in range(500)]
    with connect(server) as client, client.pipeline(transaction=False) as pipe:
        for key in keys:
            acquire(pipe, key, f"owner of {key}", 600_000)
        assert pipe.execute() == list(range(1, 501))
        for key in keys[::5]:
            extend(pipe, key, f"owner of {key}", 900_000)
        pipe.execute()
        for expected in range(501, 558):
            assert acquire(client, "free", "A", 60_000) == expected
            release(client, "free", "A")
        before = leases(client, keys)
    route(server)
    with connect(server) as client:
        assert_same_leases(before, leases(client, keys))
        assert client.dbsize() == len(keys)
        assert acquire(client, "free", "A", 1_000) == 558 + SKIPPED
        assert acquire(client, keys[0], "A", 1_000) is None
        assert release(client, keys[0], f"owner of {keys[0]}", 1) == 1


@each_route
def test_a_time_to_live_that_somebody_set_survives(make_redis, config, route):
    server = make_redis(config=DEBUG | config)
    ends_at = lambda client, key: client.execute_command("PEXPIRETIME", key)  # noqa: E731
    digest = lambda client: client.execute_command("DEBUG", "DIGEST")  # noqa: E731
    with connect(server) as client:
        for key in ("expire", "pexpire", "extended", "none"):
            acquire(client, key, "A", 600_000)
        assert (client.expire("expire", 900), client.pexpire("pexpire", 900_000), client.expire("extended", 900)) == (1, 1, 1)
        extend(client, "extended", "A", 600_000)
        ends, before = [ends_at(client, "expire"), ends_at(client, "pexpire"), -1, -1], digest(client)
        assert min(ends[:2]) > time.time() * 1_000 + 800_000
    route(server)
    with connect(server) as client:
        assert [ends_at(client, key) for key in ("expire", "pexpire", "extended", "none")] == ends
        assert digest(client) == before
        assert inspect(client, "expire").owner == b"A"


@each_route
def test_the_last_fence_survives_without_a_live_lease(make_redis, config, route):
    server = make_redis(("fence-clock", "no"), config)
    with connect(server) as client:
        for expected in range(1, 58):
            assert acquire(client, "k", "A", 60_000) == expected
            assert release(client, "k", "A") == 1
    route(server)
    with connect(server) as client:
        assert client.dbsize() == 0
        assert acquire(client, "k", "A", 60_000) == 58 + SKIPPED


@each_route
def test_any_name_and_any_owner_survive_and_the_next_fence_is_larger(make_redis, config, route):
    server = make_redis(config=config)
    names = [b"", b"a\0b\r\n", b"job{1", b"\xff\xfe", b"k" * 100_000]
    owners = [b"\0", b"\r\n", bytes(range(256)) * 2, b"\xff" * 512, b"x"]
    with connect(server) as client:
        fences = [acquire(client, name, owner, 600_000) for name, owner in zip(names, owners, strict=True)]
        before = leases(client, names)
    route(server)
    with connect(server) as client:
        assert_same_leases(before, leases(client, names))
        assert [lease[0] for lease in before] == owners
        assert acquire(client, "next", "A", 60_000) > max(fences)


@pytest.mark.parametrize("name", ["SAVE", "AOF", "AOF rewritten", "AOF rewritten without preamble", "DEBUG RELOAD"])
def test_a_lease_that_is_live_after_the_restart_ends_on_time(make_redis, name):
    config, route = ROUTES[name]
    server = make_redis(config=config)
    with connect(server) as client:
        began = time.monotonic()
        first = acquire(client, "k", "A", 800)
        granted = time.monotonic()
        acquire(client, "long", "A", 600_000)
    route(server)
    with connect(server) as client:
        lock = inspect(client, "k")
        # On a busy machine the lease may be over by now.
        assert time.monotonic() > began + 0.8 or lock.hold == (b"A", first)
        assert_ends_by(client, "k", granted + 0.8)
        eventually(lambda: inspect(client, "k"), None)
        # A wall clock that is slewed meanwhile may move the deadline by a millisecond.
        assert time.monotonic() >= began + 0.79
        eventually(client.dbsize, 1)
        assert acquire(client, "k", "B", 1_000) > first


@pytest.mark.parametrize("config", [{"save": "3600 1"}, AOF, NO_PREAMBLE], ids=["RDB", "AOF", "AOF without preamble"])
def test_a_lease_that_ended_during_the_downtime_is_free(make_redis, config):
    server = make_redis(config=config)
    with connect(server) as client:
        first = acquire(client, "k", "A", 150)
        granted = time.monotonic()
    server.stop()
    eventually(lambda: time.monotonic() > granted + 0.2)
    server.start()
    with connect(server) as client:
        assert inspect(client, "k") is None
        assert extend(client, "k", "A", 60_000, first) == 0
        eventually(client.dbsize, 0)
        assert acquire(client, "k", "B", 60_000) > first


@pytest.mark.parametrize("preamble", ["yes", "no"])
@pytest.mark.parametrize("live", [True, False], ids=["a live lease", "no live lease"])
def test_an_append_only_file_that_is_turned_on_later_has_it_all(make_redis, preamble, live):
    server = make_redis(("fence-clock", "no"), {"aof-use-rdb-preamble": preamble})
    with connect(server) as client:
        acquire(client, "k", "A", 600_000)
        if not live:
            release(client, "k", "A")
        client.config_set("appendonly", "yes")
        wait_for_rewrite(client)
        client.config_rewrite()
    server._config["appendonly"] = "yes"
    kill_and_start(server)
    with connect(server) as client:
        assert client.config_get("appendonly") == {"appendonly": "yes"}
        assert (inspect(client, "k") is not None) == live
        assert acquire(client, "next", "A", 1_000) == 2 + SKIPPED


@pytest.mark.parametrize("config", [AOF, NO_PREAMBLE], ids=["with preamble", "without preamble"])
def test_grants_during_a_rewrite_are_kept(make_redis, config):
    server = make_redis(("fence-clock", "no"), config | {"rdb-key-save-delay": "200", "key-load-delay": "0"} | DEBUG)
    with connect(server) as client:
        client.eval("for i = 1, 2000 do redis.call('FENCELOCK.ACQUIRE', 'old' .. i, 'A', 600000) end", 0)
        client.bgrewriteaof()
        granted = {}
        for number in itertools.count():
            granted[f"new{number}"] = acquire(client, f"new{number}", "A", 600_000)
            release(client, f"old{number + 1}", "A")
            if number >= 50 and not client.info("persistence")["aof_rewrite_in_progress"]:
                break
        wait_for_rewrite(client)
        released = len(granted)
    kill_and_start(server)
    with connect(server) as client:
        assert {key: inspect(client, key).fence for key in granted} == granted
        assert client.dbsize() == 2_000 - released + len(granted)
        assert acquire(client, "next", "A", 1_000) == max(granted.values()) + 1 + SKIPPED


@pytest.mark.parametrize("config", [AOF, NO_PREAMBLE], ids=["with preamble", "without preamble"])
def test_the_append_only_file_holds_effects_and_no_command_of_a_user(make_redis, config):
    server = make_redis(config=config)
    with connect(server) as client:
        acquire(client, "k", "A", 60_000)
        extend(client, "k", "A", 60_000)
        acquire(client, "k", "B", 60_000)
        extend(client, "k", "B", 60_000)
        release(client, "k", "B")
        acquire(client, "short", "A", 20)
        eventually(lambda: client.exists("short"), 0)
        release(client, "k", "A")
    written = (b"".join(file.read_bytes() for file in (server.data_dir / "appendonlydir").glob("*.incr.aof"))).upper()
    assert [written.count(name) for name in (b"FENCELOCK.ACQUIRE", b"FENCELOCK.EXTEND", b"FENCELOCK.RELEASE")] == [0] * 3
    # Two grants and one extension that was not refused; one release and one lease that expired.
    assert (written.count(b"FENCELOCK._APPLY"), written.count(b"FENCELOCK._END"), written.count(b"\r\nDEL\r\n")) == (3, 2, 0)
    assert (written.count(b"RELEASED"), written.count(b"EXPIRED")) == (1, 1)


@pytest.mark.parametrize("program", ["check-rdb", "check-aof"])
def test_the_checking_programs_accept_the_files(make_redis, program):
    def check(locks):
        server = make_redis(config=AOF)
        with connect(server) as client:
            client.set("string", "value")
            for number in range(locks):
                acquire(client, f"k{number}", "A", 600_000)
            rewrite(client)
            client.save()
        files = {
            "check-rdb": server.data_dir / "dump.rdb",
            "check-aof": next((server.data_dir / "appendonlydir").glob("*.manifest")),
        }
        return subprocess.run(
            # They are the server itself, called by another name.
            [f"{server_version()[0].lower()}-{program}", files[program]],
            executable=places.redis_server(),
            env=server._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )

    done = check(locks=100)
    # The program of Valkey 9.1 refuses every base file that its own server writes.
    refuses_all = program == "check-aof" and server_version() >= ("Valkey", (9, 1)) and check(locks=0).returncode != 0
    assert done.returncode == 0 or refuses_all, done.stdout
    assert "RDB" in done.stdout or refuses_all  # and not the server, which would have started


def test_a_snapshot_with_a_lock_that_cannot_be_read_is_refused_and_named(make_redis):
    """Better no server than one that gives a held lock to somebody else."""
    server = make_redis(config={"rdbchecksum": "no", "rdbcompression": "no"})
    with connect(server) as client:
        acquire(client, "k", "OWNER", 600_000)
        client.save()
    server.kill()
    file = server.data_dir / "dump.rdb"
    snapshot = file.read_bytes()
    at = snapshot.index(b"OWNER") - len(record(fence=1, owner=b""))
    assert snapshot[at] == 2
    assert prefix()[1:] in snapshot
    file.write_bytes(snapshot[:at] + b"\x63" + snapshot[at + 1 :])
    with pytest.raises(Exception, match="a lock is refused while loading"):
        server.start()


@contextlib.contextmanager
def snapshots_fail(call):
    """The server, which `call` sends words to, could not save and refuses the writes of clients meanwhile."""

    def save(status):
        call("BGSAVE")
        eventually(lambda: b"rdb_bgsave_in_progress:0" in (told := call("INFO", "persistence")) and status in told)

    [_, folder], [_, name] = (call("CONFIG", "GET", setting) for setting in ("dir", "dbfilename"))
    # A snapshot is renamed when it is complete, which a folder in its place does not allow.
    in_the_way = Path(folder.decode()) / name.decode()
    in_the_way.mkdir()
    call("CONFIG", "SET", "save", "3600 1000000")
    call("CONFIG", "SET", "stop-writes-on-bgsave-error", "yes")
    save(b"rdb_last_bgsave_status:err")
    yield
    in_the_way.rmdir()
    save(b"rdb_last_bgsave_status:ok")


def test_a_primary_whose_snapshot_failed_refuses_calls_and_serves_who_waits(start):
    lines = start(("fence-clock", "no"), {"appendonly": "yes"} | DEBUG)
    call, bound = lines.control.call, lines.open()
    assert [call("FENCELOCK.ACQUIRE", key, "A", 600_000) for key in ("held", "freed", "waited")] == [1, 2, 3]
    assert bound.call("FENCELOCK.ACQUIRE", "bound", "A", 600_000, "EPHEMERAL") == 4
    assert call("FENCELOCK.CLAIM", "resource", 4) == [b"fence", b"4"]
    waiter, heir = lines.queue("waited", "W", 600_000, 600_000), lines.queue("bound", "H", 600_000, 600_000)
    with snapshots_fail(call):
        before = [call("DEBUG", "DIGEST"), lines.stats()]
        for words in (
            ("ACQUIRE", "free", "B", 600_000),
            ("ACQUIRE", "held", "B", 600_000, "WAIT", 600_000),
            ("ACQUIRE", "held", "A", 600_000, "RETRY"),
            ("EXTEND", "held", "A", 600_000),
            ("RELEASE", "freed", "A"),
            ("CLAIM", "resource", 5),
            ("WRITE", "resource", 4, "field", "value"),
            ("RAISE", 9),
        ):
            assert call(f"FENCELOCK.{words[0]}", *words[1:]).code == "MISCONF", words
        script = "return redis.call('FENCELOCK.ACQUIRE', KEYS[1], 'B', 600000)"
        assert "MISCONF" in call("EVAL", script, 1, "free")
        assert [call("FENCELOCK.CHECK", "held", 1), call("FENCELOCK.INSPECT", "held")[:4]] == [1, [b"owner", b"A", b"fence", 1]]
        assert [call("DEBUG", "DIGEST"), lines.stats()] == before
        # Whoever waited before is served when the lease ends, however that is.
        call("CONFIG", "SET", "stop-writes-on-bgsave-error", "no")
        lines.control.call_all(
            ("FENCELOCK.EXTEND", "waited", "A", 50),
            ("FENCELOCK.EXTEND", "freed", "A", 50),
            ("CONFIG", "SET", "stop-writes-on-bgsave-error", "yes"),
        )
        assert waiter.only_reply() == 5
        bound.close()
        assert heir.only_reply() == 6
        eventually(lambda: call("EXISTS", "freed"), 0)
        assert call("FENCELOCK.RELEASE", "waited", "W").code == "MISCONF"
        digest = call("DEBUG", "DIGEST")
    assert call("DEBUG", "LOADAOF") == "OK"
    assert call("DEBUG", "DIGEST") == digest
    assert call("FENCELOCK.RELEASE", "waited", "W") == 1
    assert call("FENCELOCK.ACQUIRE", "free", "B", 600_000) == 7 + SKIPPED


@pytest.mark.parametrize("clock", ["yes", "no"])
def test_after_sigkill_under_load_no_fence_is_issued_twice_and_no_live_lease_is_lost(make_redis, clock):
    server = make_redis(("fence-clock", clock), AOF)
    fences, held = [], {}
    for number in range(2):
        seen, kept = load_and_kill(server, f"round{number}")
        assert len(seen) > 100, "the load was no load"
        assert len(kept) > 20
        held |= kept
        server.start()
        with connect(server) as client:
            first = acquire(client, f"first of {number}", "A", 600_000)
            assert first > max(seen)
            if clock == "no":
                # At most the calls that were under way have used up fences unseen.
                assert first <= max(seen) + LOADERS + 1 + SKIPPED
            fences += [*seen, first]
            for (owner, fence, earliest, latest), lease in zip(held.values(), leases(client, list(held)), strict=True):
                assert lease[:2] == (owner, fence)
                assert earliest - DEADLINE_WITHIN_S < lease[2] < latest + DEADLINE_WITHIN_S, (earliest, lease, latest)
    assert len(set(fences)) == len(fences)
    assert max(fences) <= FENCE_MAX


LOADERS = 4


def load_and_kill(server, name):
    """Run clients against the server until it is killed; the fences they got, and the leases they still hold, each with the
    earliest and the latest wall deadline that it may have."""
    stop_after = threading.Event()
    results = [None] * LOADERS

    def load(me):
        fences, held = [], {}
        results[me] = fences, held
        with connect(server) as client:
            try:
                for number in itertools.count():
                    key, owner = f"{name}-{me}-{number}".encode(), f"owner {number}".encode()
                    asked = time.time()
                    fence = acquire(client, key, owner, 600_000)
                    fences.append(fence)
                    # A contended name, too: its holder releases it at once.
                    shared = acquire(client, f"{name}-shared", owner, 600_000)
                    if shared is not None:
                        fences.append(shared)
                        release(client, f"{name}-shared", owner, shared)
                    if number % 3:
                        release(client, key, owner, fence)
                    else:
                        ttl_ms = 600_000
                        if number % 2:
                            ttl_ms, asked = 900_000, time.time()
                            extend(client, key, owner, ttl_ms, fence)
                        held[key] = owner, fence, asked + ttl_ms / 1000, time.time() + ttl_ms / 1000
                    if number == 60:
                        stop_after.set()
            except redis.ConnectionError:
                return

    threads = [threading.Thread(target=load, args=(me,)) for me in range(LOADERS)]
    for thread in threads:
        thread.start()
    assert stop_after.wait(30)
    server.kill()
    for thread in threads:
        thread.join()
    return [fence for fences, _ in results for fence in fences], {
        key: lease for _, held in results for key, lease in held.items()
    }
