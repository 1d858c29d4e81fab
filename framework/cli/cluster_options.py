"""The options of ``cluster`` for supervision: memory limits, drains, health endpoints."""

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
"""A bare IPv6 address; or an IPv6 address in brackets or another host, with an optional port."""
_OPTIONS = (
    click.option(
        "--drain-timeout",
        type=SecondsOption(),
        default=DRAIN_TIMEOUT_S,
        show_default=True,
        help="Seconds for the jobs of a replaced process (USR2, memory), before --timeout begins.",
    ),
    click.option(
        "--max-rss",
        type=click.IntRange(1),
        metavar="MB",
        help="Replace a process that uses more memory than this for longer than --rss-grace.",
    ),
    click.option(
        "--rss-grace",
        type=SecondsOption(),
        default=GRACE_S,
        show_default=True,
        help="Seconds that a process may be above --max-rss.",
    ),
    click.option(
        "--hard-rss",
        type=click.IntRange(1),
        metavar="MB",
        help="Replace a process at once when it uses more memory than this.",
    ),
    click.option(
        "--health-port",
        type=click.IntRange(0, _MAX_PORT),
        help="Serve /liveness and /readiness over HTTP at this port.",
    ),
    click.option(
        "--health-host",
        default="127.0.0.1",
        show_default=True,
        metavar="ADDRESS[:PORT]",
        help="Listen at this address: 0.0.0.0 is every IPv4 address, :: every address; [::1]:8080 also gives the port.",
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
    """Return the options. Raises click.UsageError for contradictory values."""
    if max_rss is not None and hard_rss is not None and hard_rss <= max_rss:
        raise click.UsageError(f"--hard-rss {hard_rss} must be above --max-rss {max_rss}.")
    soft, hard = (None if limit is None else limit * _MB for limit in (max_rss, hard_rss))
    health = _health_address(health_host, health_port)
    return ClusterOptions(drain_timeout, MemoryLimits(soft, hard, rss_grace), health)


def _health_address(host: str, port: int | None) -> tuple[str, int] | None:
    """Return host and port, or None without a port. Raises click.UsageError for an invalid address."""
    found = _HOST_AND_PORT.fullmatch(host)
    if found is None:
        raise click.UsageError(
            f"--health-host {host!r} is no address: give a name, an IPv4 address, or an IPv6 address such as ::1 or [::1]; "
            "a port may follow: [::1]:8080."
        )
    named = found["port"]
    if named is None:
        return None if port is None else (found["bare"] or found["inside"] or found["name"], port)
    if port is not None and port != int(named):
        raise click.UsageError(f"--health-host {host} and --health-port {port} name two ports.")
    if int(named) > _MAX_PORT:
        raise click.UsageError(f"--health-host {host}: a port is a number from 0 to {_MAX_PORT:,}.")
    return found["inside"] or found["name"], int(named)
