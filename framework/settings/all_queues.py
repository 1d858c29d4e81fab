"""Read workers/all_queues.yml, the generated file with the queue and the facts of each worker."""

from pathlib import Path
from typing import Any

from framework.settings.model import CoreSettings
from framework.settings.yaml_file import YamlError, read_yaml
from framework.typeguards import is_list, is_mapping

MAX_BYTES = 16 * 1024 * 1024
"""The size limit of the file, enough for tens of thousands of workers."""


def all_queues_path(settings: CoreSettings) -> Path:
    """Return the path of the project's generated file."""
    return settings.generated_dir / "all_queues.yml"


def read_entries(path: Path) -> list[dict[str, Any]]:
    """Return the entries of the file. Raises YamlError when it is missing or malformed."""
    if not path.exists():
        raise YamlError("does not exist")
    found = read_yaml(path, max_bytes=MAX_BYTES)
    if not is_list(found):
        raise YamlError("is not a list of workers")
    return [item for item in found if is_mapping(item)]
