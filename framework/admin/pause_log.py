"""Record the pauses of one shard and their ends: when, by which operator, for which reason. The last ones are kept.

Flags of classes hold their operator themselves, but go with the end of the pause; Sidekiq's set of paused queues holds names only.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias, cast

import redis

from framework.process.identity import operator_name
from framework.store.connect import server_time
from framework.wire import keys
from framework.wire.job import clamp_time
from framework.wire.json import dumps, loads_object

PauseAction: TypeAlias = Literal["pause", "resume", "pause-queue", "unpause-queue"]
"""What an operator did, by the name of the command."""

KEPT_RECORDS = 200


@dataclass(frozen=True, slots=True)
class PauseRecord:
    """One action of an operator on a class or a queue. ``at`` is in seconds of Redis's clock."""

    action: PauseAction
    name: str
    by: str
    reason: str
    at: float


def queue_record(pipeline: Any, client: "redis.Redis", action: PauseAction, name: str, reason: str) -> None:
    """Add the record of an action to a transaction: both happen, or neither. Raises redis errors."""
    record = PauseRecord(action, name, operator_name(), reason, server_time(client))
    pipeline.lpush(keys.PAUSE_LOG, dumps(asdict(record)))
    pipeline.ltrim(keys.PAUSE_LOG, 0, KEPT_RECORDS - 1)


def note_pause(client: "redis.Redis", action: PauseAction, name: str, reason: str) -> None:
    """Record an action. Raises redis errors."""
    pipeline: Any = client.pipeline()
    queue_record(pipeline, client, action, name, reason)
    pipeline.execute()


def read_pause_log(client: "redis.Redis") -> list[PauseRecord]:
    """Return the recorded actions, the last one first; without those that cannot be read. Raises redis errors."""
    lines = cast("list[bytes]", client.lrange(keys.PAUSE_LOG, 0, KEPT_RECORDS - 1))
    return [one for line in lines if (one := _decode(line)) is not None]


def pauses_of_queues(records: Iterable[PauseRecord]) -> dict[str, PauseRecord]:
    """Return the last pause of each queue whose pause no operator has ended since."""
    last: dict[str, PauseRecord] = {}
    for one in records:
        if one.action in ("pause-queue", "unpause-queue"):
            last.setdefault(one.name, one)
    return {name: one for name, one in last.items() if one.action == "pause-queue"}


def _decode(line: bytes) -> PauseRecord | None:
    fields = loads_object(line)
    try:
        action, name, by, reason = (str(fields[key]) for key in ("action", "name", "by", "reason"))
        return PauseRecord(cast("PauseAction", action), name, by, reason, clamp_time(float(fields["at"])))
    except (KeyError, TypeError, ValueError):
        return None
