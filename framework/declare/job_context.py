"""The context that a worker instance holds while its job runs. The framework assigns it; user code reads it."""

import logging
from collections.abc import Mapping
from typing import Any, Protocol

from framework.types import Jid


class JobLogger(Protocol):
    """The methods of ``self.logger``: an event and fields, one line each."""

    def debug(self, event: str, /, **fields: Any) -> Any:
        """Log one line of level DEBUG."""

    def info(self, event: str, /, **fields: Any) -> Any:
        """Log one line of level INFO."""

    def warning(self, event: str, /, **fields: Any) -> Any:
        """Log one line of level WARNING."""

    def error(self, event: str, /, **fields: Any) -> Any:
        """Log one line of level ERROR."""

    def exception(self, event: str, /, **fields: Any) -> Any:
        """Log one line of level ERROR with the traceback of the error that is handled."""


class CancellationState(Protocol):
    """Whether one job was cancelled, as far as this process knows."""

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled."""
        ...

    @property
    def seen(self) -> bool:
        """Whether the job has read that it was cancelled."""
        ...


class JobContext(Protocol):
    """The questions that a running job can ask: whether it was cancelled, and whether the process is stopping."""

    def cancellation(self, jid: Jid, bid: str = "") -> CancellationState:
        """Return the cancellation state of a job, of the batch ``bid`` if it has one. Made at the first use: most jobs never ask."""
        ...

    @property
    def interrupted(self) -> bool:
        """Whether the process is stopping."""
        ...

    def logger(self, job: dict[str, Any]) -> JobLogger:
        """Return the logger of this job. It is made at the first use, since most jobs never log."""
        ...


class JobStory(Protocol):
    """The messages of a tracked job."""

    def note(self, message: str, fields: Mapping[str, Any]) -> None:
        """Add a message. Raises nothing."""
        ...


class ExtraFields(dict[str, Any]):
    """The fields that a run adds to its end line: those of ``log_extra``, and those of features."""

    def __init__(self) -> None:
        super().__init__()
        self.line: dict[str, Any] = {}
        """Fields of features, which keep their names."""
        self.cpu_s = 0.0
        """The processor time that the run used outside of its thread."""

    def of_features(self) -> Mapping[str, Any]:
        """Return the fields of features, at the end of the run."""
        return self.line


class PlainLogger:
    """``self.logger`` of a worker outside of a process (a unit test, a console). Lines go to the logger ``framework``."""

    def __init__(self) -> None:
        self._logger = logging.getLogger("framework")

    def debug(self, event: str, /, **fields: Any) -> None:
        """Log one line of level DEBUG."""
        self._logger.debug("%s", _format_line(event, fields))

    def info(self, event: str, /, **fields: Any) -> None:
        """Log one line of level INFO."""
        self._logger.info("%s", _format_line(event, fields))

    def warning(self, event: str, /, **fields: Any) -> None:
        """Log one line of level WARNING."""
        self._logger.warning("%s", _format_line(event, fields))

    def error(self, event: str, /, **fields: Any) -> None:
        """Log one line of level ERROR."""
        self._logger.error("%s", _format_line(event, fields))

    def exception(self, event: str, /, **fields: Any) -> None:
        """Log one line of level ERROR with the traceback of the error that is handled."""
        self._logger.error("%s", _format_line(event, fields), exc_info=True)  # noqa: LOG014 - called from the handler


def _format_line(event: str, fields: dict[str, Any]) -> str:
    return " ".join([event, *(f"{key}={value!r}" for key, value in fields.items())])
