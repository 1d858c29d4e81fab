"""Ask the policies of a class about a job that is about to start, until Redis answers: alone, or with the jobs that start next.

A thread that is about to start a job takes the next buffered jobs with it, asks for all of them by one script, and puts the others
back with their answers. So several jobs share one round trip. In an idle process a job still needs only one round trip.

At a crash: ``admit.lua`` leaves each job in the working list, with its slot, or moves it to the waiting jobs. Jobs that were
taken along stay in flight. If the call fails, they go back to the buffer without an answer, and each is asked for alone: a slot
that a call with a lost reply has taken is found again.
"""

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from time import monotonic as clock
from typing import Any, TypeAlias, cast

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.execute.admission import (
    AdmissionChain,
    AdmissionPolicy,
    AdmissionRequest,
    ClassPolicies,
    ClassTerms,
    EncodedTerms,
)
from framework.execute.decoding import MemoryReservation, PayloadDecoder
from framework.execute.job_log import JobLog
from framework.execute.next_jobs import NextJobs
from framework.execute.stats import RunningJobs
from framework.execute.threads import FetchingThreads
from framework.fetch.fetcher import Fetcher
from framework.fetch.unit_of_work import ADMITTED, FENCED, Admission, Preparation, UnitOfWork
from framework.finish.endings import POLICY_REFUSED, RIGHT_REFUSED
from framework.finish.outcome import Deferred, Held, Interrupted, Lost, NotAdmitted
from framework.recover.suspects import is_suspect
from framework.store.channel import ChannelPool
from framework.store.script import ADMIT
from framework.telemetry.logs import error_fields
from framework.timings import backoff_s
from framework.types import Payload
from framework.wire import keys
from framework.wire.job import BUFFERED_AT, timestamp
from framework.wire.resources import (
    HELD_LOCK_S,
    JobResources,
    Lock,
    Slot,
    make_slot,
    milliseconds,
    slot_id,
)
from framework.wire.sub_queues import start_queue

# Seconds between two tries of a policy while Redis does not answer.
_FIRST_BACKOFF_S, _MAX_BACKOFF_S = 0.05, 2.0
# Tries after an answer with an error, within a second; then the job is deferred.
_MAX_REFUSALS = 4
_REFUSED_DELAY_S = 30.0


class PolicyDecision:
    """Decide whether jobs may start. Safe from any thread; ``threads`` fetch during a call to Redis."""

    def __init__(
        self,
        decoding: PayloadDecoder,
        threads: FetchingThreads,
        log: JobLog,
        running_jobs: RunningJobs,
        together: "GroupAdmission | None",
    ) -> None:
        self._decoding = decoding
        self._ensure_fetching = threads.ensure_fetching
        self._log = log
        self._running_jobs = running_jobs
        self._together = together

    def ask(self, request: AdmissionRequest, policies: ClassPolicies, run: MemoryReservation) -> NotAdmitted | None:
        """Return ``None`` if every policy admits the job, else the answer of the first that does not.

        A policy that has answered together with an earlier job is not asked again. Raises PayloadError and Shutdown.
        """
        unit = request.unit
        if unit.prepared is not None and unit.prepared.local_outcome is not None:
            return cast("NotAdmitted", unit.prepared.local_outcome)
        if unit.admission is None:
            if policies.local or policies.remote:
                self._decoding.decompress(request.payload, unit, run, self._ensure_fetching)
            if not policies.local_admit_all(request.declaration):
                # A local policy may run code of the application.
                self._ensure_fetching()
                if (outcome := self._ask_local(policies.local, request)) is not None:
                    return outcome
            self._ask_together(request, policies)
        prepared = unit.prepared
        if prepared is not None and prepared.starts:
            return None
        if (admission := unit.admission) is not None and admission.state == FENCED:
            return Lost()
        outcome = self._ask_each(policies.remote, request)
        if outcome is None and unit.has_moved:
            # Its limit was removed after the script has moved it, so no policy says so.
            return Held("concurrency_limit")
        return outcome

    def _ask_local(self, policies: Iterable[AdmissionPolicy], request: AdmissionRequest) -> NotAdmitted | None:
        """Ask the local policies. The first may answer for the jobs that start next too: no other comes before it."""
        request.next_jobs = None if self._together is None else self._together.next_jobs
        for policy in policies:
            if (outcome := self._ask_policy(policy, request)) is not None:
                return outcome
            request.next_jobs = None
        return None

    def _ask_each(self, policies: Iterable[AdmissionPolicy], request: AdmissionRequest) -> NotAdmitted | None:
        for policy in policies:
            if (outcome := self._ask_policy(policy, request)) is not None:
                return outcome
        return None

    def _ask_together(self, request: AdmissionRequest, policies: ClassPolicies) -> None:
        """Ask by one call for this job and those that start next. If Redis fails, each policy is asked about each job alone."""
        if not policies.remote:
            return
        if self._together is not None and policies.can_group and not is_suspect(request.payload):
            with suppress(RedisError, OSError):
                self._together.admit(request, policies)
        if request.unit.admission is None:
            # Each step waits for Redis now, and perhaps long.
            self._ensure_fetching()

    def _ask_policy(self, policy: AdmissionPolicy, request: AdmissionRequest) -> NotAdmitted | None:
        """Ask one policy until Redis answers. Meanwhile the lease of this process protects the job in the working list.

        If Redis answers with an error each time, the job is deferred, which frees its thread. If a right is missing, the job is
        deferred at once: it must not run without the policy's answer, so its class waits until the right is granted.
        """
        failures = refused = 0
        while True:
            try:
                return policy.admit(request)
            except NoPermissionError as error:
                self._log.right_refused(request.declaration, error)
                return Deferred(_REFUSED_DELAY_S, RIGHT_REFUSED, error_fields(error))
            except (RedisError, ConnectionError) as error:
                if self._running_jobs.stopping:
                    return Interrupted()
                refused += isinstance(error, ResponseError)
                if refused > _MAX_REFUSALS:
                    return Deferred(_REFUSED_DELAY_S, POLICY_REFUSED, error_fields(error))
                self._log.policy_unavailable(request.unit, error)
                failures += 1
                time.sleep(backoff_s(failures, _FIRST_BACKOFF_S, _MAX_BACKOFF_S))


# States of a job: it waits for a slot; the script has not decided about it.
_WAITS, _ERROR = 0, 3
_MOVED = (_WAITS, FENCED)
# If a job starts, no policy reads the counts.
_ADMISSION = Admission(ADMITTED, 0, 0, 0)
_MAX_ENCODED = 100

# The request for one job: its unit, its id, the terms of its class, these as arguments of the script, its slot and its lock, if it
# has them, and since when it has waited for a slot (epoch seconds, empty if it has not), with its scope if the jobs of the class
# have one; mostly None.
# No named tuple, which takes three times as long to make.
_Question: TypeAlias = tuple[
    UnitOfWork, str, ClassTerms, EncodedTerms, Slot | None, Lock | None, tuple[str, ...] | None
]
_KnownClass: TypeAlias = tuple[Declaration, ClassPolicies]


class GroupAdmission:
    """Ask ``admit.lua`` for the jobs of one process. Safe from any thread."""

    def __init__(
        self,
        channels: ChannelPool,
        identity: str,
        fetcher: Fetcher,
        decoding: PayloadDecoder,
        admission: AdmissionChain,
    ) -> None:
        self._channels = channels
        self._working = keys.working(identity)
        self._fetcher = fetcher
        self.next_jobs = NextJobs(fetcher, decoding)
        self._admission = admission

    def admit(self, request: AdmissionRequest, policies: ClassPolicies) -> None:
        """Ask for a job that is about to start, which every local policy admits, and for buffered jobs that start next.

        The answers are in ``UnitOfWork.admission``; a job without one is to be asked for alone. Raises redis errors.
        """
        unit, payload = request.unit, request.payload
        terms = policies.terms_of(request.declaration, unit.queue)
        first = self._open_question(unit, payload, terms)
        if first is None:
            return
        unit.prepared = Preparation(payload)
        taken = self._fetcher.take_next()
        asked_at = clock()
        try:
            questions, classes = [(0, first)], dict[str, _KnownClass | None]()
            for position, other in enumerate(taken, 1):
                question = self._join(other, request.declaration, classes)
                if question is not None:
                    questions.append((position, question))
            asked_at = clock()
            self._ask(questions, unit, taken)
        finally:
            self._fetcher.put_back(taken, clock() - asked_at)

    def _join(self, unit: UnitOfWork, first: Declaration, classes: dict[str, _KnownClass | None]) -> _Question | None:
        """Return the question about a buffered job; ``None`` if it is to be asked for alone, or needs no question.

        ``classes`` are those of this call by name, ``None`` for one whose jobs are each asked for alone.
        """
        payload = self.next_jobs.payload_of(unit)
        if payload is None:
            return None
        name = payload["class"]
        known = classes[name] if name in classes else classes.setdefault(name, self._known_class(name, first))
        if known is None:
            return None
        declaration, policies = known
        if not policies.remote:
            return None
        self.next_jobs.note_resources(unit, payload, declaration)
        if policies.local and not _admitted_locally(unit, payload, declaration, policies):
            return None
        terms = policies.terms_of(declaration, unit.queue)
        return self._open_question(unit, payload, terms)

    def _open_question(self, unit: UnitOfWork, payload: Payload, terms: ClassTerms) -> _Question | None:
        """Return the question about a job; ``None`` if it is to be asked for alone, or needs no question.

        That is so for a job that came with its slot and asks for nothing else: it is admitted. A limit that is a function of the
        application is written with each question, so that it holds at once.
        """
        question = None if terms.alone else _question(unit, payload, terms)
        if question is None or unit.granted is None:
            return question
        _, _, _, _, slot, lock, _ = question
        if slot != unit.granted or lock is not None or not terms.lasting:
            return question
        unit.prepared = unit.prepared or Preparation(payload)
        self._note_admitted(question)
        return None

    def _known_class(self, name: str, first: Declaration) -> _KnownClass | None:
        """Return a class whose jobs may be asked for with others; ``None`` for any other."""
        worker = registry.find(name)
        if worker is None:
            return None
        declaration: Declaration = worker.declaration()
        policies = self._admission.policies_for(declaration)
        # Code of the application may be slow: only that of the job which is about to start anyway.
        alone = not policies.can_group or (policies.may_wait and declaration is not first)
        return None if alone else (declaration, policies)

    def _ask(self, questions: Sequence[tuple[int, _Question]], first: UnitOfWork, others: Sequence[UnitOfWork]) -> None:
        """Ask about jobs, each with its position: 0 is ``first``, 1 the oldest of ``others``, neighbours in the working list."""
        # In one function: each job with a limit or a lock pays for these lines.
        classes: dict[int, list[tuple[int, _Question]]] = {}
        for one in questions:
            terms = id(one[1][3])
            asked = classes.get(terms)
            if asked is None:
                classes[terms] = [one]
            else:
                asked.append(one)
        ends = (others[0].data, others[-1].data) if others else ("", "")
        names, values = [self._working], list[Any]((first.data, len(others), *ends))
        for asked in classes.values():
            _, (_, _, _, encoded, slot, _, _) = asked[0]
            values.append(len(asked))
            values += encoded
            values.append(" ".join([str(position) for position, _ in asked]))
            if slot is not None:
                names.append(slot.base)
            for _, (_, jid, _, _, _, lock, waited) in asked:
                if lock is not None:
                    names.append(lock.key)
                values.append(jid)
                if waited is not None:
                    values += waited
        reply = self._channels.run_script(ADMIT, names, values)
        self._note_answers([question for asked in classes.values() for _, question in asked], reply)

    def _note_answers(self, questions: Sequence[_Question], reply: Any) -> None:
        if reply == ADMITTED:
            for question in questions:
                self._note_admitted(question)
            return
        for question, answer in zip(questions, reply, strict=True):
            if answer == ADMITTED:
                self._note_admitted(question)
            else:
                self._note_answer(question, answer)

    def _note_admitted(self, question: _Question) -> None:
        """Record that a job may start, before the unit is in the buffer: a job that returns to its queue releases what it has."""
        unit, jid, terms, _, slot, lock, waited = question
        prepared = unit.prepared
        if prepared is None:
            return
        # Only a job that has waited may have a reservation: for most admitted jobs there is nothing to remove.
        has_waited = waited is not None and bool(waited[0])
        if has_waited and slot is not None and unit.resources is not None:
            unit.resources.note_answer(slot, jid, taken=True)
        if lock is not None and not terms.keeps_lock:
            unit.release_lock(lock)
        prepared.admission = _ADMISSION
        # The hook of a job that has waited is still to be called.
        prepared.starts = not (terms.acts_after or has_waited)

    def _note_answer(self, question: _Question, answer: list[Any]) -> None:
        """Record an answer with details: the job does not start."""
        unit, jid, _, _, slot, _, _ = question
        state, prepared = int(answer[0]), unit.prepared
        if state == _ERROR or prepared is None:
            return
        if slot is not None and unit.resources is not None:
            unit.resources.note_answer(slot, jid, taken=False)
        # A job that was refused is still in the working list.
        prepared.moved = state in _MOVED
        prepared.admission = Admission(state, *answer[1:4])


def _admitted_locally(unit: UnitOfWork, payload: Payload, declaration: Declaration, policies: ClassPolicies) -> bool:
    """Return whether each local policy admits the job; if one does not, its outcome is noted."""
    prepared = unit.prepared
    if policies.local_admit_all(declaration) or prepared is None:
        return True
    request = AdmissionRequest(unit, payload, declaration, registry.find(payload["class"]))
    for policy in policies.local:
        # Kept, since a second answer could differ: a flag may concern a random share of the jobs.
        prepared.local_outcome = policy.admit(request)
        if prepared.local_outcome is not None:
            prepared.moved = isinstance(prepared.local_outcome, Held | Lost)
            return False
    return True


def _question(unit: UnitOfWork, payload: Payload, terms: ClassTerms) -> _Question | None:
    """Return the question about a job, whose slot is noted; ``None`` if no policy asks anything of the script."""
    resources = unit.resources
    lock = resources.lock if terms.has_lock and resources is not None else None
    base = terms.base
    if not base and lock is None:
        return None
    jid, slot, queue = slot_id(payload, unit.data), None, unit.queue
    waited: tuple[str, ...] | None = None
    if base:
        queue = start_queue(queue, payload)
        slot = make_slot((base, f"{terms.owner} {jid}"))
        # So the slot is released even if the reply is lost, or if another thread returns the job meanwhile.
        if resources is None:
            unit.resources = JobResources(None, [slot])
        elif slot not in resources.slots:
            resources.slots.append(slot)
        if BUFFERED_AT in payload or terms.scope_of is not None:
            since = timestamp(payload.get(BUFFERED_AT))
            waited = ("" if since is None else f"{since:.6f}",)
            if terms.scope_of is not None:
                waited += (terms.scope_of(payload),)
    key = (0 if lock is None else lock.ttl_s, waited is not None, queue)
    encoded = terms.encoded.get(key)
    if encoded is None:
        encoded = _encoded(terms, queue, key[0], waited=key[1])
        # Sub-queues are many.
        if len(terms.encoded) < _MAX_ENCODED:
            terms.encoded[key] = encoded
    return (unit, jid, terms, encoded, slot, lock, waited)


def _encoded(terms: ClassTerms, queue: str, lock_ttl_s: float, *, waited: bool) -> EncodedTerms:
    """Return the arguments that jobs of one class share (``admit.lua``); ``lock_ttl_s`` is 0 for none.

    Jobs that are held go to ``queue`` later.
    """
    more = "" if not waited else "scope" if terms.scope_of is not None else "since"
    limit: tuple[str, ...] = ("", "", "", "", "")
    if terms.base:
        refuses = "" if terms.may_wait else "1"
        limit = (terms.limit, str(terms.share), str(terms.slot_ttl_s), terms.owner, refuses)
    lock: tuple[str, ...] = ("", "", "", "")
    if lock_ttl_s:
        ttl_ms = str(milliseconds(lock_ttl_s))
        run_ms = str(milliseconds(terms.declaration.run_lock_ttl_s or lock_ttl_s))
        held_ms = str(milliseconds(HELD_LOCK_S + lock_ttl_s))
        lock = (run_ms if terms.keeps_lock else "0", held_ms, ttl_ms, "1" if terms.keeps_period else "")
    return (terms.declaration.wire_name, queue, *limit, *lock, more)
