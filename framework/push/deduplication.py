"""Describe the locks of the jobs of one class for the script that writes them, and handle its answers."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from framework.declare.declaration import Declaration
from framework.declare.policy_options import Deduplicate
from framework.declare.request import DueTime
from framework.push.lock_port import PushLocks
from framework.types import Jid, Json, Payload
from framework.wire.json import dumps, loads
from framework.wire.resources import IDEMPOTENCY_KEY, LockDetails, wal_positions_of
from framework.wire.status_key import StatusCommand

_NO_DETAILS = LockDetails({})


class BatchLocks(NamedTuple):
    """Hold the lock requests of a batch: a key per job, and the terms that they share (``push_unique.lua``)."""

    keys: Sequence[str]
    terms: bytes
    details: Sequence[bytes]
    """Per job the details that replace those of the terms; empty if all jobs have the same."""


class Deduplication:
    """Make the lock requests of a class's jobs. Shared between threads."""

    def __init__(self, declaration: Declaration, policy: Deduplicate, locks: PushLocks, shard: str) -> None:
        self._declaration = declaration
        self._policy = policy
        self._shard = shard
        self._terms = locks.lock_terms(declaration, policy)
        # Most pushes have no WAL positions, no due time and no status: their terms are the same.
        self._usual_terms = self._terms.encode(_NO_DETAILS)
        self._locks = locks

    def is_enabled(self, *, scheduled: bool) -> bool:
        """Return whether a push, delayed or not, is deduplicated now; a feature flag may disable it."""
        return self._locks.policy(self._declaration, self._shard, scheduled=scheduled) is not None

    def lock_keys(self, arguments: Sequence[bytes]) -> list[str]:
        """Return the lock keys of jobs with these arguments (JSON, not compressed)."""
        return self._locks.lock_keys(self._declaration, arguments)

    def set_key(self, payload: Payload) -> str:
        """Set the lock key of a payload whose arguments are not compressed, and return it; an existing key is kept."""
        self._locks.set_key(payload, self._declaration, payload["args"])
        key: str = payload[IDEMPOTENCY_KEY]
        return key

    def batch_locks(self, lock_keys: Sequence[str], details: Sequence[LockDetails]) -> BatchLocks:
        """Return the lock requests of a batch. ``details`` has one item per job, or one for all jobs."""
        first = details[0]
        terms = self._usual_terms if first == _NO_DETAILS else self._terms.encode(first)
        same = len(details) == 1 or all(one == first for one in details)
        return BatchLocks(lock_keys, terms, () if same else [dumps(one.fields()) for one in details])

    def written(self, payloads: Sequence[bytes], jids: Sequence[Jid], owners: Sequence[Jid]) -> Sequence[Jid | None]:
        """Return the ids of the jobs that are written, ``None`` for each dropped duplicate; log the duplicates.

        ``owners`` has the job that owns the lock of each duplicate. A class that is not idempotent drops no job.
        """
        if not self._declaration.idempotent or not any(owners):
            return jids
        for payload, owner in zip(payloads, owners, strict=True):
            if owner:
                self._locks.log_duplicate(loads(payload, None), self._declaration, self._policy, owner)
        return [None if owner else jid for jid, owner in zip(jids, owners, strict=True)]


def lock_details(fields: Mapping[str, Json], due: DueTime | None, status: StatusCommand) -> LockDetails:
    """Return the details of the lock request of a job with these payload fields; ``status`` records it as queued."""
    delay_s = None if due is None else due.delay_s
    at = None if due is None or delay_s is not None else due.at
    # The script knows the key of the status.
    return LockDetails(wal_positions_of(fields), at, delay_s, status[2:])
