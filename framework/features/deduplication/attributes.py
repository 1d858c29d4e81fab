"""Declare the attributes of classes whose equal jobs are deduplicated."""

from collections.abc import Mapping
from typing import Any, ClassVar, get_origin

from framework.declare import validators
from framework.declare.attribute import ClassValues, attribute, attribute_group
from framework.declare.policy_options import Deduplicate
from framework.declare.signature import JobSignature
from framework.declare.validators import ErrorCollector


def _complete(faults: ErrorCollector, found: ClassValues) -> None:
    """Deduplicate an idempotent class that does not say how."""
    del faults
    if found.values["idempotent"] and "deduplicate" not in found.owners:
        found.values["deduplicate"] = Deduplicate("until_executing")


def _check_window(faults: ErrorCollector, attributes: Mapping[str, Any], signature: JobSignature) -> None:
    """Note what a class lacks for ``Deduplicate("debounce")`` or ``Deduplicate("accumulate")``."""
    policy: Deduplicate | None = attributes["deduplicate"]
    if policy is None or not policy.has_window:
        return
    strategy = f"Deduplicate({policy.strategy!r})"
    if not attributes["idempotent"]:
        message = (
            f"{strategy} ends jobs that others replace: declare idempotent = True, and make a second run harmless."
        )
        faults.add(message, "deduplicate")
    if policy.strategy != "accumulate":
        return
    last = signature.names[-1] if signature.names else "none"
    is_list = signature.required == len(signature.names) > 0 and get_origin(signature.annotations[-1]) is list
    if not is_list or signature.varargs is not None:
        message = (
            f"{strategy} adds to the last argument: declare the last parameter of perform as list[...], without a default. "
            f"It is {last!r}."
        )
        faults.add(message, "deduplicate")
    for name, values in (("data_consistency", ("sticky", "delayed")), ("encrypt", (True,))):
        if attributes.get(name) in values:
            message = (
                f"{strategy} does not fit {name} = {attributes[name]!r}: Redis adds the arguments, and knows neither."
            )
            faults.add(message, "deduplicate")


@attribute_group(check=_complete, check_perform=_check_window)
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

    @classmethod
    def idempotency_arguments(cls, args: list[Any]) -> list[Any]:
        """Hook: return the arguments to compare for deduplication. The default is all of them (GitLab).

        ``args`` has every argument of the method that runs the job's version, with defaults.
        """
        return args
