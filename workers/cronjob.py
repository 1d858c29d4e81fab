"""The base of every worker that a schedule pushes (GitLab's ``CronjobQueue``)."""

from typing import ClassVar

from framework import CronWorker, DeferOnHealth


class CronjobWorker(CronWorker, abstract=True):
    """A cheap job that a schedule pushes: it finds out what is to be done, and pushes one job for each task."""

    data_consistency = "sticky"
    idempotent = True
    concurrency_limit = None  # SEW021: one job an hour, of milliseconds
    defer_on_health: ClassVar[DeferOnHealth | None] = (
        None  # SEW007: it only reads; the jobs that it pushes declare their own deferral
    )
