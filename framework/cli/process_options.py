"""Read the options of ``worker`` and ``cluster``: the YAML file of ``-C`` with Sidekiq's keys, capsules, and the health checks."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from framework.all_settings import Settings
from framework.errors import ConfigurationError, ConfigurationProblem
from framework.process.own_queues import DEFAULT_CAPSULE, CapsuleOptions, check_capsules
from framework.process.worker_options import HealthAddress
from framework.settings import validators
from framework.settings.files import YamlError, parse_yaml, read_text
from framework.settings.model import MAX_CONCURRENCY, MAX_PORT, MAX_QUEUE_LIMIT, MAX_TIMEOUT_S
from framework.terminal.options import WeightedQueue, conflicting_weights, read_queue
from framework.text import did_you_mean, nearest
from framework.typeguards import is_list, is_mapping

KEYS = (
    "concurrency",
    "timeout",
    "shard",
    "queues",
    "capsules",
    "limits",
    "process_limits",
    "blocking",
    "require",
    "tag",
    "labels",
)
_ENVIRONMENTS = ("development", "test", "production")
_EQUIVALENT_SETTINGS: Mapping[str, str] = {
    "max_retries": "set max_retries in {folder}/application.yml",
    "max_retries_after_interruption": "set max_retries_after_interruption in {folder}/application.yml",
    "dead_max_jobs": "set dead.max_jobs in {folder}/application.yml",
    "dead_timeout_in_seconds": "set dead.timeout_days in {folder}/application.yml",
    "average_scheduled_poll_interval": "set poll_interval in {folder}/application.yml",
    "poll_interval_average": "set poll_interval in {folder}/application.yml",
    "verbose": "set logging.level in {folder}/application.yml",
    "environment": "give -e, or set FRAMEWORK_ENV",
    "strict": "",
    "max_iteration_runtime": "set max_iteration_runtime in {folder}/application.yml",
    "health_check": "set health.port in {folder}/application.yml",
}
"""Sidekiq's other keys, and how to configure the same here."""


@dataclass(frozen=True)
class FileOptions:
    """The options of ``-C FILE``; the section of the environment overrides the top level."""

    concurrency: int | None = None
    timeout: float | None = None
    shard: str | None = None
    queues: tuple[WeightedQueue, ...] = ()
    capsules: tuple[CapsuleOptions, ...] = ()
    """The further capsules; ``default`` of the file is in ``queues`` and ``concurrency``."""
    limits: Mapping[str, int] | None = None
    process_limits: Mapping[str, int] | None = None
    """``limits`` and ``process_limits`` are keys of sidekiq-limit_fetch."""
    blocking_queues: tuple[str, ...] | None = None
    """The key ``blocking`` of sidekiq-limit_fetch."""
    require: tuple[str, ...] = ()
    tag: str | None = None
    labels: tuple[str, ...] = ()
    """Tag and labels name the process on dashboards."""
    ignored_keys: tuple[str, ...] = ()
    """A message for each key that has no effect here, with the alternative."""


def read_config_file(path: Path, environment: str, folder: str = "config") -> FileOptions:
    """Return the options in a ``-C`` file; messages name the config folder ``folder``.

    Raises:
        ConfigurationError: with every problem in it, also in the sections ``development``, ``test`` and ``production``.
    """
    problems: list[ConfigurationProblem] = []
    top = _content(path)
    sections = {
        name: _normalize_keys(path, name, top.pop(name), problems)
        for name in (*_ENVIRONMENTS, environment)
        if name in top
    }
    options = _read_section(path, "", top, problems)
    for name, section in sections.items():
        _read_section(path, f"{name}.", section, problems)
    if problems:
        raise ConfigurationError(problems)
    chosen = _read_section(path, "", {**top, **sections.get(environment, {})}, problems)
    if problems:
        raise ConfigurationError(problems)
    unknown = dict.fromkeys((*options.ignored_keys, *chosen.ignored_keys))
    return replace(chosen, ignored_keys=tuple(line.replace("{folder}", folder) for line in unknown))


def _content(path: Path) -> dict[str, Any]:
    try:
        text = read_text(path)
        if "<%" in text:
            raise YamlError(
                "has ERB (<% %>), which the framework does not evaluate: write the values, or set variables"
            )
        content = parse_yaml(text)
    except YamlError as error:
        raise ConfigurationError([ConfigurationProblem(str(path), "", str(error))]) from None
    problems: list[ConfigurationProblem] = []
    top = _normalize_keys(path, "", content, problems)
    if problems:
        raise ConfigurationError(problems)
    return top


def _normalize_keys(path: Path, section: str, content: Any, problems: list[ConfigurationProblem]) -> dict[str, Any]:
    """Return the keys and values of a level. Ruby's files may write keys as symbols (``:concurrency:``)."""
    if content is None:
        return {}
    if not is_mapping(content):
        problems.append(ConfigurationProblem(str(path), section, f"must hold keys and values; keys: {', '.join(KEYS)}"))
        return {}
    keyed: dict[str, Any] = {}
    for key, value in content.items():
        name = str(key).removeprefix(":")
        if name in keyed:
            problems.append(ConfigurationProblem(str(path), name, "occurs twice, with and without a leading colon"))
        keyed[name] = value
    return keyed


def _read_section(
    path: Path, section: str, section_values: Mapping[str, Any], problems: list[ConfigurationProblem]
) -> FileOptions:
    found: dict[str, Any] = {}
    without_effect: list[str] = []
    readers: dict[str, Callable[[Any], Any]] = {
        "concurrency": lambda value: validators.parse_whole_number(value, 1, MAX_CONCURRENCY),
        "timeout": lambda value: validators.parse_number(value, 0, MAX_TIMEOUT_S),
        "shard": _shard,
        "queues": _queues,
        "capsules": lambda value: capsules_of_file(value, _queues),
        "limits": _limits,
        "process_limits": _limits,
        "blocking": lambda value: tuple(name for name, _ in _queues(value)),
        "require": _modules,
        "tag": _tag,
        "labels": lambda value: tuple(map(_tag, value if is_list(value) else [value])),
    }
    for key, value in section_values.items():
        try:
            if key in readers:
                found[key] = readers[key](value)
            else:
                without_effect.append(_ignored_key_message(key))
        except ValueError as error:
            given_value = f", not {validators.format_value(value)}" if key in ("concurrency", "timeout") else ""
            problems.append(ConfigurationProblem(str(path), f"{section}{key}", f"{error}{given_value}"))
    try:
        _move_default_capsule(found)
    except ValueError as error:
        problems.append(ConfigurationProblem(str(path), f"{section}capsules", str(error)))
    if "blocking" in found:
        found["blocking_queues"] = found.pop("blocking")
    return FileOptions(**found, ignored_keys=tuple(without_effect))


def _move_default_capsule(found: dict[str, Any]) -> None:
    """Make the capsule ``default`` the queues and the concurrency of the process, as in Sidekiq. Raises ValueError."""
    for one in found.get("capsules", ()):
        if one.name == DEFAULT_CAPSULE:
            for key, value in (("queues", one.queues), ("concurrency", one.slots)):
                if key in found and value:
                    raise ValueError(f"{DEFAULT_CAPSULE}: {key} is given outside of capsules too: give it once")
                if value:
                    found[key] = value
            found["capsules"] = tuple(other for other in found["capsules"] if other is not one)


def _ignored_key_message(key: str) -> str:
    """Return the message for a key without effect. Raises ValueError for a misspelt key."""
    if key in _EQUIVALENT_SETTINGS:
        remedy = f": {_EQUIVALENT_SETTINGS[key]}" if _EQUIVALENT_SETTINGS[key] else ""
        return f"{key} has no effect here{remedy}"
    known = (*KEYS, *_ENVIRONMENTS, *_EQUIVALENT_SETTINGS)
    if nearest(key, known, cutoff=0.8) is not None:
        raise ValueError(f"unknown key{did_you_mean(key, known)}; keys: {', '.join((*KEYS, *_ENVIRONMENTS))}")
    return f"{key} is an unknown key and has no effect"


def _tag(value: Any) -> str:
    try:
        return validators.process_label(value if isinstance(value, str) else "")
    except ValueError as error:
        raise ValueError(f"{error}, not {validators.format_value(value)}") from None


def _shard(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"must be the name of a shard, not {validators.format_value(value)}")
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
                f"{validators.format_value(entry)} is not a queue: write NAME, or [NAME, WEIGHT] with a whole number from 1 on"
            )


def _limits(value: Any) -> Mapping[str, int]:
    if not is_mapping(value):
        raise ValueError(
            f"must map queue names to numbers, for example {{reports: 4}}, not {validators.format_value(value)}"
        )
    return {_queue(str(name))[0]: _limit(name, limit) for name, limit in value.items()}


def _limit(name: Any, limit: Any) -> int:
    try:
        return validators.parse_whole_number(limit, 1, MAX_QUEUE_LIMIT)
    except ValueError as error:
        raise ValueError(f"{name}: {error}, not {validators.format_value(limit)}") from None


def _modules(value: Any) -> tuple[str, ...]:
    return tuple(_iterate_modules(value if is_list(value) else [value]))


def _iterate_modules(names: list[Any]) -> Iterator[str]:
    if not names:
        raise ValueError("must name at least one module, not []")
    for name in names:
        try:
            yield validators.module_name(name if isinstance(name, str) else "")
        except ValueError as error:
            raise ValueError(f"{error}, not {validators.format_value(name)}") from None


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


_HOST_AND_PORT = re.compile(
    r"(?P<bare>[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%[\w.-]+)?)"
    r"|(?:\[(?P<inside>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<name>[\w.-]+))(?::(?P<port>\d{1,5}))?",
    re.ASCII,
)
"""A bare IPv6 address; or an IPv6 address in brackets or another host, with an optional port."""
_OPTIONS = (
    click.option(
        "--health-port",
        type=click.IntRange(0, MAX_PORT),
        help="Serve /liveness, /readiness and, in a single process, /metrics over HTTP at this port. Default: the setting "
        "health.port, none.",
    ),
    click.option(
        "--health-host",
        metavar="ADDRESS[:PORT]",
        help="Listen at this address: 0.0.0.0 is every IPv4 address, :: every address; [::1]:8080 also gives the port. "
        "Default: the setting health.host, 127.0.0.1.",
    ),
)


def health_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command these options; ``read_health_address`` takes their values."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_health_address(settings: Settings, host: str | None, port: int | None) -> HealthAddress | None:
    """Return the address of the options, else of the settings; ``None`` without a port.

    Raises click.UsageError for an invalid address.
    """
    host, port = _split_port(host, port)
    chosen_port = settings.health.port if port is None else port
    if chosen_port is None:
        return None
    source = f"{settings.config_file_label('application.yml')}: health.port" if port is None else "--health-port"
    return HealthAddress(settings.health.host if host is None else host, chosen_port, source)


def _split_port(host: str | None, port: int | None) -> tuple[str | None, int | None]:
    """Return host and port of the options. Raises click.UsageError."""
    if host is None:
        return None, port
    found = _HOST_AND_PORT.fullmatch(host)
    if found is None:
        raise click.UsageError(
            f"--health-host {host!r} is no address: give a name, an IPv4 address, or an IPv6 address such as ::1 or [::1]; "
            "a port may follow: [::1]:8080."
        )
    named = found["port"]
    if named is None:
        return found["bare"] or found["inside"] or found["name"], port
    if port is not None and port != int(named):
        raise click.UsageError(f"--health-host {host} and --health-port {port} name two ports.")
    if int(named) > MAX_PORT:
        raise click.UsageError(f"--health-host {host}: a port is a number from 0 to {MAX_PORT:,}.")
    return found["inside"] or found["name"], int(named)
