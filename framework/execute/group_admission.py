"""Admit a job and the buffered jobs that start next by one script, in one round trip.

A thread that is about to start a job takes the next buffered jobs with it, asks for all of them, and puts the others back with
their answers. So a job costs a share of a round trip, and an idle process pays no more than the one that a job alone costs.

Crash story: ``admit.lua`` leaves each job in the working list, with its slot, or moves it to the waiting jobs. Jobs that were
taken along stay in flight. If the call fails, they go back to the buffer without an answer, and each is asked for alone: a slot
that an unseen call has taken is found again.
"""

from collections.abc import Sequence
from functools import lru_cache
from time import monotonic as clock
from typing import Any

import redis

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.errors import PayloadError
from framework.execute.admission import AdmissionChain, AdmissionRequest, AdmissionTerms, ClassPolicies
from framework.execute.decoding import PayloadDecoder
from framework.fetch.fetcher import Fetcher
from framework.fetch.unit_of_work import ADMITTED, FENCED, Admission, Preparation, UnitOfWork
from framework.finish.outcome import Held, Lost
from framework.finish.status_writer import StatusWriter
from framework.recover.suspects import is_suspect
from framework.store.channel import ChannelPool
from framework.store.script import ADMIT
from framework.text import decode_escaped
from framework.types import JobState
from framework.wire import keys
from framework.wire.batch_fields import BID
from framework.wire.compress import COMPRESSED
from framework.wire.job import BUFFERED_AT, EXPIRES_IN
from framework.wire.json import dumps
from framework.wire.resources import HELD_LOCK_S, IDEMPOTENCY_KEY, milliseconds, resources_of, slot_id
from framework.wire.result_fields import RESULT
from framework.wire.status_key import STATUS_EXPIRATION, TrackedJob, tracked_job
from framework.wire.sub_queues import return_queue

_RUNNING: JobState = "running"
# States of a job: it waits for a slot; the script could not ask for it.
_WAITS, _ERROR = 0, 3
_MOVED = (_WAITS, FENCED)
# Of a job that starts no policy reads the counts.
_ADMISSION = Admission(ADMITTED, 0, 0, 0)


class GroupAdmission:
    """Ask ``admit.lua`` for the jobs of one process. Safe from any thread."""

    def __init__(
        self,
        channels: ChannelPool,
        identity: str,
        fetcher: Fetcher,
        decoding: PayloadDecoder,
        admission: AdmissionChain,
        status_writer: StatusWriter,
    ) -> None:
        self._channels = channels
        self._working = keys.working(identity)
        self._fetcher = fetcher
        self._decoding = decoding
        self._admission = admission
        self._status_writer = status_writer

    def admit(self, request: AdmissionRequest, tracked: TrackedJob | None, policies: ClassPolicies) -> None:
        """Ask for a job that is about to start, which every local policy admits, and for buffered jobs that start next.

        The answers are in ``UnitOfWork.admission``; a job without one is to be asked for alone. Raises redis errors.
        """
        first = self._terms(request, tracked, policies)
        if first.alone or first.ask_nothing:
            return
        request.unit.prepared = Preparation(request.payload)
        taken = self._fetcher.take_next()
        asked_at = clock()
        try:
            others = [found for unit in taken if (found := self._join(unit, request.declaration)) is not None]
            asked_at = clock()
            self._ask([first, *others])
        finally:
            self._fetcher.put_back(taken, clock() - asked_at)

    def _join(self, unit: UnitOfWork, first: Declaration) -> AdmissionTerms | None:
        """Return the terms of a buffered job; ``None`` if it is to be asked for alone, or needs no question."""
        if unit.prepared is not None or not self._decoding.is_small(unit):
            return None
        try:
            payload = self._decoding.decode_small(unit)
        except PayloadError:
            return None
        unit.prepared = Preparation(payload)
        worker = registry.find(payload["class"])
        # A version may be unknown here; a suspect starts in its turn; compressed arguments may need memory: each alone.
        # A job that may be too old takes no slot before that is known.
        alone = "version" in payload or EXPIRES_IN in payload or payload.get(COMPRESSED) or is_suspect(payload)
        if worker is None or alone:
            return None
        declaration: Declaration = worker.declaration()
        policies = self._admission.policies_for(declaration)
        if not policies.can_group:
            return None
        # Code of the application may be slow: only that of the job which is about to start anyway.
        if policies.may_wait and declaration is not first:
            return None
        tracked = tracked_job(payload) if STATUS_EXPIRATION in payload else None
        if not policies.remote and tracked is None:
            return None
        if IDEMPOTENCY_KEY in payload or BUFFERED_AT in payload or BID in payload or RESULT in payload:
            unit.resources = resources_of(payload, unit.data, unit.queue, declaration.lock_ttl_s, declaration.wire_name)
        request = AdmissionRequest(unit, payload, declaration, worker)
        for policy in () if policies.local_admit_all(declaration) else policies.local:
            # Kept, since a second answer could differ: a flag may concern a random share of the jobs.
            unit.prepared.local_outcome = policy.admit(request)
            if unit.prepared.local_outcome is not None:
                unit.prepared.moved = isinstance(unit.prepared.local_outcome, Held | Lost)
                return None
        terms = self._terms(request, tracked, policies)
        return None if terms.alone or terms.ask_nothing else terms

    def _terms(self, request: AdmissionRequest, tracked: TrackedJob | None, policies: ClassPolicies) -> AdmissionTerms:
        terms = AdmissionTerms(request, tracked)
        for policy in policies.grouped:
            policy.prepare(terms)
        return terms

    def _ask(self, jobs: Sequence[AdmissionTerms]) -> None:
        # In one function, and without an object per job: each job with a limit or a lock pays for these lines.
        classes: dict[str, int] = {}
        names, arguments = [self._working], list[Any]()
        for terms in jobs:
            request, tracked = terms.request, terms.tracked
            unit, slot, lock, member = request.unit, terms.slot, terms.lock, ""
            if slot is not None:
                names.append(slot.base)
                member = slot.member
            if lock is not None:
                names.append(lock.key)
            if tracked is not None:
                names.append(keys.status(tracked.jid))
            name = request.declaration.wire_name
            share = None if slot is None else (terms.limit, terms.share, terms.slot_ttl_s, terms.may_wait)
            keep = None if lock is None else (lock.ttl_s, terms.keeps_lock)
            number = classes.setdefault(_encoded_class(name, share, keep), len(classes) + 1)
            since = "" if terms.waiting_since is None else f"{terms.waiting_since:.6f}"
            jid, ttl_s = slot_id(request.payload, unit.data), 0 if tracked is None else tracked.ttl_s
            has_lock = 0 if lock is None else 1
            queue = return_queue(unit.queue, unit.data, to_start=True)
            arguments += (number, unit.data, member, jid, queue, since, terms.scope, has_lock, ttl_s)
        shared = f"[{','.join(classes)}]"
        replies: list[list[Any]] = self._channels.run_script(ADMIT, names, [shared, *arguments])
        for terms, reply in zip(jobs, replies, strict=True):
            self._apply(terms, reply)

    def _apply(self, terms: AdmissionTerms, reply: list[Any]) -> None:
        """Record the answer on the unit, before the unit is in the buffer: a job that returns to its queue releases what it has."""
        state, unit, slot, lock = int(reply[0]), terms.request.unit, terms.slot, terms.lock
        prepared = unit.prepared
        if state == _ERROR or prepared is None:
            return
        admitted = state == ADMITTED
        # Only a job that has waited may have a reservation: for most admitted jobs there is nothing to remove.
        if slot is not None and unit.resources is not None and (not admitted or terms.waiting_since is not None):
            unit.resources.note_answer(slot, slot_id(terms.request.payload, unit.data), taken=admitted)
        if admitted:
            if lock is not None and not terms.keeps_lock:
                unit.release_lock(lock)
            if terms.tracked is not None:
                prepared.tracked = terms.tracked
                if len(reply) > 4:
                    error = redis.ResponseError(decode_escaped(reply[4]))
                    self._status_writer.on_write_failed(terms.tracked, _RUNNING, error)
        # A job that was refused is still in the working list.
        prepared.moved = state in _MOVED
        prepared.starts = admitted and not terms.acts_after
        prepared.admission = _ADMISSION if prepared.starts else Admission(state, *reply[1:4])


@lru_cache(maxsize=1_024)
def _encoded_class(name: str, share: tuple[int, int, int, bool] | None, keep: tuple[float, bool] | None) -> str:
    """Return what the jobs of one class share as JSON: of a limit (limit, most of a scope, lifetime of a slot, whether they
    wait), and of a lock (its lifetime, whether the class keeps it while the job runs).
    """
    found: dict[str, Any] = {"class": name}
    if share is not None:
        limit, most_of_scope, ttl_s, may_wait = share
        found |= {"limit": str(limit), "share": str(most_of_scope), "ttl_s": str(ttl_s), "refuses": not may_wait}
    if keep is not None:
        lock_ttl_s, keeps_lock = keep
        ttl_ms = milliseconds(lock_ttl_s)
        found |= {"keep_ms": str(ttl_ms) if keeps_lock else "0", "after_ms": ttl_ms}
        found["hold_ms"] = milliseconds(HELD_LOCK_S + lock_ttl_s)
    return dumps(found).decode()
