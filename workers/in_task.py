"""Push jobs from a job into the task of that job."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from framework import ApplicationWorker, Discard
from framework.errors import TaskDatabaseError, TaskError, TaskTablesError
from framework.tasks import Task


def push_in_task(
    task_id: str | None,
    worker: type[ApplicationWorker],
    jobs: Iterable[Sequence[Any]],
    context: Mapping[str, Any],
) -> None:
    """Push jobs into a task; without one, outside of any. Raises ``Discard`` when the task was cancelled or removed.

    A task is not complete while one of its jobs runs. So a job may always add jobs to its own task, also to a closed one.
    """
    if task_id is None:
        worker.set(context=dict(context)).perform_bulk(list(jobs))
        return
    try:
        Task.get(task_id).perform_bulk(worker, jobs, context=dict(context))
    except (TaskDatabaseError, TaskTablesError):
        raise
    except TaskError as error:
        raise Discard(str(error)) from error
