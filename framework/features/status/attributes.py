"""Declare the attribute of classes whose states are kept."""

from datetime import timedelta
from typing import ClassVar

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
