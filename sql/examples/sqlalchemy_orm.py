"""SQLAlchemy 2: save claimed rows of a protected table with unchanged models.

The table has the column `fence bigint NOT NULL DEFAULT 0` and was protected once with `SELECT fence_protect('invoices')`.
The models need not know the column. Give the session the fence of your lock:

    with Session(engine, info={"fence": fence}) as session:
        invoice = claim(session, Invoice, 1)
        if invoice is not None:                # None: a newer holder has claimed it
            invoice.status = "closed"
            session.commit()                   # LF001 when a newer holder has claimed it meanwhile: see is_stale()

PostgreSQL was started or promoted since the claim: must_claim_again(), LF006. Roll back and claim again; if the row is as you
left it, go on.

A session without a fence writes no row of the table (LF003), and inserts new ones. So does session.merge() of a row that a
successor has deleted: it inserts it again, unless the table is protected with deletes => 'remembered' (LF001, too). Claim, and
change what claim() returned.

For psycopg 3, psycopg2, pg8000 and asyncpg; an AsyncSession calls `await session.run_sync(claim, Invoice, 1)`.
"""

from sqlalchemy import event, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.orm.exc import ObjectDeletedError, StaleDataError


@event.listens_for(Session, "after_begin")
def use_the_fence(session, transaction, connection):
    """A pass ends with its transaction, so each one of the session takes its own."""
    fence = session.info.get("fence")
    if fence is not None:
        connection.execute(text("SELECT fence_use(:fence)"), {"fence": fence})


def claim(session, model, key):
    """The row as an object, or None: stale. Commits, so that the claim is seen at once and nobody waits for it.

    A key of several columns is a JSON object of them, as text.
    """
    table = session.connection().dialect.identifier_preparer.format_table(model.__table__)
    claimed = text(f"SELECT * FROM fenced_claim(NULL::{table}, :key, :fence)")
    query = select(model).from_statement(claimed).execution_options(populate_existing=True)
    # As text, because asyncpg asks the server for the type of an untyped parameter, and gets text.
    found = session.scalars(query, {"key": str(key), "fence": session.info["fence"]}).one_or_none()
    session.commit()
    return found


def is_stale(error):
    """Whether a newer holder has taken over: stop, and take the lock again. Also when it has deleted the claimed row."""
    if isinstance(error, (StaleDataError, ObjectDeletedError)):
        return True
    return isinstance(error, DBAPIError) and sqlstate(error.orig) == "LF001"


def must_claim_again(error):
    """Whether the claim is from before a start or a promotion of PostgreSQL, which can have lost what was written after it."""
    return isinstance(error, DBAPIError) and sqlstate(error.orig) == "LF006"


def sqlstate(error):
    """The SQLSTATE of a driver's error; None: the error is not the server's."""
    if error.args and isinstance(error.args[0], dict):  # pg8000
        return error.args[0].get("C")
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)  # psycopg 3 and asyncpg, psycopg2
