"""What a class's limit is, as this process knows it now: a number, what a callable says, or a share of all slots."""

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import redis

from framework.declare.declaration import Declaration
from framework.telemetry.context import META_PREFIX
from framework.telemetry.logs import logger
from framework.telemetry.repeated import Repeated
from framework.types import Payload, Urgency
from framework.wire import keys

BY_URGENCY: dict[Urgency, float] = {"high": 0.35, "low": 0.25, "throttled": 0.15}
"""The share of all slots that a class may have which says nothing, where the setting says so (GitLab's defaults)."""

QUEUE = "queue/"
"""What the name of a queue's limit begins with; no class can be called so."""

ASKED_AGAIN_S = 1.0
"""How long the answer of a callable is believed."""

FIRST_ANSWER_S = 1.0
"""How long jobs wait for the first answer of a callable; one that hangs limits nobody, and holds up no class but its own."""

_FLEET_S = 10.0
_ALIVE_S = 20.0  # a lease, and a beat
_QUIET_S = 60.0
_BIGGEST = 10**9


class Fleet:
    """How many slots the processes of a shard have together, counted every few seconds by whoever asks."""

    def __init__(self, client: "redis.Redis") -> None:
        self._client = client
        self._slots = 0
        self._counted_at = -math.inf

    def slots(self) -> int:
        """Return their number, 0 when nobody is known. Raises redis errors, when it was never counted."""
        now = time.monotonic()
        if now - self._counted_at >= _FLEET_S:
            self._slots, self._counted_at = self._count(), now
        return self._slots

    def _count(self) -> int:
        seconds, _ = self._client.time()
        found: Any = self._client.zrangebyscore(keys.REGISTRY, seconds - _ALIVE_S, "+inf")  # pyright: ignore[reportUnknownMemberType]
        pipeline: Any = self._client.pipeline(transaction=False)
        for identity in found:
            pipeline.hget(keys.runs(identity.decode(errors="backslashreplace")), "slots")
        said: list[bytes | None] = pipeline.execute()
        return sum(int(slots) for slots in said if slots is not None and slots.isdigit())


@dataclass(slots=True)
class _Said:
    limit: int | None = None
    """Its last good answer."""
    until: float = -math.inf
    asking: threading.Lock = field(default_factory=threading.Lock)


class Limits:
    """The limits of classes and ``queues``. Safe to call from any thread; ``by_urgency`` gives one to classes that declare none."""

    def __init__(
        self,
        fleet: Fleet,
        queues: Mapping[str, int] = MappingProxyType({}),
        *,
        by_urgency: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.imposed: frozenset[str] = frozenset()
        """Names of limits that only the operators have set: a class that declares none, or ``queue/NAME``."""
        self._fleet = fleet
        self._queues = queues
        self._by_urgency = by_urgency
        self._clock = clock
        self._said: dict[str, _Said] = {}
        self._told = Repeated(_QUIET_S)

    def has_one(self, declaration: Declaration) -> bool:
        """Whether a class is, or at times may be, limited."""
        return self.declares_one(declaration) or declaration.wire_name in self.imposed

    def declares_one(self, declaration: Declaration) -> bool:
        """Whether class or settings say so."""
        declared = declaration.concurrency_limit
        return callable(declared) or bool(declared) or self._share_of(declaration) > 0

    @property
    def of_queues(self) -> bool:
        """Whether any queue is limited."""
        return bool(self._queues) or any(name.startswith(QUEUE) for name in self.imposed)

    def of_queue(self, queue: str) -> int | None:
        """Return the limit of a queue: ``None`` when it has none and nobody says otherwise, 0 when only the operators do."""
        limit = self._queues.get(queue)
        return 0 if limit is None and QUEUE + queue in self.imposed else limit

    def of(self, declaration: Declaration) -> int:
        """Return the limit of a class: 0 for none, below 0 for a pause. Raises redis errors where it is a share of all slots.

        A number that is not 0 counts, then the share (GitLab).
        """
        declared = declaration.concurrency_limit
        limit = self._asked(declaration, declared) if callable(declared) else declared
        if limit:
            return limit
        share = self._share_of(declaration)
        if share <= 0:
            return 0
        slots = self._fleet.slots()
        if not slots:
            self._tell(
                declaration, "nobody's slots are known, of which its limit is a share; it has none until they are"
            )
        return math.ceil(share * slots)

    def capacity_of(self, declaration: Declaration) -> int:
        """Return how many jobs of a limited capacity worker may run; 1 when nobody knows, so that work goes on."""
        declared = declaration.max_running_jobs
        limit = self._asked(declaration, declared) if callable(declared) else declared
        return 1 if limit is None else limit

    def scope_of(self, declaration: Declaration, payload: Payload) -> str:
        """Return whose job it is, ``""`` when nobody's; what a function of the application raises is told."""
        scope = declaration.concurrency_scope
        if scope is None:
            return ""
        found = payload.get(META_PREFIX + scope.by) if isinstance(scope.by, str) else None
        if callable(scope.by):
            try:
                found = scope.by(tuple(payload["args"]))
            except BaseException as error:  # noqa: BLE001 - somebody else's code must not decide a job's fate
                self._tell(declaration, "its concurrency_scope raised; the job counts for nobody", error)
        usable = isinstance(found, str | int) and not isinstance(found, bool)
        return str(found) if usable else ""

    def share_of_scope(self, declaration: Declaration, limit: int) -> int:
        """Return the most slots of one scope, 0 for no such limit."""
        scope = declaration.concurrency_scope
        if scope is None:
            return 0
        return scope.limit or math.ceil((scope.max_percentage or 0) * max(0, limit))

    def _share_of(self, declaration: Declaration) -> float:
        share = declaration.max_concurrency_limit_percentage
        if share is None and declaration.concurrency_limit is None and self._by_urgency:
            return BY_URGENCY[declaration.urgency]
        return share or 0.0

    def _asked(self, declaration: Declaration, ask: Callable[[], Any]) -> int | None:
        """Return what a callable says: one thread asks, and meanwhile, or when it fails, its last good answer counts."""
        said = self._said.setdefault(declaration.wire_name, _Said())
        now = self._clock()
        if now < said.until:
            return said.limit
        # Whoever comes while another asks goes on with what was said before. What is old, as no job came, all wait for, a while.
        is_old = now >= said.until + ASKED_AGAIN_S
        if not said.asking.acquire(timeout=FIRST_ANSWER_S if is_old else 0):
            if is_old:
                said.until = self._clock()  # it hangs: the others do not wait as long, each in its turn
                self._tell(declaration, f"its concurrency_limit does not answer; {_shown(said.limit)}")
            return said.limit
        try:
            if self._clock() >= said.until:
                said.limit = self._answer(declaration, ask, said.limit)
                said.until = self._clock() + ASKED_AGAIN_S
        finally:
            said.asking.release()
        return said.limit

    def _answer(self, declaration: Declaration, ask: Callable[[], Any], before: int | None) -> int | None:
        try:
            answer = ask()
        except BaseException as error:  # noqa: BLE001 - as above
            self._tell(declaration, f"its concurrency_limit raised; {_shown(before)}", error)
            return before
        if answer is None or (type(answer) is int and abs(answer) <= _BIGGEST):
            return answer
        self._tell(declaration, f"its concurrency_limit returned {answer!r:.60}, no whole number; {_shown(before)}")
        return before

    def _tell(self, declaration: Declaration, what: str, error: BaseException | None = None) -> None:
        if count := self._told.due(declaration.wire_name + what, self._clock()):
            logger(**{"class": declaration.wire_name}).warning(
                f"{declaration.wire_name}: {what}", event_name="concurrency_limit.unknown", count=count, error=error
            )


def _shown(limit: int | None) -> str:
    return f"{limit} still counts" if limit else "there is no limit"
