"""The jobs that a limit or a pause holds outside of their queues, as the data API shows them."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from redis.exceptions import RedisError

from framework.admin import port
from framework.admin.access import (
    TIME_LIMIT_S,
    Listing,
    check_writable,
    chosen_shards,
    collect,
    deadline_of,
    iterate,
    raise_first,
    sum_of,
)
from framework.admin.held_jobs import HeldKind, held_keys, measure_held
from framework.admin.job_counts import ignore_progress
from framework.admin.job_filter import JobFilter, job_filter
from framework.admin.purge import HeldRecord, held_records, purge
from framework.admin.search import list_held_stores
from framework.async_twin import async_items, async_twin
from framework.errors import ShardUnavailableError
from framework.shard.redis_errors import unavailable_error
from framework.shard.shard import Shard
from framework.types import Jid


class HeldPlace(NamedTuple):
    """The held jobs of a limit (``waiting``) or a class (``paused``); ``since`` is that of the oldest, in epoch seconds."""

    shard: str
    kind: HeldKind
    name: str
    jobs: int
    since: float


@dataclass(slots=True)
class DropResult:
    """The result of ``delete`` of held jobs; ``completed`` is true if every held job was examined."""

    matched: int = 0
    done: int = 0
    scanned: int = 0
    completed: bool = True
    unanswered: dict[str, ShardUnavailableError] = field(default_factory=dict[str, ShardUnavailableError])


class MatchingHeldJobs:
    """The held jobs that match a filter: loop over them, count them, or delete them. An end of a limit or a pause releases them."""

    def __init__(self, shard: str | None, wanted: JobFilter) -> None:
        self._shard = shard
        self._wanted = wanted

    def __iter__(self) -> Iterator[HeldRecord]:
        """Yield the jobs, place by place. Raises ShardUnavailableError after the last one if a shard did not answer."""
        return iterate(self._shard, lambda home: _records(home, self._wanted))

    def __aiter__(self) -> AsyncIterator[HeldRecord]:
        """Yield as a loop without ``async``, without blocking the event loop."""
        return async_items(self)

    def count(self) -> int:
        """Return the number of jobs.

        Raises:
            ShardUnavailableError: a shard does not answer, so the number would be incomplete.
        """
        return sum_of(self._shard, lambda home: sum(1 for _ in _records(home, self._wanted)))

    def delete(self, *, time_limit: timedelta | float | None = TIME_LIMIT_S) -> DropResult:
        """Delete the jobs: they never run. When the time limit ends the call, call it again.

        Raises:
            ReadOnlyError: inside of a ``read_only`` block.
        """
        check_writable(f"{type(self).__name__}.delete()")
        deadline = deadline_of(time_limit)
        result = DropResult()
        for home in chosen_shards(self._shard):
            sizes = port.current().settings.size_limit
            try:
                done = purge(home, self._wanted, sizes, deadline, ignore_progress, dry_run=False)
            except (RedisError, OSError) as error:
                result.unanswered[home.name] = unavailable_error(home.name, home.endpoint, error)
                result.completed = False
                continue
            result.matched += done.matched
            result.done += done.dropped
            result.scanned += done.scanned
            result.completed = result.completed and done.completed
        return result

    acount = async_twin(count)
    adelete = async_twin(delete)


class HeldSet(MatchingHeldJobs):
    """All held jobs of one shard or all."""

    def __init__(self, shard: str | None = None) -> None:
        super().__init__(shard, JobFilter())

    @property
    def size(self) -> int:
        """The number of held jobs.

        Raises:
            ShardUnavailableError: a shard does not answer, so the number would be incomplete.
        """
        places = self.places()
        raise_first(places.unanswered)
        return sum(place.jobs for place in places)

    async def asize(self) -> int:
        """Return ``size`` without blocking the event loop, with its errors."""
        return await asyncio.to_thread(lambda: self.size)

    def places(self) -> Listing[HeldPlace]:
        """Return the limits and classes with held jobs, on each shard the one with the oldest job first.

        Raises:
            ShardUnavailableError: no shard answers.
        """
        return collect(self._shard, _places)

    def indexed_places(self) -> Listing[HeldPlace]:
        """Return the places that the indexes name, in a few round trips, for a view that repeats. ``places`` scans the names of
        all keys, so it also finds a place that is missing in the index.

        Raises:
            ShardUnavailableError: no shard answers.
        """
        return collect(self._shard, _indexed_places)

    def find(self, jid: Jid) -> HeldRecord | None:
        """Return the job with this id, ``None`` if no limit or pause holds it.

        Raises:
            ShardUnavailableError: no shard that answers has it, and one does not answer.
        """
        wanted = JobFilter(text=jid)
        found = collect(self._shard, lambda home: (one for one in _records(home, wanted) if one.jid == jid))
        if not found:
            raise_first(found.unanswered)
        return found[0] if found else None

    def where(
        self,
        *,
        cls: str | type | None = None,
        queue: str | None = None,
        tag: str | None = None,
        context: Mapping[str, object] | None = None,
        older_than: timedelta | float | None = None,
    ) -> MatchingHeldJobs:
        """Return the jobs that match every criterion; ``older_than`` counts from the start of the hold. The others are those of
        ``JobSet.where``.

        Raises:
            TypeError, ValueError: a criterion is empty, or of a wrong type.
        """
        wanted = job_filter(cls=cls, queue=queue, tag=tag, context=context, older_than=older_than)
        return MatchingHeldJobs(self._shard, wanted)

    aplaces = async_twin(places)
    aindexed_places = async_twin(indexed_places)
    afind = async_twin(find)


def held(shard: str | None = None) -> HeldSet:
    """Return the jobs that wait at a limit, or for the end of a pause of their class."""
    return HeldSet(shard)


def _records(home: Shard, wanted: JobFilter) -> Iterator[HeldRecord]:
    sizes = port.current().settings.size_limit
    for _, _, found in held_records(home, wanted, sizes, ignore_progress):
        yield from found


def _places(home: Shard) -> Iterator[HeldPlace]:
    stores = list_held_stores(home.client)
    for one in measure_held(home.client, [store.as_held_jobs() for store in stores]):
        yield HeldPlace(home.name, one.kind, one.name, one.jobs, one.since)


def _indexed_places(home: Shard) -> Iterator[HeldPlace]:
    for one in measure_held(home.client, held_keys(home.client)):
        yield HeldPlace(home.name, one.kind, one.name, one.jobs, one.since)
