"""One flag, and the protocol of what knows flags. A flag that is not set leaves the decision to whoever asks."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

from framework.errors import PayloadError
from framework.wire.json import dumps, loads

FORMAT = 1
"""Of the value in Redis; a newer one is left alone."""


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag that is set. Times are epoch seconds of Redis's clock."""

    name: str
    percentage: float
    """Of how many questions in a hundred it is on."""
    reason: str = ""
    set_by: str = ""
    set_at: float | None = None
    expires_at: float | None = None

    def sampled(self, sample: Callable[[], float] = random.random) -> bool:
        """Whether it is on this time."""
        return sample() * 100 < self.percentage

    def encode(self) -> bytes:
        """Return it as Redis has it under its name."""
        fields = {"reason": self.reason, "set_by": self.set_by, "set_at": self.set_at, "expires_at": self.expires_at}
        return dumps({"v": FORMAT, "percentage": self.percentage, **fields})


class Flags(Protocol):
    """What knows flags. Answers come from the memory of the process: asking costs no round trip. Safe from any thread."""

    def enabled(self, name: str, *, default: bool = False) -> bool:
        """Whether the flag is on this time; ``default`` when it is not set."""
        flag = self.find(name)
        return default if flag is None else flag.sampled()

    def find(self, name: str) -> Flag | None:
        """Return the flag, ``None`` when it is not set."""
        ...

    def names(self) -> frozenset[str]:
        """Return the names of the flags that are set."""
        ...


class FlagSource(Flags, Protocol):
    """Flags that are read anew from time to time, from wherever they are kept."""

    def read(self) -> bool:
        """Read what is set; return whether anything has changed since the last time. May raise redis errors."""
        ...


class LayeredFlags(FlagSource):
    """Flags of several places: the first that has a flag set decides it."""

    def __init__(self, *sources: FlagSource) -> None:
        self._sources = sources

    def find(self, name: str) -> Flag | None:
        """See ``Flags``."""
        return next((flag for place in self._sources if (flag := place.find(name)) is not None), None)

    def names(self) -> frozenset[str]:
        """See ``Flags``."""
        return frozenset(name for place in self._sources for name in place.names())

    def read(self) -> bool:
        """See ``FlagSource``."""
        news = [place.read() for place in self._sources]
        return any(news)


def run_flag(worker: str) -> str:
    """Return the name of the flag without which jobs of a class are deferred (GitLab's ``run_sidekiq_jobs_``)."""
    return f"run_jobs_{worker}"


def drop_flag(worker: str) -> str:
    """Return the name of the flag that drops jobs of a class (GitLab's ``drop_sidekiq_jobs_``)."""
    return f"drop_jobs_{worker}"


def pause_flag(worker: str) -> str:
    """Return the name of the flag under which jobs of a class are parked: the pause by hand."""
    return f"pause_jobs_{worker}"


def decode_flag(name: str, data: bytes) -> Flag:
    """Return the flag that ``data`` says. Raises ValueError saying what is wrong with it."""
    try:
        value = loads(data)
    except PayloadError as error:
        raise ValueError(error.reason) from None
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - the value is data
    fields = cast("dict[str, Any]", value)
    if fields.get("v") != FORMAT:
        raise ValueError(f"its format v = {fields.get('v')!r} is not the one known here, {FORMAT}")
    percentage = _number(fields.get("percentage"))
    if percentage is None or not 0 <= percentage <= 100:
        raise ValueError(f"percentage = {fields.get('percentage')!r} is no number from 0 to 100")
    set_at, expires_at = (_time(key, fields.get(key)) for key in ("set_at", "expires_at"))
    reason, set_by = (str(fields.get(key) or "") for key in ("reason", "set_by"))
    return Flag(name, percentage, reason, set_by, set_at, expires_at)


def _time(key: str, value: Any) -> float | None:
    time = _number(value)
    if time is None and value is not None:
        raise ValueError(f"{key} = {value!r} is no time")
    return time


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return None
    return number if math.isfinite(number) else None
