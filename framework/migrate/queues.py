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

from framework.errors import FrameworkError
from framework.fetch.call import LEASE_MS
from framework.fetch.grace import Grace
from framework.migrate.account import Account, Allowance
from framework.migrate.plan import STAYS, Plan, Verdict
from framework.process.heartbeat import LEASE_PERIOD_S, Lease
from framework.store.script import MIGRATE
from framework.wire import keys

PAGE = 100
"""Jobs of one step: half a millisecond of Redis's time."""

LOOK = 500
"""Jobs of one look: to the middle of a deep list Redis walks a millisecond, so it is not asked to for a few."""

PAGE_BYTES = 100_000
"""Bytes of one step; a larger job is a step of its own."""

ROUNDS = 5
"""So often is a queue gone through in which jobs are found that were pushed, or given back, meanwhile."""

_MOVED, _LAPSED, _SHUT = 1, -1, -2  # what the script says

Tell = Callable[[int], None]
"""Hears how many jobs more have been looked at."""


class QueueShutError(FrameworkError):
    """A queue's key was replaced by something else while its jobs were put aside."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        super().__init__(
            f"the key {keys.queue(queue)} is no list any more, so its jobs cannot go back to it. They are in "
            f"{keys.working(keys.migration(queue))}: remove the key, and run the command again."
        )


class Queues:
    """Goes through the queues of one shard, one at a time."""

    def __init__(
        self, client: "redis.Redis", plan: Plan, account: Account, allowance: Allowance, tell: Tell = lambda _: None
    ) -> None:
        self._client = client
        self._plan = plan
        self._account = account
        self._allowance = allowance
        self._tell = tell
        self._takes: dict[str, bool] = {}

    def length(self, queue: str) -> int:
        """Return how many jobs the queue has. Raises redis errors."""
        return sum(self._client.llen(key) for key in _lists(queue))

    def look(self, queue: str) -> None:
        """Account for what would be done, and do nothing. Numbers of a queue in use are a look, no snapshot. Raises redis errors."""
        self._look(queue, tell=self._tell)

    def migrate(self, queue: str) -> None:
        """Move the queue's jobs. Raises redis errors, and QueueShutError: then what is put aside is put back by others."""
        tell = self._tell
        for _ in range(ROUNDS):
            if self._allowance.spent:
                return
            if not self._client.exists(_lists(queue)[0]) and not self._look(queue, until_first=True, tell=tell):
                return
            self._go_through(queue)
            tell = _quietly
        if not self._allowance.spent and self._look(queue, until_first=True, tell=tell):
            self._account.arriving.add(queue)

    def _look(self, queue: str, *, until_first: bool = False, tell: Tell) -> bool:
        """Judge each job; return whether one is to be moved. With ``until_first``, no further: it is not moved yet."""
        self._account.begin(queue)
        moving = 0
        for key in _lists(queue):
            start, size = 0, LOOK
            while page := cast("list[bytes]", self._client.lrange(key, start, start + size - 1)):
                verdicts = self._judge(queue, page, moving)
                found = sum(bool(verdict.target) for verdict in verdicts)
                if self._allowance.stopped or (until_first and found):
                    return found > 0
                moving += self._note(queue, verdicts)
                tell(len(page))
                start += len(page)
                size = fitting(page, LOOK)
        self._allowance.take(moving)
        return moving > 0

    def _go_through(self, queue: str) -> None:
        self._account.begin(queue)
        lease = Lease(self._client, keys.migration(queue), 0, Grace(LEASE_MS / 1000, LEASE_PERIOD_S))
        # Before there is anything to hold: who dies in between leaves a name that the others forget.
        lease.beat()
        stash, source = _lists(queue)
        try:
            # Not if something is put aside already: that comes first.
            self._client.renamenx(source, stash)
        except ResponseError as error:
            if "no such key" not in str(error):
                raise
        self._hand_on(queue, lease)
        lease.drop()

    def _hand_on(self, queue: str, lease: Lease) -> None:
        """Take what is put aside to where it goes, until nothing is left."""
        beat_at = time.monotonic()
        page, verdicts = list[bytes](), list[Verdict]()
        while True:
            state, refused, following = self._step(queue, page, verdicts)
            if state == _SHUT:
                raise QueueShutError(queue)
            if state == _MOVED:
                self._allowance.take(self._note(queue, [_refused(one, refused) for one in verdicts]))
                self._tell(len(page))
            if state == _LAPSED or time.monotonic() - beat_at > LEASE_PERIOD_S:
                lease.beat()
                beat_at = time.monotonic()
            if not following and state != _LAPSED:
                return
            page, verdicts = following, self._judge(queue, following, 0)

    def _step(
        self, queue: str, page: Sequence[bytes], verdicts: Sequence[Verdict]
    ) -> tuple[int, set[str], list[bytes]]:
        """Move a page as judged; return what came of it, the queues whose key is no list, and the next page."""
        queues = list(dict.fromkeys([queue, *(verdict.target for verdict in verdicts if verdict.target)]))
        places = {name: number for number, name in enumerate(queues, 1)}
        stash, source = _lists(queue)
        reply: Any = MIGRATE(
            self._client,
            [keys.lease(keys.migration(queue)), stash, keys.QUEUES, source, *map(keys.queue, queues[1:])],
            [
                *(LEASE_MS, PAGE, PAGE_BYTES, len(page), len(queues), *queues, *page),
                *(verdict.data for verdict in verdicts),
                *(places[verdict.target or queue] for verdict in verdicts),
            ],
        )
        state, refused, *following = reply
        return state, {queues[position - 1] for position in refused}, following

    def _judge(self, queue: str, page: Sequence[bytes], moving: int) -> list[Verdict]:
        """Judge a page after ``moving`` jobs that are not accounted for yet."""
        if self._allowance.spent:
            return [STAYS] * len(page)
        verdicts = [self._plan.judge(data, queue) for data in page]
        shut = {verdict.target for verdict in verdicts if verdict.target and not self._open(verdict.target)}
        if shut:
            verdicts = [_refused(verdict, shut) for verdict in verdicts]
        if self._allowance.left is not None:
            movers = [index for index, verdict in enumerate(verdicts) if verdict.target]
            for index in movers[max(0, self._allowance.left - moving) :]:
                verdicts[index] = STAYS
        return verdicts

    def _open(self, queue: str) -> bool:
        """Whether the queue's key can hold jobs."""
        if queue not in self._takes:
            self._takes[queue] = self._client.type(keys.queue(queue)) in (b"list", b"none")
        return self._takes[queue]

    def _note(self, queue: str, verdicts: Sequence[Verdict]) -> int:
        """Account for a page; return how many of it are moved."""
        moved = 0
        for verdict in verdicts:
            if verdict.target:
                moved += 1
                self._account.move(verdict)
            elif verdict.reason is not None:
                self._account.leave(queue, verdict, verdict.reason)
        return moved


def _quietly(_count: int) -> None:
    """What is looked at again is no progress."""


def _refused(verdict: Verdict, shut: Collection[str]) -> Verdict:
    """A job whose queue's key is no list is left in place."""
    return verdict._replace(target="", data=b"", reason="wrong type") if verdict.target in shut else verdict


def fitting(page: Sequence[bytes], most: int) -> int:
    """Return how many jobs of the size of these to ask for at once: ``most``, or as many as make ``most`` kilobytes."""
    return max(1, min(most, 1_000 * most * len(page) // (sum(map(len, page)) or 1)))


def _lists(queue: str) -> tuple[str, str]:
    """Where jobs of the queue are: put aside, and waiting."""
    return keys.working(keys.migration(queue)), keys.queue(queue)
