"""Hold the keys of one purpose by version, find the key that a job names, and sign bytes with HMAC: one place knows the form."""

import hmac
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

_MOST_DIGITS = 9
_FORM = re.compile(r"(\d{1,9}\.[0-9a-f]{8})\.([0-9a-f]{64})", re.ASCII)


class KeyVersions(NamedTuple):
    """Hold the keys by version, and the version that new jobs get."""

    active: int
    keys: Mapping[int, bytes]


def derived(secret: bytes, purpose: str) -> bytes:
    """Return the key for one purpose: no two purposes share one."""
    return hmac.digest(secret, f"application-worker {purpose}".encode(), "sha256")


def key_name(version: int, secret: bytes) -> str:
    """Return the name of a key in payloads: its version and its fingerprint."""
    return f"{version}.{derived(secret, 'fingerprint').hex()[:8]}"


def version_in(name: object) -> int | None:
    """Return the version in the name of a key, ``None`` if it is no such name."""
    version, dot, _ = name.partition(".") if isinstance(name, str) else ("", "", "")
    named = dot and version.isascii() and version.isdigit() and len(version) <= _MOST_DIGITS
    return int(version) if named else None


def missing_reason(version: int, known: Mapping[int, object]) -> str:
    """Return why no key fits the name of a key with this version."""
    if version in known:
        return f"this process has another key of version {version} than the one that was used"
    return f"this process has no key of version {version} (it has {', '.join(map(str, sorted(known)))})"


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
