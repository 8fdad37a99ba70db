"""Fixtures of the PostgreSQL tests: servers of a test's own."""

import pytest

from harness import PostgresServer, places


@pytest.fixture
def make_pg(pg):
    """A factory of own PostgreSQL servers of the major under test, with PostgresServer's keyword arguments."""
    servers = []

    def make(**kwargs):
        chosen = {} if places.chosen_pg_config() else {"major": pg.major}
        server = PostgresServer(**chosen, **kwargs)
        servers.append(server)
        return server.start()

    yield make
    for server in servers:
        server.close()
