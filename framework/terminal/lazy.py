"""Load the module of a command when the command is used."""

import importlib
from collections import UserDict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import click


class LazyCommand(NamedTuple):
    """The module and name of a command, and its line in the help of the group."""

    module: str
    name: str
    help: str


class LazyCommands(UserDict[str, click.Command]):
    """The commands of a click group by name; each is loaded at its first lookup."""

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
    """A group of commands from a table. Its help and its usage errors load no command."""

    def __init__(self, name: str, table: Mapping[str, LazyCommand], help_: str) -> None:
        super().__init__(
            name, LazyCommands(table), help=help_, context_settings={"help_option_names": ["-h", "--help"]}
        )
        self._table = table

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands of the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._table[name].help) for name in self.list_commands(ctx)])
