"""Works out, before anything is moved, what one due job's next step is. Moves nothing."""

import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from pydantic_core import to_json

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.errors import PayloadError
from framework.finish.status_writer import StatusWriter
from framework.middleware.chain import Call, ChainInvocation
from framework.push.deduplication import Deduplicator
from framework.push.size_limiter import SizeLimiter
from framework.schedule.cross_shard import CrossShardTransfer
from framework.schedule.destination import Destination, DestinationResolver
from framework.schedule.due_action import DueAction, PollEvents, ShardTransfer
from framework.shard.routing_validator import RoutedScope
from framework.types import Jid, Payload
from framework.wire.compress import COMPRESSED, ORIGINAL_SIZE, decompress_arguments
from framework.wire.job import DEFERRED, TRANSFER, decode, wire_timestamp
from framework.wire.json import dumps
from framework.wire.malformed import dead_set_entry
from framework.wire.memory_budget import MemoryBudget
from framework.wire.payload_edit import rewrite
from framework.wire.resources import IDEMPOTENCY_KEY, JobResources, Lock, lock_of
from framework.wire.status_key import tracked_job


class _MemoryBudgetExhaustedError(BaseException):
    """The large jobs at hand have all memory that there is for such; no error of the job's, so nothing else catches it."""


class DueJobPlanner:
    """Decides for one process; the client middleware runs here, with the queue that the job goes to."""

    def __init__(
        self,
        events: PollEvents,
        destinations: DestinationResolver,
        transfer: CrossShardTransfer,
        status_writer: StatusWriter,
        *,
        middleware: tuple[Call, ...] = (),
        limiter: SizeLimiter,
        deduplicator: Deduplicator | None = None,
        budget: MemoryBudget | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._events = events
        self._destinations = destinations
        self._transfer = transfer
        self._status_writer = status_writer
        self._middleware = middleware
        self._limiter = limiter
        self._deduplicator = deduplicator or Deduplicator()
        self._budget = budget or MemoryBudget()
        self._reserved = 0
        self._clock = clock

    def plan(self, source: str, member: bytes) -> DueAction | ShardTransfer:
        """Return the next step of ``member``, which is due in ``source``; raises nothing."""
        try:
            return self._plan(source, member)
        except PayloadError as error:
            tell = partial(self._events.due_job_malformed, source, member, error)
            stored = dead_set_entry(member, error, self._clock())
            return DueAction(member, "dead", stored, on_done=tell, lock_argument=_resources_of(member))
        except Exception as error:  # noqa: BLE001 - one job's middleware must not stop the clock for all
            return DueAction(member, "aside", on_done=partial(self._events.due_job_failed, source, error))
        except _MemoryBudgetExhaustedError:
            return DueAction(member, "aside")
        finally:
            if self._reserved:
                self._budget.release(self._reserved)
                self._reserved = 0

    def _reserve(self, memory: int) -> None:
        """Take memory for a large job, or leave it for later: running jobs may have it for hours, and others are due."""
        if self._reserved:
            self._budget.release(self._reserved)
        taken = self._budget.try_acquire(self._reserved + memory)
        self._reserved = taken or 0
        if taken is None:
            raise _MemoryBudgetExhaustedError

    def _decompress(self, payload: Payload) -> None:
        limits = self._limiter.limits
        decompress_arguments(payload, limits.decompressed_limit, limits.decoded_limit, self._reserve)

    def _plan(self, source: str, member: bytes) -> DueAction | ShardTransfer:
        payload = decode(member, self._limiter.limits.decoded_limit, self._reserve)
        lock = lock_of(payload, None)  # as it is written: a middleware may change the payload
        place = self._destinations.resolve(payload)
        away = self._transfer.is_remote(place.shard)
        if away and not isinstance(payload.get(TRANSFER), str):
            payload[TRANSFER] = uuid.uuid4().hex
            return DueAction(member, "mark", rewrite(member, payload))
        if away and self._transfer.is_unavailable(place.shard):
            return DueAction(member, "aside")
        token = payload.pop(TRANSFER, "")
        payload.pop("at", None)
        payload.pop(DEFERRED, None)
        payload["queue"] = place.queue
        payload["enqueued_at"] = wire_timestamp(self._clock())
        if self._middleware and not self._run_middleware(payload, place):
            # Before it goes, as with all that leaves Redis: a death in between has it judged again.
            note = partial(self._status_writer.write_last_if_tracked, payload, "discarded")
            tell = partial(self._events.due_job_dropped, source, payload)
            return DueAction(member, "gone", before=note, on_done=tell, lock_argument=_on_end(lock))
        queue = str(payload["queue"])
        claim, tell_duplicate = self._lock_request(payload, place.shard)
        data = _encode(member, payload)
        if away:
            return ShardTransfer(member, data, queue, place.shard, token, claim, _on_end(lock), tell_duplicate)
        return DueAction(member, "queue", data, queue, lock_argument=claim, on_duplicate=tell_duplicate)

    def _lock_request(self, payload: Payload, shard: str) -> tuple[bytes, Callable[[Jid], None] | None]:
        """Return the claim of a job of a deduplicated class on its lock, which it now names; and what tells of a duplicate."""
        worker: Any = registry.find(payload["class"])
        jid = payload.get("jid")
        if worker is None or not isinstance(jid, str) or not jid:
            return b"", None
        declaration: Declaration = worker.declaration()
        policy = self._deduplicator.policy(declaration, shard, scheduled=False)
        foreign = IDEMPOTENCY_KEY in payload and lock_of(payload, None) is None
        if policy is None or foreign:
            return b"", None
        if IDEMPOTENCY_KEY not in payload:
            opened = dict(payload)
            try:
                self._decompress(opened)
                self._deduplicator.set_key(payload, declaration, opened["args"])
            except PayloadError:
                # Another writer's arguments, which nothing of ours can be equal to: its run judges them.
                return b"", None
        found = tracked_job(payload)
        mark = found.command("discarded") if found is not None else None
        claim = self._deduplicator.lock_request(payload, declaration, policy, None, mark)
        tell = (
            partial(self._deduplicator.log_duplicate, payload, declaration, policy) if declaration.idempotent else None
        )
        return claim.encode(), tell

    def _run_middleware(self, payload: Payload, destination: Destination) -> bool:
        """Run the client middleware over the payload, with its arguments as the application knows them."""
        stored = {name: payload[name] for name in ("args", COMPRESSED, ORIGINAL_SIZE) if name in payload}
        self._decompress(payload)
        before = to_json(payload["args"])
        worker: Any = registry.find(payload["class"])
        pool = self._transfer.pool(destination.shard)
        passage = ChainInvocation(self._middleware, worker or payload["class"], payload, destination.queue, pool)
        with RoutedScope((destination.shard,)), passage as open_:
            pass
        if open_ and to_json(payload["args"]) == before:
            payload.update(stored)  # not compressed a second time: the bytes stay as they were
        elif open_:
            self._limit_size(payload, None if worker is None else worker.declaration())
        return open_

    def _limit_size(self, payload: Payload, declaration: Declaration | None) -> None:
        """Judge arguments that a middleware has changed by their size, as at a push."""
        big_payload = declaration is not None and declaration.big_payload
        compress = declaration is None or declaration.compress
        try:
            self._limiter.limit_payload(payload, dumps(payload["args"]), big_payload=big_payload, compress=compress)
        except PayloadError as error:
            raise _middleware_error(error) from error


def _resources_of(member: bytes) -> str:
    """Return what a member that cannot be prepared holds, as far as it can be read."""
    try:
        return _on_end(lock_of(decode(member), None))
    except PayloadError:
        return ""


def _on_end(lock: Lock | None) -> str:
    """Return what a member that goes for good holds, in the form of a script's argument."""
    return "" if lock is None else JobResources(lock).on_end()


def _encode(member: bytes, payload: Payload) -> bytes:
    """Return the payload's bytes. What cannot be written is a middleware's doing, and no fault of the member."""
    try:
        return rewrite(member, payload)
    except PayloadError as error:
        raise _middleware_error(error) from error


def _middleware_error(error: PayloadError) -> ValueError:
    return ValueError(f"a client middleware changed a due job: {error.reason}")
