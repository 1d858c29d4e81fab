"""Define the record of deduplication."""

from framework.feature import Feature, Figures, Late, LateCommand, Rights
from framework.wire.keys import LOCKS

DEDUPLICATION = Feature(
    name="deduplication",
    places={LOCKS: "locks"},
    rights={"worker": Rights(scripts=(Late("framework.features.deduplication.store:START_LOCKED"),))},
    locks=Late("framework.features.deduplication.push:open_locks"),
    worker=Late("framework.features.deduplication.admission:worker_part"),
    observer=Late("framework.features.deduplication.observer:observer"),
    explain=Late("framework.features.deduplication.explain:LockReader"),
    figures=Figures(reader=Late("framework.features.deduplication.figures:LockFigures"), part="deduplication/figures"),
    causes=Late("framework.features.deduplication.causes:LockCauses"),
    pages=(Late("framework.features.deduplication.page:LocksPage"),),
    job_commands=(
        LateCommand(
            "locks",
            "Show and delete the locks of deduplicated jobs.",
            Late("framework.features.deduplication.commands:locks"),
        ),
    ),
)
