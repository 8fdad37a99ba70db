"""Two versions of the module at once: what an older one has written is read, and what a newer one writes is read as far as it
says, or refused by name.

The older side is records of version 1 that are kept here byte for byte, and today's module; the newer side is a primary made
by hand.
"""

import contextlib
import shutil
import socket
import struct
import threading
import time

import pytest
import redis

from contenders import Contenders
from harness import RedisServer, ServerFailed, eventually, places
from harness.redis_calls import Lines, encoded
from harness.locks import NO_RETRY, acquire, extend, inspect, release
from harness.payloads import MODULE_EOF, crc64, module_id, prefix, record, seal, string
from test_redis_failover import EitherServer, last_fence
from test_redis_replication import DEBUG, FAST_SYNC, follow, wait_for_link, wait_until_equal

LONG_MS = 60_000
# A hold of owner `first` with fence 1795968243472377, written by version 1 at its grant: 60 s left; and one with every option:
# held for 2 s, a longest hold of 90 s, a delay of 5 s, bound to a connection. These bytes must be read for ever.
PLAIN_1 = bytes.fromhex("0100 f9172e716c610600 f9172e716c610600 0000000000000000 0087930300000000") + b"first"
ALL_1 = bytes.fromhex("0107 fa172e716c610600 7a9c4c716c610600 80841e0000000000 0087930300000000")
ALL_1 += bytes.fromhex("804a5d0500000000 404b4c0000000000") + b"second"
# The last issued fence in a snapshot of version 1: 1795968243472378, and the type's encoding 1.
AUX_1 = bytes.fromhex("f781 7de9dc7a5a1c9001 0201 0281 0006616c712e17fa 00")
FENCES = 1_795_968_243_472_377, 1_795_968_243_472_378


class HandMadePrimary:
    """Speaks as much of the replication protocol as a replica asks for, and sends it what a test wants."""

    def __init__(self, snapshot):
        self._snapshot = snapshot
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._replica = None
        self._online = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def send(self, *words):
        """One command of the stream."""
        assert self._online.wait(60), "no replica came"
        self._replica.sendall(encoded(words))

    def close(self):
        for one in (self._listener, self._replica):
            if one is not None:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()
        self._thread.join(60)

    def _serve(self):
        # A replica that refuses the snapshot comes again, and gets the same.
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._greet(connection)

    def _greet(self, connection):
        self._replica = connection
        asked = b""
        while chunk := connection.recv(65_536):
            asked += chunk
            while (end := _end_of_request(asked)) is not None:
                request, asked = asked[:end].upper(), asked[end:]
                if b"\r\nPSYNC\r\n" in request:
                    connection.sendall(b"+FULLRESYNC %s 0\r\n" % (b"a" * 40))
                    connection.sendall(b"$%d\r\n%s" % (len(self._snapshot), self._snapshot))
                    connection.sendall(encoded(("SELECT", 0)))
                    self._online.set()
                elif b"\r\nACK\r\n" not in request:
                    connection.sendall(b"+PONG\r\n" if b"PING" in request else b"+OK\r\n")


def _end_of_request(data):
    """Where the first request ends, or None while it has not come whole."""
    if not data.startswith(b"*") or b"\r\n" not in data:
        return None
    words, at = int(data[1 : data.index(b"\r\n")]), data.index(b"\r\n") + 2
    for _ in range(words):
        line = data.find(b"\r\n", at)
        if line < 0:
            return None
        at = line + 2 + int(data[at + 1 : line]) + 2
        if at > len(data):
            return None
    return at


@pytest.fixture
def primary_with(closing):
    """A factory of hand-made primaries."""
    return lambda snapshot: closing(HandMadePrimary(snapshot))


@pytest.fixture
def start(make_redis, closing):
    """A factory of (server, client); takes make_redis' arguments."""

    def make(**kwargs):
        server = make_redis(config={**DEBUG, **FAST_SYNC, **kwargs.pop("config", {})}, **kwargs)
        return server, closing(redis.Redis(port=server.port, protocol=2, **NO_RETRY))

    return make


@pytest.fixture
def snapshot(start):
    """A snapshot with the lock `k` of `OWNER`, as today's module writes it, without a checksum and not compressed."""
    server, client = start(config={"rdbchecksum": "no", "rdbcompression": "no"})
    acquire(client, "k", "OWNER", LONG_MS)
    client.save()
    return (server.data_dir / "dump.rdb").read_bytes()


def at_record(snapshot):
    """Where the record of `OWNER` begins."""
    at = snapshot.index(b"OWNER") - len(record(fence=1, owner=b""))
    assert snapshot[at] == 2
    return at


def with_record_version(snapshot, version):
    at = at_record(snapshot)
    return snapshot[:at] + bytes([version]) + snapshot[at + 1 :]


def with_type_encoding(snapshot, encoding):
    mine = struct.pack(">Q", module_id())
    # The last place: the first is that of the last issued fence.
    at = snapshot.rindex(mine)
    return snapshot[:at] + struct.pack(">Q", module_id(encoding=encoding)) + snapshot[at + 8 :]


def assert_holds_of_version_1(client, since, unknown_ms):
    """Both kept records, which were made at `since` (monotonic, seconds), or so many milliseconds before, at the earliest."""
    plain, all_of_it = inspect(client, "plain"), inspect(client, "all")
    passed_ms = (time.monotonic() - since) * 1000 + unknown_ms
    assert (plain.hold, all_of_it.hold) == ((b"first", FENCES[0]), (b"second", FENCES[1]))
    for lock in (plain, all_of_it):
        assert lock.state == b"held"
        assert LONG_MS - passed_ms <= lock.ttl_ms <= LONG_MS
    assert (plain.maxhold_left_ms, plain.held_ms <= passed_ms) == (None, True)
    assert 88_000 - passed_ms <= all_of_it.maxhold_left_ms <= 88_000
    assert 2_000 <= all_of_it.held_ms <= 2_000 + passed_ms


# --- what an older one has written


def test_the_kept_records_are_what_the_payload_tools_make_and_what_the_module_writes(start):
    assert record(fence=FENCES[0], written_us=FENCES[0], owner=b"first", version=1) == PLAIN_1
    fields = {"version": 1, "held_us": 2_000_000, "flags": 7, "extra": struct.pack("<QQ", 90_000_000, 5_000_000), "owner": b"second"}
    assert record(fence=FENCES[1], written_us=FENCES[1] + 2_000_000, **fields) == ALL_1
    _, client = start(config={"rdbcompression": "no"})
    fence = acquire(client, "k", "first", LONG_MS)
    dump = client.dump("k")
    at = dump.index(bytes([2, 0]) + struct.pack("<Q", fence))
    written_us, held_us, left_us, incarnation, reading = struct.unpack_from("<5Q", dump, at + 10)
    # A server writes and reads in one moment, and draws its number at random.
    kept = record(fence=fence, written_us=written_us, held_us=held_us, left_us=left_us, issued=(incarnation, reading), owner=b"first")
    assert kept in dump
    assert incarnation > 2**32
    assert abs(written_us - reading) < 60_000_000


def test_a_replica_stores_what_a_primary_of_version_1_sends(start, primary_with, snapshot):
    primary = primary_with(snapshot)
    _, replica = start()
    replica.replicaof("127.0.0.1", primary.port)
    sent = time.monotonic()
    primary.send("FENCELOCK._APPLY", "plain", PLAIN_1)
    primary.send("FENCELOCK._APPLY", "all", ALL_1)
    primary.send("FENCELOCK._FLOOR", FENCES[1] + 10)
    eventually(lambda: last_fence(replica) >= FENCES[1] + 10)
    assert_holds_of_version_1(replica, sent, 1)
    assert inspect(replica, "k").owner == b"OWNER"
    replica.replicaof("NO", "ONE")
    assert extend(replica, "plain", "first", 90_000, FENCES[0]) > LONG_MS
    # The longest hold and the fence mean what they meant.
    assert extend(replica, "all", "second", 200_000, FENCES[1]) <= 88_000
    assert release(replica, "all", "second", FENCES[1]) == 1
    assert acquire(replica, "all", "B", LONG_MS) > FENCES[1] + 10


@pytest.mark.parametrize("kind", ["stream of commands", "snapshot"])
def test_a_file_of_version_1_is_loaded(start, kind):
    server, client = start(config={"appendonly": "yes"} if kind == "stream of commands" else {})
    acquire(client, "k", "A", LONG_MS)
    # Files count the time since they were written: records of this moment, but for their kept form.
    began = time.monotonic()
    now_us = time.time_ns() // 1_000
    records = {b"plain": PLAIN_1, b"all": ALL_1}
    records = {key: one[:10] + struct.pack("<Q", now_us) + one[18:] for key, one in records.items()}
    if kind == "snapshot":
        for key, one in records.items():
            client.restore(key, 0, seal(prefix(encoding=1) + string(one) + bytes([MODULE_EOF])))
        client.save()
    server.kill()
    if kind == "stream of commands":
        [file] = (server.data_dir / "appendonlydir").glob("*.incr.aof")
        with file.open("ab") as end:
            end.writelines(encoded(("FENCELOCK._APPLY", key, one)) for key, one in records.items())
    server.start()
    assert_holds_of_version_1(client, began, 100)
    assert sorted(client.keys()) == [b"all", b"k", b"plain"]


def test_the_last_fence_of_a_snapshot_of_version_1_is_loaded(make_redis):
    assert AUX_1[2:10] == struct.pack(">Q", module_id(encoding=1))
    server = make_redis()
    server.kill()
    body = b"REDIS0010" + AUX_1 + bytes([0xFE, 0, 0xFF])
    (server.data_dir / "dump.rdb").write_bytes(body + struct.pack("<Q", crc64(body)))
    server.start()
    with redis.Redis(port=server.port, protocol=2) as client:
        assert last_fence(client) == FENCES[1]


# --- what a newer one writes


def test_a_replica_reads_over_what_a_newer_primary_says_may_be_ignored(start, primary_with, snapshot):
    """More words, flags and fields; a reason that is not known yet."""
    primary = primary_with(snapshot)
    server, replica = start()
    replica.replicaof("127.0.0.1", primary.port)
    newer = {"flags": 0xC0, "fields": bytes([1, 1, 99, 0x7F, 2, 5, 5])}
    for key in ("kept", "ended"):
        primary.send("FENCELOCK._APPLY", key, record(fence=FENCES[0], owner=b"A", **newer), "more", "words")
    primary.send("FENCELOCK._CLOCK", 7, 8, "more")
    primary.send("FENCELOCK._END", "kept", FENCES[1], "released", "more")
    primary.send("FENCELOCK._END", "ended", FENCES[0], "whatever", "more")
    primary.send("FENCELOCK._END", "none", FENCES[0], "whatever")
    primary.send("SET", "text", "stays")
    primary.send("FENCELOCK._END", "text", FENCES[0], "released")
    primary.send("FENCELOCK._FLOOR", FENCES[1] + 10, "more")
    eventually(lambda: last_fence(replica) >= FENCES[1] + 10)
    assert inspect(replica, "kept").hold == (b"A", FENCES[0])
    assert (replica.exists("ended"), replica.get("text")) == (0, b"stays")
    assert "CRITICAL" not in server.log()


def test_a_replica_says_that_the_stream_is_newer_and_stores_none_of_it(start, primary_with, snapshot):
    primary = primary_with(snapshot)
    server, replica = start()
    replica.replicaof("127.0.0.1", primary.port)
    primary.send("FENCELOCK._APPLY", "newer", b"\x03" + PLAIN_1[1:])
    primary.send("FENCELOCK._APPLY", "plain", PLAIN_1)
    # It goes on with what it can read.
    eventually(lambda: inspect(replica, "plain"))
    assert inspect(replica, "newer") is None
    assert "a replicated lock cannot be read: Version(3); is the primary's module newer?" in server.log()
    assert server.pid


@pytest.mark.parametrize("newer", [with_record_version, with_type_encoding])
def test_a_replica_refuses_a_snapshot_that_is_newer_and_names_the_reason(start, primary_with, snapshot, newer):
    primary = primary_with(newer(snapshot, 3))
    server, replica = start()
    replica.replicaof("127.0.0.1", primary.port)
    primary._online.wait(60)
    # Servers differ: some try again, some end rather than run with half of a data set. None has the other half.
    eventually(lambda: refusals(server.log()))
    if server.pid:
        with contextlib.suppress(redis.RedisError):
            assert replica.info("replication")["master_link_status"] == "down"
            assert replica.dbsize() == 0


@pytest.mark.parametrize("newer", [with_record_version, with_type_encoding])
def test_a_server_does_not_start_from_a_snapshot_that_is_newer(make_redis, snapshot, newer):
    server = make_redis()
    server.kill()
    (server.data_dir / "dump.rdb").write_bytes(newer(snapshot, 3))
    with pytest.raises(ServerFailed):
        server.start()
    assert refusals(server.log())


@pytest.mark.parametrize("preamble", ["yes", "no"])
def test_a_server_that_loads_a_newer_append_only_file_names_the_reason(make_redis, preamble):
    server = make_redis(config={"appendonly": "yes", "aof-use-rdb-preamble": preamble})
    server.kill()
    [file] = (server.data_dir / "appendonlydir").glob("*.incr.aof")
    with file.open("ab") as end:
        end.write(encoded(("FENCELOCK._APPLY", "newer", b"\x03" + PLAIN_1[1:])))
    with contextlib.suppress(ServerFailed):
        server.start()
    assert "a replicated lock cannot be read: Version(3)" in server.log()


def refusals(log):
    """What the module said of a version that it does not read."""
    said = ("a lock is refused while loading: Version(3)", "a lock in encoding 3 cannot be read: this module reads up to 2")
    return [line for line in log.splitlines() if any(words in line for words in said)]


# --- a rolling upgrade


def test_servers_that_are_upgraded_one_after_the_other_lose_no_hold_and_no_order(tmp_path):
    """Replica first, failover, then the former primary, and back: two modules side by side, under load."""
    older = tmp_path / "older.so"
    shutil.copy(places.MODULE, older)
    settings = {**DEBUG, **FAST_SYNC}
    with contextlib.ExitStack() as stack:
        one, two = (RedisServer(config=settings, module=older) for _ in range(2))
        for server in (one, two):
            stack.callback(server.close)
            server.start()
        clients = {server: redis.Redis(port=server.port, protocol=2) for server in (one, two)}
        for client in clients.values():
            stack.callback(client.close)
        follow(clients[two], one)
        began, kept_ms = time.monotonic(), 600_000
        first = acquire(clients[one], "kept", "A", kept_ms, "MAXHOLD", kept_ms)
        names = ["lock 1", "lock 2"]
        with Contenders(lambda: EitherServer(one.port, two.port), names) as load:
            for primary, replica in ((one, two), (two, one)):
                load.go_on()
                replica.kill()
                replica._module = places.MODULE
                replica.start()
                follow(clients[replica], primary)
                load.go_on()
                with Lines(primary.port) as lines:
                    waiter = lines.queue("kept", "W", LONG_MS, LONG_MS)
                    lines.control.call("FAILOVER", "TO", "127.0.0.1", replica.port)
                    assert waiter.reply().code == "UNBLOCKED"
                eventually(lambda replica=replica: clients[replica].info("replication")["role"], "master")
                wait_for_link(clients[primary])
            load.go_on()
        wait_until_equal(clients[one], clients[two])
        for client in clients.values():
            assert inspect(client, "kept").hold == (b"A", first)
            # What a full synchronisation takes is not subtracted from what is left.
            kept = inspect(client, "kept")
            passed_ms = (time.monotonic() - began) * 1000
            assert kept_ms - passed_ms - 1_000 < kept.ttl_ms <= kept.maxhold_left_ms + 1
        load.assert_fences_grow()
        load.assert_one_holder_at_a_time()
        assert load.lost == []
        assert [server._module for server in (one, two)] == [places.MODULE] * 2
