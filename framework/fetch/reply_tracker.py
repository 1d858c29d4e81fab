"""Which replies that may bring jobs have not been read yet: a job is in our working list before we have heard of it.

They lie unread for as long as we are stopped, or as whoever reads them does something else; meanwhile their jobs look lost.
"""

from collections.abc import Callable
from typing import NamedTuple


class ReplySnapshot(NamedTuple):
    """A moment, told by what had been sent until then."""

    fetches: int
    polls: int


class ReplyTracker:
    """Counts what is under way. Each count has one writer at a time: who holds the exchange, or mans the post."""

    wake_leader: Callable[[], None]
    """Lets the thread at the post look at the parked calls now."""

    def __init__(self) -> None:
        self.fetches_sent = 0
        """Fetches sent; at most one is under way."""
        self.fetches_read = 0
        """Fetches answered or given up: what they brought is in custody."""
        self.polls_started = 0
        """Looks at the parked calls that have begun."""
        self.polls_ended = 0
        """The last of them that has ended: what had come until it began is in custody."""
        self.poll_requested = False
        """Whether somebody waits for the next look."""

    def snapshot(self) -> ReplySnapshot:
        """Return this moment, and see that what is under way now is read soon."""
        mark = ReplySnapshot(self.fetches_sent, self.polls_started + 1)
        self.poll_requested = True
        self.wake_leader()
        return mark

    def all_read_since(self, snapshot: ReplySnapshot) -> bool:
        """Whether everything that was under way at that moment has been read, or given up."""
        return self.fetches_read >= snapshot.fetches and self.polls_ended >= snapshot.polls
