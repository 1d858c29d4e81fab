"""From settings and the generated file to where jobs wait; the application is not imported."""

from typing import Any

from framework.errors import ConfigurationError, ConfigurationProblem
from framework.route.topology import QueueLocations, regenerate_advice
from framework.settings.model import Settings
from framework.settings.yaml_file import YamlError
from framework.wiring.client import open_router
from framework.wiring.queue_checks import all_queues_path, read_entries


def open_queue_locations(settings: Settings, *, required: bool) -> QueueLocations:
    """Return what the generated file and the routing rules say. Without a file that is not ``required``: only the rules.

    Raises ConfigurationError for rules and entries that do not hold, and for a file that cannot be read. A quarter of a second
    for 1,000 workers.
    """
    router = open_router(settings)
    path, entries = all_queues_path(settings), list[dict[str, Any]]()
    source = settings.generated_file_label("all_queues.yml")
    if required or path.exists():
        try:
            entries = read_entries(path)
        except YamlError as error:
            raise ConfigurationError([ConfigurationProblem(source, "", f"{error}; {regenerate_advice()}")]) from None
    return QueueLocations(router, entries, settings.retired_workers, source=source)
