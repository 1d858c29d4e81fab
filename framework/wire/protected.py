"""Name the fields of a job whose arguments are stored in a form that only the application can read.

Such a job has the mark ``compressed`` as well, and one text as its arguments. So every step that keeps the stored form of compressed
arguments keeps theirs, and a process that cannot read them refuses the job instead of running it with the text.
"""

import hashlib
from typing import Protocol

from framework.types import Payload

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
