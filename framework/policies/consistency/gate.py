"""At the start of a run: a replica that shows what the push saw, or the primary (GitLab's load balancing of jobs)."""

import random
import time
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, TypeAlias

from framework.declare.declaration import Declaration
from framework.errors import JobReplicaNotUpToDate
from framework.execute.gates import Entry
from framework.finish.outcome import Failed, Outcome
from framework.policies.consistency import reads
from framework.policies.consistency.databases import Databases, Levels, most_patient
from framework.policies.consistency.positions import wanted
from framework.policies.consistency.servers import Server
from framework.telemetry import logs
from framework.telemetry.counters import counters
from framework.telemetry.repeated import Repeated
from framework.types import Payload
from framework.wire.job import STRATEGY

Strategy: TypeAlias = Literal["primary", "primary_no_wal", "replica", "replica_retried", "retry"]

_WAITS = {"high": (5, 0.1)}
_USUAL_WAIT = (3, 0.5)
"""How often to look again for a replica that has come so far, and after how many seconds each time."""


class Choice(NamedTuple):
    """What was decided about a job, and the replica of each database that it reads from."""

    strategy: Strategy
    replicas: Mapping[str, Server] = {}


class Sight(NamedTuple):
    """Of each database: a replica that has caught up, or those that are on their way, or that none says where it is."""

    caught_up: dict[str, Server]
    behind: dict[str, list[Server]]
    unknown: set[str]


class ConsistencyGate:
    """Chooses what each job of a replica-reading class reads from. Never fails a job: in any doubt it reads from the primary."""

    def __init__(self, databases: Databases, sleep: Callable[[float], None] = time.sleep) -> None:
        self._databases = databases
        self._sleep = sleep
        self._repeated = Repeated(60.0)
        self._stuck: dict[Server, int] = {}
        """Where replicas stood after a job had waited for them in vain: until they move on, no other job does."""

    def concerns(self, declaration: Declaration) -> bool:
        """See ``Gate``: classes that may read from a replica of some configured database."""
        return bool(self._databases.levels(declaration))

    def admit(self, entry: Entry) -> Outcome | None:
        """See ``Gate``: the job's context knows its replicas; a job that is to come back for one fails, once."""
        declaration, payload = entry.declaration, entry.payload
        levels = self._databases.levels(declaration)
        try:
            choice = self._choose(declaration, payload, levels)
        except Exception as error:  # noqa: BLE001 - positions come from the wire, and servers may do anything
            choice = Choice("primary")
            self._tell(declaration, error)
        payload[STRATEGY] = choice.strategy
        counters.add(
            "sidekiq_load_balancing_count",
            declaration.wire_name,
            load_balancing_strategy=choice.strategy,
            data_consistency=most_patient(levels),
        )
        if choice.strategy == "retry":
            return Failed(JobReplicaNotUpToDate(declaration.wire_name))
        reads.enter(choice.replicas)  # without any, too: it may be asked again, and think better of it
        return None

    def _choose(self, declaration: Declaration, payload: Payload, levels: Levels) -> Choice:
        positions = wanted(payload, levels)
        if not positions:
            return Choice("primary_no_wal")
        retried = "retry_count" in payload
        sight = self._awaited(positions, *_WAITS.get(declaration.urgency, _USUAL_WAIT))
        if len(sight.caught_up) == len(positions):
            delayed = any(levels[name] == "delayed" for name in positions)
            return Choice("replica_retried" if delayed and retried else "replica", sight.caught_up)
        waits = any(levels[name] == "delayed" for name in sight.behind) and not sight.unknown
        return Choice("retry" if waits and not retried and _may_retry(payload) else "primary")

    def _awaited(self, positions: Mapping[str, int], times: int, pause_s: float) -> "Sight":
        """Look for replicas that have come so far, again while waiting may help."""
        sight = self._look(positions)
        for _ in range(times):
            late = [replica for replicas in sight.behind.values() for replica in replicas]
            if not late or sight.unknown or all(self._stuck.get(replica) == replica.seen for replica in late):
                return sight
            self._sleep(pause_s)
            sight = self._look(positions)
        self._stuck.update({replica: replica.seen for replicas in sight.behind.values() for replica in replicas})
        return sight

    def _look(self, positions: Mapping[str, int]) -> "Sight":
        sight = Sight({}, {}, set())
        for name, position in positions.items():
            replicas = self._databases[name].replicas
            late: list[Server] = []
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

    def _tell(self, declaration: Declaration, error: Exception) -> None:
        if count := self._repeated.due(declaration.wire_name, time.monotonic()):
            logs.logger(**{"class": declaration.wire_name}).warning(
                "no replica could be chosen for jobs of a class; they read from the primary",
                event_name="consistency.undecided",
                count=count,
                error=error,
            )


def _may_retry(payload: Payload) -> bool:
    """Whether a failure brings the job back: what ``set(retry=False)`` pushed, a failure would lose."""
    retry = payload.get("retry")
    return retry is True or (type(retry) is int and retry > 0)
