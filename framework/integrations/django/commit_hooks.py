"""Let pushes wait for the commits of Django's transactions, by ``transaction.on_commit``."""

from collections.abc import Sequence
from functools import partial

from django.db import connections, transaction

from framework.push.transactions import OnCommit


def open_transactions() -> Sequence[OnCommit]:
    """Return ``on_commit`` of each database of this thread with an open transaction. A rollback to a savepoint counts as one.

    In Django's manual transaction management (autocommit off, no ``atomic``) the returned function raises Django's
    TransactionManagementError, because Django calls no hooks there.
    """
    return [
        partial(transaction.on_commit, using=connection.alias)
        for connection in connections.all(initialized_only=True)
        if connection.in_atomic_block or (connection.connection is not None and not connection.autocommit)
    ]
