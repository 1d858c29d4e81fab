"""Read the pauses of one shard: queues (Sidekiq's set), and classes, paused by operators or strategies, with their held jobs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import redis

from framework.admin.access import Answers, ask
from framework.admin.held_jobs import held_keys, measure_held
from framework.admin.queue_actions import PauseRecord, pause_ends, pauses_of_queues, read_pause_log
from framework.async_twin import async_twin
from framework.features.flags.flag import pause_flag
from framework.features.flags.redis_flags import read_flags
from framework.features.pause.explain import pause_source
from framework.fetch.blocks import packed_jobs, true_size
from framework.store.connect import server_time
from framework.text import decode_escaped
from framework.wire import keys

_PAUSE_FLAG_PREFIX = pause_flag("")


@dataclass(frozen=True, slots=True)
class PauseSummary:
    """One pause: its cause (an operator or a strategy) and reason, the number of its jobs, and since when the oldest waits.

    A class with held jobs and an empty ``by`` is no longer paused: its jobs are being resumed.
    """

    kind: Literal["queue", "class"]
    name: str
    manual: bool
    """True for a pause by an operator."""
    by: str
    reason: str
    until: float | None
    jobs: int
    since: float | None


def read_pauses(client: "redis.Redis") -> list[PauseSummary]:
    """Return the pauses of a shard: queues, then classes with the oldest held job first. Raises redis errors."""
    queues: Any = client.smembers(keys.PAUSED)
    names = sorted(map(decode_escaped, queues))
    ends = pause_ends(client) if names else {}
    pipeline: Any = client.pipeline(transaction=False)
    for name in names:
        pipeline.llen(keys.queue(name))
    lengths: list[Any] = pipeline.execute(raise_on_error=False)
    packed: Mapping[str, int] = packed_jobs(client) if names else {}
    notes = pauses_of_queues(read_pause_log(client)) if names else {}
    found = [
        PauseSummary(
            "queue",
            name,
            True,
            *_cause_of(notes.get(name)),
            ends.get(name),
            true_size(length, name, packed) if isinstance(length, int) else 0,
            None,
        )
        for name, length in zip(names, lengths, strict=True)
    ]
    return [*found, *_read_class_pauses(client)]


def _cause_of(record: PauseRecord | None) -> tuple[str, str]:
    """Return the operator and the reason of a pause; empty if another program paused the queue."""
    return ("", "") if record is None else (record.by, record.reason)


def _read_class_pauses(client: "redis.Redis") -> list[PauseSummary]:
    now = server_time(client)
    flags = {
        name.removeprefix(_PAUSE_FLAG_PREFIX): flag
        for name, flag in read_flags(client).items()
        if name.startswith(_PAUSE_FLAG_PREFIX)
        and flag.percentage > 0
        and (flag.expires_at is None or flag.expires_at > now)
    }
    places = [place for place in held_keys(client) if place.kind == "paused"]
    held = {one.name: one for one in measure_held(client, places)}
    names = [*held, *sorted(flags.keys() - held.keys())]
    pipeline: Any = client.pipeline(transaction=False)
    for name in names:
        pipeline.get(keys.pause_strategy(name))
    strategies: list[Any] = pipeline.execute(raise_on_error=False)
    found: list[PauseSummary] = []
    for name, kept in zip(names, strategies, strict=True):
        jobs = held.get(name)
        source = pause_source(flags.get(name), kept if isinstance(kept, bytes) else None)
        since = jobs.since if jobs else None
        found.append(PauseSummary("class", name, *source, jobs.jobs if jobs else 0, since))
    return found


def paused(shard: str | None = None) -> Answers[list[PauseSummary]]:
    """Return the paused queues and classes with the number of their jobs.

    Raises:
        ShardUnavailableError: no shard answers.
    """
    return ask(shard, lambda one: read_pauses(one.client))


apaused = async_twin(paused)
