"""Read one sorted set of jobs of one shard, and act on its jobs: functions in bounded steps, which raise redis errors."""

import heapq
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from redis.exceptions import RedisError

from framework.admin.entries import (
    SET_KEYS,
    SLICE_JOBS,
    TO_QUEUE,
    ActionTerms,
    EntryAction,
    EntryOutcome,
    JobSetKind,
    act,
    next_slice,
    ordered_entries,
)
from framework.admin.job_record import JobFilter, JobQuota, JobRecord
from framework.admin.search import ScanPage, scan_from, scan_held, share_of_cursor
from framework.admin.statistics import OnProgress
from framework.errors import ShardUnavailableError
from framework.fetch.deferred_blocks import DeferredBlock, packed_in_order, unpack_deferred
from framework.fetch.held_blocks import packed_held
from framework.settings.model import CoreSettings
from framework.shard.redis_errors import unavailable_error
from framework.shard.shard import Shard
from framework.store.connect import server_time
from framework.store.steps import BoundedSteps
from framework.wire import keys
from framework.wire.job import clamp_time
from framework.wire.json import dumps

NEWEST_FIRST: frozenset[JobSetKind] = frozenset({"dead", "interrupted"})
"""The sets that are read from the highest score on, as on Sidekiq's pages."""


_BLOCKS = keys.DEFERRED_PACKED.encode()


class SetRecord(JobRecord):
    """A job of a sorted set with its score: when it is due, or since when it is there, in epoch seconds."""

    def __init__(self, shard: str, kind: JobSetKind, data: bytes, score: float, settings: CoreSettings) -> None:
        super().__init__(shard, data, settings.size_limit)
        self.kind: JobSetKind = kind
        self.score = clamp_time(score)

    @property
    def due(self) -> float | None:
        """When it is due, in epoch seconds; ``None`` in a set whose jobs have ended."""
        return None if self.kind in NEWEST_FIRST else self.score

    @property
    def since(self) -> float | None:
        """Since when it is there: its end, its last failure, or its first push; ``None`` if that was not recorded."""
        match self.kind:
            case "dead" | "interrupted":
                return self.score
            case "retry":
                return self.retried_at or self.failed_at
            case "scheduled":
                return self.created_at


@dataclass(slots=True)
class ShardResult:
    """The results of an action on the matching jobs of one shard."""

    scanned: int = 0
    matched: int = 0
    done: int = 0
    gone: int = 0
    """Jobs that another operator, a poller or Sidekiq's Web had taken before."""
    refused: dict[EntryOutcome, int] = field(default_factory=dict[EntryOutcome, int])
    """Jobs that stay as they were, by the reason."""
    trimmed: int = 0
    """Old entries that the dead set lost to make room."""
    in_doubt: int = 0
    """Jobs of a step whose reply was lost: all of them are done, or none."""
    cursor: int = 0
    """Where to go on."""
    completed: bool = False
    failure: ShardUnavailableError | None = None

    def add(self, outcomes: Sequence[EntryOutcome], trimmed: int) -> None:
        self.trimmed += trimmed
        for outcome in outcomes:
            if outcome == "done":
                self.done += 1
            elif outcome == "gone":
                self.gone += 1
            else:
                self.refused[outcome] = self.refused.get(outcome, 0) + 1

    def skip(self, count: int) -> None:
        """Count jobs that are back in the set after the same pass has moved them to their queues, or whose id another job has."""
        if count:
            self.matched += count
            self.refused["again"] = self.refused.get("again", 0) + count


class ShardJobSet:
    """One sorted set of one shard."""

    def __init__(self, shard: Shard, kind: JobSetKind, settings: CoreSettings) -> None:
        self._shard = shard
        self._client = shard.client
        self._kind: JobSetKind = kind
        self._settings = settings
        self._key = SET_KEYS[kind]

    def size(self) -> int:
        pipeline: Any = self._client.pipeline(transaction=False)
        for key in (self._key, _BLOCKS) if self._kind == "scheduled" else (self._key,):
            pipeline.zcard(key)
        jobs, *found = map(int, pipeline.execute())
        blocks = sum(found)
        return jobs + (blocks + packed_held(self._client).get(_BLOCKS, 0) if blocks else 0)

    def ordered(self) -> Iterator[SetRecord]:
        """Yield the jobs: the next due first, or the one that ended last."""
        entries = ordered_entries(self._client, self._key, newest_first=self._kind in NEWEST_FIRST)
        if self._count_blocks():
            entries = heapq.merge(entries, packed_in_order(self._client), key=itemgetter(1))
        for data, score in entries:
            yield self._record(data, score)

    def _count_blocks(self) -> int:
        """Return the number of blocks of deferred jobs (``fetch/deferred_blocks.py``), which are jobs of the schedule set."""
        return int(self._client.zcard(_BLOCKS)) if self._kind == "scheduled" else 0

    def _packed_pages(self, needle: bytes | None) -> Iterator[tuple[DeferredBlock, ScanPage]]:
        """Yield the jobs in blocks that contain the needle, each page with its block."""
        if not self._count_blocks():
            return
        for block, page in scan_held(self._client, _BLOCKS, needle):
            if block is not None and page:
                # What was read with its score may have another one by now: then nothing is unpacked.
                due: Any = self._client.zscore(_BLOCKS, block)
                yield DeferredBlock(block, float(due or 0.0)), page

    def find(self, *jids: str) -> list[SetRecord]:
        """Return the jobs with these ids: one of each, unless another program wrote two."""
        wanted = frozenset(jids)
        # Redis filters by one text only.
        needle = dumps(jids[0])[1:-1] if len(wanted) == 1 else None
        pages = scan_from(self._client, self._key, needle, 0)
        found = itertools.chain(pages, self._packed_pages(needle))
        records = (self._record(data, score) for _, page in found for data, score in page)
        return list({one.data: one for one in records if one.jid in wanted}.values())

    def matching(self, wanted: JobFilter, on_progress: OnProgress) -> Iterator[SetRecord]:
        """Yield the matching jobs that stay in the set during the scan, in no order; a job may come twice while others move."""
        now = server_time(self._client)
        # Redis filters: the cursor says how much was scanned, not the members that it sends.
        scanned, size = 0, self.size()
        for cursor, page in scan_from(self._client, self._key, wanted.needle, 0):
            scanned = round(size * share_of_cursor(cursor, size))
            on_progress(self._key, scanned)
            yield from self._matches(page, wanted, now)
        for _, page in self._packed_pages(wanted.needle):
            scanned += len(page)
            on_progress(self._key, scanned)
            yield from self._matches(page, wanted, now)

    def act_on(self, action: EntryAction, data: bytes, at: object = None) -> EntryOutcome:
        """Carry out the action on one job, and return its outcome. Raises ArgumentsError for an ``at`` that is no time."""
        terms = ActionTerms.of(self._kind, action, self._settings, self._client, at)
        outcome = act(self._client, terms, [data], BoundedSteps(1, 1)).outcomes[0]
        if outcome == "gone" and self._unpack_block_of(data):
            outcome = act(self._client, terms, [data], BoundedSteps(1, 1)).outcomes[0]
        return outcome

    def _unpack_block_of(self, data: bytes) -> bool:
        """Return the jobs of the block that has this job to the schedule set; return whether there is one."""
        for block, page in self._packed_pages(data):
            if any(member == data for member, _ in page):
                return unpack_deferred(self._client, block)
        return False

    def act_on_matching(
        self,
        wanted: JobFilter,
        action: EntryAction,
        deadline: float,
        on_progress: OnProgress,
        *,
        quota: JobQuota,
        cursor: int = 0,
        at: object = None,
        rate: float | None = None,
    ) -> ShardResult:
        """Carry out the action on each matching job of the quota, until ``deadline`` (monotonic clock); return what was done.

        ``rate`` is that of ``BoundedSteps``.

        Redis errors end it: they are in the result, which says how far it came. Raises ArgumentsError as ``act_on``.
        """
        result = ShardResult(cursor=cursor)
        slice_jobs = 0
        steps = BoundedSteps(*SLICE_JOBS, rate=rate)
        try:
            terms = ActionTerms.of(self._kind, action, self._settings, self._client, at)
            now = server_time(self._client)
            # A job that fails again meanwhile is back in the set: one pass takes it once.
            taken = set[str]()
            for following, page in self._pages_to_act_on(wanted, cursor):
                result.scanned += len(page)
                on_progress(self._key, result.scanned)
                matching = list(self._matches(page, wanted, now))
                found = [one for one in matching if not one.jid or one.jid not in taken]
                result.skip(len(matching) - len(found))
                members = list(quota.of(one.data for one in found))
                if members and isinstance(following, DeferredBlock):
                    # A job leaves its block first.
                    unpack_deferred(self._client, following)
                start = 0
                while start < len(members):
                    if time.monotonic() >= deadline:
                        return result
                    part = next_slice(members, start, steps.size, len)
                    start += len(part)
                    slice_jobs = len(part)
                    result.matched += slice_jobs
                    acted = act(self._client, terms, part, steps)
                    result.add(acted.outcomes, acted.trimmed)
                    slice_jobs = 0
                if action in TO_QUEUE:
                    taken.update(one.jid for one in found)
                if quota.is_used_up:
                    break
                if not isinstance(following, DeferredBlock):
                    result.cursor = following
                if following and time.monotonic() >= deadline:
                    return result
        except (RedisError, OSError) as error:
            result.in_doubt = slice_jobs
            result.failure = unavailable_error(self._shard.name, self._shard.endpoint, error)
            return result
        result.completed = True
        return result

    def _pages_to_act_on(self, wanted: JobFilter, cursor: int) -> Iterator[tuple[int | DeferredBlock, ScanPage]]:
        """Yield the pages of the set with the cursor behind each, then those of blocks, each with its block.

        Blocks have no cursor: a call that goes on looks through all of them that are left.
        """
        yield from scan_from(self._client, self._key, wanted.needle, cursor)
        yield from self._packed_pages(wanted.needle)

    def _matches(self, page: ScanPage, wanted: JobFilter, now: float) -> Iterator[SetRecord]:
        for data, score in page:
            record = self._record(data, score)
            if wanted.matches(record, record.since, now):
                yield record

    def _record(self, data: bytes, score: float) -> SetRecord:
        return SetRecord(self._shard.name, self._kind, data, score, self._settings)
