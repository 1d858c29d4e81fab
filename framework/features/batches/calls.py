"""Lead pushes to a batch: those of a block ``with batch.jobs():``, and one job with callbacks, ``set(on_death=..., on_success=...)``.

Such a job is a batch of one job, whose events enqueue the callbacks. So the step on Redis that ends the job enqueues them too: a
process that is killed loses none, and enqueues none twice.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

from framework.declare import port
from framework.declare.declaration import Declaration
from framework.declare.request import BulkRequest, JobRequest, PushRequest, Route
from framework.declare.setter import CoreSetter, setter_of
from framework.feature import Late
from framework.features.batches.payload import BatchEventName, Callback, new_bid
from framework.typeguards import is_class
from framework.types import Jid, JobState

if TYPE_CHECKING:
    from framework.features.batches.push import BatchBlock
    from framework.features.batches.store import Batches

S = TypeVar("S")

_BATCHES: "Late[type[Batches]]" = Late("framework.features.batches.store:Batches")

_LINKS: Mapping[str, BatchEventName] = {"on_death": "death", "on_success": "success"}
"""The options that name callbacks, and their events."""

_AUTOFLUSH = 2
"""More than the one job: it is written at the end of the block, in one step with its callbacks."""
_EXPIRES_IN_S = 30 * 86_400


def batches() -> "Batches":
    return port.current().service(_BATCHES)


@dataclass(frozen=True, slots=True)
class StepPart:
    """Jobs of a step that are written by one call of ``scripts/push.lua``, once."""

    workflow: str
    """The key of the workflow."""
    step: str
    number: int
    """From 1 on. A part that was written is not written again."""
    last: bool


@dataclass(slots=True)
class BuiltCallback:
    """A callback with the shard of its class."""

    shard: str
    callback: Callback


@dataclass(slots=True)
class BatchFacts:
    """The properties of a batch, before and after its first write."""

    bid: str
    description: str = ""
    callback_queue: str = ""
    expires_in_s: int = 0
    shard: str | None = None
    """Its shard; ``None`` until its first job says it."""
    exists: bool = False
    """Whether it was written, or is known by its id."""
    left_open: bool = False
    """Whether a block has ended by an error after its first write. The next block of this object closes the batch."""
    parent: "BatchFacts | None" = None
    parent_block: "BatchBlock | None" = None
    """The block that it was made in."""
    keeps_results: bool = False
    """Whether the results of its jobs are kept."""
    next_place: int = 0
    """The place of the last result, in the order of the pushes."""
    part: StepPart | None = None
    """The part of a workflow's step that the block writes."""
    callbacks: dict[BatchEventName, list[BuiltCallback]] = field(
        default_factory=dict[BatchEventName, list[BuiltCallback]]
    )
    """Callbacks that the first write stores."""


current_block: "ContextVar[BatchBlock | None]" = ContextVar("framework_batch_block", default=None)
"""The innermost open block of the thread or task."""


class BlockClient:
    """Take the place of the client while a block is open. The pushes of other threads and tasks go through unchanged."""

    def __init__(self, client: port.ClientPort) -> None:
        self.client = client

    def service(self, kind: Late[Callable[[Any], S]]) -> S:
        return self.client.service(kind)

    def push(self, request: PushRequest) -> Jid | None:
        block = current_block.get()
        return self.client.push(request) if block is None else block.push(request)

    def push_bulk(self, request: BulkRequest) -> list[Jid | None]:
        block = current_block.get()
        return self.client.push_bulk(request) if block is None else block.push_bulk(request)

    def push_up_to(self, request: PushRequest, limit: int, max_new: int | None) -> list[Jid]:
        # Jobs of a limited-capacity worker replace each other, and are in no batch.
        return self.client.push_up_to(request, limit, max_new)

    def perform_inline(self, worker: type[Any], request: PushRequest) -> Jid | None:
        # A job that runs here is in no batch.
        return self.client.perform_inline(worker, request)

    def perform_bulk_inline(self, worker: type[Any], request: BulkRequest) -> list[Jid | None]:
        return self.client.perform_bulk_inline(worker, request)

    def look_up(self, jids: Sequence[Jid]) -> dict[Jid, JobState]:
        return self.client.look_up(jids)

    def cancel(self, jid: Jid) -> bool:
        return self.client.cancel(jid)

    def route(self, declaration: Declaration) -> Route:
        return self.client.route(declaration)

    def shards_of(self, declaration: Declaration) -> tuple[str, ...]:
        return self.client.shards_of(declaration)

    def home(self, declaration: Declaration) -> str:
        return self.client.home(declaration)


@contextmanager
def collecting(block: "BatchBlock") -> Generator[None]:
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


class LinkCalls:
    """The options ``on_death`` and ``on_success`` of one push."""

    __slots__ = ()

    if TYPE_CHECKING:
        _options: Mapping[str, Any]

    def _push_linked(self, request: PushRequest) -> Jid | None:
        """Push a job with its callbacks; return its id, or ``None`` if a client middleware dropped the job.

        Raises the errors of a block ``batch.jobs()``; nothing is written then.
        """
        others = {name: value for name, value in self._options.items() if name not in _LINKS}
        around = current_block.get()
        facts = BatchFacts(new_bid(), f"Callbacks of {request.declaration.wire_name}", expires_in_s=_EXPIRES_IN_S)
        if around is not None:
            facts.parent, facts.parent_block = around.facts, around
        service = batches()
        block = service.block(facts, autoflush=_AUTOFLUSH)
        try:
            with collecting(block):
                jid = port.current().push(request._replace(options=others))
            if jid is None:
                block.abandon()
                return None
            for name, event in _LINKS.items():
                if name in self._options:
                    built = service.build_callback(facts, event, _callback_request(self._options[name], jid))
                    if built is not None:
                        facts.callbacks[event] = [built]
            block.finish()
        except BaseException:
            block.abandon()
            raise
        return jid


def _callback_request(callback: Any, jid: Jid) -> PushRequest:
    """Return the job of a callback: its ``perform`` gets the id of the job that has ended, or the arguments that were given."""
    if isinstance(callback, JobRequest):
        given = cast("JobRequest[Any]", callback)
        return PushRequest(given.declaration, given.args)
    setter = as_setter(callback)
    assert setter is not None, "the option was checked"  # noqa: S101
    return setter.request(jid)


def as_setter(value: object) -> CoreSetter[Any] | None:
    """Return ``Worker.set(...)``, or that of a worker class; ``None`` for anything else."""
    if isinstance(value, CoreSetter):
        return cast("CoreSetter[Any]", value)
    return setter_of(value) if is_class(value) and hasattr(value, "_aw_setter") else None
