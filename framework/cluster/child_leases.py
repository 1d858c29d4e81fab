"""Renew the leases of a supervisor's live children on one shard, and remove those of the dead (decision 3).

A child whose job holds the interpreter (C code that keeps the GIL) works but sends no heartbeat, so the supervisor renews its
lease up to a limit. Beyond the limit the child counts as stuck: the supervisor kills it, and its jobs are recovered. A child
that was stopped (SIGSTOP, a debugger) does not work: its lease expires, and other processes recover its jobs.
"""

import contextlib
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import redis
from redis.exceptions import RedisError

from framework.cluster.supervisor import Supervisor
from framework.process.events import ProcessEvents
from framework.process.heartbeat import PeriodicTask
from framework.process.signals import SWEEP
from framework.recover.failure_detector import FailureDetector
from framework.recover.reaper import mark_dead
from framework.store.script import RENEW_CHILDREN
from framework.timings import STANDARD, Timings
from framework.wire import keys

_FINAL_STEP_S = 2.0


# Decision 3: the supervisor manages leases, and workers take jobs back.
class ChildLeases:
    """The leases of the children of one shard.

    The class has its own thread and connection, so that a shard that hangs delays neither other shards nor restarts.
    """

    def __init__(
        self,
        shard: str,
        client: "redis.Redis",
        events: ProcessEvents,
        timings: Timings = STANDARD,
    ) -> None:
        self._shard = shard
        self._client = client
        self._timings = timings
        self._failure_detector = FailureDetector(timings.lease_s, timings.child_renewal_period_s)
        self._group: Supervisor | None = None
        self._dead: deque[str] = deque()
        self._redis_was_away = False
        self._task = PeriodicTask(
            f"leases of {shard}", self.step, timings.child_renewal_period_s, events, client=client
        )

    def start(self, group: Supervisor) -> None:
        """Start to renew the leases of the group's children."""
        self._group = group
        self._task.start()

    def mark_dead(self, identity: str) -> None:
        """Queue the removal of a dead child's lease, and make the other children of the shard sweep afterwards."""
        self._dead.append(identity)
        self._task.run_now()

    def stop(self) -> None:
        """Stop, after the removal of the last dead children's leases if Redis answers."""
        self._task.stop(_FINAL_STEP_S)
        with contextlib.suppress(RedisError, OSError):
            self._mark_all_dead()

    def step(self) -> None:
        """Remove the leases of dead children, then renew the late ones of live children. Raises redis errors."""
        was_away, self._redis_was_away = self._redis_was_away, True
        if self._mark_all_dead() and self._group is not None:
            self._group.forward(SWEEP, self._shard)
        self._renew(revive=was_away)
        self._redis_was_away = False

    def _mark_all_dead(self) -> int:
        marked = 0
        while self._dead:
            # Removed from the list only after Redis has answered, so that a failed step tries it again.
            mark_dead(self._client, self._dead[0])
            self._dead.popleft()
            marked += 1
        return marked

    def _renew(self, *, revive: bool) -> None:
        if self._group is None:
            return
        living = [identity for identity, pid in self._group.live_pids(self._shard).items() if can_run(pid)]
        if not living:
            return
        now, *silences = self._request_renewal(living, revive=revive)
        self._failure_detector.record_heartbeat(float(now), lease_held=True)
        # When the supervisor was frozen, its children were too, so only the time that it has observed counts.
        watched_s = int(float(now) - self._failure_detector.steady_since)
        for identity, silent_s in zip(living, silences, strict=True):
            if min(silent_s, watched_s) >= self._timings.silence_limit_s:
                self._group.kill_stuck(identity, min(silent_s, watched_s))

    def _request_renewal(self, identities: list[str], *, revive: bool) -> list[Any]:
        reply: Any = RENEW_CHILDREN(
            self._client,
            [keys.REGISTRY, *map(keys.lease, identities)],
            [
                self._timings.lease_ms,
                self._timings.late_heartbeat_s,
                self._timings.silence_limit_s,
                f"{self._failure_detector.steady_since:.6f}",
                int(revive),
                *identities,
            ],
        )
        return list(reply)


class GroupLeases:
    """The leases of all children of a group: per shard, ``ChildLeases`` and the events that its thread reports to."""

    def __init__(self, by_shard: Mapping[str, tuple[ChildLeases, ProcessEvents]]) -> None:
        self._by_shard = by_shard

    @property
    def failed(self) -> bool:
        """Whether the thread of a shard has ended by an error."""
        return any(events.died.is_set() for _, events in self._by_shard.values())

    def start(self, group: Supervisor) -> None:
        for leases, _ in self._by_shard.values():
            leases.start(group)

    def mark_dead(self, shard: str, identity: str) -> None:
        self._by_shard[shard][0].mark_dead(identity)

    def stop(self) -> None:
        for leases, _ in self._by_shard.values():
            leases.stop()


def can_run(pid: int) -> bool:
    """Return whether a process has neither ended nor been stopped; true where the system does not report it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("T", "t", "Z", "X")
    except (OSError, IndexError):
        return True
