"""What can go wrong in a campaign without ending it."""


class Skipped(Exception):
    """A contestant cannot take part here; the text says why and what would help."""


class RunFailed(Exception):
    """One run gave no figure; the text says why and where the logs are."""


class Stopped(Exception):
    """Somebody asked the bench to end."""
