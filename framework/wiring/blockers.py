"""Connect the policies' readers for ``jobs explain``, in the order in which processes ask the policies."""

from collections.abc import Mapping

from framework.admin.explain import BlockerReaders
from framework.admin.snapshot import ShardSnapshot
from framework.feature_flags.flag import Flag
from framework.policies.concurrency.explain import LimitBlockers
from framework.policies.defer.explain import FlagBlockers
from framework.policies.pause.explain import PauseBlockers


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
