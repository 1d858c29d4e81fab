"""Define the record of status."""

from framework.feature import Feature

STATUS = Feature(name="status")
