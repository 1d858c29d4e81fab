"""The options of ``cluster`` that say how a group is looked after, apart from what it serves."""

import re
from collections.abc import Callable
from typing import Any

import click

from framework.cli.options import SecondsOption
from framework.cluster.memory import GRACE_S, MemoryLimits
from framework.cluster.rollout import DRAIN_TIMEOUT_S
from framework.cluster.runner import ClusterOptions

_MB = 1024 * 1024
_MAX_PORT = 65_535
_HOST_AND_PORT = re.compile(
    r"(?P<bare>[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%[\w.-]+)?)"
    r"|(?:\[(?P<inside>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<name>[\w.-]+))(?::(?P<port>\d{1,5}))?",
    re.ASCII,
)
"""An IPv6 address as it is, or in brackets, or another host; behind the last two perhaps a port."""
_OPTIONS = (
    click.option(
        "--drain-timeout",
        type=SecondsOption(),
        default=DRAIN_TIMEOUT_S,
        show_default=True,
        help="Let jobs go on for so many seconds in a process that USR2 or its memory has replaced, and then for --timeout.",
    ),
    click.option(
        "--max-rss",
        type=click.IntRange(1),
        metavar="MB",
        help="Replace a process that takes more memory for as long as --rss-grace says.",
    ),
    click.option(
        "--rss-grace",
        type=SecondsOption(),
        default=GRACE_S,
        show_default=True,
        help="Let a process be above --max-rss for so many seconds.",
    ),
    click.option(
        "--hard-rss", type=click.IntRange(1), metavar="MB", help="Replace a process at once that takes more memory."
    ),
    click.option(
        "--health-port",
        type=click.IntRange(0, _MAX_PORT),
        help="Answer /liveness and /readiness over HTTP at this port.",
    ),
    click.option(
        "--health-host",
        default="127.0.0.1",
        show_default=True,
        metavar="ADDRESS[:PORT]",
        help="Answer at this address: 0.0.0.0 is every IPv4 one, :: is every one, and [::1]:8080 names the port too.",
    ),
)


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command these options; ``read_cluster_options`` takes their values."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_cluster_options(
    *,
    drain_timeout: float,
    max_rss: int | None,
    rss_grace: float,
    hard_rss: int | None,
    health_port: int | None,
    health_host: str,
) -> ClusterOptions:
    """Return what the options say. Raises click.UsageError for what contradicts itself."""
    if max_rss is not None and hard_rss is not None and hard_rss <= max_rss:
        raise click.UsageError(f"--hard-rss {hard_rss} must be above --max-rss {max_rss}.")
    soft, hard = (None if limit is None else limit * _MB for limit in (max_rss, hard_rss))
    health = _health_address(health_host, health_port)
    return ClusterOptions(drain_timeout, MemoryLimits(soft, hard, rss_grace), health)


def _health_address(host: str, port: int | None) -> tuple[str, int] | None:
    """Return where to answer, ``None``: nowhere, as no port is named. Raises click.UsageError for what is no address."""
    found = _HOST_AND_PORT.fullmatch(host)
    if found is None:
        raise click.UsageError(
            f"--health-host {host!r} is no address: give a name, an IPv4 address, or an IPv6 one such as ::1 or [::1]; and "
            "a port behind it, if wanted: [::1]:8080."
        )
    named = found["port"]
    if named is None:
        return None if port is None else (found["bare"] or found["inside"] or found["name"], port)
    if port is not None and port != int(named):
        raise click.UsageError(f"--health-host {host} and --health-port {port} name two ports.")
    if int(named) > _MAX_PORT:
        raise click.UsageError(f"--health-host {host}: a port is a number from 0 to {_MAX_PORT:,}.")
    return found["inside"] or found["name"], int(named)
