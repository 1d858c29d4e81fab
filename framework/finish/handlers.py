"""Telling handlers of failures: error handlers at each one, death handlers when a job will not be retried."""

from collections.abc import Callable
from functools import partial
from typing import Any

from framework.handlers import DeathHandler, ErrorHandler, death_handlers, error_handlers
from framework.wire.job import Job


class Handlers:
    """The application's handlers, and before them those of the process. What one raises is given to ``report`` only.

    Each is given a copy: none can change what is stored, or what the next one sees.
    """

    def __init__(self, report: Callable[[str, BaseException], None]) -> None:
        self.error: list[ErrorHandler] = []
        self.death: list[DeathHandler] = []
        self._report = report

    def call_error_handlers(self, error: BaseException, facts: dict[str, Any]) -> None:
        """Tell every error handler."""
        for handler in (*self.error, *error_handlers):
            self.guard("error handler", partial(handler, error, {**facts, "job": dict(facts.get("job") or {})}))

    def call_death_handlers(self, job: Job, error: BaseException) -> None:
        """Tell every death handler."""
        for handler in (*self.death, *death_handlers):
            self.guard("death handler", partial(handler, Job(job), error))

    def guard(self, what: str, call: Callable[[], Any]) -> Any:
        """Return what ``call`` returns; report what it raises and return ``None``."""
        try:
            return call()
        except BaseException as failure:  # noqa: BLE001 - somebody else's code must not decide a job's fate
            self._report(what, failure)
            return None
