"""Run the isolated jobs of a worker process."""

from framework.features.isolation.runs import IsolatedRuns
from framework.features.profiling.worker import PROFILES
from framework.process.worker_parts import ProcessContext, WorkerPart


def worker_part(process: ProcessContext) -> WorkerPart:
    """Return the part of isolation in a worker process; a process that isolates no job runs these as all others."""
    if not process.isolates:
        return WorkerPart()
    # One for all capsules: a second process that has loaded the workers would cost as much memory again.
    return WorkerPart(detached=IsolatedRuns(process.job_log, process.runs, process.service(PROFILES)))
