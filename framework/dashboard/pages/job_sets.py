"""The sorted sets of jobs: scheduled, retries, dead, interrupted. Each lists its first jobs, and its largest groups."""

from collections.abc import Iterable
from itertools import islice
from typing import ClassVar

from framework import admin
from framework.admin import JobEntry, JobGroups, JobSet
from framework.dashboard.pages.actions import SetAction
from framework.pages.page import Page
from framework.pages.view import Facts, View

_SHOWN = 100
_GROUPS = 10
_FILTERS = ("class", "queue", "error", "tag")


class JobSetPage(Page):
    """Show one set. The words ``class``, ``queue``, ``error`` and ``tag`` of the query choose jobs."""

    of_jobs = True
    menu = "jobs"
    template = "job_set.html"
    heading: ClassVar[str]
    """What the time of a job is."""
    grouped_by: ClassVar[str] = "class"

    def job_set(self, shard: str) -> JobSet:
        """Return the set of a shard."""
        raise NotImplementedError

    async def read(self, view: View) -> Facts:
        """Read the size, the first jobs and the groups of the set on each shard."""
        wanted = {name: view.query[name] for name in _FILTERS if name in view.query}
        found = await view.each(lambda shard: self._read(shard, wanted))
        jobs = [view.job_facts(job, job.score) for _, jobs, _ in found.values() for job in jobs if _sees(view, job)]
        newest_first = self.name in ("dead", "interrupted")
        groups = {shard: groups for shard, (_, _, groups) in found.items() if view.may("read", shard)}
        return {
            "total": sum(size for shard, (size, _, _) in found.items() if view.may("read", shard)),
            "filters": wanted,
            "jobs": sorted(jobs, key=lambda one: one["at"] or 0.0, reverse=newest_first),
            "grouped_by": self.grouped_by,
            "groups": [fact for shard, one in groups.items() for fact in _group_facts(shard, one)],
        }

    def _read(self, shard: str, wanted: dict[str, str]) -> tuple[int, list[JobEntry], JobGroups]:
        found = self.job_set(shard)
        jobs: Iterable[JobEntry] = found
        if wanted:
            jobs = found.where(
                cls=wanted.get("class"), queue=wanted.get("queue"), error=wanted.get("error"), tag=wanted.get("tag")
            )
        return found.size, list(islice(jobs, _SHOWN)), found.top(self.grouped_by, limit=_GROUPS)


class ScheduledPage(JobSetPage):
    """Show the jobs that are due later."""

    name = "scheduled"
    path = "/scheduled"
    title = "Scheduled"
    actions = (
        SetAction("scheduled", "enqueue_now", "Run now"),
        SetAction("scheduled", "kill", "Kill"),
        SetAction("scheduled", "delete", "Delete"),
    )
    heading = "Due"

    def job_set(self, shard: str) -> JobSet:
        """Return the set of a shard."""
        return admin.scheduled(shard)


class RetriesPage(JobSetPage):
    """Show the failed jobs that wait for their next run."""

    name = "retries"
    path = "/retries"
    title = "Retries"
    actions = (
        SetAction("retry", "retry", "Retry now"),
        SetAction("retry", "kill", "Kill"),
        SetAction("retry", "delete", "Delete"),
    )
    heading = "Next run"
    mends = ("failing", "deep_retry_set")
    grouped_by = "error"

    def job_set(self, shard: str) -> JobSet:
        """Return the set of a shard."""
        return admin.retries(shard)


class DeadPage(JobSetPage):
    """Show the jobs whose retries are used up."""

    name = "dead"
    path = "/dead"
    title = "Dead"
    actions = (SetAction("dead", "retry", "Retry"), SetAction("dead", "delete", "Delete"))
    heading = "Died"
    mends = ("failing",)
    grouped_by = "error"

    def job_set(self, shard: str) -> JobSet:
        """Return the set of a shard."""
        return admin.dead(shard)


class InterruptedPage(JobSetPage):
    """Show the jobs that were stopped, or whose processes died, too often."""

    name = "interrupted"
    path = "/interrupted"
    title = "Interrupted"
    actions = (
        SetAction("interrupted", "requeue", "Run again"),
        SetAction("interrupted", "kill", "Kill"),
        SetAction("interrupted", "delete", "Delete"),
    )
    heading = "Interrupted"
    mends = ("poison", "process_died")

    def job_set(self, shard: str) -> JobSet:
        """Return the set of a shard."""
        return admin.interrupted(shard)


def _sees(view: View, job: JobEntry) -> bool:
    return view.may("read", job.shard, job.worker)


def _group_facts(shard: str, found: JobGroups) -> list[Facts]:
    return [
        {"shard": shard, "name": one.name, "jobs": one.jobs, "is_estimate": found.is_estimate, "example": one.example}
        for one in found.groups
    ]
