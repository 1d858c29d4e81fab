"""Answer the health checks of one worker process, from memory: a request sends no command to Redis.

Liveness asks for a restart when the main thread has stopped. Readiness says whether the process fetches jobs.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.execute.stats import RunningJobs
from framework.process.components import ProcessComponents
from framework.process.health_server import HealthAnswer, HealthServer, json_answer
from framework.process.record import ProcessRecord
from framework.process.shared_state import ProcessState, SharedState
from framework.process.worker_options import HealthAddress
from framework.telemetry.counters import series_name
from framework.timings import STANDARD, Timings

_REASONS = {
    ProcessState.STARTING: "the process starts: Redis has not answered its first fetch",
    ProcessState.QUIET: "the process is quiet: it fetches no new jobs",
    ProcessState.DRAINING: "the process drains: it fetches no new jobs",
    ProcessState.STOPPING: "stopping",
    ProcessState.READY: "Redis does not answer the fetches or the heartbeats",
}
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

COMPLETIONS = "sidekiq_jobs_completion_count"

SECONDS = "sidekiq_jobs_completion_seconds_sum"


class WorkerHealth:
    """Compute the answers for one process of ``shard``, from its record and from the state that it also shows to a supervisor."""

    def __init__(
        self,
        shard: str,
        record: ProcessRecord,
        state: SharedState,
        timings: Timings = STANDARD,
        *,
        died: threading.Event | None = None,
    ) -> None:
        self._shard = shard
        self._died = died or threading.Event()
        self._record = record
        self._state = state
        self._timings = timings
        self._began_at = time.monotonic()

    @property
    def answers(self) -> Mapping[str, Callable[[], HealthAnswer]]:
        return {"/liveness": self.liveness, "/readiness": self.readiness, "/metrics": self.metrics}

    def liveness(self) -> HealthAnswer:
        """Return whether a restart is not needed: every thread of the framework lives, and the main thread has run lately, or the
        process stops.
        """
        silent_s = time.monotonic() - max(self._state.main_thread_at, self._began_at)
        stuck = silent_s > self._timings.stuck_s and self._state.state is not ProcessState.STOPPING
        return self._answer([*self._dead(), *([f"the main thread has not run for {silent_s:.0f} s"] if stuck else [])])

    def readiness(self) -> HealthAnswer:
        fetches = self._state.fetches(self._timings)
        return self._answer([*self._dead(), *([] if fetches else [_REASONS[self._state.state]])])

    def _dead(self) -> list[str]:
        return (
            ["a thread of the framework died (component.died in the log): the process ends"]
            if self._died.is_set()
            else []
        )

    def metrics(self) -> HealthAnswer:
        """Return the counts since the process started, in the text format of Prometheus."""
        text = metrics_text(self._shard, self._record.slots, self._record.runs)
        return HealthAnswer(well=True, body=text.encode(), content_type=METRICS_TYPE)

    def _answer(self, reasons: list[str]) -> HealthAnswer:
        now, state = time.monotonic(), self._state
        shown: dict[str, Any] = {
            "status": "unavailable" if reasons else "ok",
            "reasons": reasons,
            "pid": os.getpid(),
            "shard": self._shard,
            "queues": self._record.queues,
            "state": state.state.name.lower(),
            "busy": len(self._record.runs.running()),
            "fetches": state.fetches(self._timings),
            "heartbeat_age_s": round(now - state.heartbeat_at, 3) if state.heartbeat_at else None,
            "fetch_age_s": round(now - state.fetched_at, 3) if state.fetched_at else None,
        }
        return json_answer(shown, well=not reasons)


def serve_health(components: ProcessComponents, shard: str, address: HealthAddress) -> None:
    """Answer health checks from now on. Raises ConfigurationError when the server cannot listen."""
    checks = WorkerHealth(
        shard,
        components.record,
        components.shared_state,
        components.timings,
        died=components.events.died,
    )
    HealthServer(checks.answers, address).start()


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
