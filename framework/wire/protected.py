"""Name the fields of a job whose arguments are stored in a form that only the application can read.

Such a job has the mark ``compressed`` as well, and one text as its arguments. So every step that keeps the stored form of compressed
arguments keeps theirs, and a process that cannot read them refuses the job instead of running it with the text.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from framework.types import Jid, Json, Payload
from framework.wire import keys

ENCRYPTED = "encrypt"
"""Field of a job with encrypted arguments (Sidekiq Enterprise): Sidekiq's pages hide the last argument of such a job."""

ENCRYPTION_KEY = "aw_encryption_key"
"""Field of a job that this framework has encrypted: the version of the key, a dot, and the fingerprint of the key."""

OFFLOADED = "aw_offloaded"
"""Field of a job whose arguments are in the payload store: the number of bytes there. Its one argument is the id of the blob."""

SIGNATURE = "aw_signature"
"""Field of a signed job: the version of the key, a dot, the fingerprint of the key, a dot, and the signature."""

READ = "aw_read"
"""Mark of a running job whose protected arguments have been read; it is never written. The marks of the stored form remain."""

HIDDEN = "[encrypted data]"
"""The text that is shown instead of encrypted arguments (Sidekiq's words)."""

HIDDEN_OFFLOADED = "[offloaded data]"
"""The text that is shown instead of arguments in the payload store."""


class ProtectedArguments(Protocol):
    """Read protected arguments."""

    def read(self, payload: Payload, text: str) -> bytes:
        """Return the compressed arguments of a payload with this text.

        Raises:
            PayloadError: the text is damaged, or belongs to another job.
            MissingKeyError: this process lacks the key of the job.
            OffloadedArgumentsError: this process cannot read the payload store.
        """
        ...


def digest_of_key(purpose: str, key: str | int) -> str:
    """Return the digest that stands for a key made of encrypted arguments: a key is a name in Redis, in lines and in commands."""
    return hashlib.sha256(f"{purpose}:{key}".encode()).hexdigest()[:32]


def is_encrypted(payload: Payload) -> bool:
    """Return whether this framework has encrypted the arguments of a job."""
    return ENCRYPTION_KEY in payload


def is_protected(payload: Payload) -> bool:
    """Return whether the arguments of a job are stored in such a form."""
    return ENCRYPTION_KEY in payload or OFFLOADED in payload


def hidden_arguments(payload: Payload) -> str:
    """Return the text that is shown instead of the arguments of a payload that ``is_protected``."""
    return HIDDEN if is_encrypted(payload) else HIDDEN_OFFLOADED


# A payload has a signature of its own. Everything else that a process reads back, and turns into a job, an
# argument or a result, is signed by the process that writes it. A signature binds the bytes to their purpose, their key and their
# identity, so that no value can be moved to another place. An older value of the same place keeps a right signature: with the key
# alone no process can tell which one is the newest (docs/operate/threat_model.md).
#
# Without keys nothing is signed, and nothing is checked.

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
