"""Give the jobs of a class with ``fair_by`` or ``priority`` their sub-queues."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from framework.declare.declaration import Declaration
from framework.declare.options import PRIORITIES
from framework.errors import ArgumentsError
from framework.push.client import Client
from framework.push.job_batch import JobBatch, PayloadBuilder
from framework.push.protection import WrappedPayloads
from framework.push.push_plan import PushPlan
from framework.telemetry.logs import LogRateLimit
from framework.types import Payload
from framework.wire.compress import decompress_arguments
from framework.wire.job import set_fields
from framework.wire.json import loads
from framework.wire.protected import digest_of_key
from framework.wire.sub_queues import NORMAL, PRIORITY, SUB_QUEUE, list_of, sub_queue

_LOG_INTERVAL_S = 60.0

_FIELD = f'"{SUB_QUEUE}":'.encode()

JOBS_PER_SCRIPT = 250
"""Jobs of several sub-queues in one script: a millisecond of Redis's time."""


def add_sub_queues(plan: PushPlan, client: Client) -> PushPlan:
    """Let the jobs of a class with ``fair_by`` or ``priority`` go to the sub-queues of its queue. Raises ArgumentsError."""
    declaration, options = plan.declaration, plan.options
    if PRIORITY in options:
        _check_priority(declaration, options)
    if has_sub_queues(declaration):
        # A queue that the push chooses has none.
        if plan.queue != client.route(declaration).queue:
            return plan
    # Another program's class: its processes know of the levels.
    elif PRIORITY not in options:
        return plan
    level = None if client.has_middleware else options.get(PRIORITY, declaration.priority)
    payloads = SubQueuePayloads(plan.payloads, declaration, plan.queue, client.decompressed_limit, level)
    return plan._replace(payloads=payloads)


class SubQueuePayloads(WrappedPayloads):
    """Give the jobs of another builder the sub-queues of their keys and levels. Shared between threads.

    ``level`` is that of all jobs; without one each payload says its own, as a client middleware may set it.
    """

    def __init__(
        self, builder: PayloadBuilder, declaration: Declaration, queue: str, decompressed_limit: int, level: str | None
    ) -> None:
        super().__init__(builder)
        self._level = level
        self._decompressed_limit = decompressed_limit
        self._declaration = declaration
        self._queue = queue
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def _changed(self, batch: JobBatch) -> Sequence[JobBatch]:
        return list(self._split(batch))

    def _split(self, batch: JobBatch) -> Iterator[JobBatch]:
        """Yield the jobs in batches of one script each; jobs for the schedule set stay together."""
        if batch.queue != self._queue:
            # A client middleware has sent them elsewhere.
            yield batch
            return
        if self._declaration.fair_by is None and self._level is not None:
            fields = [sub_queue(self._queue, "", self._level)] * len(batch.payloads)
        else:
            fields = [self._sub_queue(loads(data, None)) for data in batch.payloads]
        payloads = [
            data if field == batch.queue else _with_sub_queue(data, field)
            for field, data in zip(fields, batch.payloads, strict=True)
        ]
        names = list(map(list_of, fields))
        unique = None if batch.unique is None else batch.unique._replace(payloads=payloads)
        batch = batch._replace(payloads=payloads, unique=unique)
        if batch.dues is not None or len(names) == 1:
            yield batch if batch.dues is not None else batch._replace(queue=names[0])
            return
        columns: dict[str, list[int]] = {}
        for index, name in enumerate(names):
            columns.setdefault(name, []).append(index)
        if own := columns.pop(batch.queue, None):
            yield batch.chosen(batch.queue, own)
        if batch.unique is not None or len(columns) == 1:
            # A duplicate is found by a script of one list.
            for name, indexes in columns.items():
                yield batch.chosen(name, indexes)
            return
        order = [index for indexes in columns.values() for index in indexes]
        for start in range(0, len(order), JOBS_PER_SCRIPT):
            part = order[start : start + JOBS_PER_SCRIPT]
            yield batch.chosen(batch.queue, part)._replace(lists=[names[index] for index in part])

    def _sub_queue(self, payload: Payload) -> str:
        level = self._level
        if level is None and not _is_own_class_without_priority(self._declaration):
            level = PRIORITIES.of(None, payload) or NORMAL
        return sub_queue(self._queue, self._key(payload), level)

    def _key(self, payload: Payload) -> str:
        by: Any = self._declaration.fair_by
        if by is None:
            return ""
        try:
            if isinstance(by, str):
                key = payload.get(f"meta.{by}")
            else:
                decompress_arguments(payload, self._decompressed_limit)
                key = by(tuple(payload["args"]))
            if key is None or key == "":
                return ""
            if isinstance(key, bool) or not isinstance(key, str | int):
                raise TypeError(f"it returned {type(key).__name__}, not a text or a number")
            hides = self._declaration.encrypt and callable(by)
            return digest_of_key(self._declaration.wire_name, key) if hides else str(key)
        except Exception as error:  # noqa: BLE001 - code of the application may raise anything; the push goes on
            self._log_limit.warning(
                self._declaration.wire_name,
                "fair_by raised an error, so the jobs wait in the queue itself, without a key. Correct it in the class.",
                "fair_by.failed",
                error=error,
                **{"class": self._declaration.wire_name},
            )
            return ""


def has_sub_queues(declaration: Declaration) -> bool:
    return declaration.fair_by is not None or declaration.priority is not None


def _check_priority(declaration: Declaration, options: Mapping[str, Any]) -> None:
    """Refuse the option ``priority`` for a class without the attribute: no process would look for its jobs.

    Raises:
        ArgumentsError: the class of this program declares no priority.
    """
    if PRIORITY in options and _is_own_class_without_priority(declaration):
        reason = f"set(priority={options[PRIORITY]!r}) needs the attribute: declare priority = 'normal' in the class"
        raise ArgumentsError(declaration.qualified_name, reason)


def _is_own_class_without_priority(declaration: Declaration) -> bool:
    """Return whether this program has the class, and it declares no priority. Of another program's class only the name is known."""
    return declaration.priority is None and declaration.module != ""


def _with_sub_queue(data: bytes, name: str) -> bytes:
    """Return the payload with the name of its sub-queue, which needs no escapes."""
    if _FIELD in data:
        # Another value, or the name in some text.
        return set_fields(data, {SUB_QUEUE: name})
    return b'%b,%b"%b"}' % (data[:-1], _FIELD, name.encode())
