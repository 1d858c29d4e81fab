"""Define the record of health."""

from framework.feature import Feature, Late

HEALTH = Feature(
    name="health",
    worker=Late("framework.features.health.admission:worker_part"),
    explain=Late("framework.features.health.explain:HealthReader"),
    causes=Late("framework.features.health.causes:HealthCauses"),
)
