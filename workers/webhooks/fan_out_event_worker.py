"""From one event to a delivery for each hook that wants it."""

from framework import ApplicationWorker
from workers.webhooks import hooks
from workers.webhooks.deliver_webhook_worker import DeliverWebhookWorker


class FanOutEventWorker(ApplicationWorker):
    """Note a delivery of the event for each hook that wants it, and push one job for each."""

    feature_category = "webhooks"
    # An event should be on its way within seconds. The deliveries cannot promise that: urgency high and external dependencies
    # exclude each other, which is why this is a worker of its own.
    urgency = "high"
    # It is pushed when the event is committed, and has to see it.
    data_consistency = "sticky"
    idempotent = True
    retry = 10

    def perform(self, event_id: int) -> None:
        waiting = hooks.undelivered(event_id)
        DeliverWebhookWorker.perform_bulk_for(
            waiting,
            arguments=lambda hook_id: DeliverWebhookWorker.arguments(event_id, hook_id),
            # Whoever asks why a hook was not called looks for its id, in the lines of all its deliveries.
            context=lambda hook_id: {"hook_id": hook_id},
        )
        self.log_extra(hooks=len(waiting))
