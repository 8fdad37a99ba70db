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
def start(make_redis):
    """A factory of raw connections to servers of the test's own; takes make_redis' arguments."""
    opened = []

    def make(*args, **kwargs):
        opened.append(Lines(make_redis(*args, **kwargs).port))
        return opened[-1]

    yield make
    for lines in opened:
        lines.__exit__()
