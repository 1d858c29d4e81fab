"""Log how long jobs wait."""

import json
import time
from typing import Any, Final

from redis import RedisError

from framework.sharding import router
from workers.cronjob import CronjobWorker

LATE_S: Final = 60.0
"""The longest wait of a job of urgency low."""

_MILLISECONDS: Final = 1e11
"""Sidekiq 8 writes times in milliseconds, all others in seconds: no second is that large for 3,000 years."""


class ReportQueuesWorker(CronjobWorker):
    """Log the number of waiting jobs and the longest wait of each queue, and the number of dead jobs."""

    feature_category = "platform_maintenance"
    # This job reports late queues. Waiting a minute among their jobs would make the report late.
    urgency = "high"

    def perform(self) -> None:
        # Every shard, not only that of this job.
        with router.via_all() as pools:
            shards = list(pools)
        for shard in shards:
            try:
                self._report(shard)
            except RedisError as error:
                # A shard that is down must not hide the others.
                self.logger.error("shard does not answer", shard_name=shard, reason=str(error))

    def _report(self, shard: str) -> None:
        with router.via_shard(shard) as pool:
            names: Any = pool.smembers("queues")
            for name in sorted(bytes(name).decode("utf-8", "replace") for name in names):
                jobs: Any = pool.llen(f"queue:{name}")
                oldest: Any = pool.lindex(f"queue:{name}", -1)  # pushed on the left, taken from the right
                waited = _waited(oldest, time.time())
                say = self.logger.warning if waited > LATE_S else self.logger.info
                say("queue", shard_name=shard, queue_name=name, jobs=jobs, oldest_s=round(waited, 3))
            sets = {name: pool.zcard(name) for name in ("schedule", "retry", "dead")}
        self.logger.info("sets", shard_name=shard, **sets)


def _waited(payload: bytes | None, now: float) -> float:
    """Return the seconds since the job came to its queue; 0 without a job, or for an unreadable one."""
    try:
        at = float(json.loads(payload or b"")["enqueued_at"])
    except (ValueError, KeyError, TypeError):
        return 0.0
    return max(0.0, now - (at / 1000 if at > _MILLISECONDS else at))
