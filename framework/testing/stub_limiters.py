"""Let a test decide which calls the rate limiters admit: all, unless it says otherwise."""

from framework.features.limiters.limiter import Limiter
from framework.features.limiters.rule import LimiterRule, Take
from framework.features.limiters.store import LimiterStore


class StubLimiters(LimiterStore):
    """The rate limiters of a test. They count nothing, and no call waits."""

    def __init__(self) -> None:
        # Not the constructor of the base: there is no shard.
        self._exhausted: set[tuple[str, str | None]] = set()
        self.taken: list[tuple[str, str, float]] = []
        """The admitted calls: the name of the limiter, the key (empty without one), the amount."""

    def exhaust(self, limiter: Limiter, key: str | int | None = None) -> None:
        """Let every later call of the limiter, or of one of its keys, be over the limit."""
        self._exhausted.add((limiter.name, None if key is None else str(key)))

    def clear(self) -> None:
        """Admit every call again, and forget those that were made."""
        self._exhausted.clear()
        self.taken.clear()

    def take(
        self, rule: LimiterRule, key: str, amount: float, token: str, *, waited: bool, left_s: float = 0.0
    ) -> Take:
        del token, waited, left_s
        if not self._exhausted.isdisjoint({(rule.name, None), (rule.name, key)}):
            return Take(False, None, rule.limit, rule.limit)
        self.taken.append((rule.name, key, amount))
        return Take(True, None, 0.0, rule.limit)

    def give_back(self, rule: LimiterRule, key: str, token: str) -> None: ...

    def correct(self, rule: LimiterRule, key: str, amount: float, token: str) -> None: ...

    def used(self, rule: LimiterRule, key: str) -> float:
        return 0.0 if self._exhausted.isdisjoint({(rule.name, None), (rule.name, key)}) else rule.limit

    def resize(self, rule: LimiterRule, limit: float | None, duration_s: float | None) -> None: ...

    def reset(self, rule: LimiterRule, key: str | None) -> None:
        """See ``LimiterStore``: forget that a test has exhausted it."""
        self._exhausted = {one for one in self._exhausted if one[0] != rule.name or (key is not None and one[1] != key)}
