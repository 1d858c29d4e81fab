"""A job in custody: its bytes as fetched and the queue they came from, and, once it runs, since when and where."""

from dataclasses import dataclass

from framework.types import Payload
from framework.wire.holds import Holds, Lock


@dataclass(slots=True, eq=False)
class UnitOfWork:
    """One fetched job. ``data`` is never changed: the working list is searched for these very bytes."""

    queue: str
    data: bytes
    fetched_at: float = 0.0
    """Seconds of the fetcher's clock, when it was asked for: our lease was renewed then or later."""
    slot: int = -1
    """The slot that it occupies while it runs."""
    started_at: float = 0.0
    """Epoch seconds; 0 until it runs."""
    thread: int = 0
    """Identifier of the thread that runs it."""
    holds: Holds | None = None
    """Its lock and its slots; ``None`` for most jobs, which have neither."""
    gave: Lock | None = None
    """The lock that it let go of as it began: should it go back to its queue, it takes it again if it is free."""
    found: Payload | None = None
    """Fields that a policy has found out before its run: its payload has them when it waits for another."""

    def goes_back(self) -> str:
        """Return what a script is told of what it holds when it goes back to its queue; empty for nothing."""
        if self.gave is not None:
            return Holds(self.gave, self.holds.slots if self.holds is not None else []).goes_back()
        return self.holds.goes_back() if self.holds is not None else ""
