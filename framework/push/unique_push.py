"""Push jobs of a deduplicated class from its template, without a dict per job."""

from collections.abc import Mapping, Sequence

from framework.declare.declaration import Declaration
from framework.declare.policy_options import Deduplicate
from framework.declare.request import DueTime
from framework.push.lock_port import PushLocks
from framework.push.unique_chunk import UniqueBatch, UniqueChunk
from framework.shard.shard import Shard
from framework.types import Jid, Json
from framework.wire.json import dumps, loads
from framework.wire.resources import IDEMPOTENCY_KEY, LockDetails, UniqueJobs, wal_positions_of
from framework.wire.status_key import TrackedJob

_FIELD = IDEMPOTENCY_KEY.encode()


class UniquePush:
    """Write jobs of one class with the same options, each with its lock. Shared between threads."""

    def __init__(
        self,
        declaration: Declaration,
        policy: Deduplicate,
        locks: PushLocks,
        shard: Shard,
        queue: str,
        status_ttl_s: int,
    ) -> None:
        self._declaration = declaration
        self._policy = policy
        self._locks = locks
        self._shard = shard
        self._queue = queue
        self._status_ttl_s = status_ttl_s
        self._terms = locks.lock_terms(declaration, policy)
        # Most pushes have no WAL positions and no due time: their terms are the same.
        self._usual_terms = self._terms.encode(self._details({}, None))

    def is_enabled(self, *, scheduled: bool) -> bool:
        """Return whether a push, delayed or not, is deduplicated now; a feature flag may disable it."""
        return self._locks.policy(self._declaration, self._shard.name, scheduled=scheduled) is not None

    def lock_keys(self, arguments: Sequence[bytes]) -> list[str]:
        """Return the lock keys of jobs with these arguments (JSON, not compressed)."""
        return self._locks.lock_keys(self._declaration, arguments)

    def push(
        self, payload: bytes, lock_key: str, jid: Jid, ambient: Mapping[str, Json], due: DueTime | None
    ) -> Jid | None:
        """Write one job; return its id, or ``None`` for a duplicate. Raises ShardUnavailableError."""
        jobs = UniqueJobs(self._encoded_terms(ambient, due), (payload,), (lock_key,), (jid,))
        (owner,) = self._shard.enqueue_unique(self._queue if due is None else None, jobs)
        if not owner or not self._declaration.idempotent:
            return jid
        self._log_duplicate(payload, owner)
        return None

    def chunk(
        self,
        payloads: Sequence[bytes],
        lock_keys: Sequence[str],
        jids: Sequence[Jid],
        ambient: Mapping[str, Json],
        dues: Sequence[DueTime] | None,
        token: str,
    ) -> UniqueChunk:
        """Return the writer of the jobs of one chunk: into their queue, or with ``dues`` into the schedule set."""
        details = [dumps(self._details(ambient, due).fields()) for due in dues or ()]
        jobs = UniqueJobs(self._encoded_terms(ambient, None), payloads, lock_keys, jids, details)
        batch = UniqueBatch(self._queue if dues is None else None, range(len(jids)), jobs)

        def on_duplicate(index: int, owner: Jid) -> None:
            self._log_duplicate(payloads[index], owner)

        drops = self._declaration.idempotent
        return UniqueChunk(self._shard, [batch], len(jids), on_duplicate if drops else None, token)

    def _log_duplicate(self, payload: bytes, owner: Jid) -> None:
        self._locks.log_duplicate(loads(payload, None), self._declaration, self._policy, owner)

    def _encoded_terms(self, ambient: Mapping[str, Json], due: DueTime | None) -> bytes:
        if due is None and not wal_positions_of(ambient):
            return self._usual_terms
        return self._terms.encode(self._details(ambient, due))

    def _details(self, ambient: Mapping[str, Json], due: DueTime | None) -> LockDetails:
        """Return the details of the lock request of a job pushed with these context fields and extra fields."""
        delay_s = None if due is None else due.delay_s
        at = None if due is None or delay_s is not None else due.at
        status: tuple[object, ...] = ()
        if self._status_ttl_s:
            tracked = TrackedJob("", self._status_ttl_s)
            status = (tracked.queued_command(at) if delay_s is None else tracked.delayed_command(delay_s))[2:]
        return LockDetails(wal_positions_of(ambient), at, delay_s, status)


def with_lock_key(arguments: bytes, lock_key: str) -> bytes:
    """Return the arguments for a template, followed by the field with the lock key."""
    return b'%b,"%b":"%b"' % (arguments, _FIELD, lock_key.encode())
