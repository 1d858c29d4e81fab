"""Settings of observability."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from framework.settings import validators
from framework.settings.base import Section, SettingsBase
from framework.typeguards import is_mapping

MAX_SERIES = 10_000_000


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ValueError("must be HOST:PORT, for example 127.0.0.1:8125")
    return text


def _groups(value: Any) -> Any:
    if not is_mapping(value):
        raise ValueError("must hold groups with their queues, such as {mail: [mails]}")
    return value


class MetricsSettings(Section):
    """The metrics of processes (``/metrics``, StatsD). A process counts only if a scraper or StatsD may read the counts."""

    mode: Literal["histogram", "counters", "off"] = "histogram"
    """``counters``: sums and counts instead of histograms, a sixth of the series (GitLab's ``emit_sidekiq_histogram_metrics``)."""
    most_series: Annotated[int, validators.whole_number(1, MAX_SERIES)] = 100_000
    """The most series of one process. Classes beyond it share the labels of the class ``unknown``; one line warns."""
    directory: Annotated[Path, BeforeValidator(validators.folder_path)] | None = None
    """The folder in which the processes of a producer keep their counts, so that each of them can answer for all."""
    statsd: Annotated[str, AfterValidator(_address)] | None = None
    """``HOST:PORT`` of a StatsD server, which gets the counts of each second by UDP."""
    statsd_format: Literal["statsd", "dogstatsd"] = "dogstatsd"
    """``dogstatsd`` sends labels as tags; ``statsd`` sends the name alone, and sums up all labels."""


class FleetSettings(Section):
    """The figures of the shards as a whole, which one process reads for all."""

    reporter: bool = False
    """Whether ``/metrics`` of one worker process of each shard also has the figures of the shard."""
    queue_groups: Annotated[dict[str, tuple[str, ...]], BeforeValidator(_groups)] = Field(
        default_factory=dict[str, tuple[str, ...]]
    )
    """The queues that are served together, by the name of their group, for ``application_worker_slots_needed``."""


class ObservabilitySettings(SettingsBase):
    """What other programs may read of a process."""

    metrics: MetricsSettings = MetricsSettings()
    fleet: FleetSettings = FleetSettings()
