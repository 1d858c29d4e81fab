"""Adapt limits to load: while a resource that a class uses is overloaded, run fewer of its jobs (GitLab).

The application reports the overload through load signals. The steps are GitLab's: once a minute down to a half or to
four fifths, never below 1; then up again by a tenth, or by 1.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import redis
from redis.exceptions import ResponseError

from framework.declare import registry
from framework.extensions import append_once
from framework.features.concurrency.limits import Limits
from framework.store.script import THROTTLE, is_lasting
from framework.supervised_threads import SupervisedThread
from framework.telemetry.counters import counters
from framework.telemetry.logs import LogRateLimit, logger
from framework.wire import keys

Strategy: TypeAlias = Literal["hard", "soft"]

DEADLINE_S = 5.0
"""How long all signals together may take. A class without a result by then keeps its limit."""

THROTTLING_EVENTS = "sidekiq_throttling_events_total"
# How often one process of the shard calls the signals.
_PERIOD_S = 10.0
_LOWER_INTERVAL_S, _RAISE_INTERVAL_S = 60, 25
_STATE_TTL_S = 1_800
_LOG_INTERVAL_S = 60.0


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
    """Lower and raise the limits of a shard. In each period one process does it; ``signals`` defaults to the registered ones."""

    def __init__(self, client: "redis.Redis", limits: Limits, signals: Sequence[LoadSignal] = _signals) -> None:
        self._client = client
        self._limits = limits
        self._signals = signals
        self._thread: SupervisedThread | None = None
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def adjust(self) -> None:
        """Adapt the limit of each class, unless another process has done it in this period. Raises redis errors. Sends
        nothing if there are no signals.
        """
        if not self._signals or (self._thread is not None and self._thread.is_alive()):
            return
        if not self._client.set(keys.LIMITS_THROTTLING, 1, px=int(_PERIOD_S * 1000), nx=True):
            return
        limited: dict[str, int] = {}
        for worker in registry.workers():
            declaration = worker.declaration()
            if self._limits.may_limit(declaration) and (limit := self._limits.class_limit(declaration)) > 0:
                limited[declaration.wire_name] = limit
        if limited:
            self._apply(limited, self._collect_signals(list(limited)))

    def _collect_signals(self, names: list[str]) -> "Mapping[str, Strategy | None]":
        results: dict[str, Strategy | None] = {}
        self._thread = SupervisedThread("load-signals", self._call_signals, names, results)
        self._thread.start()
        self._thread.join(DEADLINE_S)
        if self._thread.is_alive():
            self._warn(
                f"a load signal has not returned for {DEADLINE_S:g} s; the limits stay as they are. Correct the signal"
            )
        return dict(results)

    def _call_signals(self, names: list[str], found: "dict[str, Strategy | None]") -> None:
        for name in names:
            answers = [self._call_signal(signal, name) for signal in self._signals]
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
                [limited[name], strategy or "none", _LOWER_INTERVAL_S, _RAISE_INTERVAL_S, _STATE_TTL_S],
            )
            for name, strategy in answers.items()
        ]
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
            if before == after:
                continue
            strategy = answers[name]
            if strategy is not None:
                counters.add(THROTTLING_EVENTS, name, strategy=strategy)
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
