"""Decide how a successful job is acknowledged, and acknowledge recorded jobs when their events are durable.

Crash story: a job whose thread runs the next one stays in the working list of its process until its event is durable, as if its
thread waited. A kill before leaves it there, from where it runs again; its event then follows that run. Such jobs count among those
without a confirmed acknowledgement, so a kill repeats no more jobs than without them (``MAX_UNACKNOWLEDGED``). A thread that finds no
room waits for its own event, also while the database does not answer.
"""

from collections.abc import Callable

from framework.execute.execution import Execution
from framework.fetch.fetcher import Fetcher
from framework.finish.endings import SUCCEEDED as SUCCEEDED_ENDING
from framework.finish.outcome import SUCCEEDED
from framework.finish.settle import Settler

_MAX_WAITING = 24
"""How many ended jobs wait for their events without a thread: below ``MAX_UNACKNOWLEDGED``, so that threads find room to start."""


class RecordedEnds:
    """The ended jobs of a processor that wait for their events without a thread.

    ``on_all_ended`` is called when none waits any more: the acknowledgements are then sent without the next fetch. ``on_error`` gets
    an error of the acknowledgement.
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

    @property
    def is_empty(self) -> bool:
        """Whether no job waits; after ``stop`` none does."""
        return self._stopped or not self._fetcher.in_flight.left

    def takes(self, run: Execution) -> bool:
        """Return whether a job may wait without its thread."""
        # A run that has reserved memory, or an event loop, ends where it began.
        is_simple = run.coroutine is None and not run.reserved
        return is_simple and len(self._fetcher.in_flight.left) < _MAX_WAITING and not self._stopped

    def stop(self) -> None:
        """Acknowledge no further job: the launcher returns the jobs in flight to their queues."""
        self._stopped = True

    def record(self, run: Execution) -> None:
        """Record the end of a successful run, and acknowledge its job when that is durable. Waits for nothing."""
        assert run.record is not None, "only tracked jobs are recorded"  # noqa: S101
        run.unit.end_perform()
        self._fetcher.leave(run.unit)
        if run.record.end(SUCCEEDED_ENDING, SUCCEEDED, None, on_durable=lambda: self._on_durable(run)) is None:
            self._on_durable(run)

    def _on_durable(self, run: Execution) -> None:
        try:
            if self._stopped:
                return
            if run.tracked is not None or run.unit.resources is not None:
                self._settler.acknowledge_with_others(run.unit, run.tracked)
            self._fetcher.finish_left(run.unit)
            if not self._fetcher.in_flight.left:
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
