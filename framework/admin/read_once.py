"""Read a fact of an object once, without a lock that all objects of its class share."""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import cached_property
from typing import TypeVar

T = TypeVar("T")


class ReadOnce(cached_property[T]):
    """A property that is read at its first use and kept.

    Python 3.11's ``cached_property`` holds one lock for all objects while it reads: the facts of four shards would come one after
    another, and a shard that does not answer would hold up the others. Python 3.12 has no lock. Two threads that share an object
    may read twice; the last value stays.
    """

    if sys.version_info < (3, 12):

        def __init__(self, func: Callable[..., T]) -> None:
            super().__init__(func)
            self.lock = nullcontext()
