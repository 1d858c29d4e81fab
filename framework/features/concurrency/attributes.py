"""Declare the attributes that limit the jobs of a class that run at a time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self, get_args

from framework.declare import validators
from framework.declare.attribute import WorkerKind, attribute, attribute_group
from framework.declare.policy_options import check_field_names, validate_fields
from framework.declare.validators import Validator
from framework.errors import DeclarationError
from framework.types import WithoutMetaShard

_LIMITED_CAPACITY = WorkerKind(
    "perform_with_capacity", "a LimitedCapacityWorker", otherwise="declare concurrency_limit"
)


@dataclass(frozen=True, slots=True)
class ConcurrencyScope:
    """Limit the slots of one scope, such as a tenant, within the limit of the class (GitLab's per-tenant limits).

    ``by`` is the name of a fact in the job's context (``"user"`` is ``meta.user``), or a function of the job's arguments that
    returns a text or a number. A job without a scope is not counted. Give either ``limit``, the maximum of slots of one scope, or
    ``max_percentage``, its share of the class's limit (0.2 is a fifth), rounded up.

    Raises:
        DeclarationError: a value is not allowed.
    """

    by: str | Callable[[Sequence[Any]], str | int | None]
    _: KW_ONLY
    limit: int | None = None
    max_percentage: float | None = None

    def __new__(cls, *values: Any, **fields: Any) -> Self:
        """Reject unknown fields, and name the nearest known one."""
        del values
        check_field_names(cls.__name__, fields, _SCOPE_VALIDATORS)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        validate_fields(self, _SCOPE_VALIDATORS)
        if (self.limit is None) == (self.max_percentage is None):
            raise DeclarationError(
                "ConcurrencyScope",
                "needs limit or max_percentage, and not both: the maximum of slots of one scope, or its share of the limit.",
                attribute="limit",
            )


_SCOPE_VALIDATORS: Mapping[str, Validator] = {
    "by": validators.identifier_or_callable,
    "limit": validators.optional(validators.integer(1)),
    "max_percentage": validators.optional(validators.fraction),
}


@attribute_group()
class ConcurrencyAttributes:
    """How many jobs of a class, or of a scope of it, run at a time."""

    concurrency_limit: ClassVar[int | Callable[[], int | None] | None] = attribute(
        None,
        validator=validators.limit,
        group="flow_control",
        effect="Jobs above the limit leave their queue and wait in order. A job that ends gives its slot to the next "
        "one at once. Each process calls a callable once a second. Log lines have the waiting time: "
        "`concurrency_limit_buffering_duration_s`.",
        trap="`0` does not stop the class. A callable delays other work of its process while it runs: it must be "
        "fast and must not raise.",
    )
    """The maximum number of jobs of the class that run at a time, over all processes. ``0`` and ``None`` are no limit; a negative
    number pauses the class."""
    without_meta_shard: ClassVar[WithoutMetaShard] = attribute(
        "proceed",
        validator=validators.one_of(*get_args(WithoutMetaShard)),
        group="flow_control",
        effect="`proceed`: each shard goes on with the slots that it has of the limit. `hold`: after a minute no job starts.",
        trap="It needs the setting `roles: {meta: NAME}`; without it each shard has a limit of its own.",
    )
    """The behaviour while the shard that divides the limit between the shards does not answer."""
    max_concurrency_limit_percentage: ClassVar[float | None] = attribute(
        None,
        validator=validators.optional(validators.fraction),
        group="flow_control",
        effect="It counts when `concurrency_limit` gives no limit. It is rounded up, and computed again when "
        "processes start and stop.",
        trap="The value is a share, not a percentage: `0.25`, not `25`.",
    )
    """The concurrency limit as a share of all slots of the shard."""
    concurrency_scope: ClassVar[ConcurrencyScope | None] = attribute(
        None,
        validator=validators.instance_of(ConcurrencyScope, "ConcurrencyScope(...)"),
        group="flow_control",
        effect="No scope has more slots than that. Waiting scopes take turns, whatever the number of their jobs.",
        trap="It needs a limit of the class. A job without a scope is not counted.",
    )
    """The scope of a job, for example its tenant, and the number of slots of the class's limit that one scope may use."""
    max_running_jobs: ClassVar[int | Callable[[], int] | None] = attribute(
        None,
        validator=validators.limit,
        group="flow_control",
        kind=_LIMITED_CAPACITY,
        effect="`perform_with_capacity` pushes the jobs that are missing. A job without a free slot ends. A job that "
        "succeeds pushes the next one while `remaining_work_count` is above 0.",
        trap="It limits no other class: use `concurrency_limit` there. A callable runs often: it must be fast.",
    )
    """The maximum number of jobs of a ``LimitedCapacityWorker`` that run at a time, over all processes. ``0`` stops the class."""

    @classmethod
    def on_concurrency_limit_deferred(cls, args: list[Any]) -> None:
        """Hook: handle a job with these arguments that must wait for a slot of the class's limit (GitLab)."""

    @classmethod
    def on_concurrency_limit_resumed(cls, args: list[Any]) -> None:
        """Hook: handle a job with these arguments that got a slot after its wait, before it runs (GitLab)."""
