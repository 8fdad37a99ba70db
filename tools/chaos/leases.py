"""Leases granted by PostgreSQL, without Redis: the workers of the other kinds, judged by the same model of a lock.

`leases`: the server is killed and started again; what it has answered it keeps. Connections are cut, and replies dropped.
"""

from .world import World, now_us


class Leases(World):
    """See the module."""

    wakes = True

    def _start_redis(self, stack):
        self.replica, self.redis_proxies = None, {}

    def _task(self, name):
        return {**super()._task(name), "leases": True}

    def kill_postgres(self):
        """Leases are rows: committed ones are there afterwards, and end when they would have."""
        invoked_us = now_us()
        super().kill_postgres()
        self._note("restart", invoked_us)
