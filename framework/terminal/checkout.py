"""Start a command as ``scripts/NAME`` of a checkout does."""

import click

from framework import command_line


def run_from_checkout(command: click.Command) -> None:
    """Run a command that names itself and its siblings ``scripts/NAME``, in usage lines and in messages."""
    command_line.use_checkout_commands()
    command(prog_name=command_line.command(command.name or ""))
