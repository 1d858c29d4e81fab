"""Know which rarely used keys do not exist, by one ``EXISTS`` for all of them, so that a process need not read each.

Operators' flags, pauses, limits, waiting jobs and signals exist rarely. To read each of them every few seconds was a third of
the commands of an idle process.
"""

import threading
from collections.abc import Iterable

import redis
from redis.exceptions import ResponseError

from framework.process_clock import process_clock


class AbsentKeys:
    """The keys that did not exist at the last check. One thread calls ``check``; every other method is safe from any thread.

    A key is in one of two states. At first its reader reads it, and notes when the key is missing; from then on ``check`` asks for
    it. When ``check`` finds any key, all keys that it asked for have to be read again, as the reply does not say which exists.
    An answer that is older than ``max_age_s``, or an error, means that every key may exist.
    """

    def __init__(self, names: Iterable[str] = (), max_age_s: float = 0.0) -> None:
        self._names = frozenset(names)
        self._max_age_s = max_age_s
        self._lock = threading.Lock()
        self._to_read = set(self._names)
        self._absent = frozenset[str]()
        self._checked_at = 0.0
        self.round_trip_s = 0.0
        """The duration of the last check."""

    def watch(self, *names: str) -> None:
        """Check these keys too. Call it while the process is built, before any thread uses this object."""
        self._names |= set(names)
        self._to_read.update(names)

    def check(self, client: "redis.Redis") -> bool:
        """Ask for the keys that were missing; return whether any exists now. Raises redis errors, except refusals."""
        with self._lock:
            asked = self._names - self._to_read
        if not asked:
            return False
        # Before the call: a key that is created while the reply is under way is as old as the answer at most.
        sent_at = process_clock.monotonic()
        absent: frozenset[str] = frozenset()
        found = False
        try:
            found = bool(client.exists(*sorted(asked)))
            self.round_trip_s = process_clock.monotonic() - sent_at
            absent = frozenset() if found else asked
        except ResponseError:
            # An ACL may forbid one of the keys: then each reader meets the refusal itself.
            return False
        finally:
            with self._lock:
                if found:
                    self._to_read |= asked
                # A reader may have found one of the keys meanwhile.
                self._absent, self._checked_at = absent - self._to_read, sent_at
        return found

    def may_exist(self, name: str) -> bool:
        """Return whether the key has to be read."""
        with self._lock:
            return name not in self._absent or process_clock.monotonic() - self._checked_at > self._max_age_s

    def note(self, name: str, *, found: bool) -> None:
        """Record what a reader found, or that the key has to be read next (``found``)."""
        with self._lock:
            if found:
                self._to_read.add(name)
                self._absent -= {name}
            else:
                self._to_read.discard(name)
