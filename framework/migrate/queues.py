"""Moves jobs out of live queues, while others push to them and take from them.

A Redis list gives up its ends only: what stands in the middle cannot be taken out without walking to it. So the whole queue is put
aside, by one RENAME, into the working list of an identity that belongs to the queue; from there each job goes on, the oldest
first and a page in one step, to its new queue or back to its own. Whoever takes jobs from the queue gets them in their order, from
the first page on. What is pushed meanwhile may come before jobs that are still put aside; there is no other change of order.

As every working list it has a lease. A migration that dies is found by the reapers of the shard's processes, which put the rest
back in order (``restore``); the same command run again, or at the same time, uses the same list and goes on with it.
"""

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

import redis
from redis.exceptions import ResponseError

from framework.errors import QueueReplacedError
from framework.fetch.call import LEASE_MS
from framework.fetch.failure_detector import FailureDetector
from framework.migrate.plan import KEEP, MigrationPlan, MoveDecision
from framework.migrate.report import MigrationReport, Quota
from framework.process.heartbeat import LEASE_PERIOD_S, Lease
from framework.store.script import MIGRATE
from framework.wire import keys

PAGE = 100
"""Jobs of one step: half a millisecond of Redis's time."""

SCAN_PAGE = 500
"""Jobs of one look: to the middle of a deep list Redis walks a millisecond, so it is not asked to for a few."""

PAGE_BYTES = 100_000
"""Bytes of one step; a larger job is a step of its own."""

MAX_ROUNDS = 5
"""So often is a queue gone through in which jobs are found that were pushed, or given back, meanwhile."""

_MOVED, _LEASE_EXPIRED, _QUEUE_REPLACED = 1, -1, -2  # what the script says

OnJobsScanned = Callable[[int], None]
"""Hears how many jobs more have been looked at."""


# Decision 95: a migration renames a queue before it moves jobs.
class QueueMigrator:
    """Goes through the queues of one shard, one at a time."""

    def __init__(
        self,
        client: "redis.Redis",
        plan: MigrationPlan,
        report: MigrationReport,
        quota: Quota,
        on_scanned: OnJobsScanned = lambda _: None,
    ) -> None:
        self._client = client
        self._plan = plan
        self._report = report
        self._quota = quota
        self._on_scanned = on_scanned
        self._is_list_cache: dict[str, bool] = {}

    def length(self, queue: str) -> int:
        """Return how many jobs the queue has. Raises redis errors."""
        return sum(self._client.llen(key) for key in _keys_of(queue))

    def preview(self, queue: str) -> None:
        """Account for what would be done, and do nothing. Numbers of a queue in use are a look, no snapshot. Raises redis errors."""
        self._scan(queue, on_scanned=self._on_scanned)

    def migrate(self, queue: str) -> None:
        """Move the queue's jobs. Raises redis errors, and QueueShutError: then what is put aside is put back by others."""
        tell = self._on_scanned
        for _ in range(MAX_ROUNDS):
            if self._quota.exhausted:
                return
            if not self._client.exists(_keys_of(queue)[0]) and not self._scan(queue, until_first=True, on_scanned=tell):
                return
            self._migrate_once(queue)
            tell = _ignore_progress
        if not self._quota.exhausted and self._scan(queue, until_first=True, on_scanned=tell):
            self._report.still_receiving.add(queue)

    def _scan(self, queue: str, *, until_first: bool = False, on_scanned: OnJobsScanned) -> bool:
        """Judge each job; return whether one is to be moved. With ``until_first``, no further: it is not moved yet."""
        self._report.start_place(queue)
        moving = 0
        for key in _keys_of(queue):
            start, size = 0, SCAN_PAGE
            while page := cast("list[bytes]", self._client.lrange(key, start, start + size - 1)):
                verdicts = self._decide(queue, page, moving)
                found = sum(bool(verdict.target) for verdict in verdicts)
                if self._quota.stopped or (until_first and found):
                    return found > 0
                moving += self._record(queue, verdicts)
                on_scanned(len(page))
                start += len(page)
                size = page_size(page, SCAN_PAGE)
        self._quota.use(moving)
        return moving > 0

    def _migrate_once(self, queue: str) -> None:
        self._report.start_place(queue)
        lease = Lease(self._client, keys.migration_identity(queue), 0, FailureDetector(LEASE_MS / 1000, LEASE_PERIOD_S))
        # Before there is anything to hold: who dies in between leaves a name that the others forget.
        lease.renew()
        stash, source = _keys_of(queue)
        try:
            # Not if something is put aside already: that comes first.
            self._client.renamenx(source, stash)
        except ResponseError as error:
            if "no such key" not in str(error):
                raise
        self._move_all(queue, lease)
        lease.release()

    def _move_all(self, queue: str, lease: Lease) -> None:
        """Take what is put aside to where it goes, until nothing is left."""
        beat_at = time.monotonic()
        page, verdicts = list[bytes](), list[MoveDecision]()
        while True:
            state, refused, following = self._move_page(queue, page, verdicts)
            if state == _QUEUE_REPLACED:
                raise QueueReplacedError(queue, keys.queue(queue), keys.working(keys.migration_identity(queue)))
            if state == _MOVED:
                self._quota.use(self._record(queue, [_skip_wrong_type(one, refused) for one in verdicts]))
                self._on_scanned(len(page))
            if state == _LEASE_EXPIRED or time.monotonic() - beat_at > LEASE_PERIOD_S:
                lease.renew()
                beat_at = time.monotonic()
            if not following and state != _LEASE_EXPIRED:
                return
            page, verdicts = following, self._decide(queue, following, 0)

    def _move_page(
        self, queue: str, page: Sequence[bytes], decisions: Sequence[MoveDecision]
    ) -> tuple[int, set[str], list[bytes]]:
        """Move a page as judged; return what came of it, the queues whose key is no list, and the next page."""
        queues = list(dict.fromkeys([queue, *(verdict.target for verdict in decisions if verdict.target)]))
        places = {name: number for number, name in enumerate(queues, 1)}
        stash, source = _keys_of(queue)
        reply: Any = MIGRATE(
            self._client,
            [keys.lease(keys.migration_identity(queue)), stash, keys.QUEUES, source, *map(keys.queue, queues[1:])],
            [
                *(LEASE_MS, PAGE, PAGE_BYTES, len(page), len(queues), *queues, *page),
                *(verdict.data for verdict in decisions),
                *(places[verdict.target or queue] for verdict in decisions),
            ],
        )
        state, refused, *following = reply
        return state, {queues[position - 1] for position in refused}, following

    def _decide(self, queue: str, page: Sequence[bytes], moving: int) -> list[MoveDecision]:
        """Judge a page after ``moving`` jobs that are not accounted for yet."""
        if self._quota.exhausted:
            return [KEEP] * len(page)
        verdicts = [self._plan.decide(data, queue) for data in page]
        shut = {verdict.target for verdict in verdicts if verdict.target and not self._is_list(verdict.target)}
        if shut:
            verdicts = [_skip_wrong_type(verdict, shut) for verdict in verdicts]
        if self._quota.remaining is not None:
            movers = [index for index, verdict in enumerate(verdicts) if verdict.target]
            for index in movers[max(0, self._quota.remaining - moving) :]:
                verdicts[index] = KEEP
        return verdicts

    def _is_list(self, queue: str) -> bool:
        """Whether the queue's key can hold jobs."""
        if queue not in self._is_list_cache:
            self._is_list_cache[queue] = self._client.type(keys.queue(queue)) in (b"list", b"none")
        return self._is_list_cache[queue]

    def _record(self, queue: str, decisions: Sequence[MoveDecision]) -> int:
        """Account for a page; return how many of it are moved."""
        moved = 0
        for verdict in decisions:
            if verdict.target:
                moved += 1
                self._report.add_moved(verdict)
            elif verdict.reason is not None:
                self._report.add_skipped(queue, verdict, verdict.reason)
        return moved


def _ignore_progress(_count: int) -> None:
    """What is looked at again is no progress."""


def _skip_wrong_type(decision: MoveDecision, wrong_type: Collection[str]) -> MoveDecision:
    """A job whose queue's key is no list is left in place."""
    return decision._replace(target="", data=b"", reason="wrong type") if decision.target in wrong_type else decision


def page_size(page: Sequence[bytes], max_jobs: int) -> int:
    """Return how many jobs of the size of these to ask for at once: ``most``, or as many as make ``most`` kilobytes."""
    return max(1, min(max_jobs, 1_000 * max_jobs * len(page) // (sum(map(len, page)) or 1)))


def _keys_of(queue: str) -> tuple[str, str]:
    """Where jobs of the queue are: put aside, and waiting."""
    return keys.working(keys.migration_identity(queue)), keys.queue(queue)
