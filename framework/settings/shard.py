"""The address of the Redis of one shard, and the way to connect: keys of redis.yml, and parts of its URL."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import NoDecode

from framework.settings import validators
from framework.settings.base import Section
from framework.settings.urls import EMBEDDED, RedisUrl, check_redis_url, parse_redis_url
from framework.typeguards import is_mapping


class SentinelAddress(NamedTuple):
    """The address of one Redis Sentinel."""

    host: str
    port: int


_ExistingFile = Annotated[Path | None, BeforeValidator(validators.existing_file)]


class TlsSettings(Section):
    """The parameters of a TLS connection. ``tls: true`` takes all defaults: the system's authorities, and a checked host name."""

    ca_file: _ExistingFile = None
    cert_file: _ExistingFile = None
    key_file: _ExistingFile = None
    verify: bool = True
    check_hostname: bool = True

    @field_validator("ca_file")
    @classmethod
    def _check_authority(cls, path: Path | None) -> Path | None:
        if path is not None:
            validators.check_ca_file(path)
        return path

    @model_validator(mode="after")
    def _check_key(self) -> "TlsSettings":
        if self.key_file is not None and self.cert_file is None:
            raise ValueError("key_file needs the cert_file it belongs to")
        if self.cert_file is not None:
            validators.check_certificate(self.cert_file, self.key_file)
        return self


def _parse_tls(value: Any) -> Any:
    if isinstance(value, str) and value.lower() in {"true", "false"}:
        value = value.lower() == "true"
    if isinstance(value, bool):
        return {} if value else None
    if value is not None and not is_mapping(value):
        raise ValueError(
            f"must be true, false, or keys and values; allowed keys: {', '.join(TlsSettings.model_fields)}"
        )
    return value


def _parse_sentinel(value: Any) -> Any:
    host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    number = int(port) if re.fullmatch(r"\d{1,5}", port, re.ASCII) else 0
    if re.fullmatch(r"[\w.-]+|\[[\dA-Fa-f:.]+\]", host, re.ASCII) is None or not 0 < number < 65536:
        raise ValueError("must be host:port, for example 10.0.0.7:26379")
    return SentinelAddress(host.strip("[]"), number)


_Tls = Annotated[TlsSettings | None, BeforeValidator(_parse_tls)]


class ShardSettings(Section):
    """One Redis: a URL, the word ``embedded`` (a server started by the framework), or sentinels that know its address."""

    url: str = Field(default="", repr=False)
    sentinels: Annotated[
        tuple[Annotated[SentinelAddress, BeforeValidator(_parse_sentinel)], ...],
        NoDecode,
        BeforeValidator(validators.split_list),
    ] = ()
    sentinel_name: str | None = None
    sentinel_username: str | None = None
    sentinel_password: SecretStr | None = None
    """The sentinels' own password; without one they get the credentials of the Redis, then none."""
    sentinel_tls: _Tls = None
    """TLS to the sentinels; not given: as for the Redis. False: without TLS."""
    username: str | None = None
    password: SecretStr | None = None
    tls: _Tls = None
    protocol: Annotated[Literal[2, 3] | None, BeforeValidator(validators.digit)] = None
    memory_budget: Annotated[int | float, BeforeValidator(validators.bytes_or_share)] = 0.7
    """The bytes from which the classes that fill the memory are held back; or a share of ``maxmemory``, else of all memory."""

    @property
    def is_embedded(self) -> bool:
        """Whether the store is a server process that the framework starts."""
        return self.url == EMBEDDED

    @property
    def url_parts(self) -> RedisUrl:
        return RedisUrl() if self.url in ("", EMBEDDED) else parse_redis_url(self.url)

    @property
    def effective_tls(self) -> TlsSettings | None:
        """TLS to the Redis, ``None``: without. Merges the url's parameters and ``tls``."""
        url_settings = self.url_parts
        if not url_settings.uses_tls and self.tls is None:
            return None
        # Nothing to merge, so no file is read a second time.
        if not url_settings.tls:
            return self.tls or TlsSettings()
        return TlsSettings.model_validate(
            {**url_settings.tls, **(self.tls.model_dump(exclude_unset=True) if self.tls else {})}
        )

    @property
    def effective_sentinel_tls(self) -> TlsSettings | None:
        if "sentinel_tls" in self.model_fields_set:
            return self.sentinel_tls
        wanted = self.url_parts.sentinel_tls
        if wanted is None:
            return self.effective_tls
        return (self.effective_tls or TlsSettings()) if wanted else None

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        return url if url in ("", EMBEDDED) else check_redis_url(url)

    @model_validator(mode="after")
    def _check_address(self) -> "ShardSettings":
        if self.url and self.sentinels:
            raise ValueError("has a url and sentinels, and only one of them may be given: remove the other")
        if bool(self.sentinels) != bool(self.sentinel_name):
            self._check_sentinel_name()
        if not self.url and not self.sentinels:
            raise ValueError("needs a url (a Redis URL or the word embedded), or sentinels and sentinel_name")
        if self.is_embedded and (self.username or self.password or self.tls or self._sentinel_keys()):
            raise ValueError("an embedded store has no sentinels, no credentials and no TLS: remove these keys")
        return self

    @model_validator(mode="after")
    def _check_sentinels(self) -> "ShardSettings":
        named = self._sentinel_keys()
        if named and not (self.sentinels or self.url_parts.sentinels or self.is_embedded):
            raise ValueError(f"{named[0]} belongs to sentinels: give sentinels and sentinel_name, or remove it")
        if self.sentinel_username and not self.sentinel_password:
            raise ValueError("sentinel_username needs the sentinel_password that belongs to it")
        return self

    @model_validator(mode="after")
    def _check_tls(self) -> "ShardSettings":
        url_settings = self.url_parts
        if self.tls is not None and self.url.startswith("unix://"):
            raise ValueError("tls and a unix:// url exclude each other: remove one of them")
        if self.tls is None and "tls" in self.model_fields_set and url_settings.uses_tls:
            secure = self.url.partition("://")[0]
            plain = secure.replace("rediss", "redis")
            raise ValueError(f"tls: false contradicts the {secure}:// url: write {plain}://, or remove tls")
        if url_settings.tls and not url_settings.uses_tls and self.tls is None:
            parameter = next(iter(url_settings.parameters.values()))
            raise ValueError(f"the url's {parameter} is about TLS: write rediss:// for redis://, or remove {parameter}")
        for key, value in url_settings.tls.items():
            own = getattr(self.tls, key) if self.tls is not None and key in self.tls.model_fields_set else value
            if str(own) != str(value):
                raise ValueError(
                    f"tls.{key} and the url's {url_settings.parameters[key]} contradict each other: remove one"
                )
        if url_settings.tls:
            self._check_tls_files(url_settings)
        return self

    def _check_tls_files(self, url_settings: RedisUrl) -> None:
        try:
            _ = self.effective_tls
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            of = next(
                (
                    f"{url_settings.parameters[str(key)]}: "
                    for key in first["loc"]
                    if str(key) in url_settings.parameters
                ),
                "",
            )
            raise ValueError(f"the url's {of}{first['msg'].removeprefix('Value error, ')}") from None

    def _check_sentinel_name(self) -> None:
        if self.url_parts.sentinels:
            raise ValueError("the url names the master already: remove sentinel_name")
        given, missing = ("sentinels", "sentinel_name") if self.sentinels else ("sentinel_name", "sentinels")
        raise ValueError(f"sentinels and sentinel_name belong together: {given} is given, {missing} is missing")

    def _sentinel_keys(self) -> list[str]:
        return sorted(key for key in self.model_fields_set if key.startswith("sentinel") and getattr(self, key))
