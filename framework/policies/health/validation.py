"""Check that the indicators and databases that ``defer_on_health`` names exist."""

from collections.abc import Iterable, Iterator

from framework.declare.declaration import Declaration
from framework.declare.policy_options import DeferOnHealth
from framework.errors import ConfigurationProblem
from framework.messages import did_you_mean, join_names
from framework.policies.health.indicator import registered
from framework.settings.health_indicators import POSTGRES_INDICATORS
from framework.settings.model import Settings


def health_problems(settings: Settings, declarations: Iterable[Declaration]) -> list[ConfigurationProblem]:
    """Return the problems of these classes, and of the indicators that the settings and the application both name."""
    problems = [problem for one in declarations for problem in _unknown_names(settings, one, one.defer_on_health)]
    file = settings.config_file_label("application.yml")
    for name in registered.keys() & settings.health.indicators.keys():
        reason = "the application has also registered an indicator with this name: rename one of them"
        problems.append(ConfigurationProblem(file, f"health.indicators.{name}", reason))
    return problems


def _unknown_names(
    settings: Settings, declaration: Declaration, policy: DeferOnHealth | None
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
    databases = list(settings.databases)
    if databases and asks_postgres and policy.database not in databases:
        nearest = did_you_mean(policy.database, databases)
        message = f"there is no {policy.database!r}{nearest}; the setting databases has {join_names(databases)}"
        yield ConfigurationProblem(declaration.qualified_name, "defer_on_health.database", message)
