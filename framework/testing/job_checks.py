"""Check which jobs wait, in any mode, and that a second run of a job changes nothing.

Arguments are compared as JSON does: by type and value. Matchers stand for any value of a type.
"""

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol, TypeAlias, get_args

from framework.application_worker import ApplicationWorker, Setter
from framework.declare.declaration import Declaration
from framework.declare.setter import declaration_of
from framework.declare.strict_json import NotJsonError, check_strict_json
from framework.errors import Discard, PayloadError
from framework.testing.fake_clock import epoch_seconds
from framework.text import did_you_mean, join_names
from framework.typeguards import is_list, is_mapping, short_repr
from framework.wire.job import Job
from framework.wire.json import dumps_exact

_SHOWN_JOBS = 10
_DUE_WITHIN_S = 1.0
"""How far a job may be due from the expected time: between a push and its check the host's clock goes on."""

WorkerClass: TypeAlias = type[ApplicationWorker] | Setter[...]
"""A worker class, or a function that is registered as a job."""


class WaitingJobs(Protocol):
    """The part of a mode that the check reads."""

    def enqueued(self, worker: WorkerClass | None = None) -> list[Job]:
        """Return the jobs that wait in queues, then those scheduled for later (with their time in ``at``)."""
        ...

    def retries(self, worker: WorkerClass | None = None) -> list[Job]:
        """Return the failed jobs that wait for their retry, with its time in ``at``."""
        ...

    def dead(self, worker: WorkerClass | None = None) -> list[Job]:
        """Return the jobs of the dead set."""
        ...

    @property
    def now(self) -> float:
        """Return the time by which jobs are due, in epoch seconds."""
        ...


def check_enqueued(
    jobs: WaitingJobs,
    worker: WorkerClass,
    args: Sequence[Any],
    at: datetime | timedelta | float | None,
    count: int,
) -> None:
    """Raise AssertionError unless exactly ``count`` jobs of the class wait with these arguments, due at ``at``."""
    # pytest then shows the line of the test.
    __tracebackhide__ = True
    waiting = jobs.enqueued(worker)
    due_at = _due_at(at, jobs.now)
    found = [job for job in waiting if _has_arguments(job, args) and _is_due(job, due_at)]
    if len(found) == count:
        return
    name = declaration_of(worker).class_name
    wanted = f"with the arguments {short_repr(list(args))} " if args else ""
    when = "" if at is None else f"due at {at!r} "
    lines = [f"  {_shown(job)}" for job in waiting[:_SHOWN_JOBS]]
    if len(waiting) > _SHOWN_JOBS:
        lines.append(f"  and {len(waiting) - _SHOWN_JOBS} more")
    listed = "\n".join(lines) if lines else f"  none{_hint(jobs, worker)}"
    raise AssertionError(
        f"expected {count} enqueued {'job' if count == 1 else 'jobs'} of {name} {wanted}{when}and found {len(found)}. "
        f"Enqueued jobs of {name}:\n{listed}"
    )


def belongs_to(job: Job, worker: WorkerClass | None) -> bool:
    """Return whether the job is one of the class, under its name or a former one."""
    if worker is None:
        return True
    declaration: Declaration = declaration_of(worker)
    return job.worker in (declaration.wire_name, *declaration.aliases)


def _has_arguments(job: Job, args: Sequence[Any]) -> bool:
    return not args or same_json(list(args), job.args)


def _due_at(at: datetime | timedelta | float | None, now: float) -> float | None:
    if at is None:
        return None
    return now + at.total_seconds() if isinstance(at, timedelta) else epoch_seconds(at)


def _is_due(job: Job, due_at: float | None) -> bool:
    return due_at is None or ("at" in job and abs(job["at"] - due_at) < _DUE_WITHIN_S)


def _shown(job: Job) -> str:
    when = f" at {datetime.fromtimestamp(job['at']).astimezone().isoformat()}" if "at" in job else ""
    return f"{short_repr(job.args)} in {job.queue}{when}"


def _hint(jobs: WaitingJobs, worker: WorkerClass) -> str:
    for place, found in (("retries", jobs.retries), ("dead", jobs.dead)):
        if number := len(found(worker)):
            return f"; {place}() has {number}"
    return ""


JsonTypeName: TypeAlias = Literal["string", "integer", "number", "boolean", "null", "array", "object"]
_NAMES: tuple[str, ...] = get_args(JsonTypeName)


class JsonType:
    """Equal every value of these JSON types: ``json_type("string")``. Without names, every value that JSON can carry."""

    __slots__ = ("names",)

    def __init__(self, *names: JsonTypeName) -> None:
        for name in names:
            if name not in _NAMES:
                hint = did_you_mean(name, _NAMES)
                raise ValueError(f"json_type({name!r}): there is no such JSON type{hint}. Types: {join_names(_NAMES)}.")
        self.names = frozenset(names)

    def __eq__(self, other: object) -> bool:
        return is_json(other) and not (self.names and self.names.isdisjoint(json_types_of(other)))

    def __hash__(self) -> int:
        return hash(self.names)

    def __repr__(self) -> str:
        return f"json_type({', '.join(map(repr, sorted(self.names)))})"


def json_type(*names: JsonTypeName) -> Any:
    """Return a matcher that equals every value of these JSON types; without names, every value that JSON can carry.

    Raises:
        ValueError: there is no type of this name.
    """
    return JsonType(*names)


def json_types_of(value: object) -> frozenset[str]:
    """Return the names of a value's JSON type: an integer is a number too. Empty for a value that is no native JSON type."""
    if value is None:
        return frozenset({"null"})
    kinds: dict[type[Any], set[str]] = {
        bool: {"boolean"},
        int: {"integer", "number"},
        float: {"number"},
        str: {"string"},
        list: {"array"},
        dict: {"object"},
    }
    return frozenset(kinds.get(type(value), set()))


def is_json(value: object) -> bool:
    """Return whether a push takes the value as an argument: native JSON types only, and no number or text that JSON cannot carry."""
    try:
        check_strict_json(value)
        # The nesting counts from the payload on.
        dumps_exact([value], outer_levels=1)
    except (NotJsonError, PayloadError):
        return False
    return True


def same_json(expected: object, found: object) -> bool:
    """Return whether two values are equal in JSON: ``True`` is not 1. An expected matcher decides by its own equality."""
    if is_list(expected) and is_list(found):
        return len(expected) == len(found) and all(map(same_json, expected, found))
    if is_mapping(expected) and is_mapping(found):
        return expected.keys() == found.keys() and all(same_json(expected[key], found[key]) for key in expected)
    if isinstance(expected, bool) or isinstance(found, bool):
        # A matcher of another kind is asked; a number is not.
        return type(expected) is type(found) and expected == found if json_types_of(expected) else expected == found
    return bool(expected == found)


def assert_idempotent(worker: WorkerClass, *args: Any, state: Callable[[], object]) -> None:
    """Run a job twice here and now, and fail if the second run changed what ``state`` returns.

    ``state`` reads what the job changes: rows, files, enqueued jobs. A run that ends by ``Discard`` counts.

    Raises:
        AssertionError: the class does not declare ``idempotent = True``, or the second run changed the state.
        Exception: what a run raised.
    """
    __tracebackhide__ = True
    name = declaration_of(worker).class_name
    if not declaration_of(worker).idempotent:
        raise AssertionError(
            f"{name} does not declare idempotent = True: add it, so that duplicates of its jobs are dropped."
        )
    found: list[object] = []
    for _ in range(2):
        with suppress(Discard):
            worker.perform_inline(*args)
        # A copy: the second run may change the object that the first look returned.
        found.append(copy.deepcopy(state()))
    first, second = found
    if not (first == second and same_json(first, second)):
        raise AssertionError(
            f"{name} is not idempotent for the arguments {short_repr(list(args))}: the second run changed the state.\n"
            f"  after the first run:  {short_repr(first)}\n  after the second run: {short_repr(second)}"
        )
