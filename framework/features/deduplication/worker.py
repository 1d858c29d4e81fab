"""Release or renew the locks of the jobs of a worker process when they start."""

from framework.execute.admission import StagedPolicy
from framework.features.consistency.worker import CONSISTENCY_POLICY
from framework.features.deduplication.admission import DedupLock, DedupPositions
from framework.process.worker_parts import ProcessContext, WorkerPart


def worker_part(process: ProcessContext) -> WorkerPart:
    """Return the part of locks in a worker process.

    The replica check may delay the job once, until a replica shows the WAL positions of the job and of its dropped duplicates. So the
    duplicates' positions are read before it, and the lock, which it must not release, is acquired after it.
    """
    client, consistency = process.shard.client, process.service(CONSISTENCY_POLICY)
    policies = (
        StagedPolicy("check", DedupPositions(client, consistency)),
        StagedPolicy("lock", DedupLock(client, consistency, protection=process.protection)),
    )
    return WorkerPart(policies)
