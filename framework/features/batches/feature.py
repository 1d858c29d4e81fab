"""Define the record of batches."""

from framework.feature import Feature, Hold, Late, LateCommand
from framework.wire.batch_fields import BID

BATCHES = Feature(
    name="batches",
    holds=(
        Hold(name="batch", field=BID, part="batches/batch", waiter=Late("framework.features.batches.waiter:WAITER")),
    ),
    commands=(
        LateCommand(
            "batches",
            "List batches of jobs, show one, cancel or delete it.",
            Late("framework.features.batches.commands:batches"),
        ),
    ),
)
