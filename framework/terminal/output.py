"""Print the output of commands, and end a command that cannot continue.

Output is escaped: no text of a job, key or error controls the terminal or forges a line.
"""

import json
import os
import sys
import traceback
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar, cast

import click

from framework.command_line import EXIT_CONFIGURATION, EXIT_FAILED, EXIT_USAGE
from framework.errors import ConfigurationError, DeclarationError, FrameworkError
from framework.known_secrets import known_secrets
from framework.text import did_you_mean, visible, visible_json
from framework.typeguards import is_text, short_repr

_MAX_CELL_WIDTH = 400


# Foreign text is escaped where it is printed: a newline or ESC in a name would forge lines, or fill the clipboard.
def echo(text: object = "", *, err: bool = False) -> None:
    """Print one line; a very long one is cut."""
    _write(visible(str(text)), err=err)


def echo_lines(lines: Iterable[str], *, err: bool = False) -> None:
    """Print lines, each on its own; very long ones are cut."""
    _write("\n".join(map(visible, lines)), err=err)


def echo_text(text: str, *, err: bool = False) -> None:
    """Print a text of several lines, such as the message of an error."""
    echo_lines(text.split("\n"), err=err)


def echo_whole(lines: Iterable[str]) -> None:
    """Print lines for another program, such as a shell or redis-cli: escaped, and never cut."""
    _write("\n".join(visible(line, len(line)) for line in lines))


def echo_json(value: object) -> None:
    _write(visible_json(json.dumps(value, indent=2, ensure_ascii=False)))


def _write(text: str, *, err: bool = False) -> None:
    try:
        click.echo(text, err=err)
    except BrokenPipeError:
        # The reader of a pipe has ended, as `head` does. Python writes again when it ends, so the output must be open.
        os.dup2(os.open(os.devnull, os.O_WRONLY), (sys.stderr if err else sys.stdout).fileno())
        raise click.exceptions.Exit(EXIT_FAILED) from None


def is_terminal() -> bool:
    """Return whether a question can be answered: the input is a terminal."""
    return sys.stdin.isatty()


def clear_screen() -> None:
    """Empty the terminal for the next view of a command that repeats it; write nothing where the output is no terminal."""
    if sys.stdout.isatty():
        click.echo("\x1b[H\x1b[2J", nl=False)


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield each row as a line of aligned columns; the first row is the headings."""
    shown = [[visible(cell, _MAX_CELL_WIDTH) for cell in row] for row in rows]
    widths = [max(map(text_width, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        cells = (cell + " " * (width - text_width(cell)) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def text_width(text: str) -> int:
    """Return how many columns of a terminal the text takes."""
    if text.isascii():
        return len(text)
    return sum(_width_of(char) for char in text)


def fit(text: str, width: int) -> str:
    """Return the text cut or padded to so many columns of a terminal; an ellipsis stands for what is cut off."""
    if text_width(text) <= width:
        return text + " " * (width - text_width(text))
    cut, used = "", 0
    for char in text:
        used += _width_of(char)
        if used > width - 1:
            break
        cut += char
    return f"{cut}…"[:width] + " " * (width - 1 - text_width(cut))


def _width_of(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


P = ParamSpec("P")
R = TypeVar("R")


def reports_errors(command: Callable[P, R]) -> Callable[P, R]:
    """Turn the framework's errors into one message and a status: 78 for configuration and declarations, else 1.

    Any other exception is shown with its traceback.. Words that are no UTF-8 are wrong usage.
    """

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            _check_texts(kwargs.values())
            return command(*args, **kwargs)
        except (ConfigurationError, DeclarationError) as error:
            echo_text(known_secrets.masked(str(error)), err=True)
            sys.exit(EXIT_CONFIGURATION)
        except FrameworkError as error:
            echo(known_secrets.masked(str(error)), err=True)
            sys.exit(EXIT_FAILED)
        except click.ClickException as error:
            vars(error).update(message="\n".join(map(visible, error.message.split("\n"))))
            raise
        except (click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:  # noqa: BLE001 - a bug of the framework is shown whole, with its texts escaped
            echo_text(known_secrets.masked("".join(traceback.format_exception(error)).rstrip()), err=True)
            sys.exit(EXIT_FAILED)

    return run


def _check_texts(values: Iterable[object]) -> None:
    """Check the words of a command. Python reads bytes that are no UTF-8 as lone surrogates, which Redis and JSON refuse.

    The name of a file may have them: it is a ``Path`` here. Raises UsageError.
    """
    for value in values:
        if isinstance(value, list | tuple):
            _check_texts(cast("Iterable[object]", value))
        elif isinstance(value, str) and not is_text(value):
            raise click.UsageError(f"{short_repr(value)} is no text in UTF-8: give it in the encoding UTF-8.")


def refuse_unknown(
    names: Iterable[str], known: Collection[str], message_for: Callable[[str, str], str], *, status: int = EXIT_USAGE
) -> None:
    """Print ``message_for`` each unknown name and the nearest known one, and end with ``status``; else go on."""
    unknown = [name for name in names if name not in known]
    for name in unknown:
        echo(message_for(name, did_you_mean(name, known)), err=True)
    if unknown:
        sys.exit(status)


def unknown_worker_message(name: str, hint: str) -> str:
    return f"there is no worker {name!r}{hint}"


def write_all(texts: Mapping[Path, str]) -> None:
    """Write every file; a reader sees the old file or the new one, never a part.

    When a file cannot be written, all keep their old content, no temporary file remains, and the command ends with status 1.
    """
    temporary_files = {path: path.with_name(f"{path.name}.{os.getpid()}.tmp") for path in texts}
    path = Path()
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary_files[path].write_text(text, encoding="utf-8")
            if path.is_dir():
                raise IsADirectoryError(0, "it is a folder")
        # Renaming comes last: it needs no space, and the temporary files show that the folders are writable.
        for path in texts:
            temporary_files[path].replace(path)
    except OSError as error:
        for temporary in temporary_files.values():
            with suppress(OSError):
                temporary.unlink()
        echo(f"{display_path(path)} cannot be written: {error.strerror}. Nothing was changed.", err=True)
        sys.exit(EXIT_FAILED)


def display_path(path: Path) -> str:
    """Return the path as messages show it: relative when it is below the working directory."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
