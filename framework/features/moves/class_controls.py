"""Take what operators and breakers do to a class to the shard to which its jobs move, before the first job is written there.

Otherwise a paused class would run there: its held jobs leave as jobs of their queue, and are admitted again.

At a crash: what was written on the target stays, and the next mover finds it there. No job has been written yet.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Any, cast

import redis
from redis.exceptions import ResponseError

from framework.declare import registry
from framework.features.breaker.store import open_breaker, read_breaker
from framework.features.flags.flag import drop_flag, pause_flag, run_flag
from framework.features.flags.redis_flags import MAX_AGE_S
from framework.features.moves.records import MoveRecord
from framework.shard.shard import Shard
from framework.store.connect import server_time
from framework.store.script import is_lasting, write_when_full
from framework.wire import keys
from framework.wire.json import loads_object

FOLLOWED_S = MAX_AGE_S + 1.0
"""How long after the write of a flag every process of its shard follows it."""


class ClassControls:
    """Write the flags and the open breakers of classes on the target of a move. For one thread."""

    def __init__(self, record: MoveRecord, source: Shard, target: Shard) -> None:
        # What arrives after the end of a move meets what operators have decided on the target since.
        self._carries = record.state in ("moving", "undoing")
        self._only = record.name if record.kind == "class" else None
        self._source, self._target = source, target
        self._carried: set[str] = set()

    def carry(self, jobs: Sequence[bytes]) -> bool:
        """Write what holds the classes of these payloads on the source, where the target has none of it.

        Returns whether time has passed, so that the processes of the target know it. Raises redis errors.
        """
        if not self._carries:
            return False
        found = {self._only} if self._only is not None else set(_classes(jobs))
        names = sorted(found - self._carried)
        flags = [self._carry_flags(name) for name in names]
        for name in names:
            self._carry_breaker(name)
        self._carried.update(names)
        if any(flags):
            time.sleep(FOLLOWED_S)
        return any(flags)

    def _carry_flags(self, name: str) -> bool:
        flags = [pause_flag(name), run_flag(name), drop_flag(name)]
        here, there = (_read_flags(one.client, flags) for one in (self._source, self._target))
        missing = [
            (flag, value)
            for flag, value, other in zip(flags, here, there, strict=True)
            if value is not None and other is None
        ]
        if missing:
            write_when_full(self._target.client, ("HSET", keys.FLAGS, *(word for pair in missing for word in pair)))
        return bool(missing)

    def _carry_breaker(self, name: str) -> None:
        try:
            here = read_breaker(self._source.client, name)
            if here.state == "closed" or read_breaker(self._target.client, name).state != "closed":
                return
            wait_s = max(0.0, (here.probes_at or 0.0) - server_time(self._source.client))
            open_breaker(self._target.client, name, f"open on {self._source.name}: {here.reason}", wait_s)
        except ResponseError as error:
            # A key of another type is no breaker. A full target refuses the jobs too.
            if not is_lasting(error):
                raise


def _read_flags(client: "redis.Redis", flags: Sequence[str]) -> list[bytes | None]:
    """Return the values of these flags. A key of another type, or without the right to it, has none. Raises redis errors."""
    try:
        return cast("list[bytes | None]", client.hmget(keys.FLAGS, list(flags)))
    except ResponseError as error:
        if not is_lasting(error):
            raise
        return [None] * len(flags)


def _classes(jobs: Iterable[bytes]) -> Iterable[str]:
    """Yield the classes of payloads, by today's names."""
    for job in jobs:
        name = loads_object(job).get("class")
        if isinstance(name, str):
            worker: Any = registry.find(name)
            yield name if worker is None else worker.declaration().wire_name
