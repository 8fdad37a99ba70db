"""`fence_protect(..., replicated => 'newest')`: where logical replication applies an update, the row with the newer fence stays.

Two servers, each of which takes writes and applies those of the other.
"""

import random
import re
import threading

import psycopg
import pytest

from harness import PostgresServer, eventually, places
from refusals import refusal
import seeds

SETTINGS = {"wal_level": "logical", "wal_retrieve_retry_interval": "100ms"}
ROWS = 100
TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text, fence bigint NOT NULL DEFAULT 0)"
PARTS = "CREATE TABLE t (id int PRIMARY KEY, v text, fence bigint NOT NULL DEFAULT 0) PARTITION BY RANGE (id); CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (50); CREATE TABLE high PARTITION OF t FOR VALUES FROM (50) TO (1000)"
ALL = "SELECT id, v, fence FROM t ORDER BY id"
SHOWN = "SELECT target::text, replicated, open_by FROM fence_protected ORDER BY target::text"


@pytest.fixture(scope="module")
def servers(pg):
    chosen = {} if places.chosen_pg_config() else {"major": pg.major}
    pair = [PostgresServer(**chosen, settings=SETTINGS).start() for _ in range(2)]
    yield pair
    for server in pair:
        server.close()


class Side:
    """A database on one of the servers, a session on it, and its subscription to the other side."""

    def __init__(self, server, closing):
        server.psql("DROP DATABASE IF EXISTS app WITH (FORCE); CREATE DATABASE app")
        self.url = server.url("app")
        self.session = closing(psycopg.connect(self.url, autocommit=True))

    def make(self, table, replicated):
        self.session.execute(f"CREATE EXTENSION pg_fence; {table}; INSERT INTO t SELECT i, 'new' FROM generate_series(0, {ROWS - 1}) i")
        self.session.execute("SELECT fence_protect('t', replicated => %s)", (replicated,))
        # A partition's changes are those of the table that was published.
        self.session.execute("CREATE PUBLICATION app FOR TABLE t WITH (publish_via_partition_root)")

    def subscribe(self, other):
        """To what the other side writes itself: what it has applied does not come back."""
        origin = ", origin = none" if self.session.info.server_version >= 160000 else ""
        self.session.execute(f"CREATE SUBSCRIPTION app CONNECTION '{other.url}' PUBLICATION app WITH (copy_data = false{origin})")

    def pause(self):
        self.session.execute("ALTER SUBSCRIPTION app DISABLE")
        eventually(lambda: self.session.execute("SELECT count(*) FROM pg_stat_subscription WHERE pid IS NOT NULL").fetchone(), (0,))

    def go_on(self):
        self.session.execute("ALTER SUBSCRIPTION app ENABLE")

    def unsubscribe(self):
        self.session.execute("DROP SUBSCRIPTION IF EXISTS app")

    def write(self, session, row, fence, value):
        """As a holder does: claim, then update. Whether it was written."""
        if session.execute("SELECT fenced_claim_json('t', %s, %s)", (row, fence)).fetchone()[0] is None:
            return False
        return session.execute("SELECT fenced_update('t', %s, %s, jsonb_build_object('v', %s::text))", (row, fence, value)).fetchone()[0]

    def rows(self):
        return self.session.execute(ALL).fetchall()

    def has_applied(self, other):
        """All that the other side has written so far."""
        end = other.session.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
        behind = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'app' AND confirmed_flush_lsn < %s"
        other.session.execute("SELECT pg_switch_wal()")
        eventually(lambda: other.session.execute(behind, end).fetchone(), (0,))


@pytest.fixture
def sides(servers, closing):
    """A factory of both sides, with an equal table."""
    made = []

    def make(replicated, table=TABLE):
        made.extend(Side(server, closing) for server in servers)
        for side in made:
            side.make(table, replicated)
        return made

    yield make
    for side in made:
        side.unsubscribe()


def conflicts(here, there, seed):
    """Each row is written on both sides, under two fences; gives what the newer one wrote."""
    rng = random.Random(seed)
    newest = []
    for row in range(ROWS):
        fences = rng.sample(range(10, 1000), 2)
        for side, fence, name in zip((here, there), fences, ("here", "there")):
            assert side.write(side.session, row, fence, name)
        newest.append((row, "here" if fences[0] > fences[1] else "there", max(fences)))
    return newest


@pytest.mark.parametrize("table", [TABLE, PARTS], ids=["table", "partitioned"])
@pytest.mark.parametrize("turned", [False, True], ids=["there", "back"])
def test_a_hundred_conflicting_writes_leave_the_newer_fence_on_the_side_that_applies(sides, table, turned):
    here, there = sides("newest", table)[:: -1 if turned else 1]
    there.subscribe(here)
    there.pause()
    newest = conflicts(here, there, seeds.seed())
    there.go_on()
    there.has_applied(here)
    assert there.rows() == newest
    refused = sum(value == "there" for _, value, _ in newest)
    # The claim and the update of each older fence.
    counts = there.session.execute("SELECT sum(writes_stale)::int FROM pg_stat_fence").fetchone()[0]
    assert counts in (None, 2 * refused)


def test_both_sides_come_to_the_same_rows(sides):
    here, there = sides("newest")
    if here.session.info.server_version < 160000:
        return  # Without an origin, what is applied goes round in circles.
    for one, other in [(here, there), (there, here)]:
        one.subscribe(other)
    for side in (here, there):
        side.pause()
    newest = conflicts(here, there, seeds.seed())
    for side in (here, there):
        side.go_on()
    for one, other in [(here, there), (there, here)]:
        one.has_applied(other)
    assert here.rows() == newest
    assert there.rows() == newest


def test_both_sides_agree_after_writes_that_race_with_replication(sides):
    here, there = sides("newest")
    if here.session.info.server_version < 160000:
        return
    for one, other in [(here, there), (there, here)]:
        one.subscribe(other)
    seed, tried = seeds.seed(), []

    def work(side, parity):
        rng = random.Random(seed + parity)
        with psycopg.connect(side.url, autocommit=True) as session:
            for n in range(300):
                # Fences of one lock: no two sides have one in common.
                row, fence = rng.randrange(5), 2 * (n // 3 * 10 + rng.randrange(30)) + 10 + parity
                tried.append((row, fence, side.write(session, row, fence, f"{fence}")))

    threads = [threading.Thread(target=work, args=(side, parity)) for parity, side in enumerate((here, there))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in [(here, there), (there, here)]:
        one.has_applied(other)
    assert here.rows() == there.rows()
    for row, value, fence in here.rows()[:5]:
        of_row = [(tried_fence, written) for tried_row, tried_fence, written in tried if tried_row == row]
        assert fence == max(of_row)[0]
        assert value == str(fence) or (fence, True) not in of_row


def test_plain_replication_brings_the_older_fence_back(sides):
    """What the option is for, and what 'plain' sets the table back to."""
    here, there = sides("newest")
    there.session.execute("SELECT fence_protect('t', replicated => 'plain')")
    assert there.session.execute(SHOWN).fetchall() == [("t", "plain", [])]
    there.subscribe(here)
    there.pause()
    newest = conflicts(here, there, seeds.seed())
    there.go_on()
    there.has_applied(here)
    assert {value for _, value, _ in there.rows()} == {"here"}
    assert there.rows() != newest


# --- What the manual says that it does not do.


def test_a_row_that_moves_to_another_partition_is_not_compared(sides):
    parts = """CREATE TABLE t (id int, v text, fence bigint NOT NULL DEFAULT 0, r text DEFAULT 'a', PRIMARY KEY (r, id)) PARTITION BY LIST (r);
        CREATE TABLE pa PARTITION OF t FOR VALUES IN ('a'); CREATE TABLE pb PARTITION OF t FOR VALUES IN ('b')"""
    here, there = sides("newest", parts)
    there.subscribe(here)
    there.pause()
    for side, fence in ((here, 3), (there, 5)):
        side.session.execute("SELECT fenced_claim_json('t', ROW('a'::text, 1), %s)", (fence,))
    with here.session.transaction():
        here.session.execute("SELECT fence_use(3)")
        here.session.execute("UPDATE t SET r = 'b' WHERE id = 1")
    there.go_on()
    there.has_applied(here)
    assert there.session.execute("SELECT r, fence FROM t WHERE id = 1").fetchall() == [("b", 3)]


def test_a_long_value_that_did_not_change_can_stay_the_older_one(sides):
    here, there = sides("newest", f"{TABLE}; ALTER TABLE t ADD note text; ALTER TABLE t ALTER v SET STORAGE EXTERNAL")
    here.session.execute("SELECT fenced_write('t', 1, 2, jsonb_build_object('v', repeat('here', 2000)))")
    there.subscribe(here)
    there.pause()
    assert there.write(there.session, 1, 5, "there" * 2000)
    here.session.execute("SELECT fenced_write('t', 1, 9, '{\"note\": \"newest\"}')")
    there.go_on()
    there.has_applied(here)
    assert there.session.execute("SELECT left(v, 4), note, fence FROM t WHERE id = 1").fetchone() == ("ther", "newest", 9)


# --- The option.


@pytest.fixture
def t(db):
    db.execute(TABLE)
    return db


def kept(db, statement="UPDATE t SET v = 'applied', fence = %s WHERE id = 1", fence=4):
    """What an update with this fence leaves when it comes from replication, over fence 5."""
    with db.transaction(force_rollback=True):
        db.execute("SET LOCAL session_replication_role = replica; DELETE FROM t; INSERT INTO t VALUES (1, 'own', 5)")
        db.execute(statement, (fence,))
        return db.execute("SELECT v, fence FROM t").fetchone()


def test_an_older_fence_is_not_applied_and_an_equal_or_newer_one_is(t):
    t.execute("SELECT fence_protect('t', replicated => 'newest')")
    assert kept(t, fence=4) == ("own", 5)
    assert kept(t, fence=0) == ("own", 5)
    assert kept(t, fence=5) == ("applied", 5)
    assert kept(t, fence=6) == ("applied", 6)


def test_null_keeps_the_option_plain_takes_it_away_and_nothing_else_is_accepted(t):
    for arguments, replicated in [
        ("", "plain"),
        (", replicated => 'newest'", "newest"),
        ("", "newest"),
        (", replicated => NULL", "newest"),
        (", replicated => 'newest'", "newest"),
        (", replicated => 'plain'", "plain"),
        (", replicated => 'newest'", "newest"),
    ]:
        t.execute(f"SELECT fence_protect('t'{arguments})")
        assert (arguments, t.execute(SHOWN).fetchall()) == (arguments, [("t", replicated, [])])
        assert kept(t) == (("own", 5) if replicated == "newest" else ("applied", 4))
    refused = refusal(t, "SELECT fence_protect('t', replicated => 'oldest')")
    assert (refused.sqlstate, refused.diag.constraint_name) == ("0A000", "option_not_supported")
    assert refused.diag.message_hint == "Leave the argument out, or pass 'plain' or 'newest'."
    assert t.execute(SHOWN).fetchall() == [("t", "newest", [])]
    t.execute("SELECT fence_unprotect('t')")
    assert t.execute("SELECT count(*) FROM pg_trigger WHERE tgrelid = 't'::regclass").fetchone() == (0,)


def test_writes_of_the_own_side_do_not_meet_the_trigger(t):
    t.execute("INSERT INTO t VALUES (1, 'own', 5); SELECT fence_protect('t', replicated => 'newest')")
    assert t.execute("SELECT fence_reset('t', 1, 3)").fetchone() == (5,)
    assert t.execute("SELECT fence FROM t").fetchone() == (3,)


def test_another_fence_column_of_another_name_and_type(db):
    db.execute('CREATE TABLE t (id int PRIMARY KEY, v text, "lock\'s" int NOT NULL DEFAULT 0, fence bigint NOT NULL DEFAULT 0)')
    db.execute("SELECT fence_protect('t', replicated => 'newest')")
    db.execute("SELECT fence_protect('t', fence_column => 'lock''s')")
    assert db.execute(SHOWN).fetchall() == [("t", "newest", [])]
    with db.transaction(force_rollback=True):
        db.execute("SET LOCAL session_replication_role = replica; INSERT INTO t VALUES (1, 'own', 5, 5)")
        db.execute("UPDATE t SET v = 'applied', \"lock's\" = 4, fence = 9")
        assert db.execute("SELECT v FROM t").fetchone() == ("own",)
        db.execute("UPDATE t SET v = 'applied', \"lock's\" = 6, fence = 1")
        assert db.execute("SELECT v FROM t").fetchone() == ("applied",)


@pytest.mark.parametrize(
    "statement, shown",
    [
        ("ALTER TABLE t DISABLE TRIGGER fence_protect_replicated", "is disabled"),
        ("ALTER TABLE t ENABLE TRIGGER fence_protect_replicated", "is not as fence_protect() makes it"),
        ("ALTER TABLE t ENABLE ALWAYS TRIGGER fence_protect_replicated", "is not as fence_protect() makes it"),
        ("CREATE OR REPLACE TRIGGER fence_protect_replicated BEFORE UPDATE ON t FOR EACH ROW WHEN (NEW.fence > OLD.fence) EXECUTE FUNCTION fence_internals.keep_newer(); ALTER TABLE t ENABLE REPLICA TRIGGER fence_protect_replicated", "is not as fence_protect() makes it"),
        ("CREATE OR REPLACE TRIGGER fence_protect_replicated BEFORE UPDATE OF v ON t FOR EACH ROW WHEN (NEW.fence < OLD.fence) EXECUTE FUNCTION fence_internals.keep_newer(); ALTER TABLE t ENABLE REPLICA TRIGGER fence_protect_replicated", "is not as fence_protect() makes it"),
        ("ALTER TRIGGER fence_protect_replicated ON t RENAME TO other", None),
    ],
)
def test_a_trigger_that_was_altered_shows_and_is_made_again(t, statement, shown):
    t.execute("SELECT fence_protect('t', replicated => 'newest')")
    t.execute(statement)
    assert t.execute(SHOWN).fetchall() == [("t", "newest", [f"replicated UPDATE: trigger fence_protect_replicated {shown}"] if shown else [])]
    t.execute("SELECT fence_protect('t')")
    assert t.execute(SHOWN).fetchall() == [("t", "newest", [])]
    assert kept(t) == ("own", 5)
    assert t.execute("SELECT count(*) FROM pg_trigger WHERE tgrelid = 't'::regclass").fetchone() == (5,)


def test_partitions_and_children_have_it_too(db):
    db.execute(f"{PARTS}; SELECT fence_protect('t', replicated => 'newest')")
    later = "CREATE TABLE later PARTITION OF t FOR VALUES FROM (1000) TO (2000)"
    db.execute(f"{later}; CREATE TABLE parent (LIKE low INCLUDING ALL); CREATE TABLE child () INHERITS (parent)")
    db.execute("ALTER TABLE child ADD PRIMARY KEY (id); SELECT fence_protect('parent', replicated => 'newest')")
    shown = {table: replicated for table, replicated, _ in db.execute(SHOWN).fetchall()}
    assert shown == dict.fromkeys(["t", "low", "high", "later", "parent", "child"], "newest")
    with db.transaction(force_rollback=True):
        db.execute("SET LOCAL session_replication_role = replica")
        for table, row in [("t", 1), ("t", 60), ("later", 1500), ("parent", 1), ("child", 2)]:
            db.execute(f"INSERT INTO {table} VALUES ({row}, 'own', 5); UPDATE {table} SET v = 'applied', fence = 4 WHERE id = {row}")
            assert db.execute(f"SELECT v FROM {table} WHERE id = {row}").fetchone() == ("own",)
    db.execute("SELECT fence_protect('t', replicated => 'plain'), fence_unprotect('parent')")
    shown = {table: replicated for table, replicated, _ in db.execute(SHOWN).fetchall()}
    assert shown == dict.fromkeys(["t", "low", "high", "later"], "plain")


def test_the_function_of_the_trigger_is_called_as_nothing_else(db):
    assert re.match("0A000|39P01", refusal(db, "SELECT fence_internals.keep_newer()").sqlstate)
