"""Read the figures of concurrency limits for Prometheus, with GitLab's names."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from framework import timings
from framework.admin.figures import Figure, FigureReader, age, number, rows
from framework.declare import registry
from framework.features.concurrency.limit_state import limit_state
from framework.text import decode_escaped
from framework.wire import keys

_FIELDS = (b"limit", b"share", b"current", b"current_until", b"override", b"override_until", b"portion")
_LIMIT = "sidekiq_concurrency_limit"
_LIMITED_CAPACITY = "limited_capacity_worker"

UNRENEWED_S = 30
"""A process that has renewed no slot for so long, and has no lease, is gone."""


class LimitFigures(FigureReader):
    """Yield the slots and the waiting jobs of each limit, and the jobs of limited-capacity workers whose classes are loaded."""

    def argument(self) -> str:
        return str(timings.current().slot_ttl_s - UNRENEWED_S)

    def read(self, shard: str, reply: Any, now: float) -> Iterator[Figure]:
        del shard
        for one in limits_of(reply, now):
            labels = {"worker": one.name, "feature_category": _category(one.name)}
            yield Figure(f"{_LIMIT}_current_concurrent_jobs", labels, one.running)
            yield Figure(f"{_LIMIT}_queue_jobs", labels, one.waiting)
            yield Figure("application_worker_leaked_slots", {"worker": one.name}, one.leaked)
            if one.application is not None:
                yield Figure(f"{_LIMIT}_max_concurrent_jobs", labels, one.application)
            if one.limit is not None:
                yield Figure(f"{_LIMIT}_current_limit", labels, one.limit)
            if one.waiting:
                place = {"place": "waiting", "worker": one.name}
                yield Figure("application_worker_held_size", place, one.waiting)
                yield Figure("application_worker_held_oldest_age_seconds", place, one.oldest_s)
            if _is_limited_capacity(one.name):
                worker = {"worker": one.name}
                yield Figure(f"{_LIMITED_CAPACITY}_running_jobs", worker, one.running)
                yield Figure(f"{_LIMITED_CAPACITY}_max_running_jobs", worker, one.application or 0)


class LimitUse(NamedTuple):
    """One limit: the application's, the one in force, its slots in use, its waiting jobs, and the age of the oldest in seconds."""

    name: str
    application: int | None
    limit: int | None
    running: int
    leaked: int
    """The slots in use whose processes are gone."""
    waiting: int
    oldest_s: float


def limits_of(reply: Any, now: float) -> Iterator[LimitUse]:
    """Yield the limits in the reply of ``figures_concurrency``."""
    for base, fields, running, leaked, waiting, since in rows(reply, 6):
        name = decode_escaped(base).removeprefix(keys.limit(""))
        stored = {field: value for field, value in zip(_FIELDS, fields, strict=False) if value is not None}
        state = limit_state(name, stored, running, now)
        yield LimitUse(
            name,
            state.application,
            state.limit,
            state.running,
            int(number(leaked)),
            int(number(waiting)),
            age(now, since),
        )


def _category(name: str) -> str:
    worker = registry.find(name)
    return "" if worker is None else str(worker.declaration().feature_category)


def _is_limited_capacity(name: str) -> bool:
    worker = registry.find(name)
    return worker is not None and worker.declaration().facts.get("max_running_jobs") is not None
