"""Works out what becomes of one job that waits: another queue, or why it stays. Moves nothing."""

import re
from collections.abc import Collection
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, cast

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.errors import PayloadError
from framework.route.router import Router
from framework.types import Payload
from framework.wire.job import CHOSEN_QUEUE, CHOSEN_SHARD, TRANSFER, decode
from framework.wire.json import dumps, loads
from framework.wire.payload_edit import set_fields

SkipReason: TypeAlias = Literal[
    "unknown class", "retired class", "chosen queue", "other shard", "in transit", "unreadable", "wrong type"
]
"""Why a job is left in place that is not where it belongs, or of which nobody can say where it belongs."""

_RETRY_QUEUE = "retry_queue"


class MoveDecision(NamedTuple):
    """What becomes of one job.

    With a ``target`` it goes there, as ``data``. With a ``reason`` it is left in place, which is told. With neither it is where it
    belongs, or was not asked about. ``queue`` is where it is (empty: it names none).
    """

    target: str = ""
    data: bytes = b""
    reason: SkipReason | None = None
    queue: str = ""
    worker: str = ""
    jid: str = ""


KEEP = MoveDecision()
"""Of a job that is not asked about."""


class MigrationRule(Protocol):
    """Says where jobs go."""

    def target(self, payload: Payload, queue: str) -> str | None:
        """Return the queue that a job of ``queue`` goes to, its own if it is there; ``None``: see ``reason``."""

    def reason(self, payload: Payload, queue: str) -> SkipReason:
        """Return why a job is left in place."""
        ...

    def fields(self, payload: Payload, queue: str, target: str) -> dict[str, str]:
        """Return the fields of the payload that change when the job goes to ``target``."""
        ...


class FixedTarget:
    """Every job goes to the queue ``to``: the operator says so, and it stands over rules and choices.

    A class that is not registered here must be among those ``named``: whoever names it knows it.
    """

    def __init__(self, to: str, known_classes: Collection[str], retired: Collection[str]) -> None:
        self._to = to
        self._known_classes = known_classes
        self._retired = retired

    def target(self, payload: Payload, queue: str) -> str | None:  # noqa: ARG002 - a Rule
        """See ``Rule``."""
        name = payload["class"]
        return self._to if name in self._known_classes or registry.find(name) is not None else None

    def reason(self, payload: Payload, queue: str) -> SkipReason:  # noqa: ARG002 - a Rule
        """See ``Rule``."""
        return _reason_if_unknown(payload, self._retired)

    def fields(self, payload: Payload, queue: str, target: str) -> dict[str, str]:
        """See ``Rule``. A queue that was chosen, or that its retries go to, is called ``target`` from now on."""
        chosen = [name for name in (CHOSEN_QUEUE, _RETRY_QUEUE) if queue and payload.get(name) == queue]
        return dict.fromkeys(["queue", *chosen], target)


class RoutedTarget:
    """Every job goes where the routing rules of today send its class; jobs of the ``shard`` that is gone through.

    Unlike a due job (``schedule/destination.py``) it follows them out of a queue that no rule names any more: that queue is what
    is to be left. Stays what somebody chose (``set(queue=...)``, ``retry_queue``). What belongs to another shard is left too.
    """

    def __init__(self, router: Router, shard: str, retired: Collection[str]) -> None:
        self._router = router
        self._shard = shard
        self._retired = retired

    def target(self, payload: Payload, queue: str) -> str | None:
        """See ``Rule``."""
        worker: Any = registry.find(payload["class"])
        if worker is None:
            return None
        declaration: Declaration = worker.declaration()
        route = self._router.route(declaration)
        chosen, named = _is_chosen_queue(payload, queue), payload.get(CHOSEN_SHARD)
        shard = named if self._router.has_shard(named) else self._shard if chosen else route.shard
        if shard != self._shard or (chosen and route.queue != queue):
            return None
        return route.queue

    def reason(self, payload: Payload, queue: str) -> SkipReason:
        """See ``Rule``."""
        if registry.find(payload["class"]) is None:
            return _reason_if_unknown(payload, self._retired)
        named = payload.get(CHOSEN_SHARD)
        away = self._router.has_shard(named) and named != self._shard
        return "chosen queue" if _is_chosen_queue(payload, queue) and not away else "other shard"

    def fields(self, payload: Payload, queue: str, target: str) -> dict[str, str]:  # noqa: ARG002 - a Rule
        """See ``Rule``."""
        return {"queue": target}


class MigrationPlan:
    """Judges jobs by ``rule``, but only those of the queues ``sources`` and of ``classes`` (empty: of all)."""

    def __init__(self, rule: MigrationRule, sources: Collection[str] = (), classes: Collection[str] = ()) -> None:
        self._rule = rule
        self._sources = frozenset(sources)
        self._classes = frozenset(classes)
        # Of other classes a payload is not parsed. A name may be written with escapes.
        names = [rb"\\u00", *(re.escape(name.encode()) for name in sorted(classes))]
        self._may_match = re.compile(b"|".join(names)).search if classes else None

    def covers(self, queue: str) -> bool:
        """Whether jobs of this queue are asked about at all."""
        return not self._sources or queue in self._sources

    def decide(self, data: bytes, place: str | None = None) -> MoveDecision:
        """Return what becomes of the job with these bytes; ``place`` is the queue it waits in, else its payload says so."""
        if self._may_match is not None and self._may_match(data) is None:
            return KEEP
        try:
            payload = decode(data)
        except PayloadError:
            return MoveDecision(reason="unreadable", queue=place or "", jid=_jid(data))
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
            return MoveDecision(reason=reason, queue=queue, worker=name, jid=_text(payload.get("jid")))
        try:
            changed = _rewrite(data, named, self._rule.fields(payload, queue, target))
        except PayloadError:  # it names a queue that cannot be written
            return MoveDecision(reason="unreadable", queue=queue, worker=name, jid=_text(payload.get("jid")))
        return MoveDecision(target, changed, None, queue, name, _text(payload.get("jid")))


def _rewrite(data: bytes, named: object, fields: dict[str, str]) -> bytes:
    """Return the payload with these fields; every other byte stays."""
    if len(fields) == 1 and isinstance(named, str):
        # As nearly every client writes it. That the field is the payload's own, and no argument's, is seen by reading it again.
        likely = data.replace(b'"queue":' + dumps(named), b'"queue":' + dumps(fields["queue"]), 1)
        if loads(likely)["queue"] == fields["queue"]:
            return likely
    return set_fields(data, fields)


def _is_chosen_queue(payload: Payload, queue: str) -> bool:
    return bool(queue) and queue in (payload.get(CHOSEN_QUEUE), payload.get(_RETRY_QUEUE))


def _reason_if_unknown(payload: Payload, retired: Collection[str]) -> SkipReason:
    return "retired class" if payload["class"] in retired else "unknown class"


def _jid(data: bytes) -> str:
    try:
        payload: Any = loads(data)
    except PayloadError:
        return ""
    return _text(cast("Payload", payload).get("jid")) if isinstance(payload, dict) else ""


def _text(jid: object) -> str:
    return jid[:64] if isinstance(jid, str) else ""
