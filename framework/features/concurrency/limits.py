"""Work out the limit of a class: a number, the result of a callable, or a share of all slots; lower it under load."""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import redis
from redis.exceptions import ResponseError

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.extensions import append_once
from framework.features.concurrency.database_load import DatabaseLoad, Strategy
from framework.process_clock import process_clock
from framework.store.connect import server_time
from framework.store.script import SLOT_PARTS, Script, is_lasting
from framework.supervised_threads import SupervisedThread
from framework.telemetry.context import META_PREFIX
from framework.telemetry.job_events import ClassThrottled, job_events
from framework.telemetry.logs import LogRateLimit, logger
from framework.text import decode_escaped
from framework.timings import STANDARD, Timings
from framework.types import Payload, Urgency
from framework.wire import keys
from framework.wire.json import stored_count
from framework.wire.protected import digest_of_key

THROTTLE = Script("concurrency/throttle", *SLOT_PARTS)

SHARE_BY_URGENCY: dict[Urgency, float] = {"high": 0.35, "low": 0.25, "throttled": 0.15}
"""The share of all slots for a class that declares no limit, if the setting turns this on (GitLab's defaults)."""

QUEUE_PREFIX = "queue/"
"""The prefix of a queue limit's name; no wire name of a class contains it."""

CALLABLE_TTL_S = 1.0
"""How long a callable's result is reused."""

FIRST_CALL_TIMEOUT_S = 1.0
"""How long jobs wait for a callable's first result. A callable that hangs imposes no limit, and delays no other class."""

_COUNT_TTL_S = 10.0
_LOG_INTERVAL_S = 60.0
_MAX_LIMIT = 10**9
_CORRECT = "Correct this function of the class"

SIGNALS_DEADLINE_S = 5.0
"""How long all signals together may take. A class without a result by then keeps its limit."""

# How often one process of the shard calls the signals.
_SIGNALS_PERIOD_S = 10.0

_THROTTLE_TTL_S = 1_800


class FleetSlots:
    """Count the slots of all processes of a shard, again after a few seconds."""

    def __init__(self, client: "redis.Redis", timings: Timings = STANDARD) -> None:
        self._client = client
        self._alive_within_s = timings.alive_within_s
        self._total = 0
        self._counted_at = -math.inf

    def total(self) -> int:
        """Return the number of slots, 0 if no process is registered. Raises redis errors."""
        now = process_clock.monotonic()
        if now - self._counted_at >= _COUNT_TTL_S:
            self._total, self._counted_at = self._count(), now
        return self._total

    def _count(self) -> int:
        since = server_time(self._client) - self._alive_within_s
        found: Any = self._client.zrangebyscore(keys.REGISTRY, since, "+inf")  # pyright: ignore[reportUnknownMemberType]
        pipeline: Any = self._client.pipeline(transaction=False)
        for identity in found:
            pipeline.hget(keys.process(decode_escaped(identity)), "slots")
        slot_counts: list[bytes | None] = pipeline.execute()
        return sum(map(stored_count, slot_counts))


@dataclass(slots=True)
class _CallableLimit:
    limit: int | None = None
    """The last valid result."""
    valid_until: float = -math.inf
    call_lock: threading.Lock = field(default_factory=threading.Lock)


# Decision 129: limits fail open.
class Limits:
    """Know the limits of classes and ``queues``. Safe to call from any thread.

    ``by_urgency`` gives a limit to classes that declare none. With ``shared``, the limit of a class holds on all shards together. The
    result of a class's callable counts for ``callable_ttl_s``.
    """

    def __init__(
        self,
        fleet: FleetSlots,
        queues: Mapping[str, int] = MappingProxyType({}),
        *,
        by_urgency: bool = False,
        shared: bool = False,
        callable_ttl_s: float = CALLABLE_TTL_S,
    ) -> None:
        self.operator_limits: frozenset[str] = frozenset()
        """Limits that exist only because operators set them: a class that declares none, or ``queue/NAME``."""
        self._fleet = fleet
        self._queues = queues
        self._by_urgency = by_urgency
        self._shared = shared
        self._callable_ttl_s = callable_ttl_s
        self._callable_limits: dict[str, _CallableLimit] = {}
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def may_limit(self, declaration: Declaration) -> bool:
        return self.declares_limit(declaration) or declaration.wire_name in self.operator_limits

    def declares_limit(self, declaration: Declaration) -> bool:
        """Return whether the class or the settings define a limit."""
        declared = declaration.facts["concurrency_limit"]
        return callable(declared) or bool(declared) or self._fleet_share(declaration) > 0

    def may_change(self, declaration: Declaration) -> bool:
        """Return whether ``class_limit`` may return another number later, other than for a change of ``operator_limits``."""
        return callable(declaration.facts["concurrency_limit"]) or self._fleet_share(declaration) > 0

    @property
    def limits_queues(self) -> bool:
        return bool(self._queues) or any(name.startswith(QUEUE_PREFIX) for name in self.operator_limits)

    def queue_limit(self, queue: str) -> int | None:
        """Return the limit of a queue: ``None`` without one, 0 if only operators limit it."""
        limit = self._queues.get(queue)
        return 0 if limit is None and QUEUE_PREFIX + queue in self.operator_limits else limit

    def class_limit(self, declaration: Declaration) -> int:
        """Return the limit of a class: 0 for none, negative for a pause. Raises redis errors if the limit is a share of
        all slots.

        As in GitLab, a number other than 0 wins over a share.
        """
        declared = declaration.facts["concurrency_limit"]
        limit = self._call_limit(declaration, declared) if callable(declared) else declared
        if limit:
            return limit
        share = self._fleet_share(declaration)
        if share <= 0:
            return 0
        slots = self._fleet.total()
        if not slots:
            self._warn(
                declaration,
                "its limit is a share of all slots, and no process has registered its slots yet; until then it has no limit",
            )
        return math.ceil(share * slots)

    def stated(self, declaration: Declaration, limit: int) -> str:
        """Return the limit of a class as scripts take it (``parts/slots.lua``): ``+N`` if it holds on all shards together.

        ``+0N`` says that its jobs hold while the shard with the role ``meta`` is away. A share of a shard's slots holds there
        only.
        """
        if not self._shared or limit < 0 or self._fleet_share(declaration) > 0:
            return str(limit)
        holds = declaration.facts["without_meta_shard"] == "hold"
        return f"+0{limit}" if holds else f"+{limit}"

    def capacity(self, declaration: Declaration) -> int:
        """Return how many jobs of a limited capacity worker may run; 1 if the callable has no valid result, so that
        work goes on.
        """
        declared = declaration.facts["max_running_jobs"]
        limit = self._call_limit(declaration, declared) if callable(declared) else declared
        return 1 if limit is None else limit

    def scope(self, declaration: Declaration, payload: Payload) -> str:
        """Return the scope of a job, ``""`` for none. An error of the application's function is logged."""
        scope = declaration.facts["concurrency_scope"]
        if scope is None:
            return ""
        found = payload.get(META_PREFIX + scope.by) if isinstance(scope.by, str) else None
        if callable(scope.by):
            try:
                found = scope.by(tuple(payload["args"]))
            except BaseException as error:  # noqa: BLE001 - an application's error must not decide about a job
                self._warn(declaration, "its concurrency_scope raised an error; the job counts for no scope", error)
        if isinstance(found, bool) or not isinstance(found, str | int):
            return ""
        hides = declaration.encrypt and callable(scope.by)
        return digest_of_key(declaration.wire_name, found) if hides else str(found)

    def scope_share(self, declaration: Declaration, limit: int) -> int:
        scope = declaration.facts["concurrency_scope"]
        if scope is None:
            return 0
        return scope.limit or math.ceil((scope.max_percentage or 0) * max(0, limit))

    def _fleet_share(self, declaration: Declaration) -> float:
        share = declaration.facts["max_concurrency_limit_percentage"]
        if share is None and declaration.facts["concurrency_limit"] is None and self._by_urgency:
            return SHARE_BY_URGENCY[declaration.urgency]
        return share or 0.0

    def _call_limit(self, declaration: Declaration, callback: Callable[[], Any]) -> int | None:
        """Return the callable's result. One thread calls it; the others use the last valid result meanwhile, or if it fails."""
        known = self._callable_limits.setdefault(declaration.wire_name, _CallableLimit())
        now = process_clock.monotonic()
        if now < known.valid_until:
            return known.limit
        # A thread that arrives during a call uses the previous result. If that is stale, because no job came for a
        # while, all threads wait for the call, up to a timeout.
        is_old = now >= known.valid_until + self._callable_ttl_s
        if not known.call_lock.acquire(timeout=FIRST_CALL_TIMEOUT_S if is_old else 0):
            if is_old:
                # The callable hangs. Without this line each waiting thread would wait as long, one after the other.
                known.valid_until = process_clock.monotonic()
                self._warn(
                    declaration, f"its concurrency_limit does not return; {_describe_fallback(known.limit)}. {_CORRECT}"
                )
            return known.limit
        try:
            if process_clock.monotonic() >= known.valid_until:
                known.limit = self._evaluate(declaration, callback, known.limit)
                known.valid_until = process_clock.monotonic() + self._callable_ttl_s
        finally:
            known.call_lock.release()
        return known.limit

    def _evaluate(self, declaration: Declaration, callback: Callable[[], Any], previous: int | None) -> int | None:
        try:
            result = callback()
        except BaseException as error:  # noqa: BLE001 - as above
            self._warn(
                declaration, f"its concurrency_limit raised an error; {_describe_fallback(previous)}. {_CORRECT}", error
            )
            return previous
        if result is None or (type(result) is int and abs(result) <= _MAX_LIMIT):
            return result
        self._warn(
            declaration,
            f"its concurrency_limit returned {result!r:.60}, not a whole number; {_describe_fallback(previous)}. {_CORRECT}",
        )
        return previous

    def _warn(self, declaration: Declaration, message: str, error: BaseException | None = None) -> None:
        text = f"{declaration.wire_name}: {message}"
        fields = {"class": declaration.wire_name}
        self._log_limit.warning(text, text, "concurrency_limit.unknown", error=error, **fields)


def _describe_fallback(limit: int | None) -> str:
    return f"the limit stays {limit}" if limit else "it has no limit"


# The application reports the overload through load signals. The steps are GitLab's: once a minute down to a half or to
# four fifths, never below 1; then up again by a tenth, or by 1.


# The application reports the overload through load signals. The steps are GitLab's: once a minute down to a half or to
# four fifths, never below 1; then up again by a tenth, or by 1.


_LOWER_INTERVAL_S, _RAISE_INTERVAL_S = 60, 25


class LoadSignal(Protocol):
    """Report whether a resource of a class is overloaded. Called in a thread of its own, for each limited class in turn."""

    def __call__(self, worker: str, /) -> Strategy | None:
        """Return ``"hard"`` if this class (its wire name) is the main cause, ``"soft"`` if it is one of several, else ``None``."""
        ...


_STRONGEST_FIRST: tuple[Strategy, ...] = ("hard", "soft")


_signals: list[LoadSignal] = []


def register(signal: LoadSignal) -> LoadSignal:
    """Add a load signal to all classes with a limit; of several results, the strongest counts."""
    append_once(_signals, signal)
    return signal


class Throttle:
    """Lower and raise the limits of a shard. In each period one process does it; ``signals`` defaults to the registered ones.

    ``database`` is the framework's own signal.
    """

    def __init__(
        self,
        client: "redis.Redis",
        limits: Limits,
        signals: Sequence[LoadSignal] = _signals,
        database: DatabaseLoad | None = None,
    ) -> None:
        self._client = client
        self._limits = limits
        self._signals = signals
        self._database = database
        self._has_lowered = False
        self._thread: SupervisedThread | None = None
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def adjust(self) -> None:
        """Adapt the limit of each class, unless another process has done it in this period. Raises redis errors. Sends
        nothing if there are no signals.
        """
        if self._thread is not None and self._thread.is_alive():
            return
        if not self._signals and not self._reads_database():
            return
        if not self._client.set(keys.LIMITS_THROTTLING, 1, px=int(_SIGNALS_PERIOD_S * 1000), nx=True):
            return
        limited: dict[str, int] = {}
        for worker in registry.workers():
            declaration = worker.declaration()
            if self._limits.may_limit(declaration) and (limit := self._limits.class_limit(declaration)) > 0:
                limited[declaration.wire_name] = limit
        if self._database is not None:
            self._database.read()
        if limited:
            self._apply(limited, self._collect_signals(list(limited)))

    def _reads_database(self) -> bool:
        """Return whether the databases have figures, or a limit that they have lowered is to be raised again."""
        return self._database is not None and (self._has_lowered or self._database.has_figures())

    def _collect_signals(self, names: list[str]) -> "Mapping[str, Strategy | None]":
        results: dict[str, Strategy | None] = {}
        self._thread = SupervisedThread("load-signals", self._call_signals, names, results)
        self._thread.start()
        self._thread.join(SIGNALS_DEADLINE_S)
        if self._thread.is_alive():
            self._warn(
                f"a load signal has not returned for {SIGNALS_DEADLINE_S:g} s; the limits stay as they are. Correct the signal"
            )
        return dict(results)

    def _call_signals(self, names: list[str], found: "dict[str, Strategy | None]") -> None:
        signals = [*self._signals, *([] if self._database is None else [self._database])]
        for name in names:
            answers = [self._call_signal(signal, name) for signal in signals]
            worst: Strategy | None = next((strategy for strategy in _STRONGEST_FIRST if strategy in answers), None)
            # A failed signal changes nothing: the failure may be the overload itself, and is no reason to admit more jobs.
            if worst is not None or all(answer is None for answer in answers):
                found[name] = worst

    def _call_signal(self, signal: LoadSignal, name: str) -> object:
        try:
            answer = signal(name)
        except BaseException as error:  # noqa: BLE001 - an application's error must not stop work
            self._warn("a load signal raised an error; the limits stay as they are. Correct the signal", error)
            return error
        if answer not in (None, *_STRONGEST_FIRST):
            self._warn(f"a load signal returned {answer!r:.60}; return 'hard', 'soft' or None")
        return answer

    def _apply(self, limited: Mapping[str, int], answers: "Mapping[str, Strategy | None]") -> None:
        calls: list[tuple[list[str], list[Any]]] = [
            (
                [keys.limit(name)],
                [limited[name], strategy or "none", _LOWER_INTERVAL_S, _RAISE_INTERVAL_S, _THROTTLE_TTL_S],
            )
            for name, strategy in answers.items()
        ]
        # Each limit is at its most: nothing is to be raised until the databases have figures again.
        self._has_lowered = False
        for name, reply in zip(answers, THROTTLE.each(self._client, calls), strict=True):
            if isinstance(reply, ResponseError) and is_lasting(reply):
                self._warn(
                    f"the keys of the limit of {name} cannot be used; it stays as it is. Look at {keys.limit(name)}",
                    reply,
                )
                continue
            if isinstance(reply, Exception):
                raise reply
            before, after = reply
            self._has_lowered |= after < limited[name]
            if before == after:
                continue
            strategy = answers[name]
            if strategy is not None:
                job_events.emit(ClassThrottled(name, strategy=strategy))
            logger(**{"class": name}).info(
                f"the concurrency limit of {name} is {after} for now; it was {before}",
                event_name="concurrency_limit.throttled" if after < before else "concurrency_limit.recovered",
                strategy=strategy or "recovery",
                previous_concurrency_limit=before,
                concurrency_limit=after,
                max_concurrency_limit=limited[name],
            )

    def _warn(self, message: str, error: BaseException | None = None) -> None:
        self._log_limit.warning(message, message, "concurrency_limit.signal_failed", error=error)
