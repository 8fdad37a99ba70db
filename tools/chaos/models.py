"""What a lock and a fenced resource may answer, written down a second time and as plainly as can be.

For the checker: `next_states(state, call)` lists the states that the call can lead to from a state if its outcome is the
recorded one. Times are microseconds.
"""

from typing import Any, NamedTuple

from .linearizability import BEGINNING, FOREVER_US, UNKNOWN, Zone

# Clocks are read in whole microseconds, on both sides.
ROUNDING_US = 5
# A restarted server places a deadline by the wall clock, which is slewed by at most 500 ppm.
RESTART_BLUR_US = 5_000
# A promoted replica ends a lease at most so late, however long its link stood still before.
HANDOVER_LATE_US = 100_000


class Hold(NamedTuple):
    """Who holds a lock. The fence is None while no reply has reported it.

    may_vanish: it was granted to a client that waited and whose connection broke, and the server takes that back.
    abandoned: it is EPHEMERAL and its connection was closed, so the server ends it as soon as it may.
    """

    owner: str
    fence: int | None
    may_vanish: bool = False
    abandoned: bool = False


# The owner of a hold that a fail-over may have brought back: any of those that the model was given for it, or none.
SOMEBODY = "somebody of before the fail-over"
# How long such a hold can last: the longest lease of the workers, and what a replica was behind.
FORGOTTEN_LEFT_US = 2_000_000
# How long an abandoned hold can last on a server that may write: it tries once a second.
ABANDONED_LEFT_US = 2_000_000


class LockState(NamedTuple):
    """A lock: its hold, the largest fence seen, whether its server refuses writes, the zone of now and of the deadline."""

    hold: Hold | None
    last: int
    down: bool
    zone: Zone

    @property
    def facts(self):
        """All but the zone."""
        return self[:3]


class Lock:
    """One lock: acquire, steal, extend, release, check, inspect, await, and what becomes of its server.

    `restart`, `handover` to a replica and `move` to another node keep the lock; `forget` is a fail-over without the last
    writes. From `down` to `up` the server may change nothing. `leave` closes the connection of an EPHEMERAL hold.

    forgotten: for each call `forget` (a fail-over without the last writes), by its number, the holds that it can bring back.
    wakes: at the end of a hold the server wakes the first waiter, which takes the lock then; so long a free lock is refused to
    newcomers. And a lease runs from before the commit that grants or extends it. Else the server hands the lock over, and
    begins the lease, in the same step.
    """

    initial = LockState(None, 0, False, BEGINNING)

    def __init__(self, forgotten=None, *, wakes=False):
        self._forgotten, self._wakes = forgotten or {}, wakes

    def next_states(self, state, call):
        """See the module."""
        zone = state.zone.later(call)
        if zone is None:
            return []
        return list(getattr(self, f"_{call.kind}")(state._replace(zone=zone), call))

    def _acquire(self, state, call):
        owner, ttl_ms, wait_ms, retry = call.arguments
        fence = call.outcome
        if fence is None:
            if self._wakes:
                yield state
            elif state.hold and not (retry and state.hold.owner == owner):
                yield from _live(state)
            return
        if state.down:
            return
        for free in _ended(state):
            zone = self._lasting(free, ttl_ms, call)
            if fence is UNKNOWN:
                yield free._replace(hold=Hold(owner, None, may_vanish=wait_ms > 0), zone=zone)
            elif fence > free.last:
                yield free._replace(hold=Hold(owner, fence), last=fence, zone=zone)
        if retry and fence is not UNKNOWN:
            for held in self._live(state, owner, fence):
                # The repeated call has it now, so it stands.
                yield held._replace(hold=held.hold._replace(may_vanish=False))

    def _steal(self, state, call):
        """Arguments: the new owner, its lease, and the fence of the hold that it was to take; None for any."""
        owner, ttl_ms, victim = call.arguments
        if call.outcome is None:
            if victim is not None:
                yield from self._not_live(state, victim)
            return
        if state.down:
            return
        for taken in [state] if victim is None else self._live_with(state, victim):
            zone = taken.zone.endless().until(ttl_ms * 1000)
            if call.outcome is UNKNOWN:
                yield taken._replace(hold=Hold(owner, None), zone=zone)
            elif call.outcome > taken.last:
                yield taken._replace(hold=Hold(owner, call.outcome), last=call.outcome, zone=zone)

    def _await(self, state, call):
        """The reply is null while the hold is live, a word once it is not."""
        (fence,) = call.arguments
        if call.outcome is None:
            yield from self._live_with(state, fence)
        elif call.outcome == "moved":
            # To another node, where it may be live.
            yield state
        elif call.outcome is not UNKNOWN:
            yield from self._not_live(state, fence)

    def _extend(self, state, call):
        owner, fence, ttl_ms = call.arguments
        if call.outcome == 0:
            yield from self._not_held(state, owner, fence)
        elif not state.down and (call.outcome is UNKNOWN or call.outcome == ttl_ms):
            for held in self._live(state, owner, fence):
                yield held._replace(zone=self._lasting(held, ttl_ms, call))

    def _lasting(self, state, ttl_ms, call):
        """The zone with a lease that the call has set."""
        zone = state.zone.until(ttl_ms * 1000)
        return zone.blurred(call.returned_us - call.invoked_us, 0) if self._wakes else zone

    def _release(self, state, call):
        owner, fence = call.arguments
        if call.outcome == 0:
            yield from self._not_held(state, owner, fence)
        elif not state.down:
            for held in self._live(state, owner, fence):
                yield _free(held)

    def _check(self, state, call):
        owner, fence = call.arguments
        if call.outcome == 0:
            yield from self._not_held(state, owner, fence)
        elif call.outcome == 1:
            yield from self._live(state, owner, fence)

    def _inspect(self, state, call):
        if call.outcome is None:
            yield from _ended(state)
        elif call.outcome is not UNKNOWN:
            owner, fence, left_ms = call.outcome
            told = self._told(state, owner, fence)
            if told and told.hold.abandoned:
                # Until the server has ended it, it reports the time of the lease.
                yield from _live(told)
                return
            zone = told and told.zone.with_left((left_ms - 1) * 1000 - ROUNDING_US, left_ms * 1000 + ROUNDING_US)
            if zone:
                yield told._replace(zone=zone)

    def _restart(self, state, _):
        """The server came back with all that it had answered."""
        yield _later(state, 0)

    def _handover(self, state, _):
        """A replica took over with all that the server had answered."""
        yield _later(state, HANDOVER_LATE_US)

    def _move(self, state, call):
        """Another node has it now. On the way no time passes for a lease."""
        yield _later(state, call.returned_us - call.invoked_us)

    def _down(self, state, _):
        """The server said that it may not write."""
        yield state._replace(down=True)

    def _up(self, state, _):
        """It may again, and ends what it had to leave."""
        up = state._replace(down=False)
        yield _soon_free(up) if up.hold and up.hold.abandoned else up

    def _leave(self, state, call):
        """The holder closed its connection; a server that may write ends the lease then, or soon."""
        hold = state.hold
        if hold is None or hold.owner != call.arguments[0]:
            yield state
            return
        left = state._replace(hold=hold._replace(may_vanish=True, abandoned=True))
        yield left if left.down else _soon_free(left)

    def _forget(self, state, call):
        """The server came back, perhaps without its last writes: with a hold of some moments ago, or none."""
        yield _later(state, 0)
        zone = state.zone.endless().with_left(-FOREVER_US, FORGOTTEN_LEFT_US)
        yield state._replace(hold=Hold(SOMEBODY, call.arguments[0], may_vanish=True), zone=zone)

    def _told(self, state, owner, fence):
        """The state, when its hold can be that of the owner and the fence; the fence is known then."""
        hold = state.hold
        if hold is None:
            return None
        if hold.owner == owner and hold.fence == fence:
            return state
        if hold.owner == owner and hold.fence is None and fence > state.last:
            return state._replace(hold=hold._replace(fence=fence), last=fence)
        if hold.owner == SOMEBODY and {(owner, fence), (owner, None)} & self._forgotten[hold.fence]:
            told = (owner, fence) in self._forgotten[hold.fence]
            return state._replace(hold=Hold(owner, fence, may_vanish=not told), last=max(state.last, fence))
        return None

    def _live(self, state, owner, fence):
        """The state, when its hold can be that of the owner and the fence, and live."""
        told = self._told(state, owner, fence)
        return _live(told) if told else ()

    def _live_with(self, state, fence):
        """The states in which the hold has that fence, whoever owns it, and is live."""
        owners = {state.hold.owner} if state.hold else set()
        if SOMEBODY in owners:
            owners = {owner for owner, forgotten in self._forgotten[state.hold.fence] if forgotten in (fence, None)}
        for owner in sorted(owners):
            yield from self._live(state, owner, fence)

    def _not_live(self, state, fence):
        """The states in which the hold has not that fence, or is not live."""
        if state.hold is None:
            yield state
        else:
            yield from self._not_held(state, state.hold.owner, fence)

    def _not_held(self, state, owner, fence):
        """The states in which the hold is not that of the owner and the fence."""
        hold = state.hold
        if hold is None or hold.owner != owner or hold.fence != fence:
            yield state
        if hold is not None:
            yield from _ended(state)


def _live(state):
    """The part of a state in which the hold is live."""
    zone = state.zone.with_left(1 - ROUNDING_US, FOREVER_US)
    if zone:
        yield state._replace(zone=zone)


def _ended(state):
    """The state with a free lock, as far as the hold can have ended."""
    if state.hold is None or state.hold.may_vanish:
        yield _free(state)
        return
    zone = state.zone.with_left(-FOREVER_US, ROUNDING_US)
    if zone:
        yield _free(state._replace(zone=zone))


def _free(state):
    return state._replace(hold=None, zone=state.zone.endless())


def _later(state, late_us):
    """The state whose deadline was placed anew, at most so much later than before."""
    return state._replace(zone=state.zone.blurred(RESTART_BLUR_US, RESTART_BLUR_US + late_us)) if state.hold else state


def _soon_free(state):
    return state._replace(zone=state.zone.endless().with_left(-FOREVER_US, ABANDONED_LEFT_US))


class Resource:
    """A row or a hash with its stamp: claim, update, write (blind), read."""

    class State(NamedTuple):
        """The stamp, and what is stored."""

        fence: int
        value: Any

    def __init__(self, value):
        self.initial = Resource.State(0, value)

    def next_states(self, state, call):
        """See the module."""
        if call.kind == "read":
            return [state] if call.outcome in (UNKNOWN, state.value) else []
        fence = call.arguments[0]
        stale, accepted = {"claim": (None, state.value), "update": (False, True), "write": (False, True)}[call.kind]
        lower = state.fence < fence
        if call.outcome == "unclaimed":
            return [state] if lower and call.kind == "update" else []
        if call.outcome == "outlived":
            return [state] if state.fence == fence and call.kind != "claim" else []
        if call.outcome is UNKNOWN or call.outcome != stale:
            fits = state.fence == fence or (lower and call.kind != "update")
            right = call.outcome is UNKNOWN or call.outcome == accepted
            value = state.value if call.kind == "claim" else call.arguments[1]
            return [Resource.State(fence, value)] if fits and right else []
        return [state] if state.fence > fence else []
