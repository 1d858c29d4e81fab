"""Count the jobs of a class that a shard has accepted and that have not ended, for classes with a limit of them.

The step that writes a job counts it, and the step that ends it counts it no more: a counted job has a payload field with its bytes.
"""

from collections.abc import Sequence
from typing import NamedTuple

from framework.text import format_bytes, format_count
from framework.wire.job import set_fields
from framework.wire.json import dumps

ACCEPTED = "aw_accepted"
"""Payload field of a counted job: the bytes that are counted for it."""

_FIELD = f'"{ACCEPTED}":'.encode()


class AcceptedLimit(NamedTuple):
    """The most jobs of a class, and bytes of their payloads, that a shard accepts before some of them end."""

    worker: str
    jobs: int | None = None
    bytes: int | None = None
    drop_counter: str = ""
    """The series that counts the refused jobs, where they are dropped; empty where they are not."""

    def request(self, jobs: int, size: int) -> dict[str, str | int]:
        """Return what a script asks before it writes ``jobs`` jobs of ``size`` bytes (``parts/backlog_limit.lua``)."""
        found: dict[str, str | int] = {"c": self.worker, "n": jobs, "t": size}
        if self.jobs is not None:
            found["j"] = self.jobs
        if self.bytes is not None:
            found["m"] = self.bytes
        return found

    @property
    def described(self) -> str:
        """The limit for a message: "max_waiting allows 100 jobs"."""
        jobs = None if self.jobs is None else format_count(self.jobs, "job")
        size = None if self.bytes is None else format_bytes(self.bytes)
        return f"max_waiting allows {' and '.join(filter(None, (jobs, size)))}"


class CountedJobs(NamedTuple):
    """What the script needs to count the jobs of one write (``parts/count_accepted.lua``)."""

    limit: AcceptedLimit
    each: int
    """The bytes that are counted for each of the jobs: their average, so that a part of them may be written."""

    def argument(self, count: int, first_key: int, *, in_set: bool = False, done_key: str = "") -> bytes:
        """Return the last argument of a script that writes ``count`` jobs to the keys from ``first_key`` on.

        ``in_set``: these keys are sorted sets. ``done_key`` notes that the step was done.
        """
        fields = {
            "c": self.limit.worker,
            "n": count,
            "b": self.each,
            "k": first_key,
            "s": in_set,
            "d": done_key,
            "x": self.limit.drop_counter,
        }
        if self.limit.jobs is not None:
            fields["j"] = self.limit.jobs
        if self.limit.bytes is not None:
            fields["m"] = self.limit.bytes
        return dumps(fields)


def counted_payloads(payloads: Sequence[bytes]) -> tuple[list[bytes], int]:
    """Return payloads that say how many bytes are counted for each, and this number."""
    # The field itself has up to 9 digits.
    each = sum(map(len, payloads)) // max(1, len(payloads)) + len(_FIELD) + 9
    return [_with_field(data, each) for data in payloads], each


def _with_field(data: bytes, each: int) -> bytes:
    if _FIELD in data:
        # Another value, or the name in some text.
        return set_fields(data, {ACCEPTED: each})
    return b"%b,%b%d}" % (data[:-1], _FIELD, each)
