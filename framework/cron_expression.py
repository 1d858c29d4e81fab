"""Compute the ticks of a cron expression in a time zone, as whole epoch seconds.

A tick depends only on the expression, the zone and the time, so all processes agree. The library is cronsim: Debian's rules, with
an optional field for seconds in front. An expression of five fields that names hours and minutes has one tick for each of its wall
clock times: a time that does not exist (the clock goes forward) is the first second after the gap, a time that exists twice is the
first of both. Wall clock times that fall on the same second are one tick. Any other expression follows the clock: its ticks in a
repeated hour occur twice.
"""

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from framework.text import Sentence, did_you_mean, format_count, join_names

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
"""Short names of frequent expressions."""

CRON_FORMAT = Sentence("a cron expression such as '*/5 * * * *' (minute, hour, day of month, month, day of week)")
MOST_SPREAD_S = 86_400
"""The longest time over which an entry of the schedule may spread its jobs."""

TIME_ZONE_FORMAT = Sentence("the name of a time zone, for example UTC or Europe/Berlin")

_MAX_LENGTH = 200
_FIRST_WINDOW_S = 60
# The year 9000: datetime ends with 9999, and a search goes 50 years ahead.
_LAST_TIME = 221_845_392_000
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a wall clock without a zone
# No zone changes its clock twice within it.
_CHANGE_STEP_S = 43_200

_FIELDS = (("minute", 60), ("hour", 24), ("day of month", 31), ("month", 12), ("day of week", 7))
"""The fields of an expression, each with the number of its values."""
_SECOND = ("second", 60)
_STEP = re.compile(r"/([0-9]+)")
_ORDINAL = re.compile(r"\b([0-9]+)th\b")
_ENDINGS = {"1": "st", "2": "nd", "3": "rd"}
# These differ between hosts or exist on some hosts only (``right/`` counts leap seconds), and all processes must agree on a tick.
_LOCAL_ZONES = frozenset(("localtime", "posixrules", "Factory"))
_LOCAL_FOLDERS = ("posix/", "right/")


class CronExpression:
    """One expression in one zone."""

    def __init__(self, text: str, zone: str = "UTC") -> None:
        """Parse ``text`` and find ``zone``. Raises ValueError with what is allowed."""
        self.text = check_cron(text)
        self.zone = check_time_zone(zone)
        self._fields = ALIASES.get(self.text, self.text)
        self._tz = _zone(zone)
        minute, hour, *others = self._fields.split()
        # The library's own rule, that of Debian's cron.
        self._follows_clock = minute.startswith("*") or hour.startswith("*") or len(others) == 4

    def ticks_after(self, after: int) -> Iterator[int]:
        """Yield the ticks after a time, in order."""
        if 0 <= after < _LAST_TIME:
            yield from self._ticks_by_clock(after) if self._follows_clock else self._ticks_by_wall(after)

    def _ticks_by_wall(self, after: int) -> Iterator[int]:
        """Yield one tick for each wall clock time."""
        # The library walks on by the wall clock, which may lead back to a time of a repeated hour that has passed.
        last = after
        for found in CronSim(self._fields, datetime.fromtimestamp(after, self._tz)):
            tick = int(found.timestamp())
            if tick > last:
                last = tick
                yield tick

    def _ticks_by_clock(self, after: int) -> Iterator[int]:
        """Yield a tick whenever the clock shows a matching time.

        Between two changes the clock is UTC with a fixed offset, which is all that the library needs. Given a zone, it loses ticks
        where a clock changes by half an hour (Lord Howe).
        """
        start, unchanged_at, offset_s = after, after, self._offset_s(after)
        while True:
            change = None
            for wall in CronSim(self._fields, _EPOCH + timedelta(seconds=start + offset_s)):
                tick = int((wall - _EPOCH).total_seconds()) - offset_s
                change = self._first_change(unchanged_at, tick, offset_s)
                if change is not None:
                    break
                unchanged_at = tick
                yield tick
            if change is None:
                return
            start, unchanged_at, offset_s = change - 1, change, self._offset_s(change)

    def _offset_s(self, at: int) -> int:
        offset = datetime.fromtimestamp(at, self._tz).utcoffset()
        return 0 if offset is None else int(offset.total_seconds())

    def _first_change(self, since: int, until: int, offset_s: int) -> int | None:
        """Return the first time after ``since`` and not after ``until`` at which the zone has another offset."""
        while since < until:
            step = min(until, since + _CHANGE_STEP_S)
            if self._offset_s(step) != offset_s:
                return bisect_left(range(step), True, since + 1, key=lambda at: self._offset_s(at) != offset_s)
            since = step
        return None

    def next_after(self, after: int) -> int | None:
        """Return the first tick after a time, ``None`` if there is none within 50 years."""
        return next(self.ticks_after(after), None)

    def latest_ticks(self, after: int, until: int, most: int) -> tuple[list[int], bool]:
        """Return the last ``most`` ticks after ``after`` and not after ``until``, and whether there are earlier ones.

        The cost depends on ``most`` and not on the length of the time, which may be an outage of days.
        """
        window_s = _FIRST_WINDOW_S
        while True:
            start = max(after, until - window_s)
            found: deque[int] = deque(maxlen=most + 1)
            for tick in self.ticks_after(start):
                if tick > until:
                    break
                found.append(tick)
            if len(found) > most:
                return list(found)[1:], True
            if start == after:
                return list(found), False
            window_s *= 4

    def explain(self) -> str:
        """Return the expression in words."""
        text = CronSim(self._fields, datetime.fromtimestamp(0, UTC)).explain()
        # The library writes 31th.
        return _ORDINAL.sub(lambda found: _ordinal(found[1]), text)


def check_cron(text: object) -> str:
    """Return a valid expression with single spaces. Raises ValueError with what is allowed."""
    allowed = Sentence("must be {format}", format=CRON_FORMAT)
    if not isinstance(text, str) or not text.strip() or len(text) > _MAX_LENGTH or not text.isascii():
        raise ValueError(allowed)
    shown = " ".join(text.split())
    if shown.startswith("@"):
        if shown not in ALIASES:
            raise ValueError(
                Sentence(
                    "{allowed}, or one of {names}{hint}",
                    allowed=allowed,
                    names=join_names(ALIASES),
                    hint=did_you_mean(shown, ALIASES),
                )
            )
        return shown
    try:
        found = next(CronSim(shown, datetime(2024, 1, 1, tzinfo=UTC)), None)
    except CronSimError as error:
        raise ValueError(Sentence("{allowed}; {reason}", allowed=allowed, reason=_reason(error, shown))) from None
    # The library meets other combinations with errors of Python, such as MON#1/2.
    except Exception:  # noqa: BLE001
        raise ValueError(Sentence("{allowed}; its fields cannot be combined so", allowed=allowed)) from None
    if found is None:
        raise ValueError(Sentence("{allowed}; it has no tick within 50 years", allowed=allowed))
    if wide := _wide_step(shown):
        raise ValueError(Sentence("{allowed}; {wide}", allowed=allowed, wide=wide))
    return shown


def check_time_zone(name: object) -> str:
    """Return the name of a time zone. Raises ValueError with what is allowed."""
    if isinstance(name, str) and name not in _LOCAL_ZONES and not name.startswith(_LOCAL_FOLDERS):
        try:
            _zone(name)
        # A folder of the database of zones, such as Europe, is no zone either.
        except (KeyError, ValueError, OSError):
            pass
        else:
            return name
    raise ValueError(
        Sentence(
            "must be {format}{hint}",
            format=TIME_ZONE_FORMAT,
            hint=did_you_mean(name, available_timezones() - _LOCAL_ZONES),
        )
    )


@lru_cache(maxsize=1_000)
def _zone(name: str) -> tzinfo:
    return UTC if name == "UTC" else ZoneInfo(name)


def _reason(error: CronSimError, text: str) -> str:
    """Return the library's reason in the words of the messages: which field is wrong."""
    words, count = str(error), len(text.split())
    if words == "Bad day-of-month" and _are_days(text.split()[count - 3]):
        return Sentence("it never occurs: its months have no such day")
    if words.startswith("Bad "):
        return Sentence("the field {field} is not valid", field=words.removeprefix("Bad ").replace("-", " "))
    return Sentence(
        "it has {fields}, and 5, or 6 with seconds in front, are allowed", fields=format_count(count, "field")
    )


def _are_days(field: str) -> bool:
    """Return whether the library accepts the days of a field: then the months are too short for them."""
    try:
        CronSim(f"0 0 {field} * *", _EPOCH)
    except CronSimError:
        return False
    return True


def _wide_step(text: str) -> str:
    """Return why a step has no effect: it exceeds the values of its field, which Debian's cron accepts; empty for none."""
    fields = text.split()
    for field, (name, count) in zip(fields, _FIELDS if len(fields) == 5 else (_SECOND, *_FIELDS), strict=True):
        for step in _STEP.findall(field):
            if int(step) > count:
                return Sentence(
                    "the step {step} of the field {name} is greater than {count}, the number of its values",
                    step=step,
                    name=name,
                    count=count,
                )
    return ""


def _ordinal(number: str) -> str:
    return number + ("th" if number[-2:-1] == "1" else _ENDINGS.get(number[-1], "th"))
