"""The memory of each shard by class and place. Operators see here what fills it, and delete jobs of sets."""

import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, get_args

from framework.admin import port
from framework.admin.entries import JobSetKind
from framework.admin.job_record import JobFilter, JobQuota
from framework.admin.shard_job_set import ShardJobSet
from framework.admin.statistics import ignore_progress
from framework.features.backlog.memory import measure_memory, measure_parts
from framework.pages.forms import Form
from framework.pages.long_reads import ShardRead
from framework.pages.shard_action import FormAt, RowAction
from framework.pages.table import Column, Rows, TablePage
from framework.pages.view import Facts, View
from framework.shard.memory_report import OTHER, MemoryPart
from framework.shard.shard import Shard
from framework.text import Sentence, format_bytes, format_count

_TIME_LIMIT_S = 20.0
_ABOUT_READ = 30_000
"""About the jobs and keys that are read of a shard with many of them: what was read so far is a share of it."""
_SETS: Mapping[str, JobSetKind] = {kind: kind for kind in get_args(JobSetKind)}
_SEPARATOR = " in "


class MemoryRows(Rows[MemoryPart]):
    """The largest parts of the memory of a shard."""

    noun = "part"

    def read(self, view: View, shard: Shard) -> Iterable[MemoryPart]:
        """Measure the memory."""
        measured = measure_memory(shard.client, view.installation.settings.size_limit)
        return [one for one in measured.parts if one.place != OTHER]

    def name_of(self, one: MemoryPart) -> str:
        """Return its class and place."""
        return f"{one.cls}{_SEPARATOR}{one.place}" if one.cls else one.place

    def worker_of(self, one: MemoryPart) -> str | None:
        """Return the class."""
        return one.cls or None

    def facts(self, one: MemoryPart) -> Facts:
        """Return its numbers."""
        return {"class": one.cls, "place": one.place, "jobs": one.jobs, "bytes": one.bytes}


class PurgeJobs(RowAction[MemoryPart]):
    """Delete the jobs of a class from a set, without copies to bring back: these would take the memory."""

    name = "purge"
    label = "Delete for good"
    is_harmful = True
    record = "jobs purge"
    rows = MemoryRows()

    def shown(self, at: FormAt, one: MemoryPart) -> str:
        """Return how much it is."""
        _set_of(one)
        return Sentence(
            "{part} on {shard}: about {jobs}, {size}",
            part=self.name_of(one),
            shard=at.shard.name,
            jobs=format_count(one.jobs, "job"),
            size=format_bytes(one.bytes),
        )

    def effect(self, form: Form) -> str:  # noqa: ARG002 - of ShardAction
        """Return what follows."""
        return Sentence(
            "They never run, and their locks become free. They cannot be brought back: copies would take the memory. An "
            "action takes {limit_s:g} s at most on each shard: repeat it if jobs are left.",
            limit_s=_TIME_LIMIT_S,
        )

    def change(self, at: FormAt, one: MemoryPart) -> int:
        """Delete them, in bounded steps."""
        jobs, wanted = ShardJobSet(at.shard, _set_of(one), port.current().settings), JobFilter(cls=one.cls)
        deadline = time.monotonic() + _TIME_LIMIT_S
        result = jobs.act_on_matching(wanted, "purge", deadline, ignore_progress, quota=JobQuota(wanted))
        if result.failure is not None:
            raise result.failure
        return result.done

    def done(self, count: int) -> str:
        """Return how many."""
        return Sentence("{jobs} deleted", jobs=format_count(count, "job"))


class MemoryPage(TablePage[MemoryPart]):
    """Show what fills the memory, the largest part first."""

    name = "memory"
    path = "/memory"
    title = "Memory"
    menu = "work"
    mends = ("memory_budget", "memory_full")
    of_jobs = True
    # It reads a sample of all places.
    is_long = True
    fresh_s = 30.0
    rows = MemoryRows()
    heading = "Part"
    columns = (
        Column("Class", "class", "class"),
        Column("Place", "place", "tag"),
        Column("Jobs", "jobs", "count"),
        Column("Bytes", "bytes", "bytes"),
    )
    about = (
        "Of many jobs, numbers and bytes are estimates. Jobs of a queue leave when more processes run them, by the flag on the page "
        "of their class that drops them, or on the page of the queue."
    )
    empty = "No job and no key of jobs is on these shards."
    actions = (PurgeJobs(),)

    async def read(self, view: View) -> Facts:
        """Measure each shard: the parts that were measured so far are shown."""
        found = await view.read_long(self.name, partial(self._read, view), keeps_former=True)
        parts = {shard: list(one.found) for shard, one in found.items()}
        return {**self.facts_of(view, parts), "percent": view.percent, "read_at": view.read_at}

    @staticmethod
    def _read(view: View, shard: str, read: ShardRead[MemoryPart]) -> None:
        places: dict[str, int] = {}

        def on_progress(place: str, jobs: int) -> None:
            places[place] = jobs
            read.share = min(1.0, sum(places.values()) / _ABOUT_READ)
            read.step()

        for one in measure_parts(view.shards[shard].client, view.installation.settings.size_limit, on_progress):
            read.found.append(one)

    def order(self, row: Facts) -> Any:
        """Return the largest first."""
        return -row["bytes"], row["name"], row["shard"]


def _set_of(one: MemoryPart) -> JobSetKind:
    """Return the set of the jobs.

    Raises:
        ValueError: they are in no set.
    """
    found = _SETS.get(one.place) if one.cls else None
    if found is None:
        raise ValueError(
            Sentence(
                "{cls} in {place!r} cannot be deleted here: jobs of queues are dropped by a flag on the page of their class, "
                "or on the page of their queue.",
                cls=one.cls or Sentence("what is"),
                place=one.place,
            )
        )
    return found
