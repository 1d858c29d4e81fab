"""Write metrics in the formats of Prometheus. Needs the extra ``prometheus``."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder

from framework.admin.figures import Figure
from framework.features.observability import catalogue
from framework.features.observability.catalogue import METRICS, Mode
from framework.features.observability.samples import MetricSample, process_samples


class _Families:
    """A collector of the library: metrics with their samples, in the order of the catalogue."""

    def __init__(self, samples: Iterable[MetricSample]) -> None:
        self._made: dict[str, Metric] = {}
        for one in samples:
            family = self._made.get(one.metric)
            if family is None:
                family = self._made[one.metric] = _family(METRICS[one.metric])
            family.add_sample(one.name, dict(one.labels), one.value)

    def collect(self) -> Iterator[Metric]:
        return (self._made[name] for name in METRICS if name in self._made)

    def describe(self) -> Iterator[Metric]:
        """Yield nothing: the library must not collect at the registration."""
        return iter(())


def text_of(samples: Iterable[MetricSample], accept: str = "") -> tuple[bytes, str]:
    """Return the text and its content type, in the format that the header ``Accept`` asks for."""
    registry = CollectorRegistry()
    registry.register(_Families(samples))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def process_text(
    sums: Mapping[bytes, Sequence[float]], mode: Mode, accept: str = "", figures: Sequence[Figure] = ()
) -> tuple[bytes, str]:
    """Return the metrics of processes, and figures of shards, as text, and its content type."""
    of_shards = (MetricSample(one.name, *one) for one in figures if one.name in METRICS)
    return text_of(chain(process_samples(sums, mode), of_shards), accept)


def _family(metric: catalogue.Metric) -> Metric:
    # In the text every counter must end with `_total`: the few of GitLab that do not have no type.
    kind: Any = metric.kind if metric.is_plain else "unknown"
    name = metric.name.removesuffix("_total") if kind == "counter" else metric.name
    return Metric(name, metric.help, kind)
