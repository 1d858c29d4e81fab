"""Register handlers of failures. Call this in modules that every process loads.

    from framework.handlers import on_death, on_error

    @on_error
    def count(error, facts): ...        # each failure; facts: "job" (a dict, empty if unreadable), "queue", "retry_count"

    @on_death
    def report(job, error): ...         # a job that will not be retried

A handler runs in the thread of the job, after the job's line. An error of a handler is logged and has no other effect. A handler
must not block, because the thread waits for it.
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
"""The registered error handlers, in the order of their calls."""

death_handlers: list[DeathHandler] = []
"""The registered death handlers, in the order of their calls."""


def on_error(handler: _E) -> _E:
    """Register ``handler(error, facts)`` for every failed run, except those with a RetryError or BusinessError; return it."""
    append_once(error_handlers, handler)
    return handler


def on_death(handler: _D) -> _D:
    """Register ``handler(job, error)`` for every job that failed and will not be retried, in the dead set or not; return it."""
    append_once(death_handlers, handler)
    return handler
