"""The queues, and one queue with its next jobs."""

from collections.abc import Sequence

from framework import admin
from framework.admin import Queue, QueuedJob, WorkerProcess
from framework.admin.job_queue import unknown_queue_message
from framework.admin.process_list import read_running
from framework.admin.queue_reader import read_queues
from framework.dashboard.pages.actions import ClearQueue, PauseQueue, UnpauseQueue
from framework.errors import UnknownNameError
from framework.pages.page import Page
from framework.pages.view import Facts, View
from framework.shard.shard import Shard
from framework.wire import keys

_SHOWN_JOBS = 50
_SHOWN_QUEUES = 200


class QueuesPage(Page):
    """Show each queue of each shard: its jobs, how long the next one has waited, and its processes."""

    name = "queues"
    path = "/queues"
    title = "Queues"
    menu = "jobs"
    mends = ("queue_paused", "flood")

    async def read(self, view: View) -> Facts:
        """Read the queues, the fullest first. ``name`` of the query is a text that names have."""
        wanted = view.query.get("name", "").strip()
        found = await view.each(lambda shard: (admin.queues(shard), admin.processes(shard)))
        queues = [
            _queue_facts(queue, serving.get(queue.name, ()))
            for queues, serving in ((queues, _serving(processes)) for queues, processes in found.values())
            for queue in queues
            if wanted.lower() in queue.name.lower()
        ]
        ordered = sorted(queues, key=lambda one: (-one["size"], one["queue"], one["shard"]))
        return {"name": wanted, "total": len(queues), "queues": ordered[:_SHOWN_QUEUES]}


class QueuePage(Page):
    """Show one queue, and its next jobs."""

    name = "queue"
    path = "/queues/{queue:path}"
    title = "Queue"
    of_jobs = True
    actions = (PauseQueue(), UnpauseQueue(), ClearQueue())

    async def read(self, view: View) -> Facts:
        """Read the queue on each shard that has it.

        Raises:
            UnknownNameError: no shard that answers has it.
        """
        name = view.parameters["queue"]
        found = await view.each(lambda shard: _read_queue(view.shards[shard], name))
        known = {shard: one for shard, one in found.items() if one is not None}
        if not known and not view.unanswered:
            raise UnknownNameError(unknown_queue_message(name, set()))
        jobs = [job for _, _, jobs in known.values() for job in jobs if view.may("read", job.shard, job.worker)]
        # A caller with the role for some feature categories sees a queue that has such jobs.
        seen = {shard for shard in known if view.may("read", shard)} | {job.shard for job in jobs}
        return {
            "queue": name,
            "places": [
                _queue_facts(queue, _serving(processes).get(queue.name, ()))
                for shard, (queue, processes, _) in known.items()
                if shard in seen
            ],
            "jobs": [view.job_facts(job, job.enqueued_at) for job in jobs],
        }


def _read_queue(home: Shard, name: str) -> tuple[Queue, list[WorkerProcess], list[QueuedJob]] | None:
    """Return the queue, the processes and the next jobs; ``None`` for a name that the shard does not know."""
    (state,) = read_queues(home, [name])
    processes = read_running(home)
    is_known = state.size or state.paused or any(name in one.queues for one in processes)
    if not is_known and not home.client.sismember(keys.QUEUES, name):
        return None
    return Queue.of_state(state), processes, Queue(name, home.name).peek(_SHOWN_JOBS) if state.size else []


def _serving(processes: Sequence[WorkerProcess]) -> dict[str, list[WorkerProcess]]:
    """Return the processes that fetch from each queue."""
    found: dict[str, list[WorkerProcess]] = {}
    for one in processes:
        for queue in () if one.is_quiet else one.queues:
            found.setdefault(queue, []).append(one)
    return found


def _queue_facts(queue: Queue, serving: Sequence[WorkerProcess]) -> Facts:
    (state,) = queue.states()
    return {
        "queue": state.name,
        "shard": state.shard,
        "size": state.size,
        "latency_s": state.latency,
        "is_paused": state.paused,
        "processes": len(serving),
        "slots": sum(one.slots for one in serving),
    }
