"""Logical replication: what to publish, in which order to install, and what becomes of a subscriber without the extension.

Publisher and subscriber are databases of one server, so the slots are made by hand.
"""

import itertools
import re

import psycopg
import pytest

from harness import PostgresServer, eventually, places
from refusals import refused

README = (places.ROOT / "pg_fence" / "README.md").read_text().partition("\n## Logical replication\n")[2].partition("\n## ")[0]
GUARDS = "fence_internals.guards"
SETTINGS = {
    "wal_level": "logical",
    "max_replication_slots": "30",
    "max_wal_senders": "30",
    "max_worker_processes": "30",
    # How soon a worker that has failed is started again.
    "wal_retrieve_retry_interval": "100ms",
}
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(pg):
    chosen = {} if places.chosen_pg_config() else {"major": pg.major}
    server = PostgresServer(**chosen, settings=SETTINGS).start()
    yield server
    server.close()


class Pair:
    """A publisher and a subscriber, each a connection to a database with an empty table."""

    def __init__(self, server, *, publisher_has_extension=True, subscriber_has_extension=True):
        self._server, self._number = server, next(_numbers)
        self.publisher = self._made("publisher", publisher_has_extension)
        self.subscriber = self._made("subscriber", subscriber_has_extension)

    def _made(self, role, has_extension):
        name = f"{role}_{self._number}"
        self._server.psql(f"CREATE DATABASE {name}")
        connection = psycopg.connect(self._server.url(name), autocommit=True)
        connection.execute("CREATE TABLE counters (id int PRIMARY KEY, value int)")
        if has_extension:
            connection.execute("CREATE EXTENSION pg_fence")
        return connection

    def publish(self, what):
        self.publisher.execute(f"CREATE PUBLICATION app {what}")

    def subscribe(self, statement="CREATE SUBSCRIPTION app CONNECTION '...' PUBLICATION app"):
        slot = f"app_{self._number}"
        self.publisher.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        url = self._server.url(self.publisher.info.dbname)
        try:
            self.subscriber.execute(f"{statement.replace('...', url)} WITH (create_slot = false, slot_name = '{slot}')")
        except psycopg.Error:
            self.publisher.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
            raise
        self.is_copied()

    def refresh(self):
        """Takes up what was published since."""
        self.subscriber.execute("ALTER SUBSCRIPTION app REFRESH PUBLICATION")
        self.is_copied()

    def is_copied(self):
        states = "SELECT count(*), count(*) FILTER (WHERE srsubstate = 'r') FROM pg_subscription_rel"
        eventually(lambda: len(set(self.subscriber.execute(states).fetchone())), 1)

    def work(self, fence, row):
        """What a holder does: a guard, then a row."""
        with self.publisher.transaction():
            guard(self.publisher, "ledger", fence)
            self.publisher.execute("INSERT INTO counters VALUES (%s, %s)", (row, fence))

    def arrives(self, *rows):
        read = "SELECT id FROM counters ORDER BY id"
        eventually(lambda: [row for (row,) in self.subscriber.execute(read).fetchall()], list(rows))

    def stops(self):
        """The subscription fails, again and again."""
        failed = "SELECT apply_error_count > 1 FROM pg_stat_subscription_stats"
        eventually(lambda: self.subscriber.execute(failed).fetchone(), (True,))

    def guards(self):
        return dict(self.subscriber.execute(f"SELECT resource, fence FROM {GUARDS}").fetchall())

    def take_over(self):
        """The subscriber is its own master from now on."""
        self.subscriber.execute("ALTER SUBSCRIPTION app DISABLE; ALTER SUBSCRIPTION app SET (slot_name = NONE); DROP SUBSCRIPTION app")

    def close(self):
        if self.subscriber.execute("SELECT FROM pg_subscription WHERE subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())").fetchone():
            self.take_over()
        self.publisher.close()
        self.subscriber.close()


def guard(connection, resource, fence):
    """A guard is called inside of a transaction."""
    with connection.transaction():
        connection.execute("SELECT fenced_guard(%s, %s)", (resource, fence))


@pytest.fixture
def make_pair(server, closing):
    return lambda **kwargs: closing(Pair(server, **kwargs))


def steps():
    """The table of the README: where, and what to run there."""
    rows = re.findall(r"^\| \d \| (\w+).*? \| `(.*)` \|$", README, re.MULTILINE)
    assert [where for where, _ in rows] == ["subscriber", "publisher", "publisher", "subscriber"]
    return rows


def test_rows_that_a_call_inserts_arrive_with_their_fence_also_in_a_protected_table(make_pair):
    pair = make_pair()
    for side in (pair.publisher, pair.subscriber):
        side.execute("ALTER TABLE counters ADD fence bigint NOT NULL DEFAULT 0; SELECT fence_protect('counters')")
    pair.publish("FOR TABLE counters")
    pair.subscribe()
    pair.publisher.execute("SELECT * FROM fenced_claim_or_insert(NULL::counters, 1, 5, '{\"value\": 7}')")
    pair.publisher.execute("SELECT fenced_upsert('counters', 2, 6, '{\"value\": 8}'), fenced_upsert('counters', 1, 9, '{\"value\": 9}')")
    eventually(lambda: pair.subscriber.execute("SELECT * FROM counters ORDER BY id").fetchall(), [(1, 9, 9), (2, 8, 6)])
    pair.take_over()
    assert pair.subscriber.execute("SELECT fenced_upsert('counters', 1, 8, '{\"value\": 0}')").fetchone() == (False,)
    assert pair.subscriber.execute("SELECT * FROM fenced_claim_or_insert(NULL::counters, 2, 7, '{}')").fetchall() == [(2, 8, 7)]


def test_a_subscriber_that_was_made_as_the_readme_says_can_take_over(make_pair):
    pair = make_pair(publisher_has_extension=False, subscriber_has_extension=False)
    for where, statement in steps():
        if "CREATE SUBSCRIPTION" in statement:
            pair.work(6, 1)
            pair.subscribe(statement)
        else:
            getattr(pair, where).execute(statement)
    assert pair.guards() == {"ledger": 6}, "what was there before is copied"
    pair.work(6, 2)
    pair.work(8, 3)
    pair.arrives(1, 2, 3)
    assert pair.guards() == {"ledger": 8}, "a guard arrives together with what was written under it"
    guard(pair.publisher, "other", 3)
    pair.publisher.execute("SELECT fence_guard_forget(4)")
    pair.work(8, 4)
    pair.arrives(1, 2, 3, 4)
    assert pair.guards() == {"ledger": 8}
    pair.take_over()
    with refused("LF001"):
        guard(pair.subscriber, "ledger", 7)
    guard(pair.subscriber, "ledger", 9)


def test_without_its_guards_a_subscriber_lets_stale_holders_in(make_pair):
    """So they are published; but a subscriber that never takes over needs neither them nor the extension."""
    pair = make_pair(subscriber_has_extension=False)
    pair.publish("FOR TABLE counters")
    pair.subscribe()
    pair.work(8, 1)
    pair.arrives(1)
    pair.take_over()
    pair.subscriber.execute("CREATE EXTENSION pg_fence")
    guard(pair.subscriber, "ledger", 7)


def test_a_publication_for_all_tables_needs_the_extension_at_the_subscriber(make_pair):
    pair = make_pair(subscriber_has_extension=False)
    pair.publish("FOR ALL TABLES")
    with pytest.raises(psycopg.errors.InvalidSchemaName, match='schema "fence_internals" does not exist'):
        pair.subscribe()


def test_a_subscriber_without_the_extension_stops_at_the_first_guard_and_goes_on_once_it_has_it(server, make_pair):
    pair = make_pair(publisher_has_extension=False, subscriber_has_extension=False)
    pair.publish("FOR ALL TABLES")
    pair.subscribe()
    pair.publisher.execute("CREATE EXTENSION pg_fence; INSERT INTO counters VALUES (1)")
    pair.arrives(1)
    pair.work(6, 2)
    pair.stops()
    assert f'logical replication target relation "{GUARDS}" does not exist' in server.log()
    pair.arrives(1)
    pair.subscriber.execute("CREATE EXTENSION pg_fence")
    pair.arrives(1, 2)
    assert pair.guards() == {}, "guards are not applied before the refresh"
    pair.subscriber.execute("ALTER SUBSCRIPTION app REFRESH PUBLICATION")
    pair.is_copied()
    assert pair.guards() == {"ledger": 6}
    pair.work(7, 3)
    pair.arrives(1, 2, 3)
    assert pair.guards() == {"ledger": 7}


def test_a_guard_that_the_subscriber_made_first_stops_it_until_that_one_is_removed(make_pair):
    pair = make_pair()
    pair.publish("FOR ALL TABLES")
    pair.subscribe()
    guard(pair.publisher, "other", 3)
    pair.publisher.execute("INSERT INTO counters VALUES (1)")
    pair.arrives(1)
    guard(pair.subscriber, "ledger", 5)
    pair.work(6, 2)
    pair.stops()
    pair.arrives(1)
    (repair,) = re.findall(r"```sql\n(BEGIN;.*?)```", README, re.DOTALL)
    pair.subscriber.execute(repair)
    pair.arrives(1, 2)
    assert pair.guards() == {"ledger": 6, "other": 3}


def test_a_guard_that_the_subscriber_lacks_stays_away_although_it_changes(make_pair):
    """So fence_guard_forget() does not repair it."""
    pair = make_pair()
    pair.publish("FOR ALL TABLES")
    pair.subscribe()
    pair.work(5, 1)
    pair.arrives(1)
    pair.subscriber.execute("SELECT fence_guard_forget(9)")
    pair.work(6, 2)
    pair.arrives(1, 2)
    assert pair.guards() == {}


def test_only_a_superuser_publishes_the_guards(server, make_pair):
    """A trusted extension's objects belong to a superuser, whoever created it."""
    pair = make_pair(publisher_has_extension=False)
    role, database = f"owner_{pair.publisher.info.dbname}", pair.publisher.info.dbname
    pair.publisher.execute(f"CREATE ROLE {role} LOGIN; ALTER DATABASE {database} OWNER TO {role}; GRANT ALL ON SCHEMA public TO {role}")
    with psycopg.connect(server.url(database).replace("postgres@", f"{role}@"), autocommit=True) as owner:
        owner.execute("CREATE EXTENSION pg_fence")
        with refused("42501"):
            owner.execute(f"CREATE PUBLICATION app FOR TABLE {GUARDS}")
    pair.publish(f"FOR TABLE {GUARDS}")


ACCT = "CREATE TABLE acct (id int PRIMARY KEY, bal int NOT NULL DEFAULT 0, fence bigint NOT NULL DEFAULT 0)"
REMEMBER = "SELECT fence_protect('acct', deletes => 'remembered')"
DELETED = "SELECT id, fence FROM acct_deletions ORDER BY id"


@pytest.mark.parametrize("what", ["FOR ALL TABLES", "FOR TABLE acct"])
def test_a_subscription_from_before_gets_remembered_deletions_once_it_is_refreshed(make_pair, what):
    """As the manual says: the subscriber first, then the publisher, then the refresh."""
    pair = make_pair()
    for side in (pair.publisher, pair.subscriber):
        side.execute(ACCT)
    pair.publish(what)
    pair.subscribe()
    pair.subscriber.execute(REMEMBER)
    pair.publisher.execute(REMEMBER)
    delete = "INSERT INTO acct VALUES ({0}, 1); SELECT fenced_claim_json('acct', {0}, 42); SELECT fenced_delete('acct', {0}, 42)"
    pair.publisher.execute(delete.format(1))
    if what != "FOR ALL TABLES":
        pair.publisher.execute("ALTER PUBLICATION app ADD TABLE acct_deletions")
    pair.publisher.execute(delete.format(2))
    pair.refresh()
    pair.publisher.execute(delete.format(3))
    eventually(lambda: pair.subscriber.execute(DELETED).fetchall(), [(1, 42), (2, 42), (3, 42)])
    pair.take_over()
    with pytest.raises(psycopg.Error, check=lambda error: error.sqlstate == "LF001"), pair.subscriber.transaction():
        pair.subscriber.execute("SELECT fence_use(41)")
        pair.subscriber.execute("INSERT INTO acct VALUES (1, 5, 41)")
