"""Read the locations of the queues from the settings and the generated file, without importing the application."""

from typing import Any

from framework.errors import ConfigurationError, ConfigurationProblem
from framework.route.loading import open_router
from framework.route.topology import QueueLocations, regenerate_advice
from framework.settings.all_queues import all_queues_path, read_entries
from framework.settings.model import CoreSettings
from framework.settings.released_queues import read_released_queues
from framework.settings.yaml_file import YamlError

_RESTORE = "restore it from version control"


def open_queue_locations(settings: CoreSettings, *, required: bool) -> QueueLocations:
    """Return the locations by the generated file and the routing rules; by the rules only without a file, unless ``required``.

    The queues of earlier releases are added. About 250 ms for 1,000 workers.

    Raises:
        ConfigurationError: a rule or an entry is invalid, or a file is malformed.
    """
    router = open_router(settings)
    try:
        released = read_released_queues(settings)
    except YamlError as error:
        place = settings.generated_file_label("released.yml")
        raise ConfigurationError([ConfigurationProblem(place, "", f"{error}; {_RESTORE}")]) from None
    path, entries = all_queues_path(settings), list[dict[str, Any]]()
    source = settings.generated_file_label("all_queues.yml")
    if required or path.exists():
        try:
            entries = read_entries(path)
        except YamlError as error:
            raise ConfigurationError([ConfigurationProblem(source, "", f"{error}; {regenerate_advice()}")]) from None
    return QueueLocations(router, entries, settings.retired_workers, released=released.all_places(), source=source)
