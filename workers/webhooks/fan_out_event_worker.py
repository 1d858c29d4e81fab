"""Turn one event into a delivery for each subscribed hook."""

from framework import ApplicationWorker
from workers.webhooks import hooks
from workers.webhooks.deliver_webhook_worker import DeliverWebhookWorker


class FanOutEventWorker(ApplicationWorker):
    """Record a delivery of the event for each subscribed hook, and push one job for each."""

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
            # The ids of all hooks are logged: support looks for the id of a hook that was not called.
            context=lambda hook_id: {"hook_id": hook_id},
        )
        self.log_extra(hooks=len(waiting))
