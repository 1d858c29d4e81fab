"""The record of deferral."""

from framework.feature import Feature, Late

DEFERRAL = Feature(name="deferral", worker=Late("framework.features.deferral.worker:worker_part"))
