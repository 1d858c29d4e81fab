"""Who is told of failures: error handlers at each one, death handlers when a job will not be retried."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from framework.wire.job import Job

ErrorHandler: TypeAlias = Callable[[BaseException, dict[str, Any]], None]
DeathHandler: TypeAlias = Callable[[Job, BaseException], None]


class Handlers:
    """Two lists of callables. What a handler raises is given to ``report``, never to the job."""

    def __init__(self, report: Callable[[str, BaseException], None]) -> None:
        self.error: list[ErrorHandler] = []
        self.death: list[DeathHandler] = []
        self._report = report

    def failed(self, error: BaseException, facts: dict[str, Any]) -> None:
        """Tell every error handler."""
        for handler in self.error:
            self.guard("error handler", partial(handler, error, facts))

    def died(self, job: Job, error: BaseException) -> None:
        """Tell every death handler."""
        for handler in self.death:
            self.guard("death handler", partial(handler, job, error))

    def guard(self, what: str, call: Callable[[], Any]) -> Any:
        """Return what ``call`` returns; report what it raises and return ``None``."""
        try:
            return call()
        except BaseException as failure:  # noqa: BLE001 - somebody else's code must not decide a job's fate
            self._report(what, failure)
            return None
