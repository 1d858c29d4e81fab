"""Define ``CronWorker``, the base of the workers that a schedule pushes (GitLab's ``CronjobQueue``)."""

from datetime import timedelta
from typing import ClassVar

from framework.application_worker import ApplicationWorker


class CronWorker(ApplicationWorker, abstract=True):
    """Run at the ticks of ``cron``, or of an entry in ``config/schedule.yml``. Each tick pushes one job.

    A job must be cheap: it finds the tasks and pushes a job for each. It is not retried, as the next tick replaces a retry. It
    belongs to no user: of the context of the code that pushes it, only the caller and the correlation id are kept.
    """

    queue_namespace = "cronjob"
    retry = False
    cron: ClassVar[str | None] = None
    time_zone: ClassVar[str] = "UTC"
    spread: ClassVar[timedelta | float | None] = None
    _aw_is_cron = True
