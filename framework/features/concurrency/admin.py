"""Read the concurrency limits of one shard with the jobs that wait at them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import redis

from framework.admin.access import Answers, Listing, ask, collect
from framework.admin.held_jobs import HeldJobs, held_keys, measure_held
from framework.async_twin import async_twin
from framework.features.concurrency.limit_state import LimitState, SlotHolder, read_limit_states, read_slot_holders
from framework.shard.shard import Shard
from framework.store.connect import server_time
from framework.text import decode_escaped
from framework.wire import keys


@dataclass(frozen=True, slots=True)
class LimitReport(LimitState):
    """The state of a limit, and the jobs that wait at it."""

    waiting: HeldJobs | None


def read_limits(client: "redis.Redis", now: float, names: Sequence[str] | None = None) -> list[LimitReport]:
    """Return every limit of the shard, or the named ones; the limit with the longest-waiting job first. Raises redis errors."""
    stores = [
        store for store in held_keys(client) if store.kind == "waiting" and (names is None or store.name in names)
    ]
    waiting = {held.name: held for held in measure_held(client, stores)}
    if names is None:
        known: Any = client.smembers(keys.LIMITS)
        names = sorted({decode_escaped(key).removeprefix(keys.limit("")) for key in known} | set(waiting))
    found = [
        LimitReport(
            **{field.name: getattr(state, field.name) for field in fields(state)}, waiting=waiting.get(state.name)
        )
        for state in read_limit_states(client, now, names)
    ]
    return sorted(found, key=lambda limit: (limit.waiting.since if limit.waiting else now, limit.name))


def limits(shard: str | None = None) -> Answers[list[LimitReport]]:
    """Return the concurrency limits with their slots and waiting jobs: the limit with the job that waits longest first.

    Raises:
        ShardUnavailableError: no shard answers.
    """
    return ask(shard, lambda one: read_limits(one.client, server_time(one.client)))


alimits = async_twin(limits)


@dataclass(frozen=True, slots=True)
class LimitWithHolders:
    """A limit on one shard, with the holder of each used slot."""

    shard: str
    report: LimitReport
    holders: Sequence[SlotHolder]
    """Those whose slots expire first in front."""


def limit_holders(name: str, shard: str | None = None) -> Listing[LimitWithHolders]:
    """Return the limit NAME, a class or ``queue/NAME``, with the holders of its slots, on each shard that has it.

    Raises:
        ShardUnavailableError: no shard answers.
        UnknownShardError: the configuration has no such shard.
    """

    def read(one: Shard) -> list[LimitWithHolders]:
        now = server_time(one.client)
        known = [report for report in read_limits(one.client, now) if report.name == name]
        return [LimitWithHolders(one.name, report, read_slot_holders(one.client, name, now)) for report in known]

    return collect(shard, read)


alimit_holders = async_twin(limit_holders)
