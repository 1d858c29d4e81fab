"""Build the policy that defers jobs on unhealthy databases, and check the workers' declarations for it."""

from collections.abc import Iterable, Iterator

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.declare.policy_options import DeferOnHealth
from framework.errors import ConfigurationError, ConfigurationProblem
from framework.messages import did_you_mean, join_names
from framework.policies.health.admission import HealthEvents, HealthPolicy
from framework.policies.health.checks import HealthChecker
from framework.policies.health.connection import HealthConnection
from framework.policies.health.indicator import HealthIndicator, registered
from framework.policies.health.postgres import postgres_indicators
from framework.policies.health.prometheus import Prometheus
from framework.settings.health_indicators import POSTGRES_INDICATORS
from framework.settings.model import Settings
from framework.telemetry.sentry import Tracker
from framework.version import install_extra


def open_health_policy(settings: Settings, tracker: Tracker) -> HealthPolicy:
    """Return the health policy of one process. Opens no socket.

    Raises ConfigurationError when a worker names an unknown indicator or database, or a PostgreSQL client is missing.
    """
    deferring = [(one, one.defer_on_health) for one in _declarations() if one.defer_on_health is not None]
    problems = [*_unknown_names(settings, deferring)]
    file = settings.config_file_label("application.yml")
    for name in registered.keys() & settings.health.indicators.keys():
        reason = "the application has also registered an indicator with this name: rename one of them"
        problems.append(ConfigurationProblem(file, f"health.indicators.{name}", reason))
    events = HealthEvents(tracker)
    databases: dict[str, HealthConnection] = {}
    if deferring:
        try:
            databases = {
                name: HealthConnection(one.url, settings.health.timeout) for name, one in settings.databases.items()
            }
        except ImportError as error:
            reason = f"needs SQLAlchemy and psycopg ({error}): {install_extra('sql')}"
            problems.append(ConfigurationProblem(file, "databases", reason))
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
    return HealthPolicy(checks, tuple(indicators), settings.databases, events)


def _declarations() -> Iterator[Declaration]:
    return (worker.declaration() for worker in registry.workers())


def _unknown_names(
    settings: Settings, deferring: Iterable[tuple[Declaration, DeferOnHealth]]
) -> Iterator[ConfigurationProblem]:
    """Yield a problem per unknown indicator or database; without any configured database every name is accepted."""
    known = [*POSTGRES_INDICATORS, *settings.health.indicators, *registered]
    for declaration, policy in deferring:
        for name in policy.indicators or ():
            if name not in known:
                message = (
                    f"names an unknown indicator {name!r}{did_you_mean(name, known)}: there are {join_names(known)}. "
                    "Configure it in health.indicators, or register it where workers are declared (framework.health)"
                )
                yield ConfigurationProblem(declaration.qualified_name, "defer_on_health.indicators", message)
        asks_postgres = policy.indicators is None or not set(policy.indicators).isdisjoint(POSTGRES_INDICATORS)
        databases = list(settings.databases)
        if databases and asks_postgres and policy.database not in databases:
            nearest = did_you_mean(policy.database, databases)
            message = f"there is no {policy.database!r}{nearest}; the setting databases has {join_names(databases)}"
            yield ConfigurationProblem(declaration.qualified_name, "defer_on_health.database", message)
