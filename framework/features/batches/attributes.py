"""Declare the attributes and options of batches."""

from typing import TYPE_CHECKING, Annotated, Any, TypedDict, cast

from framework.declare.attribute import attribute_group
from framework.declare.options import LINKING
from framework.declare.request import JobRequest
from framework.declare.validators import InvalidValue, Validator
from framework.features.batches.batch import Batch, BatchEvent, batch_of, event_of
from framework.features.batches.calls import as_setter
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


def _check_link(value: Any) -> Any:
    if isinstance(value, JobRequest) or as_setter(value) is not None:
        return cast("Any", value)
    raise InvalidValue(LINK.allowed)


LINK = Validator("a worker class, Worker.set(...) or Worker.arguments(...)", _check_link)


class LinkOptions(TypedDict, total=False):
    """The jobs that follow one job."""

    on_death: Annotated[Any, LINK, LINKING]
    """The class of a job that is enqueued when this one dies: its ``perform`` gets the id of this job. ``Worker.set(...)`` adds
    options, ``Worker.arguments(...)`` gives other arguments. For single pushes."""
    on_success: Annotated[Any, LINK, LINKING]
    """The same, when this job has succeeded."""
