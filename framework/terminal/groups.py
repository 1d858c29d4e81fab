"""Groups of commands: help that lists whole sentences, and hints for unknown commands."""

from collections.abc import Mapping, Sequence

import click

from framework.messages import did_you_mean

_NO_LENGTH_LIMIT = 10_000


class CommandGroup(click.Group):
    """A group that suggests the nearest command for an unknown one, and lists whole sentences."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return name, command and the remaining arguments."""
        if args[0] not in self.commands:
            near = did_you_mean(args[0], self.commands)
            ctx.fail(f"No command is named {args[0]!r}{near}; there are: {', '.join(self.commands)}.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """List each command with the whole first sentence of its help; click would cut it."""
        rows = [(name, command.get_short_help_str(_NO_LENGTH_LIMIT)) for name, command in sorted(self.commands.items())]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class SectionedGroup(CommandGroup):
    """A group of many commands, whose help lists them in sections. A command without a section is listed last."""

    sections: Mapping[str, Sequence[str]] = {}
    """The names of commands by the title of their section."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """List each command with the whole first sentence of its help, below the title of its section."""
        listed = {name for names in self.sections.values() for name in names}
        others = [name for name in sorted(self.commands) if name not in listed]
        for title, names in {**self.sections, "Others": others}.items():
            rows = [(name, self.commands[name].get_short_help_str(_NO_LENGTH_LIMIT)) for name in names]
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
