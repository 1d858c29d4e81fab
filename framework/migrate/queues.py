"""Move jobs between live queues, while clients push to them and processes fetch from them.

The whole queue is set aside (``process/heartbeat.py``). From there jobs move on in pages, the oldest first, to their new queue
or back to their own. Consumers receive the jobs in order, from the first page on. A job that is pushed meanwhile may overtake jobs
that are still set aside; no other order changes.
"""

from collections.abc import Callable, Collection, Sequence
from itertools import accumulate, takewhile
from typing import Any, cast

import redis
from redis.exceptions import ResponseError

from framework import timings
from framework.errors import QueueReplacedError
from framework.fetch.blocks import expand, packed_jobs, true_size, unpack
from framework.fetch.deferred_blocks import DeferredBlock, all_blocks, read_jobs, unpack_deferred
from framework.migrate.plan import KEEP, MigrationPlan, MigrationReport, MoveDecision, Quota
from framework.process.heartbeat import QueueAside
from framework.store.script import MIGRATE, REPLACE, is_wrong_type
from framework.store.steps import UNPACED, BoundedSteps
from framework.wire import keys
from framework.wire.blocks import is_block
from framework.wire.sub_queues import parent_of

PAGE = (20, 500)
"""The fewest and the most jobs of one step."""

SCAN_PAGE = 2_000
"""Jobs per read. Redis needs up to two milliseconds to reach the middle of a long list, so a read must be worth it."""

_FIRST_PAGE, _BLOCKS_AT_ONCE = 100, 10

PAGE_BYTES = 500_000
"""The most bytes of one step; a larger job is a step of its own."""

MAX_ROUNDS = 5
"""How often a queue is migrated again because jobs were pushed, or put back, meanwhile."""

# Results of the script.
_MOVED, _LEASE_EXPIRED, _QUEUE_REPLACED = 1, -1, -2

OnJobsScanned = Callable[[int], None]
"""Receives how many more jobs have been scanned."""


class QueueMigrator:
    """Migrate the queues of one shard, one at a time."""

    def __init__(
        self,
        client: "redis.Redis",
        plan: MigrationPlan,
        report: MigrationReport,
        quota: Quota,
        on_scanned: OnJobsScanned = lambda _: None,
        rate: float | None = None,
    ) -> None:
        """``rate`` is that of ``BoundedSteps``."""
        self._client = client
        self._plan = plan
        self._report = report
        self._quota = quota
        self._on_scanned = on_scanned
        self._steps = BoundedSteps(*PAGE, rate=rate)
        self._timings = timings.current()
        self._is_list_cache: dict[str, bool] = {}

    def length(self, queue: str) -> int:
        """Return how many jobs the queue has. Raises redis errors."""
        length = sum(self._client.llen(key) for key in _keys_of(queue))
        return true_size(length, queue, packed_jobs(self._client))

    def preview(self, queue: str) -> None:
        """Record what would be done, and change nothing. The numbers of a queue in use are approximate. Raises redis errors."""
        self._scan(queue, on_scanned=self._on_scanned)

    def migrate(self, queue: str) -> None:
        """Move the queue's jobs. Raises redis errors, and QueueReplacedError; then reapers put back the jobs that were
        set aside.
        """
        on_scanned = self._on_scanned
        for _ in range(MAX_ROUNDS):
            if self._quota.exhausted:
                return
            if not self._client.exists(_keys_of(queue)[0]) and not self._scan(
                queue, until_first=True, on_scanned=on_scanned
            ):
                return
            self._migrate_once(queue)
            on_scanned = _ignore_progress
        if not self._quota.exhausted and self._scan(queue, until_first=True, on_scanned=on_scanned):
            self._report.still_receiving.add(queue)

    def _scan(self, queue: str, *, until_first: bool = False, on_scanned: OnJobsScanned) -> bool:
        """Decide about each job; return whether one is to be moved. With ``until_first``, stop at the first such job."""
        self._report.start_place(queue)
        moving = 0
        for key in _keys_of(queue):
            start = 0
            # Blocks of jobs are large, and may follow many small jobs.
            most = _BLOCKS_AT_ONCE if queue in packed_jobs(self._client) else SCAN_PAGE
            size = min(most, _FIRST_PAGE)
            while elements := cast("list[bytes]", self._client.lrange(key, start, start + size - 1)):
                page = [data for element in elements for data in expand(self._client, element)]
                decisions = self._decide(queue, page, moving)
                found = sum(bool(decision.target) for decision in decisions)
                if self._quota.stopped or (until_first and found):
                    return found > 0
                moving += self._record(queue, decisions)
                on_scanned(len(page))
                start += len(elements)
                size = page_size(elements, most)
        self._quota.use(moving)
        return moving > 0

    def _migrate_once(self, queue: str) -> None:
        self._report.start_place(queue)
        aside = QueueAside(self._client, queue, self._timings)
        aside.take()
        self._move_all(queue, aside)
        aside.release()

    def _move_all(self, queue: str, aside: QueueAside) -> None:
        """Move the jobs that were set aside, until none is left."""
        page, decisions = list[bytes](), list[MoveDecision]()
        while True:
            state, refused, following = self._move_page(queue, page, decisions)
            if state == _QUEUE_REPLACED:
                raise QueueReplacedError(queue, keys.queue(queue), keys.working(keys.migration_identity(queue)))
            if state == _MOVED:
                moved = self._record(queue, [_skip_wrong_type(one, refused) for one in decisions])
                self._quota.use(moved)
                self._page_moved(moved)
                self._on_scanned(len(page))
            if state == _LEASE_EXPIRED:
                aside.renew()
            else:
                aside.renew_when_due()
            if not following and state != _LEASE_EXPIRED:
                return
            if following and is_block(following[0]):
                # Its jobs are the next ones.
                unpack(self._client, queue, following[0], key=_keys_of(queue)[0])
                following = []
            page = list(takewhile(lambda data: not is_block(data), following))
            decisions = self._decide(queue, page, 0)

    def _move_page(
        self, queue: str, page: Sequence[bytes], decisions: Sequence[MoveDecision]
    ) -> tuple[int, set[str], list[bytes]]:
        """Move a page by its decisions; return the state, the queues whose key is not a list, and the next page."""
        queues = list(dict.fromkeys([queue, *(decision.target for decision in decisions if decision.target)]))
        indexes = {name: number for number, name in enumerate(queues, 1)}
        stash, source = _keys_of(queue)
        targets = self._targets(queues[1:])
        names = [keys.lease(keys.migration_identity(queue)), stash, keys.QUEUES, source, *(key for key, _ in targets)]
        moves = [
            *(len(page), len(queues), queue, *(name for _, name in targets), *page),
            *(decision.data for decision in decisions),
            *(indexes[decision.target or queue] for decision in decisions),
        ]
        with self._steps.step() as shown:
            reply: Any = MIGRATE(self._client, names, [self._timings.lease_ms, shown, PAGE_BYTES, *moves])
        state, refused, *following = reply
        return state, {queues[position - 1] for position in refused}, following

    def _targets(self, queues: Sequence[str]) -> list[tuple[str, str]]:
        """Return the keys of the target queues, and their names in ``queues``; an empty name stands for a list that is no queue."""
        return [(keys.queue(name), name) for name in queues]

    def _page_moved(self, jobs: int) -> None:
        """Note that a page was moved, and so many of its jobs to other queues."""

    def _decide(self, queue: str, page: Sequence[bytes], moving: int) -> list[MoveDecision]:
        """Decide about a page, after ``moving`` jobs that are not yet counted in the quota."""
        if self._quota.exhausted:
            return [KEEP] * len(page)
        # A sub-queue is a part of its queue.
        decisions = [self._plan.decide(data, parent_of(queue)) for data in page]
        wrong_type = {
            decision.target for decision in decisions if decision.target and not self._is_list(decision.target)
        }
        if wrong_type:
            decisions = [_skip_wrong_type(decision, wrong_type) for decision in decisions]
        if self._quota.remaining is not None:
            movers = [index for index, decision in enumerate(decisions) if decision.target]
            for index in movers[max(0, self._quota.remaining - moving) :]:
                decisions[index] = KEEP
        return decisions

    def _is_list(self, queue: str) -> bool:
        """Return whether the queue's key can hold jobs."""
        if queue not in self._is_list_cache:
            self._is_list_cache[queue] = self._client.type(keys.queue(queue)) in (b"list", b"none")
        return self._is_list_cache[queue]

    def _record(self, queue: str, decisions: Sequence[MoveDecision]) -> int:
        """Record a page; return how many of its jobs are moved."""
        moved = 0
        for decision in decisions:
            if decision.target:
                moved += 1
                self._report.add_moved(decision)
            elif decision.reason is not None:
                self._report.add_skipped(queue, decision, decision.reason)
        return moved


def _ignore_progress(_count: int) -> None:
    """Report no progress for jobs that were scanned before."""


def _skip_wrong_type(decision: MoveDecision, wrong_type: Collection[str]) -> MoveDecision:
    """Keep a job in place if the key of its target queue is not a list."""
    return decision._replace(target="", data=b"", reason="wrong type") if decision.target in wrong_type else decision


def _within_bytes(page: Sequence[bytes]) -> Sequence[bytes]:
    """Return the first jobs of a page, as many as one step moves; a larger one is a step of its own."""
    sizes = accumulate(map(len, page))
    return page[: max(1, sum(1 for _ in takewhile(lambda size: size <= PAGE_BYTES, sizes)))]


def page_size(page: Sequence[bytes], max_jobs: int) -> int:
    """Return how many jobs of this size to request at once: ``max_jobs``, or as many as fit in half as many kilobytes."""
    return max(1, min(max_jobs, 500 * max_jobs * len(page) // (sum(map(len, page)) or 1)))


def _keys_of(queue: str) -> tuple[str, str]:
    """Return the two keys with jobs of the queue: set aside, and waiting."""
    return keys.working(keys.migration_identity(queue)), keys.queue(queue)


class SetMigrator:
    """Migrate one sorted set. Every job that is there during the whole run is examined.

    Any number of migrations may run while pollers run: the one whose ZREM finds a member moves it. Deferred jobs in blocks
    (``fetch/deferred_blocks.py``) are jobs of the schedule set. If one of a block moves, its jobs return to the set first, in a step
    of their own: at a crash they are scheduled, and due as before.
    """

    def __init__(
        self,
        client: "redis.Redis",
        plan: MigrationPlan,
        report: MigrationReport,
        quota: Quota,
        on_scanned: OnJobsScanned = lambda _: None,
        rate: float | None = None,
    ) -> None:
        """``rate`` is that of ``BoundedSteps``."""
        self._client = client
        self._plan = plan
        self._report = report
        self._quota = quota
        self._on_scanned = on_scanned
        self._reads, self._moves = BoundedSteps(*PAGE, rate=UNPACED), BoundedSteps(*PAGE, rate=rate)

    def length(self, key: str) -> int:
        """Return how many jobs the set has. Raises redis errors."""
        return self._client.zcard(key) + sum(block.jobs for block in self._blocks(key))

    def preview(self, key: str) -> None:
        """Record what would be done, and change nothing. Raises redis errors."""
        self._report.start_place(key)
        self._scan_blocks(key, set(), dry_run=True)
        self._scan(key, dry_run=True)

    def migrate(self, key: str) -> None:
        """Rewrite the jobs. Raises redis errors; jobs rewritten until then stay so, and the command may be run again."""
        self._report.start_place(key)
        seen = set[bytes]()
        self._scan_blocks(key, seen, dry_run=False)
        self._scan(key, dry_run=False)
        # Jobs that were packed meanwhile, before the scan came to them.
        self._scan_blocks(key, seen, dry_run=False)

    def _blocks(self, key: str) -> list[DeferredBlock]:
        if key != keys.SCHEDULE:
            return []
        try:
            return all_blocks(self._client)
        except ResponseError as error:
            # A key of another type has no blocks, and the set has jobs nevertheless.
            if not is_wrong_type(error):
                raise
            return []

    def _scan_blocks(self, key: str, seen: set[bytes], *, dry_run: bool) -> None:
        """Move the jobs in blocks that are not in ``seen``, and add these blocks to it."""
        for block in self._blocks(key):
            if self._quota.stopped:
                return
            if block.name in seen:
                continue
            seen.add(block.name)
            with self._reads.step(max(1, block.jobs)):
                (jobs,) = read_jobs(self._client, [block])
            page = [job.data for job in jobs]
            movers = [] if self._quota.exhausted else [data for data in page if self._plan.decide(data).target]
            if not movers or dry_run:
                self._process_page(key, page, dry_run=dry_run)
                continue
            with self._moves.step(len(page)):
                unpack_deferred(self._client, block)
            # The scan of the set, which comes later, reports those that stay.
            self._process_page(key, movers, dry_run=False)

    def _scan(self, key: str, *, dry_run: bool) -> None:
        cursor = 0
        while True:
            with self._reads.step() as size:
                reply: Any = self._client.zscan(key, cursor, count=size)
            cursor, pairs = reply
            page: list[bytes] = [member for member, _ in pairs]
            start = 0
            while start < len(page):
                part = _within_bytes(page[start : start + self._moves.size])
                start += len(part)
                self._process_page(key, part, dry_run=dry_run)
            if not cursor or self._quota.stopped:
                return

    def _process_page(self, key: str, page: Sequence[bytes], *, dry_run: bool) -> None:
        decisions = [self._plan.decide(data) for data in page]
        moving = [(data, decision) for data, decision in zip(page, decisions, strict=True) if decision.target]
        moving = moving[: self._quota.remaining]
        done = [1] * len(moving) if dry_run else self._replace(key, moving)
        for (_, decision), outcome in zip(moving, done, strict=True):
            if outcome:
                self._report.add_moved(decision)
        for decision in decisions:
            if decision.reason is not None:
                self._report.add_skipped(key, decision, decision.reason)
        self._quota.use(sum(done))
        self._on_scanned(len(page))

    def _replace(self, key: str, moving: Sequence[tuple[bytes, MoveDecision]]) -> list[int]:
        if not moving:
            return []
        members, stored = [data for data, _ in moving], [decision.data for _, decision in moving]
        with self._moves.step(len(moving)):
            return cast("list[int]", REPLACE(self._client, [key], [len(moving), *members, *stored]))
