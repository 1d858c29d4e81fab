"""Count the replies that may bring jobs and have not been read yet.

Redis moves a job to the working list before the process reads the reply. A reply stays unread while the process is stopped
(SIGSTOP) or its reader is busy; until then a job in the working list that memory does not know is no lost job.
"""

from collections.abc import Callable
from typing import NamedTuple


class ReplySnapshot(NamedTuple):
    """A moment, as the numbers of calls that were under way at it."""

    fetches: int
    polls: int


class ReplyTracker:
    """Counts of calls. Each count has one writer at a time: the holder of the pipeline's lock, or the leader."""

    wake_leader: Callable[[], None]
    """Makes the leader poll the blocking calls now."""

    def __init__(self) -> None:
        self.fetches_sent = 0
        """Fetches sent; at most one is under way."""
        self.fetches_read = 0
        """Fetches whose reply was read or given up: their jobs are in flight."""
        self.polls_started = 0
        """Polls of the blocking calls that have started."""
        self.polls_ended = 0
        """The last poll that has ended: the jobs that had arrived at its start are in flight."""
        self.poll_requested = False
        """Whether a thread waits for the next poll."""

    def snapshot(self) -> ReplySnapshot:
        """Return the present moment, and make the leader read soon what is under way."""
        taken = ReplySnapshot(self.fetches_sent, self.polls_started + 1)
        self.poll_requested = True
        self.wake_leader()
        return taken

    def all_read_since(self, snapshot: ReplySnapshot) -> bool:
        """Return whether every call that was under way at that moment has been read or given up."""
        return self.fetches_read >= snapshot.fetches and self.polls_ended >= snapshot.polls
