"""Define the record of iteration."""

from framework.feature import Feature

ITERATION = Feature(name="iteration")
