"""Encrypt the arguments of jobs with AES-GCM, under versioned keys.

``cryptography`` is loaded when the first key is used: only classes with ``encrypt = True`` need the extra.
"""

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from framework.errors import (
    ConfigurationError,
    ConfigurationProblem,
    MissingKeyError,
    OffloadedArgumentsError,
    PayloadError,
)
from framework.features.encryption.settings import KeySection
from framework.features.encryption.signatures import KeyVersions, derived, key_name, missing_reason, version_in
from framework.telemetry.logs import LogRateLimit
from framework.types import Jid, Json, Payload
from framework.version import install_extra
from framework.wire import keys
from framework.wire.compress import COMPRESSED, ORIGINAL_SIZE, deflate_arguments
from framework.wire.json import dumps
from framework.wire.protected import ENCRYPTED, ENCRYPTION_KEY, OFFLOADED
from framework.wire.resources import IDEMPOTENCY_KEY

_NONCE_BYTES = 12
_LOG_INTERVAL_S = 60.0
_CIPHERS = "cryptography.hazmat.primitives.ciphers.aead"


class _Key(NamedTuple):
    """Hold what is derived from one key: no two purposes share one."""

    name: str
    """The version and the fingerprint, as the payload has them."""
    cipher: Any
    lock_digest: bytes


class ArgumentEncryption:
    """Encrypt and decrypt the arguments of jobs. Safe from any thread."""

    def __init__(self, versions: KeyVersions) -> None:
        self._versions = versions
        self._log_rate = LogRateLimit(_LOG_INTERVAL_S)

    @classmethod
    def with_random_key(cls) -> "ArgumentEncryption":
        """Return an encryption for jobs that no other process reads: those of a test."""
        return cls(KeyVersions(1, {1: os.urandom(32)}))

    # Two threads may derive the same keys twice.
    @cached_property
    def _keys(self) -> Mapping[int, _Key]:
        cipher = _load_cipher()
        return {version: _derived(version, secret, cipher) for version, secret in self._versions.keys.items()}

    @property
    def _active(self) -> _Key:
        return self._keys[self._versions.active]

    def load(self) -> None:
        """Derive the keys now instead of at the first use.

        Raises:
            ConfigurationError: the package ``cryptography`` is not installed.
        """
        _ = self._keys

    def encrypt(self, payload: Payload) -> None:
        """Replace the arguments of a payload, compressed or not, by their encrypted form."""
        if payload.get(COMPRESSED):
            deflated = base64.b64decode(payload["args"][0])
        else:
            arguments = dumps(payload["args"])
            deflated = base64.b64decode(deflate_arguments(arguments))
            payload[ORIGINAL_SIZE] = len(arguments)
        self._encrypt(payload, deflated)

    def bind_to(self, payload: Payload, jid: Jid) -> None:
        """Give an encrypted job another id; its arguments are encrypted again, because they are bound to the id.

        Raises as ``read``.
        """
        deflated = self.read(payload, payload["args"][0])
        payload["jid"] = jid
        self._encrypt(payload, deflated)

    def _encrypt(self, payload: Payload, deflated: bytes) -> None:
        key, nonce = self._active, os.urandom(_NONCE_BYTES)
        payload[COMPRESSED] = payload[ENCRYPTED] = True
        payload[ENCRYPTION_KEY] = key.name
        sealed: bytes = key.cipher.encrypt(nonce, deflated, _associated_data(payload))
        payload["args"] = [base64.b64encode(nonce + sealed).decode("ascii")]

    def seal(self, data: bytes, place: Sequence[Json]) -> str:
        """Return other data than arguments as encrypted text, behind the name of the key. It can be read at its place alone."""
        key, nonce = self._active, os.urandom(_NONCE_BYTES)
        sealed: bytes = key.cipher.encrypt(nonce, data, dumps([key.name, *place]))
        return f"{key.name}:{base64.b64encode(nonce + sealed).decode('ascii')}"

    def open(self, text: str, place: Sequence[Json]) -> bytes:
        """Return the data that ``seal`` has encrypted.

        Raises:
            PayloadError: it is damaged, or was taken from another place.
            MissingKeyError: this process lacks the key.
        """
        name, _, sealed = text.partition(":")
        version = version_in(name) or 0
        key = self._keys.get(version)
        if key is None or key.name != name:
            raise MissingKeyError("the arguments are encrypted", missing_reason(version, self._keys), "encryption.keys")
        try:
            stored = base64.b64decode(sealed, validate=True)
            plain: bytes = key.cipher.decrypt(stored[:_NONCE_BYTES], stored[_NONCE_BYTES:], dumps([name, *place]))
        # As in ``decrypt``.
        except Exception as error:
            raise PayloadError("its encrypted arguments are damaged, or were taken from another place") from error
        return plain

    def replace_lock_key(self, payload: Payload) -> None:
        """Replace the lock key of a payload, if it has one, by ``lock_key``."""
        if IDEMPOTENCY_KEY in payload:
            payload[IDEMPOTENCY_KEY] = self.lock_key(str(payload[IDEMPOTENCY_KEY]))

    def lock_key(self, plain: str) -> str:
        """Return the lock key of equal encrypted jobs: without the encryption key, no arguments can be guessed from it."""
        digest = hmac.new(self._active.lock_digest, plain.encode(), hashlib.sha256)
        return keys.LOCKS + digest.hexdigest()

    def read(self, payload: Payload, text: str) -> bytes:
        if OFFLOADED in payload:
            raise OffloadedArgumentsError("no payload store is configured here")
        try:
            stored = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            # The check of AES-GCM fails for them as for any other text.
            stored = b""
        return self.decrypt(payload, stored)

    def decrypt(self, payload: Payload, stored: bytes) -> bytes:
        """Return the compressed arguments of a payload from their encrypted bytes. Raises as ``read``."""
        key = self._find(payload)
        try:
            plain: bytes = key.cipher.decrypt(stored[:_NONCE_BYTES], stored[_NONCE_BYTES:], _associated_data(payload))
        # ``InvalidTag`` of the package has no base but Exception. A text that is too short raises ValueError.
        except Exception as error:
            raise PayloadError(
                "its encrypted arguments are damaged, or were taken from another job: the check of AES-GCM failed"
            ) from error
        return plain

    @property
    def active_name(self) -> str:
        """The name of the key that encrypts, as payloads have it."""
        return self._active.name

    @property
    def key_names(self) -> Sequence[str]:
        return [key.name for key in self._keys.values()]

    def _find(self, payload: Payload) -> _Key:
        name = payload.get(ENCRYPTION_KEY)
        version = version_in(name)
        if version is None:
            raise PayloadError(f"its field {ENCRYPTION_KEY} names no version of a key")
        key = self._keys.get(version)
        if key is None or key.name != name:
            self._missing(payload, missing_reason(version, self._keys))
        return key

    def _missing(self, payload: Payload, reason: str) -> NoReturn:
        error = MissingKeyError("the arguments are encrypted", reason, "encryption.keys")
        name = str(payload.get("class"))
        self._log_rate.error(
            f"{name} {reason}",
            f"jobs of {name} are deferred, because {reason}. Add the key to encryption.keys of every process that runs the class",
            "encryption.key_missing",
            **{"class": name},
        )
        raise error


def encryption_of(settings: KeySection) -> ArgumentEncryption | None:
    """Return the encryption with the configured keys, ``None`` without keys.

    Raises:
        ConfigurationError: the extra is not installed.
    """
    return _encryption_of(settings.active, tuple(sorted(settings.secrets.items()))) if settings.secrets else None


@lru_cache(maxsize=8)
def _encryption_of(active: int, secrets: tuple[tuple[int, bytes], ...]) -> ArgumentEncryption:
    # Cached: client, processor and poller of one process share it, and its rate of log lines.
    encryption = ArgumentEncryption(KeyVersions(active, dict(secrets)))
    encryption.load()
    return encryption


def _derived(version: int, secret: bytes, cipher: Any) -> _Key:
    arguments, lock_digest = derived(secret, "arguments"), derived(secret, "lock digest")
    return _Key(key_name(version, secret), cipher(arguments), lock_digest)


def _associated_data(payload: Payload) -> bytes:
    """Return the data that is bound to the arguments: with another job's id, class or version they cannot be read."""
    bound = [payload.get("jid"), payload.get("class"), payload.get("version", 0), payload.get(ENCRYPTION_KEY)]
    return dumps([*bound, payload.get(ORIGINAL_SIZE)])


def _load_cipher() -> Any:
    try:
        return import_module(_CIPHERS).AESGCM
    except ImportError:
        message = f"needs the package cryptography: {install_extra('encryption')}"
        raise ConfigurationError([ConfigurationProblem("encryption", "keys", message)]) from None
