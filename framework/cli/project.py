"""What commands about workers begin with: the settings, the worker classes, the router that agrees with them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.errors import ConfigurationError, ConfigurationProblem
from framework.route.router import Router
from framework.settings.load import load
from framework.settings.model import Settings
from framework.wiring.client import load_workers
from framework.wiring.queue_checks import all_queues_path
from framework.wiring.variables import warn_unknown_variables


class Project(NamedTuple):
    """Settings, worker classes by wire name (in that order), router."""

    settings: Settings
    workers: Mapping[str, type[Any]]
    router: Router

    @property
    def all_queues(self) -> Path:
        """The generated file of the workers."""
        return all_queues_path(self.settings)

    @property
    def queues(self) -> Path:
        """The generated file of weights."""
        return self.settings.config_dir / "queues.yml"

    @property
    def released(self) -> Path:
        """The manifest of the last release."""
        return self.all_queues.with_name("released.yml")

    @property
    def declarations(self) -> dict[str, Declaration]:
        """The facts of every worker, by wire name."""
        return {name: worker.declaration() for name, worker in self.workers.items()}


def load_project(modules: Sequence[str]) -> Project:
    """Load ``modules``, or those of the setting ``workers_module``.

    Raises:
        ConfigurationError, DeclarationError: something of it does not hold, so that no process would boot.
    """
    settings = load()
    warn_unknown_variables(settings)
    router = load_workers(settings, list(modules) or list(settings.workers_module))
    workers = {worker.declaration().wire_name: worker for worker in registry.workers()}
    if not workers:
        place = "-r" if modules else "the setting workers_module"
        message = f"no worker class is defined there: name the module of the workers with {place}"
        raise ConfigurationError(
            [ConfigurationProblem(name, "", message) for name in modules or settings.workers_module]
        )
    return Project(settings, workers, router)
