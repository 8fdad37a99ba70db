"""Whatever a role without ownership does, in any order: no stored fence goes down, and no protected row changes without it.

Random sequences of plain SQL, cascades, moves between partitions, upserts, MERGE, triggers and fenced calls run against
protected tables. After each statement a model says of every row whether what became of it was allowed: the row's own
number, which nobody changes, follows it over all its versions.
"""

import collections
import random

import psycopg
import pytest
from seeds import seed

TABLES = """
    CREATE SEQUENCE numbers START 500000;
    CREATE TABLE plain (id int PRIMARY KEY, v int, fence bigint NOT NULL DEFAULT 0, number int NOT NULL DEFAULT nextval('numbers'));
    CREATE TABLE parts (id int, r int, v int, fence bigint NOT NULL DEFAULT 0, number int NOT NULL DEFAULT nextval('numbers'), PRIMARY KEY (id, r)) PARTITION BY LIST (r);
    CREATE TABLE parts0 PARTITION OF parts FOR VALUES IN (0);
    CREATE TABLE parts1 (number int NOT NULL, fence bigint NOT NULL DEFAULT 0, r int NOT NULL, v int, id int NOT NULL);
    ALTER TABLE parts ATTACH PARTITION parts1 FOR VALUES IN (1);
    CREATE TABLE leaves (id int, r int, v int, fence bigint NOT NULL DEFAULT 0, number int NOT NULL DEFAULT nextval('numbers'), PRIMARY KEY (id, r)) PARTITION BY LIST (r);
    CREATE TABLE leaves0 PARTITION OF leaves FOR VALUES IN (0);
    CREATE TABLE leaves1 (r int NOT NULL, number int NOT NULL, id int NOT NULL, fence bigint NOT NULL DEFAULT 0, v int);
    ALTER TABLE leaves ATTACH PARTITION leaves1 FOR VALUES IN (1);
    CREATE TABLE regions (r int PRIMARY KEY); INSERT INTO regions VALUES (0), (1);
    ALTER TABLE parts ADD FOREIGN KEY (r) REFERENCES regions ON DELETE CASCADE ON UPDATE CASCADE;
    CREATE TABLE heads (id int PRIMARY KEY); INSERT INTO heads SELECT generate_series(0, 9);
    ALTER TABLE plain ADD FOREIGN KEY (id) REFERENCES heads ON DELETE CASCADE ON UPDATE CASCADE;
    CREATE TABLE refers (id int, r int, FOREIGN KEY (id, r) REFERENCES leaves ON UPDATE CASCADE ON DELETE CASCADE);
    -- A trigger of the owner's that moves rows that are written.
    CREATE FUNCTION moves() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.v % 7 = 6 THEN NEW.r := 1 - NEW.r; END IF; RETURN NEW; END $$;
    CREATE TRIGGER moves BEFORE UPDATE ON parts0 FOR EACH ROW EXECUTE FUNCTION moves();
    CREATE TRIGGER moves BEFORE UPDATE ON leaves1 FOR EACH ROW EXECUTE FUNCTION moves();
    -- And one that swallows rows on their way.
    CREATE FUNCTION swallows() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN CASE WHEN NEW.v = 99 THEN NULL ELSE NEW END; END $$;
    CREATE TRIGGER swallows BEFORE INSERT ON parts1 FOR EACH ROW EXECUTE FUNCTION swallows();
    SELECT fence_protect('plain'), fence_protect('parts'), fence_protect('leaves0'), fence_protect('leaves1');
    CREATE ROLE clerk;
    GRANT SELECT, INSERT, UPDATE, DELETE ON plain, parts, parts0, parts1, leaves, leaves0, leaves1, heads, regions, refers TO clerk;
    GRANT USAGE ON SEQUENCE numbers TO clerk;
    GRANT CREATE ON SCHEMA public TO clerk;
    SET ROLE clerk;
    CREATE FUNCTION sly() RETURNS bool LANGUAGE plpgsql AS $$ BEGIN
        IF current_setting('sly.write', true) <> '' THEN
            BEGIN EXECUTE current_setting('sly.write'); EXCEPTION WHEN OTHERS THEN IF random() < 0.5 THEN RAISE; END IF; END;
        END IF;
        RETURN true;
    END $$;
    CREATE FUNCTION sly_trigger() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM sly(); RETURN COALESCE(NEW, OLD); END';
    CREATE TABLE mine (id int PRIMARY KEY, v int, fence bigint NOT NULL DEFAULT 0); INSERT INTO mine SELECT n, 0, n FROM generate_series(0, 5) n;
    ALTER TABLE mine ADD CHECK (sly()) NOT VALID, ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
    CREATE POLICY p ON mine USING (v >= 0 OR sly());
    CREATE TRIGGER before BEFORE UPDATE OR DELETE ON mine FOR EACH ROW WHEN (sly()) EXECUTE FUNCTION sly_trigger();
    CREATE TRIGGER after AFTER UPDATE OR INSERT ON mine FOR EACH ROW EXECUTE FUNCTION sly_trigger();
"""
ROWS = """SELECT number, 'plain', id, 0, v, fence FROM plain UNION ALL SELECT number, 'parts', id, r, v, fence FROM parts
    UNION ALL SELECT number, 'leaves', id, r, v, fence FROM leaves"""

Row = collections.namedtuple("Row", "table id r v fence")


class Clerk:
    """A session, the rows as it sees them, and the model."""

    def __init__(self, db, chance, seen):
        self._db, self._chance, self._seen = db, chance, seen
        self._numbers = iter(range(10_000))
        self._in_use = set()

    def run(self, length):
        for _ in range(length):
            self._db.execute("BEGIN")
            self._in_use = set()
            for _ in range(self._chance.randrange(1, 5)):
                self._step()
            self._db.execute(self._chance.choice(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK"]))

    def _step(self):
        self._db.execute("SAVEPOINT s")
        if self._chance.random() < 0.4:
            fence = self._fence()
            if fence:
                self._db.execute("SELECT fence_use(%s)", (fence,))
                self._in_use.add(fence)
        kind = self._chance.choice(list(STATEMENTS))
        statement, target = STATEMENTS[kind](self)
        sly = self._plain()[0] if self._chance.random() < 0.7 else ""
        before = self._rows()
        try:
            self._db.execute("SELECT set_config('sly.write', %s, true)", (sly,))
            self._db.execute("SAVEPOINT t")
            self._db.execute(statement)
            self._seen[kind, "passes"] += 1
        except psycopg.Error as error:
            self._seen[kind, error.sqlstate] += 1
            self._db.execute("ROLLBACK TO t")
        after = self._rows()
        wrong = self._wrong(before, after, target)
        assert not wrong, f"{wrong}: {statement}; meanwhile: {sly}; in use: {self._in_use}"
        if self._chance.random() < 0.2:
            self._db.execute("ROLLBACK TO s")
            # What was used since the savepoint is no longer: asked for again, so that the model knows.
            for fence in self._in_use:
                self._db.execute("SELECT fence_use(%s)", (fence,))

    def _wrong(self, before, after, target):
        """The model: what became of each row, and by which right."""
        for number in before.keys() | after.keys():
            old, new = before.get(number), after.get(number)
            if old == new or self._plain_allows(old, new):
                continue
            if not (target and target(old, new)):
                return number, old, new
        return None

    def _plain_allows(self, old, new):
        if old is None:
            return new.fence == 0 or new.fence in self._in_use
        return old.fence in self._in_use and (new is None or new.fence == old.fence)

    def _rows(self):
        return {number: Row(*rest) for number, *rest in self._db.execute(ROWS)}

    # --- what is run: the statement, and what it may do to a row beside plain SQL

    def _fence(self):
        return self._chance.choice([0, 1, 2, 2, 3, 4, 5])

    def _table(self):
        return self._chance.choice(["plain", "parts", "leaves"])

    def _where(self):
        return self._chance.choice([f"id = {self._id()}", f"id = {self._id()}", f"fence = {self._fence()}", f"id IN ({self._id()}, {self._id()})"])

    def _id(self):
        return self._chance.randrange(5)

    def _set(self, table):
        sets = [f"v = {self._value()}"]
        if self._chance.random() < 0.4:
            sets.append(f"fence = {self._fence()}")
        if table != "plain" and self._chance.random() < 0.6:
            sets.append(self._chance.choice(["r = 1 - r", "r = 0", "r = 1"]))
        if self._chance.random() < 0.2:
            sets.append(f"id = {self._id()}")
        return ", ".join(self._chance.sample(sets, self._chance.randrange(1, len(sets) + 1)))

    def _value(self):
        return self._chance.choice([1, 2, 6, 13, 99])

    def _values(self, table, key=None):
        number, fence = next(self._numbers), self._chance.choice([0, 0, self._fence()])
        side = "" if table == "plain" else f"{self._chance.randrange(2)}, "
        return f"({self._id() if key is None else key}, {side}{self._value()}, {fence}, {number})"

    def _key(self, table):
        return "id" if table == "plain" else "id, r"

    def update(self):
        table = self._table()
        return f"UPDATE {table} SET {self._set(table)} WHERE {self._where()}", None

    def leaf(self):
        table = self._chance.choice(["parts0", "parts1", "leaves0", "leaves1"])
        return f"UPDATE {table} SET v = {self._value()}, fence = {self._fence()} WHERE {self._where()}", None

    def delete(self):
        return f"DELETE FROM {self._table()} WHERE {self._where()}", None

    def insert(self):
        table = self._table()
        return f"INSERT INTO {table} VALUES {self._values(table)}, {self._values(table)} ON CONFLICT DO NOTHING", None

    def upsert(self):
        table = self._table()
        change = f"v = {self._value()}" + self._chance.choice(["", f", fence = {self._fence()}"])
        return f"INSERT INTO {table} VALUES {self._values(table)} ON CONFLICT ({self._key(table)}) DO UPDATE SET {change}", None

    def merge(self):
        table = self._table()
        matched = self._chance.choice([f"UPDATE SET {self._set(table)}", "DELETE"])
        return (
            f"MERGE INTO {table} USING (VALUES ({self._id()}), (8)) s (n) ON {table}.id = s.n"
            f" WHEN MATCHED THEN {matched} WHEN NOT MATCHED THEN INSERT VALUES {self._values(table, 8)}"
        ), None

    def both(self):
        one, other = self._table(), self._table()
        first = self._chance.choice([f"UPDATE {one} SET {self._set(one)} WHERE {self._where()}", f"DELETE FROM {one} WHERE {self._where()}"])
        return f"WITH w AS ({first} RETURNING 1) INSERT INTO {other} VALUES {self._values(other)}", None

    def cascade(self):
        n = self._id()
        return self._chance.choice(
            [
                f"DELETE FROM heads WHERE id = {n}",
                f"UPDATE heads SET id = {n + 20} WHERE id = {n}",
                "UPDATE regions SET r = 1 - r",
                f"DELETE FROM regions WHERE r = {n % 2}",
                f"INSERT INTO refers SELECT id, r FROM leaves WHERE id = {n}",
            ]
        ), None

    def _plain(self):
        return getattr(self, self._chance.choice(["update", "leaf", "delete", "insert", "upsert", "merge", "both", "cascade"]))()

    def own(self):
        """A fenced call on a table of the clerk's own, whose constraints, policies and triggers write elsewhere."""
        n, fence = self._id(), self._fence()
        return self._chance.choice(
            [
                f"SELECT fence_reset('mine', {n}, {fence})",
                f"SELECT * FROM fenced_claim(NULL::mine, {n}, {fence or 1})",
                f"SELECT fenced_update('mine', {n}, {fence or 1}, '{{\"v\": 1}}')",
                f"SELECT fenced_write('mine', {n}, {fence or 1}, '{{\"v\": 2}}')",
                f"SELECT fenced_delete('mine', {n}, {fence or 1})",
                f"SELECT * FROM fenced_claim_or_insert(NULL::mine, {n}, {fence or 1}, '{{\"v\": 0}}')",
                f"SELECT fenced_upsert('mine', {n}, {fence or 1}, '{{\"v\": 2}}')",
                f"UPDATE mine SET v = v WHERE id = {n}",
                f"INSERT INTO mine VALUES ({n}, 0, {fence})",
            ]
        ), None

    def fenced(self):
        table, n, side, fence, value = self._table(), self._id(), self._chance.randrange(2), self._fence() or 1, self._value()
        key = f"{n}" if table == "plain" else f"ROW({n}, {side})"

        def is_target(old):
            return old is not None and (old.table, old.id) == (table, n) and (table == "plain" or old.r == side)

        def stamps(old, new):
            return is_target(old) and new is not None and new.fence == fence >= old.fence and new.id == old.id

        def updates(old, new):
            return is_target(old) and new is not None and new.fence == old.fence == fence and new.id == old.id

        def deletes(old, new):
            # A moving row that the owner's trigger swallows is gone as well.
            return is_target(old) and new is None and old.fence == fence

        def swallowed(old, new):
            return is_target(old) and new is None and old.fence <= fence

        def makes(old, new):
            if old is not None:
                return stamps(old, new)
            return (new.table, new.id, new.fence) == (table, n, fence) and (table == "plain" or new.r == side)

        calls = [("claim", stamps), ("json", stamps), ("update", updates), ("write", stamps), ("delete", deletes), ("insert", makes), ("upsert", makes)]
        name, allows = self._chance.choice(calls)
        call = {
            "claim": f"SELECT * FROM fenced_claim(NULL::{table}, {key}, {fence})",
            "json": f"SELECT fenced_claim_json('{table}', {key}, {fence})",
            "update": f"SELECT fenced_update('{table}', {key}, {fence}, '{{\"v\": {value}}}')",
            "write": f"SELECT fenced_write('{table}', {key}, {fence}, '{{\"v\": {value}}}')",
            "delete": f"SELECT fenced_delete('{table}', {key}, {fence})",
            "insert": f"SELECT * FROM fenced_claim_or_insert(NULL::{table}, {key}, {fence}, '{{\"v\": {value}}}')",
            "upsert": f"SELECT fenced_upsert('{table}', {key}, {fence}, '{{\"v\": {value}}}')",
        }[name]
        return call, lambda old, new: allows(old, new) or (name != "delete" and swallowed(old, new))


STATEMENTS = {
    name: getattr(Clerk, name)
    for name in ["update", "leaf", "delete", "insert", "upsert", "merge", "both", "cascade", "own", "fenced", "own", "fenced"]
}


def sequences(db, count):
    db.execute(TABLES)
    seen = collections.Counter()
    first = seed()
    try:
        for number in range(first, first + count):
            print(f"sequence SEED={number}")
            db.execute("RESET ROLE; SET session_replication_role = replica; DELETE FROM plain; DELETE FROM parts; DELETE FROM leaves; DELETE FROM refers")
            db.execute("DELETE FROM heads; INSERT INTO heads SELECT generate_series(0, 9); DELETE FROM regions; INSERT INTO regions VALUES (0), (1)")
            for table, side in [("plain", ""), ("parts", "n % 2, "), ("leaves", "n % 2, ")]:
                db.execute(f"INSERT INTO {table} SELECT n, {side} 0, n, {100_000 if side else 200_000} + n + ascii('{table}') * 10 FROM generate_series(0, 4) n")
            db.execute("SELECT setseed(0.5); RESET session_replication_role; SET ROLE clerk")
            Clerk(db, random.Random(number), seen).run(40)
    finally:
        db.execute("ROLLBACK; RESET ROLE; DROP OWNED BY clerk CASCADE; DROP ROLE clerk")
    return seen


def test_no_sequence_lowers_a_fence_or_changes_a_row_without_it(db):
    seen = sequences(db, 6)
    told = collections.Counter(outcome for (_, outcome), count in seen.items() for _ in range(count))
    assert told["passes"] > 50 and told["LF003"] > 50, seen


@pytest.mark.long
def test_no_sequence_of_many_lowers_a_fence(db):
    seen = sequences(db, 400)
    for kind in STATEMENTS:
        assert seen[kind, "passes"] > 0 and seen[kind, "LF003"] > 0, (kind, seen)
