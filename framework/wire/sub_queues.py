"""Name the sub-queues of a queue: ``NAME~KEY`` for the jobs of a key, ``NAME~LEVEL^KEY`` for those of a level (and of no key).

Processes fetch from the queue's own list and wait there, as thousands of lists would cost each fetch and each idle process more.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final, get_args

from framework.types import Priority
from framework.wire.json import loads_object

SEPARATOR = "~"
"""Stands between the name of a queue and a key. No queue name has this character."""

_LEVEL_END = "^"
"""Stands between a level and a key. No key has this character."""

_ASIDE = "aside"
"""Stands where a level stands in the name of a list beside a queue. It is none, so no key of a job makes such a name."""

SUB_QUEUE = "aw_sub_queue"
"""Field of a job with a key or a level: its sub-queue, to which it goes whenever it arrives at its queue.

A job whose class declares a priority has its level there, also the normal one: it says that this queue's processes know of levels.
"""

PRIORITY = "priority"
"""Field of a job whose class declares a priority: its level."""

LEVELS: tuple[Priority, ...] = get_args(Priority)
"""The levels, the first to run first."""

NORMAL: Final = "normal"
"""The level of jobs without one, and of the jobs in the queue's own list."""

_FIELD = f'"{SUB_QUEUE}":'.encode()
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_.:@-]{1,64}").fullmatch


def sub_queue(queue: str, key: str, level: str | None = None) -> str:
    """Return the sub-queue of a key and a level, as the field has it; the queue itself for a job without both.

    A key with other characters than a name, or a long one, is replaced by its digest.
    """
    if key and not _PLAIN_KEY(key):
        key = "sha1:" + hashlib.sha1(key.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()
    if level is not None:
        key = f"{level}{_LEVEL_END}{key}"
    return f"{queue}{SEPARATOR}{key}" if key else queue


def aside_list(queue: str, worker: str) -> str:
    """Return the list beside a queue for jobs of a class that are set aside: a sub-queue, which no key of a job names."""
    return f"{sub_queue(queue, _ASIDE)}{_LEVEL_END}{sub_queue('', worker)[1:]}"


def is_aside(name: str) -> bool:
    """Return whether a list is one beside a queue, whose jobs are set aside."""
    return name.partition(SEPARATOR)[2].startswith(_ASIDE + _LEVEL_END)


def list_of(found: str) -> str:
    """Return the list of a sub-queue, as the field has it: normal jobs without a key wait in the queue's own list."""
    queue, _, key = found.partition(SEPARATOR)
    level, end, rest = key.partition(_LEVEL_END)
    if end and level == NORMAL:
        key = rest
    return f"{queue}{SEPARATOR}{key}" if key else queue


def parent_of(name: str) -> str:
    """Return the queue of a sub-queue, and any other name as it is."""
    return name.partition(SEPARATOR)[0]


def level_of(name: str) -> Priority:
    """Return the level of the jobs in a queue's own list or in a sub-queue."""
    level, end, _ = name.partition(SEPARATOR)[2].partition(_LEVEL_END)
    return level if end and level in LEVELS else NORMAL


def at_level(found: object, level: Priority) -> str | None:
    """Return a sub-queue, as the field has it, at another level of the same queue and key; ``None`` if it has no level."""
    if not isinstance(found, str) or SEPARATOR not in found or _LEVEL_END not in found:
        return None
    queue, _, key = found.partition(SEPARATOR)
    # The key is a plain one, or a digest, already.
    return sub_queue(queue, key.partition(_LEVEL_END)[2], level)


def arrival_queue(payload: Mapping[str, Any], queue: str) -> str:
    """Return where a job arrives that goes to ``queue``: its sub-queue there, if it has one."""
    found = payload.get(SUB_QUEUE)
    return list_of(found) if isinstance(found, str) and found.startswith(queue + SEPARATOR) else queue


def return_queue(queue: str, data: bytes) -> str:
    """Return the list to whose head a fetched job goes back: that of its level, or the queue for a normal job."""
    # A normal job of a sub-queue has used its turn. Nearly every job ends here, and none is decoded for it.
    if _FIELD not in data:
        return queue
    found = arrival_queue(loads_object(data), queue)
    return queue if level_of(found) == NORMAL else found


def start_queue(queue: str, payload: Mapping[str, Any]) -> str:
    """Return the list for a job that gets a slot later. A job of low priority goes to the queue itself, because its slot expires."""
    if SUB_QUEUE not in payload:
        return queue
    found = arrival_queue(payload, queue)
    return found if LEVELS.index(level_of(found)) < LEVELS.index(NORMAL) else queue


def order_of(name: str) -> tuple[int, str]:
    """Return the key by which lists of one queue are sorted, the first to run first."""
    return LEVELS.index(level_of(name)), name
