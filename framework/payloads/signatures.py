"""Sign payloads with HMAC under versioned keys, and check the signatures before a job runs (decision 240)."""

import hmac
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import NoReturn

from framework.errors import MissingKeyError, PayloadError
from framework.payloads.key_versions import KeyVersions, derived, key_name, missing_reason, version_in
from framework.telemetry.rate_limit import LogRateLimit
from framework.types import Payload
from framework.wire.compress import COMPRESSED, ORIGINAL_SIZE
from framework.wire.json import dumps
from framework.wire.protected import ENCRYPTED, ENCRYPTION_KEY, OFFLOADED, SIGNATURE

_SIGNED_FIELDS = ("class", "jid", "version", "args", COMPRESSED, ORIGINAL_SIZE, ENCRYPTED, ENCRYPTION_KEY)
"""Fields that no move of a job changes, and that decide what runs."""

_FORM = re.compile(r"(\d{1,9}\.[0-9a-f]{8})\.([0-9a-f]{64})", re.ASCII)
_LOG_INTERVAL_S = 60.0


class _Verified(str):
    __slots__ = ()


_VERIFIED = _Verified("verified")
"""Takes the place of a checked signature in a running payload. It is recognized by identity, so that no payload can claim it."""


class PayloadSignatures:
    """Sign and check payloads. Safe from any thread. Jobs of ``unsigned_queues`` (patterns) never need a signature."""

    def __init__(self, versions: KeyVersions, *, required: bool = False, unsigned_queues: Sequence[str] = ()) -> None:
        self._keys = {version: derived(secret, "signature") for version, secret in versions.keys.items()}
        self._names = {version: key_name(version, secret) for version, secret in versions.keys.items()}
        self._active = versions.active
        self._required = required
        self._unsigned_queues = unsigned_queues
        self._log_rate = LogRateLimit(_LOG_INTERVAL_S)

    def sign(self, payload: Payload) -> None:
        """Set the signature of a payload, in place of any other."""
        name = self._names[self._active]
        payload[SIGNATURE] = f"{name}.{self._digest(self._active, name, payload)}"

    def check(self, payload: Payload, queue: str) -> None:
        """Check the signature of a job from ``queue`` once; a checked payload is marked.

        Raises:
            PayloadError: the signature is wrong, or missing and required.
            MissingKeyError: this process lacks the key.
        """
        found = payload.get(SIGNATURE)
        if found is _VERIFIED:
            return
        if found is None:
            if self._required and not any(fnmatchcase(queue, pattern) for pattern in self._unsigned_queues):
                raise PayloadError(
                    "it has no signature, and the setting signatures.required asks for one: its writer has no key, or is not this "
                    "application"
                )
            return
        self._verify(payload, found)
        payload[SIGNATURE] = _VERIFIED

    def is_valid(self, payload: Payload) -> bool:
        """Return whether a payload has a right signature."""
        try:
            self._verify(payload, payload.get(SIGNATURE))
        except (PayloadError, MissingKeyError):
            return False
        return True

    def _verify(self, payload: Payload, found: object) -> None:
        form = _FORM.fullmatch(found) if isinstance(found, str) else None
        version = None if form is None else version_in(form[1])
        if form is None or version is None:
            raise PayloadError(f"its field {SIGNATURE} is no signature")
        if self._names.get(version) != form[1]:
            self._missing(payload, missing_reason(version, self._names))
        if not hmac.compare_digest(form[2], self._digest(version, form[1], payload)):
            raise PayloadError("its signature is wrong: its class, id, version or arguments were changed")

    def _digest(self, version: int, name: str, payload: Payload) -> str:
        signed = [name, *(payload.get(field) for field in _SIGNED_FIELDS)]
        # The arguments are then an id with the digest of the blob.
        if OFFLOADED in payload:
            signed.append(payload[OFFLOADED])
        return hmac.digest(self._keys[version], dumps(signed), "sha256").hex()

    def _missing(self, payload: Payload, reason: str) -> NoReturn:
        name = str(payload.get("class"))
        self._log_rate.error(
            f"{name} {reason}",
            f"jobs of {name} are deferred, because {reason}. Add the key to signatures.keys of every process that runs the class",
            "signature.key_missing",
            **{"class": name},
        )
        raise MissingKeyError("the job is signed", reason, "signatures.keys")
