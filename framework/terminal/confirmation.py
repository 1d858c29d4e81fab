"""Ask before a command acts on several jobs or processes."""

import click

from framework.terminal.output import is_terminal

yes_option = click.option("--yes", is_flag=True, help="Make the change without a question.")


def confirm(question: str, *, yes: bool) -> None:
    """Ask the question, unless ``--yes`` was given; end the command with status 1 for another answer than yes.

    Raises:
        click.UsageError: the input is no terminal, so nothing can be asked.
    """
    if yes:
        return
    if not is_terminal():
        raise click.UsageError(
            f"{question} Nothing was changed: the input is no terminal. Give --yes to make the change."
        )
    click.confirm(question, abort=True, err=True)
