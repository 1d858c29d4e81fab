"""Decide what happens to a push that Redis does not take."""

from collections.abc import Mapping

from framework.errors import ShardUnavailableError
from framework.feature import features
from framework.push.job_batch import JobBatch
from framework.settings.base import SettingsBase
from framework.shard.shard import Shard


class PushFallback:
    """Raise for a push that Redis does not take: nothing keeps it. Safe to share between threads, and after a fork."""

    keeps: bool = False
    """Whether pushes return although a shard is down."""

    def keep(self, error: ShardUnavailableError, batch: JobBatch, token: str | None, *, locks_when_due: bool) -> None:
        """Keep a batch whose write failed with ``error``, until Redis takes it.

        ``token`` is that of the failed write. ``locks_when_due``: a delayed job takes its lock when it is due.

        Raises:
            ShardUnavailableError: it is not kept.
        """
        del batch, token, locks_when_due
        raise error

    def start(self) -> None:
        """Begin to push what ended processes have kept."""


NO_FALLBACK = PushFallback()


def open_fallback(settings: SettingsBase, shards: Mapping[str, Shard]) -> PushFallback:
    """Return the fallback of a process with these settings. Opens no file."""
    for feature in features():
        if feature.fallback is not None:
            fallback: PushFallback = feature.fallback.load()(settings, shards)
            return fallback
    return NO_FALLBACK
