"""The two lock servers as one: the Redis module and PostgreSQL, asked in the same words."""

import contextlib

import psycopg
import redis

from harness import locks


class Session:
    """A session of a lock server. Locks and owners are texts; what is left out of a call is left out there."""

    def acquire(self, lock, owner, ttl_ms=60_000, *, wait=None, retry=False, maxhold=None, delay=None):
        """The fence, or None."""
        raise NotImplementedError

    def extend(self, lock, owner, ttl_ms, fence=None):
        """The milliseconds left; 0 where the lease is lost."""
        raise NotImplementedError

    def release(self, lock, owner, fence=None):
        """Whether it was the caller's."""
        raise NotImplementedError

    def check(self, lock, fence):
        """Whether it is the live hold."""
        raise NotImplementedError

    def inspect(self, lock):
        """A `harness.locks.Lock` of texts, or None."""
        raise NotImplementedError

    def free(self, lock):
        """As an operator: whoever has it loses it."""
        raise NotImplementedError

    def raise_to(self, fence):
        """As an operator: no fence at or below. The last one."""
        raise NotImplementedError


class RefusedCall(Exception):
    """A call that the lock server refuses, with its text."""


class RedisSession(Session):
    def __init__(self, client):
        self._client = client

    def acquire(self, lock, owner, ttl_ms=60_000, *, wait=None, retry=False, maxhold=None, delay=None):
        named = (("WAIT", wait), ("MAXHOLD", maxhold), ("DELAY", delay))
        options = [word for name, value in named if value is not None for word in (name, value)]
        return self._call("ACQUIRE", lock, owner, ttl_ms, *options, *(["RETRY"] if retry else []))

    def extend(self, lock, owner, ttl_ms, fence=None):
        return self._call("EXTEND", lock, owner, ttl_ms, *self._fence(fence))

    def release(self, lock, owner, fence=None):
        return self._call("RELEASE", lock, owner, *self._fence(fence)) == 1

    def check(self, lock, fence):
        return self._call("CHECK", lock, fence) == 1

    def inspect(self, lock):
        found = locks.inspect(self._client, lock)
        return found and locks.Lock(**{**vars(found), "owner": found.owner.decode(), "state": found.state.decode()})

    def free(self, lock):
        return self._client.delete(lock) == 1

    def raise_to(self, fence):
        return self._call("RAISE", fence)

    def _call(self, command, *words):
        try:
            return self._client.execute_command(f"FENCELOCK.{command}", *words)
        except redis.ResponseError as error:
            raise RefusedCall(str(error).removeprefix("ERR ")) from error

    def _fence(self, fence):
        return () if fence is None else ("FENCE", fence)


class PostgresSession(Session):
    def __init__(self, connection):
        self._connection = connection

    def acquire(self, lock, owner, ttl_ms=60_000, *, wait=None, retry=False, maxhold=None, delay=None):
        return self._call("acquire", lock, owner, ttl_ms, wait, retry, maxhold, delay)

    def extend(self, lock, owner, ttl_ms, fence=None):
        return self._call("extend", lock, owner, ttl_ms, *([] if fence is None else [fence]))

    def release(self, lock, owner, fence=None):
        return self._call("release", lock, owner, *([] if fence is None else [fence]))

    def check(self, lock, fence):
        return self._call("check", lock, fence)

    def inspect(self, lock):
        cursor = self._connection.execute("SELECT * FROM fencelock_inspect(%s)", (lock,))
        row = dict(zip((column.name for column in cursor.description), cursor.fetchone(), strict=True))
        return None if row["state"] is None else locks.Lock(**row)

    def free(self, lock):
        return self._call("free", lock)

    def raise_to(self, fence):
        return self._call("raise", fence)

    def _call(self, function, *values):
        # Every number as a bigint, so that one that is too small or too large for another type is the function's to refuse.
        casts = ", ".join("%s::bigint" if isinstance(value, int) and not isinstance(value, bool) else "%s" for value in values)
        try:
            return self._connection.execute(f"SELECT fencelock_{function}({casts})", values).fetchone()[0]
        except psycopg.Error as error:
            raise RefusedCall(error.diag.message_primary) from error


class RedisServer:
    """The module. `session()` makes one; they are closed together."""

    name = "redis"

    def __init__(self, server, stack):
        self._server, self._stack = server, stack

    def session(self):
        return RedisSession(self._stack.enter_context(contextlib.closing(redis.Redis(port=self._server.port, **locks.NO_RETRY))))


class PostgresServer:
    """The extension, in a database of its own."""

    name = "postgres"

    def __init__(self, url, stack):
        self._url, self._stack = url, stack

    def session(self):
        return PostgresSession(self._stack.enter_context(psycopg.connect(self._url, autocommit=True)))

