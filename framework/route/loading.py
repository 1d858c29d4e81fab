"""Load the workers of a process, and check the configuration against their classes."""

import os
from collections.abc import Sequence
from typing import NamedTuple

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.errors import ConfigurationError, ConfigurationProblem
from framework.feature import features
from framework.route.router import Router
from framework.settings.base import ENV_PREFIX
from framework.settings.model import CoreSettings


class LoadedWorkers(NamedTuple):
    """What a feature checks, in its part ``problems``: the settings, and the classes of the workers."""

    settings: CoreSettings
    declarations: Sequence[Declaration]
    from_modules: bool
    """Whether this process loads the modules of its workers, as worker processes and commands do."""
    whole: bool
    """Whether every module of the application is loaded."""


def open_router(settings: CoreSettings) -> Router:
    """Return the router of the configured rules. Raises ConfigurationError for invalid ones."""
    source = settings.config_file_label("routing.yml")
    if f"{ENV_PREFIX}ROUTING_RULES" in os.environ:
        source = f"environment: {ENV_PREFIX}ROUTING_RULES"
    return Router(
        settings.routing_rules,
        settings.shards,
        settings.feature_categories,
        source=source,
        folder=settings.config_label,
        retired=settings.retired_workers,
    )


def load_workers(settings: CoreSettings, modules: Sequence[str]) -> Router:
    """Import the modules and return the router, checked against their workers.

    Raises:
        ConfigurationError: with every problem of the modules, their classes and the rules at once.
    """
    problems: list[ConfigurationProblem] = []
    try:
        registry.load(modules)
    except ConfigurationError as error:
        problems += error.problems
    whole = not problems and registry.loaded().issuperset(settings.workers_module)
    return _checked_router(LoadedWorkers(settings, _declarations(), from_modules=True, whole=whole), problems)


def checked_router(settings: CoreSettings) -> Router:
    """Return the router, checked against every registered worker.

    Raises:
        ConfigurationError: with every invalid rule and every worker that contradicts the configuration.
    """
    return _checked_router(LoadedWorkers(settings, _declarations(), from_modules=False, whole=False), [])


def _declarations() -> list[Declaration]:
    return [worker.declaration() for worker in registry.workers()]


def _checked_router(workers: LoadedWorkers, problems: list[ConfigurationProblem]) -> Router:
    settings = workers.settings
    try:
        router = open_router(settings)
    except ConfigurationError as error:
        problems += error.problems
        router = Router(
            (),
            settings.shards,
            settings.feature_categories,
            folder=settings.config_label,
            retired=settings.retired_workers,
        )
    for declaration in workers.declarations:
        problems += router.validate(declaration)
    for feature in features():
        if feature.problems is not None:
            problems += feature.problems.load()(workers)
    if problems:
        raise ConfigurationError(problems)
    return router
