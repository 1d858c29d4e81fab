"""Group the jobs of a place by their error, and each group by class: one reading for both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Unpack

from framework.admin.groups import ERROR_AND_CLASS, OTHERS, JobGroup, count_groups, split_error_and_class
from framework.admin.job_record import JobCriteria, job_filter
from framework.async_twin import async_twin
from framework.errors import ShardUnavailableError

_MOST_PAIRS = 10_000


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """The jobs with one error, by class: the largest class first. The numbers are estimates where the place was sampled."""

    error: str
    """Its class, and its message without numbers and ids."""
    jobs: int
    classes: Sequence[JobGroup]


@dataclass(frozen=True, slots=True)
class ErrorGroups:
    """The errors of a place, the one with the most jobs first."""

    place: str
    groups: Sequence[ErrorGroup]
    total: int
    examined: int
    is_estimate: bool
    further: int
    """The number of errors that are left out."""
    unanswered: Mapping[str, ShardUnavailableError] = field(default_factory=dict[str, ShardUnavailableError])


def error_groups(
    place: str = "dead", *, limit: int = 50, shard: str | None = None, **criteria: Unpack[JobCriteria]
) -> ErrorGroups:
    """Return the errors of the jobs of ``dead``, ``retry`` or ``interrupted``, each with its classes.

    More than 10,000 jobs of a shard are sampled, as ``framework.admin.top`` does.

    Raises:
        ValueError: the place has no errors, or a criterion is wrong.
        ShardUnavailableError: no shard answers.
        UnknownShardError: the configuration has no such shard.
    """
    if place not in ("dead", "retry", "interrupted"):
        raise ValueError(f"error_groups({place!r}): there are dead, retry and interrupted")
    found = count_groups(place, ERROR_AND_CLASS, job_filter(**criteria), _MOST_PAIRS, exact=False, shard=shard)
    by_error: dict[str, list[JobGroup]] = {}
    for one in found.groups:
        error, name = (OTHERS, OTHERS) if one.name == OTHERS else split_error_and_class(one.name)
        by_error.setdefault(error, []).append(one._replace(name=name))
    groups = [ErrorGroup(error, sum(one.jobs for one in classes), classes) for error, classes in by_error.items()]
    groups.sort(key=lambda one: (-one.jobs, one.error))
    return ErrorGroups(
        place,
        groups[:limit],
        found.total,
        found.examined,
        found.is_estimate,
        max(0, len(groups) - limit),
        found.unanswered,
    )


aerror_groups = async_twin(error_groups)
