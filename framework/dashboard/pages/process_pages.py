"""The processes, and the jobs that they run."""

from collections.abc import Sequence

from framework import admin
from framework.admin import RunningJob, WorkerProcess
from framework.admin.process_list import read_running
from framework.dashboard.pages.actions import ProcessAction
from framework.pages.page import Page
from framework.pages.view import Facts, View

_SHOWN = 100
_SHOWN_PROCESSES = 50


class ProcessesPage(Page):
    """Show each running process, Ruby's too."""

    name = "processes"
    path = "/processes"
    title = "Processes"
    menu = "work"
    mends = (
        *("clock_skew", "cut_off", "data_lost", "few_slots", "large_process", "not_fetching", "process_silent"),
        *("scheduler_stalled", "unserved"),
    )
    actions = (
        ProcessAction("quiet", "Quiet", "They fetch no more jobs, and end the jobs that they run."),
        ProcessAction(
            "stop",
            "Stop",
            "They fetch no more jobs, give running jobs their timeout, and end. What has not ended runs again.",
        ),
    )

    async def read(self, view: View) -> Facts:
        """Read the processes, by host. ``name`` of the query is a text that identities, tags or queues have, ``page`` their part.

        Raises:
            ValueError: ``page`` is no number of a page.
        """
        wanted = view.query.get("name", "").strip()
        found = await view.each(lambda shard: read_running(view.shards[shard]))
        processes = [one for listed in found.values() for one in listed if _has(one, wanted.lower())]
        shown, page = view.page_of(sorted(processes, key=lambda one: (one.shard, one.identity)), _SHOWN_PROCESSES)
        return {
            "name": wanted,
            "total": len(processes),
            "slots": sum(one.slots for one in processes),
            "busy": sum(one.busy for one in processes),
            **page,
            "processes": list(map(_process_facts, shown)),
        }


class RunningPage(Page):
    """Show each running job, the longest-running first."""

    name = "running"
    path = "/running"
    title = "Running"
    menu = "work"
    mends = ("slow_class",)
    of_jobs = True

    async def read(self, view: View) -> Facts:
        """Read the running jobs. Those that run longest are shown."""
        found = await view.each(admin.work)
        jobs = [
            one
            for shard, listed in found.items()
            # A caller who may see each job of the shard costs no look at its class.
            for one in (listed if view.may("read", shard) else _seen(view, listed))
        ]
        ordered = sorted(jobs, key=lambda one: one.since or 0.0)
        return {"total": len(jobs), "jobs": [_running_facts(view, one) for one in ordered[:_SHOWN]]}


def _seen(view: View, jobs: Sequence[RunningJob]) -> list[RunningJob]:
    return [one for one in jobs if view.may("read", one.shard, one.job.worker)]


def _has(one: WorkerProcess, text: str) -> bool:
    return not text or any(text in word.lower() for word in (one.identity, one.tag, *one.queues))


def _process_facts(one: WorkerProcess) -> Facts:
    return {
        "shard": one.shard,
        "identity": one.identity,
        "hostname": one.hostname,
        "pid": one.pid,
        "tag": one.tag,
        "labels": list(one.labels),
        "queues": list(one.queues),
        "slots": one.slots,
        "busy": one.busy,
        "is_quiet": one.is_quiet,
        "is_embedded": one.embedded,
        "started_at": one.started_at,
        "beat": one.beat,
        "rss_bytes": one.rss_kb * 1024,
        "round_trip_us": one.rtt_us,
        "version": one.version,
    }


def _running_facts(view: View, one: RunningJob) -> Facts:
    return {**view.job_facts(one.job, one.since), "queue": one.queue, "process": one.process, "thread": one.thread}
