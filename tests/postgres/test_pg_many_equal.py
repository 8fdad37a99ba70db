"""A call on many rows does what the calls on each row alone do, in the order of the key, row by row: random sequences of both."""

import json
import random

import psycopg
import pytest

from majors import others_in_long_runs
from seeds import seed

COLUMNS = {"v": lambda by: by.choice([None, by.randrange(100)]), "s": lambda by: by.choice([None, "", "x", "null"]), "a": lambda by: by.choice([None, [], [1, 2]])}
TABLE = "(id {key} PRIMARY KEY, fence bigint, v int{check}, s text, a int[])"
KEYS = {"int": lambda n: n, "text": lambda n: f"k{n}", "numeric": lambda n: n / 2}
KINDS = {
    "plain": "",
    "protected": "UPDATE {t} SET fence = 0 WHERE fence IS NULL; ALTER TABLE {t} ALTER fence SET NOT NULL; SELECT fence_protect('{t}')",
    "with owners": "ALTER TABLE {t} ADD fence_owner text; UPDATE {t} SET fence_owner = CASE fence WHEN 2 THEN 'A' WHEN 3 THEN 'B' END",
    "partitioned": "CREATE TABLE {t}_whole (LIKE {t} INCLUDING ALL) PARTITION BY HASH (id); CREATE TABLE {t}_0 PARTITION OF {t}_whole FOR VALUES WITH (MODULUS 2, REMAINDER 0); CREATE TABLE {t}_1 PARTITION OF {t}_whole FOR VALUES WITH (MODULUS 2, REMAINDER 1); INSERT INTO {t}_whole SELECT * FROM {t}; DROP TABLE {t}; ALTER TABLE {t}_whole RENAME TO {t}",
    "blocked in part": "CREATE TRIGGER b BEFORE UPDATE OR DELETE ON {t} FOR EACH ROW WHEN (OLD.s = 'x') EXECUTE FUNCTION skip()",
}
SQLSTATES = {"LF002": "unclaimed", "P0002": "missing", "LF004": "blocked", "LF006": "outlived", "LF007": "duplicate_fence"}


def patch(by):
    names = by.sample(sorted(COLUMNS), by.randint(1, len(COLUMNS)))
    return lambda: {name: COLUMNS[name](by) for name in names}


def stored(db, table):
    return db.execute(f"SELECT * FROM {table} ORDER BY id").fetchall()


def one_by_one(db, verb, keys, fences, patches, owner):
    """The verdicts of the single calls, in the order of the keys as they were given."""
    verdicts = {}
    for n in sorted(range(len(keys)), key=lambda n: keys[n]):
        arguments = [str(keys[n]), fences[n % len(fences)]]
        if patches is not None:
            arguments.append(json.dumps(patches[n] if isinstance(patches, list) else patches))
        marks = ", ".join(["%s::text", "%s::bigint", "%s::jsonb"][: len(arguments)]) + owner
        try:
            with db.transaction():
                done = db.execute(f"SELECT fenced_{verb}('alone', {marks})", arguments).fetchone()[0]
            verdicts[n] = "written" if done else "stale"
        except psycopg.Error as error:
            verdicts[n] = SQLSTATES.get(error.sqlstate, error.sqlstate)
    return [verdicts[n] for n in range(len(keys))]


@others_in_long_runs
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", KEYS)
def test_random_calls_on_many_rows_are_the_single_calls(db, kind, key):
    by = random.Random(seed())
    db.execute("CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    for table in ("many", "alone"):
        db.execute(f"CREATE TABLE {table} " + TABLE.format(key=key, check=""))
        with db.cursor() as cursor:
            cursor.executemany(f"INSERT INTO {table} (id, fence) VALUES (%s, %s)", [(KEYS[key](n), n % 4 or None) for n in range(30)])
        if KINDS[kind]:
            db.execute(KINDS[kind].format(t=table))
    seen = set()
    for _ in range(60):
        verb = by.choice(["update", "update", "write", "write", "delete"])
        keys = [KEYS[key](n) for n in by.sample(range(36), by.randint(1, 12))]
        fences = [by.randint(1, 6) for _ in keys] if by.random() < 0.6 else [by.randint(1, 6)]
        made = patch(by)
        patches = None if verb == "delete" else [made() for _ in keys] if by.random() < 0.5 else made()
        owner = by.choice(["", ", 'fence', 'A'", ", 'fence', 'B', 'fence_owner'"]) if kind == "with owners" else ""
        arguments = [json.dumps(keys), fences] + ([json.dumps(patches)] if patches is not None else [])
        marks = ", ".join(["%s::text", "%s::bigint[]", "%s::jsonb"][: len(arguments)]) + owner
        answer = db.execute(f"SELECT ordinal, verdict, stored_fence FROM fenced_{verb}_many('many', {marks})", arguments).fetchall()
        assert [row[0] for row in answer] == list(range(1, len(keys) + 1))
        verdicts = [row[1] for row in answer]
        assert verdicts == one_by_one(db, verb, keys, fences, patches, owner), (verb, keys, fences, patches, owner)
        assert stored(db, "many") == stored(db, "alone"), (verb, keys, fences, patches)
        fence_of = {row[0]: row[1] for row in stored(db, "many")}
        assert [row[2] for row in answer] == [fence_of.get(type(next(iter(fence_of)))(value)) if key != "text" else fence_of.get(value) for value in keys]
        seen.update(verdicts)
    assert {"written", "stale", "missing"} <= seen
