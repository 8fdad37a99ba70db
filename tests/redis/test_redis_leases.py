"""A lease from its grant to its end: who gets it, who may extend and release it, and what everyone else gets.

What servers keep of it is in test_redis_persistence and test_redis_replication, what becomes of its key in
test_redis_keyspace.
"""

import asyncio
import socket
import threading
import time

import pytest
import redis
import redis.asyncio

from harness import eventually
from harness.redis_calls import Line
from test_redis_replication import INTERNAL
from harness.locks import FENCE_MAX, Lock, acquire, assert_ends_on_time, extend, inspect, release, wait_until_free

ODD_NAMES = {
    "empty": b"",
    "NUL": b"a\0b",
    "newlines": b"a\r\nb\n",
    "a brace left open": b"job{1",
    "empty braces": b"{}x",
    "braces inside": b"a{b}c",
    "braces alone": b"{b}",
    "spaces": b" a b ",
    "no UTF-8": b"\xff\xfe\x80",
    "every byte": bytes(range(256)),
    "a megabyte": b"k" * 2**20,
}


@pytest.fixture
def clients(redis_server, closing):
    """A factory of further clients of the shared server; `protocol` is 2 or 3."""
    return lambda protocol=2: closing(redis.Redis(port=redis_server.port, protocol=protocol))


@pytest.fixture(params=["RESP2", "RESP3", "script"])
def speaker(request, r, clients):
    """A client by each way in: both protocols, and a Lua script that calls the command."""
    return {"RESP2": lambda: r, "RESP3": lambda: clients(protocol=3), "script": lambda: ScriptClient(r)}[request.param]()


class ScriptClient:
    """Runs each command from inside a Lua script; a nil reply of a command is false in Lua and null to the client."""

    def __init__(self, client):
        self._client = client

    def execute_command(self, command, key, *args):
        """Like the method of a client."""
        return self._client.eval(f"return redis.call('{command}', KEYS[1], unpack(ARGV))", 1, key, *args)


# --- a grant


def test_a_free_lock_is_granted_with_a_fence(speaker):
    fence = acquire(speaker, "k", "A", 10_000)
    assert isinstance(fence, int)
    assert 0 < fence <= FENCE_MAX


def test_a_held_lock_is_busy_and_its_lease_is_left_alone(r, speaker):
    fence = acquire(r, "k", "A", 10_000)
    before = inspect(r, "k")
    assert acquire(speaker, "k", "B", 60_000) is None
    after = inspect(r, "k")
    assert after.hold == before.hold == (b"A", fence)
    assert after.ttl_ms <= before.ttl_ms
    assert 10_000 <= after.ttl_ms + after.held_ms <= 10_001


def test_the_owner_itself_is_told_busy_like_anyone_else(r):
    fence = acquire(r, "k", "A", 10_000)
    assert acquire(r, "k", "A", 60_000) is None
    assert inspect(r, "k").hold == (b"A", fence)
    assert inspect(r, "k").ttl_ms <= 10_000


def test_locks_of_other_names_and_other_databases_are_free(r, redis_server):
    first = acquire(r, "k", "A", 10_000)
    second = acquire(r, "k2", "A", 10_000)
    with redis.Redis(port=redis_server.port, db=1) as elsewhere:
        third = acquire(elsewhere, "k", "A", 10_000)
    assert first < second < third


def test_a_lease_is_held_to_its_deadline_and_free_after(r):
    began = time.monotonic()
    acquire(r, "k", "A", 300)
    assert_ends_on_time(r, "k", began, time.monotonic(), 300)
    assert acquire(r, "k", "B", 10_000)


def test_a_lease_that_ran_out_leaves_no_key_behind(r):
    with r.pipeline() as transaction:
        acquire(transaction, "k", "A", 50)
        transaction.dbsize()
        assert transaction.execute()[1] == 1
    eventually(r.dbsize, 0)


def test_the_longest_lease_is_held_for_a_day(r):
    acquire(r, "k", "A", 86_400_000)
    lock = inspect(r, "k")
    assert lock.ttl_ms <= 86_400_000 <= lock.ttl_ms + lock.held_ms <= 86_400_001


def test_a_lock_key_has_a_type_of_its_own_and_no_ttl(r):
    acquire(r, "k", "A", 10_000)
    assert r.type("k") == b"fencelock"
    assert r.pttl("k") == -1


@pytest.mark.parametrize("name", ODD_NAMES.values(), ids=ODD_NAMES)
def test_any_bytes_are_a_name(r, name):
    fence = acquire(r, name, "A", 10_000)
    assert acquire(r, name, "B", 10_000) is None
    assert inspect(r, name).hold == (b"A", fence)
    assert extend(r, name, "A", 20_000, fence) > 10_000
    assert r.keys() == [name]
    assert release(r, name, "A", fence) == 1
    assert r.dbsize() == 0


@pytest.mark.parametrize("name", ODD_NAMES.values(), ids=ODD_NAMES)
def test_a_lock_of_any_name_ends_on_time(r, name):
    acquire(r, name, "A", 30)
    eventually(r.dbsize, 0)
    assert acquire(r, name, "B", 1_000)


@pytest.mark.parametrize(
    "owner",
    [b"x", b"\0", b"\n", b"x" * 512, b"\xff" * 512, bytes(range(256)) * 2],
    ids=["1 byte", "NUL", "newline", "512 bytes", "512 bytes of 0xff", "every byte twice"],
)
def test_any_1_to_512_bytes_are_an_owner(r, owner):
    fence = acquire(r, "k", owner, 10_000)
    assert inspect(r, "k").owner == owner
    assert extend(r, "k", owner, 20_000) > 10_000
    assert release(r, "k", owner) == 1
    assert fence


@pytest.mark.parametrize(
    "other", [b"a", b"A\0", b"A ", b"AA", b"B", b"\xc4"], ids=["case", "NUL", "space", "longer", "other", "byte"]
)
def test_owners_are_compared_byte_for_byte(r, other):
    acquire(r, "k", "A", 10_000)
    assert extend(r, "k", other, 20_000) == 0
    assert release(r, "k", other) == 0
    assert inspect(r, "k").owner == b"A"


# --- a release


def test_a_released_lock_is_free_at_once(r, speaker):
    fence = acquire(speaker, "k", "A", 10_000)
    assert release(speaker, "k", "A", fence) == 1
    assert (inspect(r, "k"), r.dbsize()) == (None, 0)
    assert acquire(speaker, "k", "B", 10_000) > fence


def test_a_release_that_is_repeated_is_0(r, speaker):
    fence = acquire(r, "k", "A", 10_000)
    assert [release(speaker, "k", "A", fence) for _ in range(3)] == [1, 0, 0]


def test_a_release_of_a_free_lock_is_0(r):
    assert release(r, "never", "A") == 0
    assert r.dbsize() == 0


def test_a_late_release_does_not_free_the_successors_lock(r):
    first = acquire(r, "inv:7", "A", 100)
    wait_until_free(r, "inv:7")
    second = acquire(r, "inv:7", "B", 60_000)
    assert second > first
    assert release(r, "inv:7", "A", first) == 0
    assert release(r, "inv:7", "A", second) == 0
    assert release(r, "inv:7", "B", first) == 0
    assert acquire(r, "inv:7", "C", 1_000) is None
    assert release(r, "inv:7", "B", second) == 1
    assert acquire(r, "inv:7", "C", 1_000) > second


def test_a_stale_thread_that_shares_the_owner_is_told_apart_by_the_fence(r):
    first = acquire(r, "k", "worker-1", 50)
    wait_until_free(r, "k")
    second = acquire(r, "k", "worker-1", 30_000)
    assert extend(r, "k", "worker-1", 60_000, first) == 0
    assert release(r, "k", "worker-1", first) == 0
    assert inspect(r, "k").hold == (b"worker-1", second)
    assert inspect(r, "k").ttl_ms <= 30_000


def test_a_grant_whose_reply_was_lost_is_kept_and_released_by_its_owner(r, redis_server):
    with socket.create_connection(("127.0.0.1", redis_server.port)) as lost:
        lost.sendall(b"FENCELOCK.ACQUIRE k A 60000\r\n")
    fence = eventually(lambda: inspect(r, "k")).fence
    assert acquire(r, "k", "A", 60_000) is None
    assert inspect(r, "k").hold == (b"A", fence)
    assert release(r, "k", "A") == 1
    assert acquire(r, "k", "B", 1_000) > fence


def test_a_release_whose_reply_was_lost_is_0_when_it_is_repeated(r, redis_server):
    fence = acquire(r, "k", "B", 60_000)
    with socket.create_connection(("127.0.0.1", redis_server.port)) as lost:
        lost.sendall(b"FENCELOCK.RELEASE k B FENCE %d\r\n" % fence)
    eventually(lambda: inspect(r, "k"), None)
    successor = acquire(r, "k", "B", 60_000)
    assert release(r, "k", "B", fence) == 0
    assert inspect(r, "k").hold == (b"B", successor)


# --- an extension


def test_an_extension_replaces_the_time_that_was_left(speaker):
    acquire(speaker, "k", "A", 10_000)
    for ttl_ms in (60_000, 10_000, 30_000):
        began = time.monotonic()
        left = extend(speaker, "k", "A", ttl_ms)
        assert ttl_ms - 100 <= left <= ttl_ms
        left_now = inspect(speaker, "k").ttl_ms
        assert left - (time.monotonic() - began) * 1000 - 1 <= left_now <= left


def test_an_extension_that_may_only_lengthen_never_shortens(speaker):
    fence = acquire(speaker, "k", "A", 60_000)
    for options in (("GT",), ("gt", "FENCE", fence), ("FENCE", fence, "GT")):
        left = speaker.execute_command("FENCELOCK.EXTEND", "k", "A", 1_000, *options)
        assert 50_000 < left <= 60_000
        assert 50_000 < inspect(speaker, "k").ttl_ms <= left
    assert speaker.execute_command("FENCELOCK.EXTEND", "k", "A", 90_000, "GT") > 80_000
    assert inspect(speaker, "k").ttl_ms > 80_000
    assert speaker.execute_command("FENCELOCK.EXTEND", "k", "B", 900_000, "GT") == 0
    release(speaker, "k", "A")
    assert speaker.execute_command("FENCELOCK.EXTEND", "k", "A", 900_000, "GT") == 0


def test_an_extension_that_would_not_lengthen_is_not_one(r, clients):
    """It is not counted, aborts no WATCH, and is cut by the longest hold as any other."""
    r.execute_command("FENCELOCK.ACQUIRE", "k", "A", 60_000, "MAXHOLD", 60_000)
    watcher = clients().pipeline()
    watcher.watch("k")
    extensions = r.info("fencelock")["fencelock_extensions"]
    assert 0 < r.execute_command("FENCELOCK.EXTEND", "k", "A", 80_000, "GT") <= 60_000
    assert r.info("fencelock")["fencelock_extensions"] == extensions
    watcher.multi()
    watcher.get("other")
    assert watcher.execute() == [None]


def test_an_extension_keeps_the_fence_and_the_time_held(r):
    fence = acquire(r, "k", "A", 10_000)
    eventually(lambda: inspect(r, "k").held_ms >= 20)
    extend(r, "k", "A", 10_000)
    assert inspect(r, "k").fence == fence
    assert inspect(r, "k").held_ms >= 20


@pytest.mark.parametrize(("first_ms", "second_ms"), [(10_000, 200), (100, 400)], ids=["shorter", "longer"])
def test_an_extended_lease_ends_at_its_new_deadline(r, first_ms, second_ms):
    began = time.monotonic()
    with r.pipeline() as transaction:
        acquire(transaction, "k", "A", first_ms)
        extend(transaction, "k", "A", second_ms)
        assert transaction.execute()[1] > 0
    assert_ends_on_time(r, "k", began, time.monotonic(), second_ms)
    eventually(r.dbsize, 0)


def test_a_holder_that_extends_keeps_its_lease_for_many_times_its_length(r, clients):
    """Every tenth of it. A holder that was itself late by a whole lease has lost it rightly, and begins anew."""
    ttl_ms = 1_500
    rival, longest_ms = clients(), ttl_ms
    while longest_ms >= ttl_ms:
        r.delete("k")
        fence, lefts, grants, longest_ms = keep_against(rival, r, ttl_ms)
    assert all(lefts), lefts
    assert inspect(r, "k").hold == (b"A", fence)
    assert inspect(r, "k").held_ms >= 3 * ttl_ms
    assert len(grants) > 100
    assert set(grants) == {None}


def keep_against(rival, r, ttl_ms):
    """The fence of a holder that extends, the replies to it and to its rival, and the longest time between two extensions."""
    stop, grants = threading.Event(), []

    def compete():
        while not stop.is_set():
            grants.append(acquire(rival, "k", "B", 10_000))

    sent = [time.monotonic()]
    fence = acquire(r, "k", "A", ttl_ms)
    competitor = threading.Thread(target=compete)
    competitor.start()
    lefts, between_ms = [], []
    for number in range(30):
        time.sleep(ttl_ms / 10_000)  # the part of a lease that the holder works
        sent.append(time.monotonic())
        # The last one leaves time to inspect the lock.
        lefts.append(extend(r, "k", "A", ttl_ms if number < 29 else 60_000, fence))
        between_ms.append((time.monotonic() - sent[-2]) * 1000)
    stop.set()
    competitor.join()
    return fence, lefts, grants, max(between_ms)


@pytest.mark.parametrize("end", ["time", "DEL", "UNLINK", "release"])
def test_a_lease_that_has_ended_is_not_extended_and_not_revived(r, speaker, end):
    first = acquire(r, "k", "A", 60 if end == "time" else 60_000)
    match end:
        case "time":
            wait_until_free(r, "k")
        case "release":
            release(r, "k", "A")
        case _:
            r.execute_command(end, "k")
    assert extend(speaker, "k", "A", 5_000, first) == 0
    assert extend(speaker, "k", "A", 5_000) == 0
    assert inspect(r, "k") is None
    second = acquire(r, "k", "B", 60_000)
    assert second > first
    assert extend(speaker, "k", "A", 90_000, first) == 0
    assert extend(speaker, "k", "A", 90_000) == 0
    lock = inspect(r, "k")
    assert (lock.hold, lock.ttl_ms <= 60_000) == ((b"B", second), True)


@pytest.mark.parametrize(
    "late", ["'EXTEND', 'k', 'A', 60000", "'EXTEND', 'k', 'A', 60000, 'FENCE', fence", "'RELEASE', 'k', 'A', 'FENCE', fence"]
)
def test_a_lease_that_has_ended_is_lost_even_while_its_entry_is_there(r, late):
    """In one script, so that nothing removes the entry in between."""
    entry, answer, left = r.eval(
        "local function call(name, ...) return redis.call('FENCELOCK.' .. name, ...) end "
        "local fence = string.format('%.0f', call('ACQUIRE', 'k', 'A', 1)) "
        "while call('INSPECT', 'k') do end "
        f"return {{redis.call('EXISTS', 'k'), call({late}), call('INSPECT', 'k')}}",
        0,
    )
    assert (entry, answer, left) == (1, 0, None)
    assert acquire(r, "k", "B", 1_000)


def test_the_answer_to_a_lost_lease_cannot_be_taken_for_success(r, speaker):
    acquire(r, "k", "A", 10_000)
    for answer in (extend(speaker, "k", "B", 1_000), release(speaker, "k", "B"), acquire(speaker, "k", "B", 1_000)):
        assert not answer


def test_a_caller_tells_busy_from_lost_while_it_worked(r):
    """Busy is null and comes before the work; lost is 0 and comes after it. The lock looks the same in between."""
    mine = acquire(r, "k", "A", 60_000)
    assert acquire(r, "k", "B", 1_000) is None
    extend(r, "k", "A", 60)
    wait_until_free(r, "k")
    other = acquire(r, "k", "B", 10_000)
    lost = extend(r, "k", "A", 1_000, mine), release(r, "k", "A", mine)
    assert lost == (0, 0)
    assert all(answer is not None for answer in lost)
    assert acquire(r, "k", "A", 1_000) is None
    assert inspect(r, "k").hold == (b"B", other)


# --- INSPECT


def test_inspect_tells_the_whole_lease(r, clients):
    began = time.monotonic()
    fence = acquire(r, "k", "A", 10_000)
    for client in (r, clients(protocol=3)):
        lock = inspect(client, "k")
        passed_ms = (time.monotonic() - began) * 1000
        assert lock == Lock(b"A", fence, lock.ttl_ms, lock.held_ms, None, 0, b"held")
        assert 10_000 - passed_ms - 1 <= lock.ttl_ms <= 10_000
        assert 0 <= lock.held_ms <= passed_ms + 1
        assert 10_000 <= lock.ttl_ms + lock.held_ms <= 10_001


def test_inspect_is_a_flat_array_in_resp2_and_a_map_in_resp3(r, clients):
    names = [b"owner", b"fence", b"ttl-ms", b"held-ms", b"maxhold-left-ms", b"waiters", b"state"]
    acquire(r, "k", "A", 10_000)
    flat = r.execute_command("FENCELOCK.INSPECT", "k")
    assert (type(flat), flat[::2]) == (list, names)
    mapped = clients(protocol=3).execute_command("FENCELOCK.INSPECT", "k")
    assert (type(mapped), list(mapped)) == (dict, names)


def test_inspect_of_a_free_lock_is_null(r, speaker):
    assert inspect(speaker, "k") is None
    acquire(r, "k", "A", 30)
    wait_until_free(r, "k")
    assert inspect(speaker, "k") is None


# --- several clients at once


def test_of_two_concurrent_acquires_exactly_one_wins_and_fences_grow(r, clients):
    rounds = 1_000
    start, won = threading.Barrier(2), [[None] * rounds, [None] * rounds]

    def contend(me, client):
        for number in range(rounds):
            start.wait(30)
            fence = won[me][number] = acquire(client, "k", f"worker-{me}", 60_000)
            start.wait(30)
            if fence is not None:
                assert release(client, "k", f"worker-{me}", fence) == 1

    threads = [threading.Thread(target=contend, args=(me, clients())) for me in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [[fence for fence in pair if fence is not None] for pair in zip(*won, strict=True)]
    assert [len(pair) for pair in winners] == [1] * rounds
    fences = [pair[0] for pair in winners]
    assert all(earlier < later for earlier, later in zip(fences, fences[1:], strict=False))
    assert r.dbsize() == 0


@pytest.mark.parametrize("owners", [("one", "two"), ("shared", "shared")], ids=["own owners", "a shared owner"])
def test_two_asyncio_tasks_run_strictly_one_after_the_other(redis_server, r, owners):
    sections = 50
    inside, entered = [], []

    async def work(name, owner):
        async with redis.asyncio.Redis(port=redis_server.port, protocol=2) as client:
            for _ in range(sections):
                while (fence := await acquire(client, "k", owner, 60_000)) is None:
                    await asyncio.sleep(0)
                inside.append(name)
                assert inside == [name]
                await asyncio.sleep(0.001)  # the work inside: lets the other task run
                inside.remove(name)
                entered.append((fence, name))
                assert await release(client, "k", owner, fence) == 1

    async def both():
        await asyncio.wait_for(asyncio.gather(work(1, owners[0]), work(2, owners[1])), 30)

    asyncio.run(both())
    assert len(entered) == 2 * sections
    assert entered == sorted(entered)


@pytest.mark.parametrize("way", ["CLIENT KILL", "close"])
def test_a_lease_outlives_the_connection_of_its_holder(r, clients, way):
    holder = clients()
    fence = acquire(holder, "k", "A", 60_000)
    if way == "CLIENT KILL":
        assert r.execute_command("CLIENT", "KILL", "ID", holder.client_id()) == 1
    else:
        holder.close()
    assert acquire(r, "k", "B", 1_000) is None
    lock = inspect(r, "k")
    assert lock.hold == (b"A", fence)
    assert 60_000 <= lock.ttl_ms + lock.held_ms <= 60_001
    began = time.monotonic()
    assert extend(r, "k", "A", 400, fence) > 0
    assert_ends_on_time(r, "k", began, time.monotonic(), 400)


# --- transactions, scripts, users


@pytest.mark.parametrize(
    "refused",
    [
        lambda client: acquire(client, "k", "B", 1_000),
        lambda client: acquire(client, "k", "A", 1_000),
        lambda client: extend(client, "k", "B", 1_000),
        lambda client: extend(client, "k", "A", 1_000, 1),
        lambda client: release(client, "k", "B"),
        lambda client: release(client, "k", "A", 1),
        lambda client: inspect(client, "k"),
        lambda client: release(client, "free", "B"),
        lambda client: extend(client, "free", "B", 1_000),
    ],
    ids=["busy", "busy owner", "extend", "extend fence", "release", "release fence", "inspect", "release free", "extend free"],
)
def test_a_refused_call_aborts_nobodys_watch(r, clients, refused):
    acquire(r, "k", "A", 10_000)
    with r.pipeline() as transaction:
        transaction.watch("k", "free")
        refused(clients())
        transaction.multi()
        transaction.set("written", "yes")
        transaction.execute()
    assert r.get("written") == b"yes"


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("free", lambda client: acquire(client, "free", "B", 10_000)),
        ("k", lambda client: extend(client, "k", "A", 10_000)),
        ("k", lambda client: release(client, "k", "A")),
        ("short", lambda client: eventually(lambda: client.exists("short"), 0)),
    ],
    ids=["grant", "extension", "release", "running out"],
)
def test_a_change_of_the_lease_aborts_a_watch(r, redis_server, clients, key, change):
    acquire(r, "k", "A", 10_000)
    with Line(redis_server.port) as watcher:
        # In one write, so that the short lease is live when it is watched.
        watcher.call_all(("FENCELOCK.ACQUIRE", "short", "A", 300), ("WATCH", key))
        change(clients())
        assert watcher.call_all(("MULTI",), ("SET", "written", "yes"), ("EXEC",))[-1] is None
    assert r.get("written") is None


def test_a_transaction_sees_its_own_grant(r):
    with r.pipeline(transaction=True) as transaction:
        acquire(transaction, "k", "A", 10_000)
        acquire(transaction, "k", "B", 10_000)
        extend(transaction, "k", "A", 20_000)
        release(transaction, "k", "A")
        acquire(transaction, "k", "B", 10_000)
        first, busy, left, released, second = transaction.execute()
    assert (busy, released) == (None, 1)
    assert 19_000 < left <= 20_000
    assert second > first
    assert inspect(r, "k").hold == (b"B", second)


def test_a_discarded_transaction_grants_nothing(r):
    r.execute_command("MULTI")
    acquire(r, "k", "A", 10_000)
    r.execute_command("DISCARD")
    assert (r.dbsize(), inspect(r, "k")) == (0, None)


def test_a_script_prints_a_fence_exactly(r):
    told = r.eval("return string.format('%.0f', redis.call('FENCELOCK.ACQUIRE', KEYS[1], 'A', 10000))", 1, "k")
    assert int(told) == inspect(r, "k").fence


def test_a_function_takes_and_releases_a_lock(r):
    r.function_load(
        "#!lua name=locks\n"
        "redis.register_function('take', function(keys, args)"
        " return redis.call('FENCELOCK.ACQUIRE', keys[1], args[1], args[2]) end)\n"
        "redis.register_function('give', function(keys, args)"
        " return redis.call('FENCELOCK.RELEASE', keys[1], args[1]) end)",
        replace=True,
    )
    fence = r.fcall("take", 1, "k", "A", 10_000)
    assert inspect(r, "k").hold == (b"A", fence)
    assert r.fcall("take", 1, "k", "B", 10_000) is None
    assert r.fcall("give", 1, "k", "A") == 1
    assert inspect(r, "k") is None
    r.function_delete("locks")


@pytest.mark.parametrize("call", ["'FENCELOCK.ACQUIRE', KEYS[1], 'B', 1000", "'FENCELOCK.RELEASE', KEYS[1], 'A'"])
def test_a_read_only_script_may_inspect_and_nothing_else(r, call):
    fence = acquire(r, "k", "A", 10_000)
    assert b"A" in r.eval_ro("return redis.call('FENCELOCK.INSPECT', KEYS[1])", 1, "k")
    with pytest.raises(redis.ResponseError, match="read-only script"):
        r.eval_ro(f"return redis.call({call})", 1, "k")
    assert inspect(r, "k").hold == (b"A", fence)


@pytest.mark.parametrize("words", INTERNAL, ids=[words[0] for words in INTERNAL])
@pytest.mark.parametrize("way", ["directly", "MULTI", "script"])
def test_users_cannot_run_the_internal_commands(r, words, way):
    name, *args = words
    before = acquire(r, "other", "A", 10_000)
    # From 8.0 on Redis itself refuses internal commands.
    with pytest.raises(redis.ResponseError, match="internal|unknown command|not allowed from script"):
        match way:
            case "directly":
                r.execute_command(f"FENCELOCK.{name}", *args)
            case "MULTI":
                with r.pipeline(transaction=True) as transaction:
                    transaction.execute_command(f"FENCELOCK.{name}", *args)
                    transaction.execute()
            case _:
                r.eval(f"return redis.call('FENCELOCK.{name}', unpack(ARGV))", 0, *args)
    assert r.keys() == [b"other"]
    assert before < acquire(r, "next", "A", 10_000) < before + 3_600_000_000


def test_a_user_is_bound_to_its_keys_and_commands(r, redis_server):
    r.acl_setuser("worker", enabled=True, nopass=True, keys=["app:*"], commands=["+fencelock.acquire"], reset=True)
    acquire(r, "app:held", "A", 10_000)
    with redis.Redis(port=redis_server.port, username="worker", password="any") as worker:
        assert acquire(worker, "app:1", "A", 10_000)
        for forbidden in (
            lambda: acquire(worker, "other", "A", 10_000),
            lambda: extend(worker, "app:held", "A", 20_000),
            lambda: release(worker, "app:held", "A"),
            lambda: inspect(worker, "app:held"),
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                forbidden()
    assert sorted(r.keys()) == [b"app:1", b"app:held"]
    assert inspect(r, "app:held").ttl_ms <= 10_000
    r.acl_deluser("worker")


@pytest.mark.parametrize(
    "words",
    [("ACQUIRE", "k", "o", "1"), ("EXTEND", "k", "o", "1", "FENCE", "1"), ("RELEASE", "k", "o"), ("INSPECT", "k")],
    ids=lambda words: words[0],
)
def test_each_command_names_exactly_one_key(r, words):
    assert r.command_getkeys(f"FENCELOCK.{words[0]}", *words[1:]) == ["k"]


def test_the_module_is_not_unloaded_while_it_has_a_type(r):
    fence = acquire(r, "k", "A", 10_000)
    with pytest.raises(redis.ResponseError):
        r.module_unload("fencelock")
    assert inspect(r, "k").hold == (b"A", fence)


def test_a_lease_that_ended_is_free_to_everyone_at_once(r, clients):
    """Not one of the callers may still see it busy when another one has seen it free."""
    watchers = [clients() for _ in range(4)]
    acquire(r, "k", "A", 200)
    while inspect(watchers[0], "k") is not None:
        pass
    assert [inspect(watcher, "k") for watcher in watchers] == [None] * 4
    assert acquire(watchers[1], "k", "B", 1_000)
