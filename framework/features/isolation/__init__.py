"""Define the record of isolation."""

from framework.feature import Feature, Late

ISOLATION = Feature(
    name="isolation",
    explain=Late("framework.features.isolation.explain:IsolationReader"),
    worker=Late("framework.features.isolation.worker:worker_part"),
)
