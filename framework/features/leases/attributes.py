"""Declare the attributes of classes whose jobs run one at a time under a lease."""

from datetime import timedelta
from typing import ClassVar

from framework.declare import validators
from framework.declare.attribute import WorkerKind, attribute, attribute_group

_REENQUEUER = WorkerKind("_aw_is_reenqueuer", "a ReenqueuerWorker")


@attribute_group()
class LeaseAttributes:
    """The times of a ``ReenqueuerWorker``."""

    lease_timeout: ClassVar[timedelta | float | None] = attribute(
        None,
        validator=validators.optional(validators.duration),
        group="flow_control",
        kind=_REENQUEUER,
        effect="One job of the class runs at a time, over all processes. A job that finds the lease held ends at once.",
        trap="It belongs to a `ReenqueuerWorker`, which needs it: from 0.1 s to 30 days. A longer run renews `self.lease`.",
    )
    """The most time that one run of a ``ReenqueuerWorker`` may take: its lease ends by itself after it."""
    minimum_duration: ClassVar[timedelta | float] = attribute(
        5.0,
        validator=validators.duration,
        group="flow_control",
        kind=_REENQUEUER,
        effect="A run that has ended sooner waits with its lease before the next job is pushed.",
        trap="It belongs to a `ReenqueuerWorker`. The wait occupies a slot of its process.",
    )
    """For how long a run of a ``ReenqueuerWorker`` lasts at least."""
