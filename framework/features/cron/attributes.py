"""Declare the attributes of classes that a schedule pushes."""

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from framework.declare import validators
from framework.declare.attribute import WorkerKind, attribute, attribute_group
from framework.declare.signature import JobSignature
from framework.declare.validators import ErrorCollector
from framework.features.cron.payload import CronTick, tick_of
from framework.types import Payload

_CRON = WorkerKind("_aw_is_cron", "a CronWorker", otherwise="put an entry into config/schedule.yml")
_BESIDE_CRON = _CRON._replace(refused=False)


def _check_arguments(faults: ErrorCollector, attributes: Mapping[str, Any], signature: JobSignature) -> None:
    """Note parameters of ``perform`` without a default, which the ticks of the attribute ``cron`` cannot give."""
    cron, needed = attributes["cron"], signature.names[: signature.required]
    if cron is not None and needed:
        message = (
            f"cron = {cron!r} pushes jobs without arguments, and perform needs {', '.join(needed)}. Give these parameters defaults, "
            "or put an entry with args into config/schedule.yml instead of cron."
        )
        faults.add(message, "cron")


@attribute_group(check_perform=_check_arguments)
class CronAttributes:
    """When a schedule pushes a job."""

    cron: ClassVar[str | None] = attribute(
        None,
        validator=validators.optional(validators.cron),
        group="flow_control",
        kind=_CRON,
        effect="Each tick pushes one job without arguments, whatever the number of processes. An entry of "
        "`config/schedule.yml` that names the class replaces the attribute.",
        trap="It belongs to a `CronWorker`, whose `perform` can be called without arguments. A class whose first tick "
        "has passed begins with the next one.",
    )
    """When a schedule pushes a job of a ``CronWorker``: minute, hour, day of month, month, day of week, with an optional field for
    seconds in front, or ``@hourly``, ``@daily`` and the like."""
    time_zone: ClassVar[str] = attribute(
        "UTC",
        validator=validators.time_zone,
        group="flow_control",
        kind=_BESIDE_CRON,
        effect="A time that a change of the clock skips runs at the end of the gap, and one that it repeats runs once. "
        "With `*` or `*/N` as minute or hour the ticks follow the clock.",
        trap="It is a name such as `Europe/Berlin`, no offset. Without `cron` it has no effect.",
    )
    """The time zone of ``cron``."""
    spread: ClassVar[timedelta | float | None] = attribute(
        None,
        validator=validators.optional(validators.spread),
        group="flow_control",
        kind=_BESIDE_CRON,
        effect="Each tick pushes its job by an offset later, which is always the same for an entry of an installation: from "
        "0 to `spread` - 1 seconds. The tick in the payload stays exact.",
        trap="`None` takes the setting `cron.spread`. Without `cron` it has no effect: an entry of `config/schedule.yml` has "
        "a `spread` of its own.",
    )
    """The seconds over which the jobs of the ticks of ``cron`` are spread, so that not all entries push theirs in the same
    second."""

    if TYPE_CHECKING:
        _aw_job: Payload | None

    @property
    def cron_tick(self) -> CronTick | None:
        """Return the tick of the schedule that pushed this job, ``None`` for any other job.

        ``self.cron_tick.time`` is its nominal time: it stays the same for a late job, and for a second run.
        """
        return tick_of(self._aw_job)
