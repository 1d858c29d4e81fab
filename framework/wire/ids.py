"""Generate the id of a new job (12 random bytes as 24 lower-case hexadecimal digits, as in Sidekiq), and write its time."""

import os

from framework.text import with_article
from framework.typeguards import is_text, short_repr
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


def check_jid(jid: object, index: int = 0) -> Jid:
    """Return the id of a job.

    Raises:
        TypeError, ValueError: it cannot be one; ``index`` is its place in the message.
    """
    if jid is None:
        raise TypeError(f"id {index} is None: that job was dropped when it was pushed, and has no state; leave it out")
    if not isinstance(jid, str):
        raise TypeError(
            f"id {index} is {short_repr(jid)}, {with_article(type(jid).__name__)}; use the id that the push returned"
        )
    if not jid:
        raise ValueError(f"id {index} is empty; use the id that the push returned")
    if not is_text(jid):
        raise ValueError(
            f"id {index} is {short_repr(jid)}, which is not Unicode text; use the id that the push returned"
        )
    return jid
