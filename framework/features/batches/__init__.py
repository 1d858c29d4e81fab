"""Define the record of batches."""

from framework.feature import Feature, Hold, Late, LateCommand

BATCHES = Feature(
    name="batches",
    explain=Late("framework.features.batches.explain:BatchReader"),
    holds=(
        # The name of BID in wire/batch_fields.py, which needs pydantic: the help of the commands reads this record.
        Hold(name="batch", field="bid", part="batches/batch", waiter=Late("framework.features.batches.waiter:WAITER")),
    ),
    commands=(
        LateCommand(
            "batches",
            "List batches of jobs, show one, cancel or delete it.",
            Late("framework.features.batches.commands:batches"),
        ),
    ),
)
