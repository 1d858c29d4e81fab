"""Know whether a class is paused: by an operator's flag or by its pause strategy."""

from collections.abc import Callable
from dataclasses import dataclass

from framework.declare.declaration import Declaration
from framework.features.flags.flag import Flags, pause_flag
from framework.features.flags.redis_flags import RedisFlags
from framework.features.pause.strategies import BUILT_IN, PauseStrategies

MANUAL_PAUSE = "manual"


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of a class. ``strategy`` is its cause: ``manual`` for an operator, with the ``reason`` given."""

    strategy: str
    reason: str = ""
    expected_flag: bytes = b""
    """The flag's value in Redis while this pause is in force; empty if the pause has another source."""


class PauseState:
    """Combine flags and pause strategies. Safe to call from any thread."""

    def __init__(
        self, flags: Flags, redis_flags: RedisFlags, strategies: PauseStrategies, refresh: Callable[[], None]
    ) -> None:
        self._flags = flags
        self._redis_flags = redis_flags
        self.strategies = strategies
        self._refresh = refresh

    def refresh(self) -> None:
        """Read the flags again, since Redis has another value than this process knows. May raise redis errors."""
        self._redis_flags.expect_change()
        self._refresh()

    def may_pause(self, declaration: Declaration) -> bool:
        """Return whether jobs of a class have to pass the pause policy."""
        strategy = declaration.facts["pause_control"]
        named = strategy is not None and strategy not in BUILT_IN
        return named or self._flags.find(pause_flag(declaration.wire_name)) is not None

    def pause_of(self, worker: str, strategy: str | None) -> Pause | None:
        """Return the pause of a class, ``None`` if its jobs may run."""
        name = pause_flag(worker)
        flag = self._flags.find(name)
        if flag is not None and flag.percentage > 0:
            stored = self._redis_flags.find(name) is not None
            return Pause(MANUAL_PAUSE, flag.reason, self._redis_flags.raw_value(name) if stored else b"")
        return Pause(strategy) if strategy is not None and self.strategies.is_paused(strategy) else None

    def flag_value(self, worker: str) -> bytes:
        """Return the operator's pause flag of a class as Redis had it at the last read, empty without one."""
        return self._redis_flags.raw_value(pause_flag(worker))
