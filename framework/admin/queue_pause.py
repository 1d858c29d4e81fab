"""Pause a queue on one shard, with or without an end, and end its pause.

Sidekiq's SET says which queues are paused. The end of a pause is beside it, and the worker processes of the shard carry it out.
"""

from typing import Any, cast

import redis

from framework.admin.pause_log import queue_record
from framework.store.connect import server_time
from framework.text import decode_escaped
from framework.wire import keys
from framework.wire.json import stored_time

MAX_PAUSE_S = 366 * 86_400.0
"""The longest time of a pause with an end."""


def pause_queue(client: "redis.Redis", queue: str, for_s: float | None, reason: str = "") -> bool:
    """Pause a queue, without an end if ``for_s`` is ``None``; return whether it was not paused. Raises redis errors.

    The last pause counts: it replaces the end of an earlier one. The log of pauses has the operator and the reason.
    """
    until = None if for_s is None else server_time(client) + for_s
    # One transaction: a pause must never have the end of an earlier one.
    pipeline: Any = client.pipeline()
    pipeline.sadd(keys.PAUSED, queue)
    if until is None:
        pipeline.hdel(keys.PAUSE_ENDS, queue)
    else:
        pipeline.hset(keys.PAUSE_ENDS, queue, f"{until:.3f}")
    queue_record(pipeline, client, "pause-queue", queue, reason)
    return bool(pipeline.execute()[0])


def unpause_queue(client: "redis.Redis", queue: str, reason: str = "") -> bool:
    """End the pause of a queue; return whether it was paused. Raises redis errors."""
    pipeline: Any = client.pipeline()
    pipeline.srem(keys.PAUSED, queue)
    pipeline.hdel(keys.PAUSE_ENDS, queue)
    queue_record(pipeline, client, "unpause-queue", queue, reason)
    return bool(pipeline.execute()[0])


def pause_ends(client: "redis.Redis") -> dict[str, float]:
    """Return when pauses end, by queue, in seconds of Redis's clock. Raises redis errors."""
    found = cast("dict[bytes, bytes]", client.hgetall(keys.PAUSE_ENDS))
    # The next check of a worker process removes a value that is no time.
    return {decode_escaped(name): until for name, value in found.items() if (until := stored_time(value)) is not None}


def check_pause_time(for_s: float | None) -> None:
    """Raise ValueError for a time that no pause can have."""
    if for_s is not None and not 0 < for_s <= MAX_PAUSE_S:
        raise ValueError(
            f"for_s must be a number of seconds above 0, at most {MAX_PAUSE_S:,.0f} (a year), not {for_s!r}"
        )
