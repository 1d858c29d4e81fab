"""The settings, frozen and validated whole. Each field says its meaning; its default stands beside it."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    StringConstraints,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from framework.settings import values
from framework.settings.database_url import check_database_url
from framework.settings.health import HealthSettings
from framework.settings.redis_url import EMBEDDED, check_redis_url
from framework.settings.section import Section as _Section
from framework.settings.shapes import is_list, is_mapping
from framework.settings.suggest import did_you_mean
from framework.types import QUEUE_NAME, QUEUE_NAME_SHAPE, StrictArguments

EnvName: TypeAlias = Literal["development", "test", "production"]
ENV_PREFIX = "FRAMEWORK_"
DEFAULT_URL = "redis://127.0.0.1:6379/0"
_BYTES_IN_REDIS = 512 * 1024 * 1024
"""The longest string that a Redis server takes."""

MAX_CONCURRENCY = 10_000
MAX_TIMEOUT_S = 7 * 86_400.0
MOST_OF_A_QUEUE = 1_000_000


class RoutingRule(NamedTuple):
    """One line of config/routing.yml: workers matching ``query`` go to ``queue`` (None: the generated name) on ``shard``."""

    query: str
    queue: str | None
    shard: str | None = None


class QueueWeight(NamedTuple):
    """One line of config/queues.yml: a queue or a namespace, and how often it is asked first."""

    name: str
    weight: int = 1


class Sentinel(NamedTuple):
    """Where one Redis Sentinel listens."""

    host: str
    port: int


_ExistingFile = Annotated[Path | None, BeforeValidator(values.existing_file)]


class TlsSettings(_Section):
    """How a TLS connection is made; ``tls: true`` is all defaults: the system's authorities, the host name checked."""

    ca_file: _ExistingFile = None
    cert_file: _ExistingFile = None
    key_file: _ExistingFile = None
    verify: bool = True
    check_hostname: bool = True

    @model_validator(mode="after")
    def _check_key(self) -> "TlsSettings":
        if self.key_file is not None and self.cert_file is None:
            raise ValueError("key_file needs the cert_file it belongs to")
        return self


def _read_tls(value: Any) -> Any:
    if isinstance(value, str) and value.lower() in {"true", "false"}:
        value = value.lower() == "true"
    if isinstance(value, bool):
        return {} if value else None
    if value is not None and not is_mapping(value):
        raise ValueError(
            f"must be true, false, or keys and values; allowed keys: {', '.join(TlsSettings.model_fields)}"
        )
    return value


def _read_sentinel(value: Any) -> Any:
    host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    number = int(port) if re.fullmatch(r"\d{1,5}", port, re.ASCII) else 0
    if re.fullmatch(r"[\w.-]+|\[[\dA-Fa-f:.]+\]", host, re.ASCII) is None or not 0 < number < 65536:
        raise ValueError("must be host:port, for example 10.0.0.7:26379")
    return Sentinel(host.strip("[]"), number)


class ShardSettings(_Section):
    """One Redis: a URL, the word ``embedded`` (a server of our own under ``var/``), or sentinels that know its place."""

    url: str = Field(default="", repr=False)
    sentinels: Annotated[
        tuple[Annotated[Sentinel, BeforeValidator(_read_sentinel)], ...], NoDecode, BeforeValidator(values.split)
    ] = ()
    sentinel_name: str | None = None
    username: str | None = None
    password: SecretStr | None = None
    tls: Annotated[TlsSettings | None, BeforeValidator(_read_tls)] = None
    protocol: Annotated[Literal[2, 3] | None, BeforeValidator(values.digit)] = None

    @property
    def embedded(self) -> bool:
        """The store is a server process of our own."""
        return self.url == EMBEDDED

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        return url if url in ("", EMBEDDED) else check_redis_url(url)

    @model_validator(mode="after")
    def _check_place(self) -> "ShardSettings":
        if bool(self.sentinels) != bool(self.sentinel_name):
            raise ValueError("sentinels and sentinel_name belong together")
        if not self.url and not self.sentinels:
            raise ValueError("needs a url (a Redis URL or the word embedded), or sentinels and sentinel_name")
        if self.embedded and (self.sentinels or self.username or self.password or self.tls):
            raise ValueError("an embedded store has no sentinels, no credentials and no TLS: remove these keys")
        if self.url and self.sentinels:
            raise ValueError("has a url and sentinels, of which only one can say where the Redis is: remove the other")
        if self.tls is not None and self.url.startswith("unix://"):
            raise ValueError("tls does not go with a unix:// url: remove one of them")
        if self.tls is None and "tls" in self.model_fields_set and self.url.startswith("rediss://"):
            raise ValueError("tls: false contradicts the rediss:// url: write redis://, or remove tls")
        return self


_DatabaseUrl = Annotated[str, AfterValidator(check_database_url)]


class DatabaseSettings(_Section):
    """One database of the application: its primary, and the streaming replicas that may be read instead."""

    url: _DatabaseUrl = Field(repr=False)
    replicas: Annotated[tuple[_DatabaseUrl, ...], NoDecode, BeforeValidator(values.split)] = Field(
        default=(), repr=False
    )


class LoggingSettings(_Section):
    """What server processes write to stdout. ``jobs`` false leaves out start and done lines; failures are always written."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    jobs: bool = True


class DeadSettings(_Section):
    """How much the dead set keeps (Sidekiq's ``dead_max_jobs`` and ``dead_timeout_in_seconds``)."""

    max_jobs: Annotated[int, values.whole(1, 1_000_000_000)] = 10_000
    timeout_days: Annotated[float, values.seconds(0.001, 36_500)] = 180


class SizeLimitSettings(_Section):
    """Bytes of a job's arguments as JSON (GitLab's size limiter). ``track`` only reports what ``compress`` would refuse."""

    mode: Literal["compress", "track"] = "compress"
    compression_threshold: Annotated[int, values.whole(0, _BYTES_IN_REDIS)] = 100_000
    limit: Annotated[int, values.whole(0, _BYTES_IN_REDIS)] = 5_000_000
    """0 = no limit."""
    decompressed_limit: Annotated[int, values.whole(1, 4 * _BYTES_IN_REDIS)] = 100_000_000

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


class FlagSettings(_Section):
    """Where feature flags come from besides those that operators set, and how long a job waits whose class must not run."""

    provider: Literal["redis", "openfeature"] = "redis"
    defer_delay: Annotated[float, values.seconds(1, 86_400)] = 300.0
    """Seconds, half more or less (GitLab's ``SIDEKIQ_DEFER_JOBS_DELAY``)."""


class SentrySettings(_Section):
    """The error tracker: failures of jobs are sent to ``dsn``; without one nothing of it is even loaded."""

    dsn: SecretStr | None = None

    @field_validator("dsn")
    @classmethod
    def _check_dsn(cls, dsn: SecretStr | None) -> SecretStr | None:
        text = dsn.get_secret_value().strip() if dsn is not None else ""
        if not text:
            return None
        try:
            parts = urlsplit(text)
            whole = parts.scheme in ("http", "https") and parts.username and parts.hostname and parts.port != 0
        except ValueError:
            whole = False
        if not whole or not text.rpartition("/")[2].isdecimal():
            raise ValueError("is no DSN: copy it from the project's settings in Sentry (https://KEY@HOST/PROJECT)")
        return SecretStr(text)


class FeatureCategory(_Section):
    """Who owns a part of the product."""

    owner: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    description: str = ""


def _read_rule(value: Any) -> Any:
    if not is_list(value) or len(value) not in (2, 3):
        raise ValueError("must be [query, queue] or [query, queue, shard]")
    parts: list[Any] = [*value, None]
    query, queue, shard = parts[:3]
    texts = {"query": isinstance(query, str), "queue": _text_or_null(queue), "shard": _text_or_null(shard)}
    for what, holds in texts.items():
        if not holds:
            or_null = " or null" if what != "query" else ""
            raise ValueError(f"must be [query, queue] or [query, queue, shard]; the {what} must be a text{or_null}")
    return RoutingRule(query, queue or None, shard or None)


def _text_or_null(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _read_weight(value: Any) -> Any:
    name, weight, *more = value if is_list(value) and len(value) > 1 else (value, 1)
    if not isinstance(name, str) or not name or more:
        raise ValueError("must be a queue name, or [name, weight]")
    if QUEUE_NAME.fullmatch(name) is None:
        raise ValueError(f"must be a queue name, or [name, weight]; {QUEUE_NAME_SHAPE}")
    if type(weight) is not int or weight < 1:
        raise ValueError("must be a queue name, or [name, weight]; the weight a whole number from 1 on")
    return QueueWeight(name, weight)


def _check_retired(value: Any) -> Any:
    if value is None:  # a key whose entries are commented out
        return {}
    if not is_mapping(value):
        raise ValueError("must map class names to reasons, for example {'Reports::MonthlyWorker': 'removed in 4.2'}")
    return value


RetiredWorkers = Annotated[
    dict[Annotated[str, AfterValidator(values.wire_name)], Annotated[str, BeforeValidator(values.reason)]],
    BeforeValidator(_check_retired),
]


def _check_limits(value: Any) -> Any:
    if value is None:
        return {}
    if not is_mapping(value):
        raise ValueError("must map queue names to numbers, for example {reports: 4}")
    return value


def _check_queue(name: str) -> str:
    if QUEUE_NAME.fullmatch(name) is None:
        raise ValueError(f"must be a queue; {QUEUE_NAME_SHAPE}")
    return name


QueueLimits = Annotated[
    dict[Annotated[str, AfterValidator(_check_queue)], Annotated[int, values.whole(1, MOST_OF_A_QUEUE)]],
    BeforeValidator(_check_limits),
]


class Settings(BaseSettings):
    """Everything configurable. Made by ``load``; sections are passed on, never the whole."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_prefix=ENV_PREFIX, env_nested_delimiter="__")

    env_name: EnvName = "development"
    config_dir: Path
    """Where the files were read from, or would be."""
    root: Path
    """The project: parent of the config folder."""
    var_dir: Path
    """Whatever a run makes: stores, logs, reports."""

    shards: dict[Annotated[str, AfterValidator(values.shard_name)], ShardSettings]
    routing_rules: tuple[Annotated[RoutingRule, BeforeValidator(_read_rule)], ...] = ()
    feature_categories: dict[Annotated[str, AfterValidator(values.category)], FeatureCategory] = Field(
        default_factory=dict[str, FeatureCategory]
    )
    queues: tuple[Annotated[QueueWeight, BeforeValidator(_read_weight)], ...] = ()
    """What a worker process without -q listens to."""

    namespace_weights: dict[Annotated[str, AfterValidator(values.word)], Annotated[int, values.whole(1)]] = Field(
        default_factory=dict[str, int]
    )
    """What the workers of a namespace weigh that declare no ``weight`` themselves (GitLab's namespace table)."""
    workers_module: Annotated[
        tuple[Annotated[str, AfterValidator(values.module_name)], ...], NoDecode, BeforeValidator(values.split)
    ] = ("workers",)
    """Modules or packages holding the workers."""
    logging: LoggingSettings = LoggingSettings()
    concurrency: Annotated[int, values.whole(1, MAX_CONCURRENCY)] = 10
    """Jobs one process runs at a time."""
    timeout: Annotated[float, values.seconds(0, MAX_TIMEOUT_S)] = 25
    """Seconds a stopping process waits for its jobs."""
    max_retries: Annotated[int, values.whole(0, 10_000)] = 25
    """What ``retry = True`` means."""
    dead: DeadSettings = DeadSettings()
    size_limit: SizeLimitSettings = SizeLimitSettings()
    strict_arguments: Annotated[StrictArguments, BeforeValidator(values.switch)] = "raise"
    """What happens to arguments that do not fit ``perform`` or that JSON changes; a class may say otherwise."""
    limits: QueueLimits = Field(default_factory=dict[str, int])
    """Most jobs of a queue that run at a time, over all processes of the shard (sidekiq-limit_fetch's)."""
    process_limits: QueueLimits = Field(default_factory=dict[str, int])
    """Most jobs of a queue that one process runs at a time."""
    concurrency_limit_by_urgency: bool = False
    """Whether classes that declare no limit may have 35 % (high urgency), 25 % (low) or 15 % (throttled) of all slots (GitLab)."""
    poll_interval: Annotated[float, values.seconds(0.01, 3600)] = 1.0
    """Seconds within which some process of a shard looks for jobs that have become due unforeseen."""
    parked_alert_after: Annotated[float, values.seconds(1, MAX_TIMEOUT_S)] = 900.0
    """Seconds that a job may wait behind a limit or a pause before somebody is told."""
    sentry: SentrySettings = SentrySettings()
    flags: FlagSettings = FlagSettings()

    databases: dict[Annotated[str, AfterValidator(values.word)], DatabaseSettings] = Field(
        default_factory=dict[str, DatabaseSettings]
    )
    """PostgreSQL databases whose replicas jobs may read (``data_consistency``), and whose health they may heed."""
    health: HealthSettings = HealthSettings()

    retired_workers: RetiredWorkers = Field(default_factory=dict[str, str])
    """Wire names of classes that were removed for good, and why: their left-over jobs are dropped and counted."""

    @field_validator("shards")
    @classmethod
    def _check_main(cls, shards: dict[str, ShardSettings]) -> dict[str, ShardSettings]:
        if "main" not in shards:
            near = next((name for name in shards if did_you_mean(name, ["main"])), None)
            hint = f"; is {near!r} meant?" if near else ""
            raise ValueError(
                f"the shard main is missing: it always exists (shards: {{main: {{url: ...}}}}, or REDIS_URL){hint}"
            )
        return shards

    @field_validator("queues")
    @classmethod
    def _check_queues(cls, queues: tuple[QueueWeight, ...]) -> tuple[QueueWeight, ...]:
        names = [queue.name for queue in queues]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"must name each queue once: {name!r} stands there {names.count(name)} times")
        return queues

    @field_validator("workers_module")
    @classmethod
    def _check_modules(cls, modules: tuple[str, ...]) -> tuple[str, ...]:
        if not modules:
            raise ValueError("must name at least one module")
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
