"""Deliver one event to one hook."""

import asyncio
from typing import Final

from framework import ApplicationWorker, Discard
from framework.types import Payload
from workers.webhooks import hooks
from workers.webhooks.attempt import GoneError, RefusedError, TryAgainError, attempt

LONGEST_WAIT_S: Final = 3600.0
"""The longest ``Retry-After`` that is obeyed: a receiver does not decide how long this application keeps its jobs."""


class DeliverWebhookWorker(ApplicationWorker):
    """Deliver one event to one hook, with retries for a day, and disable a hook that no longer accepts any."""

    feature_category = "webhooks"
    has_external_dependencies = True
    # A few seconds do not matter, so it waits for a replica rather than asking the primary.
    data_consistency = "delayed"
    # The receiver recognizes a repeated delivery by its id; a delivered event is not sent again.
    idempotent = True
    # One customer's slow server must not take every slot there is.
    concurrency_limit = 20
    defer_on_health = None  # SEW007: three short statements; most of its time is spent waiting for receivers
    # By the formula the last attempt is a day after the first. Receivers are down for hours, not for weeks.
    retry = 14
    # The owner of the hook sees failed deliveries there; the dead set is for faults of this application.
    dead = False

    # async: nearly all of the time is spent waiting for others, and a deadline that cancels reaches every await, whereas
    # nothing interrupts a thread that waits for a byte.
    async def perform(self, event_id: int, hook_id: int) -> None:
        # SQLite may wait for a lock: in a thread, so that the other jobs of the event loop go on.
        message = await asyncio.to_thread(hooks.message_due, event_id, hook_id)
        if message is None:
            self.log_extra(skipped="delivered already")
            return
        try:
            answer = await attempt(message)
        except GoneError as error:
            await asyncio.to_thread(hooks.record, event_id, hook_id, "failed", status=error.status, note=str(error))
            await asyncio.to_thread(hooks.disable, hook_id, str(error))
            raise Discard(str(error)) from error
        except (TryAgainError, RefusedError) as error:
            await asyncio.to_thread(hooks.record, event_id, hook_id, "pending", status=error.status, note=str(error))
            raise
        # A crash before this line sends the message once more, under the same id: at least once, for the receiver too.
        await asyncio.to_thread(hooks.record, event_id, hook_id, "delivered", status=answer.status, note=answer.excerpt)
        self.log_extra(status=answer.status)

    @classmethod
    def retry_in(cls, count: int, error: Exception, job: Payload) -> float | None:
        del count, job
        if isinstance(error, TryAgainError) and error.retry_after_s is not None:
            return min(error.retry_after_s, LONGEST_WAIT_S)
        return None

    @classmethod
    def retries_exhausted(cls, job: Payload, error: Exception) -> None:
        # Also called for a RefusedError, which is not tried again.
        event_id, hook_id = job["args"]
        status = error.status if isinstance(error, TryAgainError | RefusedError) else None
        hooks.record(event_id, hook_id, "failed", status=status, note=str(error))
        failures = hooks.failures_in_a_row(hook_id)
        if failures >= hooks.FAILURES_UNTIL_DISABLED:
            hooks.disable(hook_id, f"{failures} events in a row did not arrive, the last because {error}")
