"""Waiting for a server to reach a state: poll with a deadline, and show both sides when it passes."""

import time

# Short enough to add nothing noticeable to a test, long enough not to keep a core busy.
POLL_S = 0.005

# After so long a test says that something does not come. It does not measure how soon it comes: nothing takes that long on a
# machine that is as busy as can be. What has to come soon is measured by the tests marked `timing`, and by `make bench`.
HANG_S = 25.0


class _Truthy:
    """Stands for "anything true" as the expected value."""

    def __repr__(self):
        return "anything true"


TRUTHY = _Truthy()


def eventually(fn, expected=TRUTHY, *, within_s=HANG_S, retry_on=()):
    """Call `fn` until it returns `expected` (by default: anything true) and return what it returned.

    An AssertionError inside `fn` counts as "not yet", and so do the exceptions in `retry_on`. Raises AssertionError
    with the expected and the last seen value when `within_s` seconds have passed.
    """
    deadline = time.monotonic() + within_s
    while True:
        seen = _attempt(fn, (AssertionError, *retry_on))
        if not isinstance(seen, _Raised) and (seen if expected is TRUTHY else seen == expected):
            return seen
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {within_s} s\n  expected: {expected!r}\n  last saw: {seen!r}")
        time.sleep(POLL_S)


class _Raised:
    """An exception that counted as "not yet", kept for the message."""

    def __init__(self, error):
        self.error = error

    def __repr__(self):
        return f"raised {self.error!r}"


def _attempt(fn, not_yet):
    try:
        return fn()
    except not_yet as error:
        return _Raised(error)
