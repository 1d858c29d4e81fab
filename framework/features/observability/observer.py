"""Open the tally of this process, if it has a reader."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from framework.feature import Late
from framework.features.observability.settings import MetricsSettings, ObservabilitySettings
from framework.telemetry.job_events import job_events
from framework.telemetry.shared_counts import FolderCounts, SharedCounts

if TYPE_CHECKING:
    from framework.features.observability.statsd import StatsdSender
    from framework.features.observability.tally import Tally

_TALLY: "Late[type[Tally]]" = Late("framework.features.observability.tally:Tally")
_STATSD: "Late[type[StatsdSender]]" = Late("framework.features.observability.statsd:StatsdSender")

_tally: "Tally | None" = None
_settings: MetricsSettings | None = None


def observer(settings: ObservabilitySettings) -> "Tally | None":
    """Return the tally of this process; ``None`` if it has no reader."""
    global _tally, _settings  # noqa: PLW0603 - the counts of a process are one thing
    metrics = settings.metrics
    is_read = job_events.is_scraped or job_events.shared_counts or metrics.statsd or folder_of(settings)
    if metrics.mode == "off" or not is_read:
        return None
    if _tally is None or _settings != metrics:
        _settings = metrics
        _tally = _TALLY.load()(metrics.mode, metrics.most_series, lambda: _open_counts(settings))
    return _tally


def _open_counts(settings: ObservabilitySettings) -> SharedCounts:
    """Open the memory, and what reads it, at the first use in a process: a fork has neither."""
    if settings.metrics.statsd is not None and _tally is not None:
        _STATSD.load()(_tally, settings.metrics).start()
    if job_events.shared_counts is not None:
        return job_events.shared_counts
    folder = folder_of(settings)
    return SharedCounts() if folder is None else SharedCounts.in_folder(folder)


def folder_of(settings: ObservabilitySettings) -> Path | None:
    """Return the folder in which the processes of a producer count; ``None`` without one, and in a worker process."""
    directory = settings.metrics.directory
    return None if directory is None or job_events.is_worker else settings.root / directory


def sums_of(settings: ObservabilitySettings) -> Mapping[bytes, Sequence[float]]:
    """Return the sums of this process, or of all that count in its folder. Raises OSError."""
    tally = observer(settings)
    if tally is None:
        return {}
    own = tally.sums()
    folder = None if job_events.shared_counts is not None else folder_of(settings)
    return own if folder is None else FolderCounts(folder).sums()


def _reset_in_child() -> None:
    if _tally is not None:
        job_events.shared_counts = None
        _tally.reset_in_child()


os.register_at_fork(after_in_child=_reset_in_child)
