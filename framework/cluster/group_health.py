"""Answer the health checks of a group: whether it needs a restart (liveness), and whether each queue is served (readiness).

A live process is not enough: a child serves when Redis accepts its heartbeats and answers its fetches. The answers come from
memory, so a request sends no command to Redis.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from framework.cluster.child import Child
from framework.cluster.supervisor import Supervisor
from framework.process.health_server import HealthAnswer, json_answer
from framework.timings import STANDARD, Timings


def serves(child: Child, timings: Timings) -> bool:
    """Return whether a child fetches jobs."""
    return child.process is not None and child.shared_state.fetches(timings)


class GroupHealth:
    """Compute the answers. The supervisor's loop calls ``note_loop`` in each iteration."""

    def __init__(self, group: Supervisor, timings: Timings = STANDARD) -> None:
        self._group = group
        self._timings = timings
        self._loop_at = time.monotonic()

    @property
    def answers(self) -> Mapping[str, Callable[[], HealthAnswer]]:
        """The answers by path."""
        return {"/liveness": self.liveness, "/readiness": self.readiness}

    def note_loop(self) -> None:
        """Record an iteration of the supervisor's loop."""
        self._loop_at = time.monotonic()

    def liveness(self) -> HealthAnswer:
        """Return whether a restart is not needed: the loop and at least half of the running children respond."""
        limits, loop_age_s = self._timings, time.monotonic() - self._loop_at
        running = [child for child in self._group.all if child.pid]
        stuck = [child.name for child in running if _silent_s(child) > limits.stuck_s]
        reasons: list[str] = []
        if loop_age_s > limits.loop_limit_s:
            reasons.append(f"the supervisor's loop has not run for {loop_age_s:.0f} s")
        if 2 * len(stuck) > len(running):
            reasons.append(f"stuck for more than {limits.stuck_s:g} s: {', '.join(stuck)}")
        return self._answer(reasons)

    def readiness(self) -> HealthAnswer:
        """Return whether each group of queues has a child that fetches jobs."""
        reasons = [f"no process fetches the jobs of {name}" for name in self.unserved_groups()]
        if self._group.stopping:
            reasons.insert(0, "stopping")
        return self._answer(reasons)

    def unserved_groups(self) -> list[str]:
        """Return the groups of queues that no child serves."""
        served: dict[str, bool] = {}
        for child in self._group.children:
            name = f"{child.spec.shard}: {','.join(child.spec.queues)}"
            served[name] = served.get(name, False) or serves(child, self._timings)
        return [name for name, is_served in served.items() if not is_served]

    def _answer(self, reasons: list[str]) -> HealthAnswer:
        children = [_child_status(child, self._timings) for child in self._group.all]
        age_s = round(time.monotonic() - self._loop_at, 3)
        status = "unavailable" if reasons else "ok"
        shown = {"status": status, "reasons": reasons, "loop_age_s": age_s, "children": children}
        return json_answer(shown, well=not reasons)


def _silent_s(child: Child) -> float:
    return time.monotonic() - max(child.shared_state.main_thread_at, child.started_at)


def _child_status(child: Child, timings: Timings) -> dict[str, Any]:
    now, state, runs = time.monotonic(), child.shared_state, bool(child.pid)
    return {
        "name": child.name,
        "pid": child.pid or None,
        "shard": child.spec.shard,
        "queues": list(child.spec.queues),
        "state": state.state.name.lower() if runs else "dead",
        "busy": state.busy if runs else 0,
        "fetches": serves(child, timings),
        "heartbeat_age_s": round(now - state.heartbeat_at, 3) if runs and state.heartbeat_at else None,
        "fetch_age_s": round(now - state.fetched_at, 3) if runs and state.fetched_at else None,
        "restarts": child.restarts,
    }
