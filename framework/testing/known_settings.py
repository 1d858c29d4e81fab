"""Keep the settings of each configuration: to read them takes longer than the rest of a fake."""

import os
from pathlib import Path
from typing import Any, NamedTuple

from framework.all_settings import Settings, load

# pytest changes it for each test.
_OF_PYTEST = "PYTEST_CURRENT_TEST"
_MOST = 100


class _Known(NamedTuple):
    settings: Settings
    files: object


_known: dict[Any, _Known] = {}


def known_settings() -> Settings:
    """Return the settings of this process; the same object until a file, a variable or the working directory changes.

    Raises:
        ConfigurationError: the configuration is invalid.
    """
    environment = frozenset(pair for pair in os.environ.items() if pair[0] != _OF_PYTEST)
    place = (environment, Path.cwd())
    found = _known.get(place)
    if found is not None and found.files == _files_of(found.settings.config_dir):
        return found.settings
    settings = load()
    if len(_known) >= _MOST:
        _known.clear()
    _known[place] = _Known(settings, _files_of(settings.config_dir))
    return settings


def _files_of(folder: Path) -> object:
    """Return what changes with each file of a folder."""
    try:
        with os.scandir(folder) as entries:
            found = [(entry.name, entry.stat()) for entry in entries]
    except OSError:
        return None
    return sorted((name, one.st_mtime_ns, one.st_size, one.st_ino) for name, one in found)
