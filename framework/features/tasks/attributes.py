"""Declare the attribute of classes whose jobs are recorded in the database of tasks."""

from typing import ClassVar

from framework.declare.attribute import attribute, attribute_group
from framework.declare.job_option import TRACKED


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
