"""Tell other people's systems what has happened: an event goes to every hook that wants it, one job per delivery.

``FanOutEventWorker`` -> ``DeliverWebhookWorker`` (one per hook). ``PingWebhookWorker`` tries a hook while its owner looks on,
``PruneDeliveriesWorker`` forgets old deliveries. The application calls ``hooks.record_event(name, payload)`` and pushes the
first job with the id. The URLs are users' own, so whatever is behind them is expected: nothing, a trap, an internal server.
"""
