"""Declare the options of ``set`` that belong to profiling."""

from typing import Annotated, TypedDict

from framework.declare import validators


class ProfilingOptions(TypedDict, total=False):
    """Whether the runs of one job are profiled."""

    profile: Annotated[bool, validators.boolean]
    """Profile the runs of the job (``framework.admin.profile``)."""
