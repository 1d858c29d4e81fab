"""What a piece of work is about, for code that is no job: a request, a console, a script.

    from framework.context import bound

    with bound(correlation_id=request.id, caller_id="POST /orders", user=user.name):
        ShipWorker.perform_async(order.id)  # its lines, and those of the jobs it pushes, say so

``current()`` returns the flat fields that log lines carry here.
"""

from framework.telemetry.context import bound, current

__all__ = ["bound", "current"]
