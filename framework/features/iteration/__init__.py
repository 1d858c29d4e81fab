"""Define the record of iteration."""

from framework.feature import Feature, Late, Rights

ITERATION = Feature(
    name="iteration",
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
