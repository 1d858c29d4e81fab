"""Keep the pushes of a process, if the settings say so."""

from collections.abc import Callable, Mapping

from framework.feature import Late
from framework.features.reliable_push.settings import ReliablePushSettings
from framework.push.job_batch import NO_FALLBACK, PushFallback
from framework.settings.base import SettingsBase
from framework.shard.shard import Shard

# Loaded where it is switched on: few processes keep pushes.
_OPEN: "Late[Callable[[ReliablePushSettings, Mapping[str, Shard]], PushFallback]]" = Late(
    "framework.features.reliable_push.reliable_push:open_reliable_push"
)


def push_fallback(settings: SettingsBase, shards: Mapping[str, Shard]) -> PushFallback:
    """Return what keeps the pushes of a process with these settings. Opens no file."""
    chosen = ReliablePushSettings.of(settings)
    return _OPEN.load()(chosen, shards) if chosen.reliable_push.enabled else NO_FALLBACK
