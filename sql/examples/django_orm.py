"""Django: save claimed rows of a protected table with unchanged models.

The table has the column `fence bigint NOT NULL DEFAULT 0` and was protected once with `SELECT fence_protect('invoices')`,
both in a migration (RunSQL). The models need not know the column.

    invoice = claim(Invoice, 1, fence)
    if invoice is not None:                    # None: a newer holder has claimed it
        invoice.status = "closed"
        with fenced(fence):                    # LF001 when a newer holder has claimed it meanwhile: see is_stale()
            invoice.save()

Outside of `fenced` no row of the table is written (LF003), and new ones can be created.
"""

from contextlib import contextmanager

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
    """Whether a newer holder has taken over: stop, and take the lock again."""
    return isinstance(error, DatabaseError) and error.__cause__.sqlstate == "LF001"
