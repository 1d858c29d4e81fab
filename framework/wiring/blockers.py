"""Connect the policies' readers for ``jobs explain``, in the order in which processes ask the policies."""

from collections.abc import Mapping
from typing import Any

from framework.admin.explain import BlockerReaders
from framework.admin.snapshot import ShardSnapshot
from framework.declare.declaration import Declaration
from framework.features.concurrency.explain import LimitBlockers
from framework.features.deferral.explain import FlagBlockers
from framework.features.flags.flag import Flag, FlagSource, LayeredFlags
from framework.features.flags.process_flags import serve_flags
from framework.features.flags.redis_flags import RedisFlags, ShardFlags
from framework.features.pause.explain import PauseBlockers
from framework.shard.shard import Shard

_EVALUATIONS = 200
"""Evaluations of a limit while a flag is on for a share of them: one of 3 % is then missed once in 400 times."""


class _AssumedFlags(FlagSource):
    """Flags that count instead of those in force."""

    def __init__(self, flags: Mapping[str, Flag]) -> None:
        self._flags = flags

    def find(self, name: str) -> Flag | None:
        """See ``Flags``."""
        return self._flags.get(name)

    def names(self) -> frozenset[str]:
        """See ``Flags``."""
        return frozenset(self._flags)

    def read(self) -> bool:
        """See ``FlagSource``."""
        return False


def limits_under_flags(declaration: Declaration, flags: Mapping[str, Flag], shard: Shard) -> list[int]:
    """Return the limits that the function of a class returns on a shard if these flags of the application count, lowest first.

    Runs the function of the application in this process. Raises what it raises, and redis errors.
    """
    evaluate: Any = declaration.facts.get("concurrency_limit")
    stored = RedisFlags(shard.client, shard.name)
    stored.read()
    serve_flags(shard.name, ShardFlags(LayeredFlags(_AssumedFlags(flags), stored), stored))
    sampled = any(0 < flag.percentage < 100 for flag in flags.values())
    return sorted({int(evaluate() or 0) for _ in range(_EVALUATIONS if sampled else 1)})


def open_blocker_readers(
    snapshot: ShardSnapshot,
    assumed_flags: Mapping[str, Flag] | None = None,
    assumed_limits: Mapping[str, int] | None = None,
) -> BlockerReaders:
    """Return the readers of one shard, which share what the snapshot has read; what is assumed counts instead of it."""

    def now() -> float:
        return snapshot.now

    def flags_in_force() -> Mapping[str, Flag]:
        return {**snapshot.flags, **(assumed_flags or {})}

    flags = FlagBlockers(now, flags_in_force)
    return BlockerReaders(
        flags.dropping,
        PauseBlockers(snapshot.client, now, flags_in_force),
        flags.deferring,
        LimitBlockers(snapshot.client, now, assumed_limits),
    )
