"""Write metrics in the formats of Prometheus, from the sums of the rows of processes. Needs the extra ``prometheus``."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder

from framework.features.observability import catalogue, layout
from framework.features.observability.catalogue import METRICS, Mode
from framework.telemetry.shared_counts import GAUGE
from framework.wire.json import loads

_DONE, _FAILED = "done", "fail"


class Families:
    """Metrics with their samples, in the order of the catalogue."""

    def __init__(self, metrics: Iterable[catalogue.Metric] = METRICS.values()) -> None:
        self._made = {one.name: _family(one) for one in metrics}

    def add(self, name: str, labels: Sequence[str], value: float) -> None:
        """Add a sample of a counter or gauge, with the values of its labels in the order of the catalogue."""
        family = self._made.get(name)
        if family is not None:
            family.add_sample(name, dict(zip(METRICS[name].labels, labels, strict=True)), value)

    def add_histogram(self, name: str, labels: Sequence[str], counts: Sequence[float], total: float) -> None:
        """Add the samples of a histogram: the counts of each bucket alone, the last without a bound, and the sum of the values."""
        family = self._made.get(name)
        if family is None:
            return
        shown = dict(zip(METRICS[name].labels, labels, strict=True))
        bounds = [*map(str, METRICS[name].buckets), "+Inf"]
        for bound, count in zip(bounds, accumulate(counts), strict=True):
            family.add_sample(f"{name}_bucket", {**shown, "le": bound}, count)
        family.add_sample(f"{name}_count", shown, sum(counts))
        family.add_sample(f"{name}_sum", shown, total)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that have samples, as the library reads them."""
        return (one for one in self._made.values() if one.samples)

    def describe(self) -> Iterator[Metric]:
        """Yield nothing: the library must not collect at the registration."""
        return iter(())

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """Return the text and its content type, in the format that the header ``Accept`` asks for."""
        registry = CollectorRegistry()
        registry.register(self)
        encode, content_type = choose_encoder(accept)
        return encode(registry), content_type


def _family(metric: catalogue.Metric) -> Metric:
    # In the text every counter must end with `_total`: the few of GitLab that do not have no type.
    kind: Any = metric.kind if metric.is_plain else "unknown"
    name = metric.name.removesuffix("_total") if kind == "counter" else metric.name
    return Metric(name, metric.help, kind)


def process_text(sums: Mapping[bytes, Sequence[float]], mode: Mode, accept: str = "") -> tuple[bytes, str]:
    """Return the metrics of processes as text, and its content type."""
    families = process_families(sums, mode)
    return families.text(accept)


def process_families(sums: Mapping[bytes, Sequence[float]], mode: Mode) -> Families:
    """Return the metrics of processes."""
    families = Families(catalogue.of_mode(catalogue.PROCESS, mode))
    for kind, labels, values in sorted(_decoded(sums), key=lambda one: one[:2]):
        if kind == layout.RUN:
            _add_runs(families, labels, values, mode)
        elif METRICS[kind].kind == "histogram":
            families.add_histogram(kind, labels, values[:-1], values[-1])
        else:
            families.add(kind, labels, values[0])
    return families


def _decoded(sums: Mapping[bytes, Sequence[float]]) -> Iterator[tuple[str, list[str], Sequence[float]]]:
    for key, values in sums.items():
        kind, *labels = loads(key.removeprefix(GAUGE).removeprefix(b"c"), None)
        yield kind, labels, values


def _add_runs(families: Families, labels: list[str], row: Sequence[float], mode: Mode) -> None:
    done, failed = row[layout.COUNT], row[layout.FAILED]
    if mode == "histogram":
        _add_histograms(families, labels, row)
    else:
        sums = {
            "sidekiq_jobs_completion_count": done + failed,
            "sidekiq_jobs_completion_seconds_sum": row[layout.SECONDS] + row[layout.FAILED + layout.SECONDS],
            "sidekiq_jobs_cpu_seconds_sum": row[layout.CPU] + row[layout.CPU + layout.CPU_NUMBERS],
            "sidekiq_jobs_db_seconds_sum": row[layout.DB] + row[layout.DB + layout.DB_NUMBERS],
            "sidekiq_redis_requests_duration_seconds_sum": row[layout.REDIS] + row[layout.REDIS + layout.REDIS_NUMBERS],
        }
        for name, value in sums.items():
            families.add(name, labels, value)
    for at, status in enumerate((_DONE, _FAILED)):
        families.add("sidekiq_redis_requests_total", [*labels, status], row[layout.CALLS + at])
    families.add("sidekiq_jobs_retried_total", labels, row[layout.RETRIED])
    families.add("sidekiq_jobs_interrupted_total", labels, row[layout.INTERRUPTED])
    values = dict(zip(catalogue.BASE, labels, strict=True))
    sli = [values[name] for name in catalogue.SLI]
    timed = done + failed - row[layout.UNTIMED]
    indicators = {
        "execution_apdex_total": done,
        "execution_apdex_success_total": done - row[layout.SLOW],
        "execution_total": done + failed,
        "execution_error_total": failed,
        "queueing_apdex_total": timed,
        "queueing_apdex_success_total": timed - row[layout.LATE],
    }
    for name, value in indicators.items():
        families.add(f"gitlab_sli_sidekiq_{name}", sli, value)


def _add_histograms(families: Families, labels: list[str], row: Sequence[float]) -> None:
    families.add("sidekiq_jobs_failed_total", labels, row[layout.FAILED])
    for failed, status in enumerate((_DONE, _FAILED)):
        at = failed * layout.FAILED
        runs, with_status = row[at + layout.COUNT], [*labels, status]
        over = row[at + layout.OVER : at + layout.FAILED]
        families.add_histogram(
            "sidekiq_jobs_completion_seconds", with_status, _with_rest(runs, over), row[at + layout.SECONDS]
        )
        for name, first, numbers in (
            ("sidekiq_jobs_cpu_seconds", layout.CPU, layout.CPU_NUMBERS),
            ("sidekiq_jobs_db_seconds", layout.DB, layout.DB_NUMBERS),
            ("sidekiq_redis_requests_duration_seconds", layout.REDIS, layout.REDIS_NUMBERS),
        ):
            at = first + failed * numbers
            families.add_histogram(name, with_status, _with_rest(runs, row[at + 1 : at + numbers]), row[at])
    timed = row[layout.COUNT] + row[layout.FAILED] - row[layout.UNTIMED]
    waited = row[layout.WAITED_OVER : layout.CPU]
    families.add_histogram("sidekiq_jobs_queue_duration_seconds", labels, _with_rest(timed, waited), row[layout.WAITED])


def _with_rest(total: float, over: Sequence[float]) -> list[float]:
    """Return the counts of all buckets; the first one has all values that are in no other."""
    return [total - sum(over), *over]
