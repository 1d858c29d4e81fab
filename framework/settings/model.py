"""The settings, frozen and validated whole. Each field says its meaning; its default stands beside it."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from framework.settings.shapes import is_list, is_mapping
from framework.types import WIRE_NAME, WIRE_NAME_SHAPE, StrictArguments

ENV_PREFIX = "FRAMEWORK_"
DEFAULT_URL = "redis://127.0.0.1:6379/0"
EMBEDDED = "embedded"
_SCHEMES = ("redis", "rediss", "unix")
_NAME = re.compile(r"\w[\w-]*", re.ASCII)
_WORD = re.compile(r"\w+", re.ASCII)


def _no_bool(value: Any) -> Any:
    if value is True or value is False:
        raise ValueError("must be a number, not true or false")
    return value


def _check_name(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise ValueError("must be a name of ASCII letters, digits, _ and -")
    return name


def _check_word(name: str) -> str:
    if _WORD.fullmatch(name) is None:
        raise ValueError("must be a name of ASCII letters, digits and underscores")
    return name


def _check_category(name: str) -> str:
    if name == "not_owned":
        raise ValueError("is reserved for workers that no team owns: it needs no entry")
    return _check_word(name)


Whole = Annotated[int, BeforeValidator(_no_bool)]
Seconds = Annotated[float, BeforeValidator(_no_bool), Field(allow_inf_nan=False)]


class RoutingRule(NamedTuple):
    """One line of config/routing.yml: workers matching ``query`` go to ``queue`` (None: the generated name) on ``shard``."""

    query: str
    queue: str | None
    shard: str | None = None


class QueueWeight(NamedTuple):
    """One line of config/queues.yml: a queue or a namespace, and how often it is asked first."""

    name: str
    weight: int = 1


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Sentinel(NamedTuple):
    """Where one Redis Sentinel listens."""

    host: str
    port: int


class TlsSettings(_Section):
    """How a TLS connection is made; ``tls: true`` is all defaults: the system's authorities, the host name checked."""

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    verify: bool = True
    check_hostname: bool = True


def _read_tls(value: Any) -> Any:
    if isinstance(value, str) and value.lower() in {"true", "false"}:
        value = value.lower() == "true"
    if isinstance(value, bool):
        return {} if value else None
    return value


def _read_sentinel(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    host, _, port = value.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError("must be host:port, for example 10.0.0.7:26379")
    return Sentinel(host, int(port))


def _split(value: Any) -> Any:
    """One word is a list of one; the environment may write ``a,b``."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _read_switch(value: Any) -> Any:
    """YAML reads the word ``off`` as false."""
    return "off" if value is False else value


class ShardSettings(_Section):
    """One Redis: a URL, the word ``embedded`` (a server of our own under ``var/``), or sentinels that know its place."""

    url: str = Field(default="", repr=False)
    sentinels: Annotated[
        tuple[Annotated[Sentinel, BeforeValidator(_read_sentinel)], ...], NoDecode, BeforeValidator(_split)
    ] = ()
    sentinel_name: str | None = None
    username: str | None = None
    password: SecretStr | None = None
    tls: Annotated[TlsSettings | None, BeforeValidator(_read_tls)] = None
    protocol: Literal[2, 3] | None = None

    @property
    def embedded(self) -> bool:
        """The store is a server process of our own."""
        return self.url == EMBEDDED

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if not url or url == EMBEDDED:
            return url
        try:
            parts = urlsplit(url)
            port_is_fine = parts.port is None or parts.port > 0
        except ValueError as error:
            raise ValueError(f"is no URL: {error}") from None
        if parts.scheme not in _SCHEMES:
            raise ValueError("must be the word embedded, or begin with redis://, rediss:// or unix://")
        if not port_is_fine or not (parts.path if parts.scheme == "unix" else parts.hostname):
            raise ValueError("names no server, for example redis://127.0.0.1:6379/0")
        return url

    @model_validator(mode="after")
    def _check_place(self) -> "ShardSettings":
        if bool(self.sentinels) != bool(self.sentinel_name):
            raise ValueError("sentinels and sentinel_name belong together")
        if not self.url and not self.sentinels:
            raise ValueError("needs a url (a Redis URL or the word embedded), or sentinels and sentinel_name")
        if self.embedded and self.sentinels:
            raise ValueError("an embedded store has no sentinels")
        return self


class LoggingSettings(_Section):
    """What server processes write to stdout. ``jobs`` false leaves out start and done lines; failures are always written."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    jobs: bool = True


class DeadSettings(_Section):
    """How much the dead set keeps (Sidekiq's ``dead_max_jobs`` and ``dead_timeout_in_seconds``)."""

    max_jobs: Whole = Field(default=10_000, ge=1)
    timeout_days: Seconds = Field(default=180, gt=0)


class SizeLimitSettings(_Section):
    """Bytes of a job's arguments as JSON (GitLab's size limiter). ``track`` only reports what ``compress`` would refuse."""

    mode: Literal["compress", "track"] = "compress"
    compression_threshold: Whole = Field(default=100_000, ge=0)
    limit: Whole = Field(default=5_000_000, ge=0)
    """0 = no limit."""
    decompressed_limit: Whole = Field(default=100_000_000, ge=1)

    @model_validator(mode="after")
    def _check_order(self) -> "SizeLimitSettings":
        limit, threshold = self.limit, self.compression_threshold
        if self.decompressed_limit < limit:
            raise ValueError(
                f"decompressed_limit = {self.decompressed_limit} is below limit = {limit}: arguments that are accepted must be "
                "readable again"
            )
        if self.mode == "compress" and limit and threshold > limit:
            raise ValueError(
                f"compression_threshold = {threshold} is above limit = {limit}: what lies between would be refused without "
                "being compressed, while larger arguments pass"
            )
        if self.mode == "compress" and threshold > self.decompressed_limit:
            raise ValueError(
                f"compression_threshold = {threshold} is above decompressed_limit = {self.decompressed_limit}: whatever is "
                "compressed could not be read again"
            )
        return self


class SentrySettings(_Section):
    """The error tracker: failures of jobs are sent to ``dsn``; without one nothing of it is even loaded."""

    dsn: SecretStr | None = None

    @field_validator("dsn")
    @classmethod
    def _check_dsn(cls, dsn: SecretStr | None) -> SecretStr | None:
        text = dsn.get_secret_value().strip() if dsn is not None else ""
        if not text:
            return None
        parts = urlsplit(text)
        if parts.scheme not in ("http", "https") or not parts.username or not parts.path.rpartition("/")[2].isdigit():
            raise ValueError("is no DSN: copy it from the project's settings in Sentry (https://KEY@HOST/PROJECT)")
        return SecretStr(text)


class FeatureCategory(_Section):
    """Who owns a part of the product."""

    owner: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    description: str = ""


def _read_rule(value: Any) -> Any:
    shape = "must be [query, queue] or [query, queue, shard]"
    parts = _parts(value, shape)
    if len(parts) not in (2, 3) or not isinstance(parts[0], str):
        raise ValueError(f"{shape}, the query a text")
    for part, what in zip(parts[1:], ("queue", "shard"), strict=False):
        if part is not None and not isinstance(part, str):
            raise ValueError(f"{shape}; the {what} must be a text or null")
    return RoutingRule(parts[0], parts[1] or None, (parts[2] or None) if len(parts) == 3 else None)


def _read_weight(value: Any) -> Any:
    shape = "must be a queue name, or [name, weight]"
    parts = [value] if isinstance(value, str) else _parts(value, shape)
    if len(parts) not in (1, 2) or not isinstance(parts[0], str) or not parts[0]:
        raise ValueError(shape)
    weight: Any = parts[1] if len(parts) == 2 else 1
    if type(weight) is not int or weight < 1:
        raise ValueError(f"{shape}; the weight a whole number from 1 on")
    return QueueWeight(parts[0], weight)


def _parts(value: Any, shape: str) -> list[Any]:
    if not is_list(value):
        raise ValueError(shape)
    return value


def _check_wire_name(name: str) -> str:
    if WIRE_NAME.fullmatch(name) is None:
        raise ValueError(f"must be {WIRE_NAME_SHAPE}")
    return name


def _check_reason(reason: Any) -> Any:
    if not isinstance(reason, str) or not reason.strip():
        raise ValueError(
            "must be a text that says why the class was removed and since when, for those who find its jobs"
        )
    return reason.strip()


def _check_retired(value: Any) -> Any:
    if value is None:  # a key whose entries are commented out
        return {}
    if not is_mapping(value):
        raise ValueError("must map class names to reasons, for example {'Reports::MonthlyWorker': 'removed in 4.2'}")
    return value


RetiredWorkers = Annotated[
    dict[Annotated[str, AfterValidator(_check_wire_name)], Annotated[str, BeforeValidator(_check_reason)]],
    BeforeValidator(_check_retired),
]


class Settings(BaseSettings):
    """Everything configurable. Made by ``load``; sections are passed on, never the whole."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_prefix=ENV_PREFIX, env_nested_delimiter="__")

    env_name: Literal["development", "test", "production"] = "development"
    config_dir: Path
    """Where the files were read from, or would be."""
    root: Path
    """The project: parent of the config folder."""
    var_dir: Path
    """Whatever a run makes: stores, logs, reports."""

    shards: dict[Annotated[str, AfterValidator(_check_name)], ShardSettings]
    routing_rules: tuple[Annotated[RoutingRule, BeforeValidator(_read_rule)], ...] = ()
    feature_categories: dict[Annotated[str, AfterValidator(_check_category)], FeatureCategory] = Field(
        default_factory=dict[str, FeatureCategory]
    )
    queues: tuple[Annotated[QueueWeight, BeforeValidator(_read_weight)], ...] = ()
    """What a worker process without -q listens to."""

    namespace_weights: dict[Annotated[str, AfterValidator(_check_word)], Annotated[Whole, Field(ge=1)]] = Field(
        default_factory=dict[str, int]
    )
    """What the workers of a namespace weigh that declare no ``weight`` themselves (GitLab's namespace table)."""
    workers_module: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)] = ("workers",)
    """Modules or packages holding the workers."""
    logging: LoggingSettings = LoggingSettings()
    concurrency: Whole = Field(default=10, ge=1, le=10_000)
    """Jobs one process runs at a time."""
    timeout: Seconds = Field(default=25, gt=0)
    """Seconds a stopping process waits for its jobs."""
    max_retries: Whole = Field(default=25, ge=0)
    """What ``retry = True`` means."""
    dead: DeadSettings = DeadSettings()
    size_limit: SizeLimitSettings = SizeLimitSettings()
    strict_arguments: Annotated[StrictArguments, BeforeValidator(_read_switch)] = "raise"
    """What happens to arguments that do not fit ``perform`` or that JSON changes; a class may say otherwise."""
    poll_interval: Seconds = Field(default=1.0, gt=0)
    """Seconds within which some process of a shard looks for jobs that have become due unforeseen."""
    sentry: SentrySettings = SentrySettings()

    retired_workers: RetiredWorkers = Field(default_factory=dict[str, str])
    """Wire names of classes that were removed for good, and why: their left-over jobs are dropped and counted."""

    @field_validator("shards")
    @classmethod
    def _check_main(cls, shards: dict[str, ShardSettings]) -> dict[str, ShardSettings]:
        if "main" not in shards:
            raise ValueError("the shard main is missing: it always exists (shards: {main: {url: ...}}, or REDIS_URL)")
        return shards

    @field_validator("workers_module")
    @classmethod
    def _check_modules(cls, modules: tuple[str, ...]) -> tuple[str, ...]:
        for module in modules:
            if not all(part.isidentifier() for part in module.split(".")):
                raise ValueError(f"{module!r} is no module name, for example workers or shop.jobs")
        return modules

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what ``load`` hands in counts; it has merged files and environment, so that errors can name the source."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)
