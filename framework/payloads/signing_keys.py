"""Sign bytes with HMAC under versioned keys, and check signatures: the one place that knows their form."""

import hmac
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from framework.payloads.key_versions import KeyVersions, derived, key_name, missing_reason, version_in

_FORM = re.compile(r"(\d{1,9}\.[0-9a-f]{8})\.([0-9a-f]{64})", re.ASCII)


def matches_any(queue: str, patterns: Sequence[str]) -> bool:
    """Return whether the name of a queue is, or matches, one of ``unsigned_queues``; an empty name matches none."""
    return bool(queue) and any(fnmatchcase(queue, pattern) for pattern in patterns)


class SignatureFault(NamedTuple):
    """Say what is wrong with a signature. With ``key_missing`` it is not known: this process lacks its key."""

    reason: str
    key_missing: bool = False


class SigningKeys:
    """Sign with the active key, and check with every key. Keys of two purposes differ. Safe from any thread."""

    def __init__(self, versions: KeyVersions, purpose: str) -> None:
        self._keys = {version: derived(secret, purpose) for version, secret in versions.keys.items()}
        self._names = {version: key_name(version, secret) for version, secret in versions.keys.items()}
        self._active = versions.active

    def sign(self, content: bytes) -> str:
        """Return a signature: the version of the key, a dot, its fingerprint, a dot, and the digest."""
        name = self._names[self._active]
        return f"{name}.{self._digest(self._active, name, content)}"

    def fault(self, content: bytes, found: object) -> SignatureFault | None:
        """Return what is wrong with the signature ``found`` of these bytes, ``None`` if it is right."""
        form = _FORM.fullmatch(found) if isinstance(found, str) else None
        version = None if form is None else version_in(form[1])
        if form is None or version is None:
            return SignatureFault("has another form than a signature")
        if self._names.get(version) != form[1]:
            return SignatureFault(missing_reason(version, self._names), key_missing=True)
        # In constant time: the time of the comparison must not tell how many digits of a guess are right.
        if not hmac.compare_digest(form[2], self._digest(version, form[1], content)):
            return SignatureFault("is wrong")
        return None

    def _digest(self, version: int, name: str, content: bytes) -> str:
        return hmac.digest(self._keys[version], b"%b\n%b" % (name.encode(), content), "sha256").hex()
