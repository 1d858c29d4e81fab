"""Check that application code calls the Redis of a shard only inside of a route (GitLab's SidekiqSharding::Validator).

Application code enters the shard of a worker's jobs. Each command on an application's pool is checked when it is sent: it
is unrouted after the scope has ended, in a thread that never entered it, and on another shard's pool. The framework's own
clients are not checked.
"""

import inspect
import traceback
from collections.abc import Callable, Collection
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar, cast

import hiredis
import redis
from redis.connection import AbstractConnection

from framework.errors import UnroutedCallError
from framework.telemetry import logs
from framework.telemetry.logs import LogRateLimit
from framework.telemetry.sentry import LazyTracker, NoTracker, Tracker

LOG_INTERVAL_S = 60.0
"""An allowed unrouted call is reported at most once in this time per line of the application's code, with a count."""

_SHOWN_COMMANDS = 3
_LIBRARY_PACKAGES = ("redis", "framework", "contextlib")

F = TypeVar("F", bound=Callable[..., Any])


# The scope is an object with a flag: a plain value in a context variable would outlive the block in every copied context.
class RoutedScope:
    """Allow calls to these shards inside of a ``with`` scope. A pool, task or thread kept beyond its end is refused."""

    def __init__(self, shards: Collection[str], reason: str = "") -> None:
        self.shards = shards
        self.reason = reason
        """Why calls to any shard may be unrouted; empty if they may not."""
        self.active = False

    def __enter__(self) -> None:
        self.active = True
        # Scopes that ended in another context, for example a generator's, are still in this one: remove them here.
        _scopes.set((*(scope for scope in _scopes.get() if scope.active), self))

    def __exit__(self, *_: object) -> None:
        # The flag ends the scope for every copy of this context (threads, tasks, generators) as well.
        self.active = False
        _scopes.set(tuple(scope for scope in _scopes.get() if scope is not self))


_scopes: ContextVar[tuple[RoutedScope, ...]] = ContextVar("framework_shards_entered", default=())
"""The scopes of this thread or task, outermost first, and those of the context it was copied from."""


class UnroutedScope(RoutedScope):
    """Allow unrouted calls: a context manager for one block, or a decorator for any number of calls."""

    def __init__(self, reason: str) -> None:
        super().__init__((), reason)

    def __call__(self, function: F) -> F:
        """Return ``function`` with each call inside of its own scope; for ``async def`` until it has been awaited."""
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
    """Allow unrouted calls inside of the block or the decorated function.

    ``reason`` says why this code needs no route; it is in the debug line of each such call.

    Raises:
        ValueError: ``reason`` is empty.
    """
    given: Any = reason
    if not isinstance(given, str) or not given.strip():
        raise ValueError(
            f"allow_unrouted(reason={given!r}): say in words why this code may call a shard without a route, for example "
            "reason='one-off migration, runs against main only'"
        )
    return UnroutedScope(given)


class RoutingValidator:
    """Check calls in one process: raise if ``strict``, else report the call and let it pass."""

    def __init__(self, *, strict: bool = True, tracker: Callable[[], Tracker] = NoTracker) -> None:
        self.strict = strict
        self._tracker = LazyTracker(tracker)
        self._log_limit = LogRateLimit(LOG_INTERVAL_S)

    def refuses(self, shard: str) -> bool:
        """Return whether ``check`` would raise now."""
        return self.strict and not _is_routed(shard) and not _unrouted_reason()

    def check(self, shard: str, packet: Any) -> None:
        """Check commands packed by redis-py that are about to be sent to ``shard``.

        Raises:
            UnroutedCallError: the call is unrouted, in development and test.
        """
        if _is_routed(shard):
            return
        command = command_names(packet)
        reason = _unrouted_reason()
        if reason:
            logs.logger().debug(
                "application code called a shard without a route; allow_unrouted permits it",
                event_name="shard.unrouted_allowed",
                shard=shard,
                command=command,
                reason=reason,
            )
            return
        inside = {name for scope in _scopes.get() if scope.active for name in scope.shards}
        error = UnroutedCallError(shard, command, sorted(inside))
        if self.strict:
            raise error
        self._report(error, _caller())

    def _report(self, error: UnroutedCallError, caller: str) -> None:
        count = self._log_limit.hit(caller)
        if not count:
            return
        logs.logger().warning(
            "application code called a shard without a route. Use `framework.sharding.router`, or give a reason with "
            "`allow_unrouted`",
            event_name="shard.unrouted",
            shard=error.shard,
            command=error.command,
            caller=caller,
            count=count,
        )
        tags = {"shard": error.shard, "command": error.command, "caller": caller}
        self._tracker.capture(error, tags, "shard.unrouted", on_failure="an unrouted call could not be reported")


def command_names(packet: Any) -> str:
    """Return the names of packed commands for messages, without MULTI and EXEC, and only the first few of many."""
    reader: Any = hiredis.Reader()
    names: list[str] = []
    try:
        reader.feed(b"".join(packet))
        while command := reader.gets():
            names.append(command[0].decode(errors="replace").upper())
    except Exception:  # noqa: BLE001 - the application may have packed it itself; a wrong packet must not fail here
        names.append("?")
    plain = [name for name in names if name not in ("MULTI", "EXEC")] or names
    return ", ".join(plain[:_SHOWN_COMMANDS] + ["..."] * (len(plain) > _SHOWN_COMMANDS))


def _is_routed(shard: str) -> bool:
    return any(scope.active and shard in scope.shards for scope in _scopes.get())


def _unrouted_reason() -> str:
    return next((scope.reason for scope in reversed(_scopes.get()) if scope.active and scope.reason), "")


def _caller() -> str:
    place = ""
    for frame, line in traceback.walk_stack(None):
        place = f"{frame.f_code.co_filename}:{line}"
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in _LIBRARY_PACKAGES:
            break
    return place


# The connection is the one place that every command of redis-py passes: of a pipeline, a transaction, a script, a
# subscription or a module's own client.


def validated_client(client: "redis.Redis", shard: str, validator: RoutingValidator) -> "redis.Redis":
    """Return ``client``, which has not connected yet, as a client of application code for ``shard``."""
    pool: Any = client.connection_pool
    kind = pool.connection_class
    pool.connection_class = type(
        f"Validated{kind.__name__}", (_ValidatedConnection, kind), {"shard": shard, "validator": validator}
    )
    return client


class _ValidatedConnection(AbstractConnection):
    """Check the routing of every command; mixed into the connection class of a pool."""

    shard: str
    validator: RoutingValidator
    _in_handshake = False
    """Whether the connection sends its own commands (credentials, its name), which are not checked."""

    def connect(self) -> None:
        # A pool connects before it knows the command. A refused command needs no connection; `check` names it when it is sent.
        if self.is_connected or self.validator.refuses(self.shard):
            return
        self._in_handshake = True
        try:
            super().connect()  # type: ignore[no-untyped-call]
        finally:
            self._in_handshake = False

    def can_read(self, timeout: float = 0) -> bool:
        if not self.is_connected and self.validator.refuses(self.shard):
            return False
        return super().can_read(timeout)

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:  # noqa: FBT001, FBT002 - redis-py's own
        if not self._in_handshake:
            self.validator.check(self.shard, command)
            self.connect()
        super().send_packed_command(command, check_health)  # type: ignore[no-untyped-call]
