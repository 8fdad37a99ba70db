"""A panic in any callback of the module is an error reply or a harmless outcome, and the server lives and works.

The drill build has `FENCELOCK._DRILL callback`, which makes that callback panic at its next call. Every callback is
drilled by the way in which the server really calls it. The last tests read the sources, so that none is left out.
"""

import os
import re
import signal
import socket
import time

import pytest
import redis

from harness import ServerFailed, eventually, places
from harness.redis_calls import Line
from harness.redis_server import server_version
from harness.locks import NO_RETRY, acquire, extend, inspect, release, wait_until_free

SOURCES = places.ROOT / "redis_fencelock" / "src"

# Callbacks that are not drilled by their names, each with the reason.
OUT_OF_REACH = {
    "aux_save_if_any": "drilled in place of aux_save where the server, from Redis 7.2 on, calls it",
    "on_probe": "called by the module alone, in a cluster",
    "set_switch": "called while the module loads, when no drill can have been ordered",
}


class Drill:
    """Servers with the drill build, and the order to panic in one callback. `client` is of the first server."""

    def __init__(self, make_redis, callback):
        self._make_redis = make_redis
        self._callback = callback
        self._clients = []
        self.servers = []
        self.client = self.another()
        self.server = self.servers[0]

    def another(self, **config):
        """The client of a further server."""
        settings = {"enable-debug-command": "yes", "repl-diskless-sync-delay": "0", "repl-diskless-sync": "no"}
        settings |= {name.replace("_", "-"): value for name, value in config.items()}
        self.servers.append(self._make_redis(config=settings, module=places.DRILL_MODULE))
        return self.connect(self.servers[-1])

    def connect(self, server):
        """One more client of a server."""
        self._clients.append(redis.Redis(port=server.port, protocol=2, **NO_RETRY))
        return self._clients[-1]

    def replica(self, **config):
        """The client of a further server that follows the first."""
        client = self.another(**config)
        client.replicaof("127.0.0.1", self.server.port)
        wait_for_link(client)
        return client

    def order(self, client=None):
        """Have the callback panic at its next call."""
        assert (client or self.client).execute_command("FENCELOCK._DRILL", self._callback) == b"OK"

    def acquire_and_order(self, ttl_ms, *then):
        """Acquire the lock `k`, order the panic and run one more command, in one write, so that the lease is live."""
        with self.client.pipeline(transaction=False) as pipe:
            acquire(pipe, "k", "A", ttl_ms)
            pipe.execute_command("FENCELOCK._DRILL", self._callback)
            if then:
                pipe.execute_command(*then)
            assert pipe.execute()[1] == b"OK"

    def panicked(self):
        """Whether a log has the caught panic."""
        return any(f"a panic in {self._callback} was caught" in server.log() for server in self.servers)

    def close(self):
        """Close the clients."""
        for client in self._clients:
            client.close()


@pytest.fixture
def drill(make_redis, callback):
    """A server whose callback of that name can be made to panic."""
    drill = Drill(make_redis, callback)
    pid = drill.server.pid
    yield drill
    assert drill.server.pid == pid
    drill.close()


def wait_for_link(replica):
    eventually(lambda: replica.info("replication").get("master_link_status"), "up")


def assert_usable(client):
    """Grants, extends, refuses, releases, and ends a lease on time."""
    fence = acquire(client, "usable", "A", 60_000)
    assert fence
    assert acquire(client, "usable", "B", 1_000) is None
    assert extend(client, "usable", "A", 90_000, fence) > 60_000
    assert inspect(client, "usable").hold == (b"A", fence)
    assert release(client, "usable", "A", fence) == 1
    before = time.monotonic()
    assert acquire(client, "usable", "B", 50) > fence
    eventually(lambda: client.exists("usable"), 0)
    assert time.monotonic() >= before + 0.05


# --- commands: an error reply, and nothing has changed

COMMANDS = {
    "on_acquire": ("ACQUIRE", "free", "B", "1000"),
    "on_steal": ("STEAL", "free", "B", "1000"),
    "on_extend": ("EXTEND", "held", "A", "1000"),
    "on_release": ("RELEASE", "held", "A"),
    "on_check": ("CHECK", "held", "1"),
    "on_inspect": ("INSPECT", "held"),
    "on_await": ("AWAIT", "held", "1", "1000"),
    "on_claim": ("CLAIM", "resource", "9"),
    "on_write": ("WRITE", "resource", "8", "field", "new"),
    "on_stats": ("STATS",),
    "on_top": ("TOP", "10"),
    "on_raise": ("RAISE", "9"),
    "on_help": ("HELP",),
    "on_probe": ("_PROBE", "held"),
    "on_drill": ("_DRILL", "nothing"),
}


@pytest.mark.parametrize(("callback", "words"), COMMANDS.items(), ids=COMMANDS)
def test_a_panic_in_a_command_is_an_error_reply_and_changes_nothing(drill, words):
    client = drill.client
    fence = acquire(client, "held", "A", 600_000)
    client.execute_command("FENCELOCK.CLAIM", "resource", 8)
    command, *args = words
    for way in (
        lambda: client.execute_command(f"FENCELOCK.{command}", *args),
        lambda: client.eval(f"return redis.call('FENCELOCK.{command}', unpack(ARGV))", 0, *args),
    ):
        drill.order()
        with pytest.raises(redis.ResponseError, match="internal error"):
            way()
        assert inspect(client, "held").hold == (b"A", fence)
        assert inspect(client, "held").ttl_ms > 500_000
        assert sorted(client.keys()) == [b"held", b"resource"]
        assert client.hgetall("resource") == {b"fence": b"8"}
    client.execute_command(f"FENCELOCK.{command}", *args)
    assert drill.panicked()
    assert_usable(client)


# --- the other callbacks: each with the call that leads to it, and what comes of it

DRILLS = []


def drills(callback, case=None):
    """Registers a function that makes the callback panic; it returns the client of a replica that has to work too."""

    def register(function):
        DRILLS.append(pytest.param(callback, function, id=f"{callback} {case}" if case else callback))
        return function

    return register


@drills("on_apply")
def on_apply(drill):
    """A replica that could not store an effect lacks that lock; the next effect puts it right."""
    replica = drill.replica()
    drill.order(replica)
    acquire(drill.client, "k", "A", 600_000)
    eventually(lambda: acquire(drill.client, f"more{time.monotonic_ns()}", "A", 600_000) and replica.dbsize() > 0)
    assert inspect(replica, "k") is None
    extend(drill.client, "k", "A", 600_000)
    eventually(lambda: inspect(replica, "k").hold, inspect(drill.client, "k").hold, retry_on=(AttributeError,))
    return replica


@drills("on_end")
def on_end(drill):
    """A replica that could not store an end keeps the lock, and is put right by the next holder."""
    replica = drill.replica()
    acquire(drill.client, "k", "A", 600_000)
    eventually(lambda: inspect(replica, "k"))
    drill.order(replica)
    release(drill.client, "k", "A")
    acquire(drill.client, "other", "A", 600_000)
    eventually(lambda: inspect(replica, "other"))
    assert inspect(replica, "k").owner == b"A"
    fence = acquire(drill.client, "k", "B", 600_000)
    eventually(lambda: inspect(replica, "k").hold, (b"B", fence))
    return replica


@drills("on_clock")
def on_clock(drill):
    """The next one, a second later, does as well."""
    replica = drill.replica()
    drill.order(replica)
    acquire(drill.client, "k", "A", 600_000)
    eventually(drill.panicked)
    return replica


@drills("on_field")
def on_field(drill):
    """A field is missing in the reply; the stamp is there."""
    drill.client.hset("resource", "total", 3)
    drill.order()
    told = drill.client.execute_command("FENCELOCK.CLAIM", "resource", 8)
    assert told in ([b"total", b"3"], [b"fence", b"8"])
    assert drill.client.hgetall("resource") == {b"total": b"3", b"fence": b"8"}


@drills("on_floor")
def on_floor(drill):
    """The same for a fence that is only propagated."""
    replica = drill.replica()
    drill.order(replica)
    drill.client.execute_command("FENCELOCK.RAISE", time.time_ns() // 1_000 + 1_000_000)
    acquire(drill.client, "k", "A", 600_000)
    eventually(lambda: inspect(replica, "k"))
    return replica


@drills("rdb_save", "in DUMP")
def rdb_save_in_dump(drill):
    """A dump that cannot be restored."""
    acquire(drill.client, "k", "A", 600_000)
    drill.order()
    dump = drill.client.dump("k")
    with pytest.raises(redis.ResponseError, match="Bad data format"):
        drill.client.restore("copy", 0, dump)
    assert inspect(drill.client, "k").owner == b"A"


@drills("rdb_load")
def rdb_load(drill):
    """A RESTORE that is refused."""
    acquire(drill.client, "k", "A", 600_000)
    dump = drill.client.dump("k")
    drill.order()
    with pytest.raises(redis.ResponseError, match="Bad data format"):
        drill.client.restore("copy", 0, dump)
    assert drill.client.exists("copy") == 0
    drill.client.restore("copy", 0, dump)
    assert inspect(drill.client, "copy").owner == b"A"


@drills("aux_load")
def full_synchronisation(drill):
    """A replica that fails to load the snapshot of its primary, and tries again."""
    replica = drill.another(repl_diskless_load="swapdb")
    acquire(drill.client, "k", "A", 600_000)
    drill.order(replica)
    replica.replicaof("127.0.0.1", drill.server.port)
    eventually(lambda: inspect(replica, "k"))
    assert inspect(replica, "k").hold == inspect(drill.client, "k").hold
    return replica


@drills("on_loading")
def on_loading(drill):
    acquire(drill.client, "k", "A", 600_000)
    drill.order()
    drill.client.execute_command("DEBUG", "RELOAD")
    assert inspect(drill.client, "k").owner == b"A"


@drills("on_async_load")
def on_async_load(drill):
    """What a swapped-out data set held is forgotten later than it might be."""
    drill.client.config_set("repl-backlog-size", 16_384)
    replica = drill.replica(repl_diskless_load="swapdb")
    replica_server = drill.servers[-1]
    acquire(drill.client, "old", "A", 100)
    drill.client.wait(1, 5_000)
    drill.order(replica)
    os.kill(replica_server.pid, signal.SIGSTOP)
    try:
        drill.client.client_kill_filter(_type="replica")
        acquire(drill.client, "new", "A", 600_000)
        drill.client.set("more than the backlog", "v" * 100_000)
    finally:
        os.kill(replica_server.pid, signal.SIGCONT)
    eventually(lambda: inspect(replica, "new"))
    return replica


@drills("free")
def free(drill):
    """Memory that is lost, and no more."""
    acquire(drill.client, "k", "A", 600_000)
    drill.order()
    drill.client.delete("k")
    assert inspect(drill.client, "k") is None


@drills("mem_usage")
def mem_usage(drill):
    acquire(drill.client, "k", "A", 600_000)
    drill.order()
    told = drill.client.memory_usage("k")
    # Valkey 8 reports what the module says of the value, the others add the key and its entry.
    assert told == 0 if server_version()[0] == "Valkey" and server_version()[1] < (9, 1) else told > 0


@drills("digest")
def digest(drill):
    acquire(drill.client, "k", "A", 600_000)
    drill.order()
    drill.client.execute_command("DEBUG", "DIGEST")


@drills("unlinked")
def unlinked(drill):
    """A renamed lock still ends on time and is still removed."""
    drill.acquire_and_order(100, "RENAME", "k", "z")
    wait_until_free(drill.client, "z")
    eventually(drill.client.dbsize, 0)


@drills("on_key")
def on_key(drill):
    """A renamed lock that the walk fails to see is free on time all the same."""
    drill.acquire_and_order(100, "RENAME", "k", "z")
    eventually(drill.panicked)
    wait_until_free(drill.client, "z")
    assert acquire(drill.client, "z", "B", 600_000)


@drills("on_timer")
def on_timer(drill):
    drill.acquire_and_order(100)
    eventually(drill.client.dbsize, 0)


@drills("on_cron")
def on_cron(drill):
    drill.order()
    eventually(drill.panicked)


@drills("on_fork")
def on_fork(drill):
    acquire(drill.client, "k", "A", 600_000)
    drill.order()
    drill.client.bgsave()
    eventually(lambda: drill.client.info("persistence")["rdb_bgsave_in_progress"], 0)
    assert drill.client.info("persistence")["rdb_last_bgsave_status"] == "ok"


@drills("on_flush")
def on_flush(drill):
    acquire(drill.client, "k", "A", 100)
    drill.order()
    drill.client.flushall()
    assert acquire(drill.client, "k", "B", 600_000)
    # Its deadline is behind that of the lease that was flushed.
    acquire(drill.client, "witness", "A", 100)
    eventually(lambda: drill.client.exists("witness"), 0)
    assert inspect(drill.client, "k").owner == b"B"


@drills("on_swap")
def on_swap(drill):
    """A lock in a swapped database still ends on time and is still removed."""
    drill.acquire_and_order(100, "SWAPDB", 0, 1)
    with redis.Redis(port=drill.server.port, db=1, protocol=2) as elsewhere:
        wait_until_free(elsewhere, "k")
        eventually(elsewhere.dbsize, 0)


@drills("on_role", "at a promotion")
def on_role_at_a_promotion(drill):
    """The server is a primary, and grants."""
    drill.another()
    drill.client.replicaof("127.0.0.1", drill.servers[-1].port)
    wait_for_link(drill.client)
    drill.order()
    drill.client.replicaof("NO", "ONE")
    eventually(lambda: acquire(drill.client, "k", "A", 600_000), retry_on=(redis.ResponseError,))


@drills("on_role", "at a demotion")
def on_role_at_a_demotion(drill):
    """The server is a replica: it removes nothing, and if it is writable it still grants nothing."""
    drill.another()
    drill.client.config_set("replica-read-only", "no")
    drill.order()
    drill.client.replicaof("127.0.0.1", drill.servers[-1].port)
    wait_for_link(drill.client)

    def refuses():
        try:
            acquire(drill.client, "free", "B", 600_000)
        except redis.exceptions.ReadOnlyError:
            return True
        return False

    eventually(refuses)
    drill.client.replicaof("NO", "ONE")


@drills("on_link")
def on_link(drill):
    """Who awaits an end on a replica gets the error with the next run of the server's cron."""
    drill.another()
    drill.client.replicaof("127.0.0.1", drill.servers[-1].port)
    wait_for_link(drill.client)
    drill.order()
    awaiter = Line(drill.server.port).send("FENCELOCK.AWAIT", "k", 2**53 - 1, 60_000)
    eventually(lambda: drill.client.info("fencelock")["fencelock_awaiters"], 1)
    drill.servers[-1].kill()
    assert awaiter.reply().code == "MASTERDOWN"
    awaiter.close()
    drill.client.replicaof("NO", "ONE")


@drills("on_replica")
def on_replica(drill):
    """The new replica's leases are too long by the time of the synchronisation, and there."""
    fence = acquire(drill.client, "k", "A", 600_000)
    drill.order()
    replica = drill.another()
    replica.replicaof("127.0.0.1", drill.server.port)
    wait_for_link(replica)
    eventually(lambda: inspect(replica, "k").hold, (b"A", fence))
    return replica


@drills("on_client")
def on_client(drill):
    """An ephemeral lease of a connection whose end went unseen ends by its time."""
    other = drill.connect(drill.server)
    acquire(other, "k", "A", 300, "EPHEMERAL")
    drill.order()
    other.close()
    eventually(drill.panicked)
    wait_until_free(drill.client, "k")


@drills("on_config")
def on_config(drill):
    drill.order()
    drill.client.config_set("maxmemory", "100mb")
    assert drill.client.config_get("maxmemory") == {"maxmemory": "104857600"}


@drills("on_evicted")
def on_evicted(drill):
    acquire(drill.client, "k", "A", 600_000)
    drill.order()
    drill.client.config_set("maxmemory-policy", "allkeys-random")
    drill.client.config_set("maxmemory", "1mb")
    eventually(lambda: drill.client.get("x") or drill.client.dbsize(), 0)
    drill.client.config_set("maxmemory", "0")


@drills("on_info")
def on_info(drill):
    drill.order()
    assert "redis_version" in drill.client.info("everything")


@drills("get_number")
def get_number(drill):
    """A wrong number, once."""
    drill.order()
    drill.client.config_get("fencelock.max-ttl-ms")
    assert drill.client.config_get("fencelock.max-ttl-ms") == {"fencelock.max-ttl-ms": "86400000"}


@drills("get_switch")
def get_switch(drill):
    drill.order()
    drill.client.config_get("fencelock.fence-clock")
    assert drill.client.config_get("fencelock.fence-clock") == {"fencelock.fence-clock": "yes"}


@drills("set_number")
def set_number(drill):
    """An error reply, and the setting is as it was."""
    drill.order()
    with pytest.raises(redis.ResponseError):
        drill.client.config_set("fencelock.max-ttl-ms", 5)
    assert drill.client.config_get("fencelock.max-ttl-ms") == {"fencelock.max-ttl-ms": "86400000"}


class Waiting:
    """A raw connection that waits for the lock `k`, which A holds."""

    def __init__(self, drill):
        self.fence = acquire(drill.client, "k", "A", 600_000)
        self.socket = socket.create_connection(("127.0.0.1", drill.server.port), timeout=10)
        self.socket.sendall(b"CLIENT ID\r\nFENCELOCK.ACQUIRE k W 400 WAIT 30000\r\n")
        self.client_id = self.reply()[1:]
        eventually(lambda: inspect(drill.client, "k").waiters, 1)

    def reply(self):
        """The next line of the server."""
        line = b""
        while not line.endswith(b"\r\n"):
            chunk = self.socket.recv(1)
            assert chunk, "the connection was closed"
            line += chunk
        return line.strip().decode()

    def still_works(self):
        """The connection is in order: one command, one reply."""
        self.socket.sendall(b"ECHO mark\r\n")
        assert (self.reply(), self.reply()) == ("$4", "mark")
        self.socket.close()


@drills("on_blocked_reply")
def on_blocked_reply(drill):
    """The waiter gets an error in place of its fence; the lease that it does not know of ends by its time at the latest."""
    waiting = Waiting(drill)
    drill.order()
    assert release(drill.client, "k", "A") == 1
    assert "internal error" in waiting.reply()
    waiting.still_works()
    wait_until_free(drill.client, "k")


@drills("on_blocked_timeout")
def on_blocked_timeout(drill):
    """CLIENT UNBLOCK is answered by an error; the lock goes on working."""
    waiting = Waiting(drill)
    drill.order()
    drill.client.execute_command("CLIENT", "UNBLOCK", waiting.client_id)
    assert "internal error" in waiting.reply()
    waiting.still_works()
    assert release(drill.client, "k", "A") == 1
    wait_until_free(drill.client, "k")
    eventually(drill.client.dbsize, 0)


@drills("on_blocked_gone")
def on_blocked_gone(drill):
    """A waiter whose end went unseen may be granted the lock, for one lease at most."""
    waiting = Waiting(drill)
    drill.order()
    waiting.socket.close()
    eventually(drill.panicked)
    assert release(drill.client, "k", "A") == 1
    wait_until_free(drill.client, "k")


@drills("on_blocked_free")
def on_blocked_free(drill):
    waiting = Waiting(drill)
    drill.order()
    assert release(drill.client, "k", "A") == 1
    assert int(waiting.reply()[1:]) > waiting.fence
    waiting.still_works()
    wait_until_free(drill.client, "k")


@pytest.mark.parametrize(("callback", "function"), DRILLS)
def test_a_panic_in_a_callback_harms_nobody(drill, function):
    """The server, and the replica if the callback was its, live and work afterwards."""
    replica = function(drill)
    eventually(drill.panicked)
    assert_usable(drill.client)
    if replica is not None:
        replica.replicaof("NO", "ONE")
        assert_usable(replica)


# --- saving: a file that lacks a lease must not take the place of one that has it


def as_called(callback):
    """The name of the callback that this server calls: 7.0 knows only the older one of two."""
    return "aux_save_if_any" if callback == "aux_save" and server_version()[1] >= (7, 2) else callback


SAVES = {
    "BGSAVE": ({}, lambda client: client.bgsave()),
    "BGREWRITEAOF": (
        {"appendonly": "yes", "appendfsync": "always", "aof-use-rdb-preamble": "no"},
        lambda client: client.bgrewriteaof(),
    ),
    "BGREWRITEAOF with preamble": ({"appendonly": "yes", "appendfsync": "always"}, lambda client: client.bgrewriteaof()),
}


@pytest.mark.parametrize(
    ("callback", "way"),
    [
        ("rdb_save", "BGSAVE"),
        ("rdb_save", "BGREWRITEAOF with preamble"),
        ("aux_save", "BGSAVE"),
        ("aux_save", "BGREWRITEAOF with preamble"),
        ("aof_rewrite", "BGREWRITEAOF"),
    ],
)
def test_a_panic_in_a_child_that_saves_loses_no_lease_at_the_next_start(make_redis, callback, way):
    config, save = SAVES[way]
    server = make_redis(config=config, module=places.DRILL_MODULE)
    with redis.Redis(port=server.port, protocol=2, **NO_RETRY) as client:
        callback = as_called(callback)
        fence = acquire(client, "k", "A", 600_000)
        if not config:
            client.save()
        client.execute_command("FENCELOCK._DRILL", callback)
        try:
            save(client)
        except redis.ResponseError:
            pass  # an error reply is a right answer
        eventually(lambda: f"a panic in {callback} was caught" in server.log())
        eventually(lambda: [client.info("persistence")[f"{kind}_in_progress"] for kind in ("rdb_bgsave", "aof_rewrite")], [0, 0])
        assert_usable(client)
    server.kill()
    server.start()
    with redis.Redis(port=server.port, protocol=2, **NO_RETRY) as client:
        assert inspect(client, "k").hold == (b"A", fence)
        assert acquire(client, "next", "A", 1_000) > fence


@pytest.mark.parametrize("callback", ["rdb_save", "aux_save"])
def test_a_snapshot_of_save_that_panicked_is_refused_at_the_start_and_loses_nothing_in_silence(make_redis, callback):
    """SAVE runs in the server itself, and a module cannot make it fail. What it wrote does not load."""
    server = make_redis(module=places.DRILL_MODULE)
    with redis.Redis(port=server.port, protocol=2, **NO_RETRY) as client:
        callback = as_called(callback)
        fence = acquire(client, "k", "A", 600_000)
        client.execute_command("FENCELOCK._DRILL", callback)
        try:
            client.save()
        except redis.ResponseError:
            pass  # better still
        assert f"a panic in {callback} was caught" in server.log()
        assert_usable(client)
    server.kill()
    try:
        server.start()
    except ServerFailed:
        return
    with redis.Redis(port=server.port, protocol=2, **NO_RETRY) as client:
        assert inspect(client, "k").hold == (b"A", fence)
        assert acquire(client, "next", "A", 1_000) > fence


# --- the sources


def rust_sources():
    """The module's sources by file name, without comments."""
    return {str(path.relative_to(SOURCES)): re.sub(r"//.*", "", path.read_text()) for path in sorted(SOURCES.glob("**/*.rs"))}


def callbacks_in_sources():
    """The name of every callback that the macros make."""
    text = "\n".join(rust_sources().values())
    whole = re.findall(r"callback!\s*\{[^{]*?\bfn\s+(\w+)", text)
    short = re.findall(r"\b(?:command|command_callback|event)!\(\s*(?:#\[[^\]]*\]\s*)*(\w+)", text)
    return set(whole) | set(short)


def test_every_function_that_the_server_calls_is_made_by_the_guarded_macro():
    """A function in a type, `extern "C" fn(...)`, has no name; what `RedisModule_OnLoad` does is guarded."""
    named = [
        (file, name)
        for file, text in rust_sources().items()
        for name in re.findall(r'extern\s+"C(?:-unwind)?"\s+fn\s+(\$?\w+)', text)
    ]
    assert named == [("ffi/guard.rs", "$name"), ("lib.rs", "RedisModule_OnLoad")]
    sources = rust_sources()
    assert re.search(r"macro_rules! callback \{.*?extern \"C\" fn \$name.*?guarded\(", sources["ffi/guard.rs"], re.S)
    assert "ffi::on_load(" in sources["lib.rs"].split("fn RedisModule_OnLoad")[1].split("\n}")[0]
    assert "guarded(" in sources["ffi/register.rs"].split("fn on_load")[1].split("\n}")[0]
    assert "catch_unwind" in sources["ffi/guard.rs"].split("fn guarded")[1].split("\n}")[0]


def test_nothing_else_is_exported_to_the_server():
    text = "\n".join(rust_sources().values())
    assert re.findall(r"no_mangle\)?\]", text) == ["no_mangle)]"]


def test_every_callback_of_the_sources_is_drilled_here_or_out_of_reach():
    drilled = {parameter.values[0] for parameter in DRILLS} | set(COMMANDS) | {"rdb_save", "aux_save", "aof_rewrite"}
    assert callbacks_in_sources() == drilled | set(OUT_OF_REACH)
