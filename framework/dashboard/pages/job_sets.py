"""The sorted sets of jobs: scheduled, retries, dead, interrupted. Each lists its first jobs, and its largest groups."""

from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import ClassVar, NamedTuple

from framework import admin
from framework.admin import JobEntry, JobGroups, JobSet
from framework.admin.groups import count_groups
from framework.admin.job_record import JobFilter, job_filter
from framework.admin.port import current
from framework.admin.shard_job_set import ShardJobSet
from framework.dashboard.pages.actions import SetAction
from framework.pages.long_reads import ShardRead, percent_of
from framework.pages.page import Page
from framework.pages.view import Facts, View

_SHOWN = 50
_GROUPS = 10
_SAMPLE = 500
"""The jobs of a set, of all shards together, by which the page counts its groups: thousands would take longer than all else."""
_FILTERS = ("class", "queue", "error", "tag")


class _Found(NamedTuple):
    size: int
    jobs: list[JobEntry]
    groups: JobGroups | None = None
    """``None`` for jobs that match: they are few of the set."""


class JobSetPage(Page):
    """Show one set. The words ``class``, ``queue``, ``error`` and ``tag`` of the query choose jobs."""

    of_jobs = True
    menu = "jobs"
    filters_class = True
    template = "job_set.html"
    searched_by = _FILTERS
    heading: ClassVar[str]
    """What the time of a job is."""
    grouped_by: ClassVar[str] = "class"

    def job_set(self, shard: str) -> JobSet:
        """Return the set of a shard."""
        raise NotImplementedError

    async def read(self, view: View) -> Facts:
        """Read the size, the first jobs and the groups of the set on each shard."""
        wanted = {name: view.query[name] for name in _FILTERS if name in view.query}
        sample = _SAMPLE // len(view.shards)
        matching: Mapping[str, ShardRead[JobEntry]] = {}
        if wanted:
            matching = await view.read_long(self.name, partial(self._match, wanted))
        found = await view.each(lambda shard: self._read(shard, sample, matching.get(shard)))
        newest_first = self.name in ("dead", "interrupted")
        jobs = sorted(
            (job for one in found.values() for job in one.jobs), key=lambda one: one.score, reverse=newest_first
        )
        # Only what is shown is decoded.
        shown = islice((job for job in jobs if _sees(view, job)), _SHOWN)
        groups = {shard: one.groups for shard, one in found.items() if one.groups and view.may("read", shard)}
        return {
            "total": sum(one.size for shard, one in found.items() if view.may("read", shard)),
            "searched": percent_of(matching) / 100,
            "filters": wanted,
            "jobs": [view.job_facts(job, job.score) for job in shown],
            "grouped_by": self.grouped_by,
            "groups": [fact for shard, one in groups.items() for fact in _group_facts(shard, one)],
        }

    def _read(self, shard: str, sample: int, matching: ShardRead[JobEntry] | None) -> _Found:
        found = self.job_set(shard)
        if matching is not None:
            return _Found(found.size, list(matching.found))
        groups = count_groups(found.kind, self.grouped_by, JobFilter(), _GROUPS, shard=shard, sample=sample)
        return _Found(found.size, list(islice(found, _SHOWN)), groups)

    def _match(self, wanted: dict[str, str], shard: str, read: ShardRead[JobEntry]) -> None:
        """Find the first jobs that match."""
        access, jobs = current(), self.job_set(shard)
        home, size = access.shards[shard], max(1, jobs.size)

        def on_progress(_: str, scanned: int) -> None:
            read.share = min(1.0, scanned / size)
            read.step()

        criteria = job_filter(
            cls=wanted.get("class"), queue=wanted.get("queue"), error=wanted.get("error"), tag=wanted.get("tag")
        )
        for one in ShardJobSet(home, jobs.kind, access.settings).matching(criteria, on_progress):
            read.found.append(JobEntry(home, one))
            if len(read.found) == _SHOWN:
                return


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
    mends = ("deferred", "unknown_class", "newer_version", "unhealthy_database", "deferring")

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
    mends = ("failing", "arguments", "deep_retry_set", "replica_lag")
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
    mends = ("failing", "arguments", "malformed")
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
    mends = ("poison", "process_died", "cut_off")

    def job_set(self, shard: str) -> JobSet:
        """Return the set of a shard."""
        return admin.interrupted(shard)


def _sees(view: View, job: JobEntry) -> bool:
    # The class of a job decides only for a caller with the role for some of them.
    return view.may("read", job.shard) or view.may("read", job.shard, job.worker)


def _group_facts(shard: str, found: JobGroups) -> list[Facts]:
    return [
        {"shard": shard, "name": one.name, "jobs": one.jobs, "is_estimate": found.is_estimate, "example": one.example}
        for one in found.groups
    ]
