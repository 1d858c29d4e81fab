"""Let Sentry know the jobs of an application that initialises Sentry itself.

from framework.integrations.sentry import FrameworkIntegration

sentry_sdk.init(dsn=..., integrations=[FrameworkIntegration()])
"""

from framework.features.tracing.sentry import FrameworkIntegration

__all__ = ["FrameworkIntegration"]
