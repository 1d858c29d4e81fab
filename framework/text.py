"""Format times, durations and ages for operators, and decode names that other programs write."""

import time

_LONGEST_S = 1_000 * 366 * 86_400
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_PLURAL_VERBS = {"is": "are", "was": "were", "has": "have", "waits": "wait", "belongs": "belong", "stays": "stay"}


def format_duration(seconds: float) -> str:
    """Return a length of time in its two greatest units: ``4 s``, ``12 min 5 s``, ``2 d 4 h``."""
    if seconds > _LONGEST_S:
        return "thousands of years"
    left = max(0, round(max(seconds, 0.0)))
    parts: list[str] = []
    for unit, size in _UNITS:
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if part) or "0 s"


def format_time(epoch_s: float) -> str:
    """Return a time in UTC: ``2026-02-28 09:15:00Z``."""
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(epoch_s))


def format_clock_time(epoch_s: float) -> str:
    """Return a time in UTC without its date: ``09:15:00Z``."""
    return time.strftime("%H:%M:%SZ", time.gmtime(epoch_s))


def format_count(count: int, noun: str, verb: str = "") -> str:
    """Return a count with its noun, and with a verb: ``1 job is``, ``2,000 held jobs are``, ``3 batches``."""
    number = f"{count:,}"
    if count != 1:
        noun = f"{noun}{'es' if noun.endswith(('s', 'ch', 'sh', 'x')) else 's'}"
        verb = _PLURAL_VERBS.get(verb, verb)
    return f"{number} {noun} {verb}".rstrip()


def with_article(noun: str) -> str:
    """Return a noun with its article: ``an int``, ``a UUID``. The names of types that begin with U are spoken as ``you``."""
    return f"{'an' if noun[:1].lower() in 'aeio' else 'a'} {noun}"


def format_times(count: int) -> str:
    """Return how many times something happened."""
    return "once" if count == 1 else f"{count:,} times"


def format_age(now: float, then: float | None) -> str:
    """Return how long ago ``then`` was, ``-`` if it is unknown."""
    return "-" if then is None else format_duration(now - then)


def decode_name(raw: bytes) -> str | None:
    """Return bytes from Redis as a name that can be sent to Redis again; ``None`` if they are no valid UTF-8, so no name of ours."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def decode_escaped(raw: bytes) -> str:
    """Return bytes from Redis as text: other programs write names there that need not be valid UTF-8.

    Such a byte becomes an escape (``\\xff``), so that two names stay different.
    """
    return raw.decode(errors="backslashreplace")
