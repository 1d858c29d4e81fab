"""Declare the attributes of classes that run item by item."""

from datetime import timedelta
from typing import ClassVar

from framework.declare import validators
from framework.declare.attribute import WorkerKind, attribute, attribute_group

_ITERABLE = WorkerKind("_aw_is_iterable", "an IterableWorker")


@attribute_group()
class IterationAttributes:
    """How often an iterating job saves its cursor, and how long it iterates."""

    flush_interval: ClassVar[timedelta | float] = attribute(
        5.0,
        validator=validators.duration,
        group="flow_control",
        kind=_ITERABLE,
        effect="At most the items of this time run again when the process is killed. Saving is one command to Redis.",
        trap="It belongs to an `IterableWorker`. A cancellation from Ruby is seen when the cursor is saved.",
    )
    """How often an ``IterableWorker`` saves its cursor, while its items are shorter."""
    max_iteration_runtime: ClassVar[timedelta | float | None] = attribute(
        None,
        validator=validators.optional(validators.duration),
        group="flow_control",
        kind=_ITERABLE,
        effect="The job continues at its cursor when its turn comes. That uses up no retry.",
        trap="It belongs to an `IterableWorker`. `None` takes the setting of the same name.",
    )
    """For how long an ``IterableWorker`` iterates before its job goes back behind the other jobs of its queue."""
