"""Define the record of isolation."""

from framework.feature import Feature

ISOLATION = Feature(name="isolation")
