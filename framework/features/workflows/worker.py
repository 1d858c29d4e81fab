"""Let a worker process know the class of the jobs that start steps: its application may import no workflow."""

from framework.features.workflows import step_worker  # noqa: F401 - the import registers the class
from framework.process.worker_parts import ProcessContext, WorkerPart


def worker_part(process: ProcessContext) -> WorkerPart:
    """Return the part of workflows in a worker process."""
    del process
    return WorkerPart()
