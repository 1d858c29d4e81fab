"""Defer the jobs of a worker process whose databases are not healthy."""

from collections.abc import Callable, Mapping

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.errors import ConfigurationError, ConfigurationProblem
from framework.execute.admission import StagedPolicy
from framework.feature import Late
from framework.features.health.admission import HealthEvents, HealthPolicy
from framework.features.health.checks import HealthChecker
from framework.features.health.connection import HealthConnection
from framework.features.health.indicator import HealthIndicator, registered
from framework.features.health.postgres import postgres_indicators
from framework.features.health.prometheus import Prometheus
from framework.features.health.settings import HealthSettings
from framework.features.health.validation import health_problems
from framework.process.worker_parts import ProcessContext, WorkerPart
from framework.settings.model import DatabaseSettings
from framework.telemetry.sentry import Tracker
from framework.version import install_extra


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


HEALTH_POLICY: "Late[Callable[[ProcessContext], HealthPolicy]]" = Late("framework.features.health.worker:open_policy")


def worker_part(process: ProcessContext) -> WorkerPart:
    """Return the part of health in a worker process."""
    return WorkerPart((StagedPolicy("hold", process.service(HEALTH_POLICY)),))
