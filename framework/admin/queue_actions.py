"""Drop jobs of a queue, one or all, with what they hold: locks, limit slots, the status of a tracked job."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias, cast

import redis
from redis.client import Pipeline

from framework import timings
from framework.admin.queue_reader import page_size, sub_queues
from framework.process.set_aside import QueueAside
from framework.store.script import DROP_QUEUED, RING
from framework.telemetry.counters import SKIPPED_JOBS, series_name
from framework.text import decode_escaped
from framework.types import Payload
from framework.wire import keys
from framework.wire.json import loads_object
from framework.wire.resources import JobResources, lock_of, reservations
from framework.wire.status_key import tracked_job
from framework.wire.sub_queues import parent_of
from framework.wire.waiters import awaited_job_of

OnDropped: TypeAlias = Callable[[int], None]
"""Receives the number of dropped jobs so far, after each step."""

_AT_RIGHT_END = 0


def drop_job(client: "redis.Redis", queue: str, data: bytes, *, from_left: bool) -> bool:
    """Drop one job of a queue; return false if it is no longer there. Raises redis errors.

    Redis walks through the queue from the given end to the job: a millisecond for 100,000 jobs.
    """
    dropped = _drop(client, keys.queue(queue), queue, [data], _known_limits(client), 1 if from_left else -1) == 1
    # It may have been the job for which idle processes wait. Without this step they look for the next one after some seconds.
    RING(client, [], [parent_of(queue)])
    return dropped


def clear_queue(client: "redis.Redis", queue: str, on_dropped: OnDropped) -> int:
    """Drop the jobs that are in the queue and in its sub-queues now; return their number. Raises redis errors.

    The jobs of each list leave it in one step. Then they are dropped in pages, each with the resources that it holds. If this
    process dies in between, the worker processes of the shard put the rest back into the queue.
    """
    dropped = 0
    # The sub-queues first: they fill the queue.
    for name in (*sub_queues(client, queue), queue):
        dropped = _clear_list(client, name, dropped, on_dropped)
    # Jobs that arrived in sub-queues meanwhile.
    RING(client, [], [queue])
    return dropped


def _clear_list(client: "redis.Redis", queue: str, dropped: int, on_dropped: OnDropped) -> int:
    """Drop the jobs of one list; return the number of dropped jobs with the ``dropped`` ones before."""
    # Raises an error for a key of another type, which the next step would rename too.
    client.llen(keys.queue(queue))
    limits, size = _known_limits(client), 1
    aside = QueueAside(client, queue, timings.current())
    whole = False
    while not whole:
        # Jobs that were set aside before come first.
        whole = aside.take()
        while page := _oldest(client, aside.key, size):
            dropped += _drop(client, aside.key, queue, page, limits, _AT_RIGHT_END)
            on_dropped(dropped)
            size = page_size(page)
            aside.renew_when_due()
    aside.release()
    _forget_empty(client, queue)
    return dropped


def _oldest(client: "redis.Redis", key: str, count: int) -> list[bytes]:
    page: Any = client.lrange(key, -count, -1)
    return cast("list[bytes]", page)[::-1]


def _drop(
    client: "redis.Redis", key: str, queue: str, page: Sequence[bytes], limits: Collection[str], place: int
) -> int:
    payloads = [loads_object(data) for data in page]
    names = [_series_of(payload) for payload in payloads]
    series = list(dict.fromkeys(names))
    indexes = {name: index for index, name in enumerate(series, 1)}
    held = [_holds(payload, data, queue, limits) for payload, data in zip(payloads, page, strict=True)]
    arguments = [place, len(page), len(series), *page, *held, *(indexes[name] for name in names), *series]
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
