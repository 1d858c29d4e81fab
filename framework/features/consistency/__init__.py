"""Define the record of consistency."""

from framework.feature import Feature, Late

CONSISTENCY = Feature(
    name="consistency",
    problems=Late("framework.features.consistency.databases:database_problems"),
    push=Late("framework.features.consistency.push:add_positions"),
    worker=Late("framework.features.consistency.admission:worker_part"),
    explain=Late("framework.features.consistency.explain:ReplicaReader"),
    causes=Late("framework.features.consistency.causes:ReplicaCauses"),
)
