"""The record of concurrency."""

from framework.feature import Feature, Late

CONCURRENCY = Feature(name="concurrency", worker=Late("framework.features.concurrency.worker:worker_part"))
