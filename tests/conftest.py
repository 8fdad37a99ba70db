"""Fixtures: real servers, started by the tests themselves, and real clients.

`redis_server`, `r`, `make_redis` for Redis; `pg`, `dsn`, `db`, `connect`, `make_pg` for PostgreSQL; `eventually` for
waiting. The folders have some of their own. Every test that asks for `pg` or anything built on it runs on each PostgreSQL major.

`make test` runs several workers, each with servers of its own; a test that bounds time is marked `timing`.
"""

import contextlib
import itertools

import psycopg
import pytest
import redis

import harness
from chaos.kinds import KINDS, unable
from clients import roster
from harness import PostgresServer, RedisServer, places

# What every fresh database is copied from: making one takes some 30 ms, CREATE EXTENSION in each would take more.
TEMPLATE = "fence_template"
_numbers = itertools.count(1)


@pytest.fixture
def closing():
    """Passes on what a test made, and closes it after the test, the last first."""
    with contextlib.ExitStack() as stack:
        yield lambda made: stack.enter_context(contextlib.closing(made))


@pytest.fixture(scope="session")
def redis_server():
    """The shared Redis server with the module. A test that changes its settings takes `make_redis` instead."""
    server = RedisServer().start()
    yield server
    server.close()


@pytest.fixture
def r(redis_server):
    """A redis-py client (RESP2, bytes) of the shared server, on an empty server."""
    with redis.Redis(port=redis_server.port, protocol=2, decode_responses=False) as client:
        client.flushall()
        yield client


@pytest.fixture
def make_redis(closing):
    """A factory of own servers, with RedisServer's arguments; started, and removed after the test."""
    return lambda *args, **kwargs: closing(RedisServer(*args, **kwargs)).start()


@pytest.fixture(scope="session", params=places.majors_under_test(), ids=lambda major: f"pg{major or 'own'}")
def pg(request):
    """The shared PostgreSQL server of one major."""
    server = PostgresServer(request.param).start()
    server.psql(f"CREATE DATABASE {TEMPLATE}")
    server.psql("CREATE EXTENSION pg_fence", TEMPLATE)
    yield server
    server.close()


@pytest.fixture
def dsn(pg):
    """The URL of a fresh database that has the extension."""
    name = f"test_{next(_numbers)}"
    with psycopg.connect(pg.url(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
        yield pg.url(name)
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def connect(dsn, closing):
    """A factory of psycopg connections to the fresh database (autocommit unless asked otherwise)."""

    def make(*, url=None, autocommit=True, **kwargs):
        return closing(psycopg.connect(url or dsn, autocommit=autocommit, **kwargs))

    return make


@pytest.fixture
def db(connect):
    """A psycopg connection to the fresh database, in autocommit."""
    return connect()


@pytest.fixture
def make_pg(pg, closing):
    """A factory of own PostgreSQL servers of the major under test, with PostgresServer's keyword arguments."""
    chosen = {} if places.chosen_pg_config() else {"major": pg.major}
    return lambda **kwargs: closing(PostgresServer(**chosen, **kwargs)).start()


@pytest.fixture(scope="session")
def eventually():
    """Polls a function until it gives the expected value; prints both sides when the time has passed."""
    return harness.eventually


# --- several workers (pytest-xdist)


# Their cases share one fixture, which takes many seconds and is made by every worker that runs one of them.
_ONE_WORKER = {"test_one_holder_one_reply_each_growing_fences_and_nothing_left"}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        """Each test to the next free worker, in order; all cases of a test in _ONE_WORKER to the same."""

        def _split_scope(self, nodeid):
            test = nodeid.partition("[")[0]
            return test if test.rpartition("::")[2] in _ONE_WORKER else nodeid

    config.option.loadscopereorder = False
    return Scheduling(config, log)


# --- what this machine or the chosen server cannot run is named, not passed over in silence


def pytest_terminal_summary(terminalreporter):
    reports = [report for kind in terminalreporter.stats.values() for report in kind]
    names_of_tests = [getattr(report, "nodeid", "") for report in reports]
    if any(name.startswith("clients/") for name in names_of_tests):
        for runtime, names in roster.absent().items():
            terminalreporter.write_line(f"NOT RUN: {', '.join(names)}: this machine lacks {runtime.name}")
    if any("test_one_order_explains_every_answer_of_a_long_run" in name for name in names_of_tests):
        for kind in filter(unable, KINDS):
            terminalreporter.write_line(f"NOT RUN: histories of the kind {kind}: {unable(kind)}")
