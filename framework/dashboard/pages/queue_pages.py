"""The queues, and one queue with its next jobs."""

from collections.abc import Mapping, Sequence
from time import monotonic

from framework.admin import Queue, QueuedJob, WorkerProcess
from framework.admin.job_queue import unknown_queue_message
from framework.admin.process_list import read_running
from framework.admin.queue_reader import QueueState, read_queues
from framework.admin.rates import QueueRates, RateWindow, ShardCounts
from framework.admin.statistics import Stats
from framework.dashboard.pages.actions import ClearQueue, PauseQueue, UnpauseQueue
from framework.errors import UnknownNameError
from framework.pages.page import Page
from framework.pages.view import Facts, View
from framework.shard.shard import Shard
from framework.text import Sentence
from framework.wire import keys

_SHOWN_JOBS = 50
_SHOWN_QUEUES = 100
_ORDERS = ("size", "age", "name")
_FORGOTTEN_AFTER_S = 60.0
"""A page that was read so long ago is not open any more: its rates would be those of another time."""
_MOST_WINDOWS = 64
"""The pages of which readings are remembered."""


class _Rates:
    """Remember the last readings of open pages, by what they read: rates are those between two readings."""

    def __init__(self) -> None:
        self._windows: dict[str, tuple[float, RateWindow]] = {}

    def note(
        self, of: str, shard: str, states: Sequence[QueueState], processes: Sequence[WorkerProcess]
    ) -> Mapping[str, QueueRates]:
        """Take a reading, and return the rates of its queues; none for the first one in a minute."""
        now = monotonic()
        read_at, window = self._windows.pop(of, (0.0, RateWindow()))
        if now - read_at > _FORGOTTEN_AFTER_S:
            window = RateWindow()
        self._windows[of] = now, window
        if len(self._windows) > _MOST_WINDOWS:
            del self._windows[next(iter(self._windows))]
        queues = list(map(Queue.of_state, states))
        return window.add(ShardCounts(shard, 0.0, now, Stats(), queues, processes)).queues


class QueuesPage(Page):
    """Show each queue of each shard: its jobs, how long the next one has waited, and its processes."""

    name = "queues"
    path = "/queues"
    title = "Queues"
    menu = "jobs"
    mends = ("queue_paused", "flood")

    def __init__(self) -> None:
        self._rates = _Rates()

    async def read(self, view: View) -> Facts:
        """Read the queues. ``name`` of the query is a text that names have, ``sort`` their order, ``page`` the part of them.

        Raises:
            ValueError: ``sort`` or ``page`` is not allowed.
        """
        wanted, order = view.query.get("name", "").strip(), view.query.get("sort", "size")
        if order not in _ORDERS:
            raise ValueError(Sentence("sort must be one of {names}", names=", ".join(_ORDERS)))
        found = await view.each(lambda shard: _read_queues(view.shards[shard]))
        rates = {shard: self._rates.note(shard, shard, *each) for shard, each in found.items()}
        states = [one for queues, _ in found.values() for one in queues if wanted.lower() in one.name.lower()]
        states.sort(key=lambda one: (one.name, one.shard))
        if order != "name":
            states.sort(key=lambda one: -one.size if order == "size" else -one.latency)
        shown, page = view.page_of(states, _SHOWN_QUEUES)
        serving = {shard: _serving(processes) for shard, (_, processes) in found.items()}
        return {
            "name": wanted,
            "sort": order,
            "total": len(states),
            "most": max((one.size for one in states), default=0),
            **page,
            "queues": [
                _queue_facts(one, serving[one.shard].get(one.name, ()), rates[one.shard].get(one.name)) for one in shown
            ],
        }


class QueuePage(Page):
    """Show one queue, and its next jobs."""

    name = "queue"
    path = "/queues/{queue:path}"
    title = "Queue"
    of_jobs = True
    actions = (PauseQueue(), UnpauseQueue(), ClearQueue())

    def __init__(self) -> None:
        self._rates = _Rates()

    async def read(self, view: View) -> Facts:
        """Read the queue on each shard that has it.

        Raises:
            UnknownNameError: no shard that answers has it.
        """
        name = view.parameters["queue"]
        most = max(1, _SHOWN_JOBS // len(view.shards))
        found = await view.each(lambda shard: _read_queue(view.shards[shard], name, most))
        known = {shard: one for shard, one in found.items() if one is not None}
        if not known and not view.unanswered:
            raise UnknownNameError(unknown_queue_message(name, set()))
        rates = {
            shard: self._rates.note(f"{shard} {name}", shard, [state], processes)
            for shard, (state, processes, _) in known.items()
        }
        jobs = [job for _, _, jobs in known.values() for job in jobs if view.may("read", job.shard, job.worker)]
        # A caller with the role for some feature categories sees a queue that has such jobs.
        seen = {shard for shard in known if view.may("read", shard)} | {job.shard for job in jobs}
        return {
            "queue": name,
            "places": [
                _queue_facts(state, _serving(processes).get(state.name, ()), rates[shard].get(name))
                for shard, (state, processes, _) in known.items()
                if shard in seen
            ],
            "jobs": [view.job_facts(job, job.enqueued_at) for job in jobs],
        }


def _read_queues(home: Shard) -> tuple[list[QueueState], list[WorkerProcess]]:
    """Return the queues and the processes."""
    return read_queues(home), read_running(home)


def _read_queue(home: Shard, name: str, most: int) -> tuple[QueueState, list[WorkerProcess], list[QueuedJob]] | None:
    """Return the queue, the processes and the next jobs; ``None`` for a name that the shard does not know."""
    (state,) = read_queues(home, [name])
    processes = read_running(home)
    is_known = state.size or state.paused or any(name in one.queues for one in processes)
    if not is_known and not home.client.sismember(keys.QUEUES, name):
        return None
    return state, processes, Queue(name, home.name).peek(most) if state.size else []


def _serving(processes: Sequence[WorkerProcess]) -> dict[str, list[WorkerProcess]]:
    """Return the processes that fetch from each queue."""
    found: dict[str, list[WorkerProcess]] = {}
    for one in processes:
        for queue in () if one.is_quiet else one.queues:
            found.setdefault(queue, []).append(one)
    return found


def _queue_facts(state: QueueState, serving: Sequence[WorkerProcess], rates: QueueRates | None) -> Facts:
    known = rates or QueueRates()
    return {
        "queue": state.name,
        "shard": state.shard,
        "size": state.size,
        "latency_s": state.latency,
        "in_per_s": known.arriving,
        "out_per_s": known.ending,
        "empty_in_s": known.empty_in_s(state.size) if state.size else None,
        "is_paused": state.paused,
        "processes": len(serving),
        "slots": sum(one.slots for one in serving),
    }
