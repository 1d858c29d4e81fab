"""Build the payload of an iterating job that goes back to its queue."""

from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.delayed_payload import payload_leaving_queue
from framework.finish.outcome import Yielded
from framework.process_clock import process_clock
from framework.recover.suspects import SUSPECT_FIELD
from framework.wire.job import DEATH_COUNT, EXPIRES_IN, EXPIRY, INTERRUPTED_COUNT, rewrite, wire_timestamp


def yielded_payload(unit: UnitOfWork, outcome: Yielded) -> bytes:
    """Return the payload of an iterating job that goes back to its queue.

    The job has begun in time, so it no longer expires. Finished items show that it does not kill its process: earlier stops and
    deaths are no longer counted.
    """
    payload = payload_leaving_queue(unit)
    for name in (EXPIRES_IN, EXPIRY):
        payload.pop(name, None)
    if outcome.made_progress:
        for name in (INTERRUPTED_COUNT, DEATH_COUNT, SUSPECT_FIELD):
            payload.pop(name, None)
    payload["enqueued_at"] = wire_timestamp(process_clock.now())
    return rewrite(unit.data, payload)
