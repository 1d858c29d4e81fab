"""Declare what a push needs from the deduplication policy, which stands in a higher layer."""

from typing import Any, Protocol

from framework.declare.declaration import Declaration
from framework.declare.policy_options import Deduplicate
from framework.declare.request import DueTime
from framework.types import Jid, Payload
from framework.wire.resources import LockRequest
from framework.wire.status_key import StatusCommand


class PushLocks(Protocol):
    """Make the lock requests of deduplicated jobs. Shared between threads."""

    def policy(self, declaration: Declaration, shard: str, *, scheduled: bool) -> Deduplicate | None:
        """Return the deduplication policy for a push, or ``None`` if this push must not be deduplicated."""
        ...

    def set_key(self, payload: Payload, declaration: Declaration, args: list[Any]) -> None:
        """Set the lock key of a payload, computed from ``args``; an existing key is kept."""
        ...

    def lock_request(
        self,
        payload: Payload,
        declaration: Declaration,
        policy: Deduplicate,
        due: DueTime | None,
        status_command: StatusCommand | None,
    ) -> LockRequest:
        """Return the request of a payload for the lock that it names; ``due`` if it goes to the schedule set."""
        ...

    def log_duplicate(self, payload: Payload, declaration: Declaration, policy: Deduplicate, owner: Jid) -> None:
        """Log a duplicate that was dropped."""
        ...
