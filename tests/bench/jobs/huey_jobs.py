"""Huey: worker threads, blocking pops, results off."""

from collections.abc import Callable
from typing import Any

import body
from huey import RedisHuey

huey = RedisHuey("bench", url=body.url(), results=False)

TASKS: dict[str, Any] = {
    kind: huey.task(name=kind)(work)
    for kind, work in {
        "noop": body.noop,
        "cpu": body.cpu,
        "io": body.io,
        "payload": body.payload,
        "latency": body.latency,
    }.items()
}


def prepare() -> None:
    huey.storage.conn.ping()


def pusher(kind: str, _queue: str) -> Callable[..., object]:
    push: Callable[..., object] = TASKS[kind]
    return push


def bulk_pusher(_kind: str, _queue: str) -> None:
    """Return None: it has no bulk push."""
