"""Declare the attribute of classes with a rate limiter."""

from typing import ClassVar

from framework.declare import validators
from framework.declare.attribute import attribute, attribute_group
from framework.features.limiters.limiter import Limiter


@attribute_group()
class LimiterAttributes:
    """The rate limiter of a class."""

    limiter: ClassVar[Limiter | None] = attribute(
        None,
        validator=validators.instance_of(Limiter, "limiter.bucket(...) of framework.limiter"),
        group="flow_control",
        effect="A run that the limiter does not admit ends at once, without `perform`, and is scheduled again: no failure, no retry. "
        "The policy of the limiter may drop the job, or let it fail.",
        trap="Each attempt passes through a queue. To limit the jobs that run at a time, use `concurrency_limit`.",
    )
    """The rate limiter of the class: each run takes one call, or one lock, of it. ``.by(...)`` gives each key of the jobs a limit
    of its own."""
