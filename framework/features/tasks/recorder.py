"""Record the jobs of tracked classes: at the push, at the start and the end of a run, and where they are moved without a run."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.declare.options import TRACKED
from framework.execute.recording import ElsewhereState, JobRecorder, RunRecord
from framework.features.tasks.apply import claim_events
from framework.features.tasks.change import (
    DROPPED,
    DUPLICATE,
    INTERRUPTED,
    NOT_PUSHED,
    QUARANTINED,
    EventChange,
    EventEnd,
    Message,
    clean_text,
    event_end,
    event_text,
    failure_fields,
    has_valid_jid,
    params_later,
    params_of,
)
from framework.features.tasks.writer import EventWriter, Ticket
from framework.finish.endings import Ending
from framework.finish.outcome import SUCCEEDED, Failed, RunOutcome
from framework.finish.retry import RetryDecision
from framework.known_secrets import known_secrets
from framework.process_clock import process_clock
from framework.push.job_batch import Destination, JobBatch
from framework.push.protection import NO_PROTECTION, PayloadProtection
from framework.telemetry import logs
from framework.types import Jid, Payload
from framework.wire.job import TASK, TASK_ITEMS
from framework.wire.json import dumps, loads
from framework.wire.sub_queues import parent_of

if TYPE_CHECKING:
    from framework.features.tasks.apply import SeenEvent

_PUSH_WAIT_S = 2.0
"""How long a push waits until the events of jobs that it did not write are durable; after a failure it goes on without."""

_ELSEWHERE: Mapping[ElsewhereState, EventEnd] = {
    "interrupted": INTERRUPTED,
    "quarantined": QUARANTINED,
    "dropped": DROPPED,
}


class EventRecorder(JobRecorder):
    """Record the jobs of one process. ``shard`` is that of a worker process."""

    def __init__(
        self,
        writer: EventWriter,
        params: Literal["loggable", "whole"],
        shard: str = "main",
        *,
        keeps_payloads: bool = False,
        protection: PayloadProtection = NO_PROTECTION,
    ) -> None:
        """``protection`` checks the jobs that did not run: a forged job has no event, from which it could be pushed again."""
        self._writer = writer
        self._keeps_payloads = keeps_payloads
        self._protection = protection
        self._params: Literal["loggable", "whole"] = params
        self._shard = shard
        # Without a lock: two threads may make the same recorder.
        self._of_shard: dict[str, EventRecorder] = {}

    def of(self, shard: str) -> "EventRecorder":
        """Return the recorder of the jobs that run on this shard."""
        found = self._of_shard.get(shard)
        if found is None:
            found = EventRecorder(
                self._writer,
                self._params,
                shard,
                keeps_payloads=self._keeps_payloads,
                protection=self._protection,
            )
            self._of_shard[shard] = found
        return found

    # --- a push ---------------------------------------------------------------------------------------------------

    def enqueued(self, destination: Destination, batch: JobBatch) -> None:
        changes = self._pushes(destination, batch)
        scope = PUSH_SCOPE.get()
        places = range(len(changes)) if batch.indexes is None else batch.indexes
        if scope is not None and scope.replaces:
            claim_events(self._writer.database, [scope.replaces[place] for place in places], changes)
        else:
            self._writer.write([one for one in changes if has_valid_jid(one.jid)])
        if scope is not None:
            scope.recorded.update(places)

    def not_written(self, destination: Destination, batch: JobBatch, error: BaseException) -> None:
        changes = [self._moved(destination, jid, NOT_PUSHED, f"the push failed: {error}") for jid in batch.jids]
        for change in changes:
            change.queue = parent_of(batch.queue)
        self._write_soon(changes)

    def written(self, destination: Destination, batch: JobBatch) -> None:
        self._write_soon([one for one in self._pushes(destination, batch) if has_valid_jid(one.jid)])

    def duplicates(self, destination: Destination, pairs: Sequence[tuple[Jid, Jid]]) -> None:
        changes = [self._moved(destination, jid, DUPLICATE, f"the job {owner} stands for it") for jid, owner in pairs]
        for change, (_, owner) in zip(changes, pairs, strict=True):
            change.stands_for = owner
        self._write_soon(changes)

    def pushed_by_script(self, payload: Payload, queue: str, at: float) -> EventChange | None:
        """Return the event of a job that a script has made, ``None`` if it is not recorded.

        Raises:
            PayloadError, MissingKeyError: its signature is wrong, or missing and required; this process lacks the key.
        """
        if payload.get(TRACKED.name) is not True or not has_valid_jid(payload.get("jid")):
            return None
        found = parent_of(queue or str(payload.get("queue")))
        if self._protection.signs:
            # A copy: the check marks a payload.
            self._protection.check(dict(payload), found)
        change = self._change(payload, found, _declaration_of(payload), "push", at)
        if self._keeps_payloads:
            change.payload = dumps(payload).decode()
        return change

    def _write_soon(self, changes: Sequence[EventChange]) -> None:
        """Write changes at once, and wait a little: the producer may end right after its push, and its writer with it."""
        deadline = time.monotonic() + _PUSH_WAIT_S
        for ticket in self._writer.submit_durable(changes, gives_up=False):
            ticket.wait(max(0.0, deadline - time.monotonic()))

    def _pushes(self, destination: Destination, batch: JobBatch) -> list[EventChange]:
        now, scheduled = process_clock.now(), batch.dues is not None
        changes = [
            self._pushed(destination, parent_of(batch.queue), loads(data, None), now, scheduled=scheduled)
            for data in batch.payloads
        ]
        if self._keeps_payloads:
            _keep_payloads(changes, batch)
        return changes

    def _pushed(
        self, destination: Destination, queue: str, payload: Payload, now: float, *, scheduled: bool
    ) -> EventChange:
        change = self._change(payload, queue, destination.declaration, "push", now)
        change.shard = destination.shard
        change.state = "scheduled" if scheduled else "queued"
        return change

    # --- a run ----------------------------------------------------------------------------------------------------

    def open(self, payload: Payload, queue: str) -> "EventRun":
        return EventRun(self, payload, queue, _declaration_of(payload))

    def started(self, payload: Payload, queue: str, declaration: Declaration | None) -> None:
        change = self._change(payload, queue, declaration, "start", process_clock.now())
        change.status = change.state = "working"
        self._submit(change)

    def noted(
        self, payload: Payload, queue: str, declaration: Declaration | None, text: str, fields: Mapping[str, Any]
    ) -> None:
        change = self._change(payload, queue, declaration, "note", process_clock.now())
        change.messages.append(Message(_shown(text), change.at, _encode(fields)))
        self._submit(change)

    def ended(
        self,
        payload: Payload,
        queue: str,
        declaration: Declaration | None,
        end: EventEnd,
        outcome: RunOutcome,
        decision: RetryDecision | None,
        on_durable: Callable[[], None] | None = None,
        *,
        at_once: bool = False,
    ) -> Ticket | None:
        """Record the end of a run; return the ticket that tells when it is durable."""
        if self._is_forged(payload, queue):
            return None
        change = self._change(payload, queue, declaration, "end", process_clock.now())
        if not has_valid_jid(change.jid):
            return None
        change.status, change.state = end
        if outcome is not SUCCEEDED:
            self._tell_reason(change, outcome, decision)
        if on_durable is not None:
            return self._writer.submit_end(change, on_durable, at_once=at_once)
        return self._writer.submit_durable([change], gives_up=False)[0]

    @staticmethod
    def _tell_reason(change: EventChange, outcome: RunOutcome, decision: RetryDecision | None) -> None:
        text = event_text(outcome, decision)
        change.reason = None if text.reason is None else clean_text(text.reason)
        change.error_class = text.error_class
        if isinstance(outcome, Failed) and text.reason is not None:
            message = str(outcome.error) or type(outcome.error).__name__
            change.messages.append(Message(_shown(message), change.at, _encode(failure_fields(text))))

    # --- outside of a run -----------------------------------------------------------------------------------------

    def ended_elsewhere(self, payload: Payload, queue: str, state: ElsewhereState, reason: str) -> None:
        if self._is_forged(payload, queue):
            return
        declaration = _declaration_of(payload)
        change = self._change(payload, queue, declaration, "end", process_clock.now())
        # A killed process may have been the only one that knew the start: then this is the first that the event says.
        self._add_params(change, payload, declaration)
        change.status, change.state = _ELSEWHERE[state]
        change.reason = clean_text(reason)
        change.messages.append(Message(change.reason, change.at))
        self._submit(change)

    def flush(self, timeout_s: float) -> bool:
        return self._writer.flush(timeout_s)

    def _is_forged(self, payload: Payload, queue: str) -> bool:
        """Return whether the job is not signed as it must be: a job that expires, or is dropped, ends before its check."""
        return not self._protection.accepts(payload, queue)

    def _lacks_signature(self, payload: Payload) -> bool:
        return self._protection.lacks_signature(payload)

    def _moved(self, destination: Destination, jid: Jid, end: EventEnd, reason: str) -> EventChange:
        change = EventChange(jid, "end", process_clock.now(), *end, reason=clean_text(reason), shard=destination.shard)
        change.worker = destination.declaration.wire_name
        return change

    def _change(
        self, payload: Payload, queue: str, declaration: Declaration | None, kind: Any, at: float
    ) -> EventChange:
        name, task_id = payload.get("class"), payload.get(TASK)
        change = EventChange(
            payload.get("jid") or "", kind, at, worker=str(name)[:255], queue=queue[:255], shard=self._shard
        )
        change.task_id = task_id if isinstance(task_id, str) and len(task_id) <= 32 else None
        if kind == "push":
            self._add_params(change, payload, declaration)
        elif kind == "start":
            # Almost always the push has made the event, with its arguments.
            later = params_later(payload, declaration, whole=self._params == "whole")
            change.params_later = partial(_shown_only, later) if self._lacks_signature(payload) else later
            change.items = items_of(payload)
        return change

    def _add_params(self, change: EventChange, payload: Payload, declaration: Declaration | None) -> None:
        change.params, change.whole = params_of(payload, declaration, whole=self._params == "whole")
        # Of an unsigned queue: ``retry_failed`` would push it with a signature.
        change.whole = change.whole and not self._lacks_signature(payload)
        change.items = items_of(payload)

    def _submit(self, change: EventChange) -> None:
        if has_valid_jid(change.jid):
            self._writer.submit(change)


class EventRun(RunRecord):
    __slots__ = ("_declaration", "_payload", "_queue", "_recorder")

    def __init__(self, recorder: EventRecorder, payload: Payload, queue: str, declaration: Declaration | None) -> None:
        self._recorder = recorder
        self._payload = payload
        self._queue = queue
        self._declaration = declaration

    def start(self) -> None:
        self._recorder.started(self._payload, self._queue, self._declaration)

    def note(self, message: str, fields: Mapping[str, Any]) -> None:
        self._recorder.noted(self._payload, self._queue, self._declaration, message, fields)

    def end(
        self,
        ending: Ending,
        outcome: RunOutcome,
        decision: RetryDecision | None,
        *,
        on_durable: Callable[[], None] | None = None,
        at_once: bool = False,
    ) -> Ticket | None:
        end = event_end(ending, outcome)
        if end is None:
            return None
        return self._recorder.ended(
            self._payload, self._queue, self._declaration, end, outcome, decision, on_durable, at_once=at_once
        )


def _declaration_of(payload: Payload) -> Declaration | None:
    worker: Any = registry.find(str(payload.get("class")))
    return None if worker is None else worker.declaration()


def _shown_only(params: Callable[[], tuple[str, bool]]) -> tuple[str, bool]:
    """Return arguments that are shown, and never pushed again."""
    return params()[0], False


def items_of(payload: Payload) -> int:
    """Return how many items a job of a split task has: its first argument is the list of them."""
    found = payload.get(TASK_ITEMS)
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else 1


def _keep_payloads(changes: Sequence[EventChange], batch: JobBatch) -> None:
    for place, (change, data) in enumerate(zip(changes, batch.payloads, strict=True)):
        change.payload = data.decode()
        change.due_at = None if batch.dues is None else batch.dues[place].at


def _shown(text: str) -> str:
    """Return a text for the database: an application's message may quote a URL, as in a log line."""
    return clean_text(known_secrets.masked(text))


def _encode(fields: Mapping[str, Any]) -> str | None:
    if not fields:
        return None
    try:
        return _shown(dumps(dict(fields)).decode())
    except Exception as error:  # noqa: BLE001 - fields come from the application; the message must not be lost with them
        logs.logger().warning(
            "the fields of self.record are no JSON; the message is recorded without them",
            event_name="task_event.fields_refused",
            error=error,
        )
        return None


@dataclass(slots=True)
class PushScope:
    """One bulk push of at most one chunk."""

    replaces: "Sequence[SeenEvent]" = ()
    """The events of failed jobs that the jobs run again, by the place of each job; empty for new events."""
    recorded: set[int] = field(default_factory=set[int])
    """The places of the jobs that were recorded: the others were dropped by a client middleware."""


PUSH_SCOPE: ContextVar[PushScope | None] = ContextVar("aw_push_scope", default=None)
