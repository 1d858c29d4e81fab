"""``jobs``: looking at what waits, and at what it waits for; releasing it."""

from typing import Any

import click

from framework.cli.jobs_explain import explain
from framework.settings.suggest import did_you_mean


class Commands(click.Group):
    """A group that names the nearest of its commands to one that it does not have."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return name, command and what is left of the arguments."""
        if args[0] not in self.commands:
            ctx.fail(
                f"No command is named {args[0]!r}{did_you_mean(args[0], self.commands)}; there are: {', '.join(self.commands)}."
            )
        return super().resolve_command(ctx, args)


@click.group("jobs", cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
def jobs() -> None:
    """Look at jobs that do not run, and release them: limits, locks, pauses, deferrals, and what stands in one job's way."""


COMMANDS: list[Any] = [explain]
for command in COMMANDS:
    jobs.add_command(command)
