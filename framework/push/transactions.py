"""Make pushes inside of open database transactions wait for the commit.

An integration of a database library adds a source, which returns the open transactions of the calling thread or task.
"""

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

from framework.errors import PushInTransactionError
from framework.telemetry import logs
from framework.telemetry.logs import LogRateLimit
from framework.telemetry.sentry import LazyTracker, NoTracker
from framework.types import Jid, PushInTransaction

OnCommit: TypeAlias = Callable[[Callable[[], None]], None]
"""Keeps a function, and calls it once after the commit of one transaction. A rollback discards the function."""

OpenTransactions: TypeAlias = Callable[[], Sequence[OnCommit]]
"""Returns the open transactions of the calling thread or task."""

LOG_INTERVAL_S = 60.0
"""At most one warning per class in this time."""

sources: list[OpenTransactions] = []
"""The sources of this process. Without any, a push pays for one test of this list."""

_skips: ContextVar[bool] = ContextVar("framework_skips_transaction_check", default=False)


def add_source(source: OpenTransactions) -> None:
    """Ask ``source`` at every push from now on. A second call with the same source has no effect."""
    if source not in sources:
        sources.append(source)


@contextmanager
def skipping_transaction_check() -> Generator[None]:
    """Push at once within the block, even inside of an open transaction (GitLab's ``skipping_transaction_check``)."""
    token = _skips.set(True)
    try:
        yield
    finally:
        _skips.reset(token)


class TransactionCheck:
    """Decide what happens to a push inside of open transactions. Shared between threads."""

    def __init__(self, mode: PushInTransaction = "wait", tracker: LazyTracker | None = None) -> None:
        self._mode: PushInTransaction = mode
        self._tracker = tracker or LazyTracker(NoTracker)
        self._log_limit = LogRateLimit(LOG_INTERVAL_S)

    def transactions(self, wire_name: str) -> Sequence[OnCommit]:
        """Return the transactions for whose commits a push of this class must wait; empty if it is written now.

        Raises:
            PushInTransactionError: the mode is ``raise``, and a transaction is open. Nothing was written.
        """
        if self._mode == "now" or _skips.get():
            return ()
        found = [on_commit for source in sources for on_commit in source()]
        if not found or self._mode == "wait":
            return found
        if self._mode == "raise":
            raise PushInTransactionError(wire_name)
        self._log_limit.warning(
            wire_name,
            "a job was pushed inside of an open transaction, so it may run before the commit. Push it after the commit, or set "
            "push_in_transaction: wait",
            "push.in_transaction",
            **{"class": wire_name},
        )
        return ()

    def report_failure(self, wire_name: str, error: Exception, jids: Sequence[Jid] = ()) -> None:
        """Log and report jobs that were not written after the commit. The caller of the commit gets no error.

        An error would make a request fail whose data are stored, and a retry of the request would store them twice.
        """
        tags = {"class": wire_name}
        for jid in jids or ("",):
            logs.logger(jid=jid, **tags).error(
                "a job was not pushed after the commit of its transaction. Look at the error, and push the job again",
                event_name="push.failed_after_commit",
                error=error,
            )
        self._tracker.capture(error, tags, wire_name, on_failure="a failed push could not be reported")


def after_commits(transactions: Sequence[OnCommit], write: Callable[[], None]) -> None:
    """Call ``write`` once, after the last commit of ``transactions``; never if one of them is rolled back."""
    remaining = len(transactions)
    # Sessions of one task may commit in different threads.
    lock = threading.Lock()

    def committed() -> None:
        nonlocal remaining
        with lock:
            remaining -= 1
            if remaining:
                return
        write()

    for on_commit in transactions:
        on_commit(committed)
