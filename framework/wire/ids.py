"""Generate the id of a new job (12 random bytes as 24 lower-case hexadecimal digits, as in Sidekiq), and write its time."""

import os

from framework.types import Jid

_BYTES = 12
_DIGITS = 2 * _BYTES


def base36(number: int) -> str:
    """Return a number in base 36, as Sidekiq writes the ids of threads."""
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    text = ""
    while number:
        number, rest = divmod(number, 36)
        text = digits[rest] + text
    return text or "0"


def generate_jid() -> Jid:
    """Return a new job id."""
    return os.urandom(_BYTES).hex()


def generate_jids(count: int) -> list[Jid]:
    """Return ``count`` new job ids with one system call."""
    digits = os.urandom(_BYTES * count).hex()
    return [digits[start : start + _DIGITS] for start in range(0, len(digits), _DIGITS)]


def wire_timestamp_json(seconds: float) -> bytes:
    """Return ``wire_timestamp(seconds)`` of ``wire.job`` as JSON."""
    text = b"%.6f" % seconds
    return text[:-1] + b"1" if text.endswith(b".000000") else text
