"""Real servers, workers that record what they see, and faults: one run gives one history.

What all kinds of run share, and three kinds. `restart`: one Redis with `appendfsync always`, killed and started again; what
it has answered it keeps. `everysec`: the same with `appendfsync everysec`; a kill may forget the last writes. `failover`: a
primary and a replica; the primary is killed or frozen, the replica takes over and may not know the last writes, a new
replica joins. In all of them PostgreSQL is killed and started again, servers, workers and the network are frozen,
connections are cut, and replies are dropped after the server has acted. `kinds` lists these and the others.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from harness import PostgresServer, RedisServer, eventually, places
from harness.process import children_of, temporary_folder
from harness.redis_calls import Line

from .history import History, decoded_call, encoded_call
from .linearizability import Call
from .proxy import Proxy
from .worker import UNFENCED_CLAIM, Client, now_us

LOCKS = ("lock0", "lock1", "lock2")
WORKERS = 3
CLIENTS_OF_A_WORKER = 3
# Longer and shorter than the leases of the workers.
PAUSES_S = (0.05, 0.3, 0.6)
PACE_S = (0.05, 0.4)
# Of the rows, in a run that is worth judging.
ENOUGH_UPDATES = 60
# How much longer than asked a run may take to come so far.
PATIENCE_S = 120


@dataclass
class Run:
    """What came of a run."""

    kind: str
    seed: int
    history: History = field(default_factory=History)
    faults: dict = field(default_factory=dict)
    refused: dict = field(default_factory=dict)

    def __str__(self):
        history = self.history
        facts = {
            "calls": len(history.all()),
            "unknown": history.unknown(),
            "grants": history.count("acquire", lambda told: isinstance(told, int)),
            "steals": history.count("steal", lambda told: isinstance(told, int)),
            "awaits": history.count("await"),
            "stale claims": history.count("claim", lambda told: told is None),
            "updates": history.count("update", lambda told: told is True),
            "stale updates": history.count("update", lambda told: told is False),
        }
        told = ", ".join(f"{number} {name}" for name, number in facts.items())
        faults = ", ".join(f"{name} {number}" for name, number in sorted(self.faults.items())) or "none"
        return f"{self.kind} SEED={self.seed}: {told}; faults: {faults}; refused: {self.refused or 'nothing'}"


class World:
    """The servers, the proxies and the workers of one run.

    `locks` are their names, `forgets` says whether a lock may lose what was answered. `guest` is one more client, with which
    a fault holds a lock; it is in the history too.

    stalls: the share of sections that stall past their lease. fenced: False for workers that leave the fences out.
    module_args, config: of Redis, beside what the kind of run needs.
    """

    locks = LOCKS
    # A cluster has an issuer of fences in each of its nodes.
    one_issuer = True
    # See Lock.
    wakes = False

    def __init__(self, kind, seed, *, stalls=0.04, fenced=True, module_args=(), config=None):
        self.run = Run(kind, seed, History(one_issuer=self.one_issuer, wakes=self.wakes))
        self._kind, self._module_args, self._config = kind, module_args, config or {}
        self._habits = {"stalls": stalls, "fenced": fenced}
        self._chance = random.Random(seed)
        self._stack = contextlib.ExitStack()
        self._workers = []
        self._guests = {}

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            major = None if places.chosen_pg_config() else self._chance.choice(places.MAJORS)
            self.postgres = stack.enter_context(contextlib.closing(PostgresServer(major).start()))
            self._start_redis(stack)
            self.postgres_proxy = self._new_proxy(stack, self.postgres.port)
            self._make_rows()
            self._stack = stack.pop_all()
        return self

    def _start_redis(self, stack):
        """Start what serves the locks, and `redis_proxies`, by the ports that they stand for."""
        self.redis = self._new_redis(stack)
        self.replica = self._new_replica(stack) if self._kind == "failover" else None
        self.redis_proxy = self._new_proxy(stack, self.redis.port)
        self.redis_proxies = {self.redis.port: self.redis_proxy}

    def _new_proxy(self, stack, port):
        return stack.enter_context(contextlib.closing(Proxy(port, self.run.seed)))

    def __exit__(self, *_):
        for process, _ in self._workers:
            process.kill()
            process.wait()
            process.stdin.close()
        self._stack.close()

    def record(self, seconds, faults, pace_s=PACE_S):
        """Let the workers work while the faults, each a name of a method, happen round after round.

        seconds: for at least so long, and until the workers have done something, however busy the machine is. It fails
        when one of them ends by itself, or when it takes PATIENCE_S more.
        pace_s: the shortest and the longest time between two faults.
        """
        self._start_workers()
        until = time.monotonic() + seconds
        while time.monotonic() < until or self._updates() < ENOUGH_UPDATES:
            for name in self._chance.sample(faults, len(faults)):
                time.sleep(self._chance.uniform(*pace_s))
                getattr(self, name)()
                self.run.faults[name] = self.run.faults.get(name, 0) + 1
            updates, is_late = self._updates(), time.monotonic() > until + PATIENCE_S
            if (is_late and updates < ENOUGH_UPDATES) or any(process.poll() is not None for process, _ in self._workers):
                # A worker that knows what is wrong says it here.
                self._collect()
                raise AssertionError(f"{self.run}: a worker ended early, or {updates} updates are all that they came to")
        self._collect()
        self._read_at_the_end()
        return self.run

    # --- faults

    def freeze_redis(self):
        """SIGSTOP: it grants nothing and ends no lease until it goes on."""
        self._frozen([self._chance.choice(self._servers()).pid])

    def _servers(self):
        """The servers of Redis that may be frozen."""
        return [self.redis]

    def freeze_postgres(self):
        self._frozen([self.postgres.pid, *children_of(self.postgres.pid)])

    def freeze_worker(self):
        self._frozen([self._chance.choice(self._workers)[0].pid])

    def freeze_network(self):
        self._frozen([self._chance.choice(self._proxies()).process.pid])

    def cut_connections(self):
        self._chance.choice(self._proxies()).order("cut")

    def drop_replies_of_redis(self):
        self._drop_replies(self.redis_proxies.values())

    def drop_replies_of_postgres(self):
        self._drop_replies([self.postgres_proxy])

    def kill_postgres(self):
        self.postgres.kill()
        self.postgres.start()

    def kill_redis(self):
        """SIGKILL and a start from what is on disk."""
        invoked_us = now_us()
        self.redis.kill()
        self.redis.start()
        self._note("forget" if self._kind == "everysec" else "restart", invoked_us)

    def promote_replica(self):
        """The primary dies, or is frozen as behind a broken network; the replica takes over; a new replica joins."""
        invoked_us = now_us()
        old, self.redis = self.redis, self.replica
        freeze = self._chance.random() < 0.5
        if freeze:
            signal_all([old.pid], signal.SIGSTOP)
        else:
            old.kill()
        self._ask(self.redis, "REPLICAOF", "NO", "ONE")
        self.redis_proxy.order("target", self.redis.port)
        self.redis_proxy.order("cut")
        self._note("forget", invoked_us)
        if freeze:
            signal_all([old.pid], signal.SIGCONT)
        self.replica = self._new_replica(self._stack)
        old.close()

    # --- parts

    def _frozen(self, pids):
        signal_all(pids, signal.SIGSTOP)
        time.sleep(self._chance.choice(PAUSES_S))
        signal_all(pids, signal.SIGCONT)

    def _drop_replies(self, proxies):
        for proxy in proxies:
            proxy.order("drop", 0.1)
        time.sleep(0.3)
        for proxy in proxies:
            proxy.order("drop", 0)

    def _proxies(self):
        return [*self.redis_proxies.values(), self.postgres_proxy]

    def guest(self, name="guest"):
        """A client of the world's own, which reaches the servers as the workers do."""
        if name not in self._guests:
            self._guests[name] = Client(name, self._task(name), f"{self.run.seed}/{name}")
        return self._guests[name]

    def new_guest(self):
        """The guest on new connections: a call on one that was cut would have no reply."""
        self.guest().redis.close()
        return self.guest()

    def _new_redis(self, stack, environment=None):
        append = {"restart": "always", "everysec": "everysec"}.get(self._kind)
        config = {"appendonly": "yes", "appendfsync": append} if append else {"repl-diskless-sync-delay": "0"}
        # In memory, where syncing costs nothing: what a killed process has written stays.
        folder = temporary_folder("fencelock-chaos", in_memory=True)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        server = RedisServer(self._module_args, {**config, **self._config}, data_dir=folder, environment=environment)
        stack.callback(server.close)
        return server.start()

    def _new_replica(self, stack):
        replica = self._new_redis(stack)
        self._ask(replica, "REPLICAOF", "127.0.0.1", self.redis.port)
        eventually(lambda: "master_link_status:up" in self._ask(replica, "INFO", "replication").decode(), within_s=20)
        return replica

    def _ask(self, server, *words):
        with Line(server.port) as line:
            return line.call(*words)

    def _make_rows(self):
        with psycopg.connect(self.postgres.url(), autocommit=True) as connection:
            connection.execute("CREATE EXTENSION pg_fence")
            connection.execute(
                "CREATE TABLE counters (id int PRIMARY KEY, value int NOT NULL DEFAULT 0, token text NOT NULL DEFAULT '', "
                "fence bigint NOT NULL DEFAULT 0)"
            )
            connection.execute("INSERT INTO counters SELECT generate_series(0, %s)", (len(self.locks) - 1,))

    def _start_workers(self):
        for number in range(WORKERS):
            task = {"clients": CLIENTS_OF_A_WORKER, "seed": f"{self.run.seed}/{number}", **self._task("abc"[number])}
            # To a file: a pipe would fill up.
            told = self._stack.enter_context(tempfile.TemporaryFile("w+"))
            process = subprocess.Popen(
                [sys.executable, "-m", "chaos.worker", json.dumps(task)],
                cwd=Path(__file__).parents[1],
                stdin=subprocess.PIPE,
                stdout=told,
            )
            self._workers.append((process, told))

    def _task(self, name):
        """What a client must know."""
        return {
            "name": name,
            "redis": [(port, proxy.port) for port, proxy in self.redis_proxies.items()],
            "dsn": make_conninfo(self.postgres.url(), port=self.postgres_proxy.port),
            "keys": self.locks,
            "hashes": self._has_hashes(),
            "leases": False,
            **self._habits,
        }

    def _has_hashes(self):
        """A hash is as durable as its server: after a fail-over that forgot something it has no one history."""
        return self._kind == "restart"

    def _collect(self):
        for guest in self._guests.values():
            for key, call in guest.calls:
                self.run.history.add(*decoded_call(encoded_call(key, call)))
        for process, _ in self._workers:
            process.stdin.close()
        for process, told in self._workers:
            status = process.wait(60)
            told.seek(0)
            lines = [json.loads(line) for line in told]
            failures = [line["failure"] for line in lines if isinstance(line, dict) and line["failure"]]
            assert status == 0 and not failures, f"{self.run}: a worker ended with status {status}: {failures}"
            for line in lines:
                if isinstance(line, list):
                    self.run.history.add(*decoded_call(line))
                else:
                    for code, number in line["refused"].items():
                        self.run.refused[code] = self.run.refused.get(code, 0) + number

    def _updates(self):
        with psycopg.connect(self.postgres.url()) as connection:
            return connection.execute("SELECT sum(value) FROM counters").fetchone()[0]

    def _note(self, kind, invoked_us, locks=None):
        """Write down what happened to the server of these locks; of all, when none are named."""
        for lock in locks or self.locks:
            number = sum(call.kind == kind for call in self.run.history.calls.get(lock, ()))
            self.run.history.add(lock, Call("server", kind, (number,), invoked_us, now_us(), None))

    def _read_at_the_end(self):
        with psycopg.connect(self.postgres.url(), autocommit=True) as connection:
            for number, lock in enumerate(self.locks):
                invoked_us = now_us()
                row = connection.execute(UNFENCED_CLAIM, (number, 1)).fetchone()
                self.run.history.add(f"row:{lock}", Call("end", "read", (), invoked_us, now_us(), row))
                if self._has_hashes():
                    value, token = self._ask(self.redis, "HMGET", f"hash:{lock}", "value", "token")
                    read = (int(value or 0), (token or b"").decode())
                    self.run.history.add(f"hash:{lock}", Call("end", "read", (), invoked_us, now_us(), read))


def signal_all(pids, number):
    """One signal to each of these processes of ours that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
