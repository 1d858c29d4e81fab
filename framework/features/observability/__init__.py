"""Define the record of observability: metrics, dashboards and alerts."""

from framework.feature import Feature

OBSERVABILITY = Feature(name="observability")
