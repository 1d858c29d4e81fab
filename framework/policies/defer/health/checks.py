"""What the indicators said last, in this process: each is asked by one thread at a time, and waited for so long and no longer."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol, cast

from framework.policies.defer.health.indicator import (
    HealthIndicator,
    NotAvailable,
    Query,
    Question,
    Rows,
    Signal,
    Unknown,
)
from framework.settings.shapes import short_repr
from framework.wire.error_text import error_class, error_message

_MOST_ANSWERS = 1_000
_MESSAGE = 300


class CheckEvents(Protocol):
    """What is told besides the signals."""

    def unknown(self, indicator: str, database: str, signal: Unknown, error: BaseException | None) -> None:
        """An indicator could not say how the database is."""

    def not_available(self, indicator: str, database: str, signal: NotAvailable) -> None:
        """An indicator has nothing to say of this database."""


class Source(Protocol):
    """A database that can be asked."""

    @property
    def query(self) -> Query:
        """How."""
        ...

    def rest(self, idle_s: float) -> None:
        """Nobody asks at present: after ``idle_s`` without a question it need not be at hand."""
        ...


class _Subject(NamedTuple):
    indicator: str
    database: str
    tables: tuple[str, ...]


class _Answer(NamedTuple):
    signal: Signal
    until: float


class _Asked(NamedTuple):
    signal: "Future[Signal]"
    give_up_at: float


class Checks:
    """Asks ``indicators`` about ``databases``. An answer counts for ``cache_s``; one that takes longer than ``timeout_s`` is
    awaited by nobody, and counts when it comes.

    Its threads are daemons: they hold up no exit, whatever an indicator does.
    """

    def __init__(
        self,
        indicators: Mapping[str, HealthIndicator],
        databases: Mapping[str, Source],
        events: CheckEvents,
        *,
        cache_s: float,
        timeout_s: float,
        rest_s: float = 60.0,
    ) -> None:
        self._indicators = indicators
        self._databases = databases
        self._events = events
        self._cache_s = cache_s
        self._timeout_s = timeout_s
        self._rest_s = rest_s
        self._lock = threading.Lock()
        self._answers: dict[_Subject, _Answer] = {}
        self._asked: dict[_Subject, _Asked] = {}
        self._askers: dict[tuple[str, str], _Asker] = {}

    def signals(self, names: Sequence[str], database: str, tables: tuple[str, ...]) -> list[tuple[str, Signal]]:
        """Return what each indicator says of the tables, within ``timeout_s``; raises nothing. All are asked at once."""
        subjects = [_Subject(name, database, tables) for name in names]
        begun = [self._known(subject) or self._ask(subject) for subject in subjects]
        return [
            (subject.indicator, self._awaited(subject, one) if isinstance(one, _Asked) else one.signal)
            for subject, one in zip(subjects, begun, strict=True)
        ]

    def _known(self, subject: _Subject) -> _Answer | None:
        found = self._answers.get(subject)
        return found if found is not None and time.monotonic() < found.until else None

    def _ask(self, subject: _Subject) -> _Asked | _Answer:
        with self._lock:
            under_way = self._asked.get(subject)
            if under_way is not None:
                return under_way
            known = self._known(subject)  # since we looked, another thread may have asked and heard
            if known is not None:
                return known
            place = (subject.indicator, subject.database)
            asker = self._askers.get(place)
            if asker is None:
                asker = self._askers[place] = _Asker(subject, self._rest_s, self._databases.get(subject.database))
            asked = self._asked[subject] = _Asked(Future(), time.monotonic() + self._timeout_s)
        asker.put(lambda: self._find_out(subject, asked.signal))
        return asked

    def _awaited(self, subject: _Subject, asked: _Asked) -> Signal:
        try:
            return asked.signal.result(max(0.0, asked.give_up_at - time.monotonic()))
        except TimeoutError:
            signal = Unknown(f"it did not answer within {self._timeout_s:g} s")
        with self._lock:
            if self._asked.get(subject) is not asked:
                return asked.signal.result()  # it has answered at the last moment
            self._remember(subject, signal)
        self._events.unknown(subject.indicator, subject.database, signal, TimeoutError(signal.reason))
        return signal

    def _find_out(self, subject: _Subject, to_tell: "Future[Signal]") -> None:
        signal = self._evaluated(subject)
        with self._lock:
            self._remember(subject, signal)
            del self._asked[subject]
            to_tell.set_result(signal)

    def _evaluated(self, subject: _Subject) -> Signal:
        name, database, tables = subject
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
            signal = Unknown(f"{error_class(error)}: {error_message(error, _MESSAGE)}")
            self._events.unknown(name, database, signal, error)
        return signal

    def _query_of(self, database: str) -> Query:
        def refuse(statement: str, parameters: Mapping[str, Any] | None = None) -> Rows:
            del statement, parameters
            raise LookupError(f"the setting databases has no {database}")

        found = self._databases.get(database)
        return found.query if found is not None else refuse

    def _remember(self, subject: _Subject, signal: Signal) -> None:
        """Keep an answer; the lock is held."""
        now = time.monotonic()
        if len(self._answers) >= _MOST_ANSWERS:  # tables that a resolver names may be any
            self._answers = {one: answer for one, answer in self._answers.items() if answer.until > now}
        if len(self._answers) >= _MOST_ANSWERS:
            self._answers = {}
        self._answers[subject] = _Answer(signal, now + self._cache_s)


class _Asker:
    """A thread that asks one indicator about one database, one question after the other."""

    def __init__(self, subject: _Subject, rest_s: float, database: Source | None) -> None:
        self._questions: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._rest_s = rest_s
        self._database = database
        self.put = self._questions.put
        threading.Thread(target=self._work, name=f"health-{subject.indicator}", daemon=True).start()

    def _work(self) -> None:
        while True:
            try:
                question = self._questions.get(timeout=self._rest_s)
            except Empty:
                if self._database is not None:
                    self._database.rest(self._rest_s)
                question = self._questions.get()
            question()
