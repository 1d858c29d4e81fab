"""Name the sub-queues of a queue that gives each key of its jobs a turn: ``NAME~KEY``."""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

SEPARATOR = "~"
"""Stands between the name of a queue and a key. No queue name has this character."""

FAIR_QUEUE = "aw_fair_queue"
"""Field of a job with a key: its sub-queue, to which it goes whenever it arrives at its queue."""

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_.:@-]{1,64}").fullmatch


def sub_queue(queue: str, key: str) -> str:
    """Return the name of the sub-queue of a key. A key with other characters, or a long one, is replaced by its digest."""
    if not _PLAIN_KEY(key):
        key = "sha1:" + hashlib.sha1(key.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()
    return f"{queue}{SEPARATOR}{key}"


def parent_of(name: str) -> str:
    """Return the queue of a sub-queue, and any other name as it is."""
    return name.partition(SEPARATOR)[0]


def arrival_queue(payload: Mapping[str, Any], queue: str) -> str:
    """Return where a job arrives that goes to ``queue``: its sub-queue there, if it has one."""
    found = payload.get(FAIR_QUEUE)
    return found if isinstance(found, str) and found.startswith(queue + SEPARATOR) else queue
