"""Build payloads that are changed once more before they are written: encrypted, offloaded, signed."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from framework.declare.declaration import Declaration
from framework.declare.request import BulkRequest, DueTime
from framework.errors import ConfigurationError, ConfigurationProblem
from framework.push.deduplication import Deduplication
from framework.push.job_batch import JobBatch, PayloadBuilder
from framework.types import Json, Payload
from framework.wire.json import dumps, loads
from framework.wire.resources import IDEMPOTENCY_KEY

PayloadEdit: TypeAlias = Callable[[Payload], None]
"""Changes a payload in place."""


class Edits(NamedTuple):
    """Hold the changes of a class's payloads, in their order."""

    steps: Sequence[PayloadEdit] = ()
    min_bytes: int = 0
    """No change concerns payloads of fewer bytes: they are not parsed."""
    undo: Callable[[bytes], None] | None = None
    """Called with the payload of a duplicate that was dropped: what was stored for it elsewhere goes."""


def check_accumulation(declaration: Declaration) -> None:
    """Refuse a class whose jobs get the arguments of others: Redis can neither sign nor encrypt them.

    Raises:
        ConfigurationError: the class accumulates arguments.
    """
    if declaration.deduplicate is not None and declaration.deduplicate.strategy == "accumulate":
        message = (
            f"{declaration.wire_name} declares Deduplicate('accumulate'), which does not fit signed or encrypted payloads: "
            "take 'debounce', or push to a class without them"
        )
        raise ConfigurationError([ConfigurationProblem("config/application.yml", "signatures.keys", message)])


class WrappedPayloads(ABC):
    """Build batches by another builder, and change each before it is written. Shared between threads."""

    def __init__(self, builder: PayloadBuilder) -> None:
        self._builder = builder

    @abstractmethod
    def _changed(self, batch: JobBatch) -> Sequence[JobBatch]:
        """Return the batches to write instead; one for a batch of one job."""

    def one(
        self, args: list[Any], due: DueTime | None, locks: Deduplication | None, extra: Mapping[str, Json]
    ) -> JobBatch | None:
        batch = self._builder.one(args, due, locks, extra)
        return None if batch is None else self._changed(batch)[0]

    def check_bulk(self, request: BulkRequest, locks: Deduplication | None) -> deque[Any]:
        return self._builder.check_bulk(request, locks)

    def chunk(
        self,
        arguments: Any,
        start: int,
        request: BulkRequest,
        first_due_at: float | None,
        locks: Deduplication | None,
        extra: Mapping[str, Json],
    ) -> tuple[int, Sequence[JobBatch]]:
        size, batches = self._builder.chunk(arguments, start, request, first_due_at, locks, extra)
        return size, [part for batch in batches for part in self._changed(batch)]


class EditedPayloads(WrappedPayloads):
    """Change the payloads of another builder. Shared between threads."""

    def __init__(self, builder: PayloadBuilder, edits: Edits) -> None:
        super().__init__(builder)
        self._edits, self._min_bytes = edits.steps, edits.min_bytes

    def _changed(self, batch: JobBatch) -> Sequence[JobBatch]:
        return (self._edited(batch),)

    def _edited(self, batch: JobBatch) -> JobBatch:
        if self._min_bytes and max(map(len, batch.payloads)) < self._min_bytes:
            return batch
        fields: list[Payload] = [loads(data, None) for data in batch.payloads]
        for payload in fields:
            for edit in self._edits:
                edit(payload)
        payloads = [dumps(payload) for payload in fields]
        if batch.unique is None:
            return batch._replace(payloads=payloads)
        lock_keys = [str(payload[IDEMPOTENCY_KEY]) for payload in fields]
        return batch._replace(payloads=payloads, unique=batch.unique._replace(payloads=payloads, lock_keys=lock_keys))
