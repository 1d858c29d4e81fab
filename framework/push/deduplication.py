"""Make the lock requests of pushes. The policy, which decides them, stands in a higher layer."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from framework.declare.declaration import Declaration
from framework.declare.policy_options import Deduplicate
from framework.declare.request import DueTime
from framework.types import Jid, Json, Payload
from framework.wire.json import loads
from framework.wire.resources import (
    IDEMPOTENCY_KEY,
    LockDetails,
    LockRequest,
    LockTerms,
    UniqueJobs,
    WindowJobs,
    WindowTerms,
    wal_positions_of,
)
from framework.wire.status_key import StatusCommand

NO_DETAILS = LockDetails({})
"""The details of a job that is due now, is not tracked, and has no WAL positions."""


KeyMaker: TypeAlias = Callable[[Sequence[bytes]], list[str]]
"""Returns the lock keys of jobs of one class from their arguments as JSON, not compressed."""


class PushLocks(ABC):
    """Make the lock requests of deduplicated jobs. Shared between threads. A feature decides which push takes which lock."""

    @abstractmethod
    def policy(self, declaration: Declaration, shard: str, *, scheduled: bool) -> Deduplicate | None:
        """Return the deduplication policy for a push, or ``None`` if this push must not be deduplicated."""

    @abstractmethod
    def set_key(self, payload: Payload, declaration: Declaration, args: list[Any]) -> None:
        """Set the lock key of a payload, computed from ``args``; an existing key is kept."""

    @abstractmethod
    def key_maker(self, declaration: Declaration) -> KeyMaker:
        """Return the function that makes the lock keys of jobs pushed now."""

    @abstractmethod
    def lock_terms(self, declaration: Declaration, policy: Deduplicate) -> LockTerms:
        """Return the terms that the lock requests of all jobs of a push share."""

    @abstractmethod
    def window_terms(self, declaration: Declaration, policy: Deduplicate) -> WindowTerms | None:
        """Return the terms that the jobs of a push with a window share; ``None`` for a policy without a window."""

    @abstractmethod
    def lock_request(
        self,
        payload: Payload,
        declaration: Declaration,
        policy: Deduplicate,
        status_command: StatusCommand | None,
        due: float | None = None,
    ) -> LockRequest:
        """Return the request of a job for the lock that its payload names. ``due`` is when a scheduled job is due."""

    @abstractmethod
    def log_duplicate(self, payload: Payload, declaration: Declaration, policy: Deduplicate, owner: Jid) -> None: ...


class Deduplication:
    """Make the lock requests of a class's jobs. Shared between threads."""

    def __init__(self, declaration: Declaration, policy: Deduplicate, locks: PushLocks, shard: str) -> None:
        self._declaration = declaration
        self._policy = policy
        self._locks = locks
        self._shard = shard
        self.on_duplicates: Callable[[Sequence[tuple[Jid, Jid]]], None] | None = None
        """Receives the dropped duplicates of a tracked class, each with the job that stands for it."""
        self.on_dropped: Callable[[bytes], None] | None = None
        """Receives the payload of each dropped duplicate."""
        self.window_s = None if policy.window is None else policy.window.total_seconds()
        """How long a push without a time of its own waits for further ones; ``None`` for a policy without a window."""
        windows = locks.window_terms(declaration, policy)
        self._kind = UniqueJobs if windows is None else WindowJobs
        self._terms = windows or locks.lock_terms(declaration, policy)
        # The last terms: most pushes of a class have the same, without WAL positions and due time.
        self._encoded = (NO_DETAILS, self._terms.encode(NO_DETAILS))
        self.lock_keys = locks.key_maker(declaration)
        """Returns the lock keys of jobs with these arguments (JSON, not compressed)."""

    def is_enabled(self, *, scheduled: bool) -> bool:
        """Return whether a push, delayed or not, is deduplicated now; a feature flag may disable it."""
        if not scheduled and self._policy.feature_flag is None:
            return True
        return self._locks.policy(self._declaration, self._shard, scheduled=scheduled) is not None

    def set_key(self, payload: Payload) -> str:
        """Set the lock key of a payload whose arguments are not compressed, and return it; an existing key is kept."""
        self._locks.set_key(payload, self._declaration, payload["args"])
        key: str = payload[IDEMPOTENCY_KEY]
        return key

    def unique_jobs(
        self,
        payloads: Sequence[bytes],
        lock_keys: Sequence[str],
        jids: Sequence[Jid],
        details: Sequence[LockDetails],
    ) -> UniqueJobs:
        """Return jobs for the script that writes them. ``details`` has one item per job, or one for all jobs."""
        if len(details) > 1:
            return self._kind.of(self._terms.encode, payloads, lock_keys, jids, details)
        # One object for both values: another thread may replace it.
        encoded = self._encoded
        if encoded[0] != details[0]:
            encoded = self._encoded = (details[0], self._terms.encode(details[0]))
        return self._kind(encoded[1], payloads, lock_keys, jids)

    def lock_request(self, payload: Payload, due: float | None = None) -> LockRequest:
        """Return the lock request of a job for a script that writes it with other things. The payload has its lock key.

        ``due`` is when a scheduled job is due.
        """
        return self._locks.lock_request(payload, self._declaration, self._policy, None, due)

    def written(self, jobs: UniqueJobs, owners: Sequence[Jid]) -> Sequence[Jid | None]:
        """Return the ids of the jobs that are written, ``None`` for each dropped duplicate; log the duplicates.

        ``owners`` has the job that owns the lock of each duplicate. A class that is not idempotent drops no job.
        """
        if isinstance(jobs, WindowJobs):
            return self._window_written(jobs, owners)
        if not self._declaration.idempotent or not any(owners):
            return jobs.jids
        if self.on_duplicates is not None:
            self.on_duplicates([pair for pair in zip(jobs.jids, owners, strict=True) if pair[1]])
        for payload, owner in zip(jobs.payloads, owners, strict=True):
            if owner and self.on_dropped is not None:
                self.on_dropped(payload)
            if owner:
                self._locks.log_duplicate(loads(payload, None), self._declaration, self._policy, owner)
        return [None if owner else jid for jid, owner in zip(jobs.jids, owners, strict=True)]

    def _window_written(self, jobs: WindowJobs, found: Sequence[Jid]) -> Sequence[Jid]:
        """Log the jobs that were replaced or added to others; return for each push the id of the job that runs in its place."""
        ended = jobs.ended(found)
        if ended and self.on_duplicates is not None:
            self.on_duplicates([(jid, owner) for jid, owner, _ in ended])
        for jid, owner, data in ended:
            self._locks.log_duplicate({**loads(data, None), "jid": jid}, self._declaration, self._policy, owner)
        return jobs.carriers(found)


def lock_details(
    fields: Mapping[str, Json], due: DueTime | None, status: StatusCommand, expires_in_s: float
) -> LockDetails:
    """Return the details of the lock request of a job with these payload fields; ``status`` records it as queued.

    ``expires_in_s`` is for how long the job may wait for its start, 0 for any time.
    """
    delay_s = None if due is None else due.delay_s
    at = None if due is None or delay_s is not None else due.at
    # The script knows the key of the status.
    return LockDetails(wal_positions_of(fields), at, delay_s, expires_in_s, status[2:])
