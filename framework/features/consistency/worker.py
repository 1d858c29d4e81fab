"""Choose the replicas that the jobs of a worker process read from."""

from collections.abc import Callable

from framework.execute.admission import StagedPolicy
from framework.feature import Late
from framework.features.consistency.admission import ConsistencyPolicy
from framework.features.consistency.databases import databases_of
from framework.process.worker_parts import ProcessContext, WorkerPart


def open_policy(process: ProcessContext) -> ConsistencyPolicy:
    """Return the policy. Opens no socket."""
    return ConsistencyPolicy(databases_of(process.settings))


CONSISTENCY_POLICY: "Late[Callable[[ProcessContext], ConsistencyPolicy]]" = Late(
    "framework.features.consistency.worker:open_policy"
)


def worker_part(process: ProcessContext) -> WorkerPart:
    """Return the part of replicas in a worker process."""
    policies = (StagedPolicy("check", process.service(CONSISTENCY_POLICY)),)
    return WorkerPart(policies)
