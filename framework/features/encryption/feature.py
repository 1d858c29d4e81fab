"""The record of encryption."""

from framework.feature import Feature, Late

ENCRYPTION = Feature(name="encryption", problems=Late("framework.features.encryption.problems:key_problems"))
