"""Run jobs on worker threads: each fetches a unit, runs it, logs it, settles it, and fetches the next.

A thread only starts an async job: the job continues on the event loop and keeps its place, and the thread fetches the next.
A child process that a job forks exits where the job's code returns: the run, its unit and every connection belong to the parent.

A thread does not wait until the event of its recorded job is durable: it runs the next job. At a crash: the recorded job stays in
the working list of its process until its event is durable. If the process is killed before, the job runs again, and its event
follows that run. Such jobs count as jobs without a confirmed acknowledgement. No job starts while there are
``MAX_UNACKNOWLEDGED`` of these, so a kill repeats no more jobs than it would without recorded jobs. The job that reaches this
limit makes the writer write at once. While the database does not answer, no job starts after it.
"""

import os
import threading
import time
from collections.abc import Callable
from contextvars import Context, copy_context
from functools import partial
from weakref import WeakSet

from redis.exceptions import RedisError

from framework.errors import BusinessError, JobStoppedError, JobTimeoutError
from framework.execute.end_report import end_fields, report_outcome
from framework.execute.event_loop import EventLoop
from framework.execute.execution import Execution, Executor
from framework.execute.job_log import JobLog
from framework.execute.perform import DetachedRuns
from framework.execute.stats import RunningJobs, ThreadCounts
from framework.execute.threads import CallPool, WorkerThreads
from framework.fetch.fetcher import Fetcher
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.endings import (
    CANCELLED,
    CANCELLED_RUN,
    DEFERRED_NO_KEY,
    DEFERRED_NO_STORE,
    EXPIRED,
    LOST_BEFORE_RUN,
    SNOOZED_BY_LIMITER,
    YIELDED,
    Ending,
    ending_of,
)
from framework.finish.endings import SUCCEEDED as SUCCEEDED_ENDING
from framework.finish.outcome import (
    SUCCEEDED,
    Failed,
    Interrupted,
    Malformed,
    RunOutcome,
    SettledOutcome,
)
from framework.finish.report import ProcessorEvents
from framework.finish.retry import RetryDecision
from framework.finish.settle import REMOVED, Settler, SettleResult
from framework.telemetry.job_events import CountedEnd, job_events
from framework.telemetry.stacks import lines_of
from framework.telemetry.usage import usage_records
from framework.timings import backoff_s
from framework.typeguards import has_type

TIMED_OUT_JOBS = "sidekiq_jobs_timed_out_total"
"""Runs that ended because they lasted longer than their ``timeout``; ``stat:failed`` counts them too."""

_UNREAD = (DEFERRED_NO_KEY, DEFERRED_NO_STORE)
_COUNTED_ENDINGS = (EXPIRED, CANCELLED, CANCELLED_RUN, YIELDED, SNOOZED_BY_LIMITER, *_UNREAD)

BUSINESS_FAILED = "sidekiq_jobs_business_failed_total"
"""Jobs that ended by a ``BusinessError``; ``stat:failed`` does not count them."""


_DONE = SUCCEEDED_ENDING.log_status
_RECORD_THREADS = 16
_RECORD_CHECK_S = 0.25
"""A thread that waits for the end of a record looks this often whether the process stops."""


class Processor:
    """Run the units of ``fetcher`` on ``threads``."""

    def __init__(
        self,
        fetcher: Fetcher,
        threads: WorkerThreads,
        executor: Executor,
        settler: Settler,
        log: JobLog,
        running_jobs: RunningJobs,
        loop: EventLoop,
        events: ProcessorEvents,
    ) -> None:
        self._fetcher = fetcher
        self._threads = threads
        self._executor = executor
        self._settler = settler
        self._log = log
        self._running_jobs = running_jobs
        self._usages = usage_records.running
        self._loop = loop
        self._events = events
        self._settling_stopped = threading.Event()
        # Settling a failure waits for Redis, and the event loop must not wait.
        self._settles = CallPool("async-settler")
        # The start of a suspect waits too. One thread is enough, because suspects take turns (decision 30).
        self._starts = CallPool("async-starter")
        # The end of a tracked job waits for its database, and no other job must wait for that.
        self._records = CallPool("async-recorder", _RECORD_THREADS)
        self._record_counts = _CountsOfThread(running_jobs)
        self._recorded_ends = RecordedEnds(fetcher, settler, threads, events)
        self._async_counts = running_jobs.new_thread_counts()
        self._async_settled_counts = running_jobs.new_thread_counts()
        _processors.add(self)

    def start(self) -> None:
        """Start the first thread; more are started as they are needed."""
        self._threads.start(self._work)

    def ensure_fetching(self) -> None:
        """Make sure that a thread fetches: one that the system could not start earlier may start now."""
        self._threads.ensure_fetching()

    def stop(self) -> None:
        """Fetch no more jobs; each thread ends after its job. May be called twice."""
        self._threads.stop()

    def join(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` for a thread to end; return whether every job has ended."""
        # In the order of a job's way: a job that moves on between two checks is found at its next place.
        if not self._threads.join(timeout_s) or not self._starts.idle or not self._loop.idle:
            return False
        return self._settles.idle and self._records.idle and self._recorded_ends.is_empty

    def stop_settling(self) -> None:
        """Settle no further job: the launcher returns the jobs in flight to their queues."""
        self._settling_stopped.set()
        self._recorded_ends.stop()

    def async_stacks(self) -> list[tuple[str, list[str]]]:
        """Return (jid, lines) of every async job for a stack dump; the interpreter dumps the stacks of threads."""
        return [(jid, lines_of(stack)) for jid, stack in self._loop.stacks()]

    @property
    def detached(self) -> DetachedRuns | None:
        """The runs outside of this process."""
        return self._executor.detached

    def interrupt(self, unit: UnitOfWork) -> bool:
        """Raise JobStoppedError in the job's own code, if it runs in a thread with a ``timeout``; else return false."""
        return self._executor.timeouts.interrupt(
            unit.thread, JobStoppedError, still=lambda: unit in self._fetcher.in_flight.running()
        )

    def cancel_async(self, timeout_s: float) -> None:
        """Cancel the async jobs and give them ``timeout_s`` to clean up; end the runs outside of this process."""
        self._loop.cancel_all()
        if self._executor.detached is not None:
            self._executor.detached.kill_all(timeout_s)
        self._loop.wait_idle(timeout_s)

    def close(self) -> None:
        """End the threads that run async jobs, after ``join``. A process of its own ends instead."""
        for pool in (self._settles, self._starts, self._records):
            pool.close()
        self._loop.close()
        if self._executor.detached is not None:
            self._executor.detached.close()

    def after_fork_in_child(self) -> None:
        """Stop all work in a child process that a job has forked: the runs and connections belong to the parent."""
        self._executor.after_fork_in_child()
        self._fetcher.after_fork_in_child()

    def _work(self) -> None:
        counts = self._running_jobs.new_thread_counts()
        threads = self._threads
        try:
            while (unit := threads.next()) is not None:
                context = copy_context()
                run = context.run(self._executor.begin, unit)
                if run.outcome is SUCCEEDED:
                    if run.coroutine is None:
                        self._finish_run(run, counts)
                    else:
                        unit.leave_thread()
                        self._loop.submit(self._run_async(run), context, str(run.instance.jid))
                elif run.outcome is None and run.lost is None:
                    unit.leave_thread()
                    self._starts.submit(partial(self._take_turn, run, context))
                else:
                    context.run(self._finish_run, run, counts)
                # Otherwise an idle thread keeps the arguments of its last job in memory.
                del context, run
        except BaseException as error:  # noqa: BLE001 - a worker thread must not end unseen
            self._events.component_died(threading.current_thread().name, error)

    def _take_turn(self, run: Execution, context: Context) -> None:
        if self._running_jobs.stopping:
            # The shutdown returns the job to its queue.
            return
        context.run(self._executor.begin_in_turn, run)
        if run.outcome is SUCCEEDED and run.coroutine is not None:
            self._loop.submit(self._run_async(run), context, str(run.instance.jid))
        else:
            context.run(self._settle_in_thread, run)

    async def _run_async(self, run: Execution) -> None:
        try:
            await self._executor.complete_async(run)
            if run.outcome is SUCCEEDED and run.record is None and is_acknowledged_with_others(run):
                self._finish_run(run, self._async_counts)
            else:
                self._settle_in_thread(run)
        except BaseException as error:  # noqa: BLE001 - as above
            self._events.component_died("event-loop", error)
        self._threads.request_acknowledgement()

    def _settle_in_thread(self, run: Execution) -> None:
        """Finish an async run in a thread of its own. Not awaited, because the job may have cancelled its own task."""
        context = copy_context()
        if run.record is None:
            self._settles.submit(lambda: context.run(self._finish_async, run, self._async_settled_counts))
        else:
            self._records.submit(lambda: context.run(self._finish_recorded, run))

    def _finish_async(self, run: Execution, counts: ThreadCounts) -> None:
        try:
            self._finish_run(run, counts)
        finally:
            self._threads.request_acknowledgement()

    def _finish_recorded(self, run: Execution) -> None:
        self._finish_async(run, self._record_counts.counts)

    def _finish_run(self, run: Execution, counts: ThreadCounts) -> None:
        try:
            if run.outcome is SUCCEEDED:
                counts.ended(run)
                self._finish_succeeded(run)
            elif run.outcome is not None:
                self._finish_other(run, run.outcome, counts)
            else:
                # Another process owns the job, which has not run here.
                self._write_end(run, LOST_BEFORE_RUN, None)
                self._fetcher.finish(run.unit, settled=True)
        finally:
            if self._usages:
                # The calls that have settled the job, in its context.
                usage_records.take(run.payload)
            # Almost no run has reserved memory: the check is cheaper than the call.
            if run.reserved:
                self._executor.release_memory(run)

    def _finish_succeeded(self, run: Execution) -> None:
        # The line is written before the acknowledgement: a kill in between repeats the job and its line, and loses neither.
        if run.started_log is not None:
            # As ``_write_end``, without its questions: each job pays for them.
            more = end_fields(run, None)
            self._log.end(run.started_log, run.unit, run.declaration, _DONE, run.duration_s, run.cpu_s, more, None)
        with_others = is_acknowledged_with_others(run)
        if run.record is not None:
            if with_others and self._recorded_ends.takes(run):
                self._recorded_ends.record(run)
                return
            if not self._record_end(run, SUCCEEDED, SUCCEEDED_ENDING, None):
                return
        if with_others:
            if run.tracked is not None or run.unit.resources is not None:
                self._settler.acknowledge_with_others(run.unit, run.tracked)
            self._fetcher.finish(run.unit)
        else:
            run.unit.end_perform()
            self._retry_until_done(run.unit, partial(self._settle, run, SUCCEEDED, None))

    def _finish_other(self, run: Execution, outcome: RunOutcome, counts: ThreadCounts) -> None:
        unit = run.unit
        if not (isinstance(outcome, Interrupted) and self._running_jobs.deadline_passed):
            # The job returned before the deadline: a later look at running jobs must not count it as cut off.
            unit.end_perform()
        if isinstance(outcome, Interrupted):
            return
        args = run.payload["args"] if run.payload else None
        decision = self._settler.decide_retry(unit, run.worker, outcome, args)
        run.ending = ending = ending_of(outcome, decision)
        _emit_end(run, ending)
        counts.ended(run)
        self._write_end(run, ending, decision)
        report_outcome(self._events, run, decision)
        if run.record is not None and not self._record_end(run, outcome, ending, decision):
            return
        self._retry_until_done(unit, partial(self._settle, run, outcome, decision))

    # Decision 235: an event is durable before its job leaves the working list.
    def _record_end(self, run: Execution, outcome: RunOutcome, ending: Ending, decision: RetryDecision | None) -> bool:
        """Record the end of a tracked job, and wait until that is durable; false if the process stops before.

        The job is then still in the working list, and runs again.
        """
        assert run.record is not None, "only tracked jobs are recorded"  # noqa: S101
        run.unit.end_perform()
        durable = run.record.end(ending, outcome, decision)
        while durable is not None and not durable.wait(_RECORD_CHECK_S):
            if self._settling_stopped.is_set():
                return False
        return True

    def _write_end(self, run: Execution, ending: Ending, decision: RetryDecision | None) -> None:
        if run.payload is None or ending.line in ("none", "event"):
            return
        if ending.line == "single" or (ending in _UNREAD and run.started_log is None):
            more = end_fields(run, decision) or {}
            self._log.log_not_started(run.payload, run.unit, run.declaration, ending.log_status, more)
            return
        outcome = run.outcome
        error = outcome.error if isinstance(outcome, Failed | Malformed) else None
        self._log.end(
            run.started_log,
            run.unit,
            run.declaration,
            ending.log_status,
            run.duration_s,
            run.cpu_s,
            end_fields(run, decision),
            error,
        )

    def _settle(
        self, run: Execution, outcome: SettledOutcome, decision: RetryDecision | None, *, unmoved: bool = False
    ) -> None:
        """Move the job, or let the next call of the fetcher move it. ``unmoved``: that call was refused."""
        unit = run.unit
        # The last call of a process that stops could leave such a job: it would be put back, and run again.
        with_others = not unmoved and not (self._fetcher.stopped and unit.lock_with_rerun is not None)
        settled: SettleResult = self._settler.settle(
            unit, outcome, decision, run.tracked, confirmed=awaits_acknowledgement(run), with_others=with_others
        )
        if unit.move is not None:
            again = partial(self._retry_until_done, unit, partial(self._settle, run, outcome, decision, unmoved=True))
            unit.move.settle_alone = partial(self._settles.submit, partial(copy_context().run, again))
        if unmoved:
            self._fetcher.finish_unmoved(unit)
        else:
            self._fetcher.finish(unit, settled=not settled.acknowledge)
        if settled.moved_to == "lost":
            self._events.fenced(run.unit)
            return
        resources = run.unit.resources
        if resources is not None and resources.on_removed is not None and settled.moved_to in REMOVED:
            resources.on_removed()
        if run.outcome is SUCCEEDED and run.instance._aw_on_success is not None:  # pyright: ignore[reportPrivateUsage]
            self._settler.call_hook("on_success", run.instance._aw_on_success)  # pyright: ignore[reportPrivateUsage]

    def _retry_until_done(self, unit: UnitOfWork, step: Callable[[], None]) -> None:
        """Repeat ``step`` until Redis answers. Meanwhile the job is in the working list of this process, protected by its lease."""
        failures = 0
        while not self._settling_stopped.is_set():
            try:
                step()
            except (RedisError, OSError) as error:
                self._events.settle_failed(unit, error)
                failures += 1
                # After a lost reply it is not certain where the job is, and a rerun may have its arguments: the sweep decides.
                unit.keep_blob()
                self._settling_stopped.wait(backoff_s(failures, 0.05, 2.0))
            else:
                return


# Weak: a hook of a fork cannot be unregistered, and must not keep a stopped processor in memory.
_processors: WeakSet[Processor] = WeakSet()


def _after_fork_in_child() -> None:
    for processor in list(_processors):
        processor.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)


class _CountsOfThread(threading.local):
    """The counts of one thread that records ends."""

    def __init__(self, running_jobs: RunningJobs) -> None:
        self.counts = running_jobs.new_thread_counts()


class RecordedEnds:
    """The ended jobs of a processor that wait for their events without a thread."""

    def __init__(
        self,
        fetcher: Fetcher,
        settler: Settler,
        threads: WorkerThreads,
        events: ProcessorEvents,
    ) -> None:
        self._fetcher = fetcher
        self._settler = settler
        self._threads = threads
        self._events = events
        self._stopped = False
        self._full_since = 0.0
        """The time from which no job could start until the events of the waiting jobs are durable; 0 if a job could start."""

    @property
    def is_empty(self) -> bool:
        """Whether no job waits for its event; always true after ``stop``."""
        return self._stopped or not self._fetcher.in_flight.left

    def takes(self, run: Execution) -> bool:
        """Return whether a job may wait for its event without its thread."""
        # A run that has reserved memory, or an event loop, ends where it began.
        is_simple = run.coroutine is None and not run.reserved
        return is_simple and not self._stopped

    def stop(self) -> None:
        """Acknowledge no further job: the launcher returns the jobs in flight to their queues."""
        self._stopped = True

    def record(self, run: Execution) -> None:
        """Record the end of a successful run, and acknowledge its job when that is durable. Waits for nothing."""
        assert run.record is not None, "only tracked jobs are recorded"  # noqa: S101
        run.unit.end_perform()
        is_full = self._fetcher.leave(run.unit)
        if is_full:
            self._full_since = time.perf_counter()
        on_durable = partial(self._on_durable, run)
        if run.record.end(SUCCEEDED_ENDING, SUCCEEDED, None, on_durable=on_durable, at_once=is_full) is None:
            on_durable()

    def _on_durable(self, run: Execution) -> None:
        try:
            if self._stopped:
                return
            if run.tracked is not None or run.unit.resources is not None:
                self._settler.acknowledge_with_others(run.unit, run.tracked)
            self._fetcher.finish_left(run.unit)
            if not self._fetcher.in_flight.left:
                if self._full_since:
                    self._fetcher.waited(time.perf_counter() - self._full_since)
                    self._full_since = 0.0
                # The acknowledgements do not wait for the next fetch.
                self._threads.request_acknowledgement()
        except BaseException as error:  # noqa: BLE001 - the thread of the writer must not end
            self._events.component_died("recorded-ends", error)


def _emit_end(run: Execution, ending: Ending) -> None:
    """Emit the ends that have counters of their own."""
    if ending in _COUNTED_ENDINGS:
        job_events.emit(CountedEnd(str((run.payload or {}).get("class")), counted_as=ending.counter))
    outcome = run.outcome
    if isinstance(outcome, Failed) and run.declaration is not None:
        if has_type(outcome.error, JobTimeoutError):
            job_events.emit(CountedEnd(run.declaration.wire_name, counted_as=TIMED_OUT_JOBS))
        if has_type(outcome.error, BusinessError):
            job_events.emit(CountedEnd(run.declaration.wire_name, counted_as=BUSINESS_FAILED))


def is_acknowledged_with_others(run: Execution) -> bool:
    """Return whether a successful job is acknowledged with others: nothing waits for its confirmation."""
    unit = run.unit
    return (unit.resources is None or unit.acknowledged_with_others) and not awaits_acknowledgement(run)


def awaits_acknowledgement(run: Execution) -> bool:
    """Return whether a job is acknowledged before its place is free: its class says so, or its hook needs the slot."""
    if run.declaration is not None and run.declaration.ack == "sync":
        return True
    return run.outcome is SUCCEEDED and run.instance is not None and run.instance._aw_on_success is not None  # pyright: ignore[reportPrivateUsage]
