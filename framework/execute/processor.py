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

from framework.declare.names import queue_name
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
    Interrupted,
    Outcome,
    Parked,
    Postponed,
    Retired,
    Succeeded,
    Unreadable,
)
from framework.finish.retry import Bury, Drop, Retry, Verdict
from framework.finish.settle import Settled, Settler
from framework.wire.job import STRATEGY, deferrals

_STATUS: dict[type[Outcome], str] = {
    Succeeded: "done",
    Failed: "fail",
    Postponed: "rescheduled",
    Discarded: "dropped",
    Retired: "dropped",
    Unreadable: "fail",
    Deferred: "deferred",
}


class ProcessorEvents(Protocol):
    """What the slots tell besides the two lines of each job."""

    def job_failed(self, error: BaseException, facts: dict[str, Any]) -> None:
        """A job failed; error handlers run."""

    def unreadable(self, unit: UnitOfWork, error: BaseException) -> None:
        """A payload could not be read and went to the dead set as it was."""

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
        unit, outcome = run.unit, run.outcome
        if outcome is SUCCEEDED:
            tally.processed += 1
            # The line comes before the acknowledgement: a kill in between repeats the job and its line, and loses neither.
            if run.started_log is not None:
                self._write_end(run, None)
            if _is_acknowledged_with_others(run):
                self._fetcher.finish(unit)
            else:
                self._until_done(unit, partial(self._settle, run, None))
            return
        if isinstance(outcome, Interrupted):
            return
        args = run.payload["args"] if run.payload else None
        verdict = self._settler.judge(unit, run.worker, outcome, args)
        self._count(tally, outcome)
        self._write_end(run, verdict)
        if isinstance(outcome, Failed):
            self._events.job_failed(outcome.error, {"job": run.payload, "queue": unit.queue})
        elif isinstance(outcome, Unreadable):
            self._events.unreadable(unit, outcome.error)
        self._until_done(unit, partial(self._settle, run, verdict))

    def _count(self, tally: Tally, outcome: Outcome) -> None:
        if isinstance(outcome, Unreadable | Deferred | Parked):
            return  # Sidekiq does not count what was never a job; nor do we what has not run
        tally.processed += 1
        if isinstance(outcome, Failed):
            tally.failed += 1

    def _write_end(self, run: Execution, verdict: Verdict | None) -> None:
        outcome = run.outcome
        if run.payload is None:
            return
        if isinstance(outcome, Deferred | Parked) or (isinstance(outcome, Discarded) and not run.entered):
            self._log.turned_away(run.payload, run.unit, run.declaration, _status(outcome), _more(run, verdict) or {})
            return
        error = outcome.error if isinstance(outcome, Failed | Unreadable) else None
        self._log.end(
            run.started_log,
            run.unit,
            run.declaration,
            _status(outcome),
            run.duration_s,
            run.cpu_s,
            _more(run, verdict),
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


def _status(outcome: Outcome) -> str:
    return outcome.status if isinstance(outcome, Parked) else _STATUS[type(outcome)]


def _is_acknowledged_with_others(run: Execution) -> bool:
    """Whether a job that succeeded needs no step of its own: it is untracked, holds nothing, and need not be confirmed."""
    return run.tracked is None and run.unit.holds is None and not _awaits_acknowledgement(run)


def _awaits_acknowledgement(run: Execution) -> bool:
    return run.declaration is not None and run.declaration.ack == "sync"


def _more(run: Execution, verdict: Verdict | None) -> dict[str, Any] | None:
    """Return what the end line says besides the usual; ``None`` for nothing."""
    extra = run.instance._aw_extra if run.instance is not None else None  # pyright: ignore[reportPrivateUsage]
    if extra is None and run.outcome is SUCCEEDED:
        return None
    more = _verdict_fields(verdict)
    if isinstance(run.outcome, Postponed):
        more["retry_in_s"] = run.outcome.delay_s
    if isinstance(run.outcome, Discarded):
        more["dropped_reason"] = run.outcome.reason
    if not run.entered and run.payload and STRATEGY in run.payload:
        more[STRATEGY] = run.payload[STRATEGY]  # there was no start line to have it
    if isinstance(run.outcome, Parked):
        more.update(run.outcome.fields)
    if isinstance(run.outcome, Deferred):
        more.update(_deferral_fields(run, run.outcome))
    if isinstance(run.outcome, Retired):
        more["dropped_reason"] = f"the class is retired: {run.outcome.reason}"
    if extra and run.declaration is not None:
        prefix = queue_name(run.declaration.wire_name, None)
        more.update({f"extra.{prefix}_worker.{name}": value for name, value in extra.items()})
    return more


def _deferral_fields(run: Execution, outcome: Deferred) -> dict[str, Any]:
    return {
        "job_deferred_by": outcome.reason,
        "deferred_count": deferrals(run.payload or {}, outcome.reason) + 1,
        "deferred_for_s": round(outcome.delay_s, 6),
        **outcome.fields,
    }


def _verdict_fields(verdict: Verdict | None) -> dict[str, Any]:
    match verdict:
        case Retry(payload, delay_s):
            return {"retry_count": payload["retry_count"], "retry_in_s": delay_s, "error_class": payload["error_class"]}
        case Bury(payload):
            return {"retry_count": payload["retry_count"], "dead": True, "error_class": payload["error_class"]}
        case Drop(payload):
            return {"retry_count": payload["retry_count"], "dead": False, "error_class": payload["error_class"]}
        case None:
            return {}


_all: WeakSet[Processor] = WeakSet()


def _end_in_child() -> None:
    for processor in list(_all):
        processor.end_in_child()


os.register_at_fork(after_in_child=_end_in_child)
