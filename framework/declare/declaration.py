"""All facts of one worker class, resolved along its MRO and frozen when the class is created."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from framework.declare.job_limiter import JobLimiter
from framework.declare.names import queue_name
from framework.declare.policy_options import Deduplicate
from framework.declare.signature import JobSignature, VersionHandler, signature_since
from framework.declare.spread import Spread
from framework.types import Ack, Priority, ResourceBoundary, StrictArguments, Urgency

NOT_OWNED = "not_owned"
"""The feature category of classes that serve many teams (GitLab's ``feature_category :not_owned``)."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """The facts of a worker. Values are validated and normalised: spans are timedeltas, ``deduplicate`` has its default applied.

    ``wire_name`` is the name on the wire, ``generated_queue`` the queue when no rule and no override names another.
    """

    class_name: str
    module: str
    wire_name: str
    generated_queue: str
    signature: JobSignature
    is_async: bool
    """Whether ``perform`` and every handler of an older version is ``async def``, and none is isolated: no job uses a thread."""
    in_thread: bool
    """Whether each job runs in a worker thread of its process: it is neither a task of the event loop nor isolated."""
    version_handlers: Mapping[int, VersionHandler]
    """The methods that run jobs of older versions, by version; jobs of all other versions run ``perform``."""

    feature_category: str
    urgency: Urgency
    resource_boundary: ResourceBoundary
    has_external_dependencies: bool
    queue_namespace: str | None
    queue: str | None
    shard: str | None
    weight: int | None
    tags: tuple[str, ...]
    version: int
    aliases: tuple[str, ...]

    retry: bool | int
    retry_for: timedelta | None
    retry_delay: tuple[timedelta, ...] | None
    retry_queue: str | None
    dead: bool
    backtrace: bool | int | None
    max_retries_after_interruption: int | None
    ack: Ack
    timeout: timedelta | None
    expires_in: timedelta | None

    strict_arguments: StrictArguments | None
    big_payload: bool
    compress: bool
    loggable_arguments: tuple[str, ...]
    loggable_positions: frozenset[int]
    has_category: bool = True
    """Whether the class declares its ``feature_category``."""
    limiter: JobLimiter | None = None
    status_expiration: timedelta | None = None
    track: bool = False
    idempotent: bool = False
    deduplicate: Deduplicate | None = None
    fair_by: str | Callable[[tuple[Any, ...]], str | int | None] | None = None
    priority: Priority | None = None
    encrypt: bool = False
    bounded: bool = False
    """Whether a run has a limiter or a timeout: one test of all runs, so that other classes pay for neither."""
    several_shards: Spread | None = None
    """The shards of its jobs, if it has several; ``shard`` is the first of them then."""
    chosen_queues: tuple[str, ...] = ()
    """The queues that its pushes choose (``set(queue=...)``), where they are known, as those of Django's setting ``TASKS``."""
    is_cron: bool = False
    """Whether the class is a ``CronWorker``."""
    is_iterable: bool = False
    """Whether the class is an ``IterableWorker``."""
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The checked values of the attributes that are no fields here, by name."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The options that travel with its jobs and differ from their defaults, by name: ``track``, and those of the application."""

    @classmethod
    def of(cls, values: Mapping[str, Any], **derived: Any) -> "Declaration":
        """Return the declaration with the checked values of the attributes: those that are no fields are facts."""
        fields = {name: value for name, value in values.items() if name in cls.__dataclass_fields__}
        facts = {name: value for name, value in values.items() if name not in fields}
        if isinstance(values["shard"], Spread):
            fields |= {"shard": values["shard"].shards[0], "several_shards": values["shard"]}
        return cls(facts=MappingProxyType(facts), **fields, **derived)

    def retry_limit(self, default: int = 25) -> int | None:
        """How often a failed job runs again: None for ``retry = False`` (deleted), 0 for straight to the dead set (Sidekiq 7)."""
        if self.retry is True:
            return default
        return None if self.retry is False else self.retry

    def with_wire_name(self, alias: str) -> "Declaration":
        """Return the class as routing saw it when ``alias`` was its wire name, as far as today's code shows."""
        return replace(self, wire_name=alias, generated_queue=queue_name(alias, self.queue_namespace))

    def loggable_positions_for(self, version: int) -> frozenset[int]:
        """Return the positions that may be logged of a job of ``version``, by the parameter names of the method that runs it.

        Of a version newer than the class none: the meaning of its positions is not known here.
        """
        if version > self.version:
            return frozenset()
        handler = self.version_handlers.get(version)
        return self.loggable_positions if handler is None else handler.loggable_positions

    def signature_for(self, version: int) -> JobSignature:
        handler = self.version_handlers.get(version)
        return self.signature if handler is None else handler.signature

    def signature_since(self, version: int) -> int:
        """Return the first version whose jobs the same method runs as those of ``version``; 0 without any handler."""
        return signature_since(self.version_handlers, version) if self.version_handlers else 0

    @property
    def deduplicates(self) -> bool:
        """Return whether jobs of the class may be duplicates of each other."""
        return self.deduplicate is not None and self.deduplicate.strategy != "none"

    @property
    def lock_ttl_s(self) -> float | None:
        """How long the lock of one of its waiting jobs lasts; ``None`` when jobs are not deduplicated."""
        return None if self.deduplicate is None else self.deduplicate.waiting_ttl.total_seconds()

    @property
    def run_lock_ttl_s(self) -> float | None:
        """How long the lock of one of its jobs lasts from its start on; ``None`` when jobs are not deduplicated."""
        return None if self.deduplicate is None else self.deduplicate.ttl.total_seconds()

    @property
    def qualified_name(self) -> str:
        """The module and qualified name of the class, for messages; the name on the wire of a class that is not here."""
        return f"{self.module}.{self.class_name}" if self.module else self.class_name

    @property
    def owning_category(self) -> str | None:
        """The feature category, or None when the class is ``not_owned``: its jobs then belong to the category that pushes them."""
        return None if self.feature_category == NOT_OWNED else self.feature_category


T = TypeVar("T")


class PerClass(Generic[T]):
    """Compute a value once per class. Shared between threads without a lock: two may compute the same value."""

    def __init__(self, compute: Callable[[Declaration], T]) -> None:
        self._compute = compute
        self._values: dict[str, tuple[Declaration, T]] = {}

    def get(self, declaration: Declaration) -> T:
        # The reference is read once: a value computed during ``clear`` goes into the old dict and does not outlive it.
        values = self._values
        known = values.get(declaration.wire_name)
        # A reloaded class has a new declaration under its old name.
        if known is None or known[0] is not declaration:
            known = values[declaration.wire_name] = (declaration, self._compute(declaration))
        return known[1]

    def clear(self) -> None:
        """Discard all values."""
        self._values = {}
