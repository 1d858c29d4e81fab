"""Decide how a successful job is acknowledged, and acknowledge recorded jobs when their events are durable.

A thread does not wait until the event of its recorded job is durable: it runs the next job. At a crash: the recorded job stays in
the working list of its process until its event is durable. If the process is killed before, the job runs again, and its event
follows that run. Such jobs count as jobs without a confirmed acknowledgement. No job starts while there are
``MAX_UNACKNOWLEDGED`` of these, so a kill repeats no more jobs than it would without recorded jobs. The job that reaches this
limit makes the writer write at once. While the database does not answer, no job starts after it.
"""

import time
from collections.abc import Callable
from functools import partial

from framework.execute.execution import Execution
from framework.fetch.fetcher import Fetcher
from framework.finish.endings import SUCCEEDED as SUCCEEDED_ENDING
from framework.finish.outcome import SUCCEEDED
from framework.finish.settle import Settler


class RecordedEnds:
    """The ended jobs of a processor that wait for their events without a thread.

    ``on_all_ended`` is called when no job waits any more: the acknowledgements are then sent without waiting for the next fetch.
    ``on_error`` receives an error of the acknowledgement.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        settler: Settler,
        on_all_ended: Callable[[], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._fetcher = fetcher
        self._settler = settler
        self._on_all_ended = on_all_ended
        self._on_error = on_error
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
                self._on_all_ended()
        except BaseException as error:  # noqa: BLE001 - the thread of the writer must not end
            self._on_error(error)


def is_acknowledged_with_others(run: Execution) -> bool:
    """Return whether a successful job is acknowledged with others: nothing waits for its confirmation."""
    unit = run.unit
    return (unit.resources is None or unit.acknowledged_with_others) and not awaits_acknowledgement(run)


def awaits_acknowledgement(run: Execution) -> bool:
    """Return whether a job is acknowledged before its place is free: its class says so, or its hook needs the slot."""
    if run.declaration is not None and run.declaration.ack == "sync":
        return True
    return run.outcome is SUCCEEDED and run.instance is not None and run.instance._aw_on_success is not None  # pyright: ignore[reportPrivateUsage]
