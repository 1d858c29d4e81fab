"""Declare what a push needs from the deduplication policy, which stands in a higher layer."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from framework.declare.declaration import Declaration
from framework.declare.policy_options import Deduplicate
from framework.types import Jid, Payload
from framework.wire.resources import LockRequest, LockTerms, WindowTerms
from framework.wire.status_key import StatusCommand

KeyMaker: TypeAlias = Callable[[Sequence[bytes]], list[str]]
"""Returns the lock keys of jobs of one class from their arguments as JSON, not compressed."""


class PushLocks(Protocol):
    """Make the lock requests of deduplicated jobs. Shared between threads."""

    def policy(self, declaration: Declaration, shard: str, *, scheduled: bool) -> Deduplicate | None:
        """Return the deduplication policy for a push, or ``None`` if this push must not be deduplicated."""
        ...

    def set_key(self, payload: Payload, declaration: Declaration, args: list[Any]) -> None:
        """Set the lock key of a payload, computed from ``args``; an existing key is kept."""
        ...

    def key_maker(self, declaration: Declaration) -> KeyMaker:
        """Return the function that makes the lock keys of jobs pushed now."""
        ...

    def lock_terms(self, declaration: Declaration, policy: Deduplicate) -> LockTerms:
        """Return the terms that the lock requests of all jobs of a push share."""
        ...

    def window_terms(self, declaration: Declaration, policy: Deduplicate) -> WindowTerms | None:
        """Return the terms that the jobs of a push with a window share; ``None`` for a policy without a window."""
        ...

    def lock_request(
        self,
        payload: Payload,
        declaration: Declaration,
        policy: Deduplicate,
        status_command: StatusCommand | None,
        due: float | None = None,
    ) -> LockRequest:
        """Return the request of a job for the lock that its payload names. ``due`` is when a scheduled job is due."""
        ...

    def log_duplicate(self, payload: Payload, declaration: Declaration, policy: Deduplicate, owner: Jid) -> None:
        """Log a duplicate that was dropped."""
        ...
