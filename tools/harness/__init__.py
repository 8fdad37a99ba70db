"""Throw-away Redis and PostgreSQL servers for the tests, the demo and `make up`.

Standard library only, so that nothing has to be installed before a server can be started. Not a client: tests talk to
the servers with redis-py and psycopg, the demo with redis-cli and psql. Invariant: a server started here listens on
127.0.0.1 alone, keeps its files in its own temporary folder, and ends with the process that started it.
"""

from .postgres_server import PostgresServer
from .process import ServerFailed
from .redis_server import RedisServer
from .waiting import eventually

__all__ = ["PostgresServer", "RedisServer", "ServerFailed", "eventually"]
