"""The record of pause."""

from framework.feature import Feature, Late

PAUSE = Feature(name="pause", worker=Late("framework.features.pause.worker:worker_part"))
