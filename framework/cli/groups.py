"""Groups of commands: how their help lists them, and what is said of a command that there is not."""

import click

from framework.messages import did_you_mean

_NO_LENGTH_LIMIT = 10_000


class CommandGroup(click.Group):
    """A group that names the nearest of its commands to one that it does not have, and lists whole sentences."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return name, command and what is left of the arguments."""
        if args[0] not in self.commands:
            near = did_you_mean(args[0], self.commands)
            ctx.fail(f"No command is named {args[0]!r}{near}; there are: {', '.join(self.commands)}.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """Write each command with the first sentence of its help, which click would cut off."""
        rows = [(name, command.get_short_help_str(_NO_LENGTH_LIMIT)) for name, command in sorted(self.commands.items())]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class DefaultShowGroup(CommandGroup):
    """A group whose command ``show`` need not be named: ``limits NAME`` is ``limits show NAME``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the arguments for those of ``show``, unless they begin with another command or ask for help."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["show", *args]
        return super().parse_args(ctx, args)
