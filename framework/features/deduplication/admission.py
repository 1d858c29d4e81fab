"""Release or renew the lock of a job before its run, and make the run see what its dropped duplicates saw.

When a job ends that had duplicates meanwhile, make the payload of its next run (GitLab's guideline).
"""

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import redis
from redis.exceptions import ResponseError

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.declare.policy_options import Deduplicate
from framework.execute.admission import AdmissionPolicy, AdmissionRequest, ClassTerms, StagedPolicy
from framework.feature import Late
from framework.features.consistency.admission import CONSISTENCY_POLICY
from framework.features.deduplication.store import START_LOCKED
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import NotAdmitted
from framework.process.worker_parts import ProcessContext, WorkerPart
from framework.process_clock import process_clock
from framework.push.protection import NO_PROTECTION, PayloadProtection
from framework.recover.suspects import SUSPECT_FIELD
from framework.store.script import is_wrong_type
from framework.telemetry import logs
from framework.types import Jid
from framework.wire import keys
from framework.wire.job import (
    BATCH_EVENT,
    BID,
    DEATH_COUNT,
    DEFERRED,
    DEFERRED_BY,
    DEFERRED_COUNT,
    EXPIRY,
    INTERRUPTED_COUNT,
    TRANSFER,
    UNKNOWN_COUNT,
    UNKNOWN_SINCE,
    decode,
    expiry_of,
    generate_jid,
    rewrite,
    wire_timestamp,
)
from framework.wire.resources import (
    DUPLICATE_OF,
    DUPLICATE_WAL_POSITIONS,
    RESCHEDULED_ONCE,
    Lock,
    NextRun,
    milliseconds,
    wal_positions_of,
)
from framework.wire.status_key import tracked_job

if TYPE_CHECKING:
    from framework.features.deduplication.left_locks import LeftLockUpkeep

# Only a process with such a class pays for the search of jobs.
_UPKEEP: "Late[type[LeftLockUpkeep]]" = Late("framework.features.deduplication.left_locks:LeftLockUpkeep")

_MAX_POSITION_CHECKS = 2
"""How often newer positions of duplicates are checked before the lock is released; then the lock is released first."""

_RUN_FIELDS = (
    *(
        "retry_count",
        "failed_at",
        "retried_at",
        "error_class",
        "error_message",
        "error_backtrace",
        "at",
        "scheduled_at",
    ),
    *(INTERRUPTED_COUNT, DEATH_COUNT, SUSPECT_FIELD, DEFERRED, DEFERRED_BY, DEFERRED_COUNT, TRANSFER, DUPLICATE_OF),
    *(UNKNOWN_COUNT, UNKNOWN_SINCE, EXPIRY),
    # The further run is none of the jobs that its batch has counted.
    *(BID, BATCH_EVENT),
)
"""The payload fields that describe the finished run."""


# until_executing releases the lock after the replica check: if the lock went first, a duplicate dropped in between would be lost.
class DedupPositions:
    """Add the newest WAL positions of dropped duplicates to a job, before the replica check.

    It applies only to classes that ``consistency``, the next policy, applies to.
    """

    def __init__(self, client: "redis.Redis", consistency: AdmissionPolicy) -> None:
        self._client = client
        self._consistency = consistency

    def applies_to(self, declaration: Declaration) -> bool:
        return _has_lock(declaration) and self._consistency.applies_to(declaration)

    def admit(self, request: AdmissionRequest) -> NotAdmitted | None:
        """See ``AdmissionPolicy``: every job passes."""
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
            # A key of another type is not a lock, as in every script.
            return {}


class DedupLock:
    """Release a lock with ``until_executing``, else renew it: the last policy before the run.

    With ``until_expired`` no later step of the started job changes its lock.

    A duplicate that arrived after the positions were read may have seen a later position. Then ``consistency`` decides
    again, before the lock is released and no duplicate can add a position any more.
    """

    def __init__(
        self,
        client: "redis.Redis",
        consistency: AdmissionPolicy | None = None,
        protection: PayloadProtection = NO_PROTECTION,
    ) -> None:
        self._client = client
        self._consistency = consistency
        self._protection = protection

    def applies_to(self, declaration: Declaration) -> bool:
        return _has_lock(declaration)

    def may_wait(self, declaration: Declaration) -> bool:
        """See ``GroupedPolicy``: ``prepare`` runs no code of the application."""
        del declaration
        return False

    def prepare(self, terms: ClassTerms) -> None:
        """See ``GroupedPolicy``. Not called for classes that ``consistency`` applies to: that is no grouped policy."""
        policy = terms.declaration.deduplicate
        if policy is not None:
            terms.has_lock, terms.keeps_lock, terms.keeps_period = True, keeps_lock(policy), keeps_period(policy)
            # A kept lock may ask for one more run.
            terms.acts_after |= terms.keeps_lock

    def admit(self, request: AdmissionRequest) -> NotAdmitted | None:
        """See ``AdmissionPolicy``: every job passes, unless ``consistency`` decides otherwise."""
        lock, declaration, policy = _lock_of(request.unit), request.declaration, request.declaration.deduplicate
        if lock is None or policy is None:
            return None
        keep_lock = keeps_lock(policy)
        consistency = self._consistency if self._consistency and self._consistency.applies_to(declaration) else None
        if request.unit.admission is not None:
            # The script has started the lock with the job.
            pass
        elif consistency is None:
            self._start_locked(lock, request, unseen="0")
        else:
            outcome = self._start_with_positions(lock, request, consistency, keep_lock=keep_lock)
            if outcome is not None:
                return outcome
        if not keep_lock:
            request.unit.release_lock(lock)
        elif keeps_period(policy):
            request.unit.leave_lock()
        elif policy.if_deduplicated and declaration.idempotent and not request.payload.get(RESCHEDULED_ONCE):
            assert request.unit.resources is not None, "it has a lock"  # noqa: S101
            request.unit.resources.next_run = partial(next_run, request.unit, policy, self._protection)
        return None

    def _start_with_positions(
        self, lock: Lock, request: AdmissionRequest, consistency: AdmissionPolicy, *, keep_lock: bool
    ) -> NotAdmitted | None:
        """Release the lock once the job's replica shows every position noted in it; a renewed lock is checked once."""
        checks = [] if keep_lock else ["1"] * _MAX_POSITION_CHECKS
        for unseen in (*checks, "2"):
            found = self._start_locked(lock, request, unseen=unseen)
            if not found:
                return None
            _add_positions(request, found)
            outcome = consistency.admit(request)
            if outcome is not None:
                return outcome
        return None

    def _start_locked(self, lock: Lock, request: AdmissionRequest, *, unseen: str) -> list[bytes]:
        declaration, positions = request.declaration, wal_positions_of(request.payload)
        policy, run_ttl_s = declaration.deduplicate, declaration.run_lock_ttl_s or 0.0
        known = [part for position in positions.items() for part in position] if unseen != "0" else []
        keep_ms = milliseconds(run_ttl_s) if keeps_lock(policy) else 0
        arguments = [lock.owner, lock.worker, keep_ms, unseen, "1" if keeps_period(policy) else "", *known]
        found: list[bytes] = START_LOCKED(self._client, [lock.key], arguments)
        return found


def _has_lock(declaration: Declaration) -> bool:
    """Return whether the lock of a job matters at its start: a job whose window is over has no lock that a push reads."""
    policy = declaration.deduplicate
    return policy is not None and declaration.deduplicates and not policy.has_window


def keeps_lock(policy: Deduplicate | None) -> bool:
    return policy is not None and policy.strategy in ("until_executed", "until_expired")


def keeps_period(policy: Deduplicate | None) -> bool:
    """Return whether the lock of a job lasts for a time from its start on, whatever becomes of the job."""
    return policy is not None and policy.strategy == "until_expired"


def _lock_of(unit: UnitOfWork) -> Lock | None:
    return None if unit.resources is None else unit.resources.lock


def _position(field: bytes, value: bytes) -> list[bytes]:
    name = field.removeprefix(b"wal:")
    return [] if name == field else [name, value]


def _add_positions(request: AdmissionRequest, positions: list[bytes]) -> None:
    """Add the duplicates' positions, a flat list of database and position, to the job; they stay with it wherever it goes."""
    decoded = [part.decode(errors="replace") for part in positions]
    if decoded:
        own = cast("dict[str, str]", request.payload.get(DUPLICATE_WAL_POSITIONS) or {})
        newest = {**own, **dict(zip(decoded[::2], decoded[1::2], strict=True))}
        request.payload[DUPLICATE_WAL_POSITIONS] = newest
        request.unit.add_fields({DUPLICATE_WAL_POSITIONS: newest})


def worker_part(process: ProcessContext) -> WorkerPart:
    """Return the part of locks in a worker process.

    The replica check may delay the job once, until a replica shows the WAL positions of the job and of its dropped duplicates. So the
    duplicates' positions are read before it, and the lock, which it must not release, is acquired after it.
    """
    client, consistency = process.shard.client, process.service(CONSISTENCY_POLICY)
    policies = (
        StagedPolicy("check", DedupPositions(client, consistency)),
        StagedPolicy("lock", DedupLock(client, consistency, protection=process.protection)),
    )
    return WorkerPart(policies, periodic=(_UPKEEP.load()(process).step,) if _has_lasting_locks() else ())


def _has_lasting_locks() -> bool:
    policies = (one.declaration().deduplicate for one in registry.workers())
    return any(one is not None and one.while_waiting for one in policies)


def next_run(unit: UnitOfWork, policy: Deduplicate, protection: PayloadProtection = NO_PROTECTION) -> NextRun:
    """Return the next run: a new job with the arguments and the context of the job that ``unit`` holds.

    Raises OSError as ``PayloadProtection.bind_to``: the settlement is then tried again.
    """
    payload = decode(unit.data, None)
    former, jid, now = payload.get("jid"), generate_jid(), wire_timestamp(process_clock.now())
    signed = protection.is_signed(payload)
    for name in _RUN_FIELDS:
        payload.pop(name, None)
    protection.bind_to(payload, jid, sign=signed)
    payload.update({"queue": unit.queue, "created_at": now, "enqueued_at": now, RESCHEDULED_ONCE: True})
    found = tracked_job(payload)
    state = None if found is None else (keys.status(jid), "queued", found.ttl_s)

    def log() -> None:
        # The new job has the offloaded arguments of this one.
        unit.keep_blob()
        _log_rescheduled(str(payload["class"]), former, jid, unit.queue, policy)

    return NextRun(rewrite(unit.data, payload), unit.queue, jid, state, log, expiry_of(payload) or 0.0)


def _log_rescheduled(worker: str, previous_jid: Any, jid: Jid, queue: str, policy: Deduplicate) -> None:
    kind = policy.strategy.replace("_", " ")
    logs.logger().info(
        f"{worker} JID-{previous_jid}: rescheduled: {kind}",
        **{
            "class": worker,
            "jid": previous_jid,
            "queue": queue,
            "job_status": "rescheduled",
            "rescheduled_as": jid,
            "deduplication.type": kind,
        },
    )
