"""The majors of PostgreSQL that a test with very many cases runs on: the first one, and the others with the long tests."""

import pytest

from harness import places

_FIRST, *_OTHERS = places.majors_under_test()
others_in_long_runs = pytest.mark.parametrize(
    "pg",
    [_FIRST, *(pytest.param(major, marks=pytest.mark.long) for major in _OTHERS)],
    ids=lambda major: f"pg{major or 'own'}",
    indirect=True,
)
