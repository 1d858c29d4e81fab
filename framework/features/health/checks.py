"""Run health checks in threads, one per indicator and database, cache their signals, and log what they find."""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, cast

from framework.declare.declaration import Declaration
from framework.errors import ConfigurationProblem
from framework.features.health.attributes import DeferOnHealth
from framework.features.health.indicator import (
    HealthIndicator,
    HealthQuery,
    NotAvailable,
    Question,
    Rows,
    Signal,
    Stop,
    Unknown,
    registered,
)
from framework.features.health.prometheus import HealthConnection
from framework.features.health.settings import POSTGRES_INDICATORS, HealthSettings
from framework.supervised_threads import SupervisedThread
from framework.telemetry import logs
from framework.telemetry.logs import LogRateLimit
from framework.telemetry.sentry import LazyTracker, Tracker
from framework.text import did_you_mean, error_class, error_message, join_names
from framework.typeguards import short_repr

_MAX_CACHED = 1_000
_MAX_MESSAGE = 300
_LOG_INTERVAL_S = 30.0


class HealthEvents:
    """Log health events, each kind at most once in 30 s; report errors of indicators to the error tracker."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = LazyTracker(lambda: tracker)
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)
        self._unavailable: dict[tuple[str, str], str] = {}
        self._unknown_tables: set[tuple[str, str]] = set()

    def stop(self, worker: str, jid: str, database: str, indicator: str, signal: Stop, *, runs: bool) -> None:
        """Log that an indicator stops jobs of a class, or that a job runs because it has been deferred often enough."""
        event, effect = (
            ("health.max_deferrals_reached", "run because they have reached max_deferrals")
            if runs
            else ("health.stop", "are deferred")
        )
        if count := self._count_if_due(event, worker, indicator, database):
            logs.logger().warning(
                f"jobs of {worker} {effect}: {signal.reason}",
                event_name=event,
                status_checker_type="worker",
                status_checker_id=jid,
                job_class_name=worker,
                count=count,
                **log_fields(indicator, database, signal),
            )

    def unknown(self, indicator: str, database: str, signal: Unknown, error: BaseException | None) -> None:
        if count := self._count_if_due("health.unknown", indicator, database):
            logs.logger().warning(
                f"the health indicator {indicator} cannot read the database {database}, so jobs run: {signal.reason}",
                event_name="health.unknown",
                count=count,
                error=error,
                **log_fields(indicator, database, signal),
            )
            if error is not None:
                tags = {"health_status_indicator": indicator, "database": database}
                self._tracker.capture(
                    error, tags, "health", on_failure="the error of an indicator could not be reported"
                )

    def not_available(self, indicator: str, database: str, signal: NotAvailable) -> None:
        """Log that an indicator does not apply to a database: once, and again when the reason changes."""
        if self._unavailable.get((indicator, database)) != signal.reason:
            self._unavailable[indicator, database] = signal.reason
            logs.logger().info(
                f"the health indicator {indicator} does not apply to the database {database}: {signal.reason}",
                event_name="health.not_available",
                **log_fields(indicator, database, signal),
            )

    def unknown_table(self, database: str, table: str) -> None:
        """Log, once, that a worker names a table that does not exist."""
        if (database, table) not in self._unknown_tables and len(self._unknown_tables) < 1_000:
            self._unknown_tables.add((database, table))
            logs.logger().warning(
                f"defer_on_health names the table {table}, which the database {database} does not have. Check schema and name",
                event_name="health.unknown_table",
                database=database,
                table=table,
            )

    def resolver_failed(self, worker: str, reason: str, error: BaseException | None) -> None:
        """Log that a class's resolver failed, so that the declared database and tables count."""
        if count := self._count_if_due("health.resolver_failed", worker):
            logs.logger().error(
                f"the resolver of {worker} {reason}; the declared database and tables are used. Correct the resolver",
                event_name="health.resolver_failed",
                job_class_name=worker,
                count=count,
                error=error,
            )

    def failed(self, worker: str, error: BaseException) -> None:
        if count := self._count_if_due("health.failed", worker):
            logs.logger().error(
                f"the health check of {worker} failed, so its jobs run. Look at the error",
                event_name="health.failed",
                job_class_name=worker,
                count=count,
                error=error,
            )

    def _count_if_due(self, *topic: str) -> int:
        return self._log_limit.hit(" ".join(topic))


def log_fields(indicator: str, database: str, signal: Signal) -> dict[str, str]:
    return {
        "health_status_indicator": indicator,
        "indicator_signal": signal.name,
        "signal_reason": signal.reason,
        "database": database,
    }


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


# Health checks fail open: a Prometheus that is down must not stop all background work.
class HealthChecker:
    """Check ``databases`` by ``indicators``. A signal counts for ``cache_s``. A check that takes longer than
    ``timeout_s`` is not awaited, but its signal counts when it arrives.

    The threads are daemons: a check that hangs does not delay the exit of the process.
    """

    def __init__(
        self,
        indicators: Mapping[str, HealthIndicator],
        databases: Mapping[str, HealthConnection],
        events: HealthEvents,
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
        """Return the signal of each indicator for the tables, within ``timeout_s``. Raises no errors. The checks run in
        parallel.
        """
        check_keys = [_CheckKey(name, database, tables) for name in names]
        checks = [self._cached(check_key) or self._start_check(check_key) for check_key in check_keys]
        return [
            (
                check_key.indicator,
                self._wait_for_signal(check_key, one) if isinstance(one, _PendingCheck) else one.signal,
            )
            for check_key, one in zip(check_keys, checks, strict=True)
        ]

    def known_until(self, names: Sequence[str], database: str, tables: tuple[str, ...]) -> float:
        """Return until when (monotonic seconds) ``signals`` returns what it has cached; 0.0 if a signal is not cached."""
        found = [self._cached(_CheckKey(name, database, tables)) for name in names]
        return min((0.0 if one is None else one.valid_until for one in found), default=0.0)

    def is_stopped(self, names: Sequence[str], database: str, tables: tuple[str, ...]) -> bool:
        """Return whether the signal of an indicator that ``signals`` has cached is Stop."""
        found = (self._cached(_CheckKey(name, database, tables)) for name in names)
        return any(one is not None and isinstance(one.signal, Stop) for one in found)

    def _cached(self, key: _CheckKey) -> _CachedSignal | None:
        found = self._signals.get(key)
        return found if found is not None and time.monotonic() < found.valid_until else None

    def _start_check(self, key: _CheckKey) -> _PendingCheck | _CachedSignal:
        with self._lock:
            pending = self._pending.get(key)
            if pending is not None:
                return pending
            # Looked up again under the lock: another thread may have finished the same check meanwhile.
            known = self._cached(key)
            if known is not None:
                return known
            name = (key.indicator, key.database)
            thread = self._threads.get(name)
            if thread is None:
                thread = self._threads[name] = _CheckThread(key, self._idle_s, self._databases.get(key.database))
            check = self._pending[key] = _PendingCheck(Future(), time.monotonic() + self._timeout_s)
        thread.submit(lambda: self._run_check(key, check.signal))
        return check

    def _wait_for_signal(self, key: _CheckKey, check: _PendingCheck) -> Signal:
        try:
            return check.signal.result(max(0.0, check.deadline - time.monotonic()))
        except TimeoutError:
            signal = Unknown(f"it did not respond within {self._timeout_s:g} s")
        with self._lock:
            if self._pending.get(key) is not check:
                # The check responded at the last moment.
                return check.signal.result()
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
                found
                if isinstance(found, Signal)
                else Unknown(f"it returned {short_repr(found)}, which is not a signal")
            )
            if isinstance(signal, Unknown):
                self._events.unknown(name, database, signal, None)
            elif isinstance(signal, NotAvailable):
                self._events.not_available(name, database, signal)
        except BaseException as error:  # noqa: BLE001 - no error of an application's indicator, or of a database, may stop work
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
        """Cache a signal; the caller holds the lock."""
        now = time.monotonic()
        # A resolver may name any tables.
        if len(self._signals) >= _MAX_CACHED:
            self._signals = {one: answer for one, answer in self._signals.items() if answer.valid_until > now}
        if len(self._signals) >= _MAX_CACHED:
            self._signals = {}
        self._signals[key] = _CachedSignal(signal, now + self._cache_s)


class _CheckThread:
    """Run the checks of one indicator for one database, one after the other, in a thread."""

    def __init__(self, key: _CheckKey, idle_s: float, database: HealthConnection | None) -> None:
        self._tasks: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._idle_s = idle_s
        self._database = database
        self.submit = self._tasks.put
        SupervisedThread(f"health-{key.indicator}", self._run).start()

    def _run(self) -> None:
        while True:
            try:
                task = self._tasks.get(timeout=self._idle_s)
            except Empty:
                if self._database is not None:
                    self._database.close_idle(self._idle_s)
                task = self._tasks.get()
            task()


def health_problems(
    settings: HealthSettings, databases: Collection[str], declarations: Iterable[Declaration]
) -> list[ConfigurationProblem]:
    """Return the problems of these classes, and of the indicators that the settings and the application both name."""
    problems = [
        problem
        for one in declarations
        for problem in _unknown_names(settings, databases, one, one.facts["defer_on_health"])
    ]
    file = settings.config_file_label("application.yml")
    for name in registered.keys() & settings.health.indicators.keys():
        reason = "the application has also registered an indicator with this name: rename one of them"
        problems.append(ConfigurationProblem(file, f"health.indicators.{name}", reason))
    return problems


def _unknown_names(
    settings: HealthSettings, databases: Collection[str], declaration: Declaration, policy: DeferOnHealth | None
) -> Iterator[ConfigurationProblem]:
    """Yield a problem per unknown indicator or database; without any configured database every name is accepted."""
    if policy is None:
        return
    known = [*POSTGRES_INDICATORS, *settings.health.indicators, *registered]
    for name in policy.indicators or ():
        if name not in known:
            message = (
                f"names an unknown indicator {name!r}{did_you_mean(name, known)}: there are {join_names(known)}. "
                "Configure it in health.indicators, or register it where workers are declared (framework.health)"
            )
            yield ConfigurationProblem(declaration.qualified_name, "defer_on_health.indicators", message)
    asks_postgres = policy.indicators is None or not set(policy.indicators).isdisjoint(POSTGRES_INDICATORS)
    if databases and asks_postgres and policy.database not in databases:
        nearest = did_you_mean(policy.database, list(databases))
        message = f"there is no {policy.database!r}{nearest}; the setting databases has {join_names(databases)}"
        yield ConfigurationProblem(declaration.qualified_name, "defer_on_health.database", message)
