"""The application's own handlers of failures, registered at import time of its modules.

    from framework.handlers import on_death, on_error

    @on_error
    def count(error, facts): ...        # each failure; facts: "job" (a dict, empty if unreadable), "queue"

    @on_death
    def tell(job, error): ...           # a job that will not be retried

A handler runs in the thread of the job, after its line was logged. An error of a handler is logged and changes nothing. A
handler must not block: the thread waits for it.
"""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from framework.extensions import append_once
from framework.wire.job import Job

ErrorHandler: TypeAlias = Callable[[BaseException, dict[str, Any]], object]
DeathHandler: TypeAlias = Callable[[Job, BaseException], object]

_E = TypeVar("_E", bound=ErrorHandler)
_D = TypeVar("_D", bound=DeathHandler)

error_handlers: list[ErrorHandler] = []
"""The registered handlers, in order."""

death_handlers: list[DeathHandler] = []
"""The registered handlers, in order."""


def on_error(handler: _E) -> _E:
    """Call ``handler(error, facts)`` for every failed run but those that end with RetryError or BusinessError."""
    append_once(error_handlers, handler)
    return handler


def on_death(handler: _D) -> _D:
    """Call ``handler(job, error)`` for every job that failed and will not be retried, dead set or not."""
    append_once(death_handlers, handler)
    return handler
