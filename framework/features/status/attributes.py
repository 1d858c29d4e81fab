"""Declare the attributes and options of the status of a job."""

from datetime import timedelta
from typing import Annotated, ClassVar, TypedDict

from framework.declare import validators
from framework.declare.attribute import attribute, attribute_group


@attribute_group()
class StatusAttributes:
    """How long the state of a job is kept."""

    status_expiration: ClassVar[timedelta | float | None] = attribute(
        None,
        validator=validators.optional(validators.duration),
        group="status",
        effect="`framework.status` reads the state: queued, running, retrying, completed, failed, discarded, expired or "
        "cancelled.",
        trap="Make it longer than the job waits in its queue, and longer than it runs: afterwards the state is "
        "`unknown`.",
    )
    """How long the state of a job is kept after its last change. ``None``: the state is not tracked."""


class StatusOptions(TypedDict, total=False):
    """How long the state of one job is kept."""

    status_expiration: Annotated[timedelta | float, validators.duration]
    """How long the state of the job is kept after its last change (``framework.status``)."""
