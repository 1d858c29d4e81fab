"""Hold exclusive leases in the memory of a test, by the clock of its mode."""

import threading
import time
from collections.abc import Callable

from framework.features.leases.holder import LeaseHolder
from framework.features.leases.store import Leases


class MemoryLeases(Leases):
    """The leases of a test. ``take`` gives one to another holder, which the test simulates."""

    def __init__(self) -> None:
        # Not the constructor of the base: there is no shard.
        self.clock: Callable[[], float] = time.time
        self._lock = threading.Lock()
        self._held: dict[tuple[str, str], tuple[str, float]] = {}

    def take(self, name: str, *, timeout_s: float = 3_600.0, shard: str = "main") -> None:
        """Let another holder have the lease from now on: its holder in the test has lost it."""
        with self._lock:
            self._held[shard, name] = ("another holder", self.clock() + timeout_s)

    def clear(self) -> None:
        """Let every lease be free."""
        with self._lock:
            self._held.clear()

    def obtain(self, shard: str, name: str, token: str, timeout_s: float) -> LeaseHolder | None:
        """See ``Leases``."""
        with self._lock:
            found = self._find(shard, name)
            if found is not None and found[0] != token:
                return LeaseHolder(found[0], found[1] - self.clock())
            self._held[shard, name] = (token, self.clock() + timeout_s)
            return None

    def renew(self, shard: str, name: str, token: str, timeout_s: float) -> bool:
        """See ``Leases``."""
        with self._lock:
            found = self._find(shard, name)
            if found is None or found[0] != token:
                return False
            self._held[shard, name] = (token, self.clock() + timeout_s)
            if not timeout_s:
                del self._held[shard, name]
            return True

    def holder(self, shard: str, name: str) -> LeaseHolder | None:
        """See ``Leases``."""
        with self._lock:
            found = self._find(shard, name)
            return None if found is None else LeaseHolder(found[0], found[1] - self.clock())

    def _find(self, shard: str, name: str) -> tuple[str, float] | None:
        found = self._held.get((shard, name))
        return found if found is not None and self.clock() < found[1] else None
