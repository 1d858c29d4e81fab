"""Give the jobs of a class with ``fair_by`` their sub-queues: a wrapper around the builder of its payloads."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, cast

from framework.declare.declaration import Declaration
from framework.push.edited_payloads import WrappedPayloads
from framework.push.job_batch import JobBatch, PayloadBuilder
from framework.telemetry.rate_limit import LogRateLimit
from framework.types import Payload
from framework.wire import keys
from framework.wire.compress import decompress_arguments
from framework.wire.json import loads
from framework.wire.payload_edit import set_fields
from framework.wire.sub_queues import FAIR_QUEUE, sub_queue

_LOG_INTERVAL_S = 60.0

_FIELD = f'"{FAIR_QUEUE}":'.encode()

_Columns: TypeAlias = dict[str, list[int]]


class FairPayloads(WrappedPayloads):
    """Split the batches of another builder by the keys of their jobs. Shared between threads."""

    def __init__(self, builder: PayloadBuilder, declaration: Declaration, queue: str, decompressed_limit: int) -> None:
        super().__init__(builder)
        self._decompressed_limit = decompressed_limit
        self._declaration = declaration
        self._queue = queue
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def _changed(self, batch: JobBatch) -> Sequence[JobBatch]:
        return list(self._split(batch))

    def _split(self, batch: JobBatch) -> Iterator[JobBatch]:
        """Yield the batch in parts, one per sub-queue; jobs for the schedule set stay together."""
        if batch.queue != self._queue:
            # A client middleware has sent them elsewhere.
            yield batch
            return
        names = [self._sub_queue(data) for data in batch.payloads]
        payloads = [
            data if name == batch.queue else _with_sub_queue(data, name)
            for name, data in zip(names, batch.payloads, strict=True)
        ]
        unique = None if batch.unique is None else batch.unique._replace(payloads=payloads)
        batch = batch._replace(payloads=payloads, unique=unique)
        columns: _Columns = {}
        for index, name in enumerate(names):
            columns.setdefault(batch.queue if batch.dues is not None else name, []).append(index)
        if len(columns) == 1:
            yield batch._replace(queue=next(iter(columns)))
            return
        for name, indexes in columns.items():
            yield _part(batch, name, indexes)

    def _sub_queue(self, data: bytes) -> str:
        payload: Payload = loads(data, None)
        by: Any = self._declaration.fair_by
        try:
            if isinstance(by, str):
                key = payload.get(f"meta.{by}")
            else:
                decompress_arguments(payload, self._decompressed_limit)
                key = by(tuple(payload["args"]))
            if key is None or key == "":
                return self._queue
            if isinstance(key, bool) or not isinstance(key, str | int):
                raise TypeError(f"it returned {type(key).__name__}, not a text or a number")
            return sub_queue(self._queue, str(key))
        except Exception as error:  # noqa: BLE001 - code of the application may raise anything; the push goes on
            self._log_limit.warning(
                self._declaration.wire_name,
                "fair_by raised an error, so the jobs wait in the queue itself, without a key. Correct it in the class.",
                "fair_by.failed",
                error=error,
                **{"class": self._declaration.wire_name},
            )
            return self._queue


def _with_sub_queue(data: bytes, name: str) -> bytes:
    """Return the payload with the name of its sub-queue, which needs no escapes."""
    if _FIELD in data:
        # Another value, or the name in some text.
        return set_fields(data, {FAIR_QUEUE: name})
    return b'%b,%b"%b"}' % (data[:-1], _FIELD, name.encode())


def _part(batch: JobBatch, name: str, indexes: list[int]) -> JobBatch:
    """Return some jobs of a batch as a batch of their own."""

    def chosen(column: Sequence[Any]) -> list[Any]:
        return [column[index] for index in indexes]

    unique = batch.unique
    if unique is not None:
        details = chosen(unique.details) if unique.details else ()
        unique = unique._replace(
            payloads=chosen(unique.payloads),
            lock_keys=chosen(unique.lock_keys),
            jids=chosen(unique.jids),
            details=details,
        )
    places = indexes if batch.indexes is None else cast("list[int]", chosen(batch.indexes))
    jids = chosen(batch.jids)
    # Untracked jobs have no status.
    own = {keys.status(jid) for jid in jids} if batch.statuses else ()
    statuses = [status for status in batch.statuses if status[1] in own]
    return JobBatch(name, chosen(batch.payloads), jids, None, statuses, unique, places)
