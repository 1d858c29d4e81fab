"""Define the record of batches."""

from typing import Any

from framework.feature import Feature, Figures, Hold, Late, LateCommand, Rights
from framework.features.batches import keys

_CHANGE: Late[Any] = Late("framework.features.batches.store:CHANGE")

BATCHES = Feature(
    name="batches",
    places={keys.batch(""): "batches"},
    explain=Late("framework.features.batches.explain:BatchReader"),
    rights={
        "producer": Rights(
            keys=(keys.BATCHES, keys.batch("*"), keys.BATCH_EVENTS),
            scripts=(Late("framework.features.batches.push:PUSH"), _CHANGE),
        ),
        "operator": Rights(scripts=(_CHANGE,)),
    },
    job_groups={"bid": "batch"},
    holds=(
        # The name of BID in wire/job.py, which needs more than the help of the commands, which reads this record.
        Hold(name="batch", field="bid", part="batches/batch", waiter=Late("framework.features.batches.payload:WAITER")),
    ),
    worker=Late("framework.features.batches.worker:worker_part"),
    stored_jobs=Late("framework.features.batches.store:stored_jobs"),
    figures=Figures(reader=Late("framework.features.batches.figures:BatchFigures"), part="batches/figures"),
    pages=(
        Late("framework.features.batches.page:BatchesPage"),
        Late("framework.features.batches.page:BatchPage"),
    ),
    commands=(
        LateCommand(
            "batches",
            "List batches of jobs, show one, cancel or delete it.",
            Late("framework.features.batches.commands:batches"),
        ),
    ),
)
