"""The record of flags."""

from framework.feature import Feature, Late

FLAGS = Feature(name="flags", worker=Late("framework.features.flags.worker:worker_part"))
