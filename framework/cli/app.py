"""``app``: the commands of the application's own features."""

import click

from framework.all_settings import load
from framework.feature import own_features
from framework.terminal.groups import LateCommands, LateGroup
from framework.terminal.output import reports_errors


class OwnCommands(LateGroup):
    """The commands of the features that the setting ``features`` names. It is read when the group is used."""

    def make_context(self, *arguments: object, **options: object) -> click.Context:
        """Load the features first."""
        _load(self)
        return super().make_context(*arguments, **options)  # type: ignore[arg-type]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands, or say that there is none."""
        if self.entries:
            super().format_commands(ctx, formatter)
        else:
            formatter.write_paragraph()
            formatter.write_text("No feature of this application has a command.")


@reports_errors
def _load(group: OwnCommands) -> None:
    load()
    commands = LateCommands(command for one in own_features() for command in one.commands)
    group.commands, group.entries = commands, commands.entries


app = OwnCommands("app", (), "Run a command of the application's own features (setting: features).")
