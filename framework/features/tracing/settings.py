"""Settings of tracing."""

from framework.settings.base import Section, SettingsBase


class TracingSection(Section):
    """Whether OpenTelemetry has spans and metrics of pushes and runs."""

    opentelemetry: bool = False


class TracingSettings(SettingsBase):
    """The setting ``tracing``."""

    tracing: TracingSection = TracingSection()
