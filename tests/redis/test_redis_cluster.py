"""Locks in a Redis Cluster: who answers, what a slot takes along when it moves, and what a failover leaves.

Two holders at once never, but for a crash that loses a grant. Waiters get a grant or an error that a cluster's clients know,
within about a second.
"""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from contenders import Contenders
from harness import eventually
from harness.redis_calls import Closed, Line, Lines, Refused
from harness.redis_cluster import READY_WITHIN_S, SLOTS, ClusterNode, RedisCluster
from harness.redis_server import server_version
from harness.locks import FENCE_MAX, acquire, extend, inspect, release
from harness.payloads import lock_payload
from harness.waiting import HANG_S
from test_redis_persistence import snapshots_fail

LONG_MS = 60_000
DEBUG = {"enable-debug-command": "yes"}
# Names that are hard on a cluster: braces that are and that are not a hash tag, and any bytes.
ODD_NAMES = [b"job{1", b"{}x", b"a{b}c", b"{b}", b"", b"a\0b\r\nc", b"}{", b"{{b}}", b"{\xff\0}\n", bytes(range(256))]
ODD_NAMES += [b"k" * 2**20]
# The errors of a cluster from which a client knows how to go on.
REDIRECTIONS = {"MOVED", "TRYAGAIN", "ASK"}


def moves():
    """The ways of moving a slot that the chosen server has."""
    kind, version = server_version()
    has_atomic = version >= ((9,) if kind == "Valkey" else (8, 4))
    return ["move_classic", "move_atomic"] if has_atomic else ["move_classic"]


each_move = pytest.mark.parametrize("way", moves())


@pytest.fixture(scope="module")
def the_cluster():
    cluster = RedisCluster(config=DEBUG).start()
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(the_cluster):
    """The cluster, whole and empty, and no node ahead of the clock with its fences."""
    the_cluster.heal()
    for node in the_cluster.primaries():
        node.call("FLUSHALL")
    eventually(lambda: max(last_fence(node) for node in the_cluster.primaries()) < now_us())
    return the_cluster


@pytest.fixture
def make_client(cluster, closing):
    """A factory of redis-py's cluster clients, as users make them."""
    return lambda: closing(redis.RedisCluster(host="127.0.0.1", port=cluster.primaries()[0].port))


@pytest.fixture
def client(make_client):
    return make_client()


@pytest.fixture
def lines(closing):
    """A factory of raw connections to a node."""
    return lambda node: closing(Lines(node.port))


def now_us():
    return time.time_ns() // 1_000


def stats(node):
    told = node.call("FENCELOCK.STATS")
    return {name.decode(): value for name, value in zip(told[::2], told[1::2], strict=True)}


def last_fence(node):
    return stats(node)["last-fence"]


def hold_at(node, key, *before):
    """Owner and fence as a node reports them, which must serve the key."""
    with Line(node.port) as line:
        told = line.call_all(*before, ("FENCELOCK.INSPECT", key))[-1]
    if isinstance(told, Refused) or told is None:
        return told
    fields = dict(zip(told[::2], told[1::2], strict=True))
    return fields[b"owner"], fields[b"fence"]


def applied(node):
    """How many records of locks a node was sent."""
    told = {name.lower(): counts for name, counts in node.facts("INFO", "commandstats").items()}
    counts = told.get("cmdstat_fencelock._apply", "calls=0,")
    return int(counts.partition("=")[2].partition(",")[0])


def names_of(cluster, node, count):
    """Names whose slots a node serves."""
    found = []
    for number in range(10_000):
        name = f"lock {number}"
        if cluster.primary_of(cluster.slot_of(name)) is node:
            found.append(name)
            if len(found) == count:
                return found
    raise AssertionError("too few names")


def left_ms(lines, key):
    """What is left of A's lease or of the delay after it, by the server's own account; 0 when W has the lock."""
    reply = lines.control.call("FENCELOCK.INSPECT", key)
    lock = dict(zip(reply[::2], reply[1::2])) if reply else {}
    return 0 if lock.get(b"owner") == b"W" else lock.get(b"ttl-ms", 0)


def told_once(line):
    """The one reply of a waiter, after which the connection is closed or silent."""
    reply = line.reply()
    with contextlib.suppress(Closed):
        assert line.call("ECHO", "mark") == b"mark", f"a second reply after {reply!r}"
    return reply


class Place:
    """A lock, the node that serves it, and one to which its slot may move."""

    def __init__(self, cluster, name="k"):
        self.name, self.slot = name, cluster.slot_of(name)
        self.source = cluster.primary_of(self.slot)
        self.target = next(node for node in cluster.primaries() if node is not self.source)


# --- who answers


def test_every_command_is_redirected_to_the_node_that_serves_the_lock_and_uses_no_fence(cluster):
    place = Place(cluster)
    fence = place.source.call("FENCELOCK.ACQUIRE", "k", "A", LONG_MS)
    before = stats(place.target)
    with Line(place.target.port) as line:
        for words in (
            ("FENCELOCK.ACQUIRE", "k", "B", LONG_MS),
            ("FENCELOCK.ACQUIRE", "k", "B", LONG_MS, "WAIT", LONG_MS),
            ("FENCELOCK.EXTEND", "k", "A", LONG_MS),
            ("FENCELOCK.RELEASE", "k", "A"),
            ("FENCELOCK.CHECK", "k", fence),
            ("FENCELOCK.INSPECT", "k"),
            ("FENCELOCK.STEAL", "k", "B", LONG_MS),
            ("FENCELOCK.AWAIT", "k", fence, LONG_MS),
            ("FENCELOCK.CLAIM", "k", fence),
            ("FENCELOCK.WRITE", "k", fence, "field", "value"),
            ("FENCELOCK.STATS", "k"),
        ):
            assert line.call(*words) == f"MOVED {place.slot} 127.0.0.1:{place.source.port}", words
    assert stats(place.target) == before
    assert hold_at(place.source, "k") == (b"A", fence)


def test_a_replica_answers_what_only_reads_and_sends_the_rest_to_its_primary(cluster):
    place = Place(cluster)
    replica = cluster.replica_of(place.source)
    fence = place.source.call("FENCELOCK.ACQUIRE", "k", "A", LONG_MS)
    eventually(lambda: hold_at(replica, "k", ("READONLY",)), (b"A", fence))
    with Line(replica.port) as line:
        line.call("READONLY")
        assert line.call("FENCELOCK.CHECK", "k", fence) == 1
        for words in (("FENCELOCK.ACQUIRE", "k", "B", 1_000, "WAIT", 1_000), ("FENCELOCK.RELEASE", "k", "A")):
            assert line.call(*words).code == "MOVED"


def test_a_lock_command_has_one_key_with_every_option(cluster):
    node = cluster.nodes[0]
    options = ("WAIT", 5, "RETRY", "MAXHOLD", 7, "DELAY", 9, "EPHEMERAL")
    for name in ODD_NAMES[:-1]:
        for words in (
            ("FENCELOCK.ACQUIRE", name, "A", 1),
            ("FENCELOCK.ACQUIRE", name, "A", 1, *options),
            ("FENCELOCK.EXTEND", name, "A", 1, "FENCE", 1),
            ("FENCELOCK.RELEASE", name, "A", "FENCE", 1),
            ("FENCELOCK.CHECK", name, 1),
            ("FENCELOCK.INSPECT", name),
            ("FENCELOCK.STEAL", name, "A", 1, "FENCE", 1),
            ("FENCELOCK.AWAIT", name, 1, 1),
            ("FENCELOCK.CLAIM", name, 1),
            ("FENCELOCK.WRITE", name, 1, "f", "v", "g", "w"),
            ("FENCELOCK.STATS", name),
        ):
            assert node.call("COMMAND", "GETKEYS", *words) == [name], words
    with Line(node.port) as line:
        for words in (("FENCELOCK.RAISE", 1), ("FENCELOCK.HELP",), ("FENCELOCK.STATS",)):
            assert not isinstance(line.call(*words), Refused)


# --- redis-py's client


def test_any_name_works_through_a_smart_client(client):
    for name in ODD_NAMES:
        first = acquire(client, name, "A", LONG_MS)
        assert acquire(client, name, "B", LONG_MS) is None
        assert acquire(client, name, "A", LONG_MS, "RETRY") == first
        assert extend(client, name, "A", LONG_MS, first) > 0
        assert inspect(client, name).hold == (b"A", first)
        assert release(client, name, "A", first) == 1
        assert acquire(client, name, "B", LONG_MS, "WAIT", 1_000) > first
        assert release(client, name, "A", first) == 0


def test_a_smart_client_finds_the_locks_of_all_nodes(client, cluster):
    fences = {f"k{number}": acquire(client, f"k{number}", "A", LONG_MS) for number in range(200)}
    assert all(stats(node)["live-leases"] > 20 for node in cluster.primaries())
    assert {name: inspect(client, name).fence for name in fences} == fences
    assert [release(client, name, "A", fence) for name, fence in fences.items()] == [1] * 200
    assert [stats(node)["live-leases"] for node in cluster.primaries()] == [0, 0, 0]


def test_a_smart_client_does_the_rest_too(client, cluster):
    fence = acquire(client, "lock:{r}", "A", LONG_MS, "MAXHOLD", LONG_MS, "EPHEMERAL")
    assert client.execute_command("FENCELOCK.CHECK", "lock:{r}", fence) == 1
    client.execute_command("FENCELOCK.CLAIM", "{r}", fence)
    assert client.execute_command("FENCELOCK.WRITE", "{r}", fence, "total", 3) == 1
    assert client.hgetall("{r}") == {b"fence": str(fence).encode(), b"total": b"3"}
    with client.pipeline() as pipe:
        for number in range(30):
            acquire(pipe, f"k{number}", "A", LONG_MS)
        assert all(fence > 0 for fence in pipe.execute())
    raised = now_us() + 200_000
    told = client.execute_command("FENCELOCK.RAISE", raised, target_nodes=client.get_primaries())
    assert len(told) == 3
    assert min(told.values()) >= raised
    assert all(last_fence(node) >= raised for node in cluster.nodes[:3])
    assert client.execute_command("FENCELOCK.HELP", target_nodes=client.get_random_node())


def test_a_script_that_touches_a_lock_of_another_node_changes_nothing(cluster):
    place = Place(cluster)
    with Line(place.target.port) as line:
        [mine] = names_of(cluster, place.target, 1)
        script = "return redis.call('FENCELOCK.ACQUIRE', ARGV[1], 'A', 60000)"
        assert isinstance(line.call("EVAL", script, 1, mine, "k"), Refused)
    assert hold_at(place.source, "k") is None
    assert place.target.call("DBSIZE") == 0


# --- a slot that moves


def test_a_client_that_asks_for_a_slot_on_its_way_shuts_no_other_lock(cluster, lines):
    """It looks like the server that has the slot. What it restores from far ahead is one lock that stays shut."""
    place = Place(cluster)
    [mine] = names_of(cluster, place.target, 1)
    payload = lock_payload(fence=FENCE_MAX, left_us=600_000_000, owner=b"A")
    cluster.begin_move(place.slot, place.source, place.target)
    target = lines(place.target).control
    assert target.call_all(("ASKING",), ("RESTORE", "k", 0, payload)) == ["OK", "OK"]
    replica = cluster.replica_of(place.target)
    before = applied(replica)
    target.call("DEBUG", "RELOAD")
    cluster.end_move(place.slot, place.target)
    # The server's own record of what it was brought.
    eventually(lambda: applied(replica) > before)
    assert hold_at(replica, "k", ("READONLY",)) == (b"A", FENCE_MAX)
    assert max(last_fence(place.target), last_fence(replica)) < now_us()
    assert target.call("FENCELOCK.ACQUIRE", mine, "A", LONG_MS) <= now_us()
    assert "DEL the key" in target.call("FENCELOCK.ACQUIRE", "k", "B", LONG_MS)
    assert target.call("DEL", "k") == 1
    assert target.call("FENCELOCK.ACQUIRE", "k", "B", LONG_MS) <= now_us()


def test_a_slot_that_is_long_on_its_way_holds_up_no_record_of_another(cluster, lines):
    """A server sends its own record of what it was brought as soon as it serves the slot."""
    place = Place(cluster)
    other = next(name for name in names_of(cluster, place.source, 2) if cluster.slot_of(name) != place.slot)
    payload = lock_payload(fence=now_us(), left_us=600_000_000, owner=b"A")
    for slot in (place.slot, cluster.slot_of(other)):
        cluster.begin_move(slot, place.source, place.target)
    target = lines(place.target).control
    for key in [*(f"{{{other}}}{number}" for number in range(200)), "k"]:
        assert target.call_all(("ASKING",), ("RESTORE", key, 0, payload)) == ["OK", "OK"]
    replica = cluster.replica_of(place.target)
    before = applied(replica)
    cluster.end_move(place.slot, place.target)
    eventually(lambda: applied(replica) == before + 1)
    assert hold_at(replica, "k", ("READONLY",))[0] == b"A"
    cluster.end_move(cluster.slot_of(other), place.target)
    eventually(lambda: applied(replica) == before + 201)


@each_move
def test_a_live_lock_goes_with_its_slot_and_its_waiters_are_told(cluster, lines, way):
    place = Place(cluster)
    source, target = lines(place.source), lines(place.target)
    # Ahead of all clocks, so that only what came along can make the next fence larger.
    assert source.control.call("FENCELOCK.RAISE", now_us() + 3_000_000) > 0
    first = source.control.call("FENCELOCK.ACQUIRE", "k", "A", LONG_MS, "MAXHOLD", 70_000)
    waiters = [source.queue("k", f"W{number}", LONG_MS, LONG_MS) for number in range(5)]
    grants = source.count("grants")
    getattr(cluster, way)(place.slot, place.source, place.target)
    assert hold_at(place.target, "k") == (b"A", first)
    assert target.control.call("FENCELOCK.ACQUIRE", "k", "B", LONG_MS) is None
    assert LONG_MS - 5_000 < target.control.call("FENCELOCK.EXTEND", "k", "A", LONG_MS, "FENCE", first) <= LONG_MS
    heir = target.queue("k", "heir", LONG_MS, LONG_MS)
    assert target.control.call("FENCELOCK.RELEASE", "k", "A", "FENCE", first) == 1
    second = heir.only_reply()
    assert second > first
    told = [told_once(waiter) for waiter in waiters]
    assert {reply.code for reply in told} <= REDIRECTIONS, told
    assert (source.count("grants"), source.count("waiters"), source.blocked()) == (grants, 0, 0)
    assert hold_at(place.target, "k") == (b"heir", second)
    assert hold_at(place.source, "k").code == "MOVED"


@each_move
def test_a_lease_that_moved_ends_on_time_at_its_new_node_and_nowhere_else(cluster, lines, way):
    place = Place(cluster)
    source, target = lines(place.source), lines(place.target)
    began = time.monotonic()
    first = source.control.call("FENCELOCK.ACQUIRE", "k", "A", 3_000)
    granted = time.monotonic()
    ranout = source.count("ran-out")
    moving = time.monotonic()
    getattr(cluster, way)(place.slot, place.source, place.target)
    # On a busy machine the lease may be over by now, so there may be nothing to wait for.
    waiter = target.open().send("FENCELOCK.ACQUIRE", "k", "W", 300, "WAIT", LONG_MS)
    # What is left when it sets out, to the millisecond; the way takes nothing.
    assert left_ms(target, "k") <= max(0, granted + 3 - moving) * 1000 + 2
    assert waiter.only_reply() > first
    assert time.monotonic() >= began + 2.99
    eventually(lambda: target.control.call("EXISTS", "k"), 0)
    assert source.count("ran-out") == ranout
    assert stats(place.source)["live-leases"] == stats(place.target)["live-leases"] == 0


@each_move
def test_a_delay_goes_with_its_slot_and_a_bond_to_a_connection_does_not(cluster, lines, way):
    """The connection is the source's, so the lease alone counts, as after a failover."""
    place = Place(cluster, "{tag}")
    source, target = lines(place.source), lines(place.target)
    bound = source.open()
    first = bound.call("FENCELOCK.ACQUIRE", "bound{tag}", "A", LONG_MS, "EPHEMERAL")
    began = time.monotonic()
    source.control.call("FENCELOCK.ACQUIRE", "delayed{tag}", "A", 20, "DELAY", 3_000)
    granted = time.monotonic()
    eventually(lambda: b"delay" in source.control.call("FENCELOCK.INSPECT", "delayed{tag}"))
    moving = time.monotonic()
    getattr(cluster, way)(place.slot, place.source, place.target)
    bound.close()
    # On a busy machine the delay may be over by now, so there may be nothing to wait for.
    waiter = target.open().send("FENCELOCK.ACQUIRE", "delayed{tag}", "W", LONG_MS, "WAIT", LONG_MS)
    assert left_ms(target, "delayed{tag}") <= max(0, granted + 3.02 - moving) * 1000 + 2
    told = target.control.call("FENCELOCK.INSPECT", "delayed{tag}")
    assert time.monotonic() > began + 3 or b"delay" in told
    assert waiter.only_reply() > first
    assert time.monotonic() >= began + 3.0
    assert hold_at(place.target, "bound{tag}") == (b"A", first)
    with Line(place.target.port) as line:
        assert line.call("FENCELOCK.ACQUIRE", "bound{tag}", "A", LONG_MS, "RETRY", "EPHEMERAL") == first
    eventually(lambda: hold_at(place.target, "bound{tag}"), None)
    assert place.source.pid


def test_while_its_slot_moves_a_lock_is_handed_on_where_it_is_and_nowhere_else(cluster, lines):
    """Step by step: the key at the source, the key at the target, the slot at the target."""
    place = Place(cluster)
    source, target = lines(place.source), lines(place.target)
    fences = [source.control.call("FENCELOCK.ACQUIRE", "k", "A", LONG_MS)]
    waiters = [source.queue("k", f"W{number}", LONG_MS, LONG_MS) for number in range(4)]
    cluster.begin_move(place.slot, place.source, place.target)
    # By its deadline and by a release, while the key is here.
    assert source.control.call("FENCELOCK.EXTEND", "k", "A", 100) > 0
    fences.append(waiters[0].only_reply())
    assert waiters[0].call("FENCELOCK.RELEASE", "k", "W0") == 1
    fences.append(waiters[1].only_reply())
    assert target.control.call("FENCELOCK.ACQUIRE", "k", "B", LONG_MS).code == "MOVED"
    grants = source.count("grants")
    cluster.move_keys(place.slot, place.source, place.target)
    assert {told_once(waiter).code for waiter in waiters[2:]} <= REDIRECTIONS
    assert source.control.call("FENCELOCK.ACQUIRE", "k", "B", LONG_MS, "WAIT", 1_000).code == "ASK"
    assert hold_at(place.target, "k", ("ASKING",)) == (b"W1", fences[-1])
    # Who follows ASK may wait there; until the slot is the target's own it is sent back within a second.
    asking = target.open()
    assert asking.call("ASKING") == "OK"
    assert asking.call("FENCELOCK.ACQUIRE", "k", "asking", LONG_MS, "WAIT", LONG_MS).code in REDIRECTIONS
    cluster.end_move(place.slot, place.target)
    heir = target.queue("k", "heir", LONG_MS, LONG_MS)
    assert target.control.call("FENCELOCK.RELEASE", "k", "W1", "FENCE", fences[-1]) == 1
    fences.append(heir.only_reply())
    assert fences == sorted(set(fences))
    assert source.count("grants") == grants


@pytest.mark.parametrize("end", ["DEL", "time", "release"])
def test_a_lock_that_becomes_free_while_its_slot_moves_is_granted_by_one_node(cluster, lines, end):
    """The source keeps its waiters only as long as it may serve them."""
    place = Place(cluster)
    source, target = lines(place.source), lines(place.target)
    first = source.control.call("FENCELOCK.ACQUIRE", "k", "A", 300 if end == "time" else LONG_MS)
    waiters = [] if end == "time" else [source.queue("k", "W", LONG_MS, LONG_MS)]
    cluster.begin_move(place.slot, place.source, place.target)
    match end:
        case "DEL":
            # The key is not here any more, so whoever comes next is sent to the target.
            assert source.control.call("DEL", "k") == 1
            assert told_once(waiters[0]).code in REDIRECTIONS
        case "time":
            eventually(lambda: stats(place.source)["live-leases"], 0)
        case _:
            assert source.control.call("FENCELOCK.RELEASE", "k", "A") == 1
            second = waiters[0].only_reply()
            assert waiters[0].call("FENCELOCK.RELEASE", "k", "W", "FENCE", second) == 1
    grants = source.count("grants")
    assert source.control.call("FENCELOCK.ACQUIRE", "k", "B", LONG_MS).code == "ASK"
    fence = target.control.call_all(("ASKING",), ("FENCELOCK.ACQUIRE", "k", "B", LONG_MS))[1]
    assert fence > first
    cluster.move_keys(place.slot, place.source, place.target)
    cluster.end_move(place.slot, place.target)
    assert hold_at(place.target, "k") == (b"B", fence)
    assert source.count("grants") == grants


@each_move
def test_waiters_of_a_smart_client_are_granted_at_the_new_node(cluster, make_client, way):
    """They notice nothing of the move but, at most, a second."""
    place = Place(cluster)
    client = make_client()
    fences = [acquire(client, "k", "A", LONG_MS)]

    def wait(owner):
        mine = make_client()
        fence = acquire(mine, "k", owner, LONG_MS, "WAIT", LONG_MS)
        assert release(mine, "k", owner, fence) == 1
        return fence

    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(wait, f"W{number}") for number in range(4)]
        eventually(lambda: stats(place.source)["waiters"], 4)
        getattr(cluster, way)(place.slot, place.source, place.target)
        # Redirected by the source, they wait at the target.
        eventually(lambda: (stats(place.source)["waiters"], stats(place.target)["waiters"]), (0, 4))
        assert release(client, "k", "A", fences[0]) == 1
        fences += sorted(future.result(timeout=HANG_S) for future in waiting)
    assert fences == sorted(set(fences))
    assert hold_at(place.target, "k") is None


@each_move
def test_slots_that_move_under_load_let_no_second_holder_in_and_lose_no_hold(cluster, make_client, way):
    names = [f"busy {number}" for number in range(4)]
    places = [Place(cluster, name) for name in names]
    with Contenders(make_client, names, count=8) as load:
        load.go_on()
        for _ in range(2):
            for place in places:
                getattr(cluster, way)(place.slot, place.source, place.target)
                place.source, place.target = place.target, place.source
                load.go_on(more=10)
    load.assert_fences_grow()
    load.assert_one_holder_at_a_time()
    assert load.lost == []
    eventually(lambda: [node.call("DBSIZE") for node in cluster.nodes], [0] * 6)


@each_move
def test_leases_that_moved_leave_nothing_behind_at_the_source(cluster, lines, way):
    """However the server removes their keys, and long before they end."""
    place = Place(cluster, "{tag}")
    source, target = lines(place.source), lines(place.target)
    for number in range(50):
        source.control.call("FENCELOCK.ACQUIRE", f"k{number}{{tag}}", "A", LONG_MS)
    getattr(cluster, way)(place.slot, place.source, place.target)
    assert target.count("live-leases") == 50
    eventually(lambda: source.count("live-leases"), 0)


# --- failover


def test_a_primary_that_has_lost_the_majority_grants_nothing(cluster, lines):
    """It cannot know whether it was replaced, so its waiters are sent away and nobody comes in."""
    place = Place(cluster)
    others = [node for node in cluster.primaries() if node is not place.source]
    mine = lines(place.source)
    first = mine.control.call("FENCELOCK.ACQUIRE", "k", "A", 8_000)
    waiters = [mine.queue("k", f"W{number}", LONG_MS, LONG_MS) for number in range(3)]
    for node in others:
        node.kill()
    eventually(lambda: place.source.facts("CLUSTER", "INFO")["cluster_state"], "fail", within_s=READY_WITHIN_S)
    told = {told_once(waiter).code for waiter in waiters}
    assert told <= REDIRECTIONS | {"CLUSTERDOWN"}, told
    assert mine.control.call("FENCELOCK.ACQUIRE", "k", "B", LONG_MS, "WAIT", LONG_MS).code == "CLUSTERDOWN"
    assert (mine.count("last-fence"), mine.count("waiters")) == (first, 0)
    cluster.heal()
    with Line(cluster.primary_of(place.slot).port) as line:
        assert line.call("FENCELOCK.ACQUIRE", "k", "B", LONG_MS, "WAIT", 10_000) > first


def test_a_failover_on_command_tells_the_waiters_and_lets_no_second_holder_in(cluster, make_client, lines):
    place = Place(cluster)
    replica = cluster.replica_of(place.source)
    names = names_of(cluster, place.source, 3)
    with Contenders(make_client, names) as load:
        for primary, successor in ((place.source, replica), (replica, place.source)):
            load.go_on()
            mine = lines(primary)
            assert primary.call("FENCELOCK.ACQUIRE", "k", "A", LONG_MS, "RETRY") > 0
            waiters = [mine.queue("k", f"W{number}", LONG_MS, LONG_MS) for number in range(3)]
            assert successor.call("CLUSTER", "FAILOVER") == "OK"
            eventually(lambda node=primary: node.facts("INFO", "replication")["role"], "slave")
            told = {told_once(waiter).code for waiter in waiters}
            assert told <= {"UNBLOCKED", "MOVED"}, told
            assert not isinstance(hold_at(successor, "k"), Refused)
            cluster.wait_until_whole()
        load.go_on()
    load.assert_fences_grow()
    load.assert_one_holder_at_a_time()
    assert load.lost == []


def test_the_death_of_a_primary_under_load_keeps_what_was_replicated_and_the_order_of_fences(cluster, make_client, lines):
    """Grants of the last moment may be lost, and then a second holder comes in, with a larger fence."""
    # In another shard than the failover on command: Redis 8.6 was seen to win by the votes of a replica's last election.
    place = Place(cluster, "b")
    replica = cluster.replica_of(place.source)
    names = [*names_of(cluster, place.source, 2), *names_of(cluster, place.target, 1)]
    kept = place.source.call("FENCELOCK.ACQUIRE", "b", "A", LONG_MS)
    eventually(lambda: hold_at(replica, "b", ("READONLY",)), (b"A", kept))
    waiter = lines(place.source).queue("b", "W", LONG_MS, LONG_MS)
    # A release may be among what is lost; then the lease ends by its time.
    with Contenders(make_client, names, ttl_ms=1_000) as load:
        load.go_on()
        place.source.kill()
        with pytest.raises(Closed):
            waiter.reply()
        eventually(lambda: replica in cluster.primaries(), within_s=READY_WITHIN_S)
        load.go_on()
        at_new = lines(replica)
        assert hold_at(replica, "b") == (b"A", kept)
        heir = at_new.queue("b", "heir", LONG_MS, LONG_MS)
        client = make_client()
        assert release(client, "b", "A", kept) == 1
        assert heir.only_reply() > kept
        # The dead one comes back as a replica of its successor.
        place.source.start()
        cluster.wait_until_whole()
        load.go_on()
    load.assert_fences_grow()
    assert place.source.facts("INFO", "replication")["role"] == "slave"


# --- a cluster that is down for a moment: one node with all slots, one of which is taken from it and given back

# The slot that comes and goes; no name here is in it.
THE_SLOT = 1


@pytest.fixture
def lone(lines):
    """Connections to a cluster of one node."""
    server = ClusterNode({"cluster-node-timeout": "500"}).start()
    node = lines(server)
    assert node.control.call("CLUSTER", "ADDSLOTSRANGE", 0, SLOTS - 1) == "OK"
    eventually(lambda: node.control.call("SET", "up", 1), "OK")
    yield node
    server.close()


def cluster_goes_down(node, *before):
    """`before`: calls in the same write, so that next to no time passes after them."""
    assert node.control.call_all(*before, ("CLUSTER", "DELSLOTS", THE_SLOT))[-1] == "OK"
    eventually(lambda: b"cluster_state:fail" in node.control.call("CLUSTER", "INFO"), within_s=READY_WITHIN_S)


def cluster_comes_back(node):
    assert node.control.call("CLUSTER", "ADDSLOTS", THE_SLOT) == "OK"
    eventually(lambda: b"cluster_state:ok" in node.control.call("CLUSTER", "INFO"), within_s=READY_WITHIN_S)


@pytest.mark.parametrize("reads", ["yes", "no"])
def test_while_the_cluster_refuses_writes_no_lock_is_handed_on(lone, reads):
    """Even where it answers reads: whoever waits is sent away, and no fence is issued."""
    lone.control.call("CONFIG", "SET", "cluster-allow-reads-when-down", reads)
    first = lone.control.call("FENCELOCK.ACQUIRE", "k", "A", LONG_MS)
    waiter = lone.queue("k", "W", LONG_MS, LONG_MS)
    cluster_goes_down(lone, ("FENCELOCK.EXTEND", "k", "A", 600))
    assert told_once(waiter).code in REDIRECTIONS | {"CLUSTERDOWN"}
    assert (lone.count("last-fence"), lone.count("hand-overs")) == (first, 0)
    cluster_comes_back(lone)
    assert lone.control.call("FENCELOCK.ACQUIRE", "k", "B", LONG_MS, "WAIT", LONG_MS) > first


@pytest.mark.parametrize("setting", [("min-replicas-to-write", 1), ("maxmemory", 1)], ids=["NOREPLICAS", "OOM"])
def test_what_refuses_writes_of_clients_alone_stops_no_hand_over(lone, setting):
    first = lone.control.call("FENCELOCK.ACQUIRE", "k", "A", LONG_MS)
    waiter = lone.queue("k", "W", LONG_MS, LONG_MS)
    assert lone.control.call_all(("FENCELOCK.EXTEND", "k", "A", 300), ("CONFIG", "SET", *setting)) == [300, "OK"]
    assert lone.control.call("SET", "x", 1).code == ("NOREPLICAS" if setting[0].startswith("min") else "OOM")
    assert waiter.only_reply() > first


def test_a_snapshot_that_failed_stops_no_hand_over(lone):
    first = lone.control.call("FENCELOCK.ACQUIRE", "k", "A", LONG_MS)
    waiter = lone.queue("k", "W", LONG_MS, LONG_MS)
    with snapshots_fail(lone.control.call):
        assert lone.control.call("SET", "x", 1).code == "MISCONF"
        refuse = ("CONFIG", "SET", "stop-writes-on-bgsave-error")
        lone.control.call_all((*refuse, "no"), ("FENCELOCK.EXTEND", "k", "A", 300), (*refuse, "yes"))
        assert waiter.only_reply() > first
        assert lone.control.call("FENCELOCK.RELEASE", "k", "W").code == "MISCONF"


def test_a_lease_whose_connection_closes_while_the_cluster_is_down_ends_when_it_is_back(lone):
    bound = lone.open()
    first = bound.call("FENCELOCK.ACQUIRE", "k", "A", LONG_MS, "EPHEMERAL")
    assert bound.call("FENCELOCK.ACQUIRE", "delayed", "A", LONG_MS, "EPHEMERAL", "DELAY", LONG_MS) > 0
    cluster_goes_down(lone)
    bound.close()
    # A second question is refused too.
    ranout = lone.count("ran-out")
    cluster_comes_back(lone)
    eventually(lambda: lone.count("ran-out"), ranout + 2)
    assert b"delay" in lone.control.call("FENCELOCK.INSPECT", "delayed")
    assert lone.control.call("FENCELOCK.ACQUIRE", "k", "B", LONG_MS) > first


def test_a_grant_that_could_not_be_told_while_the_cluster_is_down_is_undone_when_it_is_back(lone):
    assert lone.control.call("FENCELOCK.ACQUIRE", "k", "A", LONG_MS) > 0
    gone = lone.queue("k", "W", LONG_MS, LONG_MS)
    # The pause keeps it from being undone before the cluster is down.
    lone.open().call_all(
        ("FENCELOCK.RELEASE", "k", "A"),
        ("CLIENT", "PAUSE", 200, "WRITE"),
        ("CLIENT", "KILL", "ID", gone.id),
        ("CLUSTER", "DELSLOTS", THE_SLOT),
    )
    eventually(lambda: b"cluster_state:fail" in lone.control.call("CLUSTER", "INFO"))
    asked = lone.count("slot-probes")
    eventually(lambda: lone.count("slot-probes") > asked)
    cluster_comes_back(lone)
    eventually(lambda: lone.control.call("FENCELOCK.INSPECT", "k"), None)
    assert lone.count("undone-grants") == 1


def test_leases_that_ended_while_the_cluster_is_down_are_not_asked_for_one_by_one(lone):
    """One question a second, however many they are; and all are gone soon after it is back."""
    for number in range(300):
        lone.control.call("FENCELOCK.ACQUIRE", f"k{number}", "A", LONG_MS)
    cluster_goes_down(lone, *(("FENCELOCK.EXTEND", f"k{number}", "A", 700) for number in range(300)))
    asked = lone.count("slot-probes")
    eventually(lambda: lone.count("slot-probes") > asked)
    began = time.monotonic()
    asked = lone.count("slot-probes")
    eventually(lambda: lone.count("slot-probes") >= asked + 2)
    assert lone.count("slot-probes") - asked <= 1 + (time.monotonic() - began) / 0.9
    cluster_comes_back(lone)
    eventually(lambda: lone.count("live-leases"), 0)
    assert lone.control.call("DBSIZE") == 1


def test_a_slot_that_is_not_served_holds_no_other_up(lone):
    """Its ended leases are tried at growing intervals."""
    lone.control.call("CONFIG", "SET", "cluster-require-full-coverage", "no")
    slot = lone.control.call("CLUSTER", "KEYSLOT", "{away}")
    for number in range(300):
        lone.control.call("FENCELOCK.ACQUIRE", f"k{{away}}{number}", "A", 500)
    bound = lone.open()
    bound.call("FENCELOCK.ACQUIRE", "bound{away}", "A", LONG_MS, "EPHEMERAL")
    bound.call("FENCELOCK.ACQUIRE", "bound", "A", LONG_MS, "EPHEMERAL")
    lone.control.call("CLUSTER", "DELSLOTS", slot)
    # On a busy machine some have ended before; `bound` is served.
    away = lone.count("live-leases") - 1
    bound.close()
    asked = lone.count("slot-probes")
    for number in range(300):
        lone.control.call("FENCELOCK.ACQUIRE", f"k{number}", "A", 500)
    eventually(lambda: lone.count("live-leases"), away)
    # One for each lease of the served slots, and few for the other.
    assert lone.count("slot-probes") - asked <= 301 + 1 + 10
    assert lone.control.call("FENCELOCK.INSPECT", "bound") is None
    assert lone.control.call("CLUSTER", "ADDSLOTS", slot) == "OK"
    eventually(lambda: lone.count("live-leases"), 0)
