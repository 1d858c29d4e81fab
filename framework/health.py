"""For indicators of the application's own: what workers with ``defer_on_health`` heed besides PostgreSQL and Prometheus.

    from framework.health import Normal, Question, Signal, Stop, register

    class Backlog:
        def evaluate(self, question: Question) -> Signal:
            waiting = measure()
            return Stop(f"{waiting} mails wait") if waiting > 10_000 else Normal(f"{waiting} mails wait")

    register("mail_backlog", Backlog())

``question.query`` asks the database of the class; docs/guides/health.md has a whole example.
"""

from framework.policies.defer.health.indicator import (
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
