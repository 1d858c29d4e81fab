"""Declare the attributes of classes whose equal jobs are deduplicated."""

from typing import ClassVar

from framework.declare import validators
from framework.declare.attribute import attribute, attribute_group
from framework.declare.policy_options import Deduplicate


@attribute_group
class DeduplicationAttributes:
    """Whether two runs of a job are as good as one, and how duplicates are dropped."""

    idempotent: ClassVar[bool] = attribute(
        False,
        validator=validators.boolean,
        group="flow_control",
        effect="A push returns `None` and writes no job while an equal job (same class and arguments, in any queue) "
        "waits.",
        trap="Every job may run twice, with or without it. The attribute additionally permits the framework to drop "
        "duplicates.",
    )
    """Two runs of the job have the same effect as one. Without ``deduplicate`` it means ``Deduplicate('until_executing')`` for 10
    minutes."""
    deduplicate: ClassVar[Deduplicate | None] = attribute(
        None,
        validator=validators.instance_of(Deduplicate, "Deduplicate(...)"),
        group="flow_control",
        effect="The push takes the lock of its class and arguments. If another job has it, the push is dropped as a "
        "duplicate. With `debounce` it replaces the waiting job, and with `accumulate` it adds to its arguments.",
        trap="Without `idempotent = True` no duplicate is dropped: it runs, and `duplicate-of` in its log lines "
        "names the job that has the lock.",
    )
    """How equal jobs are deduplicated. ``None`` turns off the default of ``idempotent``."""
