"""From a hand-made lock with a counter to Fencelock, while workers of both kinds run.

Made for this lock: `SET name token NX PX ttl`, then `INCR counter` for the fence, and rows that refuse a lower one
(`UPDATE ... WHERE fence <= ...`). moving_over.sql has the tables' side.

1. Deploy `locks_and_counter` in place of the old lock, worker by worker. It takes the old lock too, so that both kinds
   exclude each other, and raises the old counter to its own fence. Fences of both kinds then grow in one order, and the row
   refuses whoever was overtaken. Without that the old workers are refused for ever after the first claim of a new one.
2. When none of the old kind is left, use lease() alone and delete the counter.
"""

from contextlib import contextmanager

from from_redis_py_lock import both_locks

# A number that Lua holds exactly, as fences are below 2^53. The string is stored as it came.
RAISE = """
if tonumber(redis.call('GET', KEYS[1]) or 0) < tonumber(ARGV[1]) then
    redis.call('SET', KEYS[1], ARGV[1])
end
"""


@contextmanager
def locks_and_counter(r, name, counter, ttl_ms=10_000, wait_ms=4_000):
    """Hold the lock `name` of both kinds and give the fence. `counter` is the key that the old workers INCR."""
    with both_locks(r, name, ttl_ms, wait_ms) as fence:
        r.eval(RAISE, 1, counter, fence)  # before the first claim
        yield fence
