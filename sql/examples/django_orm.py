"""Django: save claimed rows of a protected table with unchanged models.

The table has the column `fence bigint NOT NULL DEFAULT 0` and was protected once with `SELECT fence_protect('invoices')`,
both in a migration (RunSQL). The models need not know the column.

    invoice = claim(Invoice, 1, fence)
    if invoice is not None:                    # None: a newer holder has claimed it
        invoice.status = "closed"
        with fenced(fence):                    # LF001 when a newer holder has claimed it meanwhile: see is_stale()
            invoice.save(force_update=True)

PostgreSQL was started or promoted since the claim: must_claim_again(), LF006. Claim again; if the row is as you left it, go on.

Outside of `fenced` no row of the table is written (LF003), and new ones can be created.

`force_update`: a plain save() of a row that a successor has deleted inserts it again, unless the table is protected with
deletes => 'remembered' (LF001, too). For Django on psycopg 3 and psycopg2.
"""

from contextlib import contextmanager

from django.core import exceptions
from django.db import DatabaseError, connections, router, transaction


def claim(model, key, fence):
    """The row as an instance, or None: stale. Not inside atomic(): others shall see the claim at once."""
    using = router.db_for_write(model)
    table = connections[using].ops.quote_name(model._meta.db_table)
    query = f"SELECT * FROM fenced_claim(NULL::{table}, %s, %s)"
    return next(iter(model.objects.using(using).raw(query, [key, fence])), None)


@contextmanager
def fenced(fence, using="default"):
    """A transaction in which save(), update() and delete() write the rows that carry this fence."""
    with transaction.atomic(using=using):
        with connections[using].cursor() as cursor:
            cursor.execute("SELECT fence_use(%s)", [fence])
        yield


def is_stale(error):
    """Whether a newer holder has taken over: stop, and take the lock again. Also when it has deleted the claimed row."""
    if not isinstance(error, DatabaseError):
        return False
    if error.__cause__ is None:  # Django's own: a forced update that found no row; from Django 6 on with a class of its own
        return type(error) is DatabaseError or isinstance(error, getattr(exceptions, "ObjectNotUpdated", ()))
    return sqlstate(error.__cause__) == "LF001"


def must_claim_again(error):
    """Whether the claim is from before a start or a promotion of PostgreSQL, which can have lost what was written after it."""
    return isinstance(error, DatabaseError) and sqlstate(error.__cause__) == "LF006"


def sqlstate(error):
    """The SQLSTATE of an error of psycopg 3 or psycopg2; None: it is not the server's."""
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
