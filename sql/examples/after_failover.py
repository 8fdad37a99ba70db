"""After a Redis failover, or a restore: are the new fences above all that the rows have seen?

They are without your doing while fences follow the clock and the clock of the new primary is right. Run this where they do
not (`fence-clock no`), or where a clock was wrong. It shows as holders that are granted the lock and are stale at once.

    last_issued = raise_fences(r, newest_fence(db))     # in a cluster, for each primary

Two workers may both believe that they hold a lock which the failover has lost. Nothing is to be done about that: the rows
refuse the older of them. RAISE goes up only, so it can be repeated, and at most an hour ahead of the clock.
"""

from psycopg import sql

# Every table with a column named fence, and every protected one.
COLUMNS = """
    SELECT a.attrelid::regclass::text, a.attname
    FROM pg_attribute a
    JOIN pg_class c ON c.oid = a.attrelid AND c.relkind IN ('r', 'p') AND NOT c.relispartition
    WHERE a.attname = 'fence' AND a.atttypid IN ('bigint'::regtype, 'integer'::regtype)
    UNION
    SELECT p.target::text, p.fence_column::text
    FROM fence_protected p
"""


def newest_fence(db, others=()):
    """The newest fence of all tables and guards; reads every row of each. `others`: (table, column) of another name."""
    newest = 0
    for table, column in [*db.execute(COLUMNS).fetchall(), *others]:
        query = sql.SQL("SELECT max({}) FROM {}").format(sql.Identifier(column), sql.SQL(table))  # quoted by the server
        newest = max(newest, db.execute(query).fetchone()[0] or 0)
    return newest


def raise_fences(r, newest):
    """From now on every fence is above `newest`; the last that was issued so far."""
    return r.execute_command("FENCELOCK.RAISE", newest) if newest else None
