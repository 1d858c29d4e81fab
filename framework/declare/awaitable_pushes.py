"""Define the awaitable twins of a worker's pushes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from framework.declare.options import Moment
from framework.declare.request import JobRequest, P, Performs
from framework.declare.setter import setter_of
from framework.types import Jid, Json

T = TypeVar("T")


class AwaitablePushes:
    """Push from a coroutine. Each method pushes as its twin without ``a``, in a thread, while the event loop goes on.

    The arguments must not change until the push has ended. When the waiting task is cancelled, the push may have been made.
    """

    @classmethod
    async def aperform_async(cls: type[Performs[P]], *args: P.args, **kwargs: P.kwargs) -> Jid | None:
        """Push the job as ``perform_async`` does, and with its errors."""
        return await setter_of(cls).aperform_async(*args, **kwargs)

    @classmethod
    async def aperform_in(
        cls: type[Performs[P]], delay: timedelta | float, /, *args: P.args, **kwargs: P.kwargs
    ) -> Jid | None:
        """Push the job as ``perform_in`` does, and with its errors."""
        return await setter_of(cls).aperform_in(delay, *args, **kwargs)

    @classmethod
    async def aperform_at(
        cls: type[Performs[P]], when: datetime | float, /, *args: P.args, **kwargs: P.kwargs
    ) -> Jid | None:
        """Push the job as ``perform_at`` does, and with its errors."""
        return await setter_of(cls).aperform_at(when, *args, **kwargs)

    @classmethod
    async def aperform_bulk(
        cls: type[Performs[P]],
        jobs: Iterable[Sequence[Any]],
        /,
        *,
        at: Moment | Iterable[Moment] | None = None,
        spread_interval: timedelta | float | None = None,
    ) -> list[Jid | None]:
        """Push the jobs as ``perform_bulk`` does, and with its errors. The iterables are read in another thread."""
        return await setter_of(cls).aperform_bulk(jobs, at=at, spread_interval=spread_interval)

    @classmethod
    async def aperform_bulk_stream(
        cls: type[Performs[P]],
        jobs: Iterable[Sequence[Any]],
        /,
        *,
        spread_interval: timedelta | float | None = None,
    ) -> int:
        """Push the jobs as ``perform_bulk_stream`` does, and with its errors. Cancelled, it ends after the chunk in progress."""
        return await setter_of(cls).aperform_bulk_stream(jobs, spread_interval=spread_interval)

    @classmethod
    async def aperform_bulk_in(
        cls: type[Performs[P]],
        delay: timedelta | float,
        jobs: Iterable[Sequence[Any]],
        /,
        *,
        batch_size: int | None = None,
        batch_delay: timedelta | float | None = None,
    ) -> list[Jid | None]:
        """Push the jobs as ``perform_bulk_in`` does, and with its errors."""
        return await setter_of(cls).aperform_bulk_in(delay, jobs, batch_size=batch_size, batch_delay=batch_delay)

    @classmethod
    async def aperform_bulk_for(
        cls: type[Performs[P]],
        objects: Iterable[T],
        *,
        arguments: Callable[[T], JobRequest[P]],
        context: Callable[[T], Mapping[str, Json]] | None = None,
        delay: timedelta | float | None = None,
        batch_size: int | None = None,
        batch_delay: timedelta | float | None = None,
        at: Callable[[T], Moment] | None = None,
        spread_interval: timedelta | float | None = None,
    ) -> list[Jid | None]:
        """Push the jobs as ``perform_bulk_for`` does, and with its errors. The functions are called in another thread."""
        return await setter_of(cls).aperform_bulk_for(
            objects,
            arguments=arguments,
            context=context,
            delay=delay,
            batch_size=batch_size,
            batch_delay=batch_delay,
            at=at,
            spread_interval=spread_interval,
        )
