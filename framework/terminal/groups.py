"""Groups of commands: loaded when they are used, help that lists whole sentences, and hints for unknown commands."""

from collections import UserDict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import click

from framework import command_line
from framework.feature import LateCommand
from framework.text import did_you_mean

_NO_LENGTH_LIMIT = 10_000


class CommandGroup(click.Group):
    """A group that suggests the nearest command for an unknown one, and lists whole sentences."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands:
            near = did_you_mean(args[0], self.commands)
            ctx.fail(f"No command is named {args[0]!r}{near}; there are: {', '.join(self.commands)}.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """List each command with the whole first sentence of its help; click would cut it."""
        rows = [(name, command.get_short_help_str(_NO_LENGTH_LIMIT)) for name, command in sorted(self.commands.items())]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class LateCommands(UserDict[str, click.Command]):
    """The commands of a click group by name; each is loaded at its first lookup."""

    def __init__(self, entries: Iterable[LateCommand]) -> None:
        super().__init__()
        self.entries: Mapping[str, LateCommand] = {one.name: one for one in entries}

    def __missing__(self, name: str) -> click.Command:
        self.data[name] = self.entries[name].command.load()
        return self.data[name]

    def __contains__(self, name: object) -> bool:
        return name in self.entries or name in self.data

    def __iter__(self) -> Iterator[str]:
        return iter({**self.entries, **self.data})

    def __len__(self) -> int:
        return len({**self.entries, **self.data})


class LateGroup(click.Group):
    """A group whose help and usage errors load no command."""

    def __init__(self, name: str, entries: Iterable[LateCommand], help_: str) -> None:
        commands = LateCommands(entries)
        super().__init__(name, commands, help=help_, context_settings={"help_option_names": ["-h", "--help"]})
        self.entries = commands.entries

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.entries[name].help) for name in self.list_commands(ctx)])


class SectionedGroup(CommandGroup, LateGroup):
    """A group of many commands, whose help lists them in sections. A command without a section is listed last."""

    sections: Mapping[str, Sequence[str]] = {}
    """The names of commands by the title of their section. A name without a command is left out."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        listed = {name for names in self.sections.values() for name in names}
        others = [name for name in self.list_commands(ctx) if name not in listed]
        for title, names in {**self.sections, "Others": others}.items():
            rows = [(name, self.entries[name].help) for name in names if name in self.entries]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class DefaultShowGroup(CommandGroup):
    """A group with ``show`` as default command: ``limits NAME`` is ``limits show NAME``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Pass the arguments to ``show``, unless the first is another command or asks for help."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["show", *args]
        return super().parse_args(ctx, args)


def run_from_checkout(command: click.Command) -> None:
    """Run a command that names itself and its siblings ``scripts/NAME``, in usage lines and in messages."""
    command_line.use_checkout_commands()
    command(prog_name=command_line.command(command.name or ""))
