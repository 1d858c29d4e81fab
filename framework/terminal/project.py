"""Load the settings, the worker classes and the router of a project."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from framework.all_settings import Settings, load
from framework.command_line import EXIT_FAILED
from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.errors import ConfigurationError, ConfigurationProblem, FrameworkError
from framework.process.boot_warnings import warn_unknown_variables
from framework.route.router import Router, load_workers
from framework.settings.files import all_queues_path
from framework.terminal.output import echo, echo_text, refuse_unknown, unknown_worker_message
from framework.text import visible


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
        """The declaration of every worker, by wire name."""
        return {name: worker.declaration() for name, worker in self.workers.items()}


def load_project(modules: Sequence[str]) -> Project:
    """Load ``modules``, or those of the setting ``workers_module``.

    Raises:
        ConfigurationError, DeclarationError: the project is invalid, and no process would boot.
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


def print_load_error(consequence: str, error: FrameworkError) -> None:
    """Print why the worker classes cannot be loaded, and the consequence."""
    echo_text(f"The worker classes cannot be loaded{consequence}: {error}", err=True)


def resolve_class(name: str, modules: Sequence[str]) -> str:
    """Return the wire name of a class, also for its former name; end with status 1 when there is no such class."""
    known = load_project(modules).workers
    found = registry.find(name)
    if found is not None:
        return str(found.declaration().wire_name)
    refuse_unknown([name], known, unknown_worker_message, status=EXIT_FAILED)
    return name


def refuse_unknown_class(name: str, modules: Sequence[str] = ()) -> None:
    """End with status 1 when no class has the name, or a class had it before. For commands that found nothing under it.

    These commands search Redis first, because classes that were removed, or are not loaded here, may still have jobs and flags.
    """
    try:
        project = load_project(modules)
    except FrameworkError as error:
        print_load_error(f", so it is not known whether {visible(name)} is one", error)
        sys.exit(EXIT_FAILED)
    found = registry.find(name)
    if found is None:
        known = [*project.workers, *project.settings.retired_workers]
        refuse_unknown([name], known, unknown_worker_message, status=EXIT_FAILED)
    elif (now := found.declaration().wire_name) != name:
        echo(f"{name} is called {now} now: its flags, locks and held jobs are under that name", err=True)
        sys.exit(EXIT_FAILED)
