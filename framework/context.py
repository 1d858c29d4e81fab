"""Set logging context for code that is not a job: a request, a console, a script.

    from framework.context import bound

    with bound(correlation_id=request.id, caller_id="POST /orders", user=user.name):
        ShipWorker.perform_async(order.id)  # its log lines, and those of its jobs, carry these fields

``current()`` returns the fields that log lines carry here.
"""

from framework.telemetry.context import bound, current

__all__ = ["bound", "current"]
