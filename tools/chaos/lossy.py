"""PostgreSQL servers that lose their last commits, and what is left of the accepted writes.

`pg-failover`: a standby is promoted that lags by up to half a second, after the SIGKILL of its primary. `pg-restore`: a base
backup takes the place of the data that came after it. `pg-crash`: with `synchronous_commit = off` a process or the whole
server is killed. By chance the holders reach the server through PgBouncer in transaction mode, and see no error of a fail-over;
by chance the library is preloaded; and in half of the cases Redis loses its state at the same moment. The judge is `chains`.
"""

import contextlib
import random
import shutil
import subprocess
import threading
import time
from dataclasses import dataclass, field

import psycopg

from harness import PostgresServer, RedisServer, places
from harness.pgbouncer import PgBouncer
from harness.process import free_port, own, server_account, temporary_folder

from .chains import Chains, Written
from .holders import HELD, PATIENCE, TABLES, Habits, Holder, thief
from .proxy import Proxy

HOLDERS = 8
PACE_S = (0.3, 0.8)
SETTINGS = {"max_wal_senders": "10", "wal_keep_size": "256MB", "wal_level": "replica"}
# Nothing that is acknowledged is on disk before it is written for another reason.
LAZY = {"synchronous_commit": "off", "wal_writer_delay": "10s", "wal_writer_flush_after": "1GB", "wal_buffers": "16MB"}
# In a run that is worth judging.
ENOUGH_WRITES = 40
PATIENCE_S = 180


@dataclass
class Run:
    """What came of a run."""

    kind: str
    seed: int
    history: Chains = field(default_factory=Chains)
    faults: dict = field(default_factory=dict)
    refused: dict = field(default_factory=dict)
    ways: str = ""

    def __str__(self):
        chains = self.history
        told = f"{len(chains.acknowledged)} writes acknowledged, {len(chains.log)} left, {chains.lost()} lost"
        faults = ", ".join(f"{name} {number}" for name, number in sorted(self.faults.items())) or "none"
        return f"{self.kind} SEED={self.seed}{self.ways}: {told}; faults: {faults}; refused: {self.refused or 'nothing'}"


class Lossy:
    """The servers and the holders of one run.

    checks_life: False for servers that accept claims of another life, as all others do that compare fences.
    habits: of the holders. is_calm: Redis forgets nothing.
    """

    def __init__(self, kind, seed, *, checks_life=True, habits=None, is_calm=False):
        self.run, self._chance = Run(kind, seed), random.Random(seed)
        self._settings = {**SETTINGS, **(LAZY if kind == "pg-crash" else {})}
        if not checks_life:
            self._settings["pg_fence.check_life"] = "off"
        if self._chance.random() < 0.5:
            self._settings["shared_preload_libraries"] = "pg_fence"
            self.run.ways += " preloaded"
        self._is_pooled = self._chance.random() < 0.5
        self.run.ways += " pooled" if self._is_pooled else ""
        self._habits, self._is_calm = habits or Habits(), is_calm
        self._stack, self._holders, self._stopped = contextlib.ExitStack(), [], threading.Event()

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            self._major = None if places.chosen_pg_config() else self._chance.choice(places.MAJORS)
            self._redis = stack.enter_context(contextlib.closing(RedisServer().start()))
            self._postgres = stack.enter_context(contextlib.closing(self._new_server().start()))
            self._postgres.psql(f"{TABLES} CHECKPOINT;")
            self._proxy = stack.enter_context(contextlib.closing(Proxy(self._postgres.port, self.run.seed)))
            self._stream = stack.enter_context(contextlib.closing(Proxy(self._postgres.port, self.run.seed)))
            self._entry = self._proxy.port
            if self._is_pooled:
                pooler = PgBouncer(self._proxy, {"ignore_startup_parameters": "options,extra_float_digits", "server_login_retry": "0.1"})
                self._entry = stack.enter_context(contextlib.closing(pooler.start())).port
            self._stack = stack.pop_all()
        self._standby = self._new_standby() if self.run.kind == "pg-failover" else None
        return self

    def __exit__(self, *_):
        self._stop()
        self._stack.close()

    def record(self, seconds, faults, pace_s=PACE_S):
        """Let the holders work while the faults, each a name of a method, happen round after round.

        seconds: for at least so long, and until the holders have written something, however busy the machine is.
        """
        self._start()
        until = time.monotonic() + seconds
        while time.monotonic() < until or self._acknowledged() < ENOUGH_WRITES:
            self._check(until)
            for name in self._chance.sample(faults, len(faults)):
                time.sleep(self._chance.uniform(*pace_s))
                getattr(self, name)()
                self.run.faults[name] = self.run.faults.get(name, 0) + 1
        # What is accepted after the last fault is judged, too.
        enough = self._acknowledged() + ENOUGH_WRITES // 2
        while self._acknowledged() < enough:
            self._check(until)
            time.sleep(0.05)
        self._stop()
        self._collect()
        return self.run

    def _check(self, until):
        failures = [holder.failure for holder in self._holders if holder.failure]
        assert not failures, f"{self.run}: {failures}"
        assert time.monotonic() < until + PATIENCE_S, f"{self.run}: the holders came to too little"

    # --- faults

    def fail_over(self):
        """The stream to the standby ends, the primary dies later, and the standby takes over with what it has."""
        self._stream.order("target", free_port())
        self._stream.order("cut")
        time.sleep(self._chance.uniform(0.05, 0.5))
        old, self._postgres = self._postgres, self._standby
        old.kill()
        with psycopg.connect(self._postgres.url(), autocommit=True) as db:
            assert db.execute("SELECT pg_promote()").fetchone() == (True,)
        self._proxy.order("target", self._postgres.port)
        self._proxy.order("cut")
        self._maybe_lose_the_locks()
        old.close()
        self._stream.order("target", self._postgres.port)
        self._standby = self._new_standby()

    def restore(self):
        """A base backup, and then the server goes on from it as if nothing had come after."""
        folder = temporary_folder("fencelock-backup", server_account())
        try:
            self._back_up(folder / "data")
            time.sleep(self._chance.uniform(0.1, 0.6))
            self._postgres.kill()
            self._maybe_lose_the_locks()
            shutil.rmtree(self._postgres.data_dir)
            shutil.move(folder / "data", self._postgres.data_dir)
            own(self._postgres.data_dir, server_account())
            self._postgres.start()
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def crash(self):
        """A process of the server is killed, which ends all others, or the whole server is."""
        if self._chance.random() < 0.5:
            self._postgres.crash()
            self._maybe_lose_the_locks()
        else:
            self._postgres.kill()
            self._maybe_lose_the_locks()
            self._postgres.start()

    # --- parts

    def _maybe_lose_the_locks(self):
        if not self._is_calm and self._chance.random() < 0.5:
            self._redis.kill()
            self._redis.start()

    def _new_server(self, **settings):
        return PostgresServer(self._major, {**self._settings, **settings})

    def _new_standby(self):
        server = self._new_server(primary_conninfo=f"host=127.0.0.1 port={self._stream.port} user=postgres")
        self._stack.callback(server.close)
        self._back_up(server.data_dir)
        (server.data_dir / "standby.signal").touch()
        own(server.data_dir, server_account())
        return server.start()

    def _back_up(self, folder):
        """A base backup with the log that makes it consistent. pg_basebackup is not everywhere."""
        source = self._postgres.data_dir
        with psycopg.connect(self._postgres.url(), autocommit=True) as db:
            db.execute("SELECT pg_backup_start('chaos', true)")
            _copy(source, folder)
            (label,) = db.execute("SELECT labelfile FROM pg_backup_stop(false)").fetchone()
        (folder / "backup_label").write_text(label)
        shutil.rmtree(folder / "pg_wal")
        _copy(source / "pg_wal", folder / "pg_wal")
        for name in ("postmaster.pid", "postmaster.opts", "standby.signal"):
            (folder / name).unlink(missing_ok=True)
        own(folder, server_account())

    def _url(self):
        return f"postgresql://postgres@127.0.0.1:{self._entry}/postgres?options={PATIENCE.replace(' ', '%20').replace('=', '%3D')}"

    def _start(self):
        self._holders = [Holder(number, self.run.seed, self._redis.port, self._url, self._habits) for number in range(HOLDERS)]
        for one in self._holders:
            one.start()
        if self._is_calm:
            return
        threading.Thread(target=thief, args=(self._redis.port, self._stopped), daemon=True).start()

    def _stop(self):
        self._stopped.set()
        for holder in self._holders:
            holder.stop()
        for holder in self._holders:
            holder.join(30)

    def _acknowledged(self):
        return sum(len(holder.acknowledged) for holder in self._holders)

    def _collect(self):
        for holder in self._holders:
            assert not holder.is_alive() and not holder.failure, f"{self.run}: {holder.failure or 'a holder hangs'}"
            self.run.history.acknowledged += holder.acknowledged
            for what, number in holder.refused.items():
                self.run.refused[what] = self.run.refused.get(what, 0) + number
        with psycopg.connect(self._postgres.url()) as db:
            self.run.history.log = [Written(*line) for line in db.execute("SELECT resource, token, previous, fence, value FROM log")]
            self.run.history.held = dict(db.execute(HELD).fetchall())


def _copy(source, target):
    """A folder whose files come and go meanwhile."""
    subprocess.run(["cp", "-a", str(source), str(target)], stderr=subprocess.DEVNULL, check=False)
