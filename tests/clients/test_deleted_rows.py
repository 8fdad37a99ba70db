"""A stale holder's ORM brings back a row that its successor has deleted; a table that remembers the deletion refuses it.

TypeORM and Hibernate, in programs of their own; SQLAlchemy and Django are in tests/recipes. One test for each whose runtime is on
this machine, all with CLIENTS=all (`make test-clients`).
"""

import os
import subprocess

import psycopg
import pytest

from clients import roster
from harness import places

EVERY = os.environ.get("CLIENTS") == "all"
ORMS = [orm for orm in roster.ORMS if EVERY or roster.there(orm.runtime)]
MAJORS = places.majors_under_test()[: None if EVERY else 1]
STALE, NEWER = 41, 42


@pytest.mark.parametrize("pg", MAJORS, ids=lambda major: f"pg{major or 'own'}", indirect=True)
@pytest.mark.parametrize("orm", ORMS, ids=lambda orm: orm.name)
@pytest.mark.parametrize("deletes, told, rows", [("plain", "saved", [(7, "late", 0)]), ("remembered", "LF001", [])])
def test_a_save_of_a_deleted_row_inserts_it_unless_its_deletion_is_remembered(dsn, orm, deletes, told, rows):
    if not roster.there(orm.runtime):
        pytest.fail(f"{orm.runtime.name} is missing: run `make test-clients`", pytrace=False)
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute("CREATE TABLE orders (id int PRIMARY KEY, status text, fence bigint NOT NULL DEFAULT 0); INSERT INTO orders VALUES (7, 'open')")
        db.execute("SELECT fence_protect('orders', deletes => %s)", (deletes,))
        db.execute("SELECT fenced_claim_json('orders', 7, %s)", (STALE,))
        command = [*map(str, orm.command), str(STALE)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, env={**os.environ, "DATABASE_URL": dsn}, text=True, **pipes) as program:
            loaded = program.stdout.readline()
            db.execute("SELECT fenced_claim_json('orders', 7, %s)", (NEWER,))
            assert db.execute("SELECT fenced_delete('orders', 7, %s)", (NEWER,)).fetchone() == (True,)
            said, errors = program.communicate("\n", timeout=240)
        assert (loaded, said, errors) == ("loaded\n", f"{told}\n", "")
        assert db.execute("SELECT * FROM orders").fetchall() == rows
