"""What a worker instance holds while it runs. The framework assigns it; user code reads it."""

import logging
from typing import Any, Protocol

from framework.types import Jid


class JobLogger(Protocol):
    """What ``self.logger`` can do: an event and fields, one line each."""

    def debug(self, event: str, /, **fields: Any) -> Any:
        """One line of level DEBUG."""

    def info(self, event: str, /, **fields: Any) -> Any:
        """One line of level INFO."""

    def warning(self, event: str, /, **fields: Any) -> Any:
        """One line of level WARNING."""

    def error(self, event: str, /, **fields: Any) -> Any:
        """One line of level ERROR."""

    def exception(self, event: str, /, **fields: Any) -> Any:
        """One line of level ERROR with the traceback of the error being handled."""


class CancellationState(Protocol):
    """Whether one job was cancelled, as it is known at the moment."""

    @property
    def cancelled(self) -> bool:
        """It is to stop."""
        ...


class JobContext(Protocol):
    """What the running job may ask: was it cancelled, is the process about to stop?"""

    def cancellation(self, jid: Jid) -> CancellationState:
        """Return what says whether it was cancelled; asked for when the job first asks, since most jobs never do."""
        ...

    @property
    def interrupted(self) -> bool:
        """The process is stopping."""
        ...

    def logger(self, job: dict[str, Any]) -> JobLogger:
        """What ``self.logger`` of this job is; asked for when it is first used, since most jobs never log."""
        ...


class PlainLogger:
    """``self.logger`` of a worker that no process runs (a unit test, a console): lines go to the logger ``framework``."""

    def __init__(self) -> None:
        self._logger = logging.getLogger("framework")

    def debug(self, event: str, /, **fields: Any) -> None:
        """One line of level DEBUG."""
        self._logger.debug("%s", _format_line(event, fields))

    def info(self, event: str, /, **fields: Any) -> None:
        """One line of level INFO."""
        self._logger.info("%s", _format_line(event, fields))

    def warning(self, event: str, /, **fields: Any) -> None:
        """One line of level WARNING."""
        self._logger.warning("%s", _format_line(event, fields))

    def error(self, event: str, /, **fields: Any) -> None:
        """One line of level ERROR."""
        self._logger.error("%s", _format_line(event, fields))

    def exception(self, event: str, /, **fields: Any) -> None:
        """One line of level ERROR with the traceback of the error being handled."""
        self._logger.error("%s", _format_line(event, fields), exc_info=True)  # noqa: LOG014 - called from the handler


def _format_line(event: str, fields: dict[str, Any]) -> str:
    return " ".join([event, *(f"{key}={value!r}" for key, value in fields.items())])
