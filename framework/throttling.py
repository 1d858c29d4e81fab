"""Register load signals, which lower the concurrency limits of classes while a resource is overloaded.

    from framework.throttling import register

    @register
    def database_load(worker):
        seconds = seconds_used_in_the_last_minute(by=worker)
        if seconds < 20_000:
            return None
        return "hard" if has_most_connections(worker) else "soft"

One process of each shard calls the signals every ten seconds, once per limited class. A complete example is in
docs/guides/concurrency.md.
"""

from framework.features.concurrency.database_load import Strategy
from framework.features.concurrency.limits import LoadSignal, register

__all__ = ["LoadSignal", "Strategy", "register"]
