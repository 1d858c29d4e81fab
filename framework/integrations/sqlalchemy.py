"""Let pushes wait for the commits of SQLAlchemy's sessions, and close the sessions of each job.

    from framework.integrations.sqlalchemy import install

    Session = scoped_session(sessionmaker(engine))
    install(Session)

All sessions of the process are watched, also those of ``AsyncSession``. A transaction on a connection of Core is not: SQLAlchemy
tells nothing after its commit.
"""

import asyncio
import re
from collections.abc import Callable, Generator, Sequence
from contextvars import ContextVar
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import ref

from sqlalchemy import TextClause, event
from sqlalchemy.orm import ORMExecuteState, Session, SessionTransaction, scoped_session
from sqlalchemy.util.concurrency import await_only, in_greenlet

from framework import middleware
from framework.declare.pushed import running_loop
from framework.integrations.scope import current_scope, scope
from framework.push.transactions import OnCommit, add_source
from framework.telemetry import logs

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session

Registry: TypeAlias = "scoped_session[Any] | async_scoped_session[Any]"

_of_async: Callable[[Session], "AsyncSession | None"] | None = None
"""Returns the ``AsyncSession`` of a session; ``None`` without greenlet, which asyncio support of SQLAlchemy needs."""
if find_spec("greenlet"):
    _of_async = import_module("sqlalchemy.ext.asyncio").async_session

_INFO_KEY, _FIRST_WRITES_KEY = "framework.transaction", "framework.first_statement_writes"
_WRITE = re.compile(r"\s*(?:insert|update|delete|merge|with)\b", re.IGNORECASE)


def install(*registries: Registry) -> None:
    """Watch all sessions, and after each job close its open sessions and remove those of ``registries``.

    Call it before the first push, in a module that the worker processes and the producers import. A second call replaces the
    registries.
    """
    middleware.server.prepend(CloseSessions, registries)
    add_source(open_transactions)
    for name, listener in _LISTENERS.items():
        if not event.contains(Session, name, listener):
            event.listen(Session, name, listener)


def _call_all(waiting: Sequence[Callable[[], None]]) -> None:
    """Call the functions: those of an ``AsyncSession`` in a thread, while the event loop goes on and the commit waits."""

    def call() -> None:
        for act in waiting:
            act()

    if waiting and _of_async is not None and running_loop() is not None and in_greenlet():
        await_only(asyncio.to_thread(call))
    else:
        call()


class _Level:
    """Hold the functions that wait for one transaction, or for one savepoint."""

    def __init__(self, transaction: SessionTransaction) -> None:
        # No reference: it would keep a session alive that the application has dropped.
        self.transaction_id = id(transaction)
        self.waiting: list[Callable[[], None]] = []
        self.committed = self.rolled_back = False


class WatchedTransaction:
    """Represent the open transaction of one session, with its savepoints."""

    def __init__(self, session: Session, root: SessionTransaction) -> None:
        self._session = ref(session)
        self.levels = [_Level(root)]
        self.wrote = False

    @property
    def session(self) -> Session | None:
        """Return the session while its transaction is open, else ``None``."""
        return self._session() if self.levels else None

    def on_commit(self, act: Callable[[], None]) -> None:
        """Call ``act`` after the commit. A rollback, also of the present savepoint, discards it."""
        session = self.session
        if session is not None and (session.new or session.dirty or session.deleted):
            self.wrote = True
        self.levels[-1].waiting.append(act)

    def end(self, level: _Level) -> None:
        self.levels.pop()
        if self.levels:
            if level.committed:
                self.levels[-1].waiting += level.waiting
            return
        # A session that only read is usually closed without a commit: there was nothing to commit.
        if level.committed or not (level.rolled_back or self.wrote):
            _call_all(level.waiting)
        elif level.waiting and not level.rolled_back:
            logs.logger().info(
                "a session was closed without a commit after it had changed rows: the jobs that waited for the commit are discarded",
                event_name="push.discarded",
                count=len(level.waiting),
            )


_open: ContextVar[tuple[WatchedTransaction, ...]] = ContextVar("framework_open_transactions", default=())
"""The transactions that were used in this context, where it belongs to no request or job."""


def open_transactions() -> Sequence[OnCommit]:
    """Return ``on_commit`` of each open transaction of this thread, task, request or job."""
    return [one.on_commit for one in _transactions_here() if one.session is not None]


def _transactions_here() -> Sequence[WatchedTransaction]:
    shared = current_scope()
    if shared is None:
        return _open.get()
    return [one for one in list(shared) if isinstance(one, WatchedTransaction)]


def _watched(session: Session) -> WatchedTransaction | None:
    return session.info.get(_INFO_KEY)


def _used_here(session: Session) -> None:
    """Note that this thread or task uses the open transaction of a session, which another one may have begun."""
    found = _watched(session)
    if found is None or found in _transactions_here():
        return
    shared = current_scope()
    if shared is None:
        _open.set((*(one for one in _open.get() if one.session is not None), found))
    else:
        shared.append(found)


def _created(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None:
        session.info[_INFO_KEY] = watched = WatchedTransaction(session, transaction)
        watched.wrote = session.info.pop(_FIRST_WRITES_KEY, False)
    elif transaction.nested and (found := _watched(session)) is not None:
        found.levels.append(_Level(transaction))
    _used_here(session)


def _committed(session: Session) -> None:
    found = _watched(session)
    if found is not None:
        found.levels[-1].committed = True


def _rolled_back(session: Session) -> None:
    found = _watched(session)
    if found is not None:
        found.levels[-1].rolled_back = True


def _ended(session: Session, transaction: SessionTransaction) -> None:
    found = _watched(session)
    # A flush has a transaction of its own within that of the session, which is no level.
    if found is None or found.levels[-1].transaction_id != id(transaction):
        return
    if len(found.levels) == 1:
        del session.info[_INFO_KEY]
        shared = current_scope()
        if shared is not None and found in shared:
            shared.remove(found)
    found.end(found.levels[-1])


def _wrote(session: Session, *_: Any) -> None:
    _used_here(session)
    found = _watched(session)
    if found is not None:
        found.wrote = True


def _executed(state: ORMExecuteState) -> None:
    session, statement = state.session, state.statement
    text = isinstance(statement, TextClause) and _WRITE.match(statement.text) is not None
    writes = text or state.is_insert or state.is_update or state.is_delete
    if not session.in_transaction():
        # This event comes before the start of the transaction.
        session.info[_FIRST_WRITES_KEY] = writes
    elif writes:
        _wrote(session)
    else:
        _used_here(session)


_LISTENERS: dict[str, Callable[..., None]] = {
    "after_transaction_create": _created,
    "after_commit": _committed,
    "after_rollback": _rolled_back,
    "after_transaction_end": _ended,
    "after_flush": _wrote,
    "transient_to_pending": _wrote,
    "do_orm_execute": _executed,
}


class CloseSessions:
    """Close the sessions that a job leaves open, so that their connections return to the pool. A server middleware."""

    def __init__(self, registries: Sequence[Registry] = ()) -> None:
        self._registries = registries

    def call(self, worker: Any, job: dict[str, Any], queue: str) -> Generator[None]:
        """Run the job as a scope of its own, then close and remove its sessions."""
        del job, queue
        # An inline job uses the sessions and the transaction of its caller.
        if worker._aw_run is None:
            yield
            return
        with scope() as objects:
            try:
                yield
            finally:
                for registry in self._registries:
                    _remove(registry)
                for one in list(objects):
                    session = one.session if isinstance(one, WatchedTransaction) else None
                    if session is not None:
                        _close(session)


def _remove(registry: Registry) -> None:
    if isinstance(registry, scoped_session):
        # The thread of the event loop runs many async jobs: its session does not belong to one of them.
        if running_loop() is None:
            registry.remove()
    elif running_loop() is not None and registry.registry.has():
        session: AsyncSession = registry.registry()
        registry.registry.clear()
        _close_soon(session)


def _close(session: Session) -> None:
    of_async = None if _of_async is None else _of_async(session)
    if of_async is not None and running_loop() is not None:
        _close_soon(of_async)
        return
    try:
        session.close()
    except Exception:  # noqa: BLE001 - a broken connection must not fail a job that has ended
        session.invalidate()


_closing: set[asyncio.Task[None]] = set()
"""The tasks that close sessions: asyncio itself keeps only weak references to tasks."""


def _close_soon(session: "AsyncSession") -> None:
    """Close the session in a task: a middleware cannot await."""
    task = asyncio.get_running_loop().create_task(session.close())
    _closing.add(task)
    task.add_done_callback(_closing.discard)
