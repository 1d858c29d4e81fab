"""Was this call to a job Redis routed? (GitLab's SidekiqSharding::Validator.)

Application code says whose jobs a call concerns by entering that shard; every command on an application's pool is checked
against what was entered where it is sent: after the block's end, in a thread that never entered, on another shard's pool it
is unrouted. The framework's own clients are no application pools and are never asked.
"""

import inspect
import traceback
from collections.abc import Callable, Collection
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar, cast

import hiredis

from framework.errors import UnroutedCallError
from framework.telemetry import logs
from framework.telemetry.rate_limit import LogRateLimit
from framework.telemetry.sentry import LazyTracker, NoTracker, Tracker

LOG_INTERVAL_S = 60.0
"""An unrouted call that goes on is reported once in this time per place in the application's code, with a count."""

_SHOWN_COMMANDS = 3
_LIBRARY_PACKAGES = ("redis", "framework", "contextlib")

F = TypeVar("F", bound=Callable[..., Any])


# Decision 49: a routed scope ends for every thread that copied it.
class RoutedScope:
    """``with Block(shards):`` calls to these shards are routed within. A pool, task or thread kept beyond the end is not."""

    def __init__(self, shards: Collection[str], reason: str = "") -> None:
        self.shards = shards
        self.reason = reason
        """Why calls to any shard may go unrouted; empty: they may not."""
        self.active = False

    def __enter__(self) -> None:
        self.active = True
        # Those that ended in another context, as a generator's may, were not taken out of this one.
        _scopes.set((*(block for block in _scopes.get() if block.active), self))

    def __exit__(self, *_: object) -> None:
        # What was copied from this context, or holds it up (a generator), must learn of the end as well.
        self.active = False
        _scopes.set(tuple(block for block in _scopes.get() if block is not self))


_scopes: ContextVar[tuple[RoutedScope, ...]] = ContextVar("framework_shards_entered", default=())
"""The blocks that this thread or task is in, outermost first, and those that a context it was copied from was in."""


class UnroutedScope(RoutedScope):
    """What ``allow_unrouted`` returns: a context manager for one block, or a decorator for any number of calls."""

    def __init__(self, reason: str) -> None:
        super().__init__((), reason)

    def __call__(self, function: F) -> F:
        """Return ``function`` with every call inside a block of its own; ``async def`` until it has been awaited."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"allow_unrouted cannot decorate the generator {function.__qualname__}: it would end before the first value is "
                "asked for. Write `with allow_unrouted(reason=...):` inside, around the calls."
            )
        reason, inner = self.reason, cast("Callable[..., Any]", function)
        if inspect.iscoroutinefunction(function):

            @wraps(inner)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                with UnroutedScope(reason):
                    return await inner(*args, **kwargs)

            return cast("F", awaited)

        @wraps(inner)
        def called(*args: Any, **kwargs: Any) -> Any:
            with UnroutedScope(reason):
                return inner(*args, **kwargs)

        return cast("F", called)


def allow_unrouted(*, reason: str) -> UnroutedScope:
    """Within the block, or the decorated function, unrouted calls pass without a report.

    ``reason`` says why this code may do without a route; it stands in a debug line for each such call. Raises ValueError
    when it is empty.
    """
    given: Any = reason
    if not isinstance(given, str) or not given.strip():
        raise ValueError(
            f"allow_unrouted(reason={given!r}): say in words why this code may call a job Redis without a route, for example "
            "reason='one-off migration, runs against main only'"
        )
    return UnroutedScope(given)


class RoutingValidator:
    """Judges for one process: ``strict`` raises, else the call goes through and is reported."""

    def __init__(self, *, strict: bool = True, tracker: Callable[[], Tracker] = NoTracker) -> None:
        self.strict = strict
        self._tracker = LazyTracker(tracker)
        self._log_limit = LogRateLimit(LOG_INTERVAL_S)

    def refuses(self, shard: str) -> bool:
        """Tell whether ``check`` would raise now."""
        return self.strict and not _is_routed(shard) and not _unrouted_reason()

    def check(self, shard: str, packet: Any) -> None:
        """Judge what is about to be sent to ``shard``, commands packed by redis-py.

        Raises:
            UnroutedCallError: in development and test.
        """
        if _is_routed(shard):
            return
        command = command_names(packet)
        reason = _unrouted_reason()
        if reason:
            logs.logger().debug(
                "an unrouted call, allowed",
                event_name="shard.unrouted_allowed",
                shard=shard,
                command=command,
                reason=reason,
            )
            return
        inside = {name for block in _scopes.get() if block.active for name in block.shards}
        error = UnroutedCallError(shard, command, sorted(inside))
        if self.strict:
            raise error
        self._report(error, _caller())

    def _report(self, error: UnroutedCallError, caller: str) -> None:
        count = self._log_limit.hit(caller)
        if not count:
            return
        logs.logger().warning(
            "a call to a job Redis went unrouted",
            event_name="shard.unrouted",
            shard=error.shard,
            command=error.command,
            caller=caller,
            count=count,
        )
        tags = {"shard": error.shard, "command": error.command, "caller": caller}
        self._tracker.capture(error, tags, "shard.unrouted", on_failure="an unrouted call could not be reported")


def command_names(packet: Any) -> str:
    """Return what packed commands do, for people: their names, without MULTI and EXEC, the first few of many."""
    reader: Any = hiredis.Reader()
    names: list[str] = []
    try:
        reader.feed(b"".join(packet))
        while command := reader.gets():
            names.append(command[0].decode(errors="replace").upper())
    except Exception:  # noqa: BLE001 - somebody packed it by hand; what lets it through must not fail of it
        names.append("?")
    plain = [name for name in names if name not in ("MULTI", "EXEC")] or names
    return ", ".join(plain[:_SHOWN_COMMANDS] + ["..."] * (len(plain) > _SHOWN_COMMANDS))


def _is_routed(shard: str) -> bool:
    return any(block.active and shard in block.shards for block in _scopes.get())


def _unrouted_reason() -> str:
    return next((block.reason for block in reversed(_scopes.get()) if block.active and block.reason), "")


def _caller() -> str:
    """Return file:line of the innermost frame that is neither ours nor redis-py's."""
    place = ""
    for frame, line in traceback.walk_stack(None):
        place = f"{frame.f_code.co_filename}:{line}"
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in _LIBRARY_PACKAGES:
            break
    return place
