"""Isolate the workers of each test, and record their pushes in a list."""

from collections.abc import Iterator
from typing import Any

import pytest

from framework.declare import port, registry
from framework.declare.declaration import Declaration
from framework.declare.request import BulkRequest, PushRequest, Route, bind_all


class Recorder:
    """Record the calls of the client port."""

    def __init__(self) -> None:
        self.pushed: list[PushRequest] = []
        self.bulks: list[BulkRequest] = []
        self.inline: list[tuple[type[Any], PushRequest]] = []

    def push(self, request: PushRequest) -> str | None:
        self.pushed.append(request)
        return f"jid{len(self.pushed)}"

    def push_bulk(self, request: BulkRequest) -> list[str | None]:
        args = bind_all(request.declaration.signature, request.args)
        self.bulks.append(request._replace(args=args))
        return [f"jid{index}" for index in range(len(args))]

    def push_up_to(self, request: PushRequest, limit: int, max_new: int | None) -> list[str]:
        self.pushed.append(request)
        return [f"jid{len(self.pushed)}"][: limit if max_new is None else max_new]

    def perform_inline(self, worker: type[Any], request: PushRequest) -> None:
        self.inline.append((worker, request))

    def route(self, declaration: Declaration) -> Route:
        return Route(declaration.generated_queue, "main", None)

    def shards_of(self, declaration: Declaration) -> tuple[str, ...]:
        return (self.home(declaration),)

    def home(self, declaration: Declaration) -> str:
        return self.route(declaration).shard


@pytest.fixture(autouse=True)
def _own_registry() -> Iterator[None]:
    with registry.isolated():
        yield


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recorder = Recorder()
    with port.override(recorder):
        yield recorder
