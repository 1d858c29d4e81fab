"""Read the data of one shard that the view shows, through ``framework.admin`` alone."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from framework import admin
from framework.admin import HeldPlace, JobEntry, JobSet, Queue, RunningJob, Stats, WorkerProcess

MOST_ENTRIES = 100
"""The entries of a set that are read: the first ones of each shard."""

SETS = ("scheduled", "retry", "dead", "interrupted")
"""The views that show a sorted set of jobs."""


@dataclass(frozen=True, slots=True)
class ShardFacts:
    """One shard at one moment."""

    shard: str
    now: float
    """The time of its Redis, in epoch seconds."""
    read_at: float
    """The monotonic time of this process."""
    stats: Stats
    queues: Sequence[Queue] = ()
    processes: Sequence[WorkerProcess] = ()
    jobs: Sequence[RunningJob] = ()
    held: Sequence[HeldPlace] = ()
    entries: Sequence[JobEntry] = field(default=())
    """The first jobs of the shown set; empty while no set is shown."""


def read_facts(shard: str, shown_set: str) -> ShardFacts:
    """Read one shard, and the first jobs of the set ``shown_set`` if it is one.

    Raises:
        ShardUnavailableError: the shard does not answer.
    """
    now = admin.server_times(shard).by_shard[shard]
    return ShardFacts(
        shard,
        now,
        time.monotonic(),
        admin.stats(shard),
        admin.queues(shard),
        admin.processes(shard),
        admin.work(shard),
        admin.held(shard).indexed_places(),
        list(islice(_job_set(shard, shown_set), MOST_ENTRIES)) if shown_set in SETS else (),
    )


def _job_set(shard: str, name: str) -> JobSet:
    match name:
        case "scheduled":
            return admin.scheduled(shard)
        case "retry":
            return admin.retries(shard)
        case "dead":
            return admin.dead(shard)
        case _:
            return admin.interrupted(shard)
