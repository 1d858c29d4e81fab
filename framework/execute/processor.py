"""The slots: threads made on demand, each of which takes a unit, runs it, logs it, settles it, and takes the next.

A thread only starts an async job; the job goes on upon the event loop and keeps its slot, and the thread takes the next.
A child that a job forks ends where it would come out of the job: the run, its unit and every connection are its parent's.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Protocol
from weakref import WeakSet

from redis.exceptions import RedisError

from framework.errors import BusinessError
from framework.execute.end_line import end_fields, log_status
from framework.execute.event_loop import EventLoop
from framework.execute.execution import Execution, Executor
from framework.execute.job_log import JobLog
from framework.execute.stats import RunningJobs, ThreadCounts
from framework.fetch.fetcher import Fetcher
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import (
    SUCCEEDED,
    AwaitsTurn,
    Deferred,
    Discarded,
    Failed,
    ForeignClass,
    Held,
    Interrupted,
    Malformed,
    Retired,
    Snoozed,
    UnknownClass,
)
from framework.finish.retry import Kill, Retry, RetryDecision
from framework.finish.settle import Settler, SettleResult
from framework.telemetry.counters import counters
from framework.typeguards import has_type
from framework.types import Payload

BUSINESS_FAILED = "sidekiq_jobs_business_failed_total"  # what ended by a BusinessError; `stat:failed` does not count it


class ProcessorEvents(Protocol):
    """What the slots tell besides the two lines of each job."""

    def job_failed(self, error: BaseException, facts: dict[str, Any]) -> None:
        """A job failed; error handlers run."""

    def malformed(self, unit: UnitOfWork, error: BaseException) -> None:
        """A payload could not be read and went to the dead set (``wire/malformed.py``)."""

    def unknown_class(self, unit: UnitOfWork, payload: Payload, outcome: UnknownClass) -> None:
        """This process lacks the code of a job, which waits for another process, or is given up."""

    def foreign_class(self, name: str) -> None:
        """A job of another application went back to it."""

    def fenced(self, unit: UnitOfWork) -> None:
        """A job that ended had been taken over; its result was not written."""

    def settle_failed(self, unit: UnitOfWork, error: BaseException) -> None:
        """Redis did not take the result; it is tried again."""

    def component_died(self, component: str, error: BaseException) -> None:
        """A thread of the framework itself ended by an error: the process must end."""


class Processor:
    """Runs what ``fetcher`` gives, on threads that the fetcher's crew hires through ``spawn``."""

    def __init__(
        self,
        fetcher: Fetcher,
        executor: Executor,
        settler: Settler,
        log: JobLog,
        running_jobs: RunningJobs,
        loop: EventLoop,
        events: ProcessorEvents,
    ) -> None:
        self._fetcher = fetcher
        self._executor = executor
        self._settler = settler
        self._log = log
        self._running_jobs = running_jobs
        self._loop = loop
        self._events = events
        self._threads: list[threading.Thread] = []
        self._settling_stopped = threading.Event()
        # Settling a failure waits for Redis, which the event loop must not.
        self._settle_executor = ThreadPoolExecutor(1, "async-settler")
        self._pending_settles: set[Future[None]] = set()
        # So does the begin of a job that a death interrupted; one thread will do, as they take turns.
        self._start_executor = ThreadPoolExecutor(1, "async-starter")
        self._pending_starts: set[Future[None]] = set()
        self._async_counts = running_jobs.new_thread_counts()
        self._async_settled_counts = running_jobs.new_thread_counts()
        _processors.add(self)

    def spawn(self) -> None:
        """Start one more thread."""
        thread = threading.Thread(target=self._work, name=f"processor-{len(self._threads)}", daemon=True)
        thread.start()
        self._threads.append(thread)

    def join(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` for a thread to end; tell whether every job has."""
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout_s)
                break
        waiting = self._pending_starts or self._pending_settles
        return not waiting and self._loop.idle and not any(thread.is_alive() for thread in self._threads)

    def stop_settling(self) -> None:
        """From now on nothing is settled: the jobs in flight are given back by somebody else."""
        self._settling_stopped.set()

    def async_stacks(self) -> list[tuple[str, list[str]]]:
        """Return (jid, lines) of every async job, for a dump; a thread's own stack is the interpreter's to tell."""
        return [
            (task.get_name(), [f"{frame.f_code.co_filename}:{frame.f_lineno}" for frame in task.get_stack()])
            for task in self._loop.tasks()
        ]

    def cancel_async(self, timeout_s: float) -> None:
        """Cancel the async jobs and give them ``timeout_s`` to clean up."""
        self._loop.cancel_all()
        self._loop.wait_idle(timeout_s)

    def after_fork_in_child(self) -> None:
        """This process is a child that a job has forked: no run comes out of its job, and none is begun."""
        self._executor.after_fork_in_child()
        self._fetcher.after_fork_in_child()

    def _work(self) -> None:
        tally = self._running_jobs.new_thread_counts()
        fetcher = self._fetcher
        fetcher.threads.check_in()
        try:
            while (unit := fetcher.next()) is not None:
                context = copy_context()
                run = context.run(self._executor.begin, unit)
                if run.outcome is SUCCEEDED:
                    if run.coroutine is None:
                        self._finish_run(run, tally)
                    else:
                        unit.thread = 0
                        self._loop.submit(self._run_async(run), context, str(run.instance.jid))
                elif isinstance(run.outcome, AwaitsTurn):
                    unit.thread = 0
                    self._start_in_turn(run, context)
                else:
                    context.run(self._finish_run, run, tally)
                del context, run  # an idle thread would keep the arguments of its last job
        except BaseException as error:  # noqa: BLE001 - nothing may kill a slot unseen
            self._events.component_died(threading.current_thread().name, error)

    def _start_in_turn(self, run: Execution, context: Context) -> None:
        starting = self._start_executor.submit(self._take_turn, run, context)
        self._pending_starts.add(starting)
        starting.add_done_callback(self._on_started)

    def _take_turn(self, run: Execution, context: Context) -> None:
        if self._running_jobs.stopping:
            return  # it goes back
        context.run(self._executor.begin_in_turn, run)
        if run.outcome is SUCCEEDED and run.coroutine is not None:
            self._loop.submit(self._run_async(run), context, str(run.instance.jid))
        else:
            context.run(self._settle_in_thread, run)

    def _on_started(self, starting: Future[None]) -> None:
        error = starting.exception()
        if error is not None:
            self._events.component_died("async-starter", error)
        self._pending_starts.discard(starting)

    async def _run_async(self, run: Execution) -> None:
        """The rest of an async job's run, upon the event loop."""
        try:
            await self._executor.complete_async(run)
            if run.outcome is SUCCEEDED and _is_acknowledged_with_others(run):
                self._finish_run(run, self._async_counts)
            else:
                self._settle_in_thread(run)
        except BaseException as error:  # noqa: BLE001 - as above
            self._events.component_died("event-loop", error)
        self._fetcher.request_acknowledgement()

    def _settle_in_thread(self, run: Execution) -> None:
        """Conclude an async run in a thread of its own; not awaited, as a job may have cancelled its own task."""
        settling = self._settle_executor.submit(copy_context().run, self._finish_run, run, self._async_settled_counts)
        self._pending_settles.add(settling)
        settling.add_done_callback(self._on_settled)

    def _on_settled(self, settling: Future[None]) -> None:
        self._pending_settles.discard(settling)
        error = settling.exception()
        if error is not None:
            self._events.component_died("async-settler", error)
        self._fetcher.request_acknowledgement()

    def _finish_run(self, run: Execution, counts: ThreadCounts) -> None:
        """Log and settle a run that has ended."""
        try:
            if run.outcome is SUCCEEDED:
                self._finish_succeeded(run, counts)
            else:
                self._finish_other(run, counts)
        finally:
            if run.reserved:  # nearly none has: they are spared the call
                self._executor.release_memory(run)

    def _finish_succeeded(self, run: Execution, counts: ThreadCounts) -> None:
        counts.processed += 1
        if run.declaration is not None:
            counts.for_class(run.declaration.wire_name).record_run(run.duration_s)
        # The line comes before the acknowledgement: a kill in between repeats the job and its line, and loses neither.
        if run.started_log is not None:
            self._write_end(run, None)
        if _is_acknowledged_with_others(run):
            self._fetcher.finish(run.unit)
        else:
            run.unit.performing_since = 0.0
            self._retry_until_done(run.unit, partial(self._settle, run, None))

    def _finish_other(self, run: Execution, counts: ThreadCounts) -> None:
        unit, outcome = run.unit, run.outcome
        if not (isinstance(outcome, Interrupted) and self._running_jobs.deadline_passed):  # in time: not cut off
            unit.performing_since = 0.0
        if isinstance(outcome, Interrupted):
            return
        args = run.payload["args"] if run.payload else None
        verdict = self._settler.decide_retry(unit, run.worker, outcome, args)
        self._count(counts, run, verdict)
        self._write_end(run, verdict)
        if isinstance(outcome, Failed):
            self._events.job_failed(outcome.error, {"job": run.payload, "queue": unit.queue})
        elif isinstance(outcome, Malformed):
            self._events.malformed(unit, outcome.error)
        elif run.payload is not None and isinstance(outcome, UnknownClass):
            self._events.unknown_class(unit, run.payload, outcome)
        elif run.payload is not None and isinstance(outcome, ForeignClass):
            self._events.foreign_class(run.payload["class"])
        self._retry_until_done(unit, partial(self._settle, run, verdict))

    def _count(self, counts: ThreadCounts, run: Execution, decision: RetryDecision | None) -> None:
        outcome = run.outcome
        if isinstance(outcome, Malformed | Deferred | Held | UnknownClass | ForeignClass):
            return  # Sidekiq does not count what was never a job; nor do we what has not run
        counts.processed += 1
        if isinstance(outcome, Snoozed | Retired) or isinstance(decision, Retry | Kill):
            counts.uncounted += 1
        if run.declaration is not None and run.admitted:
            measure = counts.for_class(run.declaration.wire_name)
            if isinstance(outcome, Failed) and not has_type(outcome.error, BusinessError):
                measure.record_failure()
            else:
                measure.record_run(run.duration_s)
        if isinstance(outcome, Failed):
            if run.declaration is not None and has_type(outcome.error, BusinessError):
                counters.add(BUSINESS_FAILED, run.declaration.wire_name)  # the system did what it was to do
            else:
                counts.failed += 1

    def _write_end(self, run: Execution, decision: RetryDecision | None) -> None:
        outcome = run.outcome
        if run.payload is None or isinstance(outcome, ForeignClass):
            return
        if isinstance(outcome, UnknownClass) and outcome.gives_up:
            return  # an error line says it
        if isinstance(outcome, Deferred | Held | UnknownClass) or (isinstance(outcome, Discarded) and not run.admitted):
            self._log.log_not_started(
                run.payload, run.unit, run.declaration, log_status(outcome), end_fields(run, decision) or {}
            )
            return
        error = outcome.error if isinstance(outcome, Failed | Malformed) else None
        self._log.end(
            run.started_log,
            run.unit,
            run.declaration,
            log_status(outcome),
            run.duration_s,
            run.cpu_s,
            end_fields(run, decision),
            error,
        )

    def _settle(self, run: Execution, decision: RetryDecision | None) -> None:
        confirmed = _awaits_acknowledgement(run)
        settled: SettleResult = self._settler.settle(run.unit, run.outcome, decision, run.tracked, confirmed=confirmed)
        if settled.moved_to == "fenced":
            self._events.fenced(run.unit)
        elif run.outcome is SUCCEEDED and run.instance._aw_on_success is not None:  # pyright: ignore[reportPrivateUsage]
            run.instance._aw_on_success()  # pyright: ignore[reportPrivateUsage]

    def _retry_until_done(self, unit: UnitOfWork, step: Callable[[], None]) -> None:
        """Do ``step``, however long Redis is away: meanwhile the job is in our working list and our lease keeps it ours."""
        pause_s = 0.05
        while not self._settling_stopped.is_set():
            try:
                step()
            except (RedisError, OSError) as error:
                self._events.settle_failed(unit, error)
                self._settling_stopped.wait(pause_s)
                pause_s = min(2.0, pause_s * 2)
            else:
                return


def _is_acknowledged_with_others(run: Execution) -> bool:
    """Whether a job that succeeded needs no step of its own: it is untracked, holds nothing, and need not be confirmed."""
    return run.tracked is None and run.unit.resources is None and not _awaits_acknowledgement(run)


def _awaits_acknowledgement(run: Execution) -> bool:
    return run.declaration is not None and run.declaration.ack == "sync"


_processors: WeakSet[Processor] = WeakSet()


def _after_fork_in_child() -> None:
    for processor in list(_processors):
        processor.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
