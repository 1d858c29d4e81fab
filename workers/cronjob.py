"""What every tick shares (GitLab's ``CronjobQueue``)."""

from framework import ApplicationWorker


class CronjobWorker(ApplicationWorker, abstract=True):
    """A job that a schedule pushes: cheap itself, it finds out what is to be done and pushes a job for each."""

    queue_namespace = "cronjob"
    idempotent = True
    # The next tick is the retry: one that failed an hour ago is of no use beside the one that is due now.
    retry = False
