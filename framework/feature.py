"""Define the record by which a feature tells the core of its parts, and the list of them that the core reads.

The core never imports ``framework.features``. It loops over ``features()`` when it compiles something: per class, per plan, per
script, per process; never per job. This file stands below all others, so it names no type of a higher layer: the type of a late
part stands in the comment of its field, and is written where the part is defined.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Late(Generic[T_co]):
    """An object that is imported at its first use: ``Late("framework.features.leases.store:Leases")``.

    Write the type as an annotation of the name: ``_LEASES: "Late[type[Leases]]" = Late(...)``. Two objects of one path are equal.
    """

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def load(self) -> T_co:
        """Return the object. Python keeps the module, so a second call costs a look-up of two names."""
        module, _, name = self.path.partition(":")
        value: T_co = getattr(import_module(module), name)
        return value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Late) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        return f"Late({self.path!r})"


RoleName: TypeAlias = Literal["producer", "worker", "operator", "read-only"]
"""The kinds of Redis users (``store/rights.py``)."""


@dataclass(frozen=True, kw_only=True)
class Rights:
    """What a feature adds to one kind of Redis user.

    A worker also has the scripts and commands of a producer, an operator those of read-only.
    """

    keys: tuple[str, ...] = ()
    """Patterns of keys. Only a producer needs those of ``aw:*``: the other users have all of them."""
    scripts: tuple[Late[Any], ...] = ()
    """``Script``. Their commands are read from their sources."""
    commands: tuple[str, ...] = ()
    """Commands outside of scripts, in lower case."""


class LateCommand(NamedTuple):
    """A command of ``application-worker``. The help of its group loads no command."""

    name: str
    help: str
    """Its line in the help of the group."""
    command: "Late[Any]"
    """``click.Command``."""


@dataclass(frozen=True, kw_only=True)
class Hold:
    """A waiter for the end of some jobs. The step that ends a job tells it."""

    name: str
    """Its name in what a job holds; the function ``release_NAME`` of ``part`` gets the arguments that the waiter makes."""
    field: str
    """The payload field of these jobs. A job without it pays nothing."""
    part: str = ""
    """The part of scripts with its function: ``"results/answer"``; empty for a waiter that looks by itself."""
    waiter: Late[Any]
    """``Waiter`` (``wire/waiters.py``)."""
    stays: bool = True
    """Whether such a job stays on the shard of its waiter: if not, the waiter learns that the job has left (``removed``)."""
    follows: bool = False
    """Whether the waiter looks on all shards: the job may move with its field (room ``moves``). A due job stays nevertheless."""
    keeps_state_s: int = 0
    """For how long the state of such a job lives at least, after each change before its end."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What a feature says about a shard for Prometheus: a part of the script that reads all figures, and the reader of its reply."""

    reader: Late[Any]
    """``type[FigureReader]`` (``admin/figures.py``)."""
    part: str = ""
    """The part of scripts with its function ``figures_NAME(now, argument)``: ``"batches/figures"``. Empty: it asks no Redis."""


@dataclass(frozen=True, kw_only=True)
class Feature:
    """The parts of one feature that the core calls. Every field but the name may be left out."""

    name: str
    """The name of its folder below ``framework/features``."""
    rights: Mapping[RoleName, Rights] = field(default_factory=dict[RoleName, Rights])
    """The roles that may use its keys and scripts."""
    push: "Late[Any] | None" = None
    """``PushStep``: changes the plan of a class for its pushes; once per class and set of options."""
    locks: "Late[Any] | None" = None
    """``Callable[[Client], PushLocks]``: decides which push takes which lock. One feature at most has it."""
    payload: "Late[Any] | None" = None
    """``(Payload, Declaration) -> None``: adds the payload fields that the attributes of a class decide."""
    holds: tuple[Hold, ...] = ()
    """Its waiters for the ends of jobs."""
    worker: "Late[Any] | None" = None
    """``Callable[[ProcessContext], WorkerPart]``: its admissions and its periodic work in a worker process."""
    observer: "Late[Any] | None" = None
    """``(SettingsBase) -> JobObserver | None``: reads the events of jobs (``telemetry/job_events.py``), unless it is turned off."""
    answers: "Late[Any] | None" = None
    """``(Served) -> Mapping[str, Answer]``: paths of the health server of a process or group (``process/health_server.py``)."""
    protection: "Late[Any] | None" = None
    """``(SettingsBase) -> PayloadProtection``: the protection of stored payloads. One feature at most has it."""
    block_store: "Late[Any] | None" = None
    """``(SettingsBase) -> BlockStore``: where blocks of packed jobs may be beside Redis. One feature at most has it."""
    moves: "Late[Any] | None" = None
    """``(Shard) -> Iterable[MoveEpoch]``: reads the moves between shards that a shard knows. One feature at most has it."""
    fallback: "Late[Any] | None" = None
    """``(SettingsBase, Mapping[str, Shard]) -> PushFallback``: the store of refused pushes. One feature at most has it."""
    recorder: "Late[Any] | None" = None
    """``Callable[[Client], PushRecorder]``: records the jobs of tracked classes. One feature at most has it."""
    problems: "Late[Any] | None" = None
    """``(LoadedWorkers) -> Iterable[ConfigurationProblem]``: the faults of the settings and of the classes of the workers."""
    bases: tuple[Late[Any], ...] = ()
    """Base classes of workers that it defines. No option of an application may have the name of one of their methods."""
    job_groups: Mapping[str, str] = field(default_factory=dict[str, str])
    """Payload fields that name a group of jobs, with what such a group is called: what an action on jobs touches beside them."""
    stored_jobs: "Late[Any] | None" = None
    """``(redis.Redis, bytes) -> Iterator[bytes]``: the payloads with this text that it keeps, to enqueue them later."""
    notices: "Late[Any] | None" = None
    """``(redis.Redis) -> Iterator[str]``: what it holds back on a shard now, a sentence each, for ``jobs stats``."""
    explain: "Late[Any] | None" = None
    """``type[ExplainReader]``: its facts about a job in ``jobs explain``."""
    assumptions: "Late[Any] | None" = None
    """``type[AssumptionReader]``: what an operator may assume about it in ``jobs explain --assume``."""
    places: Mapping[str, str] = field(default_factory=dict[str, str])
    """What ``jobs memory`` calls its keys, by their prefixes, where there may be one for each job."""
    figures: Figures | None = None
    """Its figures of a shard for Prometheus (``admin/figures.py``)."""
    causes: "Late[Any] | None" = None
    """``type[CauseReader]``: the causes of trouble that it finds, in ``diagnose``."""
    commands: tuple[LateCommand, ...] = ()
    """Commands of their own: ``application-worker NAME``."""
    pages: "tuple[Late[Any], ...]" = ()
    """``type[Page]``: its pages of the dashboard (``pages/page.py``)."""
    job_story: "Late[Any] | None" = None
    """``async (View, Jid) -> RecordedStory``: what it records of a job, for the dashboard's page of it (``pages/job_story.py``)."""
    job_columns: "tuple[Late[Any], ...]" = ()
    """``type[JobColumn]``: columns of the dashboard's lists of jobs (``pages/job_column.py``)."""
    class_actions: "tuple[Late[Any], ...]" = ()
    """``type[ClassAction]``: what the dashboard's page of a class offers (``pages/shard_action.py``)."""
    job_commands: tuple[LateCommand, ...] = ()
    """Commands below ``application-worker jobs``."""


_ALL: "Late[tuple[Feature, ...]]" = Late("framework.features.order:FEATURES")


_own: tuple[Feature, ...] = ()


def own_features() -> tuple[Feature, ...]:
    """Return the records of the application's features, which stand behind those of the framework where the core reads them.

    They have no part in scripts, rights and protection, and nothing is decided by them for each job of another feature.
    """
    return _own


def use_own_features(records: Iterable[Feature]) -> None:
    """Let the core read the records of the application, instead of those before. The loader of the settings calls it."""
    global _own  # noqa: PLW0603 - a fact of the process, as its settings are
    _own = tuple(records)


@cache
def features() -> tuple[Feature, ...]:
    """Return the records of all features, in the order of ``framework/features/order.py``."""
    return _ALL.load()


def all_features() -> tuple[Feature, ...]:
    """Return the records of all features, then those of the application."""
    return (*features(), *_own)


def single_part(
    name: Literal["locks", "protection", "fallback", "recorder", "moves", "block_store"],
) -> "Late[Any] | None":
    """Return the part that one feature at most has; ``None`` if no feature has it."""
    return next((part for one in features() if (part := getattr(one, name)) is not None), None)
