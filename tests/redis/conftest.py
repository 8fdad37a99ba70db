"""Fixtures of the Redis tests: raw connections, on which several calls can be under way at once."""

import pytest

from harness.redis_calls import Lines


@pytest.fixture
def lines(r, redis_server):
    """Raw connections to the shared server, which is empty."""
    with Lines(redis_server.port) as lines:
        yield lines
        lines.drain()


@pytest.fixture
def start(make_redis, closing):
    """A factory of raw connections to servers of the test's own; takes make_redis' arguments."""
    return lambda *args, **kwargs: closing(Lines(make_redis(*args, **kwargs).port))
