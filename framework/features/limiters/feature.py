"""Define the record of limiters."""

from framework.feature import Feature, Late, LateCommand

LIMITERS = Feature(
    name="limiters",
    commands=(
        LateCommand(
            "limiters",
            "Show rate limiters, and resize or reset them.",
            Late("framework.features.limiters.commands:limiters"),
        ),
    ),
)
