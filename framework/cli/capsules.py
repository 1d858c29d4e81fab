"""Read capsules, groups of queues with slots of their own in one process: from the option ``--capsule``, or from a file."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from framework.messages import did_you_mean
from framework.process.own_queues import CapsuleOptions, check_capsules
from framework.settings import validators
from framework.settings.model import MAX_CONCURRENCY
from framework.terminal.options import WeightedQueue, conflicting_weights, read_queue
from framework.typeguards import is_mapping

_KEYS = ("concurrency", "queues")
OWN_SLOTS = 0
"""The slots of a capsule that gives none: as many as the process's own queues have."""

_Triples = Sequence[tuple[str, int, str]]


def capsule_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--capsule``; ``capsules_of_option`` takes its values."""
    return click.option(
        "--capsule",
        "capsules",
        type=(str, click.IntRange(1, MAX_CONCURRENCY), str),
        multiple=True,
        metavar="NAME N QUEUES",
        help="Run the jobs of QUEUES in N threads of their own, for example: --capsule slow 1 reports,exports. Repeatable.",
    )(command)


def capsules_of_option(values: _Triples) -> tuple[CapsuleOptions, ...]:
    """Return the capsules of ``--capsule``. Raises click.UsageError."""
    try:
        return check_capsules([CapsuleOptions(name, _queue_list(queues), slots) for name, slots, queues in values])
    except ValueError as error:
        raise click.UsageError(f"--capsule: {error}.") from None


def capsules_of_file(value: Any, read_queues: Callable[[Any], tuple[WeightedQueue, ...]]) -> tuple[CapsuleOptions, ...]:
    """Return the capsules of the key ``capsules``: a map from names to ``concurrency`` and ``queues``. Raises ValueError."""
    if not is_mapping(value):
        raise ValueError(
            f"must map names to their queues, for example {{slow: {{concurrency: 1, queues: [reports]}}}}, not "
            f"{validators.format_value(value)}"
        )
    found: list[CapsuleOptions] = []
    for key, content in value.items():
        name = str(key).removeprefix(":")
        try:
            found.append(_capsule_of_file(name, content, read_queues))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return check_capsules(found, default_allowed=True)


def _queue_list(text: str) -> tuple[WeightedQueue, ...]:
    """Parse NAME,NAME or NAME,WEIGHT,NAME,WEIGHT. Raises ValueError."""
    entries: list[str] = []
    for part in text.split(","):
        if part.isdecimal() and entries and "," not in entries[-1]:
            entries[-1] = f"{entries[-1]},{part}"
        else:
            entries.append(part)
    queues = tuple(map(read_queue, entries))
    conflict = conflicting_weights(queues)
    if conflict is not None:
        raise ValueError(conflict)
    return queues


def _capsule_of_file(
    name: str, content: Any, read_queues: Callable[[Any], tuple[WeightedQueue, ...]]
) -> CapsuleOptions:
    if not is_mapping(content):
        raise ValueError(f"must hold concurrency and queues, not {validators.format_value(content)}")
    given = {str(key).removeprefix(":"): value for key, value in content.items()}
    for key in given:
        if key not in _KEYS:
            raise ValueError(f"unknown key {key!r}{did_you_mean(key, _KEYS)}; keys: {', '.join(_KEYS)}")
    if "queues" not in given:
        raise ValueError("has no queues: name those that it serves")
    slots = OWN_SLOTS
    if "concurrency" in given:
        try:
            slots = validators.parse_whole_number(given["concurrency"], 1, MAX_CONCURRENCY)
        except ValueError as error:
            raise ValueError(f"concurrency: {error}, not {validators.format_value(given['concurrency'])}") from None
    return CapsuleOptions(name, read_queues(given["queues"]), slots)


def with_own_slots(capsules: Iterable[CapsuleOptions], slots: int) -> tuple[CapsuleOptions, ...]:
    """Return the capsules; one without slots gets those of the process's own queues."""
    return tuple(one._replace(slots=slots) if one.slots == OWN_SLOTS else one for one in capsules)
