"""The record of deduplication."""

from framework.feature import Feature, Late

DEDUPLICATION = Feature(
    name="deduplication",
    locks=Late("framework.features.deduplication.push:open_locks"),
    worker=Late("framework.features.deduplication.worker:worker_part"),
)
