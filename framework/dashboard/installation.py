"""Read the settings, the worker classes and the rules once, for what pages say about classes."""

from functools import cache

from framework.admin.diagnosis.facts import Installation
from framework.admin.explain import KnownClasses
from framework.admin.port import current
from framework.declare import registry
from framework.errors import FrameworkError
from framework.route.router import load_workers
from framework.telemetry import logs


@cache
def read_installation() -> Installation:
    """Return the installation; it is read once. Without loadable classes the pages show what Redis alone knows."""
    settings = current().settings
    try:
        router = load_workers(settings, list(settings.workers_module))
    except FrameworkError as error:
        logs.logger().warning(
            "the worker classes cannot be loaded, so the dashboard shows no attributes of classes. Mend the error",
            event_name="dashboard.classes_missing",
            error=error,
        )
        return Installation(settings, KnownClasses())
    classes = KnownClasses.of((worker.declaration() for worker in registry.workers()), settings)
    return Installation(settings, classes, router)
