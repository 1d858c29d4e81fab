"""Read the files of the config folder, find misspelt names, and read the generated files of ``workers/``.

YAML is read with care: safe types only, bounded in size, depth and expansion, no duplicate keys.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from framework.command_line import started_from_checkout
from framework.errors import ConfigurationProblem
from framework.settings.base import SettingsSchema
from framework.settings.model import CoreSettings
from framework.text import did_you_mean, nearest
from framework.typeguards import is_list, is_mapping

_CATEGORIES = "feature_categories"


def find_config_dir(named: str | None, working_dir: Path, problems: list[ConfigurationProblem]) -> Path | None:
    """Return the config folder: the named one, else ``config`` of ``working_dir``, also an empty one; None without it.

    In a checkout, and for its commands, it is else the folder of the checkout. An application with an editable installation has
    nothing to do with that one: it would get the schedule and the rules of the checkout.
    """
    if named is not None:
        folder = (working_dir / named).resolve()
        place = ConfigurationProblem("environment", "FRAMEWORK_CONFIG_DIR", "")
        if not folder.is_dir():
            hint = "" if folder.exists() else did_you_mean(folder.name, _file_names(folder.parent))
            problems.append(place._replace(message=f"there is no folder {folder}{hint}"))
        return folder
    own = (working_dir / "config").resolve()
    if own.is_dir():
        return own
    parent = Path(__file__).resolve().parent.parent.parent
    belongs = started_from_checkout() or working_dir.resolve().is_relative_to(parent)
    return parent / "config" if belongs and (parent / "config").is_dir() else None


def read_files(
    schema: SettingsSchema, folder: Path, label: str, problems: list[ConfigurationProblem]
) -> dict[str, Any]:
    """Return every known key of the folder's files, unchecked. Unreadable files and unknown keys go to ``problems``.

    ``label`` is the name of the folder in the problems.
    """
    values: dict[str, Any] = {}
    present = _file_names(folder)
    problems.extend(
        ConfigurationProblem(f"{label}/{name}", "", message)
        for name, message in _misnamed_files(schema, folder, present)
    )
    for file in schema.keys_by_file:
        if file in present:
            values |= _read_file(schema, folder / file, ConfigurationProblem(f"{label}/{file}", "", ""), problems)
    return values


def display_path(folder: Path, working_dir: Path) -> str:
    """Return the name of a folder in messages: relative to the working directory if it is below that, else absolute."""
    working_dir = working_dir.resolve()
    below = folder != working_dir and folder.is_relative_to(working_dir)
    return folder.relative_to(working_dir).as_posix() if below else folder.as_posix()


def _file_names(folder: Path) -> frozenset[str]:
    try:
        return frozenset(path.name for path in folder.iterdir())
    except OSError:
        return frozenset()


def _read_file(
    schema: SettingsSchema, path: Path, place: ConfigurationProblem, problems: list[ConfigurationProblem]
) -> dict[str, Any]:
    keys = schema.keys_by_file[path.name]
    try:
        content = read_yaml(path)
    except YamlError as error:
        problems.append(place._replace(message=str(error)))
        return {}
    if content is None:
        return {}
    if _CATEGORIES in keys:
        content = _with_owners(content)
    if not is_mapping(content):
        problems.append(place._replace(message=f"must hold keys and values; allowed keys: {', '.join(keys)}"))
        return {}
    for key in content:
        if key not in keys:
            file = schema.file_by_key.get(key)
            elsewhere = f"; it belongs to {file}" if file is not None else ""
            hint = elsewhere or did_you_mean(key, keys)
            message = f"unknown key{hint}; allowed: {', '.join(keys)}"
            problems.append(place._replace(key=key if isinstance(key, str) else _as_yaml_scalar(key), message=message))
    return {key: value for key, value in content.items() if key in keys}


def _with_owners(content: Any) -> Any:
    """Return the content of a file of categories; a plain list of names, as GitLab's file is, has teams of the same names."""
    listed = content.get(_CATEGORIES) if is_mapping(content) else content
    if not is_list(listed) or not all(isinstance(name, str) for name in listed):
        return content
    others = content if is_mapping(content) else {}
    return {**others, _CATEGORIES: {name: {"owner": name} for name in listed}}


def _as_yaml_scalar(value: object) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _misnamed_files(schema: SettingsSchema, folder: Path, present: Collection[str]) -> Iterator[tuple[str, str]]:
    """Return files that are not read although they look like files of the framework, each with a remedy.

    Such a file has the name of one but for capitals or ``.yaml``, or nearly the name of a missing one, and holds a key of it:
    files of other programs are left out.
    """
    known = schema.keys_by_file
    missing = {file.removesuffix(".yml"): file for file in known if file not in present}
    for name in sorted(present):
        stem, _, ending = name.rpartition(".")
        if name in known or name.startswith(".") or ending.lower() not in ("yml", "yaml"):
            continue
        same = f"{stem.lower()}.yml"
        file = same if same in known else missing.get(nearest(stem.lower(), missing, cutoff=0.8) or "")
        if file is not None and _has_known_key(folder / name, known[file]):
            yield (
                name,
                f"the framework does not read a file of this name (did you mean {file!r}?): rename it, or merge it into that one",
            )


def _has_known_key(path: Path, keys: Collection[str]) -> bool:
    try:
        content = read_yaml(path)
    except YamlError:
        return False
    return is_mapping(content) and any(nearest(key, keys, cutoff=0.75) for key in content)


MAX_BYTES = 1024 * 1024
MAX_GENERATED_BYTES = 16 * 1024 * 1024
"""The size limit of a generated file, enough for tens of thousands of workers."""
MAX_DEPTH = 32
MAX_NODES = 200_000
"""Nodes after every alias is written out; stops files that are small and expand to billions."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class YamlError(Exception):
    """A file is no usable YAML; the text says where (line and column) and why."""


def read_yaml(path: Path, *, max_bytes: int = MAX_BYTES) -> Any:
    """Return the content of the file, None when it is empty. Raises YamlError, also when the file cannot be read."""
    return parse_yaml(read_text(path, max_bytes=max_bytes))


def read_text(path: Path, *, max_bytes: int = MAX_BYTES) -> str:
    """Return the text of the file. Raises YamlError when it cannot be read."""
    try:
        if path.stat().st_size > max_bytes:
            raise YamlError(f"is larger than {max_bytes:,} bytes, the maximum for such a file")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise YamlError(f"is not UTF-8 (byte {error.start})") from None
    except OSError as error:
        raise YamlError(f"cannot be read: {error.strerror}") from None


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML text, None when it is empty. Raises YamlError with line and column."""
    try:
        _check_depth(text)
        loader = _Loader(text)
        try:
            root: Node | None = loader.get_single_node()
            if root is None:
                return None
            _NodeCounter().count(root)
            return loader.construct_document(root)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise YamlError(f"{place}{_reason(error, text)}") from None
    except yaml.reader.ReaderError as error:
        # Its position counts bytes or characters, depending on the loader.
        before = text.partition(chr(error.character))[0].split("\n")
        place = f"line {len(before)}, column {len(before[-1]) + 1}: "
        raise YamlError(f"{place}the character #x{error.character:04x} is not allowed in YAML") from None
    except yaml.YAMLError as error:
        raise YamlError(f"is not YAML: {error}") from None
    except (ValueError, OverflowError) as error:
        raise YamlError(f"holds a value that cannot be read: {error}") from None


def _reason(error: yaml.MarkedYAMLError, text: str) -> str:
    problem = error.problem or error.context or "is not YAML"
    mark = error.problem_mark
    line = text.split("\n")[mark.line : mark.line + 1] if mark is not None else []
    if mark is not None and line and line[0][mark.column : mark.column + 1] == "\t":
        return f"{problem} (a tab does not indent in YAML: use spaces)"
    if "expected alphabetic or numeric character" in problem:
        return f"{problem} (a value that begins with * or & must be in quotes)"
    if "maximum nesting depth" in problem:
        # The scanner of newer libyaml refuses 1,000 levels, before the events that _check_depth counts.
        return f"nested deeper than {MAX_DEPTH} levels"
    if isinstance(error, yaml.constructor.ConstructorError) and "for the tag" in problem:
        return f"{problem}; only plain values are allowed, without tags"
    return f"{error.context}, {problem}" if problem.startswith("but ") and error.context else problem


def _check_depth(text: str) -> None:
    # Events come without recursion. Building nodes recurses in C, where too much depth would end the process.
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise YamlError(f"{_position(event)}nested deeper than {MAX_DEPTH} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


class _NodeCounter:
    """Count nodes as if aliases were written out, visiting each node once, and refuse duplicate keys."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.ancestors: set[int] = set()

    def count(self, node: Node) -> int:
        if id(node) in self.ancestors:
            raise YamlError(f"{_position(node)}an alias refers to a value that contains it")
        if id(node) not in self.counts:
            self.ancestors.add(id(node))
            self.counts[id(node)] = 1 + sum(self.count(child) for child in _children(node))
            self.ancestors.discard(id(node))
            if self.counts[id(node)] > MAX_NODES:
                raise YamlError(f"{_position(node)}aliases expand to more than {MAX_NODES:,} values")
        return self.counts[id(node)]


def _children(node: Node) -> list[Node]:
    if isinstance(node, SequenceNode):
        return list(node.value)
    if not isinstance(node, MappingNode):
        return []
    seen: set[tuple[str, str]] = set()
    for key, _ in node.value:
        if isinstance(key, ScalarNode):
            name = (key.tag, key.value)
            if name in seen:
                raise YamlError(f"{_position(key)}the key {key.value!r} occurs for the second time")
            seen.add(name)
    return [child for pair in node.value for child in pair]


def _position(found: Node | yaml.Event) -> str:
    mark = found.start_mark
    return f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""


def all_queues_path(settings: CoreSettings) -> Path:
    """Return the path of the project's generated file."""
    return settings.generated_dir / "all_queues.yml"


def read_entries(path: Path) -> list[dict[str, Any]]:
    """Return the entries of the file. Raises YamlError when it is missing or malformed."""
    if not path.exists():
        raise YamlError("does not exist")
    found = read_yaml(path, max_bytes=MAX_GENERATED_BYTES)
    if not is_list(found):
        raise YamlError("is not a list of workers")
    return [item for item in found if is_mapping(item)]


QueueOnShard: TypeAlias = tuple[str, str]


class ReleasedQueues(NamedTuple):
    """The queues of the last release by the wire name of their class, and those of releases before, whose classes are not known.

    Jobs may be left in them after a rule or a class has changed. ``check-compat --release`` writes the file; the queues of releases
    before the last one stay in it for as long as jobs may be left.
    """

    of_workers: Mapping[str, tuple[QueueOnShard, ...]] = {}
    former: tuple[QueueOnShard, ...] = ()

    def all_places(self) -> Iterator[QueueOnShard]:
        for places in self.of_workers.values():
            yield from places
        yield from self.former


def read_released_queues(settings: CoreSettings) -> ReleasedQueues:
    """Return the queues of the file, none without one. Raises YamlError for a malformed file."""
    path = settings.generated_dir / "released.yml"
    if not path.exists():
        return ReleasedQueues()
    found = read_yaml(path, max_bytes=MAX_GENERATED_BYTES)
    if not is_mapping(found):
        raise YamlError("is not a manifest of releases")
    workers = {name: tuple(_of_worker(entry)) for name, entry in _members(found, "workers") if is_mapping(entry)}
    former = [
        (queue, str(shard))
        for queue, shards in _members(found, "former_queues")
        if is_mapping(shards)
        for shard in shards
    ]
    return ReleasedQueues(workers, tuple(former))


def _of_worker(entry: Mapping[str, Any]) -> Iterator[QueueOnShard]:
    for name in ("queue", "retry_queue"):
        queue, shard = entry.get(name), entry.get("shard")
        if isinstance(queue, str) and isinstance(shard, str):
            yield queue, shard


def _members(found: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    members = found.get(name)
    if is_mapping(members):
        yield from ((str(key), value) for key, value in members.items())
