"""A short run of each fuzzer of a live server; `make fuzz` runs them for longer.

What a run found is printed with what led to it. The same choices again: SEED=..., as it is printed.
"""

import pytest

from fuzz import redis_commands, redis_payloads, sql
from fuzz.campaign import chances
from seeds import seed


@pytest.mark.parametrize("settings", [1, 2])
def test_random_commands_leave_a_sound_redis(settings):
    chance = chances(seed(), settings)
    table = redis_commands.Table(settings)
    try:
        assert sum(table.play(chance) for _ in range(2)) > 500
    finally:
        table.close()


def test_a_redis_takes_no_harm_from_mutated_bytes():
    everything = redis_payloads.Everything()
    try:
        assert everything.play(chances(seed(), 0)) > 100
    finally:
        everything.close()


def test_random_sql_leaves_a_sound_postgres(pg):
    assert sql.play(pg, chances(seed(), 0)) > 100
