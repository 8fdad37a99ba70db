"""The works of the PostgreSQL half, each against the SQL that a user would write.

Instructions are those of one backend, counted by callgrind from the first byte of a transaction to its commit; rates are
pgbench's. Clients prepare their statements unless a work says otherwise.
"""

import contextlib
import functools
import itertools
import json
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg
from harness import PostgresServer, eventually, places

from .meters import Callgrind, cpu_seconds
from .works import Work

TABLES = """
CREATE EXTENSION pg_fence;
CREATE TABLE counters (id int PRIMARY KEY, value bigint NOT NULL DEFAULT 0, fence bigint NOT NULL DEFAULT 0)
    WITH (fillfactor = 70, autovacuum_enabled = off);
INSERT INTO counters SELECT n FROM generate_series(1, {rows}) n;
CREATE TABLE versions (name text PRIMARY KEY, version bigint NOT NULL);
INSERT INTO versions SELECT 'r' || n, 1 FROM generate_series(1, 100) n;
SELECT fenced_guard('r' || n, 1) FROM generate_series(1, 100) n;

-- What one writes by hand for one table ...
CREATE FUNCTION claim_counter(p_id int, p_fence bigint) RETURNS SETOF counters LANGUAGE plpgsql AS $$ BEGIN
    RETURN QUERY UPDATE counters SET fence = p_fence WHERE id = p_id AND fence < p_fence RETURNING *;
END $$;
CREATE FUNCTION update_counter(p_id int, p_fence bigint, p_value bigint) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
    UPDATE counters SET value = p_value WHERE id = p_id AND fence = p_fence;
    RETURN FOUND;
END $$;

-- ... and for any table.
CREATE FUNCTION claim_any(target anyelement, key_column name, p_key anycompatible, p_fence bigint) RETURNS SETOF anyelement
LANGUAGE plpgsql AS $$ BEGIN
    RETURN QUERY EXECUTE format('UPDATE %s SET fence = $1 WHERE %I = $2 AND fence < $1 RETURNING *',
        pg_typeof(target)::text::regclass, key_column) USING p_fence, p_key;
END $$;
CREATE FUNCTION update_any(target regclass, key_column name, p_key anycompatible, p_fence bigint, patch jsonb)
RETURNS boolean LANGUAGE plpgsql AS $$ DECLARE reached int; columns text; BEGIN
    SELECT string_agg(format('%1$I = r.%1$I', name), ', ') INTO columns FROM jsonb_object_keys(patch) name;
    EXECUTE format('UPDATE %1$s AS t SET %2$s FROM jsonb_populate_record(NULL::%1$s, $1) r WHERE t.%3$I = $2 AND t.fence = $3',
        target, columns, key_column) USING patch, p_key, p_fence;
    GET DIAGNOSTICS reached = ROW_COUNT;
    RETURN reached = 1;
END $$;
"""

# Every transaction takes a row of its client and a fence that is newer than all before.
NEXT = r"""
\set id random(1 + :client_id * {share}, {share} + :client_id * {share})
\set f :f + 1
"""

CLAIM = "SELECT * FROM fenced_claim(NULL::counters, :id::int, :f)"
# A client sends the patch as a parameter, as it does the key and the fence.
UPDATE = "SELECT fenced_update('counters', :id::int, :f, :patch::jsonb);"
UPDATE_BUILT = "SELECT fenced_update('counters', :id::int, :f, jsonb_build_object('value', :v::bigint));"
CLAIM_BY_HAND = "UPDATE counters SET fence = :f WHERE id = :id AND fence < :f RETURNING *"
UPDATE_BY_HAND = "UPDATE counters SET value = :v WHERE id = :id AND fence = :f;"


def pair(claim, update):
    """Claim a row, compute from what it holds, write it: two transactions of one statement each."""
    return f"{claim} \\gset\n\\set v :value + 1\n{update}\n"


EXTENSION = pair(CLAIM, UPDATE)
EXTENSION_BUILT = pair(CLAIM, UPDATE_BUILT)
BY_HAND = pair(CLAIM_BY_HAND, UPDATE_BY_HAND)
ONE_FUNCTION = pair("SELECT * FROM claim_counter(:id, :f)", "SELECT update_counter(:id, :f, :v);")
GENERIC = pair(
    "SELECT * FROM claim_any(NULL::counters, 'id', :id::int, :f)",
    "SELECT update_any('counters', 'id', :id::int, :f, :patch::jsonb);",
)
WRITE = "SELECT fenced_write('counters', :id::int, :f, :patch::jsonb);\n"
WRITE_BY_HAND = "UPDATE counters SET value = 123456, fence = :f WHERE id = :id AND fence < :f;\n"
TOUCH = "UPDATE counters SET value = :f WHERE id = :id;\n"
NAME = "\\set n random(1, 100)\n"
GUARD = f"{NAME}BEGIN;\nSELECT fenced_guard('r' || :n::int, 1);\n{TOUCH}COMMIT;\n"
VERSION_ROW = f"{NAME}BEGIN;\nSELECT version FROM versions WHERE name = 'r' || :n::int FOR UPDATE;\n{TOUCH}COMMIT;\n"


class Server:
    """A PostgreSQL server with the tables above, and what pgbench measures on it."""

    def __init__(self, major, *, counted=False, settings=None, durable=True):
        self._scratch = tempfile.TemporaryDirectory(prefix="fencelock-bench-")
        os.chmod(self._scratch.name, 0o755)
        self.fences = itertools.count(1_000_000, 1_000_000)
        self.callgrind = Callgrind(f"{self._scratch.name}/counts") if counted else None
        quiet = {"autovacuum": "off", "shared_buffers": "512MB", "max_wal_size": "4GB", "checkpoint_timeout": "1d"}
        self.server = PostgresServer(
            major,
            {**quiet, **(settings or {})},
            durable=durable,
            wrapper=self.callgrind.wrapper if counted else (),
        ).start()
        self.major = self.server.major
        self._is_warm = False
        # Kept open: the end of a session would be counted with the sessions that are measured.
        self.db = psycopg.connect(self.server.url(), autocommit=True)
        # Under callgrind everything takes fifty times as long.
        self.rows = 2_000 if counted else 20_000
        self.db.execute(TABLES.replace("{rows}", str(self.rows)))

    def close(self):
        """End the server and remove its files."""
        self.db.close()
        self.server.close()
        self._scratch.cleanup()

    @contextlib.contextmanager
    def setting(self, name, value):
        """A setting for the sessions that begin meanwhile."""
        self.db.execute(f"ALTER DATABASE postgres SET {name} = {value}")
        yield
        self.db.execute(f"ALTER DATABASE postgres RESET {name}")

    def pgbench(self, script, mode, *options, setting=""):
        """Run a script and answer what pgbench printed."""
        file = Path(self._scratch.name, "script.sql")
        file.write_text(script)
        installation = self.server.installation
        # Without a protocol for parameters, they are put into the text as they are.
        patch = """'{"value": 123456}'""" if mode == "simple" else '{"value": 123456}'
        done = subprocess.run(
            [
                *(str(installation.program("pgbench")), "-n", "-M", mode, "--random-seed=1"),
                *("-D", f"f={next(self.fences)}", "-D", f"patch={patch}"),
                *map(str, options),
                *("-f", str(file), "-h", "127.0.0.1", "-p", str(self.server.port), "-U", "postgres", "postgres"),
            ],
            env={**installation.environment, "PGOPTIONS": setting},
            capture_output=True,
            text=True,
        )
        if done.returncode or re.search(r"failed transactions: [1-9]|ERROR", done.stdout + done.stderr):
            raise SystemExit(f"pgbench failed on\n{script}\n{done.stdout}{done.stderr}")
        return done.stdout

    def fresh(self):
        """Lay the rows out as at the start, so that no side writes on what the other left."""
        for statement in ("UPDATE counters SET fence = 0, value = 0", "VACUUM FULL counters", "VACUUM ANALYZE counters", "CHECKPOINT"):
            self.db.execute(statement)

    def rate(self, script, clients, seconds, *, synced=True):
        """Transactions per second over some seconds."""
        self.fresh()
        sync = f"-c synchronous_commit={'on' if synced else 'off'}"
        text = NEXT.format(share=self.rows // clients) + script
        said = self.pgbench(text, "prepared", "-c", clients, "-j", clients, "-T", seconds, setting=sync)
        return float(re.search(r"^tps = ([\d.]+)", said, re.MULTILINE)[1])

    def instructions(self, script, mode="prepared", *, few=300, many=1_300):
        """Instructions of the backend per transaction. The first run after a start is none: the server fills its caches."""
        if not self._is_warm:
            self._total(script, mode, few)
            self._is_warm = True
        least = self._total(script, mode, few)
        return (self._total(script, mode, many) - least) / (many - few)

    def _total(self, script, mode, transactions):
        self.fresh()
        before = set(self.callgrind.counted())
        self.pgbench(NEXT.format(share=self.rows) + script, mode, "-t", transactions, setting="-c synchronous_commit=off")
        # Of the two backends that pgbench made, the one that ran the transactions.
        return max(self._ended_since(before, 2).values())

    def sql_instructions(self, *statements):
        """Instructions of the last statement, in a session that has run those before; without the session itself."""
        return self._session_total(statements) - self._session_total(statements[:-1])

    def _session_total(self, statements):
        before = set(self.callgrind.counted())
        with psycopg.connect(self.server.url(), autocommit=True) as db:
            for statement in statements:
                db.execute(statement)
        return max(self._ended_since(before, 1).values())

    def _ended_since(self, before, at_least):
        def ended():
            return {pid: count for pid, count in self.callgrind.counted().items() if pid not in before}

        eventually(lambda: len(ended()) >= at_least, within_s=60)
        return ended()


PAIR = "claim + update against hand-written prepared statements"


def works(load, quick):
    """All works of this half, with their servers started and ended around them."""
    del load
    for major in places.MAJORS[:1] if quick else places.MAJORS:
        with contextlib.closing(Server(major, counted=True, durable=False)) as server:
            yield from _instructions(server, quick)
    if not quick:
        with contextlib.closing(Server(places.MAJORS[0], counted=True, durable=False)) as server:
            yield from _bulk_instructions(server)
    with contextlib.closing(Server(places.MAJORS[0])) as server:
        yield from _rates(server, quick)
        yield from _many(server, quick)
        yield from _many_writes(server, quick)
        if not quick:
            yield from _bulk(server)


def _instructions(server, quick):
    on = f"PostgreSQL {server.major}"

    def count(script, mode="prepared"):
        return functools.cache(lambda: server.instructions(script, mode))

    ours, by_hand = count(EXTENSION), count(BY_HAND)
    yield Work(f"{PAIR}, {on}", "instructions", 1.15, 1.10, ours, by_hand)
    yield Work(f"claim + update against a generic PL/pgSQL version, {on}", "instructions", 0.45, None, ours, count(GENERIC))
    name = f"claim + update against one PL/pgSQL function per table, {on}"
    yield Work(name, "instructions", 1.02, 0.98, ours, count(ONE_FUNCTION))
    for mode in () if quick else ("simple", "extended"):
        name = f"claim + update against hand-written SQL, -M {mode}, {on}"
        yield Work(name, "instructions", 0.88, 0.80, count(EXTENSION, mode), count(BY_HAND, mode))
    if not quick:
        name = f"{PAIR}, the patch built in SQL, {on}"
        yield Work(name, "instructions", None, None, count(EXTENSION_BUILT), by_hand)

    @functools.cache
    def not_counting():
        with server.setting("pg_fence.track", "off"):
            return server.instructions(EXTENSION)

    if server.major > 16:
        # Before version 17 nothing is counted unless the library is preloaded.
        yield Work(f"counting on against off, {on}", "instructions", 1.01, None, ours, not_counting)


def _rates(server, quick):
    seconds, rounds = (3, 3) if quick else (3, 11)

    def rate(script, clients, synced=True):
        return lambda: server.rate(script, clients, seconds, synced=synced)

    for synced, target, stretch in ((True, 0.95, 0.98), (False, 0.82, 0.90)):
        for clients in (2,) if quick else (1, 2, 8):
            name = f"{PAIR}, {clients} clients, commits {'synced' if synced else 'not synced'}"
            ours, peer = rate(EXTENSION, clients, synced), rate(BY_HAND, clients, synced)
            yield Work(name, "transactions per second", target, stretch, ours, peer, at_least=True, rounds=rounds)
    for name, target, ours, peer in (
        ("fenced_write against one UPDATE by hand", 0.90, WRITE, WRITE_BY_HAND),
        ("fenced_guard + UPDATE against SELECT FOR UPDATE of a version row + UPDATE", 0.95, GUARD, VERSION_ROW),
    ):
        for synced in (True,) if quick else (True, False):
            how = f"{name}, 2 clients, commits {'synced' if synced else 'not synced'}"
            sides = rate(ours, 2, synced), rate(peer, 2, synced)
            yield Work(how, "transactions per second", target, None, *sides, at_least=True, rounds=rounds)


def _many(server, quick, count=1_000):
    """A batch of claims from psycopg, as its user sends it: one call, or one call a row."""

    def at_once(keys, fence):
        server.db.execute("SELECT * FROM fenced_claim_many(NULL::counters, %s::int[], %s)", (keys, fence), prepare=True)

    def one_by_one(keys, fence):
        with server.db.transaction():
            for key in keys:
                server.db.execute("SELECT * FROM fenced_claim(NULL::counters, %s::int, %s)", (key, fence), prepare=True)

    def rate(claim):
        def measured():
            server.fresh()
            keys, fence = list(range(1, count + 1)), next(server.fences)
            began = time.perf_counter()
            claim(keys, fence)
            return count / (time.perf_counter() - began)

        return measured

    name = f"fenced_claim_many of {count:,} rows against {count:,} claims in one transaction"
    rounds = 5 if quick else 15
    yield Work(name, "rows per second", 10, None, rate(at_once), rate(one_by_one), at_least=True, rounds=rounds)


# What one writes by hand: an UPDATE of the same arrays, with the columns that it knows.
JOBS = "CREATE TABLE jobs (id bigint PRIMARY KEY, fence bigint NOT NULL, beat bigint, state text) WITH (fillfactor = 50, autovacuum_enabled = off)"
UPDATE_MANY = "SELECT * FROM fenced_update_many('jobs', %(keys)s::bigint[], %(fences)s::bigint[], %(patches)s::jsonb)"
UPDATE_MANY_BY_HAND = """UPDATE jobs SET beat = (patch->>'beat')::bigint, state = patch->>'state'
    FROM unnest(%(keys)s::bigint[], %(fences)s::bigint[], %(documents)s::jsonb[]) AS given (key, fence, patch)
    WHERE jobs.id = given.key AND jobs.fence = given.fence RETURNING jobs.id, jobs.fence"""
UPDATE_ALL = "SELECT * FROM fenced_update_many('jobs', %(keys)s::bigint[], %(fences)s::bigint[], %(patch)s::jsonb)"
UPDATE_ALL_BY_HAND = """UPDATE jobs SET beat = %(beat)s, state = %(state)s
    FROM unnest(%(keys)s::bigint[], %(fences)s::bigint[]) AS given (key, fence)
    WHERE jobs.id = given.key AND jobs.fence = given.fence RETURNING jobs.id, jobs.fence"""


def _many_writes(server, quick, count=1_000, rows=100_000):
    """The CPU time of the backend in a write of many claimed rows, as psycopg sends it."""
    server.db.execute(JOBS)
    server.db.execute("INSERT INTO jobs SELECT n, 7 FROM generate_series(1, %s) n", (rows,))
    server.db.execute("VACUUM ANALYZE jobs")
    keys = list(range(rows // count, rows + 1, rows // count))
    patches = [{"beat": key, "state": "running"} for key in keys]
    documents = [json.dumps(patch) for patch in patches]
    given = {"keys": keys, "fences": [7] * count, "patches": json.dumps(patches), "documents": documents}
    given |= {"patch": documents[0], "beat": 1, "state": "running"}
    pid = server.db.info.backend_pid

    def spent(statement):
        def measured(calls=10):
            # The server plans a statement anew for the first five times.
            for _ in range(6):
                server.db.execute(statement, given, prepare=True)
            server.db.execute("VACUUM jobs")
            before = cpu_seconds(pid)
            for _ in range(calls):
                answered = server.db.execute(statement, given, prepare=True).rowcount
                assert answered == count, answered
            return (cpu_seconds(pid) - before) / calls

        return measured

    rounds = 5 if quick else 15
    name = f"fenced_update_many of {count:,} rows against an UPDATE FROM unnest by hand, a jsonb for each"
    yield Work(name, "CPU", 1.3, None, spent(UPDATE_MANY), spent(UPDATE_MANY_BY_HAND), rounds=rounds)
    name = f"fenced_update_many of {count:,} rows, one patch for all, against one of typed values"
    yield Work(name, "CPU", 1.3, None, spent(UPDATE_ALL), spent(UPDATE_ALL_BY_HAND), rounds=rounds)


# The row that an UPDATE of all changes by hand, on the plain table and on the protected one.
BULK = "UPDATE {table} SET value = value + 1"


def _bulk_tables(server, rows):
    """Two tables of claimed rows that differ in their protection alone."""
    for table in ("plain", "protected"):
        server.db.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, value bigint NOT NULL, fence bigint NOT NULL)")
        server.db.execute(f"INSERT INTO {table} SELECT n, 0, 7 FROM generate_series(1, {rows}) n")
        server.db.execute(f"VACUUM ANALYZE {table}")
    server.db.execute("SELECT fence_protect('protected')")


def _bulk(server, rows=1_000_000):
    _bulk_tables(server, rows)

    def run(table, figure):
        # The same room for the new rows each time.
        server.db.execute(f"VACUUM FULL {table}")
        server.db.execute("CHECKPOINT")
        with server.db.transaction():
            server.db.execute("SELECT fence_use(7)")
            wal = server.db.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()[0]
            began = time.perf_counter()
            server.db.execute(BULK.format(table=table))
            seconds = time.perf_counter() - began
            after = server.db.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()[0]
        return seconds if figure == "time" else float(after - wal)

    name = f"UPDATE of {rows:,} rows of a protected table against a plain one"
    for figure, target, rounds in (("time", 1.10, 5), ("WAL bytes", 1.001, 1)):
        sides = (functools.partial(run, table, figure) for table in ("protected", "plain"))
        yield Work(name, figure, target, None, *sides, rounds=rounds)


def _bulk_instructions(server, rows=200_000):
    """Counted over fewer rows, but an index as deep as that of a million."""
    _bulk_tables(server, rows)

    def run(table, use="SELECT fence_use(7)"):
        server.db.execute(f"VACUUM FULL {table}")
        update = BULK.format(table=table)
        return server.sql_instructions("BEGIN", use, f"EXPLAIN {update}", update) / rows

    sides = (functools.partial(run, table) for table in ("protected", "plain"))
    yield Work("UPDATE of many rows of a protected table against a plain one", "instructions", 1.12, 1.08, *sides)

    # The same where the table keeps owners, so that the identity of the holder is checked as well as the life.
    for table in ("plain", "protected"):
        server.db.execute(f"CREATE TABLE {table}_owned (LIKE {table} INCLUDING INDEXES, fence_owner text NOT NULL)")
        server.db.execute(f"INSERT INTO {table}_owned SELECT n, 0, 7, 'me' FROM generate_series(1, {rows}) n")
        server.db.execute(f"VACUUM ANALYZE {table}_owned")
    server.db.execute("SELECT fence_protect('protected_owned')")
    owned = "SELECT fence_use(7, 'me')"
    sides = (functools.partial(run, f"{table}_owned", owned) for table in ("protected", "plain"))
    name = "UPDATE of many rows of a protected table that keeps owners against a plain one"
    yield Work(name, "instructions", 1.12, None, *sides)
