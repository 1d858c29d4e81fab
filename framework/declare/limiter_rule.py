"""Describe a rate limiter: its rule, the result of one take, and the port to the shard that holds its state. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Literal, NamedTuple, Protocol, TypeAlias

from framework.errors import OverLimit
from framework.types import Payload
from framework.wire.json import dumps

LimiterKind: TypeAlias = Literal["concurrent", "bucket", "window", "leaky", "points", "unlimited"]

OverLimitPolicy: TypeAlias = Literal["reschedule", "raise", "skip"]
"""The next step of a job that ``OverLimit`` ends: it runs again later, it fails, or it is dropped."""

MAIN = "main"


@dataclass(frozen=True)
class LimiterRule:
    """The facts of one limiter. Spans are seconds; ``interval_s``, ``refill`` and ``lock_s`` belong to some kinds only."""

    name: str
    kind: LimiterKind
    limit: float
    interval_s: float | None = None
    refill: float | None = None
    """Points per second."""
    lock_s: float | None = None
    """After that many seconds the lock of a concurrent limiter ends by itself."""
    wait_s: float = 0.0
    """For how long a caller waits at most."""
    policy: OverLimitPolicy = "reschedule"
    reschedules: int = 20
    backoff: Callable[[int], timedelta | float] | None = None
    shard: str = MAIN

    @cached_property
    def wire(self) -> bytes:
        """Return the part of the rule that the scripts read, as JSON."""
        facts = {
            "kind": self.kind,
            "limit": self.limit,
            "interval_s": self.interval_s,
            "refill": self.refill,
            "lock_s": self.lock_s,
        }
        return dumps({name: value for name, value in facts.items() if value is not None})

    def over_limit(self, key: str, take: "Take", amount: float) -> OverLimit:
        """Return the error of a call of ``amount`` that is not admitted."""
        return OverLimit(
            self.name,
            key,
            take.limit,
            take.retry_after_s,
            policy=self.policy,
            reschedules=self.reschedules,
            backoff=self.backoff,
            amount=amount,
            turn_s=take.turn_s,
        )


class Take(NamedTuple):
    """The result of one call of a limiter."""

    admitted: bool
    retry_after_s: float | None
    """Until a call may be admitted; ``None`` if that is not known, or never."""
    used: float
    limit: float
    """The limit in force: operators may have resized it."""
    turn_s: float | None = None
    """Until a job that is not admitted is to come back: the calls that others were promised come first. ``None`` for other callers,
    and for a concurrent limiter."""


class JobPermit(Protocol):
    """The admission of one job; see ``Permit``."""

    def release(self) -> None:
        """End the run of the job."""
        ...


class JobLimiter(Protocol):
    """The limiter of a class, as the declaration needs it. ``Limiter`` imports the port of pushes, so it is not imported here."""

    def admit_job(self, payload: Payload, meta_prefix: str) -> JobPermit | None:
        """Admit one job without a wait. Raises OverLimit."""
        ...


class LimiterPort(Protocol):
    """The state of the limiters: on the shard that the rule names, or in the memory of a test."""

    def take(
        self, rule: LimiterRule, key: str, amount: float, token: str, *, waited: bool, left_s: float = 0.0
    ) -> Take:
        """Take an amount if it is within the limit; ``left_s`` is how long the caller still waits. One round trip."""
        ...

    def give_back(self, rule: LimiterRule, key: str, token: str) -> None:
        """Release the lock that ``take`` gave to ``token``. An error is logged: the lock ends by itself."""
        ...

    def correct(self, rule: LimiterRule, key: str, amount: float, token: str) -> None:
        """Add to what is used, whatever the limit."""
        ...

    def used(self, rule: LimiterRule, key: str) -> float:
        """Return how much is used."""
        ...

    def resize(self, rule: LimiterRule, limit: float | None, duration_s: float | None) -> None:
        """Set another limit than that of the rule, for a duration or (``None``) for ever; the limit ``None`` removes it."""
        ...

    def reset(self, rule: LimiterRule, key: str | None) -> None:
        """Set what is used of one key, or (``None``) of all, to zero."""
        ...
