"""The base of every worker that a schedule pushes (GitLab's ``CronjobQueue``)."""

from typing import ClassVar

from framework import ApplicationWorker, DeferOnHealth


class CronjobWorker(ApplicationWorker, abstract=True):
    """A cheap job that a schedule pushes: it finds out what is to be done, and pushes one job for each task."""

    queue_namespace = "cronjob"
    data_consistency = "sticky"
    idempotent = True
    concurrency_limit = None  # SEW021: one job an hour, of milliseconds
    defer_on_health: ClassVar[DeferOnHealth | None] = (
        None  # SEW007: it only looks; what it pushes says for itself whether it has to wait
    )
    # The next tick is the retry: one that failed an hour ago is of no use beside the one that is due now.
    retry = False
