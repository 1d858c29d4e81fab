"""Run the jobs on a real queue and a real server: deliveries, retries, final failures, and disabled hooks."""

import base64
import hashlib
import hmac
import json
import time

import pytest
from sqlalchemy import select, update

from demo.receiver import Receiver
from framework import BusinessError, Discard
from tests.workers.conftest import Installation
from workers.database import process_engine, reading, writing
from workers.webhooks import hooks
from workers.webhooks.attempt import RefusedError, TryAgainError
from workers.webhooks.deliver_webhook_worker import LONGEST_WAIT_S, DeliverWebhookWorker
from workers.webhooks.fan_out_event_worker import FanOutEventWorker
from workers.webhooks.ping_webhook_worker import PingWebhookWorker
from workers.webhooks.prune_deliveries_worker import KEPT, PruneDeliveriesWorker
from workers.webhooks.tables import deliveries, events, metadata


def state(event_id: int, hook_id: int) -> tuple[str, int | None, str | None] | None:
    mine = (deliveries.c.event_id == event_id) & (deliveries.c.hook_id == hook_id)
    with reading(process_engine("webhooks", metadata)) as connection:
        wanted = select(deliveries.c.state, deliveries.c.status, deliveries.c.note).where(mine)
        found = connection.execute(wanted).one_or_none()
        return tuple(found) if found else None


def pushed(receiver: Receiver, path: str = "/ok", name: str = "order.paid") -> tuple[int, int]:
    """Record an event with one subscribed hook, and fan it out."""
    hook_id = hooks.create_hook(receiver.url(path), [name])
    event_id = hooks.record_event(name, {"order": 7})
    FanOutEventWorker.perform_inline(event_id)
    return event_id, hook_id


def give_up(event_id: int, hook_id: int) -> None:
    """Fail a delivery and call its hook retries_exhausted, as the framework does after the last retry."""
    with pytest.raises((TryAgainError, RefusedError)) as caught:
        DeliverWebhookWorker.perform_inline(event_id, hook_id)
    DeliverWebhookWorker.retries_exhausted({"args": [event_id, hook_id]}, caught.value)


def test_event_goes_to_every_subscribed_hook(installation: Installation, receiver: Receiver) -> None:
    subscribed_hook = hooks.create_hook(receiver.url("/a"), ["order.paid", "order.sent"])
    hooks.create_hook(receiver.url("/b"), ["order.sent"])
    disabled = hooks.create_hook(receiver.url("/c"), ["order.paid"])
    hooks.disable(disabled, "its owner asked for it")
    also_subscribed = hooks.create_hook(receiver.url("/d"), ["order.paid"])
    event_id = hooks.record_event("order.paid", {"order": 7})
    FanOutEventWorker.perform_inline(event_id)
    assert [(job["queue"], job["meta.hook_id"]) for job in installation.jobs.enqueued()] == [
        ("external", subscribed_hook),
        ("external", also_subscribed),
    ]
    assert installation.take() == [
        ("DeliverWebhookWorker", event_id, subscribed_hook),
        ("DeliverWebhookWorker", event_id, also_subscribed),
    ]
    DeliverWebhookWorker.perform_inline(event_id, subscribed_hook)
    FanOutEventWorker.perform_inline(event_id)
    assert installation.take() == [("DeliverWebhookWorker", event_id, also_subscribed)]


def test_delivery_is_signed_and_sent_once(installation: Installation, receiver: Receiver) -> None:
    event_id, hook_id = pushed(receiver)
    message = hooks.message_due(event_id, hook_id)
    assert message
    for _ in range(2):
        DeliverWebhookWorker.perform_inline(event_id, hook_id)
    (request,) = receiver.requests
    assert json.loads(request.body) == {"type": "order.paid", "data": {"order": 7}}
    signed = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode() + request.body
    expected = base64.b64encode(hmac.new(message.secret.encode(), signed, hashlib.sha256).digest()).decode()
    assert request.headers["webhook-signature"] == f"v1,{expected}"
    assert abs(time.time() - int(request.headers["webhook-timestamp"])) < 60
    assert state(event_id, hook_id) == ("delivered", 200, "thanks")


@pytest.mark.parametrize(
    ("path", "error", "status", "wait"),
    [
        ("/busy", TryAgainError, 429, 7.0),
        ("/down", TryAgainError, 503, None),
        ("/broken", TryAgainError, None, None),
        ("/missing", RefusedError, 404, None),
        ("/redirect", RefusedError, 302, None),
    ],
)
def test_delivery_refused_ends_by_the_answer(
    installation: Installation,
    receiver: Receiver,
    path: str,
    error: type[Exception],
    status: int | None,
    wait: float | None,
) -> None:
    event_id, hook_id = pushed(receiver, path)
    ids = set()
    for _ in range(2):
        with pytest.raises(error) as caught:
            DeliverWebhookWorker.perform_inline(event_id, hook_id)
        ids.add(receiver.requests[-1].headers["webhook-id"])
    assert len(ids) == 1  # by which the receiver recognizes the second attempt
    assert isinstance(caught.value, BusinessError) == (error is RefusedError)
    assert state(event_id, hook_id) == ("pending", status, str(caught.value))
    assert DeliverWebhookWorker.retry_in(0, caught.value, {}) == wait


def test_delivery_without_answer_is_retried(
    installation: Installation, receiver: Receiver, short_timeout: None
) -> None:
    event_id, hook_id = pushed(receiver, "/silent")
    with pytest.raises(TryAgainError, match="no answer within"):
        DeliverWebhookWorker.perform_inline(event_id, hook_id)


def test_retry_after_is_bounded() -> None:
    for asked in (LONGEST_WAIT_S + 1, float("inf")):
        assert DeliverWebhookWorker.retry_in(3, TryAgainError("", retry_after_s=asked), {}) == LONGEST_WAIT_S
    assert DeliverWebhookWorker.retry_in(0, ValueError(), {}) is None


def test_delivery_to_a_private_address_is_refused(installation: Installation, receiver: Receiver) -> None:
    hook_id = hooks.create_hook("http://169.254.169.254/latest/meta-data", ["order.paid"])
    event_id = hooks.record_event("order.paid", None)
    FanOutEventWorker.perform_inline(event_id)
    with pytest.raises(BusinessError, match="no public address"):
        DeliverWebhookWorker.perform_inline(event_id, hook_id)


def test_delivery_answered_410_disables_the_hook(installation: Installation, receiver: Receiver) -> None:
    event_id, hook_id = pushed(receiver, "/gone")
    with pytest.raises(Discard, match="gone"):
        DeliverWebhookWorker.perform_inline(event_id, hook_id)
    assert state(event_id, hook_id) == ("failed", 410, "the receiver says it is gone")
    with pytest.raises(Discard, match=f"hook {hook_id} is disabled: the receiver says it is gone"):
        DeliverWebhookWorker.perform_inline(event_id, hook_id)
    assert len(receiver.requests) == 1


def test_hook_with_failures_in_a_row_is_disabled(installation: Installation, receiver: Receiver) -> None:
    hook_id = hooks.create_hook(receiver.url("/missing"), ["e"])
    numbers = [hooks.record_event("e", number) for number in range(hooks.FAILURES_UNTIL_DISABLED)]
    for event_id in numbers:
        FanOutEventWorker.perform_inline(event_id)
    for event_id in numbers[:-1]:
        give_up(event_id, hook_id)
        DeliverWebhookWorker.retries_exhausted({"args": [event_id, hook_id]}, TryAgainError("a second time"))
    assert hooks.failures_in_a_row(hook_id) == len(numbers) - 1  # a second run changes nothing
    give_up(numbers[-1], hook_id)
    with pytest.raises(Discard, match="5 events in a row did not arrive, the last because the receiver answered 404"):
        PingWebhookWorker.perform_inline(hook_id)
    hooks.enable(hook_id)
    assert hooks.failures_in_a_row(hook_id) == 0


def test_delivery_that_arrives_ends_the_failures_in_a_row(installation: Installation, receiver: Receiver) -> None:
    hook_id = hooks.create_hook(receiver.url(), ["e"])
    numbers = [hooks.record_event("e", number) for number in range(3)]
    for event_id in numbers:
        FanOutEventWorker.perform_inline(event_id)
    DeliverWebhookWorker.retries_exhausted({"args": [numbers[0], hook_id]}, OSError("x"))
    DeliverWebhookWorker.perform_inline(numbers[1], hook_id)
    assert hooks.failures_in_a_row(hook_id) == 0
    DeliverWebhookWorker.retries_exhausted({"args": [numbers[1], hook_id]}, OSError("x"))
    assert state(numbers[1], hook_id) == ("delivered", 200, "thanks")
    DeliverWebhookWorker.retries_exhausted({"args": [numbers[2], hook_id]}, OSError("x"))
    assert hooks.failures_in_a_row(hook_id) == 1


def test_delivery_of_a_removed_hook_is_discarded(installation: Installation, receiver: Receiver) -> None:
    event_id, hook_id = pushed(receiver)
    hooks.remove_hook(hook_id)
    with pytest.raises(Discard, match=f"hook {hook_id} was removed"):
        DeliverWebhookWorker.perform_inline(event_id, hook_id)
    with pytest.raises(Discard, match="event 404 was removed"):
        FanOutEventWorker.perform_inline(404)
    other = hooks.create_hook(receiver.url(), ["order.paid"])
    assert other > hook_id
    with pytest.raises(Discard, match="event 404 was removed"):
        DeliverWebhookWorker.perform_inline(404, other)
    assert receiver.requests == []


def test_ping_sends_a_message_to_the_hook(installation: Installation, receiver: Receiver) -> None:
    PingWebhookWorker.perform_inline(hooks.create_hook(receiver.url(), []))
    assert json.loads(receiver.requests[0].body)["type"] == "ping"
    with pytest.raises(TryAgainError, match="answered 503"):
        PingWebhookWorker.perform_inline(hooks.create_hook(receiver.url("/down"), []))


def test_hook_with_wrong_url_is_refused(installation: Installation) -> None:
    with pytest.raises(BusinessError, match="begins with http"):
        hooks.create_hook("javascript:alert(1)", [])


def test_prune_removes_old_deliveries(
    installation: Installation, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.webhooks.prune_deliveries_worker.SLICE", 2)
    old = [pushed(receiver, name=f"e{number}") for number in range(5)]
    with writing(process_engine("webhooks", metadata)) as connection:
        then = time.time() - KEPT.total_seconds() - 60
        connection.execute(update(deliveries).values(at=then))
        connection.execute(update(events).values(at=then))
    new = pushed(receiver, name="new")
    PruneDeliveriesWorker.perform_inline()
    assert [state(*one) for one in old] == [None] * 5
    assert state(*new) == ("pending", None, None)
    with reading(process_engine("webhooks", metadata)) as connection:
        assert list(connection.scalars(select(events.c.name))) == ["new"]
