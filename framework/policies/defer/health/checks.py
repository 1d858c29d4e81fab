"""What the indicators said last, in this process: each is asked by one thread at a time, and waited for so long and no longer."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol, cast

from framework.policies.defer.health.indicator import (
    HealthIndicator,
    HealthQuery,
    NotAvailable,
    Question,
    Rows,
    Signal,
    Unknown,
)
from framework.typeguards import short_repr
from framework.wire.error_text import error_class, error_message

_MAX_CACHED = 1_000
_MAX_MESSAGE = 300


class CheckEvents(Protocol):
    """What is told besides the signals."""

    def unknown(self, indicator: str, database: str, signal: Unknown, error: BaseException | None) -> None:
        """An indicator could not say how the database is."""

    def not_available(self, indicator: str, database: str, signal: NotAvailable) -> None:
        """An indicator has nothing to say of this database."""


class CheckedDatabase(Protocol):
    """A database that can be asked."""

    @property
    def query(self) -> HealthQuery:
        """How."""
        ...

    def close_idle(self, idle_s: float) -> None:
        """Nobody asks at present: after ``idle_s`` without a question it need not be at hand."""
        ...


class _CheckKey(NamedTuple):
    indicator: str
    database: str
    tables: tuple[str, ...]


class _CachedSignal(NamedTuple):
    signal: Signal
    valid_until: float


class _PendingCheck(NamedTuple):
    signal: "Future[Signal]"
    deadline: float


# Decision 115: health checks fail open.
class HealthChecker:
    """Asks ``indicators`` about ``databases``. An answer counts for ``cache_s``; one that takes longer than ``timeout_s`` is
    awaited by nobody, and counts when it comes.

    Its threads are daemons: they hold up no exit, whatever an indicator does.
    """

    def __init__(
        self,
        indicators: Mapping[str, HealthIndicator],
        databases: Mapping[str, CheckedDatabase],
        events: CheckEvents,
        *,
        cache_s: float,
        timeout_s: float,
        idle_s: float = 60.0,
    ) -> None:
        self._indicators = indicators
        self._databases = databases
        self._events = events
        self._cache_s = cache_s
        self._timeout_s = timeout_s
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._signals: dict[_CheckKey, _CachedSignal] = {}
        self._pending: dict[_CheckKey, _PendingCheck] = {}
        self._threads: dict[tuple[str, str], _CheckThread] = {}

    def signals(self, names: Sequence[str], database: str, tables: tuple[str, ...]) -> list[tuple[str, Signal]]:
        """Return what each indicator says of the tables, within ``timeout_s``; raises nothing. All are asked at once."""
        subjects = [_CheckKey(name, database, tables) for name in names]
        begun = [self._cached(subject) or self._start_check(subject) for subject in subjects]
        return [
            (subject.indicator, self._wait_for_signal(subject, one) if isinstance(one, _PendingCheck) else one.signal)
            for subject, one in zip(subjects, begun, strict=True)
        ]

    def _cached(self, key: _CheckKey) -> _CachedSignal | None:
        found = self._signals.get(key)
        return found if found is not None and time.monotonic() < found.valid_until else None

    def _start_check(self, key: _CheckKey) -> _PendingCheck | _CachedSignal:
        with self._lock:
            under_way = self._pending.get(key)
            if under_way is not None:
                return under_way
            known = self._cached(key)  # since we looked, another thread may have asked and heard
            if known is not None:
                return known
            place = (key.indicator, key.database)
            asker = self._threads.get(place)
            if asker is None:
                asker = self._threads[place] = _CheckThread(key, self._idle_s, self._databases.get(key.database))
            asked = self._pending[key] = _PendingCheck(Future(), time.monotonic() + self._timeout_s)
        asker.submit(lambda: self._run_check(key, asked.signal))
        return asked

    def _wait_for_signal(self, key: _CheckKey, check: _PendingCheck) -> Signal:
        try:
            return check.signal.result(max(0.0, check.deadline - time.monotonic()))
        except TimeoutError:
            signal = Unknown(f"it did not answer within {self._timeout_s:g} s")
        with self._lock:
            if self._pending.get(key) is not check:
                return check.signal.result()  # it has answered at the last moment
            self._store_signal(key, signal)
        self._events.unknown(key.indicator, key.database, signal, TimeoutError(signal.reason))
        return signal

    def _run_check(self, key: _CheckKey, result: "Future[Signal]") -> None:
        signal = self._evaluate(key)
        with self._lock:
            self._store_signal(key, signal)
            del self._pending[key]
            result.set_result(signal)

    def _evaluate(self, key: _CheckKey) -> Signal:
        name, database, tables = key
        try:
            question = Question(database, tables, self._timeout_s, self._query_of(database))
            found = cast("object", self._indicators[name].evaluate(question))
            signal = (
                found if isinstance(found, Signal) else Unknown(f"it returned {short_repr(found)}, which is no signal")
            )
            if isinstance(signal, Unknown):
                self._events.unknown(name, database, signal, None)
            elif isinstance(signal, NotAvailable):
                self._events.not_available(name, database, signal)
        except BaseException as error:  # noqa: BLE001 - an indicator is the application's own code, or a database's fault
            signal = Unknown(f"{error_class(error)}: {error_message(error, _MAX_MESSAGE)}")
            self._events.unknown(name, database, signal, error)
        return signal

    def _query_of(self, database: str) -> HealthQuery:
        def refuse(statement: str, parameters: Mapping[str, Any] | None = None) -> Rows:
            del statement, parameters
            raise LookupError(f"the setting databases has no {database}")

        found = self._databases.get(database)
        return found.query if found is not None else refuse

    def _store_signal(self, key: _CheckKey, signal: Signal) -> None:
        """Keep an answer; the lock is held."""
        now = time.monotonic()
        if len(self._signals) >= _MAX_CACHED:  # tables that a resolver names may be any
            self._signals = {one: answer for one, answer in self._signals.items() if answer.valid_until > now}
        if len(self._signals) >= _MAX_CACHED:
            self._signals = {}
        self._signals[key] = _CachedSignal(signal, now + self._cache_s)


class _CheckThread:
    """A thread that asks one indicator about one database, one question after the other."""

    def __init__(self, key: _CheckKey, idle_s: float, database: CheckedDatabase | None) -> None:
        self._tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._idle_s = idle_s
        self._database = database
        self.submit = self._tasks.put
        threading.Thread(target=self._run, name=f"health-{key.indicator}", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                question = self._tasks.get(timeout=self._idle_s)
            except Empty:
                if self._database is not None:
                    self._database.close_idle(self._idle_s)
                question = self._tasks.get()
            question()
