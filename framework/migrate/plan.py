"""Decide what happens to one waiting job: another queue, or the reason why it stays. Moves nothing."""

import signal
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.errors import PayloadError
from framework.route.router import Router
from framework.types import Payload
from framework.wire.job import CHOSEN_QUEUE, CHOSEN_SHARD, TRANSFER, decode, set_fields
from framework.wire.json import dumps, json_contains, loads, loads_object

SkipReason: TypeAlias = Literal[
    "unknown class", "retired class", "chosen queue", "other shard", "in transit", "awaited", "unreadable", "wrong type"
]
"""The reason why a job stays that is at the wrong place, or whose right place is unknown."""

_RETRY_QUEUE = "retry_queue"


class MoveDecision(NamedTuple):
    """The decision about one job.

    With a ``target`` the job moves there, with the bytes ``data``. With a ``reason`` it stays, which is reported. With
    neither it is already at its place, or is not part of the migration. ``queue`` is its present queue (empty: it names
    none).
    """

    target: str = ""
    data: bytes = b""
    reason: SkipReason | None = None
    queue: str = ""
    worker: str = ""
    jid: str = ""


KEEP = MoveDecision()
"""The decision about a job that is not part of the migration."""


class MigrationRule(Protocol):
    """Decide where jobs go."""

    def target(self, payload: Payload, queue: str) -> str | None:
        """Return the target queue of a job of ``queue``, its own if it is in its place; ``None`` if it stays, see ``reason``."""

    def reason(self, payload: Payload, queue: str) -> SkipReason: ...

    def fields(self, payload: Payload, queue: str, target: str) -> dict[str, str]:
        """Return the fields of the payload that change when the job goes to ``target``."""
        ...


class FixedTarget:
    """Send every job to the queue ``to``: the operator's choice overrides routing rules and chosen queues.

    A class that is not registered here must be in ``known_classes``, where the operator names it.
    """

    def __init__(self, to: str, known_classes: Collection[str], retired: Collection[str]) -> None:
        self._to = to
        self._known_classes = known_classes
        self._retired = retired

    def target(self, payload: Payload, queue: str) -> str | None:  # noqa: ARG002 - a MigrationRule
        name = payload["class"]
        return self._to if name in self._known_classes or registry.find(name) is not None else None

    def reason(self, payload: Payload, queue: str) -> SkipReason:  # noqa: ARG002 - a MigrationRule
        return _reason_if_unknown(payload, self._retired)

    def fields(self, payload: Payload, queue: str, target: str) -> dict[str, str]:
        """See ``MigrationRule``. A chosen queue, or a retry queue, changes to ``target`` too."""
        chosen = [name for name in (CHOSEN_QUEUE, _RETRY_QUEUE) if queue and payload.get(name) == queue]
        return dict.fromkeys(["queue", *chosen], target)


class RoutedTarget:
    """Send every job of ``shard`` where the current routing rules send its class.

    Unlike a due job (``schedule/due_job_planner.py``) a job also leaves a queue that no rule names any more: such a queue
    is to be emptied. A job stays in a queue that was chosen for it (``set(queue=...)``, ``retry_queue``), and so does a
    job of another shard.
    """

    def __init__(self, router: Router, shard: str, retired: Collection[str]) -> None:
        self._router = router
        self._shard = shard
        self._retired = retired

    def target(self, payload: Payload, queue: str) -> str | None:
        worker: Any = registry.find(payload["class"])
        if worker is None:
            return None
        declaration: Declaration = worker.declaration()
        route = self._router.route(declaration)
        chosen, named = _is_chosen_queue(payload, queue), payload.get(CHOSEN_SHARD)
        shard = (
            named
            if self._router.has_shard(named)
            else self._shard
            if chosen
            else self._router.shard_of(declaration, payload)
        )
        if shard != self._shard or (chosen and route.queue != queue):
            return None
        return route.queue

    def reason(self, payload: Payload, queue: str) -> SkipReason:
        if registry.find(payload["class"]) is None:
            return _reason_if_unknown(payload, self._retired)
        named = payload.get(CHOSEN_SHARD)
        away = self._router.has_shard(named) and named != self._shard
        return "chosen queue" if _is_chosen_queue(payload, queue) and not away else "other shard"

    def fields(self, payload: Payload, queue: str, target: str) -> dict[str, str]:  # noqa: ARG002 - a MigrationRule
        return {"queue": target}


class MigrationPlan:
    """Decide about jobs by ``rule``, limited to the queues ``sources`` and to ``classes`` (empty: all)."""

    def __init__(self, rule: MigrationRule, sources: Collection[str] = (), classes: Collection[str] = ()) -> None:
        self._rule = rule
        self._sources = frozenset(sources)
        self._classes = frozenset(classes)
        # Payloads of other classes are not parsed.
        self._may_match = json_contains(classes) if classes else None

    def covers(self, queue: str) -> bool:
        """Return whether jobs of this queue are part of the migration."""
        return not self._sources or queue in self._sources

    def decide(self, data: bytes, place: str | None = None) -> MoveDecision:
        """Return the decision about the job with these bytes. ``place`` is its queue; without it, the payload names the queue."""
        if self._may_match is not None and not self._may_match(data):
            return KEEP
        try:
            payload = decode(data)
        except PayloadError:
            return MoveDecision(reason="unreadable", queue=place or "", jid=jid_of(data))
        named = payload.get("queue")
        queue = place if place is not None else named if isinstance(named, str) else ""
        name: str = payload["class"]
        if (self._classes and name not in self._classes) or not self.covers(queue):
            return KEEP
        target = None if TRANSFER in payload else self._rule.target(payload, queue)
        if target == queue:
            return KEEP
        if target is None:
            reason = "in transit" if TRANSFER in payload else self._rule.reason(payload, queue)
            return MoveDecision(reason=reason, queue=queue, worker=name, jid=text_of(payload.get("jid")))
        try:
            changed = _rewrite(data, named, self._rule.fields(payload, queue, target))
        # The name of its queue is not valid JSON text.
        except PayloadError:
            return MoveDecision(reason="unreadable", queue=queue, worker=name, jid=text_of(payload.get("jid")))
        return MoveDecision(target, changed, None, queue, name, text_of(payload.get("jid")))


def _rewrite(data: bytes, named: object, fields: dict[str, str]) -> bytes:
    """Return the payload with these fields changed and every other byte unchanged."""
    if len(fields) == 1 and isinstance(named, str):
        # The form that nearly every client writes. Parsing the result shows whether the right field was replaced, and
        # not one among the arguments.
        likely = data.replace(_queue_field(named), _queue_field(fields["queue"]), 1)
        if loads(likely)["queue"] == fields["queue"]:
            return likely
    return set_fields(data, fields)


@lru_cache(maxsize=1_000)
def _queue_field(queue: str) -> bytes:
    return b'"queue":' + dumps(queue)


def _is_chosen_queue(payload: Payload, queue: str) -> bool:
    return bool(queue) and queue in (payload.get(CHOSEN_QUEUE), payload.get(_RETRY_QUEUE))


def _reason_if_unknown(payload: Payload, retired: Collection[str]) -> SkipReason:
    return "retired class" if payload["class"] in retired else "unknown class"


def jid_of(data: bytes) -> str:
    """Return the id of a job whose payload may be no valid one; empty for none."""
    return text_of(loads_object(data).get("jid"))


def text_of(jid: object) -> str:
    """Return the id of a job for a report; empty for none."""
    return jid[:64] if isinstance(jid, str) else ""


_MAX_JIDS = 3


@dataclass
class Skipped:
    """Jobs that stay for one reason: how many, and a few of their ids. Arguments are never shown."""

    jobs: int = 0
    jids: list[str] = field(default_factory=list[str])

    def add(self, jid: str) -> None:
        self.jobs += 1
        if jid and len(self.jids) < _MAX_JIDS:
            self.jids.append(jid)


@dataclass
class MigrationReport:
    """Count jobs by result. ``skipped`` holds what the last scan of each place found there."""

    moved: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """Counts by source queue and target queue."""
    skipped: dict[str, dict[tuple[SkipReason, str, str], Skipped]] = field(
        default_factory=dict[str, dict[tuple[SkipReason, str, str], Skipped]]
    )
    """Skipped jobs by place (the key), then by reason, queue and class."""
    still_receiving: set[str] = field(default_factory=set[str])
    """Queues in which every scan found more jobs to move: a producer still pushes them there."""
    wrong_type_keys: set[str] = field(default_factory=set[str])
    """Keys that cannot hold jobs: their type is wrong, or their name is not valid text."""

    @property
    def incomplete(self) -> bool:
        """Return whether jobs that should have moved have stayed."""
        reasons = {reason for found in self.skipped.values() for reason, _, _ in found}
        return bool(self.still_receiving) or "wrong type" in reasons

    def start_place(self, place: str) -> None:
        """Start a new scan of a place: forget what the last one found."""
        self.skipped[place] = {}

    def add_skipped(self, place: str, decision: MoveDecision, reason: SkipReason) -> None:
        """Record a job that stays."""
        found = self.skipped[place].setdefault((reason, decision.queue, decision.worker), Skipped())
        found.add(decision.jid)

    def add_moved(self, decision: MoveDecision) -> None:
        """Record a job that was moved, or would be."""
        self.moved[decision.queue, decision.target] += 1


class Quota:
    """The number of jobs that may still be moved, ``None`` for no limit. Shared by everything that one command moves."""

    def __init__(self, limit: int | None = None) -> None:
        self._remaining = limit
        self.stopped = False
        """True after a request to stop: all jobs not moved yet stay."""

    @property
    def exhausted(self) -> bool:
        """True if no further job may be moved."""
        return self.stopped or (self._remaining is not None and self._remaining <= 0)

    @property
    def remaining(self) -> int | None:
        """The number of jobs left, ``None`` for no limit."""
        return 0 if self.stopped else self._remaining

    def stop_on_signals(self) -> None:
        """Stop at the first INT or TERM: jobs that were set aside return, or move first. A second signal ends the process."""

        def stop(_number: int, _frame: object) -> None:
            if self.stopped:
                raise KeyboardInterrupt
            self.stopped = True

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)

    def use(self, count: int) -> None:
        """Record that jobs were moved."""
        if self._remaining is not None:
            self._remaining -= count
