"""Declare the attributes and options of tasks."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypedDict

from framework.declare.attribute import attribute, attribute_group
from framework.declare.job_context import JobStory
from framework.declare.options import TRACKED


@attribute_group()
class TaskAttributes:
    """Whether the life of a job is recorded."""

    track: ClassVar[bool] = attribute(
        False,
        validator=TRACKED.validator,
        group="status",
        effect="Each push, start and end writes an event, and `self.record(...)` adds messages: `framework.tasks` shows "
        "them. Needs the extra `tasks`.",
        trap="A push and the end of a job wait for the database: some milliseconds each. Do not use it for classes with "
        "thousands of jobs per second.",
    )
    """Whether the life of each job is recorded in the database of tasks."""

    if TYPE_CHECKING:
        _aw_record: JobStory | None

    def record(self, message: str, **fields: Any) -> None:
        """Add a message with the time to the story of a tracked job (``track = True``): ``self.record("row 7 refused", sku="A1")``.

        The fields are JSON values. ``framework.tasks`` shows the messages. A job that is not tracked records nothing.
        """
        if self._aw_record is not None:
            self._aw_record.note(message, fields)


class TaskOptions(TypedDict, total=False):
    """Whether the life of one job is recorded."""

    track: Annotated[bool, TRACKED.validator]
    """Whether the life of the job is recorded in the database of tasks."""
