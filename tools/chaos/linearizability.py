"""Whether one order of the calls explains every answer.

Each call took effect at one moment between its invocation and its return, or, when the outcome is unknown, perhaps not at
all. The search goes through the calls by the time of their return and keeps every state that some order leads to; when none
is left, no order explains the history. Testing by "just-in-time linearization" is G. Lowe, "Testing for linearizability",
2017; the search itself is Wing and Gong's of 1993.

Not a model: a model has `initial` and `next_states(state, call)`. States of a model may carry a `Zone` of time, and of two
states that differ in the zone alone the one that lies within the other is dropped.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

FOREVER_US = 1 << 60


class Unknown:
    """The outcome of a call whose reply never came: it may have happened or not."""

    def __repr__(self):
        return "unknown"


UNKNOWN = Unknown()


@dataclass(frozen=True)
class Call:
    """One call on one key.

    invoked_us, returned_us: on the machine's monotonic clock. An unknown call returns when it can have no effect any more.
    """

    client: str
    kind: str
    arguments: tuple
    invoked_us: int
    returned_us: int
    outcome: Any

    def __str__(self):
        words = " ".join(map(str, self.arguments))
        return f"{self.invoked_us:>14} {self.returned_us:>14} {self.client:>6} {self.kind} {words} -> {self.outcome}"


class Zone(NamedTuple):
    """What is known of two moments, now and a deadline: bounds of each and of the deadline minus now.

    Always as narrow as the bounds imply, as in timed automata (D. Dill, "Timing assumptions and verification", 1989).
    """

    now_min: int
    now_max: int
    end_min: int
    end_max: int
    left_min: int
    left_max: int

    def later(self, call):
        """The zone at some moment of a call, not before now; None when that cannot be."""
        return _narrowed(
            max(self.now_min, call.invoked_us), call.returned_us, self.end_min, self.end_max, -FOREVER_US, self.left_max
        )

    def with_left(self, at_least, at_most):
        """The part of it in which the deadline is that far off; None when there is none."""
        return _narrowed(*self[:4], max(self.left_min, at_least), min(self.left_max, at_most))

    def until(self, left_us):
        """The zone with a new deadline, that far off."""
        return Zone(self.now_min, self.now_max, self.now_min + left_us, self.now_max + left_us, left_us, left_us)

    def blurred(self, early_us, late_us):
        """The zone with a deadline that may be so much earlier or later."""
        return _narrowed(
            *self[:2], self.end_min - early_us, self.end_max + late_us, self.left_min - early_us, self.left_max + late_us
        )

    def endless(self):
        """The zone without a deadline."""
        return Zone(self.now_min, self.now_max, -FOREVER_US, FOREVER_US, -FOREVER_US, FOREVER_US)

    def within(self, other):
        """Whether the other zone has every moment of this one."""
        return (
            other.now_min <= self.now_min
            and self.now_max <= other.now_max
            and other.end_min <= self.end_min
            and self.end_max <= other.end_max
            and other.left_min <= self.left_min
            and self.left_max <= other.left_max
        )


def _narrowed(now_min, now_max, end_min, end_max, left_min, left_max):
    left_max = min(left_max, end_max - now_min)
    left_min = max(left_min, end_min - now_max)
    end_max = min(end_max, now_max + left_max)
    end_min = max(end_min, now_min + left_min)
    now_max = min(now_max, end_max - left_min)
    now_min = max(now_min, end_min - left_max)
    if now_min > now_max or end_min > end_max or left_min > left_max:
        return None
    return Zone(now_min, now_max, end_min, end_max, left_min, left_max)


BEGINNING = Zone(-FOREVER_US, FOREVER_US, -FOREVER_US, FOREVER_US, -FOREVER_US, FOREVER_US)


@dataclass(frozen=True)
class Violation:
    """A call whose answer no order explains, the states that were possible before it, and the calls around it."""

    call: Call
    states: list
    around: list

    def __str__(self):
        lines = ["no order of the calls explains this answer:", f"  {self.call}", "possible before it:"]
        lines += [f"  {state}" for state in self.states[:5]]
        lines += ["the calls around it (invoked, returned, client, call):", *(f"  {call}" for call in self.around)]
        return "\n".join(lines)


def check(calls, model):
    """None, or the first Violation in the order of returns."""
    calls = sorted(calls, key=lambda call: call.invoked_us)
    events = sorted(
        [(call.invoked_us, 0, number) for number, call in enumerate(calls)]
        + [(call.returned_us, 1, number) for number, call in enumerate(calls)]
    )
    pending = set()
    # For each set of pending calls that have taken effect already: the states that this can have led to.
    front = {frozenset(): [model.initial]}
    for _, is_return, number in events:
        if not is_return:
            pending.add(number)
            continue
        pending.remove(number)
        after = _Front()
        _take_effect(front, calls, number, pending, model, after)
        if not after.states:
            around = [call for call in calls if call.returned_us >= calls[number].invoked_us - 500_000][:40]
            return Violation(calls[number], [state for states in front.values() for state in states], around)
        front = after.states
    return None


class _Front:
    """States by the set of pending calls that have taken effect, none within another."""

    def __init__(self):
        self.states = {}

    def add(self, done, state):
        """Whether the state was new."""
        known = self.states.setdefault(done, [])
        if any(_covers(other, state) for other in known):
            return False
        known[:] = [other for other in known if not _covers(state, other)]
        known.append(state)
        return True


def _covers(one, other):
    if one == other:
        return True
    zone = getattr(one, "zone", None)
    return zone is not None and one.facts == other.facts and other.zone.within(zone)


def _take_effect(front, calls, target, pending, model, after):
    """Lets the target take effect in every state, before it any of the other pending calls; fills `after`."""
    may_not_have_happened = calls[target].outcome is UNKNOWN
    seen = _Front()
    stack = []
    for done, states in front.items():
        for state in states:
            if target in done:
                after.add(done - {target}, state)
                continue
            if may_not_have_happened:
                after.add(done, state)
            if seen.add(done, state):
                stack.append((done, state))
    while stack:
        done, state = stack.pop()
        for next_state in model.next_states(state, calls[target]):
            after.add(done, next_state)
        for number in pending - done:
            for next_state in model.next_states(state, calls[number]):
                further = done | {number}
                if seen.add(further, next_state):
                    stack.append((further, next_state))
