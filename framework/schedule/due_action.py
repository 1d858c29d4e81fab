"""Define the action for one due job, and the events of the poller."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from framework.types import Jid, Payload

Action: TypeAlias = Literal["queue", "dead", "mark", "delay", "remove"]
"""The actions of ``enqueue_due.lua``."""


class PollEvents(Protocol):
    """Receive the events of the poller."""

    def due_job_malformed(self, source: str, data: bytes, error: BaseException) -> None:
        """Report a member that could not be read and went to the dead set (``wire/malformed.py``)."""

    def due_job_failed(self, source: str, error: BaseException) -> None:
        """Report a client middleware that raised for a due job. The job stays in its set and is due again in a minute."""

    def due_job_dropped(self, source: str, payload: Payload) -> None:
        """Report a due job that a client middleware dropped by not yielding, as at a push."""

    def due_set_wrong_type(self, source: str, error: BaseException) -> None:
        """Report that the key of ``retry`` or ``schedule`` has another type."""

    def shard_failed(self, shard: str, error: BaseException) -> None:
        """Report another shard that did not receive its due jobs. They are due again in a minute."""

    def queue_wrong_type(self, queue: str) -> None:
        """Report a queue whose key is not a list. The job is due again in a minute."""

    def trimmed(self, count: int) -> None:
        """Report old entries removed from the dead set."""


@dataclass(frozen=True, slots=True)
class DueAction:
    """Hold the action for one due job; ``data`` are the bytes to write.

    ``before`` is called before the action and may raise redis errors: then nothing is done. ``on_done`` is called after it.
    """

    member: bytes
    action: Action
    data: bytes = b""
    queue: str = ""
    before: Callable[[], None] | None = None
    on_done: Callable[[], None] | None = None
    lock_argument: bytes | str = b""
    """The lock request of a job that goes to its queue; the resources of a job that ends."""
    on_duplicate: Callable[[Jid], None] | None = None
    """Called with the jid of the lock's owner if the job was dropped as its duplicate."""


@dataclass(frozen=True, slots=True)
class ShardTransfer:
    """Hold one due job for another shard: written there under ``token``, then removed here."""

    member: bytes
    data: bytes
    queue: str
    shard: str
    token: str
    lock_request: bytes = b""
    """The request for its lock on the other shard."""
    resources: str = ""
    """Its resources on this shard."""
    on_duplicate: Callable[[Jid], None] | None = None
    """As in ``DueAction``."""
