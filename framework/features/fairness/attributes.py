"""Declare the attributes and options that order the jobs in a queue."""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, TypedDict

from framework.declare import validators
from framework.declare.attribute import attribute, attribute_group
from framework.declare.options import PRIORITIES
from framework.types import Priority


@attribute_group()
class FairnessAttributes:
    """Whose turn it is in a queue."""

    fair_by: ClassVar[str | Callable[[tuple[Any, ...]], str | int | None] | None] = attribute(
        None,
        validator=validators.optional(validators.identifier_or_callable),
        group="flow_control",
        effect="The jobs of each key wait in a sub-queue `NAME~KEY`. The sub-queues have turns, whatever the number of their jobs.",
        trap="Every process that serves the queue must have the class, and no Ruby process may serve it: it sees no sub-queues.",
    )
    """The key of a job, for example its tenant: the name of a fact in its context (``"user"`` is ``meta.user``), or a function of
    its arguments."""
    priority: ClassVar[Priority | None] = attribute(
        None,
        validator=validators.optional(PRIORITIES.validator),
        group="flow_control",
        effect="Jobs of a higher level start before those of lower ones in the same queue: `critical`, `high`, `normal`, `low`. "
        "Each tenth start is of another level in turn, so that no level waits for ever.",
        trap="Every process that serves the queue must have the class, and no Ruby process may serve it: it sees no sub-queues. "
        "`set(priority=...)` needs the attribute.",
    )
    """The level of the class's jobs, unless a push sets another one."""


class FairnessOptions(TypedDict, total=False):
    """The level of one job."""

    priority: Annotated[Priority, PRIORITIES.validator]
    """The level of the job in its queue, for a class with ``priority``."""
