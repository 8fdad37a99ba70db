"""The story of workers A and B: `make demo`, with redis-cli and psql on real servers.

Every command is printed and then run by the shell as printed; what it answers is printed as it came. Three acts with
the same stall: plain SQL, a fence checked only at the write, and claim first. Leases really expire and A's pause is
real. Ends with status 1 when the story does not come out as it says.

In a terminal the two workers are drawn side by side as it happens, else it is plain text. A picture of the run is left
in target/demo.svg. Starts servers of its own, unless the arguments name two that have the module and the extension.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from demo import picture, screen
from harness import PostgresServer, RedisServer, eventually, places

LOCK = "lock:counter"
# A takes the lock, A reads and B finds it busy within one lease: three commands, 0.1 s on an idle machine.
LEASE_MS = 1500
# Longer than the lease, by enough for B to be granted the lock and to read.
STALL_S = 2.0
# B finds the lock free when A's lease has expired, and not much later.
B_WAITS_AT_MOST_S = 10


def main(arguments=()):
    """Tell the story and return the exit status."""
    parser = argparse.ArgumentParser(description="The story of workers A and B.")
    parser.add_argument("--picture", type=Path, default=places.TARGET / "demo.svg", help="where to leave the picture")
    parser.add_argument("--redis-url", help="a Redis with the module, instead of one of its own")
    parser.add_argument("--database-url", help="a database whose server has the extension; gets a table `counters`")
    asked = parser.parse_args(arguments)
    if bool(asked.redis_url) != bool(asked.database_url):
        parser.error("name both servers or none")
    servers = _Given(asked.redis_url, asked.database_url) if asked.redis_url else _Own()
    with servers:
        stage = _Stage(servers)
        stage.screen.text(
            "A counter in PostgreSQL, a lock in Redis, and two workers that each add 1. The counter should end at 2.",
            f"A takes the lock for {LEASE_MS} ms and stalls for {STALL_S} s: its lease runs out while it sleeps.",
            "A$ and B$ are commands that the two workers really run, here and now, with",
            f"  REDIS_URL={servers.redis_url}",
            f"  DATABASE_URL={servers.database_url}",
        )
        if_new = " IF NOT EXISTS" if asked.database_url else ""
        stage.operator.sql(f"CREATE EXTENSION{if_new} pg_fence")
        stage.operator.sql(
            f"CREATE TABLE{if_new} counters (id int PRIMARY KEY, value int NOT NULL, fence bigint NOT NULL DEFAULT 0)"
        )
        stage.operator.sql(f"INSERT INTO counters VALUES (1, 0){' ON CONFLICT DO NOTHING' if if_new else ''}")
        plain_sql(stage)
        check_at_the_write(stage)
        claim_first(stage)
        asked.picture.write_text(picture.draw(stage.acts))
        stage.screen.text("", f"A picture of this run: {os.path.relpath(asked.picture)}")
        return verdict(stage)


def plain_sql(stage):
    """Act 1: the lock alone."""
    stage.act("1. The lock alone: plain SQL, no fence")
    a, b = stage.workers()
    a.acquire()
    a_read = a.read()
    stall = a.stalls()
    b.waits_for_the_lock()
    b_read = b.read()
    b.write(f"UPDATE counters SET value = {b_read + 1} WHERE id = 1", b_read + 1)
    b.release()
    stall.ends()
    a.write(f"UPDATE counters SET value = {a_read + 1} WHERE id = 1", a_read + 1)
    stage.check("A's write is accepted, and only the release tells A that its lease was gone", a.release(), 0)
    stage.ends_at(1, "B's update is lost: A wrote over it what it had read before its stall.")


def check_at_the_write(stage):
    """Act 2: what is often advised, a fence that the write checks, and nothing before."""
    stage.act("2. The fence checked at the write only")
    a, b = stage.workers()
    a_fence = a.acquire()
    a_read = a.read()
    stall = a.stalls()
    b_fence = b.waits_for_the_lock()
    b_read = b.read()
    stall.ends()
    accepted_a = a.write(_checked_update(a_read + 1, a_fence), a_read + 1)
    stage.say(f"Nobody has written with B's fence yet, so A's older fence {a_fence} still passes. Now B writes:")
    accepted_b = b.write(_checked_update(b_read + 1, b_fence), b_read + 1)
    b.release()
    stage.check("both writes are accepted", (accepted_a, accepted_b), ("UPDATE 1", "UPDATE 1"))
    stage.ends_at(1, "A's update is lost: the check protects the write, not the read before it.")


def claim_first(stage):
    """Act 3: the fence is stamped on the row before the row is read."""
    stage.act("3. Claim first: stamp the fence on the row, then read it")
    a, b = stage.workers()
    a_fence = a.acquire()
    a_read = a.claim(a_fence)
    stall = a.stalls()
    b_fence = b.waits_for_the_lock()
    b_read = b.claim(b_fence)
    stall.ends()
    stage.check("A is refused: the row carries B's fence", a.update(a_fence, a_read + 1), False)
    stage.check("B, who holds the lock, is not", b.update(b_fence, b_read + 1), True)
    b.release()
    stage.say("A knows that it lost the lock, so it takes it again and starts over:")
    a_fence = a.acquire()
    a_read = a.claim(a_fence)
    stage.check("this time A writes", a.update(a_fence, a_read + 1), True)
    a.release()
    stage.ends_at(2, "Both updates are there.")


def verdict(stage):
    """Say whether the story held."""
    if stage.failures:
        stage.screen.text("", "THE STORY DOES NOT HOLD:", *(f"  {failure}" for failure in stage.failures))
        return 1
    stage.screen.text(
        "", "The story holds: plain SQL ended at 1, the check at the write ended at 1, claim first ended at 2."
    )
    return 0


def _checked_update(value, fence):
    return f"UPDATE counters SET value = {value}, fence = {fence} WHERE id = 1 AND fence <= {fence}"


class _Own:
    """Two throw-away servers, and their redis-cli and psql."""

    def __enter__(self):
        self._redis = RedisServer().start()
        self._postgres = PostgresServer().start()
        self.redis_url, self.database_url = self._redis.url, self._postgres.url()
        return self

    def __exit__(self, *_):
        self._redis.close()
        self._postgres.close()

    def environment(self):
        """What the shell needs to run the two clients."""
        programs = (self._redis.cli_command()[0].parent, self._postgres.installation.psql.parent)
        libraries = (*self._redis.libraries, *self._postgres.installation.libraries)
        return {
            **self._postgres.installation.environment,
            "PATH": os.pathsep.join((*map(str, programs), os.environ.get("PATH", os.defpath))),
            "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)),
        }


class _Given:
    """Two servers that run already; redis-cli and psql are on PATH."""

    def __init__(self, redis_url, database_url):
        self.redis_url, self.database_url = redis_url, database_url

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def environment(self):
        """What the shell needs to run the two clients."""
        return os.environ


class _Stage:
    """The shell's environment, how it is shown, and what did not come out as it says."""

    def __init__(self, servers):
        self._environment = {
            **servers.environment(),
            "REDIS_URL": servers.redis_url,
            "DATABASE_URL": servers.database_url,
            "PSQLRC": os.devnull,
            "PAGER": "",
        }
        self.screen = screen.choose()
        self.operator = _Worker(self, "", "")
        self.failures = []
        self.acts = []

    def act(self, title):
        """Begin an act with the counter at 0."""
        self.screen.act(title)
        self.operator.sql("UPDATE counters SET value = 0, fence = 0 WHERE id = 1")
        self.acts.append(picture.Act(title, LEASE_MS / 1000))

    def workers(self):
        """A and B with a fresh owner string each: an owner names one acquisition, not a worker."""
        self.screen.begin(LEASE_MS / 1000)
        return _Worker(self, "A", f"A-{len(self.acts)}"), _Worker(self, "B", f"B-{len(self.acts)}")

    def say(self, text, who=""):
        self.screen.say(who, text)

    def note(self, who, kind, label="", since=None):
        """Something that the picture and the timelines show. since: when the command that granted a lease was begun."""
        if who:
            self.acts[-1].note(who, kind, label, since)
            self.screen.note(who, kind, since)

    def check(self, claim, seen, expected):
        """Compare what it says with what happened."""
        if seen == expected:
            self.say(claim)
        else:
            self.failures.append(f"{claim}: expected {expected!r}, saw {seen!r}")
            self.say(f"NOT SO: {self.failures[-1]}")

    def ends_at(self, expected, moral):
        """The end of an act: what the counter holds."""
        self.screen.text("")
        seen = self.operator.read()
        self.acts[-1].end(seen, moral)
        if seen == expected:
            self.screen.text(f"--> Two increments, and the counter is {seen}. {moral}")
        else:
            self.failures.append(f"the counter of act {len(self.acts)}: expected {expected}, saw {seen}")
            self.screen.text(f"--> NOT SO: {self.failures[-1]}")

    def run(self, who, command):
        """Print a command, run exactly that by the shell, print what it says."""
        self.screen.command(who, command)
        said, status = self._shell(command)
        self.screen.reply(who, said)
        if status != 0:
            self.failures.append(f"`{command}` ended with status {status}")
        return said

    def quietly(self, command):
        """Run a command by the shell, show nothing, and return what it says."""
        return self._shell(command)[0]

    def _shell(self, command):
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        return done.stdout.rstrip("\n"), done.returncode


class _Worker:
    """A worker with its commands; the owner string is the one of its first acquisition in an act."""

    def __init__(self, stage, name, owner):
        self._stage = stage
        self._name = name
        self._owner = owner
        self._acquisitions = 0

    def redis(self, command):
        """Run one Redis command and return what redis-cli says."""
        return self._stage.run(self._name, self._cli(command))

    def sql(self, statement):
        """Run one statement and return what psql says."""
        escaped = statement.replace('"', '\\"')
        return self._stage.run(self._name, f'psql $DATABASE_URL -c "{escaped}"')

    def acquire(self):
        """Take the lock, which must be free, and return the fence."""
        self._acquisitions += 1
        if self._acquisitions > 1:
            self._owner = f"{self._owner}-again"
        began = time.monotonic()
        fence = _integer(self.redis(self._acquire_command()))
        if fence is None:
            self._stage.failures.append(f"{self._name} did not get the lock")
        self._note("granted", _short(fence), began)
        return fence

    def waits_for_the_lock(self):
        """Try until the lock is granted; the tries in between are real and not printed."""
        if (fence := _integer(self.redis(self._acquire_command()))) is not None:
            self._stage.failures.append(f"{self._name} got the lock while the other's lease was running")
            return fence
        self._note("busy")
        self._stage.say(f"busy: A's lease is running, so {self._name} tries again and again", self._name)
        command = self._cli(self._acquire_command())

        def again():
            self._stage.screen.wait()
            began = time.monotonic()
            fence = _integer(self._stage.quietly(command))
            return fence and (fence, began)

        fence, began = eventually(again, within_s=B_WAITS_AT_MOST_S)
        self._note("granted", _short(fence), began)
        self._stage.screen.command(self._name, command)
        self._stage.screen.reply(self._name, f"(integer) {fence}")
        return fence

    def release(self):
        """Give the lock back and return the reply."""
        released = _integer(self.redis(f"FENCELOCK.RELEASE {LOCK} {self._owner}"))
        self._note("released" if released else "too late")
        return released

    def read(self):
        """Read the counter without a fence."""
        value = _cell(self.sql("SELECT value FROM counters WHERE id = 1"))
        self._note("reads", value)
        return value

    def write(self, statement, value):
        """Write the counter by plain SQL, and return what psql says."""
        said = self.sql(statement)
        self._note("writes" if said == "UPDATE 1" else "refused", value)
        return said

    def claim(self, fence):
        """Stamp the fence on the row and return the counter; None when a newer fence is there."""
        said = self.sql(f"SELECT * FROM fenced_claim(NULL::counters, 1, {fence})")
        row = re.search(r"^ +1 \| +(\d+) \| +\d+$", said, re.MULTILINE)
        if row is None:
            self._stage.failures.append(f"{self._name} could not claim the row with fence {fence}")
            return 0
        self._note("claims", row[1])
        return int(row[1])

    def update(self, fence, value):
        """Write the counter while the stamp is ours."""
        said = self.sql(f"SELECT fenced_update('counters', 1, {fence}, '{{\"value\": {value}}}')")
        written = {"t": True, "f": False}.get(said.splitlines()[2].strip() if len(said.splitlines()) > 2 else None)
        self._note("writes" if written else "refused", value)
        return written

    def stalls(self):
        """Begin a real pause."""
        self._note("stalls")
        self._stage.say(
            f"{self._name} stalls for {STALL_S} s: a garbage collection, a throttled CPU, a frozen machine", self._name
        )
        return _Stall(self._stage, self._name)

    def _note(self, kind, label="", since=None):
        self._stage.note(self._name, kind, str(label), since)

    def _cli(self, command):
        return f"redis-cli --no-raw -u $REDIS_URL {command}"

    def _acquire_command(self):
        return f"FENCELOCK.ACQUIRE {LOCK} {self._owner} {LEASE_MS}"


class _Stall:
    """A pause that began at a moment; it is over STALL_S later, whatever the others did meanwhile."""

    def __init__(self, stage, name):
        self._stage = stage
        self._name = name
        self._wakes = time.monotonic() + STALL_S

    def ends(self):
        """Sleep what is left of it."""
        while (left := self._wakes - time.monotonic()) > 0:
            self._stage.screen.wait()
            time.sleep(min(left, screen.FRAME_S))
        self._stage.note(self._name, "wakes")
        self._stage.say(f"{self._name} wakes up and goes on as if it still held the lock", self._name)


def _short(fence):
    """The end of a fence, which is where two of one run differ."""
    return f"…{fence % 10_000:04}" if fence else ""


def _integer(said):
    found = re.fullmatch(r"\(integer\) (\d+)", said.strip())
    return int(found[1]) if found else None


def _cell(said):
    """The single number of an aligned psql table."""
    found = re.search(r"^ +(\d+)$", said, re.MULTILINE)
    return int(found[1]) if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
