"""Send a test event to one hook, for the button "Test"."""

import asyncio
from datetime import timedelta

from framework import ApplicationWorker
from workers.webhooks import hooks
from workers.webhooks.attempt import attempt


class PingWebhookWorker(ApplicationWorker):
    """Send a test message to a hook; its owner waits for the result."""

    feature_category = "webhooks"
    has_external_dependencies = True
    data_consistency = "sticky"
    # Two presses of the button make one job.
    idempotent = True
    # Any user may press it, and name a server that takes ten seconds to answer.
    concurrency_limit = 5
    defer_on_health = None  # SEW007: it reads one row, and a user waits for it
    # The user sees that it failed, and presses the button again.
    retry = False
    # The page asks by the job's id, see ``framework.status``: completed, or failed.
    status_expiration = timedelta(minutes=10)

    async def perform(self, hook_id: int) -> None:
        message = await asyncio.to_thread(hooks.ping_message, hook_id)
        answer = await attempt(message)
        self.log_extra(status=answer.status)
