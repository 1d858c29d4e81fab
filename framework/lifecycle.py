"""Register handlers of the events in the life of a worker process. Call this in modules that worker processes load.

    from framework.lifecycle import on_shutdown, on_startup

    @on_startup
    def open_pool(): ...                # before the first job

    @on_shutdown
    def close_pool(): ...               # when the process stops, while its last jobs run

A handler takes no arguments. Handlers of one event run one after the other, in a thread of their own: those of startup,
heartbeat, beat and leader in the order of their registration, the others in reverse. An error of a handler is logged and
reported, and has no other effect. The process does not wait for a handler that takes too long: it goes on, and logs ``hook.timeout``.
"""

import inspect
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from framework.extensions import append_once
from framework.typeguards import short_repr

LifecycleEvent: TypeAlias = Literal["startup", "quiet", "shutdown", "exit", "heartbeat", "beat", "leader", "follower"]
LifecycleHandler: TypeAlias = Callable[[], object]

_H = TypeVar("_H", bound=LifecycleHandler)

STARTUP_LIMIT_S = 60.0
"""The seconds that the process waits for the handlers of startup before it takes jobs."""

SHUTDOWN_LEAST_S = 0.5
"""The seconds that the handlers of shutdown have at least. They have as long as the last jobs: ``-t`` seconds."""

EXIT_LIMIT_S = 1.0
"""The seconds that the handlers of exit have: a supervisor kills a process 2 s after the deadline of its jobs."""

OVERDUE_S = 60.0
"""A handler of heartbeat or beat that runs longer is reported; the next calls are left out until it returns. One of leader or
follower is reported if it is due again; its next call comes when it has returned, if the process then still leads or follows."""

lifecycle_handlers: dict[LifecycleEvent, list[LifecycleHandler]] = {event: [] for event in get_args(LifecycleEvent)}
"""The registered handlers of each event, in the order of their registration."""


def on_startup(handler: _H) -> _H:
    """Register ``handler()`` for the start of a process, before its first job; return it.

    Raises:
        TypeError: ``handler`` is async, or cannot be called without arguments.
    """
    return _register("startup", handler)


def on_quiet(handler: _H) -> _H:
    """Register ``handler()`` for the moment from which the process fetches no new jobs: once, also before a stop; return it.

    Raises:
        TypeError: ``handler`` is async, or cannot be called without arguments.
    """
    return _register("quiet", handler)


def on_shutdown(handler: _H) -> _H:
    """Register ``handler()`` for the start of the stop; it runs beside the last jobs; return it.

    Raises:
        TypeError: ``handler`` is async, or cannot be called without arguments.
    """
    return _register("shutdown", handler)


def on_exit(handler: _H) -> _H:
    """Register ``handler()`` for the end: every job has ended or is back in its queue; return it.

    Raises:
        TypeError: ``handler`` is async, or cannot be called without arguments.
    """
    return _register("exit", handler)


def on_heartbeat(handler: _H) -> _H:
    """Register ``handler()`` for the first process record, and each time that it had disappeared from Redis; return it.

    Raises:
        TypeError: ``handler`` is async, or cannot be called without arguments.
    """
    return _register("heartbeat", handler)


def on_beat(handler: _H) -> _H:
    """Register ``handler()`` for each check of the process record, every 5 s; return it.

    Raises:
        TypeError: ``handler`` is async, or cannot be called without arguments.
    """
    return _register("beat", handler)


def on_leader(handler: _H) -> _H:
    """Register ``handler()`` for the moment from which this process leads the application on its shard; return it.

    A process leads the application with the first such handler, also without cron entries. ``on_follower`` ends what it began.

    Raises:
        TypeError: ``handler`` is async, or cannot be called without arguments.
    """
    return _register("leader", handler)


def on_follower(handler: _H) -> _H:
    """Register ``handler()`` for the moment from which this process no longer leads; return it.

    It is called only after ``on_leader``: when another process leads, when Redis does not answer for longer than the lease, and when
    the process stops.

    Raises:
        TypeError: ``handler`` is async, or cannot be called without arguments.
    """
    return _register("follower", handler)


def _register(event: LifecycleEvent, handler: _H) -> _H:
    given: Any = handler
    if not callable(given):
        raise TypeError(f"a handler of {event} must be a function without arguments, not {short_repr(given)}")
    if inspect.iscoroutinefunction(given) or inspect.isgeneratorfunction(given) or inspect.isasyncgenfunction(given):
        raise TypeError(
            f"the handler {short_repr(given)} of {event} must be a plain def without yield: it would not run"
        )
    try:
        inspect.signature(given).bind()
    except TypeError as error:
        raise TypeError(f"the handler {short_repr(given)} of {event} is called without arguments: {error}") from None
    # A function of a C extension without a signature.
    except ValueError:
        pass
    append_once(lifecycle_handlers[event], handler)
    return handler
