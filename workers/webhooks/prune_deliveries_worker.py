"""Delete deliveries after a month."""

import time
from datetime import timedelta
from typing import Final

from framework import DeferOnHealth
from workers.cronjob import CronjobWorker
from workers.webhooks import hooks

KEPT: Final = timedelta(days=30)
SLICE: Final = 1000
BUDGET: Final = timedelta(seconds=20)


class PruneDeliveriesWorker(CronjobWorker):
    """Delete deliveries that ended a month ago, for as long as one run may take; the next run goes on."""

    feature_category = "webhooks"
    urgency = "throttled"
    # The one tick that does the work itself, in small slices: it can wait a tick, or ten.
    defer_on_health = DeferOnHealth(tables=("webhooks_deliveries",))

    def perform(self) -> None:
        now, deadline = time.time(), time.monotonic() + BUDGET.total_seconds()
        pruned = 0
        # In slices: each is a transaction of milliseconds, and deliveries go on in between.
        while not self.interrupted and time.monotonic() < deadline:
            count = hooks.prune(now - KEPT.total_seconds(), SLICE)
            pruned += count
            if count < SLICE:
                break
        self.log_extra(pruned=pruned)
