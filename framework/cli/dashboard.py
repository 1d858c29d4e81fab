"""``dashboard``: serve the pages about jobs, queues and processes to a browser."""

import os
import sys
from contextlib import nullcontext
from importlib import import_module
from typing import Any

import click

from framework.command_line import EXIT_USAGE
from framework.declare.registry import add_working_directory
from framework.feature import Late
from framework.pages.caller import ROLES
from framework.telemetry import logs
from framework.terminal.options import AddressOption, ChoiceOption
from framework.terminal.output import echo, reports_errors
from framework.version import install_extra

# The extra `dashboard` may be missing.
_SERVER: "Late[Any]" = Late("framework.dashboard.server:serve")
_SAMPLE: "Late[Any]" = Late("framework.devtools.sample_site:sample_site")
_DEFAULT_ADDRESS = "127.0.0.1:7433"


@click.command("dashboard")
@click.option(
    "--listen",
    type=AddressOption(),
    default=_DEFAULT_ADDRESS,
    show_default=True,
    help="Listen at this address. Beyond this machine it needs --authorize.",
)
@click.option(
    "--authorize",
    "authorizer",
    metavar="MODULE:NAME",
    help="Ask this function about the caller of each request (framework.dashboard).",
)
@click.option(
    "--role",
    type=ChoiceOption(ROLES[1:]),
    default="admin",
    show_default=True,
    metavar="ROLE",
    help="Without --authorize: what the callers on this machine may do: read, operate or admin.",
)
@click.option(
    "--sample",
    is_flag=True,
    help="Show a made-up platform with incidents going on, on stores that end with the command.",
)
@reports_errors
def dashboard(*, listen: tuple[str, int], authorizer: str | None, role: str, sample: bool) -> None:
    """Serve the dashboard, until TERM or INT.

    Every program and user of this machine that reaches the address has the role, unless --authorize decides. Requests for other
    hosts than localhost are refused then.

    Status 2: the address is beyond this machine, and there is no --authorize.
    """
    host, port = listen
    try:
        serve = _SERVER.load()
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("framework"):
            raise
        echo(f"The dashboard needs {error.name}: {install_extra('dashboard')}", err=True)
        sys.exit(EXIT_USAGE)
    authorize = None if authorizer is None else _loaded(authorizer)
    try:
        with _SAMPLE.load()() if sample else nullcontext():
            serve(host, port, authorize, role)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    logs.flush_output()
    # Python needs seconds to free the modules of the application, and would wait for the reads of a frozen shard.
    os._exit(0)


def _loaded(path: str) -> Any:
    add_working_directory()
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise click.UsageError(f"--authorize {path}: {error}") from None
