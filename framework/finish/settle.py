"""From an outcome to the job's next place: one case each, one atomic script each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, assert_never

import redis

from framework.errors import PayloadError
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.handlers import Handlers
from framework.finish.outcome import Discarded, Failed, Interrupted, Outcome, Postponed, Succeeded, Unreadable
from framework.finish.retry import Bury, Drop, Retry, RetryPolicy, Verdict, shown
from framework.store.script import BURY, POSTPONE
from framework.types import Payload
from framework.wire import keys
from framework.wire.job import Job, decode
from framework.wire.json import dumps


class Acknowledges(Protocol):
    """Where a unit goes when its job has come to an end (the fetcher)."""

    def finish(self, unit: UnitOfWork, *, settled: bool = False) -> None:
        """The unit's job has come to an end; ``settled``: it has left the working list already."""


@dataclass(frozen=True, slots=True)
class DeadSetLimits:
    """Sidekiq's: at most 9,999 entries for ``max_jobs`` 10,000, none older than 180 days."""

    max_jobs: int = 10_000
    timeout_s: float = 180 * 86_400


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a job, for its log line: ``fate`` is acknowledged, retry, dead, dropped, scheduled, or fenced."""

    fate: str
    payload: Payload | None = None
    delay_s: float | None = None


class Settler:
    """Moves one job according to its outcome. Raises redis errors; the job is then still in the working list."""

    def __init__(
        self,
        client: "redis.Redis",
        identity: str,
        fetcher: Acknowledges,
        handlers: Handlers,
        policy: RetryPolicy,
        dead_set: DeadSetLimits,
        on_trimmed: Callable[[int], None],
    ) -> None:
        self._client = client
        self._working = keys.working(identity)
        self._fetcher = fetcher
        self._handlers = handlers
        self._policy = policy
        self._dead_set = dead_set
        self._on_trimmed = on_trimmed

    def judge(
        self, unit: UnitOfWork, worker: Any | None, outcome: Outcome, args: list[Any] | None = None
    ) -> Verdict | None:
        """Return what becomes of a failed job, ``None`` for every other outcome. Moves nothing.

        ``args`` are its arguments as the hooks shall see them: decompressed.
        """
        if not isinstance(outcome, Failed):
            return None
        payload = decode(unit.data)
        payload["queue"] = unit.queue  # other producers may leave it out, and the way back from the retry set needs it
        guarded = self._handlers.guard(
            "retry_in", lambda: self._policy.verdict(dict(payload), worker, outcome.error, args)
        )
        # A hook that raises costs its own advice only: decide again without the class.
        verdict: Verdict = guarded if guarded is not None else self._policy.verdict(payload, None, outcome.error)
        if worker is not None and _exhausted(verdict):
            advice = self._handlers.guard(
                "retries_exhausted", lambda: worker.retries_exhausted(shown(verdict.payload, args), outcome.error)
            )
            if advice == "discard":
                return Drop(verdict.payload)
        return verdict

    def settle(self, unit: UnitOfWork, outcome: Outcome, verdict: Verdict | None) -> Settled:
        """Move the job to its next place and free its slot; return where it went."""
        match outcome:
            case Succeeded() | Discarded():
                self._fetcher.finish(unit)
                return Settled("acknowledged")
            case Failed(error):
                assert verdict is not None, "a failure is judged before it is settled"  # noqa: S101
                return self._fail(unit, error, verdict)
            case Postponed(delay_s):
                return self._postpone(unit, keys.SCHEDULE, _waiting(unit), delay_s, "scheduled")
            case Unreadable():
                return self._bury(unit, unit.data)
            case Interrupted():
                return Settled("interrupted")  # still in custody; shutdown gives it back
            case _:
                assert_never(outcome)

    def _fail(self, unit: UnitOfWork, error: BaseException, verdict: Verdict) -> Settled:
        match verdict:
            case Drop(payload):
                self._handlers.died(Job(payload), error)
                self._fetcher.finish(unit)
                return Settled("dropped", payload)
            case Retry(payload, delay_s):
                data = _encoded(payload)
                if (
                    data is None
                ):  # a number that JSON cannot write (1e999), or too deep: keep its bytes where people look
                    return self._bury(unit, unit.data, payload, error)
                return self._postpone(unit, keys.RETRY, data, delay_s, "retry", payload)
            case Bury(payload):
                return self._bury(unit, _encoded(payload) or unit.data, payload, error)
            case _:
                assert_never(verdict)

    def _postpone(
        self, unit: UnitOfWork, target: str, data: bytes, delay_s: float, fate: str, payload: Payload | None = None
    ) -> Settled:
        moved = POSTPONE(self._client, [self._working, target], [unit.data, data, f"{delay_s:.6f}"])
        self._fetcher.finish(unit, settled=True)
        return Settled(fate if moved else "fenced", payload, delay_s)

    def _bury(
        self, unit: UnitOfWork, data: bytes, payload: Payload | None = None, error: BaseException | None = None
    ) -> Settled:
        trimmed: Any = BURY(
            self._client,
            [self._working, keys.DEAD],
            [unit.data, data, self._dead_set.max_jobs, self._dead_set.timeout_s],
        )
        # Before the slot is free: a handler that takes its time takes this slot, not one that a job is dispatched to.
        if trimmed >= 0 and payload is not None and error is not None:
            self._handlers.died(Job(payload), error)
        self._fetcher.finish(unit, settled=True)
        if trimmed > 0:
            self._on_trimmed(trimmed)
        return Settled("fenced" if trimmed < 0 else "dead", payload)


def _exhausted(verdict: Verdict) -> bool:
    match verdict:
        case Bury():
            return True
        case Drop(exhausted=exhausted):
            return exhausted
        case Retry():
            return False


def _waiting(unit: UnitOfWork) -> bytes:
    """Return the payload as the schedule set has it: it knows its queue, and is in none (Sidekiq's form)."""
    payload = decode(unit.data)
    payload["queue"] = unit.queue
    payload.pop("enqueued_at", None)
    return _encoded(payload) or unit.data


def _encoded(payload: Payload) -> bytes | None:
    try:
        return dumps(payload)
    except PayloadError:
        return None
