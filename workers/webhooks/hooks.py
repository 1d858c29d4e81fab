"""The webhooks' questions and answers in SQL: hooks, events, and what became of each delivery.

Nothing counts up: whether a hook fails too often is asked of its deliveries, so a job that runs twice says nothing twice.
"""

import secrets
import time
from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

from sqlalchemy import Connection, Engine, delete, func, insert, select, tuple_, update
from sqlalchemy.dialects import sqlite

from framework import BusinessError, Discard
from framework.types import Json
from workers.database import process_engine, reading, writing
from workers.webhooks.attempt import Message
from workers.webhooks.http_post import url_problem
from workers.webhooks.tables import deliveries, events, hooks, metadata

FAILURES_UNTIL_DISABLED: Final = 5
"""After so many failed events in a row a hook is disabled."""

DeliveryState: TypeAlias = Literal["pending", "delivered", "failed"]


def create_hook(url: str, event_names: Sequence[str]) -> int:
    """Record a new hook for these events; return it with the secret that signs its messages. Raises ``BusinessError``."""
    problem = url_problem(url)
    if problem:
        raise BusinessError(problem)
    values = {
        "url": url,
        "secret": secrets.token_urlsafe(24),
        "event_names": list(event_names),
        "enabled_at": time.time(),
    }
    with writing(_engine()) as connection:
        return int(connection.execute(insert(hooks).returning(hooks.c.id), values).scalar_one())


def record_event(name: str, payload: Json) -> int:
    """Record an event; return its id, with which the fan-out is pushed after the commit."""
    with writing(_engine()) as connection:
        values = {"name": name, "payload": payload, "at": time.time()}
        return int(connection.execute(insert(events).returning(events.c.id), values).scalar_one())


def undelivered(event_id: int) -> list[int]:
    """Return the hooks without the event, and record a delivery for each. Raises ``Discard`` when there is no such event."""
    with writing(_engine()) as connection:
        name = connection.scalar(select(events.c.name).where(events.c.id == event_id))
        if name is None:
            raise Discard(f"event {event_id} was removed")
        active = connection.execute(select(hooks.c.id, hooks.c.event_names).where(hooks.c.disabled_because.is_(None)))
        noted = [
            {"event_id": event_id, "hook_id": row.id, "at": time.time()} for row in active if name in row.event_names
        ]
        if noted:
            connection.execute(sqlite.insert(deliveries).on_conflict_do_nothing(), noted)
        pending = (deliveries.c.event_id == event_id) & (deliveries.c.state == "pending")
        return list(connection.scalars(select(deliveries.c.hook_id).where(pending).order_by(deliveries.c.hook_id)))


def message_due(event_id: int, hook_id: int) -> Message | None:
    """Return the message to send, ``None`` when the receiver has it. Raises ``Discard`` without hook, event or delivery."""
    with reading(_engine()) as connection:
        hook = _require_hook(connection, hook_id)
        event = connection.execute(select(events).where(events.c.id == event_id)).one_or_none()
        if event is None:
            raise Discard(f"event {event_id} was removed")
        if connection.scalar(select(deliveries.c.state).where(_is_delivery(event_id, hook_id))) == "delivered":
            return None
        return Message(hook.url, hook.secret, f"msg_{event_id}_{hook_id}", event.name, event.payload)


def ping_message(hook_id: int) -> Message:
    """Return a test message without an event. Raises ``Discard`` when there is no such hook."""
    with reading(_engine()) as connection:
        hook = _require_hook(connection, hook_id)
    return Message(hook.url, hook.secret, f"msg_ping_{hook_id}", "ping", {"hook_id": hook_id})


def record(event_id: int, hook_id: int, state: DeliveryState, *, status: int | None, note: str) -> None:
    """Record the end of the last attempt. A delivered event stays delivered, whatever a second run says."""
    values = {"state": state, "status": status, "note": note, "at": time.time()}
    with writing(_engine()) as connection:
        mine = _is_delivery(event_id, hook_id) & (deliveries.c.state != "delivered")
        connection.execute(update(deliveries).where(mine).values(values))


def disable(hook_id: int, because: str) -> None:
    """Disable the hook until its owner enables it."""
    with writing(_engine()) as connection:
        mine = (hooks.c.id == hook_id) & hooks.c.disabled_because.is_(None)
        connection.execute(update(hooks).where(mine).values(disabled_because=because))


def enable(hook_id: int) -> None:
    """Enable the hook; its earlier failures do not count."""
    with writing(_engine()) as connection:
        values = {"disabled_because": None, "enabled_at": time.time()}
        connection.execute(update(hooks).where(hooks.c.id == hook_id).values(values))


def remove_hook(hook_id: int) -> None:
    """Delete the hook and its deliveries."""
    with writing(_engine()) as connection:
        connection.execute(delete(hooks).where(hooks.c.id == hook_id))


def failures_in_a_row(hook_id: int) -> int:
    """Return how many events failed since the last one that arrived, or since the hook was enabled."""
    mine = deliveries.c.hook_id == hook_id
    with reading(_engine()) as connection:
        arrived = (
            connection.scalar(select(func.max(deliveries.c.at)).where(mine, deliveries.c.state == "delivered")) or 0.0
        )
        enabled = connection.scalar(select(hooks.c.enabled_at).where(hooks.c.id == hook_id)) or 0.0
        later = deliveries.c.at > max(arrived, enabled)
        return connection.scalar(select(func.count()).where(mine, later, deliveries.c.state == "failed")) or 0


def prune(before: float, limit: int) -> int:
    """Delete at most ``limit`` deliveries last tried before that moment, and events without any; return how many."""
    some = select(deliveries.c.event_id, deliveries.c.hook_id).where(deliveries.c.at < before).limit(limit)
    idle = (events.c.at < before) & events.c.id.not_in(select(deliveries.c.event_id))
    with writing(_engine()) as connection:
        key = tuple_(deliveries.c.event_id, deliveries.c.hook_id)
        count = connection.execute(delete(deliveries).where(key.in_(some))).rowcount
        connection.execute(delete(events).where(events.c.id.in_(select(events.c.id).where(idle).limit(limit))))
        return count


def _engine() -> Engine:
    return process_engine("webhooks", metadata)


def _require_hook(connection: Connection, hook_id: int) -> Any:
    hook = connection.execute(select(hooks).where(hooks.c.id == hook_id)).one_or_none()
    if hook is None:
        raise Discard(f"hook {hook_id} was removed")
    if hook.disabled_because is not None:
        raise Discard(f"hook {hook_id} is disabled: {hook.disabled_because}")
    return hook


def _is_delivery(event_id: int, hook_id: int) -> Any:
    return (deliveries.c.event_id == event_id) & (deliveries.c.hook_id == hook_id)
