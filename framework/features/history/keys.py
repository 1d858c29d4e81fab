"""Name the keys of deploy marks, which are Sidekiq's: its Metrics page shows them."""

from datetime import date

MARK_TTL_S = 90 * 86_400
"""How long Sidekiq keeps the marks of a day."""


def deploy_marks(day: date) -> str:
    """HASH with a TTL: the deploys of one day of UTC, from the minute in ISO 8601 to the label."""
    return f"{day:%Y%m%d}-marks"
