"""Settings of protected payloads: keys with versions, and the store of large arguments."""

import base64
import binascii
from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import NoDecode

from framework.settings import validators
from framework.settings.base import Section, SettingsBase
from framework.settings.model import SizeLimitSettings
from framework.settings.urls import shown_url
from framework.text import did_you_mean

KEY_BYTES = 32
_FORM = f"must be {KEY_BYTES} random bytes in base64: `application-worker encryption new-key` prints a key"

_Version = Annotated[int, validators.whole_number(1, 999_999_999)]
_QueuePattern = Annotated[str, AfterValidator(validators.queue_pattern)]
_ExistingFile = Annotated[Path, BeforeValidator(validators.existing_file)]


class KeySection(Section):
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
    def _read(self) -> "KeySection":
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


class SignatureSection(KeySection):
    """Keys that sign payloads. With ``required``, jobs without a signature are quarantined."""

    required: bool = False
    unsigned_queues: Annotated[tuple[_QueuePattern, ...], NoDecode, BeforeValidator(validators.split_list)] = ()
    """Queues, or patterns of their names, whose jobs need no signature, because programs without a key push them."""

    @model_validator(mode="after")
    def _check_required(self) -> "SignatureSection":
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


_SCHEMES = ("file", "s3")
_QUERY = ("endpoint", "region")
_EXAMPLES = "file:///srv/payloads, or s3://bucket/prefix?region=eu-central-1"


class BucketAddress(NamedTuple):
    """Hold the parts of a URL with ``s3://``."""

    bucket: str
    prefix: str
    endpoint: str | None
    region: str | None


def check_store_url(url: str) -> str:
    """Return the URL of a payload store. Raises ValueError saying what is allowed."""
    if any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError("must be a URL without spaces and control characters")
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        hint = did_you_mean(scheme, _SCHEMES) if separator else ""
        raise ValueError(f"must begin with file:// or s3://{hint}: {_EXAMPLES}")
    if "#" in url:
        raise ValueError("must have no fragment: write # as %23")
    parts = urlsplit(url)
    if scheme == "file":
        if parts.netloc or parts.query or len(parts.path) < 2:
            raise ValueError("must name a folder by its absolute path: file:///srv/payloads")
    else:
        _check_bucket(url)
    return url


def _check_bucket(url: str) -> None:
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ValueError(
            "must hold no credentials: they come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
        )
    if not parts.netloc or ":" in parts.netloc:
        raise ValueError("must name a bucket: s3://bucket/prefix; another server is ?endpoint=https://host:port")
    query = parse_qsl(parts.query, keep_blank_values=True)
    for name, value in query:
        if name not in _QUERY:
            raise ValueError(
                f"has the unknown part {name!r}{did_you_mean(name, _QUERY)}: only endpoint and region are allowed"
            )
        if name == "endpoint" and shown_url(value) != value:
            raise ValueError(
                "must hold no credentials in its endpoint, only https://host:port: they come from the environment "
                "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
            )
        if not value or (name == "endpoint" and not value.startswith(("http://", "https://"))):
            raise ValueError(f"has a wrong {name}: for example endpoint=https://host:port, region=eu-central-1")
    if len({name for name, _ in query}) < len(query):
        raise ValueError("must name endpoint and region once")


class PayloadOffloadSection(Section):
    """Where the arguments of large jobs are stored, from which size on, and for how long without a job."""

    url: Annotated[str, AfterValidator(check_store_url)] | None = Field(default=None, repr=False)
    """``file:///folder``, shared by all hosts, or ``s3://bucket/prefix?endpoint=...&region=...``; without one, nothing is stored."""
    threshold: Annotated[int, validators.whole_number(1_000, 1 << 30)] = 1_000_000
    """Bytes of the stored (compressed, encrypted) arguments from which on they are offloaded."""
    keep: Annotated[float, validators.bounded_number(3_600, 1_000_000_000)] = 604_800.0
    """Seconds after which a blob that no job names is suspected, and after as many more deleted."""

    @property
    def folder(self) -> Path | None:
        """The folder of a URL with ``file://``, ``None`` for a bucket."""
        parts = urlsplit(self.url or "")
        return Path(unquote(parts.path)) if parts.scheme == "file" else None

    @property
    def bucket(self) -> BucketAddress:
        """The parts of a URL with ``s3://``."""
        parts = urlsplit(self.url or "")
        query = dict(parse_qsl(parts.query))
        return BucketAddress(parts.netloc, unquote(parts.path).strip("/"), query.get("endpoint"), query.get("region"))


class EncryptionSettings(SettingsBase):
    """How the arguments of jobs are protected, and where large ones are stored."""

    encryption: KeySection = KeySection()
    """The keys of classes that encrypt their arguments."""
    signatures: SignatureSection = SignatureSection()
    """The keys that sign payloads."""
    payload_offload: PayloadOffloadSection = PayloadOffloadSection()
    """The store of large arguments outside of Redis."""

    @field_validator("payload_offload")
    @classmethod
    def _check_offload(cls, offload: PayloadOffloadSection, info: ValidationInfo) -> PayloadOffloadSection:
        sizes: SizeLimitSettings | None = info.data.get("size_limit")
        if offload.url is None or sizes is None:
            return offload
        if sizes.mode != "compress":
            raise ValueError("needs size_limit.mode = compress: only compressed arguments are offloaded")
        if sizes.limit and offload.threshold > sizes.limit:
            raise ValueError(
                f"threshold = {offload.threshold} is above size_limit.limit = {sizes.limit}: larger ones would go to Redis"
            )
        return offload
