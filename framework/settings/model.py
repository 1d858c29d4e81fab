"""The settings of the core: each field with its meaning and its default. Features declare theirs in their ``settings.py``."""

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
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import NoDecode

from framework.settings import validators
from framework.settings.base import FileKey, Section, SettingsBase
from framework.settings.shard import ShardSettings
from framework.settings.urls import check_database_url, check_link
from framework.text import did_you_mean, join_names
from framework.typeguards import is_list, is_mapping
from framework.types import MAIN, QUEUE_NAME, QUEUE_NAME_FORMAT, LogFormat, PushInTransaction, StrictArguments

DEFAULT_URL = "redis://127.0.0.1:6379/0"

MAX_CONCURRENCY = 10_000
MAX_TIMEOUT_S = 7 * 86_400.0
MAX_PORT = 65_535

_HOST = re.compile(r"[0-9A-Fa-f:.]+(?:%[\w.-]+)?|[\w.-]+", re.ASCII)


class RoutingRule(NamedTuple):
    """One line of config/routing.yml: workers that match ``query`` go to ``queue`` (None: the generated name) on ``shard``."""

    query: str
    queue: str | None
    shard: str | None = None


class QueueWeight(NamedTuple):
    """One line of config/queues.yml: a queue or a namespace, and the weight with which it is asked first."""

    name: str
    weight: int = 1


_DatabaseUrl = Annotated[str, AfterValidator(check_database_url)]


class DatabaseSettings(Section):
    """One database of the application: its primary, and the streaming replicas that jobs may read."""

    url: _DatabaseUrl = Field(repr=False)
    replicas: Annotated[tuple[_DatabaseUrl, ...], NoDecode, BeforeValidator(validators.split_list)] = Field(
        default=(), repr=False
    )


class LoggingSettings(Section):
    """The log lines on stdout. Without ``jobs`` the start and done lines are left out; failures are always written."""

    format: LogFormat = "auto"
    """Lines of JSON, or of text for a person (``console``); ``auto`` is text on a terminal."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    jobs: bool = True


class ContextSettings(Section):
    """The keys of contexts (``framework.context.bound``)."""

    keys: Annotated[
        tuple[Annotated[str, AfterValidator(validators.identifier)], ...] | None,
        NoDecode,
        BeforeValidator(validators.split_list),
    ] = None
    """The allowed keys, besides those of the framework; null allows every key."""


class DeadSettings(Section):
    """The limits of the dead set (Sidekiq's ``dead_max_jobs`` and ``dead_timeout_in_seconds``)."""

    max_jobs: Annotated[int, validators.whole_number(1, 1_000_000_000)] = 10_000
    timeout_days: Annotated[float, validators.bounded_number(0.001, 36_500)] = 180
    business: bool = False
    """Whether the dead set keeps jobs that ended with a ``BusinessError`` too."""
    business_max_jobs: Annotated[int, validators.whole_number(1, 1_000_000_000)] = 1_000
    """The most such jobs; they are trimmed before other jobs are."""


_LinkTemplate = Annotated[str, AfterValidator(check_link)]


class DashboardSection(Section):
    """The addresses to which the page of a job leads. ``{jid}`` and other fields stand for what the job is."""

    trace_url: _LinkTemplate | None = Field(default=None, repr=False)
    """``https://traces.example/trace/{trace_id}``: the trace of the push. A job without a trace has no link."""
    log_url: _LinkTemplate | None = Field(default=None, repr=False)
    """``https://logs.example/?q={jid}``: the log lines of the job."""


def _check_port(value: Any) -> Any:
    return None if value is None else validators.parse_whole_number(value, 0, MAX_PORT)


def _check_host(value: Any) -> str:
    if not isinstance(value, str) or _HOST.fullmatch(value) is None:
        raise ValueError("must be a name or an address, for example 127.0.0.1, 0.0.0.0 or ::")
    return value


class HealthPortSection(Section):
    """The port for health checks of processes."""

    port: Annotated[int | None, BeforeValidator(_check_port)] = None
    """The port at which a worker process or a supervisor answers health checks over HTTP; 0 takes a free one."""
    host: Annotated[str, BeforeValidator(_check_host)] = "127.0.0.1"
    """The address of that port: ``0.0.0.0`` is every IPv4 address, ``::`` every address."""


class HealthPortSettings(SettingsBase):
    """The base of the core and of the health feature, whose section has more fields."""

    health: HealthPortSection = HealthPortSection()


class FeatureCategory(Section):
    """The owner of a part of the product."""

    owner: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    description: str = ""


def _parse_routing_rule(value: Any) -> Any:
    if not is_list(value) or len(value) not in (2, 3):
        raise ValueError("must be [query, queue] or [query, queue, shard]")
    parts: list[Any] = [*value, None]
    query, queue, shard = parts[:3]
    texts = {"query": isinstance(query, str), "queue": _is_text_or_null(queue), "shard": _is_text_or_null(shard)}
    for what, holds in texts.items():
        if not holds:
            or_null = " or null" if what != "query" else ""
            raise ValueError(f"must be [query, queue] or [query, queue, shard]; the {what} must be a text{or_null}")
    return RoutingRule(query, queue or None, shard or None)


def _is_text_or_null(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _parse_queue_weight(value: Any) -> Any:
    name, weight, *more = value if is_list(value) and len(value) > 1 else (value, 1)
    if not isinstance(name, str) or not name or more:
        raise ValueError("must be a queue name, or [name, weight]")
    if QUEUE_NAME.fullmatch(name) is None:
        raise ValueError(f"must be a queue name, or [name, weight]; {QUEUE_NAME_FORMAT}")
    if type(weight) is not int or weight < 1:
        raise ValueError("must be a queue name, or [name, weight]; the weight a whole number from 1 on")
    return QueueWeight(name, weight)


class SentrySettings(Section):
    """The error tracker: failures of jobs are sent to ``dsn``. Without a DSN its library is not even loaded."""

    dsn: SecretStr | None = None
    report: Literal["every", "exhausted"] = "every"
    """The reported failures: of every run, or of the last one only."""
    traces_sample_rate: Annotated[float, validators.bounded_number(0, 1)] | None = None
    """The share of runs with a transaction in Sentry, for a process that ``dsn`` connects; null: none."""
    cron_monitors: bool = False
    """Whether the runs of scheduled jobs check in with Sentry's monitors."""

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
            raise ValueError("is not a DSN: copy it from the project's settings in Sentry (https://KEY@HOST/PROJECT)")
        return SecretStr(text)


_MAX_REDIS_STRING = 512 * 1024 * 1024
"""The longest string that a Redis server takes."""

_MAX_MEMORY = 1 << 40

_QueuePattern = Annotated[str, AfterValidator(validators.queue_pattern)]


class SizeLimitSettings(Section):
    """Limits of a job's arguments as JSON, in bytes (GitLab's size limiter). ``track`` only reports, ``compress`` refuses."""

    mode: Literal["compress", "track"] = "compress"
    compression_threshold: Annotated[int, validators.whole_number(0, _MAX_REDIS_STRING)] = 100_000
    limit: Annotated[int, validators.whole_number(0, _MAX_REDIS_STRING)] = 5_000_000
    """0 = no limit."""
    decompressed_limit: Annotated[int, validators.whole_number(1, 4 * _MAX_REDIS_STRING)] = 100_000_000
    uncompressed_queues: Annotated[tuple[_QueuePattern, ...], NoDecode, BeforeValidator(validators.split_list)] = ()
    """Queues, or patterns of their names (``legacy:*``), whose jobs are not compressed, because plain Ruby serves them."""
    decoded_limit: Annotated[int, validators.whole_number(1_000_000, _MAX_MEMORY)] = 256_000_000
    """Bytes of memory that the decoded arguments of one job may take."""
    decoding_budget: Annotated[int, validators.whole_number(1_000_000, _MAX_MEMORY)] = 256_000_000
    """Bytes of memory that the large arguments of all running jobs of a process may take together; further jobs wait."""

    @model_validator(mode="after")
    def _check_order(self) -> "SizeLimitSettings":
        limit, threshold = self.limit, self.compression_threshold
        if self.decompressed_limit < limit:
            raise ValueError(
                f"decompressed_limit = {self.decompressed_limit} is below limit = {limit}: accepted arguments "
                "must be readable again"
            )
        if self.mode == "compress" and limit and threshold > limit:
            raise ValueError(
                f"compression_threshold = {threshold} is above limit = {limit}: arguments between the two would be refused without "
                "being compressed, while larger arguments pass"
            )
        if self.mode == "compress" and threshold > self.decompressed_limit:
            raise ValueError(
                f"compression_threshold = {threshold} is above decompressed_limit = {self.decompressed_limit}: compressed "
                "arguments could not be read again"
            )
        if self.decoding_budget < self.decoded_limit:
            raise ValueError(
                f"decoding_budget = {self.decoding_budget} is below decoded_limit = {self.decoded_limit}: one job could use "
                "more than all jobs together"
            )
        return self


MAX_QUEUE_LIMIT = 1_000_000

ClassPatterns: TypeAlias = tuple[Annotated[str, AfterValidator(validators.class_pattern)], ...]


def _check_retired(value: Any) -> Any:
    # All entries of the key are commented out.
    if value is None:
        return {}
    if not is_mapping(value):
        raise ValueError("must map class names to reasons, for example {'Reports::MonthlyWorker': 'removed in 4.2'}")
    return value


RetiredWorkers = Annotated[
    dict[
        Annotated[str, AfterValidator(validators.wire_name)],
        Annotated[str, BeforeValidator(validators.retirement_reason)],
    ],
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
        raise ValueError(f"must be a queue; {QUEUE_NAME_FORMAT}")
    return name


QueueNames: TypeAlias = tuple[Annotated[str, AfterValidator(_check_queue)], ...]

QueueLimits = Annotated[
    dict[Annotated[str, AfterValidator(_check_queue)], Annotated[int, validators.whole_number(1, MAX_QUEUE_LIMIT)]],
    BeforeValidator(_check_limits),
]


class RoleSettings(Section):
    """The shards that have a part in the whole fleet."""

    meta: Annotated[str, AfterValidator(validators.shard_name)] | None = None
    """The shard that divides the limits of classes between all shards, and has the rate limiters and leases; without one each shard
    has limits of its own."""


class CoreSettings(HealthPortSettings):
    """The settings of the core."""

    shards: Annotated[
        dict[Annotated[str, AfterValidator(validators.shard_name)], ShardSettings],
        FileKey(
            "redis.yml", expected="must hold names of shards with their settings, for example {main: {url: embedded}}"
        ),
    ]
    roles: Annotated[RoleSettings, FileKey("redis.yml")] = RoleSettings()
    routing_rules: Annotated[
        tuple[Annotated[RoutingRule, BeforeValidator(_parse_routing_rule)], ...],
        FileKey("routing.yml", expected="must be a list of rules, each [query, queue] or [query, queue, shard]"),
    ] = ()
    feature_categories: Annotated[
        dict[Annotated[str, AfterValidator(validators.category)], FeatureCategory],
        FileKey(
            "feature_categories.yml",
            expected="must be a list of names of categories, or hold names with their owners and descriptions",
        ),
    ] = Field(default_factory=dict[str, FeatureCategory])
    queues: Annotated[
        tuple[Annotated[QueueWeight, BeforeValidator(_parse_queue_weight)], ...],
        FileKey("queues.yml", expected="must be a list of queue names, or of [name, weight]"),
    ] = ()
    """The queues of a worker process without -q."""
    workers_module: Annotated[
        tuple[Annotated[str, AfterValidator(validators.module_name)], ...],
        NoDecode,
        BeforeValidator(validators.split_list),
        FileKey(expected="must be the name of a module, or a list of names"),
    ] = ("workers",)
    """Modules or packages that hold the workers."""
    features: Annotated[
        tuple[Annotated[str, AfterValidator(validators.object_name)], ...],
        NoDecode,
        BeforeValidator(validators.split_list),
        FileKey(expected="must be a list of names, for example [shop.features:TENANT]"),
    ] = ()
    """Features of the application: the records (``framework.extending``) by module and name."""
    generated_files: Annotated[Path, BeforeValidator(validators.folder_path)] = Path("workers")
    """The folder of all_queues.yml and released.yml; a relative path begins at ``root``."""
    namespace_weights: Annotated[
        dict[Annotated[str, AfterValidator(validators.identifier)], Annotated[int, validators.whole_number(1)]],
        FileKey(expected="must hold namespaces with their weights, for example {mailers: 2}"),
    ] = Field(default_factory=dict[str, int])
    """The weights of a namespace's workers that declare no ``weight`` (GitLab's namespace table)."""
    logging: LoggingSettings = LoggingSettings()
    concurrency: Annotated[int, validators.whole_number(1, MAX_CONCURRENCY)] = 10
    """Jobs that one process runs at a time."""
    timeout: Annotated[float, validators.bounded_number(0, MAX_TIMEOUT_S)] = 25
    """Seconds for which a stopping process waits for its jobs."""
    tag: Annotated[str, AfterValidator(validators.process_label)] | None = None
    """The name of a worker process on dashboards; without one the name of the folder in which it was started (Sidekiq's)."""
    labels: Annotated[
        tuple[Annotated[str, AfterValidator(validators.process_label)], ...],
        NoDecode,
        BeforeValidator(validators.split_list),
        FileKey(expected="must be a list of texts"),
    ] = ()
    """Labels of the process on dashboards."""
    max_retries: Annotated[int, validators.whole_number(0, 10_000)] = 25
    """The number of retries for ``retry = True``."""
    max_retries_after_interruption: Annotated[int, validators.whole_number(-1, 10_000)] = 3
    """After so many forced stops, or deaths of its process, a job is quarantined unless its class says otherwise; -1 = never."""
    dead: DeadSettings = DeadSettings()
    size_limit: SizeLimitSettings = SizeLimitSettings()
    strict_arguments: Annotated[StrictArguments, BeforeValidator(validators.off_switch)] = "raise"
    """The treatment of arguments that do not fit ``perform`` or that JSON changes; a class may say otherwise."""
    push_in_transaction: PushInTransaction = "wait"
    """A push inside of an open database transaction: refused, warned about, written after the commit, or written at once."""
    limits: QueueLimits = Field(default_factory=dict[str, int])
    """The most jobs of a queue that run at a time, over all processes of the shard (sidekiq-limit_fetch's)."""
    process_limits: QueueLimits = Field(default_factory=dict[str, int])
    """The most jobs of a queue that one process runs at a time."""
    blocking_queues: Annotated[QueueNames, NoDecode, BeforeValidator(validators.split_list)] = ()
    """The queues that keep a process from the queues behind them while they have jobs (sidekiq-limit_fetch's ``blocking``)."""
    sidekiq_metrics: Annotated[
        tuple[Literal[7, 8], ...],
        FileKey(expected="must be a list of versions of Sidekiq, for example [7, 8], or [] for none"),
    ] = (7, 8)
    """The versions of Sidekiq whose Metrics page shows this application's jobs; empty for none."""
    poll_interval: Annotated[float, validators.bounded_number(0.01, 3600)] = 1.0
    """Seconds within which some process of a shard looks for due jobs again."""
    held_alert_after: Annotated[float, validators.bounded_number(1, MAX_TIMEOUT_S)] = 900.0
    """Seconds that a job may be held by a limit or a pause before a warning is logged."""
    context: ContextSettings = ContextSettings()
    sentry: SentrySettings = SentrySettings()
    dashboard: DashboardSection = DashboardSection()
    databases: Annotated[
        dict[Annotated[str, AfterValidator(validators.identifier)], DatabaseSettings],
        FileKey(
            expected="must hold names of databases with their settings, for example {main: {url: ..., replicas: [...]}}"
        ),
    ] = Field(default_factory=dict[str, DatabaseSettings])
    """PostgreSQL databases whose replicas jobs may read (``data_consistency``), and whose health may defer them."""
    unknown_class_max_wait: Annotated[float, validators.bounded_number(1, MAX_TIMEOUT_S)] = 86_400.0
    """Seconds that a job may wait for a process with its class, or its version of the class, before it is quarantined."""
    foreign_classes: Annotated[
        ClassPatterns,
        NoDecode,
        BeforeValidator(validators.split_list),
        FileKey(expected="must be a list of patterns of class names, for example ['Ruby::*']"),
    ] = ()
    """Patterns (``Ruby::*``) of classes that other applications on the same queues run: their jobs are put back."""
    retired_workers: RetiredWorkers = Field(default_factory=dict[str, str])
    """Wire names of classes that were removed, and the reason: their remaining jobs are dropped and counted."""

    @property
    def fleet_shard(self) -> str:
        """The shard of what all processes share: limiters, leases."""
        return self.roles.meta or MAIN

    @property
    def generated_dir(self) -> Path:
        return self.root / self.generated_files

    def generated_file_label(self, name: str) -> str:
        return (Path(self.config_label).parent / self.generated_files / name).as_posix()

    @field_validator("generated_files")
    @classmethod
    def _check_generated(cls, path: Path, info: ValidationInfo) -> Path:
        folder = info.data["root"] / path
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"must be the path of a folder, and {folder} is a file")
        return path

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

    @field_validator("roles")
    @classmethod
    def _check_roles(cls, roles: RoleSettings, info: ValidationInfo) -> RoleSettings:
        known = info.data.get("shards", {})
        if roles.meta is not None and known and roles.meta not in known:
            names = sorted(known)
            raise ValueError(
                f"meta names no shard: {roles.meta!r}{did_you_mean(roles.meta, names)}; redis.yml has: {join_names(names)}"
            )
        return roles

    @field_validator("queues")
    @classmethod
    def _check_queues(cls, queues: tuple[QueueWeight, ...]) -> tuple[QueueWeight, ...]:
        names = [queue.name for queue in queues]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"must name each queue once: {name!r} occurs {names.count(name)} times")
        return queues

    @field_validator("workers_module")
    @classmethod
    def _check_modules(cls, modules: tuple[str, ...]) -> tuple[str, ...]:
        if not modules:
            raise ValueError("must name at least one module")
        return modules
