"""What PostgreSQL refuses: calls that must fail, and the errors that they fail with."""

import psycopg
import pytest


def refused(sqlstate):
    """A block in which a statement fails with this SQLSTATE."""
    return pytest.raises(psycopg.Error, check=lambda error: error.sqlstate == sqlstate)


def refusal(connection, statement, parameters=None):
    """The error of a statement that fails."""
    with pytest.raises(psycopg.Error) as caught:
        connection.execute(statement, parameters)
    return caught.value


def outcome(connection, statement, parameters=None):
    """The SQLSTATE of the refusal, or how many rows were written."""
    try:
        return connection.execute(statement, parameters).rowcount
    except psycopg.Error as error:
        return error.sqlstate
