"""Random SQL from several sessions against one database with pg_fence: every function, with hostile names, keys, patches
and types, mixed with transactions, roles, triggers and DDL of other sessions.

After each run no process of the server has died, no call was answered with an internal error, a fence never went down in
the tables that only fenced functions wrote, and there true meant exactly one row and false a newer fence.
"""

import json
import random
import re
import threading
import time

import psycopg

from fuzz.campaign import Find, main
from harness import PostgresServer

SESSIONS = 4
STEPS = 100
CALM_ROWS = 3
SETTINGS = {"max_prepared_transactions": "8", "deadlock_timeout": "50ms", "fsync": "off"}
# As options of the connection, so that DISCARD ALL comes back to them.
# Where the core raises those of OF_THE_CORE_ALONE: what has called it there goes to the log.
TRACED = "relation_open|fmgr_info_cxt_security|internal_get_result_type|simplify_function|inline_set_returning_function"
TRACED += "|add_function_cost|get_function_rows|get_func_rettype|get_func_retset|func_strict|func_volatile|func_parallel"
TRACED += "|get_func_prokind|get_func_leakproof|getBaseTypeAndTypmod|typeidType|get_typlenbyvalalign|get_typlenbyval"
TRACED += "|getTypeInputInfo|getTypeOutputInfo|lookup_type_cache|load_typcache_tupdesc|func_get_detail"
SESSION_SETTINGS = (
    "-c lock_timeout=150ms -c statement_timeout=3s -c client_min_messages=error "
    f"-c backtrace_functions={TRACED.replace('|', ',')}"
)

# Tables whose fences only the row functions change: what the calls answer is held against what is stored.
CALM = """
CREATE EXTENSION IF NOT EXISTS pg_fence;
CREATE TABLE calm (id int PRIMARY KEY, value bigint NOT NULL DEFAULT 0, fence bigint NOT NULL DEFAULT 0);
CREATE TABLE "ca""lm p" (id int, value bigint NOT NULL DEFAULT 0, fence bigint NOT NULL DEFAULT 0, PRIMARY KEY (id))
    PARTITION BY RANGE (id);
CREATE TABLE calm_low PARTITION OF "ca""lm p" FOR VALUES FROM (MINVALUE) TO (1);
CREATE TABLE calm_high PARTITION OF "ca""lm p" FOR VALUES FROM (1) TO (MAXVALUE);
INSERT INTO calm SELECT generate_series(0, 2);
INSERT INTO "ca""lm p" SELECT generate_series(0, 2);
CREATE FUNCTION never_down() RETURNS trigger LANGUAGE plpgsql AS
    $$BEGIN RAISE EXCEPTION 'from % to %', OLD.fence, NEW.fence USING ERRCODE = 'FZ001'; END$$;
CREATE TRIGGER never_down AFTER UPDATE ON calm FOR EACH ROW WHEN (NEW.fence < OLD.fence)
    EXECUTE FUNCTION never_down();
CREATE TRIGGER never_down AFTER UPDATE ON "ca""lm p" FOR EACH ROW WHEN (NEW.fence < OLD.fence)
    EXECUTE FUNCTION never_down();
SELECT fence_protect('calm');
CREATE SCHEMA IF NOT EXISTS "o'ther; DROP";
CREATE TYPE color AS ENUM ('red', 'green', '"bl,ue');
CREATE TYPE pair AS (x int, "y ""z" text);
CREATE DOMAIN small AS int CHECK (VALUE < 100);
"""
OTHER = '"o\'ther; DROP"'
CALM_TABLES = ["calm", '"ca""lm p"']
ROLES = ["fuzz_reader", "fuzz_writer"]
NAMES = ['w"1', "w 2", "W3", "w4; DROP TABLE calm--", "w\u00e9\u20ac", "x" * 63, "select", "$w$", "w\\n", "w'"]
COLUMNS = ["id", "fence", "value", "no such", 'q"uote', "V", "\u00fc", "ctid", "tableoid", "xmin", "", "x" * 70, "k"]
FENCES = ["1", "2", "3", "5", "7", "9", "40", "0", "-1", "NULL", "9007199254740991", "9007199254740992"]
FENCES += ["9223372036854775807", "-9223372036854775808", "2147483648", "1795968243472377"]
TYPES = "int|bigint|smallint|text|uuid|numeric(4,1)|numeric|jsonb|json|bytea|timestamptz|date|interval|inet|color".split("|")
TYPES += ["pair", "small", "int[]", "text[]", "int4range", "float8", "bool", "char(3)", "name", "varchar(2)", "int2vector"]
TYPES += ['"char"', "bit(3)", "xml", "tsvector", "money", "oid", "regclass", "pair[]", "small[]", "point", "jsonb[]"]
TEXTS = ["", "1", "0", "a", "1.05", "NaN", "Infinity", "-1", "2020-02-30", "2020-02-29", "red", '"bl,ue', "(1,a)", "{1,2}"]
TEXTS += ["{}", "[1,3)", "\\x00ff", "{\"id\": 1}", "[]", "null", "127.0.0.1", "x" * 3_000, "\u00e9\U0001f600", "'; DROP", "1e400"]
TEXTS += ["{{1,2},{3}}", "8b1f0a9e-0d2c-4c69-9f3e-0c6a5f5a1f11", "{\"k\": 1, \"id\": 2}", "(,)", "00:00:01", "$1", "\\", "true"]
# What the core itself answers with the code of an internal error: races with another session that changes the catalogs
# or drops the called function, and a prepared query whose row type is gone.
OF_THE_CORE = (
    "tuple concurrently updated",
    "tuple concurrently deleted",
    "function in FROM has unsupported return type",
)
# The same, unless it was in a call of the extension: then that has to know better.
OF_THE_CORE_ALONE = ("could not open relation with OID", "cache lookup failed for function", "cache lookup failed for type")
INTERNAL = "XX000"


def is_of_the_core(message, log):
    """Whether an internal error is the core's own; for some, the log says where the server was."""
    if not message.startswith(OF_THE_CORE_ALONE):
        return message.startswith(OF_THE_CORE)
    between = r"(?:(?!.*ERROR:).*\n)*?"
    traces = re.findall(rf"ERROR:  {re.escape(message)}\b.*\n{between}.*BACKTRACE:  \n((?:\t.*\n)*)", log)
    return not any("pg_fence.so" in trace for trace in traces)


def literal(text):
    return "E'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def quoted(name):
    return '"' + name.replace('"', '""') + '"'


class Session:
    """One connection with choices of its own."""

    def __init__(self, url, chance, number, names, told, log):
        """log: gives what the server has logged in this run."""
        self.url, self.chance, self.number, self.names, self.told, self.log = url, chance, number, names, told, log
        self.connection = None
        self.calls = 0
        # Above all values that other statements write.
        self.value = (number + 1) * 1_000_000

    # --- choices

    def pick(self, pool):
        return pool[self.chance.randrange(1 << 30) % len(pool)]

    def one_in(self, number):
        return self.chance.randrange(number) == 0

    def table(self):
        name = quoted(self.pick(self.names))
        return name if self.one_in(2) or not self.one_in(8) else self.pick(["public.", OTHER + ".", "pg_temp."]) + name

    def target(self):
        """Something in the place of a table's name."""
        if self.one_in(15):
            return self.pick(["'pg_class'", "NULL", "0", "'fence_internals.guards'", "4294967295", "'pg_stat_fence'", "'nope'"])
        return literal(self.table()) + self.pick(["", "", "::regclass"])

    def row_type(self):
        if self.one_in(15):
            return self.pick(["NULL", "1", "NULL::int", "NULL::pair", "ROW(1,2)", "NULL::calm", "NULL::pg_class", "'x'::text"])
        return f"NULL::{self.table()}"

    def value_of_any_kind(self):
        match self.chance.randrange(12):
            case 0:
                return "NULL"
            case 1 | 2 | 3:
                return str(self.chance.randrange(-1, 4))
            case 4 | 5:
                return literal(self.pick(TEXTS))
            case 6 | 7:
                return f"{literal(self.pick(TEXTS))}::{self.pick(TYPES)}"
            case 8:
                return f"ROW({self.chance.randrange(3)}, {literal(self.pick(TEXTS))})"
            case 9:
                return f"{self.chance.randrange(3)}::{self.pick(['bigint', 'smallint', 'numeric', 'text', 'float8', 'real'])}"
            case 10:
                return literal(json.dumps(self.json_object())) + self.pick(["::jsonb", "", "::json"])
            case _:
                many = ", ".join(self.value_of_any_kind() for _ in range(self.chance.randrange(3)))
                return self.pick([f"ROW({many})", f"ARRAY[{many}]", f"({many})" if many else "ROW()"])

    def keys(self):
        numbers = ", ".join(str(self.chance.randrange(-1, 4)) for _ in range(self.chance.randrange(5)))
        return self.pick(
            [
                f"ARRAY[{numbers}]::int[]",
                f"ARRAY[{numbers}]::bigint[]",
                "'{1,0,NULL}'",
                "'{{1,2},{0,1}}'::int[]",
                "NULL",
                literal(json.dumps([self.json_object() for _ in range(self.chance.randrange(3))])),
                f"ARRAY[{self.value_of_any_kind()}]",
                self.value_of_any_kind(),
            ]
        )

    def fence(self):
        return self.pick(FENCES) + self.pick(["", "", "", "::bigint"])

    def relation_row(self):
        """The first arguments of a trigger's condition."""
        return self.pick(["0, '(0,1)', '3'", "'calm'::regclass, '(0,1)', '3'", "'pg_class'::regclass, '(9,9)', '3'", "NULL, NULL, NULL", "4294967295, '(4294967295,65535)', '0'"])

    def json_value(self, depth=0):
        match self.chance.randrange(10 if depth < 4 else 6):
            case 0:
                return None
            case 1:
                return self.chance.randrange(-3, 300)
            case 2:
                return self.pick([1.5, 1e300, -0.0, 2**53, 2**63, 2**70, True, False])
            case 3 | 4 | 5:
                return self.pick(TEXTS)
            case 6 | 7:
                return [self.json_value(depth + 1) for _ in range(self.chance.randrange(4))]
            case _:
                return self.json_object(depth + 1)

    def json_object(self, depth=0):
        names = [*COLUMNS, "x", 'y "z']
        return {self.pick(names): self.json_value(depth) for _ in range(self.chance.randrange(1, 4))}

    def patch(self):
        if self.one_in(12):
            return self.pick(["NULL", "'{}'", "'[]'", "'1'", "'null'", "'\"x\"'", "'[{}]'", '\'{"value": "\\u0000"}\''])
        return literal(json.dumps(self.json_object())) + self.pick(["", "::jsonb"])

    def fences(self):
        if self.one_in(4):
            return self.pick(["NULL", "'{}'", "'{NULL}'", "'{{5}}'", "ARRAY[5, NULL]", "'{1,2,3,4,5,6,7}'"])
        return self.pick(["'{5}'", "'{4,5,6}'", "'{5,5}'", f"ARRAY[{self.fence()}]::bigint[]"])

    def patches(self):
        if self.one_in(3):
            return self.patch()
        return literal(json.dumps([self.json_object() for _ in range(self.chance.randrange(0, 4))]))

    def column(self):
        column = "" if self.one_in(2) else f", {literal(self.pick(['fence', 'fence', 'fence', 'value', *COLUMNS]))}"
        return column + self.owner() if column and self.one_in(3) else column

    def owner(self):
        owner = self.pick(["NULL", "'a'", "'a'", "'b'", literal(self.pick(TEXTS))])
        return f", {owner}" + ("" if self.one_in(2) else f", {literal(self.pick(['value', 'fence_owner', *COLUMNS]))}")

    def row_call(self):
        key = self.value_of_any_kind() if self.one_in(3) else str(self.chance.randrange(0, 3))
        fence, column = self.fence(), self.column()
        return "SELECT " + self.pick(
            [
                f"* FROM fenced_claim({self.row_type()}, {key}, {fence}{column})",
                f"fenced_claim({self.row_type()}, {key}, {fence}{column})",
                f"fenced_claim_json({self.target()}, {key}, {fence}{column})",
                f"* FROM fenced_claim_many({self.row_type()}, {self.keys()}, {fence}{column})",
                f"* FROM fenced_{self.pick(['update', 'write'])}_many({self.target()}, {self.keys()}, {self.fences()}, {self.patches()}{column})",
                f"* FROM fenced_{self.pick(['update', 'write'])}_many({self.target()}, {self.keys()}, {self.fences()}, {self.patches()}{column})",
                f"* FROM fenced_delete_many({self.target()}, {self.keys()}, {self.fences()}{column})",
                f"fenced_update({self.target()}, {key}, {fence}, {self.patch()}{column})",
                f"fenced_update({self.target()}, {key}, {fence}, {self.patch()}{column})",
                f"* FROM fenced_update_returning({self.row_type()}, {key}, {fence}, {self.patch()}{column})",
                f"fenced_write({self.target()}, {key}, {fence}, {self.patch()}{column})",
                f"fenced_write({self.target()}, {key}, {fence}, {self.patch()}{column})",
                f"* FROM fenced_claim_or_insert({self.row_type()}, {key}, {fence}, {self.patch()}{column})",
                f"fenced_claim_or_insert({self.row_type()}, {key}, {fence}, '{{}}')",
                f"fenced_upsert({self.target()}, {key}, {fence}, {self.patch()}{column})",
                f"fenced_delete({self.target()}, {key}, {fence}{column})",
                f"fence_reset({self.target()}, {key}, {fence}{column})",
            ]
        )

    def other_call(self):
        resource = literal(self.pick([*TEXTS, "g", "g", "g2"]))
        owner = self.pick(["NULL", "'a'", "'a'", "'b'", resource])
        deletes, inserts = self.pick(["NULL", "'plain'", "'remembered'"]), self.pick(["NULL", "'plain'", "'fenced'"])
        age = self.pick(["NULL", "'0'", "'1 day'", "'-1 day'", "'1us'"])
        keys = self.pick(["1, 1", "'a', 1", "1, 'a'::text", "'a'::text, 1", "NULL, 1", "VARIADIC ARRAY[1]", "1", "1.0, 1.00"])
        kind = self.pick(["tgtype", "5::smallint", "NULL", "(-1)::smallint"])
        return self.pick(
            [
                f"SELECT fenced_guard({resource}, {self.fence()})",
                f"SELECT fenced_guard('g', {self.fence()})",
                f"SELECT fenced_guard('g', {self.fence()}, {resource})",
                f"SELECT fenced_guard('g', {self.fence()}, fence_life())",
                f"SELECT fenced_guard('g', {self.fence()}, '', {owner})",
                f"SELECT fence_guard_reset({resource}, {self.fence()})",
                f"SELECT fence_guard_forget({self.fence()})",
                # Not of a guard that a session of the fuzzer holds: it would be ended.
                f"SELECT fence_guard_evict('nobody', {self.fence()})",
                f"SELECT fence_guard_evict({resource}, NULL)",
                "SELECT * FROM fence_guard_blockers",
                f"SELECT fence_protect({self.target()}{self.column()})",
                f"SELECT fence_protect({self.target()})",
                f"SELECT fence_protect({self.target()}, deletes => {deletes})",
                f"SELECT fence_protect({self.target()}, deletes => 'remembered')",
                f"SELECT fence_protect({self.target()}, inserts => {inserts})",
                f"SELECT fence_forget_deletions({self.target()}, {age})",
                f"SELECT fence_internals.changes_key(NULL, NULL, NULL, {keys})",
                "SELECT fence_internals.remember()",
                f"SELECT fence_internals.trigger_deletions(tgqual, {kind}) FROM pg_trigger",
                f"SELECT fence_internals.trigger_inserts(tgqual, {kind}) FROM pg_trigger",
                f"SELECT fence_unprotect({self.target()})",
                f"SELECT fence_use({self.fence()})",
                "SELECT fence_use(i) FROM generate_series(1, 1100) AS i",
                f"SELECT fence_internals.refuses_update({self.relation_row()}, {self.fence()}, {self.fence()}, NULL, NULL)",
                f"SELECT fence_internals.refuses_delete({self.relation_row()}, {self.fence()}, NULL)",
                f"SELECT fence_internals.refuses_insert({self.relation_row().rpartition(',')[0]}, {self.fence()}, NULL)",
                "SELECT fence_internals.refuse()",
                f"SELECT fence_internals.trigger_column(tgqual, {self.pick(['tgtype', '1::smallint', 'NULL', '(-1)::smallint'])}) FROM pg_trigger",
                "SELECT * FROM fence_protected",
                "SELECT * FROM pg_stat_fence",
                "SELECT count(*) FROM fence_internals.stat()",
                "SELECT pg_stat_fence_reset()",
                f"SET pg_fence.max_fence = {self.pick(['default', '10', '9007199254740991', '0', '-1'])}",
                f"SET pg_fence.max_fence_ahead = {self.pick(['default', '0', chr(39) + '1us' + chr(39)])}",
                f"SET pg_fence.track = {self.pick(['on', 'off'])}",
            ]
        )

    def plain(self):
        table = self.table()
        return self.pick(
            [
                f"INSERT INTO {table} DEFAULT VALUES",
                f"INSERT INTO {table} VALUES ({self.value_of_any_kind()}, {self.value_of_any_kind()}, {self.fence()})",
                f"INSERT INTO {table} (id) VALUES (0), (1), (2) ON CONFLICT DO NOTHING",
                f"UPDATE {table} SET fence = {self.fence()}",
                f"UPDATE {table} SET value = {self.value_of_any_kind()} WHERE id::text = '1'",
                f"DELETE FROM {table}",
                f"SELECT * FROM {table} FOR UPDATE",
                f"TRUNCATE {table}",
                f"MERGE INTO {table} AS t USING (VALUES (1)) AS s (i) ON t.id::text = s.i::text WHEN MATCHED THEN DELETE",
                f"WITH c AS (SELECT * FROM fenced_claim(NULL::{table}, 1, {self.fence()})) DELETE FROM {table} WHERE EXISTS (TABLE c)",
                f"DECLARE c CURSOR FOR SELECT * FROM fenced_claim(NULL::{table}, 1, {self.fence()})",
                "FETCH 1 FROM c",
                "CLOSE c",
                f"PREPARE p AS SELECT * FROM fenced_claim(NULL::{table}, 1, $1)",
                "EXECUTE p(7)",
                "DEALLOCATE ALL",
                f"UPDATE calm SET value = {self.chance.randrange(9)}",
                "TRUNCATE calm",
                self.block(),
                self.block(),
                self.call_in_odd_place(table),
                self.call_in_odd_place(table),
                self.call_in_odd_place(table),
            ]
        )

    def call_in_odd_place(self, table):
        """A call where a statement has already begun to do something to the same table, or will not be run to its end."""
        name, fence = literal(table), self.fence()
        claim, write = f"fenced_claim_json({name}, 1, {fence})", f"fenced_write({name}, 1, {fence}, '{{\"value\": 1}}')"
        return self.pick(
            [
                f"SELECT c.* FROM {table} AS s, LATERAL fenced_claim(NULL::{table}, s.id, {fence}) AS c",
                f"SELECT fenced_delete({name}, s.id, {fence}) FROM {table} AS s",
                f"UPDATE {table} SET value = NULL RETURNING {claim}",
                f"UPDATE {table} SET value = ({claim})->>'value'",
                f"INSERT INTO {table} (id) VALUES (3) RETURNING {write}",
                f"DELETE FROM {table} RETURNING {claim}",
                f"ALTER TABLE {table} ADD CHECK ({claim} IS NOT NULL) NOT VALID",
                f"ALTER TABLE {table} ALTER COLUMN value SET DEFAULT ({claim})::text",
                f"CREATE POLICY q ON {table} USING ({write})",
                f"CREATE TABLE IF NOT EXISTS {quoted(self.pick(self.names))} AS SELECT * FROM fenced_claim(NULL::{table}, 1, {fence})",
                f"EXPLAIN (ANALYZE, VERBOSE) {self.row_call()}",
                f"WITH q AS MATERIALIZED ({self.row_call()}) SELECT * FROM q LIMIT 1",
                f"SELECT fenced_claim_many(NULL::{table}, ARRAY[0, 1, 2], {fence}) LIMIT 1",
                f"DECLARE c CURSOR WITH HOLD FOR SELECT fenced_claim_many(NULL::{table}, ARRAY[0, 1, 2], {fence})",
                f"SELECT sum((fenced_claim_json({name}, i, {fence})->>'fence')::bigint) FROM generate_series(0, 2) AS i",
            ]
        )

    def block(self):
        """Calls inside of PL/pgSQL, where an error is caught and the transaction goes on."""
        one, other = self.row_call(), self.row_call() if self.one_in(2) else self.other_call()
        if not (one.startswith("SELECT") and other.startswith("SELECT")):
            return one
        return (
            f"DO $do$BEGIN BEGIN EXECUTE {literal(one)}; EXCEPTION WHEN OTHERS THEN "
            f"IF SQLSTATE = '{INTERNAL}' THEN RAISE; END IF; END; EXECUTE {literal(other)}; END$do$"
        )

    def ddl(self):
        table, name, of_type = self.table(), quoted(self.pick(self.names)), self.pick(TYPES)
        columns = f"value {self.pick(TYPES)}, fence {self.pick(['bigint NOT NULL DEFAULT 0', 'int', 'bigint', 'smallint'])}"
        key_type = self.pick(["int", "int", "int", of_type])
        extra = self.pick(
            ["", ', "q""uote" text', ", g int GENERATED ALWAYS AS (1 + 1) STORED", f", k {of_type}", ", i int GENERATED ALWAYS AS IDENTITY"]
        )
        create = f"CREATE {self.pick(['', '', 'TEMP ', 'UNLOGGED '])}TABLE IF NOT EXISTS {quoted(self.pick(self.names))}"
        return self.pick(
            [
                f"CREATE TABLE IF NOT EXISTS {table} (id {key_type} PRIMARY KEY, {columns}{extra})",
                f"CREATE TABLE IF NOT EXISTS {table} (id {key_type} PRIMARY KEY, {columns}{extra})",
                f"{create} (id int PRIMARY KEY, {columns}{extra})",
                f"{create} (id int, k {of_type}, {columns}, PRIMARY KEY (k, id))",
                f"{create} (id int PRIMARY KEY DEFERRABLE, {columns})",
                f"{create} (id int PRIMARY KEY, {columns}) PARTITION BY RANGE (id)",
                f"CREATE TABLE IF NOT EXISTS {table} PARTITION OF {quoted(self.pick(self.names))} FOR VALUES FROM ({self.pick('01')}) TO (2)",
                f"CREATE TABLE IF NOT EXISTS {table} PARTITION OF {quoted(self.pick(self.names))} DEFAULT",
                f"CREATE TABLE IF NOT EXISTS {table} () INHERITS ({quoted(self.pick(self.names))})",
                f"CREATE VIEW {table} AS SELECT * FROM {quoted(self.pick(self.names))}",
                f"DROP TABLE IF EXISTS {table} CASCADE",
                f"DROP TABLE IF EXISTS {table}",
                f"ALTER TABLE {table} RENAME TO {name}",
                f"ALTER TABLE {table} RENAME COLUMN {self.pick(['value', 'fence', 'id', 'k'])} TO {quoted(self.pick(COLUMNS))}",
                f"ALTER TABLE {table} ADD COLUMN {quoted(self.pick(COLUMNS))} {of_type}",
                f"ALTER TABLE {table} ADD COLUMN fence bigint NOT NULL DEFAULT 0",
                f"ALTER TABLE {table} ADD COLUMN id int",
                f"ALTER TABLE {table} ADD PRIMARY KEY (id)",
                f"ALTER TABLE {table} DROP COLUMN {self.pick(['value', 'fence', 'id', 'k'])} CASCADE",
                f"ALTER TABLE {table} ALTER COLUMN {self.pick(['value', 'fence', 'id'])} TYPE {of_type} USING NULL",
                f"ALTER TABLE {table} ALTER COLUMN fence TYPE {self.pick(['int', 'bigint'])}",
                f"ALTER TABLE {table} SET SCHEMA {self.pick(['public', OTHER])}",
                f"ALTER TABLE {table} {self.pick(['ENABLE', 'FORCE', 'DISABLE', 'NO FORCE'])} ROW LEVEL SECURITY",
                f"CREATE POLICY p ON {table} USING ({self.pick(['true', 'false', 'id::text = $$1$$', '1 / 0 = 1'])})",
                f"ALTER TABLE {table} {self.pick(['ENABLE', 'DISABLE', 'ENABLE ALWAYS', 'ENABLE REPLICA'])} TRIGGER ALL",
                f"ALTER TABLE {quoted(self.pick(self.names))} DETACH PARTITION {table}",
                f"ALTER TABLE {quoted(self.pick(self.names))} ATTACH PARTITION {table} DEFAULT",
                f"CREATE INDEX ON {table} (fence)",
                f"VACUUM FULL {table}",
                f"GRANT {self.pick(['ALL', 'SELECT', 'UPDATE (fence)', 'SELECT (id)'])} ON {table} TO fuzz_reader, fuzz_writer",
                f"REVOKE ALL ON {table} FROM fuzz_writer",
                self.trigger(table),
                self.trigger(table),
                f"CREATE RULE r AS ON UPDATE TO {table} DO INSTEAD {self.pick(['NOTHING', 'SELECT 1'])}",
                f"COMMENT ON TABLE {table} IS 'x'",
                f"ANALYZE {table}",
            ]
        )

    def trigger(self, table):
        body = self.pick(
            [
                "RETURN NULL;",
                "NEW.fence = 0; RETURN NEW;",
                "NEW.fence = NEW.fence + 1; RETURN NEW;",
                f"PERFORM fenced_write(TG_RELID::regclass, 1, {self.pick(FENCES)}, {literal(json.dumps({'value': 1}))}); RETURN NEW;",
                f"PERFORM fenced_claim_json(TG_RELID::regclass, NEW.id, {self.pick(FENCES)}); RETURN NEW;",
                "EXECUTE format('ALTER TABLE %s ADD COLUMN z int', TG_RELID::regclass); RETURN NEW;",
                "EXECUTE format('DELETE FROM %s', TG_RELID::regclass); RETURN NEW;",
                "RAISE EXCEPTION 'no'; RETURN NEW;",
                "PERFORM fence_use(7); RETURN NEW;",
                "PERFORM fence_unprotect(TG_RELID::regclass); RETURN NEW;",
            ]
        )
        ours = self.pick(["fence_internals.refuse()", "fence_internals.remember()"])
        when = self.pick(["BEFORE UPDATE", "AFTER UPDATE", "BEFORE DELETE", "AFTER INSERT", "BEFORE INSERT OR UPDATE"])
        each = self.pick(["ROW", "ROW", "STATEMENT"])
        condition = self.pick(
            [
                "",
                "",
                "WHEN (fence_internals.refuses_delete(OLD.tableoid, OLD.ctid, OLD.xmin, OLD.fence, NULL)) ",
                f"WHEN (fence_internals.has_key('{table}_deletions', OLD.fence, OLD.id)) ",
                "WHEN (fence_internals.refuses_update(OLD.tableoid, OLD.ctid, OLD.xmin, OLD.fence, NEW.fence, NULL, NULL)) ",
            ]
        )
        if self.one_in(3):
            return f"CREATE TRIGGER t{self.chance.randrange(3)} {when} ON {table} FOR EACH {each} {condition}EXECUTE FUNCTION {ours}"
        function = f"public.t{self.number}_{self.chance.randrange(4)}()"
        return (
            f"CREATE OR REPLACE FUNCTION {function} RETURNS trigger LANGUAGE plpgsql AS {literal('BEGIN ' + body + ' END')}; "
            f"CREATE OR REPLACE TRIGGER t{self.chance.randrange(3)} {when} ON {table} FOR EACH ROW EXECUTE FUNCTION {function}"
        )

    def session_command(self):
        level = self.pick(["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE", "READ COMMITTED, READ ONLY"])
        return self.pick(
            [
                f"BEGIN ISOLATION LEVEL {level}",
                "BEGIN",
                "COMMIT",
                "COMMIT",
                "ROLLBACK",
                "SAVEPOINT s",
                "ROLLBACK TO s",
                "RELEASE s",
                f"PREPARE TRANSACTION 'fuzz{self.number}'",
                f"{self.pick(['COMMIT', 'ROLLBACK'])} PREPARED 'fuzz{self.chance.randrange(SESSIONS)}'",
                f"SET ROLE {self.pick(['NONE', 'NONE', *ROLES])}",
                "RESET ROLE",
                f"SET search_path = {self.pick(['default', 'pg_temp', OTHER + ', public'])}",
                f"SET session_replication_role = {self.pick(['origin', 'replica', 'origin'])}",
                f"SET plan_cache_mode = {self.pick(['auto', 'force_generic_plan', 'force_custom_plan'])}",
                "DISCARD ALL",
                "SET statement_timeout = '2ms'",
                "SET statement_timeout = '3s'",
                "DISCARD PLANS",
                "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND application_name = 'fuzz' "
                "ORDER BY random() LIMIT 1",
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND application_name = 'fuzz' "
                "ORDER BY random() LIMIT 1",
                "CREATE EXTENSION IF NOT EXISTS pg_fence",
                "DROP EXTENSION pg_fence CASCADE; CREATE EXTENSION pg_fence" if self.one_in(6) else "SELECT 1",
            ]
        )

    # --- steps

    def connect(self):
        self.connection = psycopg.connect(
            self.url, autocommit=True, application_name="fuzz", options=SESSION_SETTINGS
        )

    def run(self, sql):
        """What the statement returned; None when it was refused. An internal error is a find."""
        self.calls += 1
        self.told.append((self.number, sql))
        try:
            if self.connection is None or self.connection.closed:
                self.connect()
            # Without parameters psycopg sends it as it is, several statements at once too.
            cursor = self.connection.execute(sql)
            return cursor.fetchall() if cursor.description else []
        except psycopg.OperationalError as error:
            if self.connection is None or self.connection.closed:
                # Terminated by another session. Whether the server died is read in its log.
                self.connection = None
            return self.refused(sql, error)
        except (psycopg.Error, UnicodeError) as error:
            return self.refused(sql, error)

    def refused(self, sql, error):
        state = getattr(error, "sqlstate", None)
        if state == INTERNAL:
            state = None if is_of_the_core(error.diag.message_primary or "", self.log()) else state
        self.told.append((self.number, f"  {state} {str(error)[:150]}"))
        if state and (state.startswith("FZ") or state == INTERNAL):
            raise Find(f"{sql}\nwas answered {state}: {error}")
        return None

    def step(self):
        how = self.chance.randrange(20)
        if self.has_failed():
            return self.run(self.pick(["ROLLBACK", "ROLLBACK", "ROLLBACK TO s", "COMMIT", "SELECT 1"]))
        match how:
            case 0 | 1 | 2 | 3 | 4 | 5:
                self.run(self.row_call())
            case 6 | 7:
                self.run(self.other_call())
            case 8 | 9 | 10:
                self.run(self.ddl())
            case 11 | 12:
                self.run(self.plain())
            case 13 | 14:
                self.run(self.session_command())
            case _:
                self.calm_step()

    def calm_step(self):
        """A call whose answer is held against what is stored."""
        table, row = self.pick(CALM_TABLES), self.chance.randrange(CALM_ROWS)
        fence = self.chance.randrange(1, 60)
        verb = self.pick(["claim", "claim", "update", "update", "write"])
        self.value += 1
        patch = f'\'{{"value": {self.value}}}\''
        calls = {
            "claim": f"SELECT fenced_claim_json({literal(table)}, {row}, {fence})",
            "update": f"SELECT fenced_update({literal(table)}, {row}, {fence}, {patch})",
            "write": f"SELECT fenced_write({literal(table)}, {row}, {fence}, {patch})",
        }
        told = self.run(calls[verb])
        if told is None:
            return
        # Roles and policies of this session may hide the rows; the level may show what was there before.
        plain = self.run("SELECT current_user = session_user AND current_setting('transaction_isolation') = 'read committed'")
        if plain != [(True,)]:
            return
        seen = self.run(f"SELECT fence, (SELECT count(*) FROM {table} WHERE value = {self.value}) FROM {table} WHERE id = {row}")
        if not seen:
            return
        ((stored, written),) = seen
        answer = told[0][0]
        accepted = answer is not None and answer is not False
        wanted = 1 if accepted and verb != "claim" else 0
        # Another session may write over it once this call has committed, but then with a fence that is at least as new.
        is_right = stored >= fence and written <= wanted if accepted else stored > fence and written == 0
        if not is_right or (accepted and stored == fence and written != wanted and self.in_transaction()):
            raise Find(f"{calls[verb]} was answered {answer!r}, then fence {stored}, {written} rows with its value")

    def in_transaction(self):
        return self.status() == psycopg.pq.TransactionStatus.INTRANS

    def has_failed(self):
        return self.status() == psycopg.pq.TransactionStatus.INERROR

    def status(self):
        return self.connection and self.connection.info.transaction_status

    def play(self, steps):
        for _ in range(steps):
            self.step()

    def close(self):
        if self.connection is not None:
            self.connection.close()


def watch(url, stop, finds):
    """Sees the stored fences of the calm tables again and again: they never go down."""
    newest = {}
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            while not stop.wait(0.02):
                for table in CALM_TABLES:
                    for row, fence in connection.execute(f"SELECT id, fence FROM {table}").fetchall():
                        if fence < newest.get((table, row), 0):
                            raise Find(f"row {row} of {table} went from {newest[table, row]} down to {fence}")
                        newest[table, row] = fence
    except psycopg.Error as error:
        finds.append(Find(f"the observer was told {error}"))
    except Find as find:
        finds.append(find)


def play(server, chance, *, steps=STEPS):
    """One run in a database of its own; how many statements were sent."""
    database = "fuzz"
    log_before, pid = len(server.log()), server.pid
    with psycopg.connect(server.url(), autocommit=True) as admin:
        for role in ROLES:
            if not admin.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role]).fetchone():
                admin.execute(f"CREATE ROLE {role}")
        admin.execute(f"CREATE DATABASE {database}")
    url = server.url(database)
    told, finds, stop = [], [], threading.Event()
    try:
        with psycopg.connect(url, autocommit=True) as setup:
            setup.execute(CALM)
        names = chance.sample(NAMES, 3)
        log = lambda: server.log()[log_before:]  # noqa: E731
        seeds = [random.Random(chance.getrandbits(64)) for _ in range(SESSIONS)]
        sessions = [Session(url, own, number, names, told, log) for number, own in enumerate(seeds)]
        for name in names:
            sessions[0].run(f"CREATE TABLE {quoted(name)} (id int PRIMARY KEY, value text, fence bigint NOT NULL DEFAULT 0)")
            sessions[0].run(f"INSERT INTO {quoted(name)} (id) VALUES (0), (1), (2)")

        def act(session):
            try:
                session.play(steps)
            except Exception as error:
                finds.append(error)

        threads = [threading.Thread(target=act, args=(session,)) for session in sessions]
        observer = threading.Thread(target=watch, args=(url, stop, finds))
        for thread in (observer, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        stop.set()
        observer.join()
        for session in sessions:
            session.close()
        died = [line for line in server.log()[log_before:].splitlines() if any(bad in line for bad in DEATHS)]
        if server.pid != pid or died:
            finds.append(Find(f"the server: {died}"))
        if finds:
            raise finds[0]
        assert_nothing_is_left(server, database)
    except BaseException:
        print(*told[-400:], sep="\n")
        raise
    finally:
        drop(server, database)
    return sum(session.calls for session in sessions)


DEATHS = ("terminated by signal", "terminated by exception", "TRAP:", "PANIC:", "corrupt", "is not owned", "leak:")


def assert_nothing_is_left(server, database):
    """Once the sessions are gone, so are their locks."""
    deadline = time.monotonic() + 10
    with psycopg.connect(server.url(), autocommit=True) as admin:
        finish_prepared(server, admin, database)
        query = "SELECT locktype, mode FROM pg_locks WHERE database = (SELECT oid FROM pg_database WHERE datname = %s)"
        while left := admin.execute(query, [database]).fetchall():
            if time.monotonic() > deadline:
                raise Find(f"locks are left: {left}")
            time.sleep(0.02)


def finish_prepared(server, admin, database):
    prepared = admin.execute("SELECT gid FROM pg_prepared_xacts WHERE database = %s", [database]).fetchall()
    if prepared:
        with psycopg.connect(server.url(database), autocommit=True) as inside:
            for (gid,) in prepared:
                inside.execute(f"ROLLBACK PREPARED '{gid}'")


def drop(server, database):
    with psycopg.connect(server.url(), autocommit=True) as admin:
        finish_prepared(server, admin, database)
        admin.execute(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")


class _Server:
    """A server of one major for all runs."""

    def __init__(self):
        self.servers = {}

    def play(self, chance, run, major, steps):
        if major not in self.servers:
            self.servers[major] = PostgresServer(major or None, SETTINGS).start()
        return play(self.servers[major], chance, steps=steps)


if __name__ == "__main__":
    main(__doc__.splitlines()[0], _Server().play, major=0, steps=STEPS)
