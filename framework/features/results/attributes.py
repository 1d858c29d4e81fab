"""Declare the attributes and options of results."""

from datetime import timedelta
from typing import Annotated, ClassVar, TypedDict

from framework.declare import validators
from framework.declare.attribute import ClassValues, attribute, attribute_group
from framework.declare.validators import ErrorCollector
from framework.features.results.calls import refused_result
from framework.features.results.payload import MAX_TTL_S


def _check(faults: ErrorCollector, found: ClassValues) -> None:
    """Note a class that keeps results and cannot: its results would be stored in plain text, or one job runs for several pushes."""
    values = found.values
    if values["keep_result"] is None:
        return
    reason = refused_result(values.get("deduplicate"), encrypts=values.get("encrypt", False))
    if reason is not None:
        faults.add(f"keep_result = {values['keep_result']!r}: the class {reason}.", "keep_result")


@attribute_group(check=_check)
class ResultAttributes:
    """How long the result of a job is kept."""

    keep_result: ClassVar[timedelta | float | None] = attribute(
        None,
        validator=validators.optional(validators.duration_up_to(timedelta(seconds=MAX_TTL_S), "7 days")),
        group="status",
        effect="The step that ends a job stores its result, or how it ended without one. The state of the job is tracked too, and "
        "lives twice as long.",
        trap="Each result takes memory of Redis, at most 256 KiB. Results are not encrypted.",
    )
    """How long the result of each job is kept after its end, for ``framework.result(jid)``. ``None``: only results of ``call`` are
    kept."""


class ResultOptions(TypedDict, total=False):
    """How long the result of one call is kept."""

    result_ttl: Annotated[timedelta | float, validators.duration]
    """For how long the result of a ``call`` is kept: an hour by default."""
