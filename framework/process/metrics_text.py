"""Show the counts of one process in the text format of Prometheus, with GitLab's names of metrics and labels."""

from collections.abc import Iterator

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.execute.stats import RunningJobs
from framework.telemetry.counters import series_name

COMPLETIONS = "sidekiq_jobs_completion_count"
SECONDS = "sidekiq_jobs_completion_seconds_sum"


def metrics_text(shard: str, slots: int, runs: RunningJobs) -> str:
    """Return the metrics; the series of a class begin with its first run in this process."""
    gauges = {"sidekiq_concurrency": slots, "sidekiq_running_jobs": len(runs.running())}
    return "".join(f"{line}\n" for line in (*_gauges(shard, gauges), *_counters(shard, runs)))


def _gauges(shard: str, values: dict[str, int]) -> Iterator[str]:
    for name, value in values.items():
        yield f"# TYPE {name} gauge"
        yield f"{series_name(name, {'destination_shard_redis': shard})} {value}"


def _counters(shard: str, runs: RunningJobs) -> Iterator[str]:
    completions, seconds = [f"# TYPE {COMPLETIONS} counter"], [f"# TYPE {SECONDS} counter"]
    for name, metrics in sorted(runs.class_metrics().items()):
        labels = _labels(name, shard)
        counts = {"done": metrics.processed - metrics.failed, "fail": metrics.failed}
        completions += [
            f"{series_name(COMPLETIONS, {**labels, 'job_status': status})} {count}" for status, count in counts.items()
        ]
        # A failed run says nothing about the duration of its class.
        seconds.append(f"{series_name(SECONDS, {**labels, 'job_status': 'done'})} {metrics.seconds:.6f}")
    yield from completions
    yield from seconds


def _labels(name: str, shard: str) -> dict[str, str]:
    worker = registry.find(name)
    labels = {"worker": name, "destination_shard_redis": shard}
    if worker is None:
        return labels
    declaration: Declaration = worker.declaration()
    return {
        **labels,
        "urgency": declaration.urgency,
        "feature_category": declaration.feature_category,
        "external_dependencies": "yes" if declaration.has_external_dependencies else "no",
        "boundary": "" if declaration.resource_boundary == "unknown" else declaration.resource_boundary,
    }
