"""Defer jobs of a class while a database that it depends on is overloaded."""

from collections.abc import Callable, Collection, Mapping, Sequence
from time import monotonic
from typing import Final

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.errors import ConfigurationError, ConfigurationProblem
from framework.execute.admission import AdmissionRequest, StagedPolicy
from framework.feature import Late
from framework.features.health.attributes import DeferOnHealth
from framework.features.health.checks import HealthChecker, HealthEvents, health_problems, log_fields
from framework.features.health.indicator import HealthIndicator, Stop, Unknown, registered
from framework.features.health.postgres import postgres_indicators
from framework.features.health.prometheus import HealthConnection, Prometheus
from framework.features.health.settings import HealthSettings
from framework.finish.outcome import Deferred
from framework.process.worker_parts import ProcessContext, WorkerPart
from framework.settings.model import DatabaseSettings
from framework.telemetry.job_events import JobSkipped, job_events
from framework.telemetry.sentry import Tracker
from framework.timings import backoff_s
from framework.typeguards import is_list, is_tuple, short_repr
from framework.types import Payload
from framework.version import install_extra
from framework.wire.job import DEFERRED_BY, deferral_count

REASON: Final = "database_health_check"
_JITTER = 0.1
_MANY = 30
"""So many deferrals have the longest delay."""


class HealthPolicy:
    """Defer jobs while an indicator that their class names says Stop. ``available`` lists the indicators of this process."""

    def __init__(
        self, checks: HealthChecker, available: Sequence[str], databases: Collection[str], events: HealthEvents
    ) -> None:
        self._checks = checks
        self._available = tuple(available)
        self._databases = databases
        self._events = events
        self._admits_until: dict[str, tuple[Declaration, float]] = {}
        """By wire name: until when (monotonic seconds) no cached signal stops a job of the class."""

    def applies_to(self, declaration: Declaration) -> bool:
        policy = declaration.facts["defer_on_health"]
        return policy is not None and bool(self._indicators_of(policy))

    def admits_all(self, declaration: Declaration) -> bool:
        known = self._admits_until.get(declaration.wire_name)
        # A reloaded class has a new declaration under its old name.
        return known is not None and monotonic() < known[1] and known[0] is declaration

    def stops(self, declaration: Declaration) -> bool:
        """Return whether a signal that is known stops every job of a class. Asks nothing."""
        policy = declaration.facts["defer_on_health"]
        if policy is None or policy.resolver is not None or policy.max_deferrals is not None:
            return False
        return self._checks.is_stopped(self._indicators_of(policy), policy.database, policy.tables)

    def postpones(self, declaration: Declaration, payload: Payload) -> float:
        """Return for how many seconds a due job that was deferred stays where it is: 0.0 unless a known signal stops its class."""
        policy = declaration.facts["defer_on_health"]
        if policy is None or payload.get(DEFERRED_BY) != REASON or not self.stops(declaration):
            return 0.0
        return deferral_delay_s(policy, _MANY)

    def admit(self, request: AdmissionRequest) -> Deferred | None:
        """See ``AdmissionPolicy``. Sends nothing to Redis."""
        policy = request.declaration.facts["defer_on_health"]
        try:
            return self._decide(request, policy) if policy is not None else None
        except Exception as error:  # noqa: BLE001 - a failed check stops no job
            self._events.failed(request.declaration.wire_name, error)
            return None

    def _decide(self, request: AdmissionRequest, policy: DeferOnHealth) -> Deferred | None:
        database, tables = self._checked_tables(request, policy)
        names = self._indicators_of(policy)
        # Read before the signals, so that a signal which is renewed meanwhile is not remembered for longer than it counts.
        known_until = self._checks.known_until(names, database, tables)
        signals = self._checks.signals(names, database, tables)
        for indicator, signal in signals:
            if isinstance(signal, Stop):
                return self._on_stop(request, policy, database, indicator, signal)
        # A resolver may name other tables for the next job. A late signal takes the place of Unknown as soon as it arrives.
        if policy.resolver is None and not any(isinstance(signal, Unknown) for _, signal in signals):
            self._admits_until[request.declaration.wire_name] = (request.declaration, known_until)
        return None

    def _on_stop(
        self, request: AdmissionRequest, policy: DeferOnHealth, database: str, indicator: str, signal: Stop
    ) -> Deferred | None:
        worker, count = request.declaration.wire_name, deferral_count(request.payload, REASON)
        runs = policy.max_deferrals is not None and count >= policy.max_deferrals
        self._events.stop(worker, str(request.payload.get("jid", "")), database, indicator, signal, runs=runs)
        if runs:
            return None
        job_events.emit(JobSkipped(worker, queue=request.unit.queue, action="deferred", reason=REASON))
        return Deferred(deferral_delay_s(policy, count), REASON, log_fields(indicator, database, signal))

    def _indicators_of(self, policy: DeferOnHealth) -> tuple[str, ...]:
        if policy.indicators is None:
            return self._available
        return tuple(name for name in policy.indicators if name in self._available)

    def _checked_tables(self, request: AdmissionRequest, policy: DeferOnHealth) -> tuple[str, tuple[str, ...]]:
        """Return the database and tables to check: the resolver's result for these arguments, else the declared ones."""
        declared = policy.database, policy.tables
        if policy.resolver is None:
            return declared
        error: BaseException | None = None
        try:
            found: object = policy.resolver(tuple(request.payload["args"]))
            reason = self._invalid_result(found)
        except Exception as raised:  # noqa: BLE001 - the application's own code
            found, reason, error = None, "raised", raised
        if reason is None and is_tuple(found):
            return found[0], tuple(found[1])
        self._events.resolver_failed(request.declaration.wire_name, reason or "", error)
        return declared

    def _invalid_result(self, found: object) -> str | None:
        """Return why this is not a valid (database, tables), or ``None``."""
        if not is_tuple(found) or len(found) != 2:
            return f"returned {short_repr(found)}, which is not (database, tables)"
        database, tables = found
        if type(database) is not str or not (is_tuple(tables) or is_list(tables)):
            return f"returned {short_repr(found)}, which is not (database, tables)"
        if not all(type(table) is str and table for table in tables):
            return f"returned {short_repr(tables)}, which are not names of tables"
        if self._databases and database not in self._databases:
            return f"returned the database {short_repr(database)}, which the setting databases does not have"
        return None


def deferral_delay_s(policy: DeferOnHealth, deferrals_before: int) -> float:
    """Return the delay of a job after so many deferrals: GitLab's doubling, capped, minus up to a tenth at random."""
    # GitLab's exponent: the first two delays are equal. The random part only shortens, so `max_delay` is the maximum.
    deferrals = max(1, deferrals_before)
    return backoff_s(deferrals, policy.delay.total_seconds(), policy.max_delay.total_seconds(), jitter=_JITTER)


def open_health_policy(
    settings: HealthSettings, configured: Mapping[str, DatabaseSettings], tracker: Tracker
) -> HealthPolicy:
    """Return the health policy of one process. Opens no socket.

    Raises ConfigurationError when a worker names an unknown indicator or database, or a PostgreSQL client is missing.
    """
    declarations: list[Declaration] = [worker.declaration() for worker in registry.workers()]
    problems = health_problems(settings, configured, declarations)
    events = HealthEvents(tracker)
    databases: dict[str, HealthConnection] = {}
    if any(one.facts["defer_on_health"] is not None for one in declarations):
        try:
            databases = {name: HealthConnection(one.url, settings.health.timeout) for name, one in configured.items()}
        except ImportError as error:
            reason = f"needs SQLAlchemy and psycopg ({error}): {install_extra('sql')}"
            problems.append(ConfigurationProblem(settings.config_file_label("application.yml"), "databases", reason))
    if problems:
        raise ConfigurationError(problems)
    indicators: dict[str, HealthIndicator] = {}
    if databases:
        indicators |= postgres_indicators(settings.health, events.unknown_table)
    if settings.health.prometheus is not None:
        url = settings.health.prometheus.url
        indicators |= {name: Prometheus(url, query) for name, query in settings.health.indicators.items()}
    indicators |= registered
    limits = settings.health
    checks = HealthChecker(indicators, databases, events, cache_s=limits.cache, timeout_s=limits.timeout)
    return HealthPolicy(checks, tuple(indicators), configured, events)


def open_policy(process: ProcessContext) -> HealthPolicy:
    """Return the policy of a worker process. Raises ConfigurationError as ``open_health_policy``."""
    settings = HealthSettings.of(process.settings)
    return open_health_policy(settings, process.settings.databases, process.events.tracker)


HEALTH_POLICY: "Late[Callable[[ProcessContext], HealthPolicy]]" = Late(
    "framework.features.health.admission:open_policy"
)


def worker_part(process: ProcessContext) -> WorkerPart:
    policy = process.service(HEALTH_POLICY)
    return WorkerPart((StagedPolicy("hold", policy),), stops=policy.stops, postpones=policy.postpones)
