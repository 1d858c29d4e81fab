"""Who says whether a class is paused: strategies by name, asked beside the work (GitLab's pause control)."""

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol, cast

from framework.declare.declaration import Declaration
from framework.declare.validators import InvalidValue, identifier
from framework.errors import ConfigurationProblem
from framework.flags.background import BackgroundValue
from framework.messages import did_you_mean, join_names
from framework.typeguards import is_class, short_repr

BUILT_IN: Final = ("none", "deprecated", "manual")
"""Built in: they never pause. ``deprecated`` says that a class is about to lose its pause control, so that what is still parked
drains (GitLab); ``manual`` that it is paused by operators alone, as every class may be."""

POLL_PERIOD_S: Final = 5.0
_FIRST_POLL_TIMEOUT_S: Final = 2.0


class PauseStrategy(Protocol):
    """Decides for every class that names it."""

    def should_pause(self) -> bool:
        """Whether jobs are to be parked now. Called every few seconds, from a thread of its own."""
        ...


registered: dict[str, "PauseStrategy"] = {}
"""By name, those of the application."""


def register(name: str, strategy: "PauseStrategy | type[PauseStrategy]") -> None:
    """From now on workers may say ``pause_control = name``; a class is made to an object without arguments, here and now.

    To be called where workers are declared, so that every worker process knows it; a second one of a name replaces the first.
    Raises ValueError for a name that is no word or built in, TypeError for what has no ``should_pause``.
    """
    try:
        identifier(name)
    except InvalidValue as error:
        raise ValueError(f"the name of a pause strategy must be {error}, not {short_repr(name)}") from None
    if name in BUILT_IN:
        raise ValueError(f"the pause strategy {name!r} is built in: choose another name")
    if not callable(getattr(strategy, "should_pause", None)):
        raise TypeError(f"{short_repr(strategy)} is no pause strategy: pass a class or an object with should_pause()")
    made: Any = strategy
    registered[name] = cast("PauseStrategy", made() if is_class(strategy) else strategy)


def validate_pause_control(declaration: Declaration) -> list[ConfigurationProblem]:
    """Return what is wrong with what a class says of its pause: a strategy that nobody has registered."""
    name, known = declaration.pause_control, (*BUILT_IN, *registered)
    if name is None or name in known:
        return []
    message = (
        f"names a strategy {name!r} that nobody knows{did_you_mean(name, known)}: there are {join_names(known)}. Register it where "
        "workers are declared (framework.pause.register)"
    )
    return [ConfigurationProblem(declaration.qualified_name, "pause_control", message)]


class PauseStrategies:
    """What the strategies of this process say: the last answer of each. A process asks those that its classes name."""

    def __init__(self, names: Iterable[str], strategies: Mapping[str, PauseStrategy]) -> None:
        self._values: dict[str, BackgroundValue[bool]] = {
            name: BackgroundValue(f"the pause strategy {name}", _checked_callback(strategies[name]), initial=False)
            for name in sorted(set(names))
            if name in strategies
        }
        self._paused_at: dict[str, float] = {}
        """When one was last seen to pause, seconds of the monotonic clock."""
        self._is_first_poll = True

    def poll(self) -> None:
        """Ask each anew, beside the work. Only the first time their answers are waited for, and not for long."""
        for inquiry in self._values.values():
            inquiry.refresh()
        deadline = time.monotonic() + _FIRST_POLL_TIMEOUT_S
        for inquiry in self._values.values() if self._is_first_poll else ():
            inquiry.wait(max(0.0, deadline - time.monotonic()))
        self._is_first_poll = False

    def is_paused(self, name: str | None) -> bool:
        """Whether the strategy says that its classes are paused."""
        inquiry = self._values.get(name or "")
        if inquiry is None or not inquiry.value:
            return False
        self._paused_at[name or ""] = time.monotonic()
        return True

    def is_pause_over(self, name: str | None) -> bool:
        """Whether the strategy has not paused for so long that every process has heard of it."""
        inquiry = self._values.get(name or "")
        if inquiry is None:
            return True
        return time.monotonic() - self._paused_at.get(name or "", float("-inf")) > POLL_PERIOD_S


def _checked_callback(strategy: PauseStrategy) -> Any:
    def ask() -> bool:
        answer: Any = strategy.should_pause()
        if type(answer) is not bool:
            raise TypeError(f"should_pause() returned {short_repr(answer)}, which is neither True nor False")
        return answer

    return ask
