"""Deliver events to other systems: an event goes to every subscribed hook, one job per delivery.

``FanOutEventWorker`` -> ``DeliverWebhookWorker`` (one per hook). ``PingWebhookWorker`` tries a hook for its owner,
``PruneDeliveriesWorker`` deletes old deliveries. The application calls ``hooks.record_event(name, payload)`` and pushes the
first job with the id. Users choose the URLs, so behind one may be nothing, a hostile server, or an internal one.
"""
