"""Log the events of batches, which scripts note in the steps that bring them about.

``aw:batch_events`` is a list of them, the oldest first. A process takes lines out of it in one step, and logs them. At a
crash: a process that is killed in between loses the lines that it took, and no line is logged twice. The counters
(``batch_events_total``) are exact.
"""

from collections.abc import Mapping
from typing import Any, cast

import redis
from redis.exceptions import ResponseError

from framework.features.batches import keys as batch_keys
from framework.process.worker_parts import ProcessContext, WorkerPart
from framework.store.absent_keys import AbsentKeys
from framework.store.script import is_lasting
from framework.telemetry import logs
from framework.telemetry.logs import LogRateLimit
from framework.wire.json import loads_object

_PAGE = 100
_LOG_PERIOD_S = 300.0

_LINES: Mapping[str, tuple[str, str]] = {
    "complete": ("batch.complete", "every job of a batch has run"),
    "success": ("batch.success", "every job of a batch has succeeded"),
    "death": ("batch.death", "a job of a batch died; the batch succeeds only if it is retried"),
    "finished": ("batch.finished", "every job of a batch has ended"),
}
"""The event of the log and the text of each event."""


_COUNTS: Mapping[str, str] = {
    "total": "total",
    "pending": "pending",
    "failures": "failures",
    # `dead` says in the lines of jobs whether the dead set has the job.
    "dead_jobs": "dead",
    "removed_jobs": "removed",
}
"""The counts of a line, by the fields of the log."""


class BatchEventLog:
    """Log the events of the batches of one shard. ``step`` is called by one thread; any process may log any event."""

    def __init__(self, client: "redis.Redis", shard: str, absent: AbsentKeys) -> None:
        self._client = client
        self._shard = shard
        self._absent = absent
        self._rate = LogRateLimit(_LOG_PERIOD_S)

    def step(self) -> None:
        """Take the events that are not logged yet, and log them. Raises redis errors, except lasting ones."""
        if not self._absent.may_exist(batch_keys.BATCH_EVENTS):
            return
        try:
            while lines := self._take():
                for line in lines:
                    _log(self._shard, loads_object(line))
        except ResponseError as error:
            if not is_lasting(error):
                raise
            self._rate.error(
                "read",
                "the events of batches cannot be read from aw:batch_events, and are not in the log. Delete the key if another "
                "program has made it, or grant the rights of a worker",
                "batch.events_not_read",
                shard=self._shard,
                error=error,
            )
            return
        self._absent.note(batch_keys.BATCH_EVENTS, found=False)

    def _take(self) -> list[bytes]:
        # Not a transaction, which a full server refuses: that would end the periodic work of all features.
        lines: Any = self._client.lpop(batch_keys.BATCH_EVENTS, _PAGE)
        return cast("list[bytes]", lines or [])


def _log(shard: str, event: Mapping[str, Any]) -> None:
    line = _LINES.get(str(event.get("event")))
    if line is None:
        return
    event_name, text = line
    duration_s = max(0.0, _number(event.get("at")) - _number(event.get("created_at")))
    log = logs.logger(bid=str(event.get("bid")), shard=shard)
    (log.warning if event_name == "batch.death" else log.info)(
        text,
        event_name=event_name,
        description=str(event.get("description") or ""),
        duration_s=round(duration_s, 6),
        **{field: int(_number(event.get(count))) for field, count in _COUNTS.items()},
    )


def _number(value: Any) -> float:
    """Return a number that Redis keeps as text, 0 for a missing one."""
    try:
        return float(value or 0)
    except (TypeError, ValueError):
        return 0.0


def worker_part(process: ProcessContext) -> WorkerPart:
    process.absent.watch(batch_keys.BATCH_EVENTS)
    return WorkerPart(periodic=(BatchEventLog(process.upkeep, process.shard.name, process.absent).step,))
