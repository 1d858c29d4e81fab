"""Which replies that may bring jobs have not been read yet: a job is in our working list before we have heard of it.

They lie unread for as long as we are stopped, or as whoever reads them does something else; meanwhile their jobs look lost.
"""

from collections.abc import Callable
from typing import NamedTuple


class Mark(NamedTuple):
    """A moment, told by what had been sent until then."""

    calls: int
    looks: int


class Replies:
    """Counts what is under way. Each count has one writer at a time: who holds the exchange, or mans the post."""

    hurry: Callable[[], None]
    """Lets the thread at the post look at the parked calls now."""

    def __init__(self) -> None:
        self.asked = 0
        """Fetches sent; at most one is under way."""
        self.answered = 0
        """Fetches answered or given up: what they brought is in custody."""
        self.begun = 0
        """Looks at the parked calls that have begun."""
        self.looks = 0
        """The last of them that has ended: what had come until it began is in custody."""
        self.again = False
        """Whether somebody waits for the next look."""

    def mark(self) -> Mark:
        """Return this moment, and see that what is under way now is read soon."""
        mark = Mark(self.asked, self.begun + 1)
        self.again = True
        self.hurry()
        return mark

    def read_since(self, mark: Mark) -> bool:
        """Whether everything that was under way at that moment has been read, or given up."""
        return self.answered >= mark.calls and self.looks >= mark.looks
