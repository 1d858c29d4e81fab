"""Test the reference of commands: each command has a table with exactly its options and their defaults."""

import re
from pathlib import Path

import click

from tests.cli.test_help import COMMANDS
from tests.tables import each_row

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "commands.md"
OF_THE_TABLE = {"--require", "--json", "--shard", "--help"}
"""Options of the table of all commands, which test_help compares."""
ROW = re.compile(r"^\| (`-[^|]*`) \| .+ \| ([^|]*?) ?\|$", re.MULTILINE)


def options(command: click.Command) -> dict[str, str]:
    """Return the options of a command as its table names them, each with its constant default."""
    return {
        ", ".join(f"`{word}`" for word in one.opts): default(one)
        for one in command.params
        if isinstance(one, click.Option) and one.opts[-1] not in OF_THE_TABLE
    }


def default(option: click.Option) -> str:
    if not option.show_default:
        return ""
    return f"`{option.default:g}`" if isinstance(option.default, int | float) else f"`{option.default}`"


def sections() -> dict[str, str]:
    parts = re.split(r"^### `([^`]+)`\n", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@each_row("name", [name for name, one in COMMANDS.items() if name and options(one)])
def test_commands_page_has_each_option_of_a_command(name: str) -> None:
    rows = dict(ROW.findall(sections()[name]))
    wanted = options(COMMANDS[name])
    assert rows.keys() == wanted.keys()
    assert {word: rows[word] for word, value in wanted.items() if value} == {w: v for w, v in wanted.items() if v}


def test_commands_page_has_no_other_command() -> None:
    assert sections().keys() == {name for name, one in COMMANDS.items() if name and options(one)}
