"""The rules of leases, on both lock servers: one suite, once against the Redis module and once against PostgreSQL."""

import contextlib
import random
import threading

import pytest
from lease_servers import PostgresServer, RedisServer, RefusedCall
from seeds import seed

from harness import eventually
from harness.locks import FENCE_MAX
from harness.waiting import HANG_S

LONG = 600_000
DAY = 86_400_000


@pytest.fixture(params=["redis", "postgres"])
def server(request, r, redis_server, dsn):
    """A lock server without a lock."""
    with contextlib.ExitStack() as stack:
        yield RedisServer(redis_server, stack) if request.param == "redis" else PostgresServer(dsn, stack)


@pytest.fixture
def one(server):
    return server.session()


@pytest.fixture
def two(server):
    return server.session()


@pytest.fixture(params=["redis", "postgres"])
def alone(request, make_redis, dsn):
    """A session of a lock server that no other test uses: what is raised stays."""
    with contextlib.ExitStack() as stack:
        server = RedisServer(make_redis(), stack) if request.param == "redis" else PostgresServer(dsn, stack)
        yield server.session()


class Waiter:
    """A call that waits in a session of its own; it is in the queue when this is made."""

    def __init__(self, server, lock, owner, *, wait=LONG, **options):
        self._answer, self._error = None, None
        watching, before = server.session(), server.session().inspect(lock)
        self._thread = threading.Thread(target=self._run, args=(server.session(), lock, owner, wait, options), daemon=True)
        self._thread.start()
        eventually(lambda: watching.inspect(lock).waiters, before.waiters + 1)

    def _run(self, session, lock, owner, wait, options):
        self._answer = session.acquire(lock, owner, wait=wait, **options)

    @property
    def still_waits(self):
        return self._thread.is_alive()

    def answer(self):
        self._thread.join(HANG_S)
        assert not self.still_waits
        return self._answer


def expired(session, lock, state=None):
    eventually(lambda: getattr(session.inspect(lock), "state", None), state)


# --- a grant


def test_a_free_lock_is_granted_with_a_fence(one):
    fence = one.acquire("k", "A")
    assert isinstance(fence, int) and 0 < fence <= FENCE_MAX
    held = one.inspect("k")
    assert (held.owner, held.fence, held.state, held.waiters, held.maxhold_left_ms) == ("A", fence, "held", 0, None)


def test_a_held_lock_is_busy_and_its_lease_is_left_alone(one, two):
    fence = one.acquire("k", "A", 10_000)
    assert two.acquire("k", "B", DAY) is None
    held = one.inspect("k")
    assert (held.owner, held.fence) == ("A", fence) and held.ttl_ms <= 10_000


def test_the_owner_itself_is_busy_like_anyone_else(one):
    fence = one.acquire("k", "A", 10_000)
    assert one.acquire("k", "A", DAY) is None
    assert one.inspect("k").fence == fence and one.inspect("k").ttl_ms <= 10_000


def test_locks_of_other_names_are_free_and_fences_grow_over_all(one, two):
    fences = [session.acquire(name, "A") for session, name in ((one, "k"), (two, "k2"), (one, "K"), (two, "k "))]
    assert None not in fences and fences == sorted(set(fences))


@pytest.mark.parametrize("ttl_ms", [1, 1_000, DAY])
def test_a_lease_has_its_ttl(one, ttl_ms):
    one.acquire("k", "A", ttl_ms)
    held = one.inspect("k")
    assert held is None or held.ttl_ms <= ttl_ms
    assert ttl_ms != DAY or held.ttl_ms > DAY - 60_000


def test_a_lease_that_expired_is_free_and_its_fence_old(one, two):
    fence = one.acquire("k", "A", 50)
    expired(one, "k")
    assert (one.check("k", fence), one.extend("k", "A", DAY), one.release("k", "A")) == (False, 0, False)
    assert two.acquire("k", "B") > fence


# --- extend and release


def test_an_extension_replaces_what_was_left_and_keeps_the_fence(one, two):
    fence = one.acquire("k", "A", 10_000)
    assert one.extend("k", "A", 50_000) == 50_000
    assert two.extend("k", "A", 20_000, fence) == 20_000
    assert one.inspect("k").fence == fence and one.inspect("k").ttl_ms <= 20_000


def test_only_the_hold_itself_is_extended_or_released(one, two):
    fence = one.acquire("k", "A", 10_000)
    assert [two.extend("k", "B", DAY), two.extend("k", "A", DAY, fence + 1), two.extend("k", "B", DAY, fence), two.extend("k2", "A", DAY)] == [0] * 4
    assert [two.release("k", "B"), two.release("k", "A", fence + 1), two.release("k2", "A")] == [False] * 3
    assert one.inspect("k").ttl_ms <= 10_000 and one.check("k", fence) is True
    assert two.release("k", "A", fence) is True and one.inspect("k") is None


def test_a_stale_thread_does_not_release_its_successor_of_the_same_owner(one, two):
    old = one.acquire("k", "A", 50)
    expired(one, "k")
    new = two.acquire("k", "A")
    assert (one.release("k", "A", old), one.extend("k", "A", DAY, old)) == (False, 0)
    assert two.check("k", new) is True and two.release("k", "A") is True


def test_a_released_lock_is_free_at_once_and_once(one, two):
    fence = one.acquire("k", "A", delay=DAY)
    assert [one.release("k", "A"), one.release("k", "A")] == [True, False]
    assert two.acquire("k", "A") > fence


# --- the options


def test_a_retry_gets_the_fence_and_leaves_the_lease(one, two):
    fence = one.acquire("k", "A", 10_000)
    assert two.acquire("k", "A", DAY, retry=True) == fence
    assert one.inspect("k").ttl_ms <= 10_000
    assert two.acquire("k", "B", retry=True) is None
    assert two.acquire("free", "A", retry=True) > fence


def test_the_longest_hold_cuts_every_lease(one):
    one.acquire("k", "A", DAY, maxhold=30_000)
    held = one.inspect("k")
    assert held.ttl_ms <= 30_000 and abs(held.maxhold_left_ms - held.ttl_ms) <= 1
    assert 0 < one.extend("k", "A", DAY) <= 30_000
    assert 0 < one.extend("k", "A", 10_000) <= 10_000
    assert 10_000 < one.extend("k", "A", DAY) <= 30_000


def test_a_delay_keeps_everybody_out_after_an_expiry(one, two):
    fence = one.acquire("k", "A", 1, delay=LONG)
    expired(one, "k", "delay")
    assert (one.acquire("k", "A", retry=True), two.acquire("k", "B"), one.extend("k", "A", DAY), one.release("k", "A")) == (None, None, 0, False)
    assert one.check("k", fence) is False and one.inspect("k").fence == fence
    one.free("k")
    assert two.acquire("k", "B") > fence


def test_a_delay_ends(one, two):
    fence = one.acquire("k", "A", 1, delay=200)
    expired(one, "k")
    assert two.acquire("k", "B") > fence


# --- waiting


def test_waiters_are_first_in_first_out_and_nobody_overtakes(server, one):
    fences = [one.acquire("k", "A")]
    waiters = [Waiter(server, "k", f"w{number}") for number in range(3)]
    owner = "A"
    for number, waiter in enumerate(waiters):
        assert all(other.still_waits for other in waiters[number:])
        assert one.acquire("k", "new") is None
        assert one.release("k", owner, fences[-1]) is True
        fences.append(waiter.answer())
        owner = f"w{number}"
        assert one.inspect("k").owner == owner
    assert fences == sorted(set(fences))


def test_a_wait_ends_with_nothing(server, one):
    one.acquire("k", "A")
    assert server.session().acquire("k", "B", wait=100) is None
    assert one.inspect("k").waiters == 0


def test_a_waiter_gets_an_expired_lock_after_its_delay(server, one):
    fence = one.acquire("k", "A", LONG, delay=200)
    waiter = Waiter(server, "k", "B")
    one.extend("k", "A", 300)
    assert waiter.answer() > fence and one.inspect("k").owner == "B"


def test_a_shortened_lease_goes_to_the_waiter(server, one):
    one.acquire("k", "A", LONG)
    waiter = Waiter(server, "k", "B")
    one.extend("k", "A", 1)
    assert waiter.answer() is not None


def test_a_freed_lock_goes_to_the_waiter(server, one):
    fence = one.acquire("k", "A", LONG)
    waiter = Waiter(server, "k", "B")
    one.free("k")
    assert waiter.answer() > fence


def test_the_lease_of_a_waiter_begins_with_the_grant(server, one):
    one.acquire("k", "A", LONG)
    waiter = Waiter(server, "k", "B", ttl_ms=50_000, maxhold=70_000)
    eventually(lambda: one.inspect("k").held_ms >= 200)
    one.release("k", "A")
    waiter.answer()
    held = one.inspect("k")
    assert abs(held.ttl_ms + held.held_ms - 50_000) <= 1 and abs(held.maxhold_left_ms + held.held_ms - 70_000) <= 1


def test_a_retry_that_waits_gets_what_the_earlier_call_was_granted(server, one):
    one.acquire("k", "A")
    earlier = Waiter(server, "k", "B")
    later = threading.Thread(target=lambda: got.append(server.session().acquire("k", "B", wait=LONG, retry=True)))
    got = []
    later.start()
    if server.name == "postgres":
        eventually(lambda: one.inspect("k").waiters, 2)
    else:
        assert earlier.answer() is None
    one.release("k", "A")
    later.join(HANG_S)
    assert got == [one.inspect("k").fence]


# --- operators


def test_fences_are_raised_above_a_number_and_never_lowered(alone):
    fence = alone.acquire("k", "A")
    above = fence + 1_000_000_000
    assert alone.raise_to(above) == above and alone.raise_to(5) == above
    assert alone.acquire("k2", "A") == above + 1


# --- bad input


BAD_SPANS = [-1, 0, DAY + 1, 2**62]


@pytest.mark.parametrize("ms", BAD_SPANS)
@pytest.mark.parametrize("argument", ["ttl", "wait", "maxhold", "delay"])
def test_a_span_out_of_range_is_refused_in_the_same_words(one, argument, ms):
    options = {"ttl_ms": ms} if argument == "ttl" else {argument: ms}
    with pytest.raises(RefusedCall) as caught:
        one.acquire("k", "A", **options)
    name, _, rest = str(caught.value).partition(" ")
    assert name in (f"{argument}-ms", f"{argument}_ms", argument.upper())
    omit = f"; omit {name} to be answered at once" if (argument, ms) == ("wait", 0) else ""
    assert rest == f"must be an integer from 1 to {DAY}{omit}"
    assert one.inspect("k") is None


@pytest.mark.parametrize("owner", ["", "x" * 513, "ä" * 257])
def test_an_owner_of_no_or_too_many_bytes_is_refused_in_the_same_words(one, owner):
    for call in (lambda: one.acquire("k", owner), lambda: one.extend("k", owner, 1), lambda: one.release("k", owner)):
        with pytest.raises(RefusedCall, match=f"owner must have 1 to 512 bytes, not {len(owner.encode())}"):
            call()


@pytest.mark.parametrize("fence", [-1, 0, FENCE_MAX + 1])
def test_what_is_not_a_fence_is_refused_in_the_same_words(one, fence):
    one.acquire("k", "A")
    calls = (lambda: one.extend("k", "A", 1, fence), lambda: one.release("k", "A", fence), lambda: one.check("k", fence))
    for call in calls:
        with pytest.raises(RefusedCall, match=f"fence must be an integer from 1 to {FENCE_MAX}"):
            call()


# --- the same calls in any order


class Numbered:
    """A session whose fences are those of a sequence: the first that it is granted is 1, and so on."""

    def __init__(self, session):
        self.session, self.fences = session, [0]

    def answer(self, operation):
        name, *words, back = operation
        fence = self.fences[max(len(self.fences) - 1 - back, 0)] or 1 if back is not None else None
        if name == "acquire":
            return self._numbered(self.session.acquire(*words[:2], **words[2]))
        if name == "extend":
            left = self.session.extend(*words, fence)
            return left and round(left / 1000)
        if name == "release":
            return self.session.release(*words, fence)
        if name == "check":
            return self.session.check(*words, fence)
        if name == "free":
            return self.session.free(*words)
        held = self.session.inspect(*words)
        return held and (held.owner, self._numbered(held.fence), held.state, held.maxhold_left_ms is None)

    def _numbered(self, fence):
        if fence is None:
            return None
        if fence not in self.fences:
            assert fence > self.fences[-1], f"fence {fence} after {self.fences[-1]}"
            self.fences.append(fence)
        return self.fences.index(fence)


def operation(chance):
    """One call. Leases are long, or so short that they have expired when the next call is made."""
    lock, owner = chance.choice("ab"), chance.choice("ABC")
    ttl = chance.choice([LONG, 2 * LONG])
    back = chance.choice([None, None, 0, 0, 1, 2])
    kind = chance.choice(["acquire"] * 4 + ["extend", "release", "release", "check", "inspect", "free"])
    if kind == "acquire":
        options = {"ttl_ms": ttl, "retry": chance.random() < 0.3, "maxhold": chance.choice([None, LONG]), "delay": chance.choice([None, LONG])}
        return ("acquire", lock, owner, options, None)
    if kind == "extend":
        return ("extend", lock, owner, ttl, back)
    if kind == "release":
        return ("release", lock, owner, back)
    if kind == "check":
        return ("check", lock, back or 0)
    return (kind, lock, None)


def test_both_servers_answer_the_same_to_the_same_calls(r, redis_server, dsn):
    chance = random.Random(seed())
    with contextlib.ExitStack() as stack:
        both = [Numbered(server.session()) for server in (RedisServer(redis_server, stack), PostgresServer(dsn, stack))]
        done, kinds = [], set()
        for _ in range(1_500):
            one = operation(chance)
            done.append(one)
            redis_says, postgres_says = (session.answer(one) for session in both)
            kinds.add((one[0], redis_says if isinstance(redis_says, bool) else bool(redis_says)))
            assert redis_says == postgres_says, f"{redis_says!r} and {postgres_says!r} to {done[-1]} after {done[-12:-1]}"
    assert len(kinds) >= 11, kinds
