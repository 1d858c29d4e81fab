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
from framework.finish.states import States
from framework.middleware.chain import Call, Passage
from framework.push.deduplication import Deduplicator
from framework.push.size_limiter import SizeLimiter
from framework.schedule.crossings import Crossings
from framework.schedule.destination import Destination, Destinations
from framework.schedule.move import Crossing, Move, PollEvents
from framework.shard.validator import Block
from framework.types import Jid, Payload
from framework.wire.budget import MemoryBudget
from framework.wire.compress import COMPRESSED, ORIGINAL_SIZE, decompress_arguments
from framework.wire.holds import IDEMPOTENCY_KEY, Holds, Lock, lock_of
from framework.wire.job import DEFERRED, TRANSIT, decode, stamp
from framework.wire.json import dumps
from framework.wire.malformed import quarantined
from framework.wire.splice import rewrite
from framework.wire.status import tracked


class _NoMemoryLeftError(BaseException):
    """The large jobs at hand have all memory that there is for such; no error of the job's, so nothing else catches it."""


class Preparation:
    """Decides for one process; the client middleware runs here, with the queue that the job goes to."""

    def __init__(
        self,
        events: PollEvents,
        destinations: Destinations,
        crossings: Crossings,
        states: States,
        *,
        middleware: tuple[Call, ...] = (),
        limiter: SizeLimiter,
        deduplicator: Deduplicator | None = None,
        budget: MemoryBudget | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._events = events
        self._destinations = destinations
        self._crossings = crossings
        self._states = states
        self._middleware = middleware
        self._limiter = limiter
        self._deduplicator = deduplicator or Deduplicator()
        self._budget = budget or MemoryBudget()
        self._share = 0
        self._clock = clock

    def prepare(self, source: str, member: bytes) -> Move | Crossing:
        """Return the next step of ``member``, which is due in ``source``; raises nothing."""
        try:
            return self._step(source, member)
        except PayloadError as error:
            tell = partial(self._events.due_job_unreadable, source, member, error)
            stored = quarantined(member, error, self._clock())
            return Move(member, "dead", stored, tell=tell, lock=_held(member))
        except Exception as error:  # noqa: BLE001 - one job's middleware must not stop the clock for all
            return Move(member, "aside", tell=partial(self._events.due_job_failed, source, error))
        except _NoMemoryLeftError:
            return Move(member, "aside")
        finally:
            if self._share:
                self._budget.give_back(self._share)
                self._share = 0

    def _reserve(self, memory: int) -> None:
        """Take memory for a large job, or leave it for later: running jobs may have it for hours, and others are due."""
        if self._share:
            self._budget.give_back(self._share)
        taken = self._budget.try_take(self._share + memory)
        self._share = taken or 0
        if taken is None:
            raise _NoMemoryLeftError

    def _opened(self, payload: Payload) -> None:
        limits = self._limiter.limits
        decompress_arguments(payload, limits.decompressed_limit, limits.decoded_limit, self._reserve)

    def _step(self, source: str, member: bytes) -> Move | Crossing:
        payload = decode(member, self._limiter.limits.decoded_limit, self._reserve)
        lock = lock_of(payload, None)  # as it is written: a middleware may change the payload
        place = self._destinations.of(payload)
        away = self._crossings.leads(place.shard)
        if away and not isinstance(payload.get(TRANSIT), str):
            payload[TRANSIT] = uuid.uuid4().hex
            return Move(member, "mark", rewrite(member, payload))
        if away and self._crossings.closed(place.shard):
            return Move(member, "aside")
        token = payload.pop(TRANSIT, "")
        payload.pop("at", None)
        payload.pop(DEFERRED, None)
        payload["queue"] = place.queue
        payload["enqueued_at"] = stamp(self._clock())
        if self._middleware and not self._pass(payload, place):
            # Before it goes, as with all that leaves Redis: a death in between has it judged again.
            note = partial(self._states.note, payload, "discarded")
            tell = partial(self._events.due_job_dropped, source, payload)
            return Move(member, "gone", first=note, tell=tell, lock=_ended(lock))
        queue = str(payload["queue"])
        claim, tell_duplicate = self._claim(payload, place.shard)
        data = _written(member, payload)
        if away:
            return Crossing(member, data, queue, place.shard, token, claim, _ended(lock), tell_duplicate)
        return Move(member, "queue", data, queue, lock=claim, duplicate=tell_duplicate)

    def _claim(self, payload: Payload, shard: str) -> tuple[bytes, Callable[[Jid], None] | None]:
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
                self._opened(opened)
                self._deduplicator.name(payload, declaration, opened["args"])
            except PayloadError:
                # Another writer's arguments, which nothing of ours can be equal to: its run judges them.
                return b"", None
        found = tracked(payload)
        mark = found.mark("discarded") if found is not None else None
        claim = self._deduplicator.claim(payload, declaration, policy, None, mark)
        tell = partial(self._deduplicator.tell, payload, declaration, policy) if declaration.idempotent else None
        return claim.told(), tell

    def _pass(self, payload: Payload, place: Destination) -> bool:
        """Run the client middleware over the payload, with its arguments as the application knows them."""
        stored = {name: payload[name] for name in ("args", COMPRESSED, ORIGINAL_SIZE) if name in payload}
        self._opened(payload)
        before = to_json(payload["args"])
        worker: Any = registry.find(payload["class"])
        pool = self._crossings.pool(place.shard)
        passage = Passage(self._middleware, worker or payload["class"], payload, place.queue, pool)
        with Block((place.shard,)), passage as open_:
            pass
        if open_ and to_json(payload["args"]) == before:
            payload.update(stored)  # not compressed a second time: the bytes stay as they were
        elif open_:
            self._limit(payload, None if worker is None else worker.declaration())
        return open_

    def _limit(self, payload: Payload, declaration: Declaration | None) -> None:
        """Judge arguments that a middleware has changed by their size, as at a push."""
        big_payload = declaration is not None and declaration.big_payload
        compress = declaration is None or declaration.compress
        try:
            self._limiter.limit(payload, dumps(payload["args"]), big_payload=big_payload, compress=compress)
        except PayloadError as error:
            raise _spoiled(error) from error


def _held(member: bytes) -> str:
    """Return what a member that cannot be prepared holds, as far as it can be read."""
    try:
        return _ended(lock_of(decode(member), None))
    except PayloadError:
        return ""


def _ended(lock: Lock | None) -> str:
    """Return what a member that goes for good holds, in the form of a script's argument."""
    return "" if lock is None else Holds(lock).ended()


def _written(member: bytes, payload: Payload) -> bytes:
    """Return the payload's bytes. What cannot be written is a middleware's doing, and no fault of the member."""
    try:
        return rewrite(member, payload)
    except PayloadError as error:
        raise _spoiled(error) from error


def _spoiled(error: PayloadError) -> ValueError:
    return ValueError(f"a client middleware changed a due job: {error.reason}")
