"""From settings and the generated file to where jobs wait; the application is not imported."""

from typing import Any

from framework.errors import ConfigurationError, Problem
from framework.route.places import Places, regenerate
from framework.settings.model import Settings
from framework.settings.yaml_file import YamlError
from framework.wiring.connect import open_router
from framework.wiring.stale_queues import all_queues_path, read_entries


def open_places(settings: Settings, *, required: bool) -> Places:
    """Return what the generated file and the routing rules say. Without a file that is not ``required``: only the rules.

    Raises ConfigurationError for rules and entries that do not hold, and for a file that cannot be read. A quarter of a second
    for 1,000 workers.
    """
    router = open_router(settings)
    path, entries = all_queues_path(settings), list[dict[str, Any]]()
    source = settings.generated("all_queues.yml")
    if required or path.exists():
        try:
            entries = read_entries(path)
        except YamlError as error:
            raise ConfigurationError([Problem(source, "", f"{error}; {regenerate()}")]) from None
    return Places(router, entries, settings.retired_workers, source=source)
