"""What is to become of one due job, and what the poller tells."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from framework.types import Jid, Payload

Action: TypeAlias = Literal["queue", "dead", "mark", "aside", "gone"]
"""The words of ``enqueue_due.lua``."""


class PollEvents(Protocol):
    """What the poller tells."""

    def due_job_malformed(self, source: str, data: bytes, error: BaseException) -> None:
        """A member could not be read and went to the dead set (``wire/malformed.py``)."""

    def due_job_failed(self, source: str, error: BaseException) -> None:
        """A client middleware raised for a due job; the job stays in its set and is due again in a minute."""

    def due_job_dropped(self, source: str, payload: Payload) -> None:
        """A client middleware did not yield for a due job: it is gone, as at a push."""

    def due_set_wrong_type(self, source: str, error: BaseException) -> None:
        """The key of ``retry`` or ``schedule`` is of another type."""

    def shard_failed(self, shard: str, error: BaseException) -> None:
        """Another shard did not take the jobs that are due there; they are due again in a minute."""

    def queue_wrong_type(self, queue: str) -> None:
        """A queue's key is no list; the job is due again in a minute."""

    def trimmed(self, count: int) -> None:
        """Old entries left the dead set."""


@dataclass(frozen=True, slots=True)
class DueAction:
    """One due job's next step; ``data`` is what is written.

    ``first`` is called before it is done, and may raise redis errors: then nothing is done. ``tell`` is called when it was.
    """

    member: bytes
    action: Action
    data: bytes = b""
    queue: str = ""
    before: Callable[[], None] | None = None
    on_done: Callable[[], None] | None = None
    lock_argument: bytes | str = b""
    """Its claim on its lock, where it goes to its queue; what it holds, where it goes for good."""
    on_duplicate: Callable[[Jid], None] | None = None
    """Called with the jid of the job whose duplicate it was, when it has been dropped as one."""


@dataclass(frozen=True, slots=True)
class ShardTransfer:
    """One due job that goes to another shard: written there under ``token``, then removed here."""

    member: bytes
    data: bytes
    queue: str
    shard: str
    token: str
    lock_request: bytes = b""
    """On its lock there."""
    resources: str = ""
    """Here."""
    on_duplicate: Callable[[Jid], None] | None = None
    """As of a ``DueAction``."""
