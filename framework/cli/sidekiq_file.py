"""The YAML file of ``worker -C``: Sidekiq's keys, at the top level and in a section per environment."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from framework.cli.options import WeightedQueue, conflicting_weights, read_queue
from framework.errors import ConfigurationError, Problem
from framework.settings import values
from framework.settings.model import MAX_CONCURRENCY, MAX_TIMEOUT_S
from framework.settings.shapes import is_list, is_mapping
from framework.settings.suggest import did_you_mean, nearest
from framework.settings.tables import MOST_OF_A_QUEUE
from framework.settings.yaml_file import YamlError, parse_yaml, read_text

KEYS = ("concurrency", "timeout", "shard", "queues", "limits", "process_limits", "require", "tag", "labels")
_ENVIRONMENTS = ("development", "test", "production")
_ELSEWHERE: Mapping[str, str] = {
    "max_retries": "set max_retries in {folder}/application.yml",
    "max_retries_after_interruption": "set max_retries_after_interruption in {folder}/application.yml",
    "dead_max_jobs": "set dead.max_jobs in {folder}/application.yml",
    "dead_timeout_in_seconds": "set dead.timeout_days in {folder}/application.yml",
    "average_scheduled_poll_interval": "set poll_interval in {folder}/application.yml",
    "poll_interval_average": "set poll_interval in {folder}/application.yml",
    "verbose": "set logging.level in {folder}/application.yml",
    "environment": "give -e, or set FRAMEWORK_ENV",
    "strict": "",
    "max_iteration_runtime": "",
    "health_check": "",
}
"""Sidekiq's other keys, and where the same is said here."""


@dataclass(frozen=True)
class FileOptions:
    """What ``-C FILE`` says; a section named after the environment lies over the top level."""

    concurrency: int | None = None
    timeout: float | None = None
    shard: str | None = None
    queues: tuple[WeightedQueue, ...] = ()
    limits: Mapping[str, int] | None = None
    process_limits: Mapping[str, int] | None = None
    """Both are sidekiq-limit_fetch's."""
    require: tuple[str, ...] = ()
    tag: str | None = None
    labels: tuple[str, ...] = ()
    """What dashboards call the process, and show beside it."""
    without_effect: tuple[str, ...] = ()
    """Keys that say nothing here, each with where to say it instead."""


def read_file(path: Path, environment: str, folder: str = "config") -> FileOptions:
    """Return the options in a ``-C`` file; ``folder`` is how messages call the config folder.

    Raises:
        ConfigurationError: with everything in it that is wrong, also in the sections ``development``, ``test`` and ``production``.
    """
    problems: list[Problem] = []
    top = _content(path)
    sections = {
        name: _keyed(path, name, top.pop(name), problems) for name in (*_ENVIRONMENTS, environment) if name in top
    }
    options = _options(path, "", top, problems)
    for name, section in sections.items():
        _options(path, f"{name}.", section, problems)
    if problems:
        raise ConfigurationError(problems)
    chosen = _options(path, "", {**top, **sections.get(environment, {})}, problems)
    unknown = dict.fromkeys((*options.without_effect, *chosen.without_effect))
    return replace(chosen, without_effect=tuple(line.replace("{folder}", folder) for line in unknown))


def _content(path: Path) -> dict[str, Any]:
    try:
        text = read_text(path)
        if "<%" in text:
            raise YamlError("holds ERB (<% %>), which is not evaluated here: write the values, or set variables")
        content = parse_yaml(text)
    except YamlError as error:
        raise ConfigurationError([Problem(str(path), "", str(error))]) from None
    problems: list[Problem] = []
    top = _keyed(path, "", content, problems)
    if problems:
        raise ConfigurationError(problems)
    return top


def _keyed(path: Path, section: str, content: Any, problems: list[Problem]) -> dict[str, Any]:
    """The keys and values of a level. Ruby's files write keys as symbols (``:concurrency:``); both forms are read."""
    if content is None:
        return {}
    if not is_mapping(content):
        problems.append(Problem(str(path), section, f"must hold keys and values; keys: {', '.join(KEYS)}"))
        return {}
    keyed: dict[str, Any] = {}
    for key, value in content.items():
        name = str(key).removeprefix(":")
        if name in keyed:
            problems.append(Problem(str(path), name, "stands there twice, with and without a colon before it"))
        keyed[name] = value
    return keyed


def _options(path: Path, section: str, given: Mapping[str, Any], problems: list[Problem]) -> FileOptions:
    found: dict[str, Any] = {}
    without_effect: list[str] = []
    readers: dict[str, Callable[[Any], Any]] = {
        "concurrency": lambda value: values.read_whole(value, 1, MAX_CONCURRENCY),
        "timeout": lambda value: values.read_number(value, 0, MAX_TIMEOUT_S),
        "shard": _shard,
        "queues": _queues,
        "limits": _limits,
        "process_limits": _limits,
        "require": _modules,
        "tag": _mark,
        "labels": lambda value: tuple(map(_mark, value if is_list(value) else [value])),
    }
    for key, value in given.items():
        try:
            if key in readers:
                found[key] = readers[key](value)
            else:
                without_effect.append(_unknown(key))
        except ValueError as error:
            given_value = f", not {values.shown(value)}" if key in ("concurrency", "timeout") else ""
            problems.append(Problem(str(path), f"{section}{key}", f"{error}{given_value}"))
    return FileOptions(**found, without_effect=tuple(without_effect))


def _unknown(key: str) -> str:
    """What to say of a key that has no effect. Raises ValueError for one that must not be passed over."""
    if key == "capsules":
        raise ValueError("a process has one set of queues: start a process for each capsule, with -q and -c")
    if key in _ELSEWHERE:
        way_out = f": {_ELSEWHERE[key]}" if _ELSEWHERE[key] else ""
        return f"{key} has no effect here{way_out}"
    known = (*KEYS, *_ENVIRONMENTS, *_ELSEWHERE, "capsules")
    if nearest(key, known, cutoff=0.8) is not None:
        raise ValueError(f"unknown key{did_you_mean(key, known)}; keys: {', '.join((*KEYS, *_ENVIRONMENTS))}")
    return f"{key} is no key of ours and has no effect here"


def _mark(value: Any) -> str:
    try:
        return values.mark(value if isinstance(value, str) else "")
    except ValueError as error:
        raise ValueError(f"{error}, not {values.shown(value)}") from None


def _shard(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"must be the name of a shard, not {values.shown(value)}")
    return value


def _queues(value: Any) -> tuple[WeightedQueue, ...]:
    entries = value if is_list(value) else [value]
    if not entries:
        raise ValueError("must name at least one queue, not []")
    queues: list[WeightedQueue] = []
    refused: list[str] = []
    for entry in entries:
        try:
            queues.append(_queue(entry))
        except ValueError as error:
            refused.append(str(error))
    if refused:
        raise ValueError("; ".join(refused))
    conflict = conflicting_weights(queues)
    if conflict is not None:
        raise ValueError(conflict)
    return tuple(queues)


def _queue(entry: Any) -> WeightedQueue:
    match entry:
        case str():
            return read_queue(entry.removeprefix(":"))
        case [str() as name]:
            return read_queue(name.removeprefix(":"))
        case [str() as name, int() as weight] if weight > 0 and weight is not True and "," not in name:
            return read_queue(name.removeprefix(":"))[0], weight
        case _:
            raise ValueError(
                f"{values.shown(entry)} is no queue: write NAME, or [NAME, WEIGHT] with a whole number from 1 on"
            )


def _limits(value: Any) -> Mapping[str, int]:
    if not is_mapping(value):
        raise ValueError(f"must map queue names to numbers, for example {{reports: 4}}, not {values.shown(value)}")
    return {_queue(str(name))[0]: _limit(name, limit) for name, limit in value.items()}


def _limit(name: Any, limit: Any) -> int:
    try:
        return values.read_whole(limit, 1, MOST_OF_A_QUEUE)
    except ValueError as error:
        raise ValueError(f"{name}: {error}, not {values.shown(limit)}") from None


def _modules(value: Any) -> tuple[str, ...]:
    return tuple(_modules_of(value if is_list(value) else [value]))


def _modules_of(names: list[Any]) -> Iterator[str]:
    if not names:
        raise ValueError("must name at least one module, not []")
    for name in names:
        try:
            yield values.module_name(name if isinstance(name, str) else "")
        except ValueError as error:
            raise ValueError(f"{error}, not {values.shown(name)}") from None
