"""Start a command as ``scripts/NAME`` of a checkout does."""

import click

from framework import command_line


def run_from_checkout(started: click.Command) -> None:
    """Run a command that names itself and its siblings ``scripts/NAME``, in usage lines and in messages."""
    command_line.start_from_checkout()
    started(prog_name=command_line.command(started.name or ""))
