"""Things that happen again and again, told once in a while with their count."""

import threading


class Repeated:
    """Says when a line is due: at most one per thing in ``quiet_s`` seconds. Safe to call from any thread.

    It remembers every thing it was asked about, so there must be an end of them.
    """

    def __init__(self, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[float, int]] = {}

    def due(self, thing: str, now: float) -> int:
        """Return how often ``thing`` happened since its last line, 0 when it is too early for another; ``now`` is in seconds."""
        with self._lock:
            last, count = self._seen.get(thing, (now - self._quiet_s, 0))
            due = now - last >= self._quiet_s
            self._seen[thing] = (now, 0) if due else (last, count + 1)
            return count + 1 if due else 0
