"""The way of due jobs to another shard, on which no move is atomic: written there first, then removed here.

1. ``promote`` marks the job, still here and still due, with a token (field ``aw_transit``).
2. ``land`` writes it to its queue there, and in the same step a guard named by the token: one is never without the other.
3. ``promote`` removes it here.

A death after 1 or 2 leaves the job in its set here, where the next poll, of anybody, finds it marked and goes on with the
same token; the guard then says that it is there already. Pollers that race carry the same token too.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import redis
from redis.exceptions import RedisError

from framework.schedule.move import Crossing, Move, PollEvents
from framework.shard.shard import Shard
from framework.store.script import LAND
from framework.wire import keys

GUARD_S = 86_400
"""How long a guard stays while the job may still be on its old shard: longer than that shard may be away in between."""

LANDED_GUARD_S = 60
"""And once it has been removed there: longer than a poller that read the job before may take from its last look to ``land``."""

CLOSED_S = 10.0
"""How long a shard that did not answer is left alone: its jobs step aside without costing a time-out each page."""


class Crossings:
    """Carries jobs from the shard named ``here``, whose client is ``client``, to the others of ``shards``."""

    def __init__(
        self,
        client: "redis.Redis",
        here: str,
        shards: Mapping[str, Shard],
        events: PollEvents,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._here = here
        self._shards = shards
        self._events = events
        self._monotonic = monotonic
        self._closed_until: dict[str, float] = {}

    def leads(self, shard: str) -> bool:
        """Whether ``shard`` is another one."""
        return shard != self._here

    def closed(self, shard: str) -> bool:
        """Whether ``shard`` failed a moment ago."""
        return self._monotonic() < self._closed_until.get(shard, 0.0)

    def pool(self, shard: str) -> "redis.Redis":
        """Return the application's client of the shard a job goes to, for middlewares."""
        return self._shards[shard].pool

    def land(self, source: str, crossings: Sequence[Crossing]) -> list[Move]:
        """Write due jobs of ``source`` to their shards; return what is left to do here. Raises redis errors of this shard."""
        if not crossings:
            return []
        # Who read the page long ago (a middleware took its time) must not write what has been removed since.
        members: list[Any] = [one.member for one in crossings]
        scores: Any = self._client.zmscore(source, members)
        present = [one for one, score in zip(crossings, scores, strict=True) if score is not None]
        by_shard: dict[str, list[Crossing]] = {}
        for crossing in present:
            by_shard.setdefault(crossing.shard, []).append(crossing)
        return [move for shard, group in by_shard.items() for move in self._land(shard, group)]

    def _land(self, shard: str, group: Sequence[Crossing]) -> list[Move]:
        names = [keys.QUEUES]
        for one in group:
            names += [keys.landed(one.token), keys.queue(one.queue)]
        try:
            replies: Any = LAND(
                self._shards[shard].client,
                names,
                [len(group), GUARD_S * 1000, *(one.data for one in group), *(one.queue for one in group)],
            )
        except (RedisError, OSError) as error:
            self._closed_until[shard] = self._monotonic() + CLOSED_S
            self._events.shard_failed(shard, error)
            return [Move(one.member, "aside") for one in group]
        return [self._arrived(one, reply) for one, reply in zip(group, replies, strict=True)]

    def _arrived(self, crossing: Crossing, reply: int) -> Move:
        if reply < 0:
            self._events.queue_refused(crossing.queue)
            return Move(crossing.member, "aside")
        return Move(crossing.member, "gone", tell=lambda: self._shorten(crossing))

    def _shorten(self, crossing: Crossing) -> None:
        """The job is removed here: its guard has little left to guard."""
        try:
            self._shards[crossing.shard].client.expire(keys.landed(crossing.token), LANDED_GUARD_S)
        except (RedisError, OSError) as error:  # it runs out by itself
            self._events.shard_failed(crossing.shard, error)
