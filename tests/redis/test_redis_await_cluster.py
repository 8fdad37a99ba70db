"""FENCELOCK.AWAIT in a Redis Cluster: a slot that moves, and a cluster that is down."""

from harness import eventually
from harness.redis_server import server_version
from test_redis_cluster import LONG_MS, Place, cluster, cluster_comes_back, cluster_goes_down, each_move, hold_at, lines, lone, the_cluster, told_once  # noqa: F401


@each_move
def test_a_hold_whose_slot_moves_has_moved(cluster, lines, way):  # noqa: F811
    place = Place(cluster)
    source, target = lines(place.source), lines(place.target)
    fence = source.control.call("FENCELOCK.ACQUIRE", "k", "A", LONG_MS)
    awaiters = [source.awaiting("k", fence, LONG_MS) for _ in range(3)]
    getattr(cluster, way)(place.slot, place.source, place.target)
    assert [awaiter.only_reply() for awaiter in awaiters] == [b"moved"] * 3
    assert source.control.call("FENCELOCK.AWAIT", "k", fence, LONG_MS) == f"MOVED {place.slot} 127.0.0.1:{place.target.port}"
    awaiter = target.awaiting("k", fence, LONG_MS)
    assert target.control.call("FENCELOCK.RELEASE", "k", "A") == 1
    assert awaiter.only_reply() == b"released"


def test_while_its_slot_moves_a_hold_ends_where_it_is(cluster, lines):  # noqa: F811
    place = Place(cluster)
    source, target = lines(place.source), lines(place.target)
    fence = source.control.call("FENCELOCK.ACQUIRE", "k", "A", LONG_MS)
    released = source.awaiting("k", fence, LONG_MS)
    cluster.begin_move(place.slot, place.source, place.target)
    assert source.control.call("FENCELOCK.RELEASE", "k", "A") == 1
    assert released.only_reply() == b"released"
    # The key is not here any more, so a new hold begins at the target.
    fence = target.control.call_all(("ASKING",), ("FENCELOCK.ACQUIRE", "k", "B", LONG_MS))[1]
    asking = target.open()
    asking.call("ASKING")
    told = asking.call("FENCELOCK.AWAIT", "k", fence, LONG_MS)
    # Until the slot is its own, the target cannot vouch for the hold.
    assert told == b"moved"
    cluster.move_keys(place.slot, place.source, place.target)
    cluster.end_move(place.slot, place.target)
    assert target.awaiting("k", fence, LONG_MS)


def test_a_replica_that_is_asked_to_read_knows_the_end(cluster, lines):  # noqa: F811
    place = Place(cluster)
    replica = lines(cluster.replica_of(place.source))
    fence = place.source.call("FENCELOCK.ACQUIRE", "k", "A", LONG_MS)
    assert replica.control.call("FENCELOCK.AWAIT", "k", fence, LONG_MS).code == "MOVED"
    eventually(lambda: hold_at(cluster.replica_of(place.source), "k", ("READONLY",)), (b"A", fence))
    line = replica.open()
    line.call("READONLY")
    line.send("FENCELOCK.AWAIT", "k", fence, LONG_MS)
    eventually(lambda: replica.count("awaiters"), 1)
    place.source.call("FENCELOCK.STEAL", "k", "B", LONG_MS)
    assert line.only_reply() == b"stolen"


def test_while_the_cluster_is_down_the_end_of_a_lease_is_still_an_end(lone):  # noqa: F811
    """Redis itself redirects every blocked client; on Valkey it waits on, and the key of the lease stays."""
    fence = lone.control.call("FENCELOCK.ACQUIRE", "k", "A", LONG_MS)
    awaiter = lone.awaiting("k", fence, LONG_MS)
    cluster_goes_down(lone, ("FENCELOCK.EXTEND", "k", "A", 2_000))
    told = told_once(awaiter)
    if server_version()[0] == "Valkey":
        assert told == b"expired"
    else:
        assert told.code == "CLUSTERDOWN"
    assert lone.control.call("FENCELOCK.AWAIT", "k", fence, LONG_MS).code == "CLUSTERDOWN"
    eventually(lambda: (lone.count("awaiters"), lone.blocked()), (0, 0))
    cluster_comes_back(lone)
    fence = lone.control.call("FENCELOCK.ACQUIRE", "k", "B", LONG_MS, "WAIT", LONG_MS)
    awaiter = lone.awaiting("k", fence, LONG_MS)
    lone.control.call("FENCELOCK.RELEASE", "k", "B")
    assert awaiter.only_reply() == b"released"


def test_a_hold_in_a_cluster_costs_one_question_a_second_for_all_who_await_it(lone):  # noqa: F811
    fence = lone.control.call("FENCELOCK.ACQUIRE", "k", "A", LONG_MS)
    awaiters = [lone.awaiting("k", fence, LONG_MS) for _ in range(20)]
    before, began = lone.count("slot-probes"), lone.info("server")["uptime_in_seconds"]
    eventually(lambda: lone.info("server")["uptime_in_seconds"] >= began + 3)
    passed = lone.info("server")["uptime_in_seconds"] - began
    assert lone.count("slot-probes") - before <= passed + 2
    assert not any(awaiter.has_reply() for awaiter in awaiters)
