"""Run one job: decode, find its class, ask policies, call ``perform`` through the middleware, return the outcome."""

import math
import threading
import time
from asyncio import CancelledError
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.errors import JobStoppedError, PayloadError, Shutdown
from framework.execute.admission import AdmissionChain, AdmissionRequest
from framework.execute.decoding import MemoryReservation, PayloadDecoder
from framework.execute.job_log import JobLog, StartLine
from framework.execute.outcomes import (
    UnknownClassDelays,
    cancelled_jid,
    early_end,
    malformed_outcome,
    outcome_of_order,
    outcome_of_stop,
    requested_outcome,
    task_cancelled,
)
from framework.execute.perform import (
    AroundRun,
    CursorStore,
    DetachedRuns,
    JobCaller,
    RunSpan,
    RunSpans,
    admitted,
    exit_with_outcome,
    new_instance,
    span_failed,
)
from framework.execute.policy_decision import GroupAdmission, PolicyDecision
from framework.execute.recording import JobRecorder, RunRecord, is_recorded_job
from framework.execute.stats import RunningJobs
from framework.execute.threads import FetchingThreads
from framework.execute.timeouts import Timeouts
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.answers import note_answer
from framework.finish.endings import SUCCEEDED as SUCCEEDED_ENDING
from framework.finish.endings import Ending
from framework.finish.outcome import (
    SUCCEEDED,
    Cancelled,
    Discarded,
    Failed,
    Interrupted,
    JobStop,
    Lost,
    Retired,
    RunOutcome,
)
from framework.middleware.chain import Call, ChainInvocation
from framework.push.argument_checks import StrictArgumentsCheck
from framework.recover.suspects import SUSPECT_FIELD, SuspectRunner, is_suspect
from framework.telemetry import context
from framework.telemetry.job_events import RunOfJob, job_events, tell_started
from framework.telemetry.usage import Usage, usage_records
from framework.typeguards import has_type
from framework.types import Jid, Payload
from framework.wire.job import DEATH_COUNT, EXPIRES_IN, TRACK, count_of
from framework.wire.resources import resource_fields, resources_of
from framework.wire.status_key import STATUS_EXPIRATION, TrackedJob, tracked_job

NO_RETIRED_CLASSES: Mapping[str, str] = MappingProxyType({})
NO_POLICIES = AdmissionChain()
DEFAULT_UNKNOWN_CLASSES = UnknownClassDelays()
_SAME_READING_S = 50e-6
_MIDDLEWARE_STOPPED = Discarded("a server middleware did not yield", "middleware")


class Execution(MemoryReservation, RunOfJob):
    """One run: its job, its outcome, and the facts of its end line and for its observers."""

    __slots__ = (
        "admitted",
        "coroutine",
        "cpu_s",
        "declaration",
        "duration_s",
        "ending",
        "instance",
        "lost",
        "middleware_exits",
        "outcome",
        "payload",
        "record",
        "spans",
        "start_noted",
        "started",
        "started_cpu",
        "started_log",
        "tracked",
        "unit",
        "usage",
        "worker",
    )

    def __init__(self, unit: UnitOfWork) -> None:
        self.unit = unit
        self.outcome: RunOutcome | None = SUCCEEDED
        """``None`` while the job awaits its turn, or if it is lost."""
        self.ending: Ending = SUCCEEDED_ENDING
        self.lost: Lost | None = None
        """Set if another process owns the job."""
        self.worker: Any = None
        self.declaration: Declaration | None = None
        self.payload: Payload | None = None
        self.instance: Any = None
        self.record: RunRecord | None = None
        """Records the life of a tracked job; ``None`` for any other."""
        self.reserved, self.surely_strict = 0, False
        self.started_log: StartLine | None = None
        self.tracked: TrackedJob | None = None
        self.started = self.started_cpu = self.duration_s = self.cpu_s = 0.0
        self.middleware_exits: ExitStack | None = None
        """Ends the middlewares around the coroutine."""
        self.usage: Usage | None = None
        """What the job has used, from the end of its run on; ``None`` if nothing was counted."""
        self.spans: Sequence[RunSpan] = ()
        """The run in traces; empty without a library for traces."""
        self.coroutine: Coroutine[Any, Any, Any] | None = None
        """The coroutine of an ``async def perform``, with which the run continues on the event loop."""
        self.admitted = False
        """Whether every policy has admitted the job."""
        self.start_noted = False
        """Whether the start of the job was written to Redis, because it is a suspect."""

    @property
    def queue(self) -> str:
        return self.unit.queue

    @property
    def started_at(self) -> float:
        return self.unit.started_at

    @property
    def job_bytes(self) -> int:
        return len(self.unit.data)

    @property
    def error(self) -> BaseException | None:
        return self.outcome.error if isinstance(self.outcome, Failed) else None


class _ThreadClock(threading.local):
    """The processor time of each thread. A call of its clock costs as much as a log line, so times close together share one."""

    def __init__(self) -> None:
        self.reading = (0.0, -math.inf)
        """The processor time, and when it was read."""

    def time_at(self, now: float) -> float:
        """Return the processor time of this thread at ``now``, at most ``_SAME_READING_S`` wrong.

        For so long after a reading the thread counts as having used the processor all the time. So a quick job has its duration.
        """
        read, read_at = self.reading
        since = now - read_at
        if since < _SAME_READING_S:
            return read + since
        read = time.thread_time()
        self.reading = read, now
        return read


class Executor:
    """Run units. All threads of a process share one executor.

    ``threads`` fetch during code that may be slow. ``retired`` has the wire names of removed classes, with the reasons.
    ``around``, ``spans``, ``cursors`` and ``detached`` are what features do in the runs; without ``detached`` all jobs run here.
    ``capsule`` names the capsule of the middlewares, "" for none.
    """

    def __init__(
        self,
        middleware: tuple[Call, ...],
        log: JobLog,
        running_jobs: RunningJobs,
        decoding: PayloadDecoder,
        threads: FetchingThreads,
        suspect_runner: SuspectRunner,
        strictness: StrictArgumentsCheck,
        retired: Mapping[str, str] = NO_RETIRED_CLASSES,
        admission: AdmissionChain = NO_POLICIES,
        unknown: UnknownClassDelays = DEFAULT_UNKNOWN_CLASSES,
        together: GroupAdmission | None = None,
        recorder: JobRecorder | None = None,
        around: Sequence[AroundRun] = (),
        spans: Sequence[RunSpans] = (),
        cursors: CursorStore | None = None,
        detached: DetachedRuns | None = None,
        capsule: str = "",
    ) -> None:
        self._middleware = middleware
        self._cursors = cursors
        self._log = log
        # Only lines and some observers show it.
        self._measures_cpu = log.has_job_lines or job_events.needs_usage
        # Without a reader the times mean nothing: ``float`` costs less than a question.
        self._cpu_at: Callable[[float], float] = _ThreadClock().time_at if self._measures_cpu else float
        self._start_observers = job_events.of_starts()
        self._running_jobs = running_jobs
        self._cancelled = running_jobs.cancelled
        self.timeouts = Timeouts()
        self._caller = JobCaller(strictness, self.timeouts, around)
        self._spans = spans
        self.detached = detached
        self._capsule = capsule
        self._resource_fields = resource_fields()
        self._decoding = decoding
        self._threads = threads
        self._ensure_fetching = threads.ensure_fetching
        self._suspect_runner = suspect_runner
        self._retired = retired
        self._recorder = recorder
        self._usages = usage_records.running
        self._admission = admission
        self._unknown = unknown
        self._policy_decision = PolicyDecision(decoding, threads, log, running_jobs, together)
        # A fork replaces this attribute. So no run pays for a check whether it is in a forked child.
        self._on_job_return: Callable[[Execution], None] = self._stop_clocks

    def after_fork_in_child(self) -> None:
        """Exit a child process that a job has forked as soon as the job's code returns."""
        self._on_job_return = lambda run: exit_with_outcome(run.outcome)
        self.timeouts.after_fork_in_child()
        if self.detached is not None:
            self.detached.after_fork_in_child()

    def begin(self, unit: UnitOfWork) -> Execution:
        """Run one fetched job in the caller's context, to its end or to its ``coroutine``. Raises nothing."""
        run = Execution(unit)
        try:
            prepared = unit.prepared
            run.payload = payload = prepared.payload if prepared is not None else self._decoding.decode(unit, run)
        except PayloadError as error:
            run.outcome = malformed_outcome(unit, error)
            return run
        except Shutdown:
            run.outcome = Interrupted()
            return run
        if STATUS_EXPIRATION in payload or TRACK in payload:
            run.tracked = tracked_job(payload)
            run.record = self._open_record(run, payload)
        run.worker = registry.find(payload["class"])
        run.started = time.perf_counter()
        run.started_cpu = self._cpu_at(run.started)
        try:
            # As ``declaration()``, without its call: a registered class is not abstract.
            run.declaration = None if run.worker is None else run.worker._aw_declaration
            if not payload.keys().isdisjoint(self._resource_fields) and (
                prepared is None or prepared.admission is None
            ):
                _note_resources(run, payload)
            context.enter_job(payload)
            # Before the policies: a job that does not run takes no slot. Almost all payloads have none of these fields.
            rare = run.declaration is None or "version" in payload or EXPIRES_IN in payload or self._cancelled
            if rare and (refused := self._refusal(run, payload)) is not None:
                run.outcome = refused
                return run
            if run.declaration is None or self._is_admitted(run, run.declaration):
                run.admitted = True
                # Before the start line, which has the ids of the span.
                if self._spans:
                    self._begin_spans(run, payload)
                run.started_log = self._log.start(payload, unit, run.declaration) if self._log.has_job_lines else None
                self._perform(run, payload)
        except BaseException as error:  # noqa: BLE001 - the job's code may raise anything; the process must not
            run.outcome = self._outcome(run, error)
        if run.coroutine is None:
            self._on_job_return(run)
        return run

    def begin_in_turn(self, run: Execution) -> None:
        """Continue a run that awaited its turn, as ``begin`` would have. Raises nothing."""
        run.outcome = SUCCEEDED
        run.started_cpu = self._cpu_at(time.perf_counter())
        try:
            assert run.declaration is not None and run.payload is not None, "begin has run"  # noqa: S101, PT018
            if run.tracked is not None:
                self._threads.show_running(run.unit, run.tracked)
                self._ensure_fetching()
            self._call_job(run, run.declaration, run.payload, suspected=True)
        except BaseException as error:  # noqa: BLE001 - as above
            run.outcome = self._outcome(run, error)
        if run.coroutine is None:
            self._stop_clocks(run)

    def release_memory(self, run: Execution) -> None:
        """Drop the decoded payload of a settled run, and free its reserved memory."""
        if run.payload is not None:
            run.payload.pop("args", None)
        run.instance = None
        self._decoding.release(run, run.outcome.error if isinstance(run.outcome, Failed) else None)

    async def complete_async(self, run: Execution) -> None:
        """Continue an async run on the event loop. Raises nothing."""
        try:
            await self._await_job(run)
            # The job has handled the cancellation of its task, and returned.
            if (self._cancelled or self._running_jobs.stops) and (jid := self._ended_jid(run)) and task_cancelled():
                run.outcome = Cancelled(jid, ran=True)
        except BaseException as error:  # noqa: BLE001 - as above; an error that leaves a task ends the loop
            run.outcome = self._outcome(run, error)
        self._on_job_return(run)

    async def _await_job(self, run: Execution) -> None:
        assert run.coroutine is not None, "only async jobs are completed"  # noqa: S101
        if run.middleware_exits is None:
            returned = await run.coroutine
        else:
            with run.middleware_exits:
                returned = await run.coroutine
        if returned is not None:
            run.instance._aw_returned = returned

    def _open_record(self, run: Execution, payload: Payload) -> RunRecord | None:
        """Return the record of a tracked job; a payload without the field, of another producer, is as its class says."""
        if self._recorder is None or not is_recorded_job(payload, run.declaration):
            return None
        return self._recorder.open(payload, run.unit.queue)

    def _refusal(self, run: Execution, payload: Payload) -> RunOutcome | None:
        """Return the outcome of a job that ends early, or that this process cannot run; ``None`` for any other."""
        ended = early_end(run.unit, payload, run.declaration, self._cancelled)
        return ended or self._unknown.outcome_if_unknown(payload, run.declaration, self._retired)

    def _is_admitted(self, run: Execution, declaration: Declaration) -> bool:
        """Return whether every policy of the class admits the job; if one does not, note why."""
        prepared = run.unit.prepared
        if prepared is not None and prepared.starts:
            return True
        policies = self._admission.policies_for(declaration)
        has_moved = prepared is not None and prepared.moved
        if not (has_moved or policies.remote) and policies.local_admit_all(declaration):
            return True
        assert run.payload is not None, "its class is known"  # noqa: S101
        request = AdmissionRequest(run.unit, run.payload, declaration, run.worker)
        asked_before = run.unit.admission is not None
        answer = self._policy_decision.ask(request, policies, run)
        if isinstance(answer, Lost):
            run.outcome, run.lost = None, answer
            return False
        if answer is not None:
            run.outcome = answer
            return False
        # The duration of the job excludes the wait for its policies. Policies that have answered before caused none.
        if not asked_before:
            self._restart_clocks(run)
        return True

    def _begin_spans(self, run: Execution, payload: Payload) -> None:
        """Begin the spans of a run. One that fails is left out: it must not decide about the job."""
        if run.declaration is None:
            return
        run.spans = begun = list[RunSpan]()
        for one in self._spans:
            try:
                begun.append(one.begin(payload, run.unit, run.declaration))
            except Exception as error:  # noqa: BLE001 - a library for traces, or its exporter, may raise anything
                span_failed(error)

    def _perform(self, run: Execution, payload: Payload) -> None:
        declaration = run.declaration
        if declaration is None:
            run.outcome = Retired(payload["class"], self._retired[payload["class"]])
            return
        # For each job: a decoder may check the signature here.
        self._decoding.decompress(payload, run.unit, run, self._ensure_fetching)
        # The duration of the job excludes the wait for memory.
        if run.reserved:
            self._restart_clocks(run)
        run.instance = instance = new_instance(run.worker, payload)
        instance._aw_run = self._running_jobs
        if declaration.is_iterable and self._cursors is not None:
            self._cursors.prepare(instance, run.unit, payload)
        if declaration.track and run.record is None:
            run.record = self._open_record(run, payload)
        # Almost no payload has the field: the check is cheaper than the call.
        suspected = SUSPECT_FIELD in payload and is_suspect(payload)
        if suspected and declaration.is_async:
            # One thread starts all of them in turn: a process may hold thousands of async suspects.
            run.outcome = None
            return
        if run.tracked is not None:
            self._threads.show_running(run.unit, run.tracked)
        if not declaration.is_async or run.tracked is not None or declaration.limiter is not None:
            self._ensure_fetching()
        if self.detached is None or declaration.in_thread or declaration.is_async:
            self._call_job(run, declaration, payload, suspected=suspected)
        else:
            self._run_detached(self.detached, run, payload, suspected=suspected)

    def _run_detached(self, detached: DetachedRuns, run: Execution, payload: Payload, *, suspected: bool) -> None:
        """Run the job outside of this process, middlewares included; this thread waits for it."""
        if self._usages:
            # What its policies have asked is not what the job uses.
            usage_records.take(payload)
        if suspected:
            # Not within its turn, for which other suspects wait: nothing of the job runs meanwhile.
            detached.prepare()
        if not self._note_start(run, payload, suspected=suspected):
            return
        run.unit.performing_since = run.started
        # Here and not where the job runs: a process that is killed would keep the lock of a limiter.
        with admitted(run.instance.declaration(), payload):
            try:
                if not detached.run(payload, run.unit.queue, run.instance, self._capsule):
                    run.outcome = _MIDDLEWARE_STOPPED
            finally:
                run.started_cpu -= run.instance._aw_extra.cpu_s

    def _call_job(self, run: Execution, declaration: Declaration, payload: Payload, *, suspected: bool) -> None:
        """Write the start of a suspect, and call ``perform`` through the middleware, which may change the arguments."""
        if self._usages:
            # What its policies have asked is not what the job uses.
            usage_records.take(payload)
        instance = run.instance
        # Almost no job has one of them: the check is cheaper than the call.
        tells = run.record is not None or self._start_observers
        if (suspected or tells) and not self._note_start(run, payload, suspected=suspected):
            return
        # A store and not a method: every job pays for it.
        run.unit.performing_since = run.started
        if not self._middleware:
            run.coroutine = self._caller.call(instance, declaration, payload, surely_strict=run.surely_strict)
            return
        with ExitStack() as stack:
            if not stack.enter_context(ChainInvocation(self._middleware, instance, payload, run.unit.queue)):
                run.outcome = _MIDDLEWARE_STOPPED
                return
            run.coroutine = self._caller.call(instance, declaration, payload)
            if run.coroutine is not None:
                # The middlewares end after the coroutine.
                run.middleware_exits = stack.pop_all()

    def _note_start(self, run: Execution, payload: Payload, *, suspected: bool) -> bool:
        """Write the start of a suspect, and the event; return false if the process stops before its turn.

        Observers of starts are told.
        """
        if suspected:
            run.start_noted = True
            self._suspect_runner.begin(run.unit.data, count_of(payload, DEATH_COUNT))
            # The job returns to its queue unchanged.
            if self._running_jobs.stopping:
                run.outcome = Interrupted()
                return False
            run.started = time.perf_counter()
        if run.record is not None:
            run.record.start()
            run.instance._aw_record = run.record
        tell_started(self._start_observers, run)
        return True

    def _outcome(self, run: Execution, error: BaseException) -> RunOutcome:
        """Return the outcome for an error. Even SystemExit and KeyboardInterrupt fail only this job."""
        try:
            requested = requested_outcome(run.unit, run.payload, error)
        except BaseException:  # noqa: BLE001 - an application's subclass may lack the attributes of its base: the job fails
            requested = None
        if requested is None and has_type(error, CancelledError, JobStoppedError):
            jid = self._ended_jid(run)
            requested = None if jid is None else Cancelled(jid, ran=True)
        if requested is None and self._running_jobs.stopping and has_type(error, Shutdown, CancelledError):
            return Interrupted()
        return requested or Failed(error)

    def _ended_jid(self, run: Execution) -> Jid | None:
        """Return the id of a job that was cancelled, or that an operator has stopped in this run; ``None`` for any other."""
        payload = run.payload or {}
        jid = cancelled_jid(payload, self._cancelled)
        return jid or (None if self._stop_of(run) is None else str(payload.get("jid")))

    def _stop_of(self, run: Execution) -> JobStop | None:
        return self._running_jobs.stop_of(str((run.payload or {}).get("jid")), run.unit)

    def _restart_clocks(self, run: Execution) -> None:
        run.started = time.perf_counter()
        run.started_cpu = self._cpu_at(run.started)

    def _stop_clocks(self, run: Execution) -> None:
        if run.start_noted:
            self._suspect_runner.end(run.unit.data)
        ended = time.perf_counter()
        run.duration_s = ended - run.started
        if self._usages:
            used = usage_records.take(run.payload)
            run.usage = used if run.admitted else None
        instance = run.instance
        if instance is not None and instance._aw_cancellation is not None and run.outcome is SUCCEEDED:
            run.outcome = outcome_of_stop(instance)
        if (
            run.outcome is not SUCCEEDED
            and isinstance(run.outcome, Cancelled)
            and (stop := self._stop_of(run)) is not None
        ):
            run.outcome = outcome_of_order(run.outcome.jid, stop)
        if run.unit.resources is not None and run.outcome is SUCCEEDED:
            note_answer(run.unit.resources, instance)
        # An async suspect without an outcome awaits its turn.
        if run.spans and run.outcome is not None:
            _end_spans(run.spans, run.outcome)
        # No clock measures the processor time of one async job.
        if self._measures_cpu and run.coroutine is None:
            run.cpu_s = max(0.0, self._cpu_at(ended) - run.started_cpu)


def _note_resources(run: Execution, payload: Payload) -> None:
    ttl_s = None if run.declaration is None else run.declaration.lock_ttl_s
    name = payload["class"] if run.declaration is None else run.declaration.wire_name
    run.unit.note_resources(resources_of(payload, run.unit.data, run.unit.queue, ttl_s, name))


def _end_spans(spans: Sequence[RunSpan], outcome: RunOutcome) -> None:
    for one in reversed(spans):
        try:
            one.end(outcome)
        except Exception as error:  # noqa: BLE001 - as at the begin
            span_failed(error)
