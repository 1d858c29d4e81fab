"""At the start of a run: its lock goes, or is renewed, and what its dropped duplicates saw it is sure to see (GitLab guideline)."""

import time
from collections.abc import Callable
from functools import partial
from typing import cast

import redis
from redis.exceptions import ResponseError

from framework.declare.declaration import Declaration
from framework.execute.gates import Entry, Gate
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import Outcome
from framework.policies.dedup.next_run import next_run
from framework.push.deduplication import deduplicates
from framework.store.script import ENTER, is_wrong_type
from framework.types import Payload
from framework.wire.holds import OF_DUPLICATES, RESCHEDULED_ONCE, Lock, positions_of

_LOOKS = 2
"""How often duplicates may see more in the moment before the lock goes; after that it goes first."""


class PositionsGate:
    """Before the choice of a replica: the job knows the newest position of its dropped duplicates.

    For classes that ``consistency``, which comes next, is asked about; others need not look.
    """

    def __init__(self, client: "redis.Redis", consistency: Gate) -> None:
        self._client = client
        self._consistency = consistency

    def concerns(self, declaration: Declaration) -> bool:
        """See ``Gate``."""
        return deduplicates(declaration) and self._consistency.concerns(declaration)

    def admit(self, entry: Entry) -> Outcome | None:
        """See ``Gate``: it lets every job go on."""
        lock = _lock(entry.unit)
        if lock is not None:
            fields = self._read(lock.key)
            if fields.get(b"jid") == lock.owner.encode():
                _add(entry, [part for field, value in fields.items() for part in _position(field, value)])
        return None

    def _read(self, key: str) -> dict[bytes, bytes]:
        try:
            return cast("dict[bytes, bytes]", self._client.hgetall(key))
        except ResponseError as error:
            if not is_wrong_type(error):
                raise
            return {}  # it is no lock, as for every script


class LockGate:
    """The last gate: a lock ``until_executing`` goes, one ``until_executed`` is renewed.

    A duplicate that has come since the positions were looked at may have seen more: then ``consistency`` is asked once more,
    before the lock goes and nobody can add to it.
    """

    def __init__(
        self, client: "redis.Redis", consistency: Gate | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._client = client
        self._consistency = consistency
        self._clock = clock

    def concerns(self, declaration: Declaration) -> bool:
        """See ``Gate``."""
        return deduplicates(declaration)

    def admit(self, entry: Entry) -> Outcome | None:
        """See ``Gate``: it lets every job go on, but for one that ``consistency`` sends away."""
        lock, declaration, policy = _lock(entry.unit), entry.declaration, entry.declaration.deduplicate
        if lock is None or policy is None:
            return None
        keeps = policy.strategy == "until_executed"
        consistency = self._consistency if self._consistency and self._consistency.concerns(declaration) else None
        if consistency is None:
            self._enter(lock, entry.payload, keeps=keeps, unseen="0")
        else:
            outcome = self._enter_seeing(lock, entry, consistency, keeps=keeps)
            if outcome is not None:
                return outcome
        if not keeps:
            _give(entry.unit, lock)
        elif policy.if_deduplicated and declaration.idempotent and not entry.payload.get(RESCHEDULED_ONCE):
            assert entry.unit.holds is not None, "it has a lock"  # noqa: S101
            entry.unit.holds.next_run = partial(next_run, entry.unit, policy, self._clock)
        return None

    def _enter_seeing(self, lock: Lock, entry: Entry, consistency: Gate, *, keeps: bool) -> Outcome | None:
        """Let go of the lock once the job sees all that was noted there; a lock that is kept keeps that, too."""
        looks = [] if keeps else ["1"] * _LOOKS
        for unseen in (*looks, "2"):
            found = self._enter(lock, entry.payload, keeps=keeps, unseen=unseen)
            if not found:
                return None
            _add(entry, found)
            outcome = consistency.admit(entry)
            if outcome is not None:
                return outcome
        return None

    def _enter(self, lock: Lock, payload: Payload, *, keeps: bool, unseen: str) -> list[bytes]:
        known = [part for position in positions_of(payload).items() for part in position] if unseen != "0" else []
        keep_ms = lock.ttl_ms if keeps else 0
        found: list[bytes] = ENTER(self._client, [lock.key], [lock.owner, lock.worker, keep_ms, unseen, *known])
        return found


def _lock(unit: UnitOfWork) -> Lock | None:
    return None if unit.holds is None else unit.holds.lock


def _give(unit: UnitOfWork, lock: Lock) -> None:
    """It holds no lock any more, and ends as jobs do that hold nothing."""
    unit.gave = lock
    if unit.holds is not None:
        unit.holds.lock = None
        if not unit.holds.slots:
            unit.holds = None


def _position(field: bytes, value: bytes) -> list[bytes]:
    name = field.removeprefix(b"wal:")
    return [] if name == field else [name, value]


def _add(entry: Entry, positions: list[bytes]) -> None:
    """The job has these positions, database and position in turn, as those of its duplicates, wherever it goes."""
    said = [part.decode(errors="replace") for part in positions]
    if said:
        own = cast("dict[str, str]", entry.payload.get(OF_DUPLICATES) or {})
        newest = {**own, **dict(zip(said[::2], said[1::2], strict=True))}
        entry.payload[OF_DUPLICATES] = newest
        entry.unit.found = {OF_DUPLICATES: newest}
