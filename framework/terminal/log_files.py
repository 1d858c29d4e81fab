"""Read the lines of worker processes from log files, in one pass after the other and in bounded memory.

A line may stand behind a prefix, such as that of a container, or inside of the JSON of a log driver; lines of other programs are
left out.
"""

import gzip
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from glob import glob
from pathlib import Path
from typing import IO, Any, Self, cast

import click

from framework.types import Payload
from framework.wire.json import loads_object

STDIN = "-"
_GZIP = b"\x1f\x8b"
_INNER = "log"
"""The field in which Docker's driver keeps a line."""
_IDS = re.compile(rb'"(?:jid|bid)": ?"([^"\\]+)"|\\"(?:jid|bid)\\": ?\\"([^"\\]+)\\"')


class LogFiles:
    """The lines of files, also compressed ones (gzip); ``-`` is stdin, which is copied to a temporary file to be read again.

    Raises:
        click.UsageError: a name or pattern matches no file, or one cannot be read.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._copy: IO[bytes] | None = None
        self._paths: list[Path] = []
        for name in dict.fromkeys(names):
            if name == STDIN:
                self._copy = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this
                shutil.copyfileobj(sys.stdin.buffer, self._copy)
                continue
            found = [Path(name)] if Path(name).is_file() else sorted(map(Path, glob(name)))  # noqa: PTH207 - absolute patterns too
            files = [one for one in found if one.is_file()]
            if not files:
                what = "this is a folder" if found else "there is no such file"
                raise click.UsageError(f"{name}: {what}. Give log files, a pattern in quotes, or - for stdin.")
            self._paths += files

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._copy is not None:
            self._copy.close()

    def lines_with(self, text: bytes) -> Iterator[Payload]:
        """Yield the fields of each line that contains the text."""
        return self._facts(lambda line: text in line)

    def lines_of(self, ids: frozenset[bytes]) -> Iterator[Payload]:
        """Yield the fields of each line with one of these ids of jobs or batches."""
        return self._facts(lambda line: any((one[0] or one[1]) in ids for one in _IDS.findall(line)))

    def _facts(self, selects: Callable[[bytes], bool]) -> Iterator[Payload]:
        for line in self._lines():
            if selects(line) and (found := facts_of(line)):
                yield found

    def _lines(self) -> Iterator[bytes]:
        if self._copy is not None:
            self._copy.seek(0)
            # No `yield from`: at an early end it would close the file.
            for line in self._read(self._copy):  # noqa: UP028
                yield line
        for path in self._paths:
            try:
                with path.open("rb") as opened:
                    yield from self._read(opened)
            except (OSError, EOFError) as error:
                raise click.UsageError(f"{path} cannot be read: {error}") from error

    @staticmethod
    def _read(opened: IO[bytes]) -> Iterator[bytes]:
        begin = opened.read(len(_GZIP))
        opened.seek(0)
        return iter(cast("Any", gzip.open(opened)) if begin == _GZIP else opened)


def facts_of(line: bytes) -> Payload:
    """Return the fields of a log line; an empty dict for a line of another form."""
    begin = line.find(b"{")
    found = loads_object(line[begin:].strip()) if begin >= 0 else {}
    inner = found.get(_INNER)
    return facts_of(inner.encode(errors="replace")) if isinstance(inner, str) else found
