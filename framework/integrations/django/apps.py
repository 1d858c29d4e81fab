"""Configure the app: load the jobs of all installed apps, and connect the framework with Django.

Pushes wait for the commits of transactions, connections are treated in a job as in a request, and errors of the framework's
configuration are system checks.
"""

import threading
from collections.abc import Callable, Collection, Generator, Sequence
from contextvars import ContextVar
from functools import partial, wraps
from types import TracebackType
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, register
from django.db import close_old_connections, connections, reset_queries
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import Atomic, get_connection
from django.utils.module_loading import autodiscover_modules

from framework import middleware
from framework.all_settings import load
from framework.command_line import use_manage_py
from framework.errors import ConfigurationError
from framework.push.transactions import OnCommit, add_source
from framework.route.router import checked_router

JOBS_MODULE = "jobs"
"""The module of an installed app that has its worker classes."""


class ApplicationWorkerConfig(AppConfig):
    """The app of background jobs. It opens no connection to Redis."""

    name = "framework.integrations.django"
    label = "application_worker"
    verbose_name = "Background jobs"

    def ready(self) -> None:
        """Import the module ``jobs`` of each installed app that has one. Errors of such a module reach the caller."""
        use_manage_py()
        middleware.server.prepend(CloseConnections)
        install()
        register(check_configuration)
        autodiscover_modules(JOBS_MODULE)


# Django gives each thread connections of its own. A coroutine has none: its queries run in a thread that waits for it
# (``thread_sensitive``), and its awaited pushes run in further threads. So each ``atomic`` block notes its transaction in the
# context, which asyncio and asgiref hand on to coroutines and to threads that work for them.
_KEY = "framework_transaction"
"""The attribute of a connection that has its open transaction."""


class NotedTransaction:
    """Represent the open transaction of one connection, for pushes in other threads."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection: BaseDatabaseWrapper | None = connection
        """``None`` from the begin of the commit or rollback on."""
        self._lock = threading.Lock()

    def on_commit(self, act: Callable[[], None]) -> None:
        """Call ``act`` after the commit; at once where the transaction has ended meanwhile."""
        # A task may outlive the block: a function that is added during the commit would never be called.
        with self._lock:
            if self.connection is not None:
                _on_commit(self.connection, act)
                return
        act()

    def end(self) -> None:
        """Accept no more pushes of other threads."""
        with self._lock:
            self.connection = None


_noted: ContextVar[tuple[NotedTransaction, ...]] = ContextVar("framework_django_transactions", default=())
"""The transactions whose ``atomic`` blocks were entered in this context, with some that have ended."""


def install() -> None:
    """Let pushes wait for the transactions of all connections. A second call has no effect."""
    add_source(open_transactions)
    if not hasattr(Atomic.__enter__, "__wrapped__"):
        # Django sends no signal at the begin of a transaction.
        setattr(Atomic, "__enter__", _noting(Atomic.__enter__))  # noqa: B010
        setattr(Atomic, "__exit__", _ending(Atomic.__exit__))  # noqa: B010


def open_transactions() -> Sequence[OnCommit]:
    """Return ``on_commit`` of each open transaction of this thread, and of the code for which this thread or task works.

    In Django's manual transaction management (autocommit off, no ``atomic``) the returned function raises Django's
    TransactionManagementError, because Django calls no hooks there.
    """
    own = [
        connection
        for connection in connections.all(initialized_only=True)
        if connection.in_atomic_block or (connection.connection is not None and not connection.autocommit)
    ]
    others = [one for one in _noted.get() if one.connection is not None and one.connection not in own]
    return [*(partial(_on_commit, connection) for connection in own), *(one.on_commit for one in others)]


def _on_commit(connection: BaseDatabaseWrapper, act: Callable[[], None]) -> None:
    """Call ``act`` after the commit. A rollback to an earlier savepoint discards it, also to one of ``transaction.savepoint``."""
    connection.on_commit(act)
    if connection.in_atomic_block:
        # The stubs of Django know no third member.
        hooks: list[Any] = connection.run_on_commit
        savepoints, *hook = hooks[-1]
        hooks[-1] = (_EarlierSavepoints(savepoints, connection.savepoint_state), *hook)


class _EarlierSavepoints(set[str]):
    """The savepoints of a connection up to now. Django counts them, and forgets a function that has the one of a rollback."""

    def __init__(self, open_blocks: Collection[str], count: int) -> None:
        super().__init__(open_blocks)
        self._count = count

    def __contains__(self, name: object) -> bool:
        _, _, number = str(name).rpartition("_x")
        return super().__contains__(name) or (number.isdecimal() and int(number) <= self._count)


def _noted_by(connection: BaseDatabaseWrapper) -> NotedTransaction | None:
    return getattr(connection, _KEY, None)


def _noting(enter: Callable[[Atomic], None]) -> Callable[[Atomic], None]:
    @wraps(enter)
    def noting(self: Atomic) -> None:
        enter(self)
        connection = get_connection(self.using)
        noted = _noted_by(connection)
        if noted is None or noted.connection is None:
            noted = NotedTransaction(connection)
            setattr(connection, _KEY, noted)
        found = _noted.get()
        if noted not in found:
            _noted.set((*(one for one in found if one.connection is not None), noted))

    return noting


_Exit = Callable[[Atomic, type[BaseException] | None, BaseException | None, TracebackType | None], None]


def _ending(leave: _Exit) -> _Exit:
    @wraps(leave)
    def ending(
        self: Atomic, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connection = get_connection(self.using)
        noted = _noted_by(connection)
        if noted is not None and len(connection.atomic_blocks) <= 1:
            noted.end()
        leave(self, kind, error, trace)

    return ending


def check_configuration(**_: Any) -> list[CheckMessage]:
    """Return an error for each problem of the configuration, and of the worker classes under it. Opens no socket."""
    try:
        checked_router(load())
    except ConfigurationError as error:
        return [Error(str(problem), id="application_worker.E001") for problem in error.problems]
    return []


class CloseConnections:
    """Close unusable and outdated connections (``CONN_MAX_AGE``) before and after each job. A server middleware.

    The calls that an ``async`` job makes through ``sync_to_async`` get a thread of their own, as in a request of Django's ASGI
    handler. So concurrent jobs share no connection, and its connections are closed at the end of the job.
    """

    def call(self, worker: Any, job: dict[str, Any], queue: str) -> Generator[None]:
        """Close connections, run the job, and close connections."""
        del job, queue
        # An inline job runs in the middle of its caller, for example between the rows of a server-side cursor.
        if worker._aw_run is None:
            yield
            return
        reset_queries()
        close_old_connections()
        own_thread = ThreadSensitiveContext()
        # The job has a context of its own, so nothing must be reset.
        SyncToAsync.thread_sensitive_context.set(own_thread)
        try:
            yield
        finally:
            executor = SyncToAsync.context_to_thread_executor.pop(own_thread, None)
            if executor is not None:
                executor.submit(connections.close_all)
                # Without a wait: a call of a cancelled job may still run in that thread.
                executor.shutdown(wait=False)
            close_old_connections()
