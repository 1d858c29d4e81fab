"""Connect the policies' readers for ``jobs explain``, in the order in which processes ask the policies."""

from framework.admin.explain import BlockerReaders
from framework.admin.snapshot import ShardSnapshot
from framework.policies.concurrency.explain import LimitBlockers
from framework.policies.defer.explain import FlagBlockers
from framework.policies.pause.explain import PauseBlockers


def open_blocker_readers(snapshot: ShardSnapshot) -> BlockerReaders:
    """Return the readers of one shard, which share what the snapshot has read."""

    def now() -> float:
        return snapshot.now

    flags = FlagBlockers(now, lambda: snapshot.flags)
    return BlockerReaders(
        flags.dropping,
        PauseBlockers(snapshot.client, now, lambda: snapshot.flags),
        flags.deferring,
        LimitBlockers(snapshot.client, now),
    )
