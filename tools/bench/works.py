"""A work: two sides that are measured in turn, and the limit that the ratio of ours to the peer's must keep.

Invariant: both sides of a ratio ran in the same rounds, on the same server, by the same measure.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Work:
    """One row of the results.

    name: what is compared, ours first. unit: what is measured. target, stretch: limits of the ratio; None only reports.
    at_least: the ratio must be at least the limit (rates), else at most (costs). ours, peer: each gives one measured
    value when called. rounds: how often both are measured.
    """

    name: str
    unit: str
    target: float | None
    stretch: float | None
    ours: Callable[[], float]
    peer: Callable[[], float]
    at_least: bool = False
    rounds: int = 1


@dataclass
class Result:
    """What was measured of a work."""

    work: Work
    ours: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)

    @property
    def ratio(self):
        """The median of the rounds' ratios."""
        return statistics.median(ours / peer for ours, peer in zip(self.ours, self.peer, strict=True))

    @property
    def verdict(self):
        """How the ratio stands to the limits."""
        if self.work.target is None:
            return "-"
        if self.work.stretch is not None and self._keeps(self.work.stretch):
            return "stretch"
        return "met" if self._keeps(self.work.target) else "MISSED"

    def _keeps(self, limit):
        return self.ratio >= limit if self.work.at_least else self.ratio <= limit

    def record(self):
        """As the JSON file has it."""
        work = self.work
        spread = sorted(ours / peer for ours, peer in zip(self.ours, self.peer, strict=True))
        return {
            "name": work.name,
            "unit": work.unit,
            "at_least": work.at_least,
            "target": work.target,
            "stretch": work.stretch,
            "ratio": round(self.ratio, 4),
            "lowest": round(spread[0], 4),
            "highest": round(spread[-1], 4),
            "verdict": self.verdict,
            "ours": self.ours,
            "peer": self.peer,
        }


def measure(work, most_rounds):
    """Measure both sides in turn. Who is first changes from round to round."""
    result = Result(work)
    for number in range(min(work.rounds, most_rounds)):
        if number % 2:
            result.peer.append(work.peer())
            result.ours.append(work.ours())
        else:
            result.ours.append(work.ours())
            result.peer.append(work.peer())
    return result
