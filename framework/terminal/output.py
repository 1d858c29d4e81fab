"""Print the output of commands, escaped: no text of a job, key or error controls the terminal or forges a line."""

import json
import os
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

import click

from framework.exit_codes import EXIT_FAILED
from framework.telemetry.visible import visible, visible_json

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
    """Print JSON."""
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
