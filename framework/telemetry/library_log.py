"""Send the lines of an embedded worker to the standard library's logger ``framework``, whose handlers belong to the application."""

import logging
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from framework.telemetry.console import is_shown
from framework.telemetry.logs import LEVELS, object_text
from framework.telemetry.visible import visible

_INFO = '{"severity":"INFO"'


class LibraryLog:
    """A log whose lines are records of the logger ``framework``: text, with the fields in the attribute ``fields``."""

    def __init__(self, static: Mapping[str, Any]) -> None:
        self.static = dict(static)
        self._logger = logging.getLogger("framework")

    @property
    def writer(self) -> "LibraryLog":
        """The log itself: its lines need no thread."""
        return self

    def write(self, line: Mapping[str, Any] | str) -> None:
        """Write one line, given as fields or as JSON."""
        if isinstance(line, str):
            # The lines of a job that succeeds; by default the standard library writes no INFO.
            if line.startswith(_INFO) and not self._logger.isEnabledFor(logging.INFO):
                return
            fields: dict[str, Any] = from_json(line)
        else:
            fields = dict(from_json(object_text(line)))
        shown = " ".join(f"{visible(name)}={value!r}" for name, value in fields.items() if is_shown(name, fields))
        level = LEVELS.get(str(fields.get("severity", "info")).lower(), logging.INFO)
        self._logger.log(level, "%s %s", visible(str(fields.get("message", ""))), shown, extra={"fields": fields})
