"""Declare the attribute of classes that wait for healthy databases."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import Any, ClassVar, Self

from framework.declare import validators
from framework.declare.attribute import attribute, attribute_group
from framework.declare.policy_options import check_field_names, validate_fields
from framework.declare.validators import Validator
from framework.errors import DeclarationError


@dataclass(frozen=True, slots=True)
class DeferOnHealth:
    """Defer jobs of this worker while a database is unhealthy (GitLab's database health signal).

    While an indicator returns ``Stop``, a job is deferred for ``delay``. The delay doubles from the third deferral on, up to
    ``max_delay``, and is reduced at random by up to a tenth, so that jobs do not all return at once. After ``max_deferrals``
    deferrals the job runs anyway (None: no maximum). ``indicators`` names the indicators to ask; None asks all.
    ``resolver`` returns the database and the tables for a job's arguments; when it fails, the declared ones count. An indicator
    that does not answer defers nothing.

    Raises:
        DeclarationError: a value is not allowed.
    """

    database: str = "main"
    _: KW_ONLY
    tables: tuple[str, ...] = ()
    delay: timedelta = timedelta(seconds=5)
    max_delay: timedelta = timedelta(minutes=30)
    max_deferrals: int | None = None
    indicators: tuple[str, ...] | None = None
    resolver: Callable[[tuple[Any, ...]], tuple[str, Sequence[str]]] | None = None

    def __new__(cls, *values: Any, **fields: Any) -> Self:
        """Reject unknown fields, and name the nearest known one."""
        del values
        check_field_names(cls.__name__, fields, _HEALTH_VALIDATORS)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        validate_fields(self, _HEALTH_VALIDATORS)
        if self.max_delay < self.delay:
            raise DeclarationError(
                "DeferOnHealth",
                f"max_delay = {self.max_delay} is shorter than delay = {self.delay}.",
                attribute="max_delay",
            )


_HEALTH_VALIDATORS: Mapping[str, Validator] = {
    "database": validators.identifier,
    "tables": validators.queues,
    "delay": validators.duration,
    "max_delay": validators.duration,
    "max_deferrals": validators.optional(validators.integer(1)),
    "indicators": validators.optional(validators.identifiers),
    "resolver": validators.optional(validators.resolver),
}


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
