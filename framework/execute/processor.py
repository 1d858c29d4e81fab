"""The slots: threads made on demand, each of which runs a unit, logs it, settles it, and takes the next."""

import threading
from queue import SimpleQueue
from typing import Any, Protocol

from redis.exceptions import RedisError

from framework.declare.names import queue_name
from framework.execute.execution import Execution, Executor
from framework.execute.job_log import JobLog
from framework.execute.runs import Runs, Tally
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import Discarded, Failed, Interrupted, Outcome, Postponed, Succeeded, Unreadable
from framework.finish.retry import Bury, Drop, Retry, Verdict
from framework.finish.settle import Settled, Settler

_STATUS: dict[type[Outcome], str] = {
    Succeeded: "done",
    Failed: "fail",
    Postponed: "rescheduled",
    Discarded: "dropped",
    Unreadable: "fail",
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
    """Runs dispatched units on at most ``slots`` threads."""

    def __init__(
        self, slots: int, executor: Executor, settler: Settler, log: JobLog, runs: Runs, events: ProcessorEvents
    ) -> None:
        self._slots = slots
        self._executor = executor
        self._settler = settler
        self._log = log
        self._runs = runs
        self._events = events
        self._inbox: SimpleQueue[UnitOfWork | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._abandoned = threading.Event()

    def dispatch(self, unit: UnitOfWork, held: int) -> None:
        """Hand over one unit; called by the fetcher only. ``held`` is the number of units in hand, this one included."""
        self._inbox.put(unit)
        if len(self._threads) < min(held, self._slots):
            thread = threading.Thread(target=self._loop, name=f"processor-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Let every thread end after its current job; nothing may be dispatched any more."""
        for _ in self._threads:
            self._inbox.put(None)

    def join(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` for the threads to end; tell whether all have."""
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout_s)
                break
        return not any(thread.is_alive() for thread in self._threads)

    def abandon(self) -> None:
        """From now on nothing is settled: the jobs in hand are given back by somebody else."""
        self._abandoned.set()

    def _loop(self) -> None:
        tally = self._runs.tally()
        try:
            while (unit := self._inbox.get()) is not None:
                self._process(unit, tally)
        except BaseException as error:  # noqa: BLE001 - nothing may kill a slot unseen
            self._events.component_died(threading.current_thread().name, error)

    def _process(self, unit: UnitOfWork, tally: Tally) -> None:
        self._runs.begin(unit)
        try:
            execution = self._executor.execute(unit)
            outcome = execution.outcome
            if isinstance(outcome, Interrupted):
                return
            args = execution.payload["args"] if execution.payload else None
            verdict = self._settler.judge(unit, execution.worker, outcome, args)
            self._count(tally, outcome)
            # The line comes before the acknowledgement: a kill in between repeats the job and its line, and loses neither.
            self._write_end(execution, verdict)
            if isinstance(outcome, Failed):
                self._events.job_failed(outcome.error, {"job": execution.payload, "queue": unit.queue})
            elif isinstance(outcome, Unreadable):
                self._events.unreadable(unit, outcome.error)
            self._settle(unit, outcome, verdict)
        finally:
            self._runs.end()

    def _count(self, tally: Tally, outcome: Outcome) -> None:
        if isinstance(outcome, Unreadable):
            return  # Sidekiq does not count what was never a job
        tally.processed += 1
        if isinstance(outcome, Failed):
            tally.failed += 1

    def _write_end(self, execution: Execution, verdict: Verdict | None) -> None:
        if execution.fields is None:
            return
        outcome = execution.outcome
        error = outcome.error if isinstance(outcome, Failed | Unreadable) else None
        more = _verdict_fields(verdict)
        if isinstance(outcome, Postponed):
            more["retry_in_s"] = outcome.delay_s
        if isinstance(outcome, Discarded):
            more["dropped_reason"] = outcome.reason
        if execution.extra and execution.payload:
            prefix = queue_name(str(execution.payload["class"]), None)
            more.update({f"extra.{prefix}_worker.{name}": value for name, value in execution.extra.items()})
        self._log.end(execution.fields, _STATUS[type(outcome)], execution.duration_s, execution.cpu_s, more, error)

    def _settle(self, unit: UnitOfWork, outcome: Outcome, verdict: Verdict | None) -> None:
        """Settle, however long Redis is away: meanwhile the job is in our working list and our lease keeps it ours."""
        pause_s = 0.05
        while not self._abandoned.is_set():
            try:
                settled: Settled = self._settler.settle(unit, outcome, verdict)
            except (RedisError, OSError) as error:
                self._events.settle_failed(unit, error)
                self._abandoned.wait(pause_s)
                pause_s = min(2.0, pause_s * 2)
                continue
            if settled.fate == "fenced":
                self._events.fenced(unit)
            return


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
