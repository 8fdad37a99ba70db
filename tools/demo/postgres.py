"""The story of claim first on one server: `make demo-postgres`, with psql alone. PostgreSQL grants the lease and keeps the data.

As the third act of `make demo`: the commands are printed and then run as printed, the lease really expires, and A's pause is
real. The whole protocol is two statements. Ends with status 1 when the story does not come out as it says.
"""

import contextlib
import os
import re
import sys
import time

from demo.__main__ import B_WAITS_AT_MOST_S, LEASE_MS, STALL_S, _Stage, _Stall
from harness import PostgresServer

ENTER = (
    "SELECT f.mine, c.value FROM fencelock_acquire('counter', '{owner}', {ttl}, {wait}) AS f(mine), "
    "LATERAL fenced_claim(NULL::counters, 1, f.mine) AS c WHERE f.mine IS NOT NULL"
)
LEAVE = "SELECT fenced_update('counters', 1, {fence}, '{{\"value\": {value}}}'), fencelock_release('counter', '{owner}', {fence})"


def main():
    """Run the story and return the exit status."""
    with contextlib.closing(PostgresServer().start()) as server:
        stage = _Stage(_One(server))
        stage.screen.text(
            "A counter and its lock in one PostgreSQL, and two workers that each add 1. The counter should end at 2.",
            f"A takes the lock for {LEASE_MS} ms and stalls for {STALL_S} s: its lease expires while it sleeps.",
            f"  DATABASE_URL={server.url()}",
        )
        stage.operator.sql("CREATE EXTENSION pg_fence")
        stage.operator.sql("CREATE TABLE counters (id int PRIMARY KEY, value int NOT NULL, fence bigint NOT NULL DEFAULT 0)")
        stage.operator.sql("INSERT INTO counters VALUES (1, 0)")
        return two_statements(stage)


def two_statements(stage):
    """Acquire and claim; update and release."""
    stage.act("Claim first, in two statements")
    stage.screen.begin(LEASE_MS / 1000)
    fence, value = enter(stage, "A", "A-1")
    stage.note("A", "stalls")
    stage.say(f"A stalls for {STALL_S} s: a garbage collection, a throttled CPU, a frozen machine", "A")
    stall = _Stall(stage, "A")
    stage.say("B waits in the server for A's lease to end: nothing polls", "B")
    newer, read = enter(stage, "B", "B-1", wait_ms=B_WAITS_AT_MOST_S * 1000)
    stage.check("B's fence is larger", newer > fence, True)
    stall.ends()
    stage.check("A is refused: the row carries B's fence, and the lease is not A's", leave(stage, "A", "A-1", fence, value + 1), ("f", "f"))
    stage.check("B writes and releases", leave(stage, "B", "B-1", newer, read + 1), ("t", "t"))
    stage.say("A knows that it lost the lock, so it takes it again and starts over:")
    fence, value = enter(stage, "A", "A-2")
    stage.check("this time A writes", leave(stage, "A", "A-2", fence, value + 1), ("t", "t"))
    stage.ends_at(2, "Both updates are there.")
    if stage.failures:
        stage.screen.text("", "THE STORY DOES NOT HOLD:", *(f"  {failure}" for failure in stage.failures))
        return 1
    stage.screen.text("", "The story holds: one server, two statements, and the counter ended at 2.")
    return 0


def enter(stage, who, owner, wait_ms="NULL"):
    """Acquire the lock and claim the row in one statement: the fence and the counter."""
    began = time.monotonic()
    said = _sql(stage, who, ENTER.format(owner=owner, ttl=LEASE_MS, wait=wait_ms))
    row = re.search(r"^ +(\d+) \| +(\d+)$", said, re.MULTILINE)
    if row is None:
        stage.failures.append(f"{who} did not get the lock and the row")
        return 0, 0
    stage.note(who, "granted", f"…{row[1][-4:]}", began)
    stage.note(who, "claims", row[2])
    return int(row[1]), int(row[2])


def leave(stage, who, owner, fence, value):
    """Write the counter and release the lock in one statement: what both answer."""
    said = _sql(stage, who, LEAVE.format(owner=owner, fence=fence, value=value))
    answers = re.search(r"^ ([tf]) +\| ([tf])$", said, re.MULTILINE)
    written, released = answers.groups() if answers else (None, None)
    stage.note(who, "writes" if written == "t" else "refused", str(value))
    stage.note(who, "released" if released == "t" else "too late")
    return written, released


def _sql(stage, who, statement):
    escaped = statement.replace('"', '\\"')
    return stage.run(who, f'psql $DATABASE_URL -c "{escaped}"')


class _One:
    """A server that runs, and its psql."""

    redis_url = ""

    def __init__(self, server):
        self._installation = server.installation
        self.database_url = server.url()

    def environment(self):
        """What the shell needs to run psql."""
        return {
            **self._installation.environment,
            "PATH": os.pathsep.join((str(self._installation.psql.parent), os.environ.get("PATH", os.defpath))),
            "LD_LIBRARY_PATH": os.pathsep.join(map(str, self._installation.libraries)),
        }


if __name__ == "__main__":
    sys.exit(main())
