"""Define the record of iteration."""

from framework.feature import Feature, Late, Rights
from framework.wire.keys import iteration

ITERATION = Feature(
    name="iteration",
    places={iteration(""): "iteration"},
    bases=(Late("framework.features.iteration.iterable:IterableWorker"),),
    explain=Late("framework.features.iteration.explain:IterationReader"),
    rights={
        "worker": Rights(
            scripts=(
                Late("framework.features.iteration.store:START_ITERATION"),
                Late("framework.features.iteration.store:SAVE_ITERATION"),
            )
        )
    },
    worker=Late("framework.features.iteration.worker:worker_part"),
)
