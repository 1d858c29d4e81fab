"""Define the errors of the testing modes."""

from framework.errors import FrameworkError


class ModeError(FrameworkError):
    """Report a call that the active mode of ``framework.testing``, or no mode, cannot answer."""


class EmptyQueueError(FrameworkError, LookupError):
    """Report a job that was to run and does not wait."""


class EndlessJobsError(FrameworkError):
    """Report jobs that never end: each run, or each move of a due job, makes another."""
