"""The sorted sets of jobs: scheduled, retries, dead, interrupted. Each lists its first jobs, and its largest groups."""

from collections import Counter
from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import ClassVar, NamedTuple

from framework import admin
from framework.admin import JobEntry, JobSet
from framework.admin.groups import NO_NAME, count_groups, error_name
from framework.admin.job_record import JobFilter, job_filter
from framework.admin.port import current
from framework.admin.shard_job_set import ShardJobSet
from framework.dashboard.pages.actions import RunLater, SetAction
from framework.pages.long_reads import ShardRead, percent_of
from framework.pages.page import Page
from framework.pages.view import Facts, View

_SHOWN = 50
_GROUPS = 10
_SAMPLE = 500
"""The jobs of a set, of all shards together, by which the page counts its groups: thousands would take longer than all else."""
_GROUPED = 1_000
"""The matching jobs of a shard that are grouped by their errors: the search ends with them."""
_FILTERS = ("class", "queue", "error", "tag")


class _Found(NamedTuple):
    size: int
    jobs: list[JobEntry]
    groups: list[Facts]


class _Matches:
    """The matching jobs of a shard: the first ones, and the groups of all that were found."""

    def __init__(self, shard: str) -> None:
        self.jobs: list[JobEntry] = []
        self._shard = shard
        self.total = 0
        self._counts: dict[str, int] = {}
        self._examples: dict[str, str] = {}

    def add(self, one: JobEntry) -> None:
        if len(self.jobs) < _SHOWN:
            self.jobs.append(one)
        name = error_name(one)
        # Before its count, so that each group that is read has one.
        self._examples.setdefault(name, one.jid)
        self._counts[name] = self._counts.get(name, 0) + 1
        self.total += 1

    def groups(self, *, is_cut: bool) -> list[Facts]:
        """Return the largest groups."""
        # Its thread adds groups meanwhile.
        largest = Counter(dict(self._counts)).most_common(_GROUPS)
        return [_group_facts(self._shard, name, jobs, self._examples[name], is_least=is_cut) for name, jobs in largest]


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
        matching: Mapping[str, ShardRead[_Matches]] = {}
        if wanted:
            matching = await view.read_long(self.name, partial(self._match, wanted))
        found = await view.each(lambda shard: self._read(shard, sample, matching.get(shard)))
        newest_first = self.name in ("dead", "interrupted")
        jobs = sorted(
            (job for one in found.values() for job in one.jobs), key=lambda one: one.score, reverse=newest_first
        )
        # Only what is shown is decoded.
        shown = islice((job for job in jobs if _sees(view, job)), _SHOWN)
        return {
            "total": sum(one.size for shard, one in found.items() if view.may("read", shard)),
            "searched": percent_of(matching) / 100,
            "filters": wanted,
            "jobs": [view.job_facts(job, job.score) for job in shown],
            "grouped_by": self.grouped_by,
            "groups": [fact for shard, one in found.items() if self._sees_groups(view, shard) for fact in one.groups],
        }

    def _sees_groups(self, view: View, shard: str) -> bool:
        # Those of one class are of its jobs alone.
        return view.may("read", shard, view.query.get("class"))

    def _read(self, shard: str, sample: int, matching: ShardRead[_Matches] | None) -> _Found:
        found = self.job_set(shard)
        if matching is not None:
            matches = next(iter(list(matching.found)), None)
            is_cut = matches is not None and matches.total >= _GROUPED
            groups = matches.groups(is_cut=is_cut) if matches is not None and self.grouped_by == "error" else []
            return _Found(found.size, [] if matches is None else list(matches.jobs), groups)
        counted = count_groups(found.kind, self.grouped_by, JobFilter(), _GROUPS, shard=shard, sample=sample)
        groups = [
            _group_facts(shard, one.name, one.jobs, one.example, is_estimate=counted.is_estimate)
            for one in counted.groups
        ]
        return _Found(found.size, list(islice(found, _SHOWN)), groups)

    def _match(self, wanted: dict[str, str], shard: str, read: ShardRead[_Matches]) -> None:
        """Find the first jobs that match."""
        access, jobs = current(), self.job_set(shard)
        home, size = access.shards[shard], max(1, jobs.size)

        def on_progress(_: str, scanned: int) -> None:
            read.share = min(1.0, scanned / size)
            read.step()

        criteria = job_filter(
            cls=wanted.get("class"), queue=wanted.get("queue"), error=wanted.get("error"), tag=wanted.get("tag")
        )
        most = _GROUPED if self.grouped_by == "error" else _SHOWN
        matches = _Matches(shard)
        read.found.append(matches)
        for one in ShardJobSet(home, jobs.kind, access.settings).matching(criteria, on_progress):
            matches.add(JobEntry(home, one))
            if matches.total == most:
                return


class ScheduledPage(JobSetPage):
    """Show the jobs that are due later."""

    name = "scheduled"
    path = "/scheduled"
    title = "Scheduled"
    actions = (
        SetAction("scheduled", "enqueue_now", "Run now"),
        RunLater("scheduled"),
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
        RunLater("retry"),
        SetAction("retry", "kill", "Kill"),
        SetAction("retry", "delete", "Delete"),
    )
    heading = "Next run"
    mends = ("failing", "arguments", "deep_retry_set", "replica_lag")
    grouped_by = "error"
    class_part = "retries-errors"

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
    class_part = "dead-errors"

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


def _group_facts(
    shard: str, name: str, jobs: int, example: str, *, is_estimate: bool = False, is_least: bool = False
) -> Facts:
    """Return a group. ``error`` is the class of its error, which the page takes as a filter."""
    error = "" if name == NO_NAME else name.partition(": ")[0]
    facts: Facts = {"shard": shard, "name": name, "error": error, "jobs": jobs, "example": example}
    return {**facts, "is_estimate": is_estimate, "is_least": is_least}
