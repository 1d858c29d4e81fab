"""RQ: SimpleWorker, which runs jobs in the worker itself; results off."""

from collections.abc import Callable, Sequence
from typing import Any

import body
from redis import Redis
from rq import Queue

connection = Redis(port=body.port())


def prepare() -> None:
    connection.ping()


def pusher(kind: str, queue: str) -> Callable[..., object]:
    target = Queue(queue, connection=connection)
    name = f"body.{kind}"
    return lambda *args: target.enqueue(name, *args, result_ttl=0)


def bulk_pusher(kind: str, queue: str) -> Callable[[Sequence[Sequence[Any]]], object]:
    target = Queue(queue, connection=connection)
    name = f"body.{kind}"

    def push(jobs: Sequence[Sequence[Any]]) -> object:
        return target.enqueue_many([Queue.prepare_data(name, args=tuple(args), result_ttl=0) for args in jobs])

    return push
