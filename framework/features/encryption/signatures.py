"""Hold keys by version, sign payloads and stored state with HMAC under them, and check the signatures before they count."""

import hmac
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple, NoReturn

from framework.errors import MissingKeyError, PayloadError, StateRefusedError
from framework.features.encryption.settings import SignatureSection
from framework.telemetry.context import CORRELATION_ID, META_PREFIX
from framework.telemetry.logs import LogRateLimit
from framework.types import Payload
from framework.wire.compress import COMPRESSED, ORIGINAL_SIZE
from framework.wire.job import PROFILE, TASK, TASK_ITEMS, TIMEOUT, TRACK
from framework.wire.json import dumps, dumps_parsed
from framework.wire.protected import (
    ENCRYPTED,
    ENCRYPTION_KEY,
    OFFLOADED,
    SIGNATURE,
    UNSIGNED_STATE,
    StatePlace,
    StateSignatures,
)

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


_SIGNED_FIELDS = (
    *("class", "jid", "version", "args", COMPRESSED, ORIGINAL_SIZE, ENCRYPTED, ENCRYPTION_KEY),
    # With it the arguments are an id with the digest of the blob.
    OFFLOADED,
    *("retry", "retry_for", "dead", "backtrace", "tags", "status_expiration", TIMEOUT, PROFILE),
    # Of batches, results and cron. The order is a part of what is signed.
    *(TRACK, TASK, TASK_ITEMS, "bid", "aw_kept", "aw_batch_event", "aw_result", "cron", CORRELATION_ID),
)
"""Fields that no move of a job changes, and that decide what runs, how, and for whom."""

_LOG_INTERVAL_S = 60.0
_OPTIONS = ":"
"""Stands between a signature and the names of the application's options that it covers."""


class _Verified(str):
    __slots__ = ()


_VERIFIED = _Verified("verified")
"""Takes the place of a checked signature in a running payload. It is recognized by identity, so that no payload can claim it."""


def _no_options() -> Collection[str]:
    return ()


class PayloadSignatures:
    """Sign and check payloads. Safe from any thread. Jobs of ``unsigned_queues`` (patterns) never need a signature."""

    def __init__(
        self,
        versions: KeyVersions,
        *,
        required: bool = False,
        unsigned_queues: Sequence[str] = (),
        option_fields: Callable[[], Collection[str]] = _no_options,
    ) -> None:
        """``option_fields`` returns the fields of the application's options, of which modules may declare more."""
        self._keys = SigningKeys(versions, "signature")
        self._required = required
        self._unsigned_queues = unsigned_queues
        self._option_fields = option_fields
        self._log_rate = LogRateLimit(_LOG_INTERVAL_S)

    def sign(self, payload: Payload) -> None:
        """Set the signature of a payload, in place of any other."""
        # By name: a process of another release may lack an option, and must still accept the job.
        options = sorted(field for field in self._option_fields() if field in payload)
        signature = self._keys.sign(_signed_content(payload, options))
        payload[SIGNATURE] = f"{signature}{_OPTIONS}{','.join(options)}" if options else signature

    def needs_signature(self, queue: str) -> bool:
        """Return whether a job from this queue must be signed."""
        return self._required and not matches_any(queue, self._unsigned_queues)

    def lacks(self, payload: Payload) -> bool:
        """Return whether a payload has no signature, although they are required: it comes from one of the ``unsigned_queues``."""
        return self._required and payload.get(SIGNATURE) is None

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
            if self.needs_signature(queue):
                raise PayloadError(
                    "it has no signature, and the setting signatures.required asks for one: its writer has no key, or is not this "
                    "application"
                )
            return
        self._verify(payload, found)
        payload[SIGNATURE] = _VERIFIED

    def accepts(self, payload: Payload, queue: str) -> bool:
        """Return whether ``check`` would accept a job from ``queue``. Marks nothing, and logs nothing."""
        found = payload.get(SIGNATURE)
        if found is None:
            return not self.needs_signature(queue)
        return found is _VERIFIED or self._fault(payload, found) is None

    def is_valid(self, payload: Payload) -> bool:
        """Return whether a payload as it is stored has a right signature."""
        return self._fault(payload, payload.get(SIGNATURE)) is None

    def _verify(self, payload: Payload, found: object) -> None:
        fault = self._fault(payload, found)
        if fault is None:
            return
        if fault.key_missing:
            self._missing(payload, fault.reason)
        raise PayloadError(
            f"its signature {fault.reason}: what it covers was changed, such as its class, id or arguments"
        )

    def _fault(self, payload: Payload, found: object) -> SignatureFault | None:
        if not isinstance(found, str):
            return SignatureFault("is missing, or no text")
        signature, _, names = found.partition(_OPTIONS)
        options = names.split(",") if names else []
        fault = self._keys.fault(_signed_content(payload, options), signature)
        if fault is None and any(one in payload and one not in options for one in self._option_fields()):
            return SignatureFault("does not cover an option that it has")
        return fault

    def _missing(self, payload: Payload, reason: str) -> NoReturn:
        name = str(payload.get("class"))
        self._log_rate.error(
            f"{name} {reason}",
            f"jobs of {name} are deferred, because {reason}. Add the key to signatures.keys of every process that runs the class",
            "signature.key_missing",
            **{"class": name},
        )
        raise MissingKeyError("the job is signed", reason, "signatures.keys")


def payload_signatures(
    settings: SignatureSection, option_fields: Callable[[], Collection[str]]
) -> PayloadSignatures | None:
    """Return the signatures with the configured keys, ``None`` without keys."""
    if not settings.secrets:
        return None
    return PayloadSignatures(
        KeyVersions(settings.active, settings.secrets),
        required=settings.required,
        unsigned_queues=settings.unsigned_queues,
        option_fields=option_fields,
    )


def _signed_content(payload: Payload, options: Sequence[str]) -> bytes:
    """Return the covered fields as JSON: another writer's spaces, escapes and order change nothing."""
    # One list: each job pays for it.
    facts = sorted([name for name in payload if name.startswith(META_PREFIX)])
    return dumps_parsed(
        [*map(payload.get, _SIGNED_FIELDS), facts, options, *map(payload.get, facts), *map(payload.get, options)]
    )


class KeyedStateSignatures(StateSignatures):
    signs = True

    def __init__(self, versions: KeyVersions, *, required: bool = False, unsigned_queues: Sequence[str] = ()) -> None:
        self._keys = SigningKeys(versions, "stored state")
        self._required = required
        self._unsigned_queues = unsigned_queues
        self._log_rate = LogRateLimit(_LOG_INTERVAL_S)

    def sign(self, place: StatePlace, data: bytes) -> str:
        return self._keys.sign(_content(place, data))

    def check(self, place: StatePlace, data: bytes, signature: str, *, queue: str = "") -> None:
        if not signature:
            if self._required and not matches_any(queue, self._unsigned_queues):
                self._refuse(place, "it has no signature, and the setting signatures.required asks for one")
            return
        fault = self._keys.fault(_content(place, data), signature)
        if fault is None:
            return
        if fault.key_missing:
            raise MissingKeyError(f"the {place.purpose} in {place.key} is signed", fault.reason, "signatures.keys")
        self._refuse(place, f"its signature {fault.reason}: it was changed, or moved from another place")

    def _refuse(self, place: StatePlace, reason: str) -> None:
        self._log_rate.error(
            f"{place.purpose} {place.key}",
            f"the {place.purpose} in {place.key} is not used: {reason}. Find the program that wrote it; the value is kept",
            "signature.state_refused",
            purpose=place.purpose,
            key=place.key,
            reason=reason,
        )
        raise StateRefusedError(place.purpose, place.key, reason)


def state_signatures(settings: SignatureSection) -> StateSignatures:
    """Return the signatures of stored state with the configured keys."""
    if not settings.secrets:
        return UNSIGNED_STATE
    return KeyedStateSignatures(
        KeyVersions(settings.active, settings.secrets),
        required=settings.required,
        unsigned_queues=settings.unsigned_queues,
    )


def _content(place: StatePlace, data: bytes) -> bytes:
    # JSON of one line: no value can continue it.
    return b"%b\n%b" % (dumps([place.purpose, place.key, *place.identity]), data)
