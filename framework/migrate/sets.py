"""Rewrite jobs of a sorted set with the name of their new queue; their times stay."""

from collections.abc import Sequence
from typing import Any, cast

import redis

from framework.migrate.plan import MigrationPlan, MoveDecision
from framework.migrate.queues import PAGE, OnJobsScanned, page_size
from framework.migrate.report import MigrationReport, Quota
from framework.store.script import REPLACE


class SetMigrator:
    """Migrate one sorted set. Every job that is there during the whole run is examined.

    Any number of migrations may run while pollers run: the one whose ZREM finds a member moves it.
    """

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

    def length(self, key: str) -> int:
        """Return how many jobs the set has. Raises redis errors."""
        return self._client.zcard(key)

    def preview(self, key: str) -> None:
        """Record what would be done, and change nothing. Raises redis errors."""
        self._scan(key, dry_run=True)

    def migrate(self, key: str) -> None:
        """Rewrite the jobs. Raises redis errors; jobs rewritten until then stay so, and the command may be run again."""
        self._scan(key, dry_run=False)

    def _scan(self, key: str, *, dry_run: bool) -> None:
        self._report.start_place(key)
        cursor, size = 0, PAGE
        while True:
            reply: Any = self._client.zscan(key, cursor, count=size)
            cursor, pairs = reply
            page: list[bytes] = [member for member, _ in pairs]
            if page:
                self._process_page(key, page, dry_run=dry_run)
                size = page_size(page, PAGE)
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
        return cast("list[int]", REPLACE(self._client, [key], [len(moving), *members, *stored]))
