"""What PostgreSQL has left of the accepted writes, and whether it is one chain for each resource.

Every accepted write stores a token at its resource, and in the same transaction a line of a log: its token, the token that
it is based on, its fence, and what it wrote. Whatever commits a server loses, in the end the log of a resource must be one list
from the beginning to what the resource holds. Knows no server.
"""

import json
from dataclasses import asdict, astuple, dataclass, field


@dataclass(frozen=True)
class Written:
    """A line of the log."""

    resource: str
    token: str
    previous: str
    fence: int
    value: int


@dataclass
class Chains:
    """The log on the last server, what each resource holds there, and the tokens whose writes were acknowledged."""

    log: list = field(default_factory=list)
    held: dict = field(default_factory=dict)
    acknowledged: list = field(default_factory=list)

    def of(self, resource):
        """The lines of a resource."""
        return [line for line in self.log if line.resource == resource]

    def lost(self):
        """How many acknowledged writes the last server does not have."""
        return len(set(self.acknowledged) - {line.token for line in self.log})

    def wrong(self):
        """How many accepted writes are based on one that was lost, or that another accepted write has replaced."""
        tokens, seen, wrong = {line.token for line in self.log}, set(), 0
        for line in self.log:
            based_on = (line.resource, line.previous)
            wrong += based_on in seen or (line.previous != "" and line.previous not in tokens)
            seen.add(based_on)
        return wrong

    def violations(self):
        """What is wrong, as texts; none when all is one chain for each resource."""
        return [found for resource in sorted(self.held) for found in self._violations_of(resource)]

    def _violations_of(self, resource):
        follows, found = {}, []
        for line in self.of(resource):
            other = follows.setdefault(line.previous, line)
            if other is not line:
                found.append(f"{resource}: {line} and {other} are based on the same write")
        token, fence, value = "", 0, 0
        while token in follows:
            line = follows.pop(token)
            value += 1
            if line.fence < fence:
                found.append(f"{resource}: {line} was accepted after fence {fence}")
            if line.value != value:
                found.append(f"{resource}: {line} should have written {value}")
            token, fence = line.token, line.fence
        if token != self.held[resource]:
            found.append(f"{resource}: the chain ends at {token!r}, and the resource holds {self.held[resource]!r}")
        found.extend(f"{resource}: {line} is based on a write that was lost" for line in follows.values())
        return found

    def save(self, path):
        """Write it as JSON lines."""
        with open(path, "w") as out:
            out.write(json.dumps({"held": self.held, "acknowledged": self.acknowledged}) + "\n")
            out.writelines(json.dumps(asdict(line)) + "\n" for line in sorted(self.log, key=astuple))

    @classmethod
    def load(cls, path):
        """Read what `save` wrote."""
        with open(path) as lines:
            chains = cls(**json.loads(next(lines)))
            chains.log = [Written(**json.loads(line)) for line in lines]
        return chains
