"""Admit a job and the buffered jobs that start next by one script, in one round trip.

A thread that is about to start a job takes the next buffered jobs with it, asks for all of them, and puts the others back with
their answers. So a job costs a share of a round trip, and an idle process pays no more than the one that a job alone costs.

Crash story: ``admit.lua`` leaves each job in the working list, with its slot, or moves it to the waiting jobs. Jobs that were
taken along stay in flight. If the call fails, they go back to the buffer without an answer, and each is asked for alone: a slot
that an unseen call has taken is found again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.errors import PayloadError
from framework.execute.admission import AdmissionChain, AdmissionRequest, AdmissionTerms, ClassPolicies
from framework.execute.decoding import PayloadDecoder
from framework.fetch.fetcher import Fetcher
from framework.fetch.suspects import is_suspect
from framework.fetch.unit_of_work import ADMITTED, Admission, Preparation, UnitOfWork
from framework.finish.outcome import Held, Lost
from framework.finish.status_writer import StatusWriter
from framework.store.script import ADMIT
from framework.text import decode_escaped
from framework.types import JobState
from framework.wire import keys
from framework.wire.compress import COMPRESSED
from framework.wire.json import dumps
from framework.wire.resources import HELD_LOCK_S, milliseconds, resources_of, slot_id, slot_member
from framework.wire.status_key import TrackedJob, tracked_job

_RUNNING: JobState = "running"
# State of a job that the script could not ask for.
_ERROR = 3


@dataclass(slots=True)
class _Candidate:
    request: AdmissionRequest
    terms: AdmissionTerms
    tracked: TrackedJob | None


class GroupAdmission:
    """Ask ``admit.lua`` for the jobs of one process. Safe from any thread."""

    def __init__(
        self,
        client: "redis.Redis",
        identity: str,
        fetcher: Fetcher,
        decoding: PayloadDecoder,
        admission: AdmissionChain,
        status_writer: StatusWriter,
    ) -> None:
        self._client = client
        self._identity = identity
        self._working = keys.working(identity)
        self._fetcher = fetcher
        self._decoding = decoding
        self._admission = admission
        self._status_writer = status_writer

    def admit(self, request: AdmissionRequest, tracked: TrackedJob | None, policies: ClassPolicies) -> None:
        """Ask for a job that is about to start, which every local policy admits, and for buffered jobs that start next.

        The answers are in ``UnitOfWork.admission``; a job without one is to be asked for alone. Raises redis errors.
        """
        first = self._candidate(request, tracked, policies)
        request.unit.prepared = Preparation(request.payload)
        taken = self._fetcher.take_next()
        self._fetcher.ensure_acknowledging()
        try:
            others = [found for unit in taken if (found := self._join(unit, request.declaration)) is not None]
            self._ask([first, *others])
        finally:
            self._fetcher.put_back(taken)

    def _join(self, unit: UnitOfWork, first: Declaration) -> _Candidate | None:
        """Return the candidate of a buffered job; ``None`` if it is to be asked for alone, or needs no question."""
        if unit.prepared is not None or not self._decoding.is_small(unit):
            return None
        try:
            payload = self._decoding.decode_small(unit)
        except PayloadError:
            return None
        unit.prepared = Preparation(payload)
        worker = registry.find(payload["class"])
        # A version may be unknown here; a suspect starts in its turn; compressed arguments may need memory: each alone.
        if worker is None or "version" in payload or payload.get(COMPRESSED) or is_suspect(payload):
            return None
        declaration: Declaration = worker.declaration()
        policies = self._admission.policies_for(declaration)
        # Code of the application may be slow: only that of the job which is about to start anyway.
        if not policies.can_group or (policies.may_wait and declaration is not first):
            return None
        tracked = tracked_job(payload)
        if not policies.remote and tracked is None:
            return None
        unit.resources = resources_of(payload, unit.data, unit.queue, declaration.lock_ttl_s, declaration.wire_name)
        request = AdmissionRequest(unit, payload, declaration, worker)
        for policy in policies.local:
            # Kept, since a second answer could differ: a flag may concern a random share of the jobs.
            unit.prepared.local_outcome = policy.admit(request)
            if unit.prepared.local_outcome is not None:
                unit.prepared.moved = isinstance(unit.prepared.local_outcome, Held | Lost)
                return None
        return self._candidate(request, tracked, policies)

    def _candidate(self, request: AdmissionRequest, tracked: TrackedJob | None, policies: ClassPolicies) -> _Candidate:
        terms = AdmissionTerms()
        for policy in policies.grouped:
            policy.prepare(request, terms)
        return _Candidate(request, terms, tracked)

    def _ask(self, candidates: Sequence[_Candidate]) -> None:
        classes: dict[tuple[Any, ...], int] = {}
        names: list[str] = [self._working]
        arguments: list[Any] = []
        for one in candidates:
            names += _keys_of(one)
            arguments += self._arguments_of(one, classes.setdefault(_class_terms(one), len(classes) + 1))
        shared = dumps([dict(terms) for terms in classes])
        replies: list[list[Any]] = ADMIT(self._client, names, [shared, *arguments])
        for one, reply in zip(candidates, replies, strict=True):
            self._apply(one, reply)

    def _arguments_of(self, one: _Candidate, number: int) -> tuple[Any, ...]:
        unit, terms = one.request.unit, one.terms
        jid = slot_id(one.request.payload, unit.data)
        since = "" if terms.waiting_since is None else f"{terms.waiting_since:.6f}"
        member = slot_member(self._identity, jid)
        ttl_s = one.tracked.ttl_s if one.tracked is not None else 0
        return (number, unit.data, member, jid, unit.queue, since, terms.scope, int(terms.lock is not None), ttl_s)

    def _apply(self, one: _Candidate, reply: list[Any]) -> None:
        """Record the answer on the unit, before the unit is in the buffer: a job that returns to its queue releases what it has."""
        state, unit = int(reply[0]), one.request.unit
        prepared = unit.prepared
        if state == _ERROR or prepared is None:
            return
        resources, terms = unit.resources, one.terms
        # Only a job that has waited may have a reservation: for most admitted jobs there is nothing to remove.
        settled = state == ADMITTED and terms.waiting_since is None
        if resources is not None and terms.slot is not None and not settled:
            jid = slot_id(one.request.payload, unit.data)
            resources.note_answer(terms.slot, jid, taken=state == ADMITTED)
        if state == ADMITTED:
            if terms.lock is not None and not terms.keeps_lock:
                unit.release_lock(terms.lock)
            if one.tracked is not None:
                prepared.queued_command = one.tracked.queued_command(None)
                if len(reply) > 4:
                    error = redis.ResponseError(decode_escaped(reply[4]))
                    self._status_writer.on_write_failed(one.tracked, _RUNNING, error)
        prepared.moved = state != ADMITTED
        prepared.admission = Admission(state, *reply[1:4])


def _keys_of(one: _Candidate) -> list[str]:
    terms = one.terms
    found = [terms.slot.base] if terms.slot is not None else []
    if terms.lock is not None:
        found.append(terms.lock.key)
    if one.tracked is not None:
        found.append(keys.status(one.tracked.jid))
    return found


def _class_terms(one: _Candidate) -> tuple[tuple[str, Any], ...]:
    """Return what jobs of one class share, as pairs: hashable, and a dict for the script."""
    terms, found = one.terms, [("class", one.request.declaration.wire_name)]
    if terms.slot is not None:
        found += [("limit", str(terms.limit)), ("share", str(terms.share)), ("ttl_s", str(terms.slot_ttl_s))]
    lock = terms.lock
    if lock is None:
        return tuple(found)
    keep_ms = str(lock.ttl_ms) if terms.keeps_lock else "0"
    held = [("hold_ms", milliseconds(HELD_LOCK_S + lock.ttl_s)), ("after_ms", lock.ttl_ms)]
    return (*found, ("keep_ms", keep_ms), *held)
