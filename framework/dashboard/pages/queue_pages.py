"""The queues, and one queue with its next jobs."""

from framework import admin
from framework.admin import Queue, QueuedJob, WorkerProcess
from framework.admin.job_queue import unknown_queue_message
from framework.dashboard.pages.actions import ClearQueue, PauseQueue, UnpauseQueue
from framework.errors import UnknownNameError
from framework.pages.page import Page
from framework.pages.view import Facts, View

_SHOWN_JOBS = 50


class QueuesPage(Page):
    """Show each queue of each shard: its jobs, how long the next one has waited, and its processes."""

    name = "queues"
    path = "/queues"
    title = "Queues"
    menu = "jobs"
    mends = ("queue_paused", "flood")

    async def read(self, view: View) -> Facts:
        """Read the queues, the fullest first."""
        found = await view.each(lambda shard: (admin.queues(shard), admin.processes(shard)))
        queues = [_queue_facts(queue, processes) for queues, processes in found.values() for queue in queues]
        return {"queues": sorted(queues, key=lambda one: (-one["size"], one["queue"], one["shard"]))}


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
        found = await view.each(lambda shard: _read_queue(name, shard))
        known = {shard: one for shard, one in found.items() if one is not None}
        if not known and not view.unanswered:
            raise UnknownNameError(unknown_queue_message(name, set()))
        jobs = [job for _, _, jobs in known.values() for job in jobs if view.may("read", job.shard, job.worker)]
        # A caller with the role for some feature categories sees a queue that has such jobs.
        seen = {shard for shard in known if view.may("read", shard)} | {job.shard for job in jobs}
        return {
            "queue": name,
            "places": [
                _queue_facts(queue, processes) for shard, (queue, processes, _) in known.items() if shard in seen
            ],
            "jobs": [view.job_facts(job, job.enqueued_at) for job in jobs],
        }


def _read_queue(name: str, shard: str) -> tuple[Queue, list[WorkerProcess], list[QueuedJob]] | None:
    listed = next((one for one in admin.queues(shard) if one.name == name), None)
    if listed is None:
        return None
    return listed, admin.processes(shard), Queue(name, shard).peek(_SHOWN_JOBS)


def _queue_facts(queue: Queue, processes: list[WorkerProcess]) -> Facts:
    (state,) = queue.states()
    serving = [one for one in processes if queue.name in one.queues and not one.is_quiet]
    return {
        "queue": state.name,
        "shard": state.shard,
        "size": state.size,
        "latency_s": state.latency,
        "is_paused": state.paused,
        "processes": len(serving),
        "slots": sum(one.slots for one in serving),
    }
