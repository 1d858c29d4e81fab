"""Define the record of history: what ran in the last hours and months, and what was deployed when."""

from framework.feature import Feature, Late, LateCommand

HISTORY = Feature(
    name="history",
    worker=Late("framework.features.history.worker:worker_part"),
    pages=(
        Late("framework.features.history.page:ActivityPage"),
        Late("framework.features.history.page:UrgenciesPage"),
    ),
    commands=(
        LateCommand(
            "deployed",
            "Mark that VERSION is deployed now, for the charts.",
            Late("framework.features.history.commands:deployed_"),
        ),
    ),
)
"""``run_series``, ``deployed``: the runs of each class and urgency by minute, ten minutes, hour and day, and the marks of deploys."""
