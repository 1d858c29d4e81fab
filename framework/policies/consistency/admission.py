"""At the start of a run: a replica that shows what the push saw, or the primary (GitLab's load balancing of jobs)."""

import random
import time
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, TypeAlias

from framework.declare.declaration import Declaration
from framework.errors import JobReplicaNotUpToDate
from framework.execute.admission import AdmissionRequest
from framework.finish.outcome import Failed, RunOutcome
from framework.policies.consistency import replica_context
from framework.policies.consistency.databases import ConsistencyLevels, Databases, weakest_level
from framework.policies.consistency.positions import required_positions
from framework.policies.consistency.servers import DatabaseServer
from framework.telemetry.counters import counters
from framework.telemetry.rate_limit import LogRateLimit
from framework.types import Payload
from framework.wire.job import LOAD_BALANCING_STRATEGY

ReadStrategy: TypeAlias = Literal["primary", "primary_no_wal", "replica", "replica_retried", "retry"]

_POLLS_BY_URGENCY = {"high": (5, 0.1)}
_DEFAULT_POLLS = (3, 0.5)
"""How often to look again for a replica that has come so far, and after how many seconds each time."""


class ReplicaChoice(NamedTuple):
    """What was decided about a job, and the replica of each database that it reads from."""

    strategy: ReadStrategy
    replicas: Mapping[str, DatabaseServer] = {}


class ReplicaStatus(NamedTuple):
    """Of each database: a replica that has caught up, or those that are on their way, or that none says where it is."""

    caught_up: dict[str, DatabaseServer]
    behind: dict[str, list[DatabaseServer]]
    unknown: set[str]


# Decision 111: a job reads from the primary in case of doubt.
class ConsistencyPolicy:
    """Chooses what each job of a replica-reading class reads from. Never fails a job: in any doubt it reads from the primary."""

    def __init__(self, databases: Databases, sleep: Callable[[float], None] = time.sleep) -> None:
        self._databases = databases
        self._sleep = sleep
        self._log_limit = LogRateLimit(60.0)
        self._stalled_at: dict[DatabaseServer, int] = {}
        """Where replicas stood after a job had waited for them in vain: until they move on, no other job does."""

    def applies_to(self, declaration: Declaration) -> bool:
        """See ``Gate``: classes that may read from a replica of some configured database."""
        return bool(self._databases.levels(declaration))

    def admit(self, request: AdmissionRequest) -> RunOutcome | None:
        """See ``Gate``: the job's context knows its replicas; a job that is to come back for one fails, once."""
        declaration, payload = request.declaration, request.payload
        levels = self._databases.levels(declaration)
        try:
            choice = self._choose(declaration, payload, levels)
        except Exception as error:  # noqa: BLE001 - positions come from the wire, and servers may do anything
            choice = ReplicaChoice("primary")
            self._warn(declaration, error)
        payload[LOAD_BALANCING_STRATEGY] = choice.strategy
        counters.add(
            "sidekiq_load_balancing_count",
            declaration.wire_name,
            load_balancing_strategy=choice.strategy,
            data_consistency=weakest_level(levels),
        )
        if choice.strategy == "retry":
            return Failed(JobReplicaNotUpToDate(declaration.wire_name))
        replica_context.use(choice.replicas)  # without any, too: it may be asked again, and think better of it
        return None

    def _choose(self, declaration: Declaration, payload: Payload, levels: ConsistencyLevels) -> ReplicaChoice:
        positions = required_positions(payload, levels)
        if not positions:
            return ReplicaChoice("primary_no_wal")
        retried = "retry_count" in payload
        sight = self._wait_for_replicas(positions, *_POLLS_BY_URGENCY.get(declaration.urgency, _DEFAULT_POLLS))
        if len(sight.caught_up) == len(positions):
            delayed = any(levels[name] == "delayed" for name in positions)
            return ReplicaChoice("replica_retried" if delayed and retried else "replica", sight.caught_up)
        waits = any(levels[name] == "delayed" for name in sight.behind) and not sight.unknown
        return ReplicaChoice("retry" if waits and not retried and _can_retry(payload) else "primary")

    def _wait_for_replicas(self, positions: Mapping[str, int], times: int, pause_s: float) -> "ReplicaStatus":
        """Look for replicas that have come so far, again while waiting may help."""
        sight = self._check_replicas(positions)
        for _ in range(times):
            late = [replica for replicas in sight.behind.values() for replica in replicas]
            if (
                not late
                or sight.unknown
                or all(self._stalled_at.get(replica) == replica.last_position for replica in late)
            ):
                return sight
            self._sleep(pause_s)
            sight = self._check_replicas(positions)
        self._stalled_at.update(
            {replica: replica.last_position for replicas in sight.behind.values() for replica in replicas}
        )
        return sight

    def _check_replicas(self, positions: Mapping[str, int]) -> "ReplicaStatus":
        sight = ReplicaStatus({}, {}, set())
        for name, position in positions.items():
            replicas = self._databases[name].replicas
            late: list[DatabaseServer] = []
            for replica in random.sample(replicas, len(replicas)):
                reached = replica.has_reached(position)
                if reached:
                    sight.caught_up[name] = replica
                    break
                if reached is False:
                    late.append(replica)
            else:
                if late:
                    sight.behind[name] = late
                else:
                    sight.unknown.add(name)
        return sight

    def _warn(self, declaration: Declaration, error: Exception) -> None:
        self._log_limit.warning(
            declaration.wire_name,
            "no replica could be chosen for jobs of a class; they read from the primary",
            "consistency.choice_failed",
            error=error,
            **{"class": declaration.wire_name},
        )


def _can_retry(payload: Payload) -> bool:
    """Whether a failure brings the job back: what ``set(retry=False)`` pushed, a failure would lose."""
    retry = payload.get("retry")
    return retry is True or (type(retry) is int and retry > 0)
