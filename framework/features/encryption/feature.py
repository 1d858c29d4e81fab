"""The record of encryption."""

from framework.feature import Feature, Late

ENCRYPTION = Feature(
    name="encryption",
    protection=Late("framework.features.encryption.protection:configured_protection"),
    worker=Late("framework.features.encryption.worker:worker_part"),
    problems=Late("framework.features.encryption.problems:key_problems"),
)
