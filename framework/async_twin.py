"""Make the asynchronous twin of a function or method: the same call, in a thread."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from functools import wraps
from itertools import islice
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_PAGE = 100
"""Items per step of a loop: a thread is asked once for all of them."""


def async_twin(function: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Return a coroutine function that calls ``function`` in a thread, so that the event loop goes on.

    The context of the caller holds in the thread, ``admin.read_only`` for example. A cancelled call ends in its thread.
    """

    @wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(function, *args, **kwargs)

    call.__name__ = f"a{function.__name__}"
    call.__qualname__ = ".".join([*function.__qualname__.split(".")[:-1], call.__name__])
    call.__doc__ = f"Call ``{function.__name__}`` without blocking the event loop, with its result and its errors."
    return call


async def async_items(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items; they are read in a thread, a page at a time."""
    iterator = iter(items)
    while page := await asyncio.to_thread(list, islice(iterator, _PAGE)):
        for item in page:
            yield item
