"""Check that the indicators and databases that ``defer_on_health`` names exist."""

from collections.abc import Collection, Iterable, Iterator

from framework.declare.declaration import Declaration
from framework.declare.policy_options import DeferOnHealth
from framework.errors import ConfigurationProblem
from framework.features.health.indicator import registered
from framework.features.health.settings import POSTGRES_INDICATORS, HealthSettings
from framework.messages import did_you_mean, join_names


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
