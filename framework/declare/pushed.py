"""Define what a push returns on an event loop: a jid, a list or a number whose ``await`` raises an error that says what to do.

A push is no coroutine, and has been made when it returns, so the error cannot come before the write: it names the jobs, so that
the caller does not push them again. Type checkers and ``lint-workers`` (rule ``awaited-push``) find the ``await`` in the source.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Never, TypeVar, cast

from framework.errors import MisuseError
from framework.text import format_count

T = TypeVar("T")

running_loop: Callable[[], object] = asyncio._get_running_loop  # pyright: ignore[reportPrivateUsage]
"""The event loop of this thread, or None. get_running_loop raises instead, which costs a push a microsecond."""


class NotAwaitable:
    """A value of a plain type whose ``await`` raises MisuseError. JSON, copies and pickles of it have the plain type."""

    worker: str
    twin: str
    """What may be awaited instead."""
    plain: type[Any]
    """The type of the value without this check."""

    def __reduce__(self) -> tuple[type[Any], tuple[Any]]:
        return self.plain, (self.plain(self),)

    # Unknown to type checkers, which find the await themselves.
    if not TYPE_CHECKING:

        def __await__(self) -> Never:
            worker = self.worker
            raise MisuseError(
                worker,
                f"a push is not a coroutine. It was made before the await: {self.made()}, so do not push again. Leave out await. "
                "Where the event loop must not wait for Redis, put an a before the name of the method, as in "
                f"await {self.twin}(...)",
            )

    def made(self) -> str:
        """Return the result of the push in words."""
        raise NotImplementedError


class PushedJid(NotAwaitable, str):  # noqa: SLOT000 - its base has none
    """The id of a job."""

    plain = str

    def made(self) -> str:
        return f"its job is {self}"


class PushedJids(NotAwaitable, list[Any]):
    """The ids of the jobs of a bulk push."""

    plain = list

    def made(self) -> str:
        jids = [jid for jid in self if jid is not None]
        shown = f", {jids[0]} to {jids[-1]}" if jids else ""
        return f"it has {format_count(len(jids), 'job')}{shown}"


class PushedCount(NotAwaitable, int):
    """The number of the jobs of a stream."""

    plain = int

    def made(self) -> str:
        return f"it has {format_count(int(self), 'job')}"


_KINDS: dict[type[Any], Callable[[Any], NotAwaitable]] = {str: PushedJid, list: PushedJids, int: PushedCount}


def not_awaitable(worker: str, result: T) -> T:
    """Return what a push on an event loop returns. A dropped push is None, whose ``await`` Python refuses."""
    make = _KINDS.get(type(result))
    if make is None:
        return result
    made = make(result)
    made.worker, made.twin = worker, f"{worker.rpartition('.')[2]}.aperform_async"
    return cast("T", made)


def with_twin(twin: str, result: T) -> T:
    """Return the result of a push that a function of this package has made; ``twin`` is the function that may be awaited."""
    if isinstance(result, NotAwaitable):
        result.twin = twin
    return result
