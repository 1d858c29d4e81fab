"""Define ``CronWorker``, the base of the workers that a schedule pushes (GitLab's ``CronjobQueue``)."""

import inspect
from typing import Any, ClassVar, Never

from framework.declare import check
from framework.declare.error_collector import ErrorCollector
from framework.declare.misuse import unwrap_perform
from framework.declare.worker import ApplicationWorker
from framework.typeguards import qualified_name

CRON_CALLER = "Cronjob"
"""The caller in the context of a job that a schedule pushes (GitLab)."""


class CronWorker(ApplicationWorker, abstract=True):
    """Run at the ticks of ``cron``, or of an entry in ``config/schedule.yml``. Each tick pushes one job.

    A job must be cheap: it finds the tasks and pushes a job for each. It is not retried, as the next tick replaces a retry. It
    belongs to no user: of the context of the code that pushes it, only the caller and the correlation id are kept.
    """

    queue_namespace = "cronjob"
    retry = False
    cron: ClassVar[str | None] = None
    time_zone: ClassVar[str] = "UTC"
    _aw_is_cron = True

    def __init_subclass__(cls, *, abstract: bool = False, **others: Never) -> None:
        needed = [] if abstract or cls.cron is None else _needed_parameters(cls)
        if needed:
            faults = ErrorCollector(qualified_name(cls))
            message = (
                f"cron = {cls.cron!r} pushes jobs without arguments, and perform needs {', '.join(needed)}. Give these "
                "parameters defaults, or put an entry with args into config/schedule.yml instead of cron."
            )
            faults.add(message, "cron")
            check.read_attributes(faults, cls, ApplicationWorker)
            faults.raise_errors()
        super().__init_subclass__(abstract=abstract, **others)


def _needed_parameters(cls: type[Any]) -> list[str]:
    """Return the parameters of ``perform`` without a default."""
    perform = next(unwrap_perform(vars(owner)["perform"]) for owner in cls.__mro__ if "perform" in vars(owner))
    if not inspect.isfunction(perform):
        # The general checks say what is wrong.
        return []
    parameters = list(inspect.signature(perform).parameters.values())[1:]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [one.name for one in parameters if one.kind in positional and one.default is inspect.Parameter.empty]
