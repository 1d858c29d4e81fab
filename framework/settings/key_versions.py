"""Keys of the application with versions: in the settings, or in files of their own."""

import base64
import binascii
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, SecretStr, model_validator
from pydantic_settings import NoDecode

from framework.settings import validators
from framework.settings.section import Section

KEY_BYTES = 32
_FORM = f"must be {KEY_BYTES} random bytes in base64: `application-worker encryption new-key` prints a key"

_Version = Annotated[int, validators.whole_number(1, 999_999_999)]
_QueuePattern = Annotated[str, AfterValidator(validators.queue_pattern)]
_ExistingFile = Annotated[Path, BeforeValidator(validators.existing_file)]


class KeySettings(Section):
    """Keys by version, each as base64 or in a file that holds base64. Without any, nothing is encrypted."""

    keys: dict[_Version, SecretStr] = Field(default_factory=dict[int, SecretStr], repr=False)
    key_files: dict[_Version, _ExistingFile] = Field(default_factory=dict[int, Path])
    active_version: _Version | None = None
    """The version that encrypts; without one the highest. All versions decrypt."""

    _secrets: dict[int, bytes] = PrivateAttr(default_factory=dict[int, bytes])

    @property
    def secrets(self) -> dict[int, bytes]:
        """The keys by version."""
        return self._secrets

    @property
    def active(self) -> int:
        """The version that encrypts. Raises ValueError without a key."""
        return self.active_version or max(self._secrets)

    @model_validator(mode="after")
    def _read(self) -> "KeySettings":
        twice = self.keys.keys() & self.key_files.keys()
        if twice:
            raise ValueError(f"version {min(twice)} is in keys and in key_files: give it once")
        for version, secret in self.keys.items():
            self._secrets[version] = _decoded(f"keys.{version}", secret.get_secret_value())
        for version, path in self.key_files.items():
            self._secrets[version] = _decoded(f"key_files.{version} ({path})", _text_of(version, path))
        if self.active_version is not None and self.active_version not in self._secrets:
            raise ValueError(f"active_version = {self.active_version} has no key: add it to keys or key_files")
        return self


class SignatureSettings(KeySettings):
    """Keys that sign payloads. With ``required``, jobs without a signature are quarantined."""

    required: bool = False
    unsigned_queues: Annotated[tuple[_QueuePattern, ...], NoDecode, BeforeValidator(validators.split_list)] = ()
    """Queues, or patterns of their names, whose jobs need no signature, because programs without a key push them."""

    @model_validator(mode="after")
    def _check_required(self) -> "SignatureSettings":
        if self.required and not self.secrets:
            raise ValueError("required needs a key: add it to keys or key_files")
        return self


def _text_of(version: int, path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError as error:
        raise ValueError(f"key_files.{version} ({path}) cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"key_files.{version} ({path}) {_FORM}") from None


def _decoded(place: str, text: str) -> bytes:
    try:
        secret = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if len(secret) != KEY_BYTES:
        raise ValueError(f"{place} {_FORM}")
    return secret
