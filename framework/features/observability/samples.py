"""Turn the sums of rows into samples of metrics."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from framework.features.observability import catalogue, layout
from framework.features.observability.catalogue import METRICS, Mode
from framework.telemetry.shared_counts import GAUGE
from framework.wire.json import loads


class MetricSample(NamedTuple):
    """One value. Its name is that of its metric, or for a histogram that with ``_bucket``, ``_count`` or ``_sum``."""

    metric: str
    name: str
    labels: Mapping[str, str]
    value: float


def process_samples(sums: Mapping[bytes, Sequence[float]], mode: Mode) -> Iterator[MetricSample]:
    """Yield the samples of processes that a mode has."""
    for kind, labels, values in sorted(_decoded(sums), key=lambda one: one[:2]):
        if kind == layout.RUN:
            yield from _runs(labels, values, mode)
        elif METRICS[kind].mode in (None, mode):
            yield from _of_row(kind, labels, values)


def _decoded(sums: Mapping[bytes, Sequence[float]]) -> Iterator[tuple[str, list[str], Sequence[float]]]:
    for key, values in sums.items():
        kind, *labels = loads(key.removeprefix(GAUGE).removeprefix(b"c"), None)
        yield kind, labels, values


def _of_row(name: str, labels: Sequence[str], values: Sequence[float]) -> Iterator[MetricSample]:
    if METRICS[name].kind == "histogram":
        return _histogram(name, labels, values[:-1], values[-1])
    return iter((_one(name, labels, values[0]),))


def _one(name: str, labels: Sequence[str], value: float) -> MetricSample:
    return MetricSample(name, name, dict(zip(METRICS[name].labels, labels, strict=True)), value)


def _histogram(name: str, labels: Sequence[str], counts: Sequence[float], total: float) -> Iterator[MetricSample]:
    """Yield the samples of a histogram. ``counts`` are those of each bucket alone, the last one without a bound."""
    shown = dict(zip(METRICS[name].labels, labels, strict=True))
    bounds = [*map(str, METRICS[name].buckets), "+Inf"]
    for bound, count in zip(bounds, accumulate(counts), strict=True):
        yield MetricSample(name, f"{name}_bucket", {**shown, "le": bound}, count)
    yield MetricSample(name, f"{name}_count", shown, sum(counts))
    yield MetricSample(name, f"{name}_sum", shown, total)


def _runs(labels: list[str], row: Sequence[float], mode: Mode) -> Iterator[MetricSample]:
    done, failed = row[layout.COUNT], row[layout.FAILED]
    yield from _histograms(labels, row) if mode == "histogram" else _sums(labels, row)
    for at, status in enumerate(("done", "fail")):
        yield _one("sidekiq_redis_requests_total", [*labels, status], row[layout.CALLS + at])
    yield _one("sidekiq_jobs_retried_total", labels, row[layout.RETRIED])
    yield _one("sidekiq_jobs_interrupted_total", labels, row[layout.INTERRUPTED])
    values = dict(zip(catalogue.BASE, labels, strict=True))
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
        yield _one(f"gitlab_sli_sidekiq_{name}", [values[label] for label in catalogue.SLI], value)


def _sums(labels: list[str], row: Sequence[float]) -> Iterator[MetricSample]:
    """Yield the sums and counts of all runs, failed ones included (GitLab's without histograms)."""
    redis = "sidekiq_redis_requests_duration_seconds_sum"
    yield _one("sidekiq_jobs_completion_count", labels, row[layout.COUNT] + row[layout.FAILED])
    for name, of_done, of_failed in (
        ("sidekiq_jobs_completion_seconds_sum", layout.SECONDS, layout.FAILED + layout.SECONDS),
        ("sidekiq_jobs_cpu_seconds_sum", layout.CPU, layout.CPU + layout.CPU_NUMBERS),
        ("sidekiq_jobs_db_seconds_sum", layout.DB, layout.DB + layout.DB_NUMBERS),
        (redis, layout.REDIS, layout.REDIS + layout.REDIS_NUMBERS),
    ):
        yield _one(name, labels, row[of_done] + row[of_failed])


def _histograms(labels: list[str], row: Sequence[float]) -> Iterator[MetricSample]:
    yield _one("sidekiq_jobs_failed_total", labels, row[layout.FAILED])
    for failed, status in enumerate(("done", "fail")):
        at = failed * layout.FAILED
        runs, with_status = row[at + layout.COUNT], [*labels, status]
        over = row[at + layout.OVER : at + layout.FAILED]
        name = "sidekiq_jobs_completion_seconds"
        yield from _histogram(name, with_status, _with_rest(runs, over), row[at + layout.SECONDS])
        for name, first, numbers in (
            ("sidekiq_jobs_cpu_seconds", layout.CPU, layout.CPU_NUMBERS),
            ("sidekiq_jobs_db_seconds", layout.DB, layout.DB_NUMBERS),
            ("sidekiq_redis_requests_duration_seconds", layout.REDIS, layout.REDIS_NUMBERS),
        ):
            at = first + failed * numbers
            yield from _histogram(name, with_status, _with_rest(runs, row[at + 1 : at + numbers]), row[at])
    timed = row[layout.COUNT] + row[layout.FAILED] - row[layout.UNTIMED]
    waited = row[layout.WAITED_OVER : layout.CPU]
    yield from _histogram("sidekiq_jobs_queue_duration_seconds", labels, _with_rest(timed, waited), row[layout.WAITED])


def _with_rest(total: float, over: Sequence[float]) -> list[float]:
    """Return the counts of all buckets; the first one has all values that are in no other."""
    return [total - sum(over), *over]
