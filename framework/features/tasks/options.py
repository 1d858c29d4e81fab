"""Declare the options of ``set`` that belong to tasks."""

from typing import Annotated, TypedDict

from framework.declare.job_option import TRACKED


class TaskOptions(TypedDict, total=False):
    """Whether the life of one job is recorded."""

    track: Annotated[bool, TRACKED.validator]
    """Whether the life of the job is recorded in the database of tasks."""
