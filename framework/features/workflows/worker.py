"""Let a worker process know the class of the jobs that start steps: its application may import no workflow."""

from framework.features.workflows.step_worker import WorkflowStepWorker
from framework.process.worker_parts import ProcessContext, WorkerPart

__all__ = ["WorkflowStepWorker", "worker_part"]


def worker_part(process: ProcessContext) -> WorkerPart:
    """Return the part of workflows in a worker process. The import has registered the class."""
    del process
    return WorkerPart()
