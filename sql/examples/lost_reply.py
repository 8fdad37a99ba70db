"""A reply that was lost: is the write in? An attempt has an id, which is stored by the transaction that writes.

    CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL DEFAULT 0, fence bigint NOT NULL DEFAULT 0);
    CREATE TABLE attempts (id uuid PRIMARY KEY, made_at timestamptz NOT NULL DEFAULT now());

    attempt = uuid.uuid4()                            # once for each deposit, and kept as long as it is tried
    with lease(r, "lock:account:7") as fence:
        done = deposit(connect, 7, fence, 100, attempt)

`false` after a lost reply does not mean that nothing was written: the first try can be in, and a newer holder can have
claimed since. Work that is done again then counts twice. With the id of the attempt the answer is certain: also for the next
holder, who tries the same attempt under a newer fence, and after a restart or a fail-over of PostgreSQL. Delete attempts that
nobody can repeat any more, such as those of last month.
"""

import psycopg

REMEMBER = "INSERT INTO attempts (id) VALUES (%s) ON CONFLICT DO NOTHING"
CLAIM = "SELECT balance FROM fenced_claim(NULL::accounts, %s, %s)"
UPDATE = "SELECT fenced_update('accounts', %s, %s, jsonb_build_object('balance', %s::int))"


def deposit(connect, account, fence, amount, attempt, tries=5):
    """Deposit the amount once. True: it is in. False: it is not, and a newer holder has claimed the account.

    `connect` gives a connection of psycopg in autocommit. Its error comes out when `tries` replies were lost: then it is not
    known, and another call with the same attempt finds out.
    """
    for left in reversed(range(tries)):
        try:
            with connect() as db:
                return _try(db, account, fence, amount, attempt)
        except psycopg.OperationalError:
            if not left:
                raise


def _try(db, account, fence, amount, attempt):
    with db.transaction() as transaction:
        # Waits for an earlier try that has not ended yet.
        if not db.execute(REMEMBER, (attempt,)).rowcount:
            return True
        claimed = db.execute(CLAIM, (account, fence)).fetchone()
        if claimed and db.execute(UPDATE, (account, fence, claimed[0] + amount)).fetchone()[0]:
            return True
        raise psycopg.Rollback(transaction)
    return False
