"""A fence that is issued twice: the lock server has lost its state, and its clock is behind. Where the guarantee ends, and how
owners mend it."""

import shutil

import psycopg
import pytest
import redis

from harness.frozen_clock import FrozenRedis
from harness.locks import NO_RETRY, acquire, release
from harness.waiting import eventually

LEASE_MS = 60_000

@pytest.fixture
def twice(tmp_path, closing):
    """One fence, which the server has granted to A and, without its state and no later by its clock, to B; and a client of it."""
    frozen = closing(FrozenRedis(tmp_path))
    server = frozen.server
    first = acquire(connected(server, closing), "k", "A", LEASE_MS)
    server.kill()
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "data").mkdir()
    server.start()
    client = connected(server, closing)
    assert acquire(client, "k", "B", LEASE_MS) == first
    return first, client


def connected(server, closing):
    client = closing(redis.Redis(port=server.port, protocol=2, **NO_RETRY))
    eventually(client.ping)
    return client


@pytest.fixture
def counter(db):
    db.execute("CREATE TABLE counters (id int PRIMARY KEY, value int NOT NULL, fence bigint NOT NULL DEFAULT 0, fence_owner text)")
    db.execute("INSERT INTO counters VALUES (1, 0)")
    return db


def claim(db, fence, *owner):
    more = ", 'fence', %s" if owner else ""
    return db.execute(f"SELECT value FROM fenced_claim(NULL::counters, 1, %s{more})", (fence, *owner)).fetchone()[0]


def write(db, value, fence, *owner):
    more = ", 'fence', %s" if owner else ""
    return db.execute(f"SELECT fenced_update('counters', 1, %s, jsonb_build_object('value', %s::int){more})", (fence, value, *owner)).fetchone()[0]


def refuse(db, call, fence):
    with pytest.raises(psycopg.Error, match="is another owner's") as caught:
        db.execute(call, (fence,))
    assert caught.value.sqlstate == "LF007"


def test_without_owners_both_holders_write_and_one_increment_is_lost(twice, counter):
    fence, _ = twice
    read_by_a = claim(counter, fence)
    read_by_b = claim(counter, fence)
    assert (read_by_a, read_by_b) == (0, 0)
    assert write(counter, read_by_a + 1, fence) and write(counter, read_by_b + 1, fence)
    assert counter.execute("SELECT value FROM counters").fetchone() == (1,), "two increments were acknowledged"


def test_with_owners_the_second_holder_is_refused_and_goes_on_with_a_new_fence(twice, counter):
    fence, client = twice
    read_by_a = claim(counter, fence, "A")
    for call in (
        "SELECT * FROM fenced_claim(NULL::counters, 1, %s, 'fence', 'B')",
        "SELECT fenced_update('counters', 1, %s, '{\"value\": 1}', 'fence', 'B')",
        "SELECT fenced_write('counters', 1, %s, '{\"value\": 1}', 'fence', 'B')",
        "SELECT fenced_delete('counters', 1, %s, 'fence', 'B')",
    ):
        refuse(counter, call, fence)
    assert write(counter, read_by_a + 1, fence, "A")
    # What the HINT says: raise the fences above the newest that is stored, and take the lock again.
    newest = counter.execute("SELECT max(fence) FROM counters").fetchone()[0]
    assert client.execute_command("FENCELOCK.RAISE", newest) >= newest
    assert release(client, "k", "B") == 1
    new = acquire(client, "k", "B2", LEASE_MS)
    assert new > fence
    assert write(counter, claim(counter, new, "B2") + 1, new, "B2")
    assert counter.execute("SELECT value FROM counters").fetchone() == (2,)
    assert write(counter, 9, fence, "A") is False


def test_a_guard_lets_both_in_unless_it_is_told_their_owners(twice, db):
    fence, _ = twice
    for _ in "AB":
        with db.transaction():
            db.execute("SELECT fenced_guard('plain', %s)", (fence,))
    with db.transaction():
        db.execute("SELECT fenced_guard('owned', %s, '', 'A')", (fence,))
    for call in ("SELECT fenced_guard('owned', %s, '', 'B')", "SELECT fenced_guard('owned', %s)"):
        db.execute("BEGIN")
        refuse(db, call, fence)
        db.execute("ROLLBACK")
    with db.transaction():
        db.execute("SELECT fenced_guard('owned', %s, '', 'A')", (fence,))
