"""Read, decode, parse and count one Python file. Pure but for the reading: no job, no database."""

import ast
import codecs
import errno
import io
import os
import re
import stat
import threading
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from workers.code_index.printable_text import printable

SIZE_CAP: Final = 5_000_000
"""Bytes. The parser needs about fifty times a file's size in memory; no hand-written Python file has 5 MB."""

Kind: TypeAlias = Literal[
    "syntax", "indentation", "encoding", "nul_byte", "too_deep", "too_large", "unreadable", "gave_up"
]
"""The reason why a file could not be measured."""

# The parser warns of invalid escapes under the file name it is given. A name of our own lets one filter silence
# exactly these, in any thread; `warnings.catch_warnings` would swap the filters of the whole process.
_PARSED_AS: Final = "code-index-source"
# CPython 3.11 counts the depth of the tree it makes once for all threads, and fails (SystemError) when the interpreter
# changes threads in between. It makes trees one at a time anyway.
_PARSER: Final = threading.Lock()
_PARSED_MODULE: Final[object] = re.compile(_PARSED_AS)
_UNREADABLE: Final = frozenset(
    {errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO}
)
# Both decode in quadratic time, so a few megabytes would hold a slot for hours; no source is written in them.
_QUADRATIC_ENCODINGS: Final = frozenset({"idna", "punycode"})

_BLOCKS: Final = ("body", "orelse", "finalbody", "handlers", "cases")
_Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True)
class Measured:
    """A file that parses, in numbers."""

    size: int
    lines: int
    functions: int
    classes: int
    longest_name: str | None
    longest_lines: int


@dataclass(frozen=True, slots=True)
class Unparsable:
    """A file that does not parse: a finding about the input, not a failure of the job."""

    kind: Kind
    reason: str
    size: int | None = None


Finding: TypeAlias = Measured | Unparsable


def analyse(path: str | bytes, size_cap: int = SIZE_CAP) -> Finding:
    """Return the figures of the file at ``path``, or the reason why there are none.

    Any bytes give a finding. Raises ``OSError`` only for faults of this machine (disk, descriptors), which a second run may not
    meet.
    """
    try:
        content, size = _read(path, size_cap)
    except OSError as error:
        if error.errno not in _UNREADABLE:
            raise
        return Unparsable("unreadable", f"cannot be opened: {os.strerror(error.errno or 0)}")
    if content is None:
        return Unparsable("unreadable", "is no regular file", size)
    if size > size_cap:
        return Unparsable("too_large", f"{size:,} bytes; files over {size_cap:,} bytes are not parsed", size)
    return analyse_source(content)


def analyse_source(content: bytes) -> Finding:
    """Return the figures of these bytes as Python source, or the reason why there are none."""
    size = len(content)
    if b"\0" in content:
        return Unparsable("nul_byte", f"NUL byte at offset {content.index(0):,}", size)
    try:
        text = _decoded(content)
    except (SyntaxError, UnicodeError, LookupError, ValueError) as error:
        return Unparsable("encoding", printable(str(error)), size)
    try:
        tree = _parsed(text)
    except SyntaxError as error:
        kind: Kind = "indentation" if isinstance(error, IndentationError) else "syntax"
        place = f" (line {error.lineno})" if error.lineno else ""
        return Unparsable(kind, printable(f"{error.msg}{place}"), size)
    except (RecursionError, MemoryError):
        # CPython's parser reports its own depth limit as a MemoryError; nothing was exhausted.
        return Unparsable("too_deep", "nested more deeply than the parser can follow", size)
    except ValueError as error:
        return Unparsable("encoding", printable(str(error)), size)
    return _measured(tree, text, size)


def _read(path: str | bytes, size_cap: int) -> tuple[bytes | None, int]:
    # O_NONBLOCK: opening a named pipe must not wait for a writer that never comes.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None, 0
        content = file.read(size_cap + 1)
        return content, max(status.st_size, len(content))


def _decoded(content: bytes) -> str:
    """Decode as ``tokenize.open`` does: byte order mark, coding line (PEP 263), UTF-8; universal newlines."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    if codecs.lookup(encoding).name in _QUADRATIC_ENCODINGS:
        message = f"coding {encoding!r} is not for source files"
        raise LookupError(message)
    return io.TextIOWrapper(io.BytesIO(content), encoding).read()


def _parsed(text: str) -> ast.Module:
    if not any(module == _PARSED_MODULE for _, _, _, module, _ in warnings.filters):
        warnings.filterwarnings("ignore", module=_PARSED_AS)
    with _PARSER:
        return ast.parse(text, filename=_PARSED_AS)


def _measured(tree: ast.Module, text: str, size: int) -> Measured:
    functions = classes = longest_lines = 0
    longest_name: str | None = None
    for name, node in _definitions(tree):
        if isinstance(node, ast.ClassDef):
            classes += 1
            continue
        functions += 1
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > longest_lines:
            longest_name, longest_lines = name, length
    shown = None if longest_name is None else printable(longest_name, 200)
    return Measured(size, _line_count(text), functions, classes, shown, longest_lines)


def _definitions(tree: ast.Module) -> Iterator[tuple[str, _Definition]]:
    """Each definition under its qualified name; by a stack, as source may nest more deeply than Python recurses."""
    stack: list[tuple[str, ast.AST]] = [("", tree)]
    while stack:
        prefix, node = stack.pop()
        if isinstance(node, _Definition):
            name = f"{prefix}{node.name}"
            yield name, node
            prefix = f"{name}."
        # Definitions are statements and stand in blocks only: expressions, most of a tree, are never visited.
        for block in _BLOCKS:
            stack.extend((prefix, child) for child in getattr(node, block, ()))


def _line_count(text: str) -> int:
    return text.count("\n") + (0 if not text or text.endswith("\n") else 1)
