"""Register pause strategies by name, and poll them in the background (GitLab's pause control)."""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

from framework.errors import ConfigurationProblem
from framework.extensions import NamedExtensions
from framework.features.flags.flag import BackgroundValue
from framework.route.router import LoadedWorkers
from framework.text import did_you_mean, join_names
from framework.timings import STANDARD, Timings
from framework.typeguards import short_repr

BUILT_IN: Final = ("none", "deprecated", "manual")
"""Built-in names that never pause. ``deprecated`` marks a class that will lose its pause control, so that its held jobs
drain (GitLab). ``manual`` says that only operators pause the class, as they may pause any class.
"""

_FIRST_POLL_TIMEOUT_S: Final = 2.0


class PauseStrategy(Protocol):
    """Decide whether the classes that name this strategy are paused."""

    def should_pause(self) -> bool:
        """Return whether to hold jobs now. Called every few seconds, from a thread of its own."""
        ...


registered: NamedExtensions["PauseStrategy"] = NamedExtensions("pause strategy", "should_pause", BUILT_IN)
"""The application's strategies by name."""


def register(name: str, strategy: "PauseStrategy | type[PauseStrategy]") -> None:
    """Allow workers to declare ``pause_control = name``. A class is instantiated without arguments, immediately.

    Call it where workers are declared, so that every worker process knows the strategy. A second registration of a name
    replaces the first. Raises ValueError for a name that is no word or is built in, TypeError for an object without
    ``should_pause``.
    """
    registered.register(name, strategy)


def pause_problems(workers: LoadedWorkers) -> Iterator[ConfigurationProblem]:
    """Yield the classes whose ``pause_control`` is a name that no strategy is registered under."""
    known = (*BUILT_IN, *registered)
    for declaration in workers.declarations:
        name = declaration.facts["pause_control"]
        if name is not None and name not in known:
            message = (
                f"names a strategy {name!r} that is not registered{did_you_mean(name, known)}: there are {join_names(known)}. "
                "Register it where workers are declared (framework.pause.register)"
            )
            yield ConfigurationProblem(declaration.qualified_name, "pause_control", message)


class PauseStrategies:
    """Keep the last result of each pause strategy that a class of this process names."""

    def __init__(
        self, names: Iterable[str], strategies: Mapping[str, PauseStrategy], timings: Timings = STANDARD
    ) -> None:
        self._values: dict[str, BackgroundValue[bool]] = {
            name: BackgroundValue(f"the pause strategy {name}", _checked_callback(strategies[name]), initial=False)
            for name in sorted(set(names))
            if name in strategies
        }
        # Every process polls its strategies when it writes its record.
        self._period_s = timings.record_period_s
        self._paused_at: dict[str, float] = {}
        """The monotonic time at which a strategy last paused."""
        self._is_first_poll = True

    def poll(self) -> None:
        """Poll each strategy in the background. Only the first poll waits for results, and not for long."""
        for value in self._values.values():
            value.refresh()
        deadline = time.monotonic() + _FIRST_POLL_TIMEOUT_S
        for value in self._values.values() if self._is_first_poll else ():
            value.wait(max(0.0, deadline - time.monotonic()))
        self._is_first_poll = False

    def is_paused(self, name: str | None) -> bool:
        value = self._values.get(name or "")
        if value is None or not value.value:
            return False
        self._paused_at[name or ""] = time.monotonic()
        return True

    def is_pause_over(self, name: str | None) -> bool:
        """Return whether the strategy has been off for a full poll period, so that every process has seen it."""
        value = self._values.get(name or "")
        if value is None:
            return True
        return time.monotonic() - self._paused_at.get(name or "", float("-inf")) > self._period_s


def _checked_callback(strategy: PauseStrategy) -> Any:
    def ask() -> bool:
        answer: Any = strategy.should_pause()
        if type(answer) is not bool:
            raise TypeError(f"should_pause() returned {short_repr(answer)}, which is neither True nor False")
        return answer

    return ask
