"""Writes the jobs of a sorted set anew with the queue that they are to go to; their times stay."""

from collections.abc import Sequence
from typing import Any, cast

import redis

from framework.migrate.account import Account, Allowance
from framework.migrate.plan import Plan, Verdict
from framework.migrate.queues import PAGE, Tell, fitting
from framework.store.script import REPLACE


class Members:
    """Goes through one sorted set: every job that is there from begin to end is looked at, whatever comes and goes meanwhile.

    Any number may run at once, beside pollers: whoever's ZREM finds a member moves it.
    """

    def __init__(
        self, client: "redis.Redis", plan: Plan, account: Account, allowance: Allowance, tell: Tell = lambda _: None
    ) -> None:
        self._client = client
        self._plan = plan
        self._account = account
        self._allowance = allowance
        self._tell = tell

    def length(self, key: str) -> int:
        """Return how many jobs the set has. Raises redis errors."""
        return self._client.zcard(key)

    def look(self, key: str) -> None:
        """Account for what would be done, and do nothing. Raises redis errors."""
        self._go_through(key, dry_run=True)

    def migrate(self, key: str) -> None:
        """Write the jobs anew. Raises redis errors: what was done is done, and the command may be run again."""
        self._go_through(key, dry_run=False)

    def _go_through(self, key: str, *, dry_run: bool) -> None:
        self._account.begin(key)
        cursor, size = 0, PAGE
        while True:
            reply: Any = self._client.zscan(key, cursor, count=size)
            cursor, pairs = reply
            page: list[bytes] = [member for member, _ in pairs]
            if page:
                self._page(key, page, dry_run=dry_run)
                size = fitting(page, PAGE)
            if not cursor or self._allowance.stopped:
                return

    def _page(self, key: str, page: Sequence[bytes], *, dry_run: bool) -> None:
        verdicts = [self._plan.judge(data) for data in page]
        moving = [(data, verdict) for data, verdict in zip(page, verdicts, strict=True) if verdict.target]
        moving = moving[: self._allowance.left]
        done = [1] * len(moving) if dry_run else self._replace(key, moving)
        for (_, verdict), outcome in zip(moving, done, strict=True):
            if outcome:
                self._account.move(verdict)
        for verdict in verdicts:
            if verdict.reason is not None:
                self._account.leave(key, verdict, verdict.reason)
        self._allowance.take(sum(done))
        self._tell(len(page))

    def _replace(self, key: str, moving: Sequence[tuple[bytes, Verdict]]) -> list[int]:
        if not moving:
            return []
        members, stored = [data for data, _ in moving], [verdict.data for _, verdict in moving]
        return cast("list[int]", REPLACE(self._client, [key], [len(moving), *members, *stored]))
