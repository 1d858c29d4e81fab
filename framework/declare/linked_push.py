"""Push one job with callbacks (``set(on_death=..., on_success=...)``): as a batch of one job, whose events enqueue them.

So the step on Redis that ends the job enqueues the callback too: a process that is killed loses none, and enqueues none twice.
"""

from collections.abc import Callable, Mapping
from typing import Any

from framework.declare import batch_client, port
from framework.declare.batch_port import BATCHES, BatchFacts
from framework.declare.request import PushRequest
from framework.types import Jid
from framework.wire.batch_fields import BatchEventName, new_bid

LINKS: Mapping[str, BatchEventName] = {"on_death": "death", "on_success": "success"}
"""The options that name callbacks, and their events."""

_AUTOFLUSH = 2
"""More than the one job: it is written at the end of the block, in one step with its callbacks."""
_EXPIRES_IN_S = 30 * 86_400


def push_linked(
    request: PushRequest, callbacks: Mapping[BatchEventName, Any], request_of: Callable[[Any, Jid], PushRequest]
) -> Jid | None:
    """Push a job with its callbacks; return its id, or ``None`` if a client middleware dropped the job.

    ``request_of`` returns the request of a callback, given the id of the job.

    Raises the errors of a block ``batch.jobs()``; nothing is written then.
    """
    around = batch_client.current_block.get()
    facts = BatchFacts(new_bid(), f"Callbacks of {request.declaration.wire_name}", expires_in_s=_EXPIRES_IN_S)
    if around is not None:
        facts.parent, facts.parent_block = around.facts, around
    batches = port.current().service(BATCHES)
    collector = batches.block(facts, autoflush=_AUTOFLUSH)
    try:
        with batch_client.collecting(collector):
            jid = port.current().push(request)
        if jid is None:
            collector.abandon()
            return None
        for event, callback in callbacks.items():
            built = batches.build_callback(facts, event, request_of(callback, jid))
            if built is not None:
                facts.callbacks[event] = [built]
        collector.finish()
    except BaseException:
        collector.abandon()
        raise
    return jid
