"""At the start of a run: its lock goes, or is renewed, and what its dropped duplicates saw it is sure to see (GitLab guideline)."""

import time
from collections.abc import Callable
from functools import partial
from typing import cast

import redis
from redis.exceptions import ResponseError

from framework.declare.declaration import Declaration
from framework.execute.admission import AdmissionPolicy, AdmissionRequest
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import RunOutcome
from framework.policies.dedup.next_run import next_run
from framework.push.deduplication import deduplicates
from framework.store.script import START_LOCKED, is_wrong_type
from framework.types import Payload
from framework.wire.resources import DUPLICATE_WAL_POSITIONS, RESCHEDULED_ONCE, Lock, wal_positions_of

_MAX_POSITION_CHECKS = 2
"""How often duplicates may see more in the moment before the lock goes; after that it goes first."""


# Decision 122: until_executing releases the lock after the replica check.
class DedupPositions:
    """Before the choice of a replica: the job knows the newest position of its dropped duplicates.

    For classes that ``consistency``, which comes next, is asked about; others need not look.
    """

    def __init__(self, client: "redis.Redis", consistency: AdmissionPolicy) -> None:
        self._client = client
        self._consistency = consistency

    def applies_to(self, declaration: Declaration) -> bool:
        """See ``Gate``."""
        return deduplicates(declaration) and self._consistency.applies_to(declaration)

    def admit(self, request: AdmissionRequest) -> RunOutcome | None:
        """See ``Gate``: it lets every job go on."""
        lock = _lock_of(request.unit)
        if lock is not None:
            fields = self._read_lock(lock.key)
            if fields.get(b"jid") == lock.owner.encode():
                _add_positions(request, [part for field, value in fields.items() for part in _position(field, value)])
        return None

    def _read_lock(self, key: str) -> dict[bytes, bytes]:
        try:
            return cast("dict[bytes, bytes]", self._client.hgetall(key))
        except ResponseError as error:
            if not is_wrong_type(error):
                raise
            return {}  # it is no lock, as for every script


class DedupLock:
    """The last gate: a lock ``until_executing`` goes, one ``until_executed`` is renewed.

    A duplicate that has come since the positions were looked at may have seen more: then ``consistency`` is asked once more,
    before the lock goes and nobody can add to it.
    """

    def __init__(
        self, client: "redis.Redis", consistency: AdmissionPolicy | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._client = client
        self._consistency = consistency
        self._clock = clock

    def applies_to(self, declaration: Declaration) -> bool:
        """See ``Gate``."""
        return deduplicates(declaration)

    def admit(self, request: AdmissionRequest) -> RunOutcome | None:
        """See ``Gate``: it lets every job go on, but for one that ``consistency`` sends away."""
        lock, declaration, policy = _lock_of(request.unit), request.declaration, request.declaration.deduplicate
        if lock is None or policy is None:
            return None
        keeps = policy.strategy == "until_executed"
        consistency = self._consistency if self._consistency and self._consistency.applies_to(declaration) else None
        if consistency is None:
            self._start_locked(lock, request.payload, keep_lock=keeps, unseen="0")
        else:
            outcome = self._start_with_positions(lock, request, consistency, keep_lock=keeps)
            if outcome is not None:
                return outcome
        if not keeps:
            _release(request.unit, lock)
        elif policy.if_deduplicated and declaration.idempotent and not request.payload.get(RESCHEDULED_ONCE):
            assert request.unit.resources is not None, "it has a lock"  # noqa: S101
            request.unit.resources.next_run = partial(next_run, request.unit, policy, self._clock)
        return None

    def _start_with_positions(
        self, lock: Lock, request: AdmissionRequest, consistency: AdmissionPolicy, *, keep_lock: bool
    ) -> RunOutcome | None:
        """Let go of the lock once the job sees all that was noted there; a lock that is kept keeps that, too."""
        looks = [] if keep_lock else ["1"] * _MAX_POSITION_CHECKS
        for unseen in (*looks, "2"):
            found = self._start_locked(lock, request.payload, keep_lock=keep_lock, unseen=unseen)
            if not found:
                return None
            _add_positions(request, found)
            outcome = consistency.admit(request)
            if outcome is not None:
                return outcome
        return None

    def _start_locked(self, lock: Lock, payload: Payload, *, keep_lock: bool, unseen: str) -> list[bytes]:
        known = [part for position in wal_positions_of(payload).items() for part in position] if unseen != "0" else []
        keep_ms = lock.ttl_ms if keep_lock else 0
        found: list[bytes] = START_LOCKED(self._client, [lock.key], [lock.owner, lock.worker, keep_ms, unseen, *known])
        return found


def _lock_of(unit: UnitOfWork) -> Lock | None:
    return None if unit.resources is None else unit.resources.lock


def _release(unit: UnitOfWork, lock: Lock) -> None:
    """It holds no lock any more, and ends as jobs do that hold nothing."""
    unit.released_lock = lock
    if unit.resources is not None:
        unit.resources.lock = None
        if not unit.resources.slots:
            unit.resources = None


def _position(field: bytes, value: bytes) -> list[bytes]:
    name = field.removeprefix(b"wal:")
    return [] if name == field else [name, value]


def _add_positions(request: AdmissionRequest, positions: list[bytes]) -> None:
    """The job has these positions, database and position in turn, as those of its duplicates, wherever it goes."""
    said = [part.decode(errors="replace") for part in positions]
    if said:
        own = cast("dict[str, str]", request.payload.get(DUPLICATE_WAL_POSITIONS) or {})
        newest = {**own, **dict(zip(said[::2], said[1::2], strict=True))}
        request.payload[DUPLICATE_WAL_POSITIONS] = newest
        request.unit.extra_fields = {DUPLICATE_WAL_POSITIONS: newest}
