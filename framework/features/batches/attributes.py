"""Tell a job of its batch."""

from typing import TYPE_CHECKING

from framework.declare.attribute import attribute_group
from framework.declare.batch import Batch, BatchEvent, batch_of, event_of
from framework.types import Payload


@attribute_group()
class BatchMember:
    """The batch of a job."""

    if TYPE_CHECKING:
        _aw_job: Payload | None

    @property
    def batch(self) -> Batch | None:
        """Return the batch of this job, ``None`` without one. A callback of a nested batch is a job of the batch around it."""
        return batch_of(self._aw_job)

    @property
    def batch_event(self) -> BatchEvent | None:
        """Return the event and the batch that this job is a callback of; ``None`` for any other job."""
        return event_of(self._aw_job)
