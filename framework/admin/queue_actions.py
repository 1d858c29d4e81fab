"""Pause a queue on one shard, with a record of each pause, end its pause, and drop its jobs with what they hold.

Sidekiq's SET says which queues are paused. The end of a pause is beside it, and the worker processes of the shard carry it out. The
last pauses are recorded: when, by which operator, for which reason. Flags of classes hold their operator themselves, but go with the
end of the pause; Sidekiq's set holds names only.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import compress
from typing import Any, Literal, TypeAlias, cast

import redis
from redis.client import Pipeline

from framework import timings
from framework.admin.audit import acting_name
from framework.admin.queue_reader import scan_elements, sub_queues
from framework.errors import QueueReplacedError
from framework.fetch.blocks import expand, split_block, unpack
from framework.process.heartbeat import QueueAside
from framework.store.connect import server_time
from framework.store.script import DROP_QUEUED, MIGRATE, RING, write_when_full
from framework.store.steps import BoundedSteps
from framework.telemetry.counters import series_name
from framework.telemetry.job_events import SKIPPED_JOBS
from framework.text import decode_escaped
from framework.types import Payload
from framework.wire import keys
from framework.wire.blocks import is_block
from framework.wire.job import clamp_time
from framework.wire.json import dumps, loads_object, stored_time
from framework.wire.resources import JobResources, lock_of, reservations
from framework.wire.status_key import tracked_job
from framework.wire.sub_queues import parent_of
from framework.wire.waiters import awaited_job_of

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


def note_pause(
    client: "redis.Redis", action: PauseAction, name: str, reason: str, *commands: Sequence[Any]
) -> list[int]:
    """Record an action, in one step with its ``commands``; return their replies. Raises redis errors.

    A full Redis takes them: a pause may be what lets it recover.
    """
    record = PauseRecord(action, name, acting_name(), reason, server_time(client))
    replies = write_when_full(client, *commands, ("LPUSH", keys.PAUSE_LOG, dumps(asdict(record))))
    client.ltrim(keys.PAUSE_LOG, 0, KEPT_RECORDS - 1)
    return replies


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


MAX_PAUSE_S = 366 * 86_400.0
"""The longest time of a pause with an end."""


def pause_queue(client: "redis.Redis", queue: str, for_s: float | None, reason: str = "") -> bool:
    """Pause a queue, without an end if ``for_s`` is ``None``; return whether it was not paused. Raises redis errors.

    The last pause counts: it replaces the end of an earlier one. The log of pauses has the operator and the reason.
    """
    until = None if for_s is None else server_time(client) + for_s
    # One step: a pause must never have the end of an earlier one.
    end = ("HDEL", keys.PAUSE_ENDS, queue) if until is None else ("HSET", keys.PAUSE_ENDS, queue, f"{until:.3f}")
    return bool(note_pause(client, "pause-queue", queue, reason, ("SADD", keys.PAUSED, queue), end)[0])


def unpause_queue(client: "redis.Redis", queue: str, reason: str = "") -> bool:
    """End the pause of a queue; return whether it was paused. Raises redis errors."""
    # No transaction: a full Redis refuses each, whatever it does.
    pipeline: Any = client.pipeline(transaction=False)
    pipeline.srem(keys.PAUSED, queue)
    pipeline.hdel(keys.PAUSE_ENDS, queue)
    was_paused = bool(pipeline.execute()[0])
    # Behind it: killed in between, the queue runs, and only the record of that is missing.
    note_pause(client, "unpause-queue", queue, reason)
    return was_paused


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


OnDropped: TypeAlias = Callable[[int], None]
"""Receives the number of dropped jobs so far, after each step."""

_AT_RIGHT_END, _FROM_RIGHT_END = 0, -1

PAGE = (20, 250)
"""The fewest and the most jobs of a page: 500 took up to 5.1 ms of Redis's processor."""

_KEPT_BYTES = 500_000
"""The most bytes of a page; a larger job is a page of its own."""

_LEASE_EXPIRED, _QUEUE_REPLACED = -1, -2
"""States of ``migrate.lua``."""


def drop_job(client: "redis.Redis", queue: str, data: bytes, *, from_left: bool) -> bool:
    """Drop one job of a queue; return false if it is no longer there. Raises redis errors.

    Redis walks through the queue from the given end to the job: a millisecond for 100,000 jobs.
    """
    limits, place = _known_limits(client), 1 if from_left else -1
    dropped = _drop(client, keys.queue(queue), queue, [data], limits, place, BoundedSteps(1, 1)) == 1
    # In a block it stands alone before it is dropped.
    while not dropped and (block := _block_of(client, queue, data)) is not None:
        split_block(client, queue, block, data)
        dropped = _drop(client, keys.queue(queue), queue, [data], limits, place, BoundedSteps(1, 1)) == 1
    # It may have been the job for which idle processes wait. Without this step they look for the next one after some seconds.
    RING(client, [], [parent_of(queue)])
    return dropped


def _block_of(client: "redis.Redis", queue: str, data: bytes) -> bytes | None:
    """Return the block of a queue that has this job; ``None`` if none has it. Raises redis errors."""
    if client.hget(keys.PACKED, queue) is None:
        return None
    blocks = (element for element in scan_elements(client, queue) if is_block(element))
    return next((block for block in blocks if data in expand(client, block)), None)


def clear_queue(
    client: "redis.Redis",
    queue: str,
    on_dropped: OnDropped,
    selects: Callable[[bytes], bool] = lambda _data: True,
    rate: float | None = None,
) -> int:
    """Drop the selected jobs that are in the queue and in its sub-queues now; return their number.

    The jobs of each list leave it in one step. Then they are dropped in pages, the oldest first, each with the resources that it
    holds; those that ``selects`` refuses go back to the queue, in their order, and a job that is pushed meanwhile may overtake them.
    If this process dies in between, the worker processes of the shard put the rest back into the queue. ``rate`` is that of
    ``BoundedSteps``.

    Raises:
        QueueReplacedError: the key of the queue has become one of another type; the rest is put back when it is a list again.
        redis errors.
    """
    dropped, steps = 0, BoundedSteps(*PAGE, rate=rate)
    # The sub-queues first: they fill the queue.
    for name in (*sub_queues(client, queue), queue):
        dropped = _clear_list(client, name, dropped, on_dropped, selects, steps)
    # Jobs that arrived in sub-queues meanwhile.
    RING(client, [], [queue])
    return dropped


def _clear_list(
    client: "redis.Redis",
    queue: str,
    dropped: int,
    on_dropped: OnDropped,
    selects: Callable[[bytes], bool],
    steps: BoundedSteps,
) -> int:
    """Drop the selected jobs of one list; return the number of dropped jobs with the ``dropped`` ones before."""
    # Raises an error for a key of another type, which the next step would rename too.
    client.llen(keys.queue(queue))
    limits, times = _known_limits(client), timings.current()
    aside = QueueAside(client, queue, times)
    whole = False
    while not whole:
        # Jobs that were set aside before come first.
        whole = aside.take()
        page = _put_back(client, aside, [], times.lease_ms, steps)
        while page:
            page = _unpacked(client, aside, page, times.lease_ms, steps)
            chosen = [selects(data) for data in page]
            leaving, kept = (
                list(compress(page, chosen)),
                [data for data, one in zip(page, chosen, strict=True) if not one],
            )
            if leaving:
                place = _FROM_RIGHT_END if kept else _AT_RIGHT_END
                dropped += _drop(client, aside.key, queue, leaving, limits, place, steps)
            on_dropped(dropped)
            page = _put_back(client, aside, kept, times.lease_ms, steps)
            aside.renew_when_due()
    aside.release()
    _forget_empty(client, queue)
    return dropped


def _unpacked(
    client: "redis.Redis", aside: QueueAside, page: list[bytes], lease_ms: int, steps: BoundedSteps
) -> list[bytes]:
    """Return the next jobs that were set aside; if a block is next, its jobs, from now on without it."""
    while page and is_block(page[0]):
        unpack(client, aside.queue, page[0], key=aside.key)
        page = _put_back(client, aside, [], lease_ms, steps)
    return page[: next((at for at, data in enumerate(page) if is_block(data)), len(page))]


def _put_back(
    client: "redis.Redis", aside: QueueAside, kept: Sequence[bytes], lease_ms: int, steps: BoundedSteps
) -> list[bytes]:
    """Move the oldest jobs that were set aside to the left end of their queue; return the next ones, the oldest first."""
    places = [aside.lease_key, aside.key, keys.QUEUES, keys.queue(aside.queue)]
    returned = [len(kept), 1, aside.queue, *kept, *[b""] * len(kept), *[1] * len(kept)]
    with steps.step() as shown:
        reply: Any = MIGRATE(client, places, [lease_ms, shown, _KEPT_BYTES, *returned])
    state, _, *following = reply
    if state == _QUEUE_REPLACED:
        raise QueueReplacedError(aside.queue, places[3], aside.key)
    if state == _LEASE_EXPIRED:
        # Worker processes may have put some of them back.
        aside.renew()
        return _put_back(client, aside, [], lease_ms, steps)
    return cast("list[bytes]", following)


def _drop(
    client: "redis.Redis",
    key: str,
    queue: str,
    page: Sequence[bytes],
    limits: Collection[str],
    place: int,
    steps: BoundedSteps,
) -> int:
    payloads = [loads_object(data) for data in page]
    names = [_series_of(payload) for payload in payloads]
    series = list(dict.fromkeys(names))
    indexes = {name: index for index, name in enumerate(series, 1)}
    held = [_holds(payload, data, queue, limits) for payload, data in zip(payloads, page, strict=True)]
    arguments = [place, len(page), len(series), *page, *held, *(indexes[name] for name in names), *series]
    with steps.step(len(page)):
        reply: Any = DROP_QUEUED(client, [key, keys.COUNTERS], arguments)
    return sum(reply)


def _series_of(payload: Payload) -> str:
    return series_name(SKIPPED_JOBS, {"worker": str(payload.get("class")), "action": "dropped", "reason": "operator"})


def _holds(payload: Payload, data: bytes, queue: str, limits: Collection[str]) -> str:
    """Return the resources of a waiting job, as the argument of the script: its lock, slots reserved for it, its status."""
    names = [name for name in (str(payload.get("class")), f"queue/{parent_of(queue)}") if keys.limit(name) in limits]
    awaited = awaited_job_of(payload)
    resources = JobResources(lock_of(payload), reservations(payload, data, names), awaited=awaited, end_word="removed")
    track = tracked_job(payload)
    if resources.lock is None and not resources.slots and track is None and awaited is None:
        return ""
    return resources.on_end(None if track is None else track.command("discarded"))


def _known_limits(client: "redis.Redis") -> set[str]:
    found: Any = client.smembers(keys.LIMITS)
    return set(map(decode_escaped, found))


def _forget_empty(client: "redis.Redis", queue: str) -> None:
    """Remove an empty queue from ``queues``, as Sidekiq's clear does: the next push lists it again."""

    def remove(pipeline: "Pipeline") -> None:
        left = pipeline.exists(keys.queue(queue))
        pipeline.multi()
        if not left:
            pipeline.srem(keys.QUEUES, queue)

    client.transaction(remove, keys.queue(queue))
