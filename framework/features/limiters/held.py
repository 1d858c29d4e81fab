"""Note which concurrent limiters the running job or block holds: a block inside that takes one again would wait for itself."""

import asyncio
import threading
from contextvars import ContextVar
from typing import NamedTuple

from framework.errors import NestedLimiterError


class _Held(NamedTuple):
    name: str
    key: str
    owner: object
    """The task or the thread of a block; ``None`` for a job, whose tasks and threads are all inside."""


_held: ContextVar[tuple[_Held, ...]] = ContextVar("held_limiters", default=())


def check_not_held(name: str, key: str) -> None:
    """Raise NestedLimiterError if the calling code is inside of a block, or of a job, that holds the limiter for this key."""
    held = _held.get()
    if held and any(one[:2] == (name, key) and one.owner in (None, _owner()) for one in held):
        raise NestedLimiterError(name, key)


def note_held(name: str, key: str, *, whole_job: bool = False) -> None:
    """Note that the calling block, or the job, holds the limiter."""
    _held.set((*_held.get(), _Held(name, key, None if whole_job else _owner())))


def note_released(name: str, key: str) -> None:
    """Note that the block has ended. In another context than its begin this finds nothing, and changes nothing."""
    held = _held.get()
    found = next((one for one in reversed(held) if one[:2] == (name, key) and one.owner == _owner()), None)
    if found is not None:
        _held.set(tuple(one for one in held if one is not found))


def _owner() -> object:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.get_ident() if task is None else id(task)
