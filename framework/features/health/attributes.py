"""Declare the attribute of classes that wait for healthy databases."""

from typing import ClassVar

from framework.declare import validators
from framework.declare.attribute import attribute, attribute_group
from framework.declare.policy_options import DeferOnHealth


@attribute_group()
class HealthAttributes:
    """When the jobs of a class are deferred."""

    defer_on_health: ClassVar[DeferOnHealth | None] = attribute(
        None,
        validator=validators.instance_of(DeferOnHealth, "DeferOnHealth(...)"),
        group="flow_control",
        effect="While an indicator says stop, the job goes back to the schedule set with the same jid, for a longer "
        "time at each deferral. An indicator that cannot answer defers nothing.",
        trap="Use it for background work only: a user may wait for a job of high urgency. It has no effect until "
        "`databases` or `health.indicators` is set, or an indicator of your own is registered.",
    )
    """Defer jobs while a database is unhealthy."""
