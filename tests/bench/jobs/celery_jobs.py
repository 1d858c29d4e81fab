"""Celery: one process, pool of threads, results ignored, prefetch by default."""

from collections.abc import Callable
from typing import Any

import body
from celery import Celery

app = Celery("bench", broker=body.url())
app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)

TASKS: dict[str, Any] = {
    kind: app.task(name=kind)(work)
    for kind, work in {
        "noop": body.noop,
        "cpu": body.cpu,
        "io": body.io,
        "payload": body.payload,
        "latency": body.latency,
    }.items()
}


def prepare() -> None:
    app.connection_for_write().ensure_connection()


def pusher(kind: str, _queue: str) -> Callable[..., object]:
    push: Callable[..., object] = TASKS[kind].delay
    return push


def bulk_pusher(_kind: str, _queue: str) -> None:
    """Return None: it has no bulk push."""
