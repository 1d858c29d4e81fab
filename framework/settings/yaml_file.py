"""Read one YAML file with care: safe types only, bounded in size, depth and expansion, no duplicate keys."""

from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

MAX_BYTES = 1024 * 1024
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
