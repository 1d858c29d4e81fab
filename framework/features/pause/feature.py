"""The record of pause."""

from framework.feature import Feature, Late

PAUSE = Feature(
    name="pause",
    problems=Late("framework.features.pause.strategies:pause_problems"),
    worker=Late("framework.features.pause.worker:worker_part"),
)
