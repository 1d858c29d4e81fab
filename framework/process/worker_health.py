"""Answer the health checks of one worker process, from memory: a request sends no command to Redis.

Liveness asks for a restart when the main thread has stopped. Readiness says whether the process fetches jobs.
"""

import os
import threading
import time
from collections.abc import Mapping
from typing import Any

from framework.process.components import ProcessComponents
from framework.process.health_server import Answer, HealthAnswer, HealthServer, Served, feature_answers, json_answer
from framework.process.record import ProcessRecord
from framework.process.shared_state import ProcessState, SharedState
from framework.process.worker_options import HealthAddress
from framework.timings import STANDARD, Timings

_REASONS = {
    ProcessState.STARTING: "the process starts: Redis has not answered its first fetch",
    ProcessState.QUIET: "the process is quiet: it fetches no new jobs",
    ProcessState.DRAINING: "the process drains: it fetches no new jobs",
    ProcessState.STOPPING: "stopping",
    ProcessState.READY: "Redis does not answer the fetches or the heartbeats",
}


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
    def answers(self) -> Mapping[str, Answer]:
        return {"/liveness": self.liveness, "/readiness": self.readiness}

    def liveness(self, _accept: str = "") -> HealthAnswer:
        """Return whether a restart is not needed: every thread of the framework lives, and the main thread has run lately, or the
        process stops.
        """
        silent_s = time.monotonic() - max(self._state.main_thread_at, self._began_at)
        stuck = silent_s > self._timings.stuck_s and self._state.state is not ProcessState.STOPPING
        return self._answer([*self._dead(), *([f"the main thread has not run for {silent_s:.0f} s"] if stuck else [])])

    def readiness(self, _accept: str = "") -> HealthAnswer:
        fetches = self._state.fetches(self._timings)
        return self._answer([*self._dead(), *([] if fetches else [_REASONS[self._state.state]])])

    def _dead(self) -> list[str]:
        return (
            ["a thread of the framework died (component.died in the log): the process ends"]
            if self._died.is_set()
            else []
        )

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
    served = Served(components.process.settings)
    HealthServer({**checks.answers, **feature_answers(served)}, address).start()
