"""Warn of environment variables that look like settings and are none (decision 60)."""

from framework.settings.model import Settings
from framework.telemetry import logs


def warn_unknown_variables(settings: Settings) -> None:
    """Warn of each variable without effect. The line never shows its value, which may be a secret of another program."""
    for name, near in settings.unknown_variables.items():
        hint = f" (did you mean {near}?)" if near is not None else ""
        logs.logger().warning(
            f"the variable {name} has no effect, because application-worker has no such setting{hint}. Rename it, or ignore this "
            "line if it belongs to another program",
            event_name="config.unknown_variable",
            variable=name,
            **({"nearest": near} if near is not None else {}),
        )
