"""Choose what a job reads from: a replica that shows what the push saw, or the primary (GitLab's load balancing of jobs)."""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, TypeAlias

from framework.declare.declaration import Declaration
from framework.errors import JobReplicaNotUpToDate
from framework.execute.admission import AdmissionRequest, StagedPolicy
from framework.feature import Late
from framework.features.consistency import replica_context
from framework.features.consistency.databases import (
    ConsistencyLevels,
    Databases,
    DatabaseServer,
    databases_of,
    weakest_level,
)
from framework.features.consistency.push import required_positions
from framework.finish.outcome import Failed, RunOutcome
from framework.process.worker_parts import ProcessContext, WorkerPart
from framework.telemetry.job_events import StreamEvent, job_events
from framework.telemetry.logs import LogRateLimit
from framework.types import Payload
from framework.wire.job import LOAD_BALANCING_STRATEGY

ReadStrategy: TypeAlias = Literal["primary", "primary_no_wal", "replica", "replica_retried", "retry"]

_POLLS_BY_URGENCY = {"high": (5, 0.1)}
_DEFAULT_POLLS = (3, 0.5)
"""How often to check again for a replica that has caught up, and the seconds between checks."""


@dataclass(frozen=True, slots=True)
class Balanced(StreamEvent):
    """A server was chosen for the reads of a job."""

    counter: ClassVar[str] = "sidekiq_load_balancing_count"
    load_balancing_strategy: str = ""
    data_consistency: str = ""


class ReplicaChoice(NamedTuple):
    """The decision about a job, and the replica of each database that it reads from."""

    strategy: ReadStrategy
    replicas: Mapping[str, DatabaseServer] = {}


class ReplicaStatus(NamedTuple):
    """The state per database: a replica that has caught up, replicas that are behind, or no known position."""

    caught_up: dict[str, DatabaseServer]
    behind: dict[str, list[DatabaseServer]]
    unknown: set[str]


# A job reads from the primary in case of doubt: that server always has the current data.
class ConsistencyPolicy:
    """Choose the server that each job of a class with replicas reads from. An error of this policy fails no job: the job reads from
    the primary.
    """

    def __init__(self, databases: Databases, *, wait_for_replicas: bool = True) -> None:
        self._databases = databases
        self._wait = wait_for_replicas
        self._log_limit = LogRateLimit(60.0)
        self._stalled_at: dict[DatabaseServer, int] = {}
        """Positions of replicas that did not advance while a job waited: until they do, no other job waits for them."""

    def applies_to(self, declaration: Declaration) -> bool:
        """See ``AdmissionPolicy``: it applies to classes that may read from a replica of a configured database."""
        return bool(self._databases.levels(declaration))

    def admit(self, request: AdmissionRequest) -> RunOutcome | None:
        """See ``AdmissionPolicy``: the job's context gets its replicas. A job that is to wait for a replica fails, once."""
        declaration, payload = request.declaration, request.payload
        levels = self._databases.levels(declaration)
        try:
            choice = self._choose(declaration, payload, levels)
        except Exception as error:  # noqa: BLE001 - positions come from the wire, and servers may do anything
            choice = ReplicaChoice("primary")
            self._warn(declaration, error)
        payload[LOAD_BALANCING_STRATEGY] = choice.strategy
        job_events.emit(
            Balanced(
                declaration.wire_name,
                load_balancing_strategy=choice.strategy,
                data_consistency=weakest_level(levels),
            )
        )
        if choice.strategy == "retry":
            return Failed(JobReplicaNotUpToDate(declaration.wire_name))
        # Set even without replicas: a second call must undo the choice of the first.
        replica_context.use(choice.replicas)
        return None

    def _choose(self, declaration: Declaration, payload: Payload, levels: ConsistencyLevels) -> ReplicaChoice:
        positions = required_positions(payload, levels)
        if not positions:
            return ReplicaChoice("primary_no_wal")
        retried = "retry_count" in payload
        status = self._wait_for_replicas(positions, *_POLLS_BY_URGENCY.get(declaration.urgency, _DEFAULT_POLLS))
        if len(status.caught_up) == len(positions):
            delayed = any(levels[name] == "delayed" for name in positions)
            return ReplicaChoice("replica_retried" if delayed and retried else "replica", status.caught_up)
        may_catch_up = any(levels[name] == "delayed" for name in status.behind) and not status.unknown
        return ReplicaChoice("retry" if may_catch_up and not retried and _can_retry(payload) else "primary")

    def _wait_for_replicas(self, positions: Mapping[str, int], times: int, pause_s: float) -> "ReplicaStatus":
        """Check the replicas again while waiting may help."""
        status = self._check_replicas(positions)
        for _ in range(times if self._wait else 0):
            behind = [replica for replicas in status.behind.values() for replica in replicas]
            if (
                not behind
                or status.unknown
                or all(self._stalled_at.get(replica) == replica.last_position for replica in behind)
            ):
                return status
            time.sleep(pause_s)
            status = self._check_replicas(positions)
        self._stalled_at.update(
            {replica: replica.last_position for replicas in status.behind.values() for replica in replicas}
        )
        return status

    def _check_replicas(self, positions: Mapping[str, int]) -> "ReplicaStatus":
        status = ReplicaStatus({}, {}, set())
        for name, position in positions.items():
            replicas = self._databases[name].replicas
            behind: list[DatabaseServer] = []
            for replica in random.sample(replicas, len(replicas)):
                reached = replica.has_reached(position)
                if reached:
                    status.caught_up[name] = replica
                    break
                if reached is False:
                    behind.append(replica)
            else:
                if behind:
                    status.behind[name] = behind
                else:
                    status.unknown.add(name)
        return status

    def _warn(self, declaration: Declaration, error: Exception) -> None:
        self._log_limit.warning(
            declaration.wire_name,
            f"no replica could be chosen for jobs of {declaration.wire_name}; they read from the primary. Look at the error",
            "consistency.choice_failed",
            error=error,
            **{"class": declaration.wire_name},
        )


def _can_retry(payload: Payload) -> bool:
    """Return whether a failure brings the job back: a job pushed with ``set(retry=False)`` would be lost."""
    retry = payload.get("retry")
    return retry is True or (type(retry) is int and retry > 0)


def open_policy(process: ProcessContext) -> ConsistencyPolicy:
    """Return the policy. Opens no socket."""
    return ConsistencyPolicy(databases_of(process.settings))


CONSISTENCY_POLICY: "Late[Callable[[ProcessContext], ConsistencyPolicy]]" = Late(
    "framework.features.consistency.admission:open_policy"
)


def worker_part(process: ProcessContext) -> WorkerPart:
    policies = (StagedPolicy("check", process.service(CONSISTENCY_POLICY)),)
    return WorkerPart(policies)
