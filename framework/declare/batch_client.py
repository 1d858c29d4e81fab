"""Lead the pushes of a block ``with batch.jobs():`` to the batch, as long as a block is open in this process."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from framework.declare import port
from framework.declare.batch_port import JobCollector
from framework.declare.declaration import Declaration
from framework.declare.request import BulkRequest, PushRequest, Route
from framework.feature import Late
from framework.types import Jid, JobState

S = TypeVar("S")

current_block: ContextVar[JobCollector | None] = ContextVar("framework_batch_block", default=None)
"""The innermost open block of the thread or task."""


class BlockClient:
    """Take the place of the client while a block is open. The pushes of other threads and tasks go through unchanged."""

    def __init__(self, client: port.ClientPort) -> None:
        self.client = client

    def service(self, kind: Late[Callable[[Any], S]]) -> S:
        return self.client.service(kind)

    def push(self, request: PushRequest) -> Jid | None:
        """See ``ClientPort``; a job of the block is written at its end."""
        block = current_block.get()
        return self.client.push(request) if block is None else block.push(request)

    def push_bulk(self, request: BulkRequest) -> list[Jid | None]:
        """See ``ClientPort``; as ``push``."""
        block = current_block.get()
        return self.client.push_bulk(request) if block is None else block.push_bulk(request)

    def push_up_to(self, request: PushRequest, limit: int, max_new: int | None) -> list[Jid]:
        """See ``ClientPort``. Jobs of a limited-capacity worker replace each other, and are in no batch."""
        return self.client.push_up_to(request, limit, max_new)

    def perform_inline(self, worker: type[Any], request: PushRequest) -> Jid | None:
        """See ``ClientPort``. A job that runs here is in no batch."""
        return self.client.perform_inline(worker, request)

    def perform_bulk_inline(self, worker: type[Any], request: BulkRequest) -> list[Jid | None]:
        return self.client.perform_bulk_inline(worker, request)

    def look_up(self, jids: Sequence[Jid]) -> dict[Jid, JobState]:
        return self.client.look_up(jids)

    def cancel(self, jid: Jid) -> bool:
        return self.client.cancel(jid)

    def route(self, declaration: Declaration) -> Route:
        return self.client.route(declaration)


@contextmanager
def collecting(block: JobCollector) -> Generator[None]:
    """Let the pushes of this thread or task go to the block."""
    token = current_block.set(block)
    try:
        found = port.current()
        # Another thread may have a block open. One replacement serves both: a chain would grow while there is always one open.
        client = found.client if isinstance(found, BlockClient) else found
        # No push outside of a block pays for a question: the client is replaced only while one is open.
        with port.override(BlockClient(client)):
            yield
    finally:
        current_block.reset(token)
