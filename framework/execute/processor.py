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
from framework.execute.end_line import fields_of, status_of
from framework.execute.event_loop import EventLoop
from framework.execute.execution import Execution, Executor
from framework.execute.job_log import JobLog
from framework.execute.runs import Runs, Tally
from framework.fetch.fetcher import Fetcher
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import (
    SUCCEEDED,
    AwaitsTurn,
    Deferred,
    Discarded,
    Failed,
    ForeignClass,
    Interrupted,
    Parked,
    Postponed,
    Retired,
    UnknownClass,
    Unreadable,
)
from framework.finish.retry import Bury, Retry, Verdict
from framework.finish.settle import Settled, Settler
from framework.settings.shapes import is_a
from framework.telemetry.counters import counters
from framework.types import Payload

REFUSED = "sidekiq_jobs_business_failed_total"  # what ended by a BusinessError; `stat:failed` does not count it


class ProcessorEvents(Protocol):
    """What the slots tell besides the two lines of each job."""

    def job_failed(self, error: BaseException, facts: dict[str, Any]) -> None:
        """A job failed; error handlers run."""

    def unreadable(self, unit: UnitOfWork, error: BaseException) -> None:
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
    """Runs what ``fetcher`` gives, on threads that the fetcher's crew hires through ``hire``."""

    def __init__(
        self,
        fetcher: Fetcher,
        executor: Executor,
        settler: Settler,
        log: JobLog,
        runs: Runs,
        loop: EventLoop,
        events: ProcessorEvents,
    ) -> None:
        self._fetcher = fetcher
        self._executor = executor
        self._settler = settler
        self._log = log
        self._runs = runs
        self._loop = loop
        self._events = events
        self._threads: list[threading.Thread] = []
        self._abandoned = threading.Event()
        # Settling a failure waits for Redis, which the event loop must not.
        self._settling = ThreadPoolExecutor(1, "async-settler")
        self._unsettled: set[Future[None]] = set()
        # So does the begin of a job that a death interrupted; one thread will do, as they take turns.
        self._starting = ThreadPoolExecutor(1, "async-starter")
        self._unstarted: set[Future[None]] = set()
        self._async_tally = runs.tally()
        self._async_failures = runs.tally()
        _all.add(self)

    def hire(self) -> None:
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
        waiting = self._unstarted or self._unsettled
        return not waiting and self._loop.idle and not any(thread.is_alive() for thread in self._threads)

    def abandon(self) -> None:
        """From now on nothing is settled: the jobs in hand are given back by somebody else."""
        self._abandoned.set()

    def stacks(self) -> list[tuple[str, list[str]]]:
        """Return (jid, lines) of every async job, for a dump; a thread's own stack is the interpreter's to tell."""
        return [
            (task.get_name(), [f"{frame.f_code.co_filename}:{frame.f_lineno}" for frame in task.get_stack()])
            for task in self._loop.tasks()
        ]

    def cancel_async(self, timeout_s: float) -> None:
        """Cancel the async jobs and give them ``timeout_s`` to clean up."""
        self._loop.cancel_all()
        self._loop.wait_idle(timeout_s)

    def end_in_child(self) -> None:
        """This process is a child that a job has forked: no run comes out of its job, and none is begun."""
        self._executor.end_in_child()
        self._fetcher.end_in_child()

    def _work(self) -> None:
        tally = self._runs.tally()
        fetcher = self._fetcher
        fetcher.crew.look_around()
        try:
            while (unit := fetcher.next()) is not None:
                context = copy_context()
                run = context.run(self._executor.begin, unit)
                if run.outcome is SUCCEEDED:
                    if run.coroutine is None:
                        self._conclude(run, tally)
                    else:
                        unit.thread = 0
                        self._loop.submit(self._go_on(run), context, str(run.instance.jid))
                elif isinstance(run.outcome, AwaitsTurn):
                    unit.thread = 0
                    self._start_in_turn(run, context)
                else:
                    context.run(self._conclude, run, tally)
                del context, run  # an idle thread would keep the arguments of its last job
        except BaseException as error:  # noqa: BLE001 - nothing may kill a slot unseen
            self._events.component_died(threading.current_thread().name, error)

    def _start_in_turn(self, run: Execution, context: Context) -> None:
        starting = self._starting.submit(self._take_turn, run, context)
        self._unstarted.add(starting)
        starting.add_done_callback(self._started)

    def _take_turn(self, run: Execution, context: Context) -> None:
        if self._runs.ending:
            return  # it goes back
        context.run(self._executor.begin_in_turn, run)
        if run.outcome is SUCCEEDED and run.coroutine is not None:
            self._loop.submit(self._go_on(run), context, str(run.instance.jid))
        else:
            context.run(self._settle_aside, run)

    def _started(self, starting: Future[None]) -> None:
        error = starting.exception()
        if error is not None:
            self._events.component_died("async-starter", error)
        self._unstarted.discard(starting)

    async def _go_on(self, run: Execution) -> None:
        """The rest of an async job's run, upon the event loop."""
        try:
            await self._executor.complete(run)
            if run.outcome is SUCCEEDED and _is_acknowledged_with_others(run):
                self._conclude(run, self._async_tally)
            else:
                self._settle_aside(run)
        except BaseException as error:  # noqa: BLE001 - as above
            self._events.component_died("event-loop", error)
        self._fetcher.attend_to()

    def _settle_aside(self, run: Execution) -> None:
        """Conclude an async run in a thread of its own; not awaited, as a job may have cancelled its own task."""
        settling = self._settling.submit(copy_context().run, self._conclude, run, self._async_failures)
        self._unsettled.add(settling)
        settling.add_done_callback(self._settled)

    def _settled(self, settling: Future[None]) -> None:
        self._unsettled.discard(settling)
        error = settling.exception()
        if error is not None:
            self._events.component_died("async-settler", error)
        self._fetcher.attend_to()

    def _conclude(self, run: Execution, tally: Tally) -> None:
        """Log and settle a run that has ended."""
        try:
            if run.outcome is SUCCEEDED:
                self._succeed(run, tally)
            else:
                self._end_unsuccessful(run, tally)
        finally:
            if run.reserved:  # nearly none has: they are spared the call
                self._executor.release(run)

    def _succeed(self, run: Execution, tally: Tally) -> None:
        tally.processed += 1
        if run.declaration is not None:
            tally.of(run.declaration.wire_name).ran(run.duration_s)
        # The line comes before the acknowledgement: a kill in between repeats the job and its line, and loses neither.
        if run.started_log is not None:
            self._write_end(run, None)
        if _is_acknowledged_with_others(run):
            self._fetcher.finish(run.unit)
        else:
            run.unit.performing_since = 0.0
            self._until_done(run.unit, partial(self._settle, run, None))

    def _end_unsuccessful(self, run: Execution, tally: Tally) -> None:
        unit, outcome = run.unit, run.outcome
        if not (isinstance(outcome, Interrupted) and self._runs.overdue):  # in time: not cut off
            unit.performing_since = 0.0
        if isinstance(outcome, Interrupted):
            return
        args = run.payload["args"] if run.payload else None
        verdict = self._settler.judge(unit, run.worker, outcome, args)
        self._count(tally, run, verdict)
        self._write_end(run, verdict)
        if isinstance(outcome, Failed):
            self._events.job_failed(outcome.error, {"job": run.payload, "queue": unit.queue})
        elif isinstance(outcome, Unreadable):
            self._events.unreadable(unit, outcome.error)
        elif run.payload is not None and isinstance(outcome, UnknownClass):
            self._events.unknown_class(unit, run.payload, outcome)
        elif run.payload is not None and isinstance(outcome, ForeignClass):
            self._events.foreign_class(run.payload["class"])
        self._until_done(unit, partial(self._settle, run, verdict))

    def _count(self, tally: Tally, run: Execution, verdict: Verdict | None) -> None:
        outcome = run.outcome
        if isinstance(outcome, Unreadable | Deferred | Parked | UnknownClass | ForeignClass):
            return  # Sidekiq does not count what was never a job; nor do we what has not run
        tally.processed += 1
        if isinstance(outcome, Postponed | Retired) or isinstance(verdict, Retry | Bury):
            tally.uncounted += 1
        if run.declaration is not None and run.entered:
            measure = tally.of(run.declaration.wire_name)
            if isinstance(outcome, Failed) and not is_a(outcome.error, BusinessError):
                measure.fail()
            else:
                measure.ran(run.duration_s)
        if isinstance(outcome, Failed):
            if run.declaration is not None and is_a(outcome.error, BusinessError):
                counters.add(REFUSED, run.declaration.wire_name)  # the system did what it was to do
            else:
                tally.failed += 1

    def _write_end(self, run: Execution, verdict: Verdict | None) -> None:
        outcome = run.outcome
        if run.payload is None or isinstance(outcome, ForeignClass):
            return
        if isinstance(outcome, UnknownClass) and outcome.gives_up:
            return  # an error line says it
        if isinstance(outcome, Deferred | Parked | UnknownClass) or (
            isinstance(outcome, Discarded) and not run.entered
        ):
            self._log.turned_away(
                run.payload, run.unit, run.declaration, status_of(outcome), fields_of(run, verdict) or {}
            )
            return
        error = outcome.error if isinstance(outcome, Failed | Unreadable) else None
        self._log.end(
            run.started_log,
            run.unit,
            run.declaration,
            status_of(outcome),
            run.duration_s,
            run.cpu_s,
            fields_of(run, verdict),
            error,
        )

    def _settle(self, run: Execution, verdict: Verdict | None) -> None:
        confirmed = _awaits_acknowledgement(run)
        settled: Settled = self._settler.settle(run.unit, run.outcome, verdict, run.tracked, confirmed=confirmed)
        if settled.fate == "fenced":
            self._events.fenced(run.unit)
        elif run.outcome is SUCCEEDED and run.instance._aw_then is not None:  # pyright: ignore[reportPrivateUsage]
            run.instance._aw_then()  # pyright: ignore[reportPrivateUsage]

    def _until_done(self, unit: UnitOfWork, step: Callable[[], None]) -> None:
        """Do ``step``, however long Redis is away: meanwhile the job is in our working list and our lease keeps it ours."""
        pause_s = 0.05
        while not self._abandoned.is_set():
            try:
                step()
            except (RedisError, OSError) as error:
                self._events.settle_failed(unit, error)
                self._abandoned.wait(pause_s)
                pause_s = min(2.0, pause_s * 2)
            else:
                return


def _is_acknowledged_with_others(run: Execution) -> bool:
    """Whether a job that succeeded needs no step of its own: it is untracked, holds nothing, and need not be confirmed."""
    return run.tracked is None and run.unit.holds is None and not _awaits_acknowledgement(run)


def _awaits_acknowledgement(run: Execution) -> bool:
    return run.declaration is not None and run.declaration.ack == "sync"


_all: WeakSet[Processor] = WeakSet()


def _end_in_child() -> None:
    for processor in list(_all):
        processor.end_in_child()


os.register_at_fork(after_in_child=_end_in_child)
