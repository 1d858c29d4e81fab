"""The options of ``worker`` and ``cluster`` for health checks over HTTP."""

import re
from collections.abc import Callable
from typing import Any

import click

from framework.all_settings import Settings
from framework.features.health.settings import MAX_PORT
from framework.process.health_address import HealthAddress

_HOST_AND_PORT = re.compile(
    r"(?P<bare>[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%[\w.-]+)?)"
    r"|(?:\[(?P<inside>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<name>[\w.-]+))(?::(?P<port>\d{1,5}))?",
    re.ASCII,
)
"""A bare IPv6 address; or an IPv6 address in brackets or another host, with an optional port."""
_OPTIONS = (
    click.option(
        "--health-port",
        type=click.IntRange(0, MAX_PORT),
        help="Serve /liveness, /readiness and, in a single process, /metrics over HTTP at this port. Default: the setting "
        "health.port, none.",
    ),
    click.option(
        "--health-host",
        metavar="ADDRESS[:PORT]",
        help="Listen at this address: 0.0.0.0 is every IPv4 address, :: every address; [::1]:8080 also gives the port. "
        "Default: the setting health.host, 127.0.0.1.",
    ),
)


def health_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command these options; ``read_health_address`` takes their values."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_health_address(settings: Settings, host: str | None, port: int | None) -> HealthAddress | None:
    """Return the address of the options, else of the settings; ``None`` without a port.

    Raises click.UsageError for an invalid address.
    """
    host, port = _split_port(host, port)
    chosen_port = settings.health.port if port is None else port
    if chosen_port is None:
        return None
    source = f"{settings.config_file_label('application.yml')}: health.port" if port is None else "--health-port"
    return HealthAddress(settings.health.host if host is None else host, chosen_port, source)


def _split_port(host: str | None, port: int | None) -> tuple[str | None, int | None]:
    """Return host and port of the options. Raises click.UsageError."""
    if host is None:
        return None, port
    found = _HOST_AND_PORT.fullmatch(host)
    if found is None:
        raise click.UsageError(
            f"--health-host {host!r} is no address: give a name, an IPv4 address, or an IPv6 address such as ::1 or [::1]; "
            "a port may follow: [::1]:8080."
        )
    named = found["port"]
    if named is None:
        return found["bare"] or found["inside"] or found["name"], port
    if port is not None and port != int(named):
        raise click.UsageError(f"--health-host {host} and --health-port {port} name two ports.")
    if int(named) > MAX_PORT:
        raise click.UsageError(f"--health-host {host}: a port is a number from 0 to {MAX_PORT:,}.")
    return found["inside"] or found["name"], int(named)
