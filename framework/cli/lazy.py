"""A group of commands that loads a command's module when that command is used."""

import importlib
from collections import UserDict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import click


class LazyCommand(NamedTuple):
    """The place of a command, and the line that the group's help has for it."""

    module: str
    name: str
    help: str


class LazyCommands(UserDict[str, click.Command]):
    """Commands by name, as click keeps those of a group; each is loaded when it is looked up."""

    def __init__(self, table: Mapping[str, LazyCommand]) -> None:
        super().__init__()
        self._table = table

    def __missing__(self, name: str) -> click.Command:
        entry = self._table[name]
        self.data[name] = getattr(importlib.import_module(entry.module), entry.name)
        return self.data[name]

    def __contains__(self, name: object) -> bool:
        return name in self._table or name in self.data

    def __iter__(self) -> Iterator[str]:
        return iter({**self._table, **self.data})

    def __len__(self) -> int:
        return len({**self._table, **self.data})


class LazyGroup(click.Group):
    """A group of commands named in a table. Its help and its refusals load none of them."""

    def __init__(self, name: str, table: Mapping[str, LazyCommand], help_: str) -> None:
        super().__init__(
            name, LazyCommands(table), help=help_, context_settings={"help_option_names": ["-h", "--help"]}
        )
        self._table = table

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the lines of the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._table[name].help) for name in self.list_commands(ctx)])
