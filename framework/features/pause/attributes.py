"""Declare the attribute of classes that a strategy pauses."""

from typing import ClassVar

from framework.declare import validators
from framework.declare.attribute import attribute, attribute_group


@attribute_group()
class PauseAttributes:
    """Which strategy pauses a class."""

    pause_control: ClassVar[str | None] = attribute(
        None,
        validator=validators.optional(validators.identifier),
        group="flow_control",
        effect="While the strategy, or `application-worker jobs pause`, pauses the class, its jobs are held "
        "unchanged. They return to their queues in order. `manual`, `none` and `deprecated` never pause by "
        "themselves; register others with `framework.pause`.",
        trap="To pause a whole queue, use `application-worker jobs pause-queue`; no attribute is needed.",
    )
    """The name of the strategy that pauses and resumes the class."""
