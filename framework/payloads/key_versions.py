"""Hold the keys of one purpose by version, and find the key that a job names."""

import hmac
from collections.abc import Mapping
from typing import NamedTuple

_MOST_DIGITS = 9


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
