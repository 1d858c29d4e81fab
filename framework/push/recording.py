"""Record the jobs of tracked classes when they are pushed: nothing does unless a feature has a recorder."""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, NamedTuple

from framework.declare.declaration import Declaration
from framework.declare.job_option import TRACKED
from framework.push.job_batch import JobBatch
from framework.types import Jid, Json

TASK_FIELDS: ContextVar[Mapping[str, Json]] = ContextVar("aw_task_fields", default=MappingProxyType({}))
"""The payload fields that name the task to which the jobs pushed here belong."""


class Destination(NamedTuple):
    """Where a push writes: the class and the shard."""

    declaration: Declaration
    shard: str


class PushRecorder:
    """Record jobs before they are written, so that no job exists without its event. This one records nothing."""

    def enqueued(self, destination: Destination, batch: JobBatch) -> None:
        """Record jobs that are about to be written. May be called again for the same jobs.

        Raises:
            TaskDatabaseError, TaskTablesError: they were not recorded, and must not be written.
        """

    def not_written(self, destination: Destination, batch: JobBatch, error: BaseException) -> None:
        """Record that the jobs were certainly not written. Raises nothing."""

    def written(self, destination: Destination, batch: JobBatch) -> None:
        """Record jobs that were written in one step with other things, so that not all of them may have been. Raises nothing.

        The start of a job makes its event if a kill comes first.
        """

    def duplicates(self, destination: Destination, pairs: Sequence[tuple[Jid, Jid]]) -> None:
        """Record dropped duplicates: (id, id of the job that stands for it). Raises nothing."""


def is_recorded(declaration: Declaration, options: Mapping[str, Any]) -> bool:
    """Return whether jobs of a class with these options are recorded."""
    return bool(options.get(TRACKED.name, TRACKED.declared(declaration)))
