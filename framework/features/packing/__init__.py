"""Define the record of packing."""

from framework.feature import Feature, Late, Rights

PACKING = Feature(
    name="packing",
    rights={
        "worker": Rights(
            scripts=(
                Late("framework.features.packing.store:PACK"),
                Late("framework.features.packing.store:PACK_HELD"),
                Late("framework.features.packing.store:PACK_DEFERRED"),
            )
        )
    },
    worker=Late("framework.features.packing.worker:worker_part"),
    problems=Late("framework.features.packing.problems:packing_problems"),
    causes=Late("framework.features.packing.causes:PackingCauses"),
)
