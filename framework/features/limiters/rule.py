"""Describe a rate limiter: its rule, and the result of one take. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

from framework.errors import OverLimit
from framework.types import MAIN
from framework.wire.json import dumps

LimiterKind: TypeAlias = Literal["concurrent", "bucket", "window", "leaky", "points", "unlimited"]

OverLimitPolicy: TypeAlias = Literal["reschedule", "raise", "skip"]
"""The next step of a job that ``OverLimit`` ends: it runs again later, it fails, or it is dropped."""


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
