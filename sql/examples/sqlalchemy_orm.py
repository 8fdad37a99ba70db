"""SQLAlchemy 2: save claimed rows of a protected table with unchanged models.

The table has the column `fence bigint NOT NULL DEFAULT 0` and was protected once with `SELECT fence_protect('invoices')`.
The models need not know the column. Give the session the fence of your lock:

    with Session(engine, info={"fence": fence}) as session:
        invoice = claim(session, Invoice, 1)
        if invoice is not None:                # None: a newer holder has claimed it
            invoice.status = "closed"
            session.commit()                   # LF001 when a newer holder has claimed it meanwhile: see is_stale()

A session without a fence writes no row of the table (LF003), and inserts new ones.
"""

from sqlalchemy import event, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session


@event.listens_for(Session, "after_begin")
def use_the_fence(session, transaction, connection):
    """A pass ends with its transaction, so each one of the session takes its own."""
    fence = session.info.get("fence")
    if fence is not None:
        connection.execute(text("SELECT fence_use(:fence)"), {"fence": fence})


def claim(session, model, key):
    """The row as an object, or None: stale. Commits, so that the claim is seen at once and nobody waits for it."""
    table = session.connection().dialect.identifier_preparer.format_table(model.__table__)
    claimed = text(f"SELECT * FROM fenced_claim(NULL::{table}, :key, :fence)")
    query = select(model).from_statement(claimed).execution_options(populate_existing=True)
    found = session.scalars(query, {"key": key, "fence": session.info["fence"]}).one_or_none()
    session.commit()
    return found


def is_stale(error):
    """Whether a newer holder has taken over: stop, and take the lock again."""
    return isinstance(error, DBAPIError) and error.orig.sqlstate == "LF001"
