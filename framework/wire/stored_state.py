"""Sign what the framework stores in Redis beside payloads, and check it before it becomes a job, or decides about one.

A payload has a signature of its own. Everything else that a process reads back, and turns into a job, an
argument or a result, is signed by the process that writes it. A signature binds the bytes to their purpose, their key and their
identity, so that no value can be moved to another place. An older value of the same place keeps a right signature: with the key
alone no process can tell which one is the newest (docs/operate/threat_model.md).

Without keys nothing is signed, and nothing is checked.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from framework.types import Jid, Json
from framework.wire import keys

_SEAL = re.compile(rb"\n(\d{1,9}\.[0-9a-f]{8}\.[0-9a-f]{64})\Z")


class StatePlace(NamedTuple):
    """Name the place of a stored value: what it is for, its key, and what identifies it there."""

    purpose: str
    """The kind of state. ``docs/operate/threat_model.md`` lists each with its key."""
    key: str
    identity: Sequence[Json] = ()


def result_place(jid: Jid) -> StatePlace:
    """Return the place of the answer of a job."""
    return StatePlace("result", keys.result(jid))


class StateSignatures:
    """Sign nothing, and accept everything: the signatures of a process without keys. Safe from any thread."""

    signs: bool = False
    """Whether there are keys."""

    def sign(self, place: StatePlace, data: bytes) -> str:
        """Return the signature of a value at its place; empty without keys."""
        del place, data
        return ""

    def check(self, place: StatePlace, data: bytes, signature: str, *, queue: str = "") -> None:
        """Check the signature of a value at its place; ``signature`` is empty if it has none.

        ``queue`` is that of the job whose state it is; it may be one of the ``unsigned_queues``.

        Raises:
            StateRefusedError: the signature is wrong, or missing and required. A log line tells.
            MissingKeyError: this process lacks the key.
        """

    def seal(self, place: StatePlace, data: bytes) -> bytes:
        """Return the value with its signature behind a line feed; without keys the value itself."""
        return b"%b\n%b" % (data, self.sign(place, data).encode()) if self.signs else data

    def open(self, place: StatePlace, sealed: bytes) -> bytes:
        """Return a value without its signature, which is checked. Raises as ``check``."""
        found = _SEAL.search(sealed)
        data = sealed if found is None else sealed[: found.start()]
        self.check(place, data, "" if found is None else found[1].decode())
        return data


UNSIGNED_STATE = StateSignatures()
"""Sign nothing, and accept everything: a process without keys, and the memory of a test."""
