"""Defer a job whose class this process lacks, so that a process with the class runs it later."""

import fnmatch
import random
import re
from collections.abc import Callable, Container, Sequence

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.errors import NewerVersionError, UnknownWorkerError
from framework.finish.outcome import ForeignClass, UnknownClass
from framework.process_clock import process_clock
from framework.types import Payload
from framework.wire.job import UNKNOWN_COUNT, UNKNOWN_SINCE, count_of, timestamp, version_of

DAY_S = 86_400.0
_MAX_DELAY_S = 60.0
_MAX_FOREIGN_DELAY_S = 5.0
"""Longest delay of another application's job: the processes of that application may be idle meanwhile."""

# Names come from the wire, so their number has no bound.
_MAX_NAMES = 1_000


# Decision 160: a job of an unknown class waits and spends no retry.
class UnknownClassDelays:
    """Decide how long such a job waits. Safe from any thread.

    ``foreign`` are patterns of wire names that belong to other applications (setting ``foreign_classes``). Any other job is
    given up ``max_wait_s`` after its first deferral.
    """

    def __init__(
        self,
        foreign: Sequence[str] = (),
        max_wait_s: float = DAY_S,
        *,
        draw: Callable[[], float] = random.random,
    ) -> None:
        patterns = "|".join(fnmatch.translate(pattern) for pattern in foreign)
        self._is_foreign = re.compile(patterns).match if patterns else None
        self._max_wait_s = max_wait_s
        self._draw = draw
        self._nearest: dict[str, str | None] = {}

    def outcome_if_unknown(
        self, payload: Payload, declaration: Declaration | None, retired: Container[str]
    ) -> UnknownClass | ForeignClass | None:
        """Return the outcome of a job whose class or version this process lacks; ``None`` if it has it, or it is retired."""
        if declaration is None:
            return None if payload["class"] in retired else self.outcome(payload)
        version = version_of(payload)
        return self.outcome_of_version(payload, declaration, version) if version > declaration.version else None

    def outcome(self, payload: Payload) -> UnknownClass | ForeignClass:
        """Return the outcome of a job whose class is not registered in this process."""
        name = payload["class"]
        if self._is_foreign is not None and self._is_foreign(name):
            count = count_of(payload, UNKNOWN_COUNT)
            return ForeignClass(self._foreign_delay_s(count), count + 1)
        return self._delayed(payload, UnknownWorkerError(name, self._nearest_to(name)))

    def outcome_of_version(self, payload: Payload, declaration: Declaration, version: int) -> UnknownClass:
        """Return the outcome of a job of a higher ``version`` than its class has in this process."""
        return self._delayed(payload, NewerVersionError(declaration.wire_name, version, declaration.version))

    def _foreign_delay_s(self, count: int) -> float:
        """Return how long a job of another application stays out of its queue: 0 every other time.

        A job that returns at once goes to a waiting process of its application: Redis serves the client that has waited the
        longest, which is not the process that has just fetched. If no such process waits, this process fetches the job again; so
        it stays out of the queue the next time.
        """
        if count % 2 == 0:
            return 0.0
        return min(_MAX_FOREIGN_DELAY_S, (1.0 + min(count, 9)) / 2) * (0.8 + 0.2 * self._draw())

    def _delayed(self, payload: Payload, error: UnknownWorkerError | NewerVersionError) -> UnknownClass:
        now = process_clock.now()
        first = timestamp(payload.get(UNKNOWN_SINCE))
        if first is None or _ran_since(payload, first):
            first, count = now, 0
        else:
            count = count_of(payload, UNKNOWN_COUNT)
        # The clock of another host may be ahead: a time in the future would delay the end of the wait by as much.
        since = min(first, now)
        # Jitter, so that a thousand jobs of a new class do not return at the same moment.
        # The sixth power exceeds the maximum: a higher one, from a count of the wire, could overflow.
        delay_s = min(_MAX_DELAY_S, 2.0 ** min(count, 6) * (1.0 + self._draw() / 2))
        return UnknownClass(error, delay_s, count + 1, since, gives_up=now - since >= self._max_wait_s)

    def _nearest_to(self, name: str) -> str | None:
        """Return the registered name closest to ``name``; cached, since the search takes milliseconds with many classes."""
        if name not in self._nearest:
            if len(self._nearest) >= _MAX_NAMES:
                self._nearest.clear()
            self._nearest[name] = registry.nearest_name(name)
        # Another thread may have cleared the cache: the message then has no hint.
        return self._nearest.get(name)


def _ran_since(payload: Payload, first: float) -> bool:
    """Return whether a process with the class has run the job meanwhile: a Ruby process keeps the fields of the deferral."""
    failures = (timestamp(payload.get(name)) for name in ("failed_at", "retried_at"))
    return any(failed is not None and failed > first for failed in failures)
