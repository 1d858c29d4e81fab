"""The record of deduplication."""

from framework.feature import Feature, Late

DEDUPLICATION = Feature(name="deduplication", worker=Late("framework.features.deduplication.worker:worker_part"))
