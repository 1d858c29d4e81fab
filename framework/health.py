"""Register health indicators of the application for ``defer_on_health``.

    from framework.health import Normal, Question, Signal, Stop, register

    class Backlog:
        def evaluate(self, question: Question) -> Signal:
            waiting = measure()
            return Stop(f"{waiting} mails wait") if waiting > 10_000 else Normal(f"{waiting} mails wait")

    register("mail_backlog", Backlog())

``question.query`` queries the primary of the class's database. A complete example is in docs/guides/health.md.
"""

from framework.features.health.indicator import (
    HealthIndicator,
    Normal,
    NotAvailable,
    Question,
    Signal,
    Stop,
    Unknown,
    register,
)

__all__ = ["HealthIndicator", "Normal", "NotAvailable", "Question", "Signal", "Stop", "Unknown", "register"]
