"""Return the lines of an error's traceback for log lines and payloads: the application's calls first, causes below.

A line has a place and its line of source, in the form that Ruby's tools read. Values of variables are never read.
"""

import linecache
import os
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple, cast

from framework.text import error_class, error_message

MAX_CALLS = 20
"""The shown calls of one error."""
_MAX_ERRORS = 5
"""The shown errors: the raised one, and those that led to it."""
_MAX_LINE = 300
_MAX_PACKAGES = 3

_FRAMEWORK = f"{Path(__file__).parent.parent}{os.sep}"
_STANDARD_LIBRARY = f"{Path(os.__file__).parent}{os.sep}"
_INSTALLED = ("site-packages", "dist-packages")


class _Call(NamedTuple):
    file: str
    line: int
    frame: FrameType

    def text(self) -> str:
        place = f"{self.file}:{self.line}:in `{self.frame.f_code.co_name}'"
        source = linecache.getline(self.file, self.line, self.frame.f_globals).strip()
        return f"{place}: {source}" if source else place

    @property
    def package(self) -> str:
        return _package_of(self.file)


def _package_of(file: str) -> str:
    """Return the installed package, ``framework``, ``Python`` for its standard library, or nothing for the application."""
    if file.startswith(_FRAMEWORK):
        return "framework"
    folders = Path(file).parts
    for folder in _INSTALLED:
        if folder in folders[:-1]:
            return folders[folders.index(folder) + 1].removesuffix(".py")
    return "Python" if file.startswith((_STANDARD_LIBRARY, "<frozen ")) else ""


def traceback_lines(error: BaseException, most: int = MAX_CALLS) -> list[str]:
    """Return the lines of an error and of those that led to it, each with at most ``most`` calls. Raises nothing."""
    lines: list[str] = []
    try:
        for label, one in _errors(error):
            if label:
                message = " ".join(error_message(one, _MAX_LINE).split())
                lines.append(_cut(f"{label} {error_class(one)}: {message}"))
            lines += map(_cut, _calls(one, most))
    except BaseException:  # noqa: BLE001 - a job's exception may do anything, and its report must not fail
        return lines
    return lines


def _errors(error: BaseException) -> Iterator[tuple[str, BaseException]]:
    """Yield an error, its causes, and the errors of its group, with their labels."""
    seen = set[int]()
    waiting = [("", error)]
    while waiting and len(seen) < _MAX_ERRORS:
        label, one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield label, one
        if one.__cause__ is not None:
            waiting.append(("caused by", one.__cause__))
        elif one.__context__ is not None and not one.__suppress_context__:
            waiting.append(("raised while handling", one.__context__))
        if isinstance(one, BaseExceptionGroup):
            waiting += [("with", part) for part in cast("BaseExceptionGroup[BaseException]", one).exceptions]


def _calls(error: BaseException, most: int) -> list[str]:
    # Not extract_tb: it reads source files, for a RecursionError a thousand times.
    calls = [_Call(frame.f_code.co_filename, line, frame) for frame, line in traceback.walk_tb(error.__traceback__)]
    calls.reverse()
    own = _of_application(calls)
    lines = [call.text() for call in own[:most]]
    folded = len(calls) - len(lines)
    if calls and calls[0] is not own[0]:
        # The line that raised: its file names the library.
        lines.append(f"raised in {calls[0].text()}")
        folded -= 1
    if folded > 0:
        packages = list(dict.fromkeys(filter(None, (call.package for call in calls))))
        named = f" of {', '.join(packages[:_MAX_PACKAGES])}" if packages else ""
        lines.append(f"... {folded:,} more calls{named}")
    return lines


def _of_application(calls: Sequence[_Call]) -> Sequence[_Call]:
    """Return the calls of the application; it may be an installed package itself. Without one, return all."""
    own = [call for call in calls if not call.package]
    return own or [call for call in calls if call.package not in ("framework", "Python")] or calls


def _cut(line: str) -> str:
    return line if len(line) <= _MAX_LINE else f"{line[: _MAX_LINE - 3]}..."
