"""The record of consistency."""

from framework.feature import Feature, Late

CONSISTENCY = Feature(name="consistency", worker=Late("framework.features.consistency.worker:worker_part"))
