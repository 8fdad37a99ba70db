"""A recorded history: calls by key, to and from JSON lines, and the judgement of all keys together."""

import json

from .linearizability import UNKNOWN, Call, check
from .models import Lock, Resource

# How long before a fail-over a hold can have been granted or extended that it may bring back. No lease here is longer
# than half a second; the rest is for extensions and for a replica that was busy.
FORGOTTEN_US = 10_000_000


class History:
    """The calls of one run, by key; for a resource what it held at first.

    one_issuer: one server, or one after another, issued all fences; the nodes of a cluster do not. wakes: see Lock.
    """

    def __init__(self, *, one_issuer=True, wakes=False):
        self.calls, self.one_issuer, self.wakes = {}, one_issuer, wakes

    def add(self, key, call):
        """Take a call in."""
        self.calls.setdefault(key, []).append(call)

    def all(self):
        """Every call."""
        return [call for calls in self.calls.values() for call in calls]

    def count(self, kind, told=lambda outcome: True):
        """How many calls of a kind had such an outcome."""
        return sum(call.kind == kind and told(call.outcome) for call in self.all())

    def unknown(self):
        """How many calls had no reply."""
        return sum(call.outcome is UNKNOWN for call in self.all())

    def save(self, path):
        """Write it as JSON lines."""
        with open(path, "w") as out:
            out.write(json.dumps({"one_issuer": self.one_issuer, "wakes": self.wakes}) + "\n")
            for key, calls in self.calls.items():
                out.writelines(json.dumps(encoded_call(key, call)) + "\n" for call in calls)

    @classmethod
    def load(cls, path):
        """Read what `save` wrote."""
        with open(path) as lines:
            history = cls(**json.loads(next(lines)))
            for line in lines:
                history.add(*decoded_call(json.loads(line)))
        return history

    def violations(self):
        """What no order of the calls explains, as texts; none when the history is right."""
        found = [*self._fences_of_the_server()] if self.one_issuer else []
        for key, calls in sorted(self.calls.items()):
            violation = check(calls, self._model(key))
            if violation:
                found.append(f"{key}: {violation}")
            elif ":" in key:
                found += self._miscounted(key)
        return found

    def _model(self, key):
        if ":" in key:
            return Resource(freeze(EMPTY))
        return Lock(self._forgotten(key), wakes=self.wakes)

    def _forgotten(self, key):
        """For each fail-over the holds that it may bring back."""
        calls = self.calls[key]
        return {
            lost.arguments[0]: {
                hold
                for call in calls
                if lost.invoked_us - FORGOTTEN_US <= call.returned_us and call.invoked_us <= lost.returned_us
                if (hold := _hold_of(call))
            }
            for lost in calls
            if lost.kind == "forget"
        }

    def _fences_of_the_server(self):
        """One server, or one after another, issues each fence once and in order, over all locks."""
        granted = {}
        for key, calls in self.calls.items():
            for call in calls:
                if call.kind in GRANTS and isinstance(call.outcome, int):
                    granted.setdefault(call.outcome, []).append((key, call))
        earlier = None  # of all calls that reported a larger fence, the first to return
        for fence, grants in sorted(granted.items(), reverse=True):
            if len({(key, call.arguments[0]) for key, call in grants}) > 1:
                yield f"fence {fence} was issued twice:\n" + "\n".join(f"  {key} {call}" for key, call in grants)
            calls = [call for _, call in grants]
            for call in calls:
                # A repeated call reports again what was issued before.
                if earlier and call.invoked_us > earlier.returned_us and not _is_repeated(call):
                    yield f"a fence went back:\n  {earlier}\n  {call}"
                    return
            earlier = min([*calls, *([earlier] if earlier else [])], key=lambda call: call.returned_us)

    def _miscounted(self, key):
        """The counter is the number of accepted increments; those without a reply count or not."""
        updates = [call for call in self.calls[key] if call.kind == "update"]
        accepted = sum(call.outcome is True for call in updates)
        unknown = sum(call.outcome is UNKNOWN for call in updates)
        reads = [call.outcome for call in self.calls[key] if call.kind == "read" and call.outcome is not UNKNOWN]
        if reads and not accepted <= reads[-1][0] <= accepted + unknown:
            yield f"{key}: {accepted} increments were accepted and {unknown} had no reply, but it counts {reads[-1][0]}"


# The calls that report a fence which was issued for them.
GRANTS = ("acquire", "steal")
# What every resource holds at first: the counter and the mark of who wrote it.
EMPTY = [0, ""]


def _is_repeated(call):
    return call.kind == "acquire" and call.arguments[3]


def _hold_of(call):
    """The owner and the fence, if that is known, of the hold that a call made, prolonged or saw."""
    if call.kind in GRANTS and call.outcome is UNKNOWN:
        return call.arguments[0], None
    if call.kind in GRANTS and call.outcome is not None:
        return call.arguments[0], call.outcome
    if call.kind in ("extend", "check") and call.outcome:
        return call.arguments[0], call.arguments[1]
    return None


def freeze(value):
    """Lists as tuples, so that states can be compared and kept in sets."""
    return tuple(map(freeze, value)) if isinstance(value, list) else value


def encoded_call(key, call):
    """A call as JSON; the outcome in a list, which is empty when it is unknown."""
    outcome = [] if call.outcome is UNKNOWN else [call.outcome]
    return [key, call.client, call.kind, call.arguments, call.invoked_us, call.returned_us, outcome]


def decoded_call(words):
    """The key and the call that `encoded_call` wrote."""
    key, client, kind, arguments, invoked_us, returned_us, outcome = words
    outcome = freeze(outcome[0]) if outcome else UNKNOWN
    return key, Call(client, kind, freeze(arguments), invoked_us, returned_us, outcome)
