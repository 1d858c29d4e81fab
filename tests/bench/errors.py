"""Define the errors of a campaign that do not end it."""


class ContestantSkipped(Exception):
    """A contestant cannot take part here; the text gives the reason and a remedy."""


class RunFailed(Exception):
    """One run gave no figure; the text gives the reason and the logs."""


class Stopped(Exception):
    """The user asked the bench to end."""
