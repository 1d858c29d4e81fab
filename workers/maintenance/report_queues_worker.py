"""How long jobs wait, for whoever watches the logs."""

import json
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from redis import Redis, RedisError

from framework.sharding import router
from workers.cronjob import CronjobWorker

LATE_S: Final = 60.0
"""What a job of urgency low may wait."""

_MILLISECONDS: Final = 1e11
"""Sidekiq 8 writes times in milliseconds, all others in seconds: no second is that large for 3,000 years."""


class Waiting(NamedTuple):
    """One queue: how many jobs it holds, and for how long the oldest has waited."""

    queue: str
    jobs: int
    oldest_s: float


class ReportQueuesWorker(CronjobWorker):
    """Write down of every queue how many jobs wait and for how long, and how many have died."""

    feature_category = "platform_maintenance"
    # It is to tell of queues that are late: waiting among them for a minute would be too late itself.
    urgency = "high"

    def perform(self) -> None:
        # Every shard, not only that of this job: `via_all` is how application code reaches them.
        with router.via_all() as pools:
            for shard, pool in pools.items():
                try:
                    self._report(shard, pool)
                except RedisError as error:
                    # One that is down must not hide the others.
                    self.logger.error("shard does not answer", shard_name=shard, reason=str(error))

    def _report(self, shard: str, pool: "Redis") -> None:
        for waiting in _queues(pool, time.time()):
            say = self.logger.warning if waiting.oldest_s > LATE_S else self.logger.info
            say("queue", shard_name=shard, queue_name=waiting.queue, jobs=waiting.jobs, oldest_s=waiting.oldest_s)
        self.logger.info("sets", shard_name=shard, **{name: pool.zcard(name) for name in ("schedule", "retry", "dead")})


def _queues(pool: "Redis", now: float) -> Iterator[Waiting]:
    names: Any = pool.smembers("queues")
    for name in sorted(bytes(name).decode("utf-8", "replace") for name in names):
        oldest: Any = pool.lindex(f"queue:{name}", -1)  # jobs are pushed on the left and taken from the right
        jobs: Any = pool.llen(f"queue:{name}")
        yield Waiting(name, jobs, round(_waited(oldest, now), 3))


def _waited(payload: bytes | None, now: float) -> float:
    """Seconds since the job came to its queue; 0 without a job, or when nobody can read it."""
    try:
        at = float(json.loads(payload or b"")["enqueued_at"])
    except (ValueError, KeyError, TypeError):
        return 0.0
    return max(0.0, now - (at / 1000 if at > _MILLISECONDS else at))
