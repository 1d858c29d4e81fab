"""Call handlers of failures: error handlers at each failure, death handlers if the job is not retried."""

from collections.abc import Callable
from functools import partial
from typing import Any

from framework.handlers import DeathHandler, ErrorHandler, death_handlers, error_handlers
from framework.wire.job import Job


class Handlers:
    """The handlers of the process, then those of the application. ``report`` receives what a handler raises.

    Each handler gets a copy of the job: it can change neither the stored payload nor what the next handler sees.
    """

    def __init__(self, report: Callable[[str, BaseException], None]) -> None:
        self.error: list[ErrorHandler] = []
        self.death: list[DeathHandler] = []
        self._report = report

    def call_error_handlers(self, error: BaseException, facts: dict[str, Any]) -> None:
        """Call every error handler."""
        for handler in (*self.error, *error_handlers):
            self.guard("error handler", partial(handler, error, {**facts, "job": dict(facts.get("job") or {})}))

    def call_death_handlers(self, job: Job, error: BaseException) -> None:
        """Call every death handler."""
        for handler in (*self.death, *death_handlers):
            self.guard("death handler", partial(handler, Job(job), error))

    def guard(self, what: str, call: Callable[[], Any]) -> Any:
        """Return the result of ``call``; if it raises, report the error and return ``None``."""
        try:
            return call()
        except BaseException as failure:  # noqa: BLE001 - an error of application code must not change how the job ends
            self._report(what, failure)
            return None
