"""Dramatiq: one worker process, no result backend."""

from collections.abc import Callable
from typing import Any

import body
import dramatiq
from dramatiq.brokers.redis import RedisBroker

broker = RedisBroker(url=body.url())
dramatiq.set_broker(broker)

ACTORS: dict[str, Any] = {
    kind: dramatiq.actor(work, actor_name=kind)
    for kind, work in {
        "noop": body.noop,
        "cpu": body.cpu,
        "io": body.io,
        "payload": body.payload,
        "latency": body.latency,
    }.items()
}


def prepare() -> None:
    broker.client.ping()


def pusher(kind: str, _queue: str) -> Callable[..., object]:
    push: Callable[..., object] = ACTORS[kind].send
    return push


def bulk_pusher(_kind: str, _queue: str) -> None:
    """Return None: it has no bulk push."""
