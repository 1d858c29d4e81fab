"""Push jobs safely around database transactions.

The integrations of Django and SQLAlchemy know the open transactions of a thread or task. Inside of one, a push waits for the
commit: ``perform_async`` returns the id of the job, the commit writes the job, and a rollback discards it. The setting
``push_in_transaction`` chooses otherwise.

    from framework.transactions import skipping_transaction_check

    with skipping_transaction_check():
        AuditWorker.perform_async(user.id)  # at once, also if the transaction is rolled back

Another database library has the same with ``add_source(open_transactions)``: a function without arguments that returns, for each
open transaction of the calling thread or task, a function that takes a callback and calls it after the commit.
"""

from framework.errors import PushInTransactionError
from framework.push.transactions import OnCommit, OpenTransactions, add_source, skipping_transaction_check

__all__ = ["OnCommit", "OpenTransactions", "PushInTransactionError", "add_source", "skipping_transaction_check"]
