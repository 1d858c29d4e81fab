"""Define the record of iteration."""

from framework.feature import Feature, Late

ITERATION = Feature(
    name="iteration",
    bases=(Late("framework.features.iteration.iterable:IterableWorker"),),
    explain=Late("framework.features.iteration.explain:IterationReader"),
)
