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
from framework.telemetry.rate_limit import LogRateLimit
from framework.types import Payload, Urgency
from framework.wire import keys

SHARE_BY_URGENCY: dict[Urgency, float] = {"high": 0.35, "low": 0.25, "throttled": 0.15}
"""The share of all slots that a class may have which says nothing, where the setting says so (GitLab's defaults)."""

QUEUE_PREFIX = "queue/"
"""What the name of a queue's limit begins with; no class can be called so."""

CALLABLE_TTL_S = 1.0
"""How long the answer of a callable is believed."""

FIRST_CALL_TIMEOUT_S = 1.0
"""How long jobs wait for the first answer of a callable; one that hangs limits nobody, and holds up no class but its own."""

_COUNT_TTL_S = 10.0
_ALIVE_S = 20.0  # a lease, and a beat
_LOG_INTERVAL_S = 60.0
_MAX_LIMIT = 10**9


class FleetSlots:
    """How many slots the processes of a shard have together, counted every few seconds by whoever asks."""

    def __init__(self, client: "redis.Redis") -> None:
        self._client = client
        self._total = 0
        self._counted_at = -math.inf

    def total(self) -> int:
        """Return their number, 0 when nobody is known. Raises redis errors, when it was never counted."""
        now = time.monotonic()
        if now - self._counted_at >= _COUNT_TTL_S:
            self._total, self._counted_at = self._count(), now
        return self._total

    def _count(self) -> int:
        seconds, _ = self._client.time()
        found: Any = self._client.zrangebyscore(keys.REGISTRY, seconds - _ALIVE_S, "+inf")  # pyright: ignore[reportUnknownMemberType]
        pipeline: Any = self._client.pipeline(transaction=False)
        for identity in found:
            pipeline.hget(keys.process(identity.decode(errors="backslashreplace")), "slots")
        said: list[bytes | None] = pipeline.execute()
        return sum(int(slots) for slots in said if slots is not None and slots.isdigit())


@dataclass(slots=True)
class _CallableLimit:
    limit: int | None = None
    """Its last good answer."""
    valid_until: float = -math.inf
    call_lock: threading.Lock = field(default_factory=threading.Lock)


class Limits:
    """The limits of classes and ``queues``. Safe to call from any thread; ``by_urgency`` gives one to classes that declare none."""

    def __init__(
        self,
        fleet: FleetSlots,
        queues: Mapping[str, int] = MappingProxyType({}),
        *,
        by_urgency: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.operator_limits: frozenset[str] = frozenset()
        """Names of limits that only the operators have set: a class that declares none, or ``queue/NAME``."""
        self._fleet = fleet
        self._queues = queues
        self._by_urgency = by_urgency
        self._clock = clock
        self._callable_limits: dict[str, _CallableLimit] = {}
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S, clock)

    def may_limit(self, declaration: Declaration) -> bool:
        """Whether a class is, or at times may be, limited."""
        return self.declares_limit(declaration) or declaration.wire_name in self.operator_limits

    def declares_limit(self, declaration: Declaration) -> bool:
        """Whether class or settings say so."""
        declared = declaration.concurrency_limit
        return callable(declared) or bool(declared) or self._fleet_share(declaration) > 0

    @property
    def limits_queues(self) -> bool:
        """Whether any queue is limited."""
        return bool(self._queues) or any(name.startswith(QUEUE_PREFIX) for name in self.operator_limits)

    def queue_limit(self, queue: str) -> int | None:
        """Return the limit of a queue: ``None`` when it has none and nobody says otherwise, 0 when only the operators do."""
        limit = self._queues.get(queue)
        return 0 if limit is None and QUEUE_PREFIX + queue in self.operator_limits else limit

    def class_limit(self, declaration: Declaration) -> int:
        """Return the limit of a class: 0 for none, below 0 for a pause. Raises redis errors where it is a share of all slots.

        A number that is not 0 counts, then the share (GitLab).
        """
        declared = declaration.concurrency_limit
        limit = self._call_limit(declaration, declared) if callable(declared) else declared
        if limit:
            return limit
        share = self._fleet_share(declaration)
        if share <= 0:
            return 0
        slots = self._fleet.total()
        if not slots:
            self._warn(
                declaration, "nobody's slots are known, of which its limit is a share; it has none until they are"
            )
        return math.ceil(share * slots)

    def capacity(self, declaration: Declaration) -> int:
        """Return how many jobs of a limited capacity worker may run; 1 when nobody knows, so that work goes on."""
        declared = declaration.max_running_jobs
        limit = self._call_limit(declaration, declared) if callable(declared) else declared
        return 1 if limit is None else limit

    def scope(self, declaration: Declaration, payload: Payload) -> str:
        """Return whose job it is, ``""`` when nobody's; what a function of the application raises is told."""
        scope = declaration.concurrency_scope
        if scope is None:
            return ""
        found = payload.get(META_PREFIX + scope.by) if isinstance(scope.by, str) else None
        if callable(scope.by):
            try:
                found = scope.by(tuple(payload["args"]))
            except BaseException as error:  # noqa: BLE001 - somebody else's code must not decide a job's fate
                self._warn(declaration, "its concurrency_scope raised; the job counts for nobody", error)
        usable = isinstance(found, str | int) and not isinstance(found, bool)
        return str(found) if usable else ""

    def scope_share(self, declaration: Declaration, limit: int) -> int:
        """Return the most slots of one scope, 0 for no such limit."""
        scope = declaration.concurrency_scope
        if scope is None:
            return 0
        return scope.limit or math.ceil((scope.max_percentage or 0) * max(0, limit))

    def _fleet_share(self, declaration: Declaration) -> float:
        share = declaration.max_concurrency_limit_percentage
        if share is None and declaration.concurrency_limit is None and self._by_urgency:
            return SHARE_BY_URGENCY[declaration.urgency]
        return share or 0.0

    def _call_limit(self, declaration: Declaration, callback: Callable[[], Any]) -> int | None:
        """Return what a callable says: one thread asks, and meanwhile, or when it fails, its last good answer counts."""
        said = self._callable_limits.setdefault(declaration.wire_name, _CallableLimit())
        now = self._clock()
        if now < said.valid_until:
            return said.limit
        # Whoever comes while another asks goes on with what was said before. What is old, as no job came, all wait for, a while.
        is_old = now >= said.valid_until + CALLABLE_TTL_S
        if not said.call_lock.acquire(timeout=FIRST_CALL_TIMEOUT_S if is_old else 0):
            if is_old:
                said.valid_until = self._clock()  # it hangs: the others do not wait as long, each in its turn
                self._warn(declaration, f"its concurrency_limit does not answer; {_describe_fallback(said.limit)}")
            return said.limit
        try:
            if self._clock() >= said.valid_until:
                said.limit = self._evaluate(declaration, callback, said.limit)
                said.valid_until = self._clock() + CALLABLE_TTL_S
        finally:
            said.call_lock.release()
        return said.limit

    def _evaluate(self, declaration: Declaration, callback: Callable[[], Any], previous: int | None) -> int | None:
        try:
            answer = callback()
        except BaseException as error:  # noqa: BLE001 - as above
            self._warn(declaration, f"its concurrency_limit raised; {_describe_fallback(previous)}", error)
            return previous
        if answer is None or (type(answer) is int and abs(answer) <= _MAX_LIMIT):
            return answer
        self._warn(
            declaration,
            f"its concurrency_limit returned {answer!r:.60}, no whole number; {_describe_fallback(previous)}",
        )
        return previous

    def _warn(self, declaration: Declaration, message: str, error: BaseException | None = None) -> None:
        text = f"{declaration.wire_name}: {message}"
        fields = {"class": declaration.wire_name}
        self._log_limit.warning(text, text, "concurrency_limit.unknown", error=error, **fields)


def _describe_fallback(limit: int | None) -> str:
    return f"{limit} still counts" if limit else "there is no limit"
