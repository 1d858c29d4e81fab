"""Store the cursors of the iterating jobs of a worker process."""

from framework.features.iteration.settings import IterationSettings
from framework.features.iteration.store import Iterations
from framework.process.worker_parts import ProcessContext, WorkerPart


def worker_part(process: ProcessContext) -> WorkerPart:
    most_s = IterationSettings.of(process.settings).max_iteration_runtime

    def cursors(owner: str) -> Iterations:
        return Iterations(process.shard.client, owner, process.runs, most_s, process.protection.state)

    return WorkerPart(cursors=cursors)
