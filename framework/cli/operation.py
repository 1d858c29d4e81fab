"""The options of ``scripts/cluster`` that say how a group is looked after, apart from what it serves."""

from collections.abc import Callable
from typing import Any

import click

from framework.cli.options import SecondsOption
from framework.cluster.memory import GRACE_S, MemoryLimits
from framework.cluster.operate import Operation
from framework.cluster.rollout import DRAIN_TIMEOUT_S

_MB = 1024 * 1024
_OPTIONS = (
    click.option(
        "--drain-timeout",
        type=SecondsOption(),
        default=DRAIN_TIMEOUT_S,
        show_default=True,
        help="Seconds jobs may go on in a process that USR2 or its memory has replaced; then --timeout.",
    ),
    click.option("--max-rss", type=click.IntRange(1), metavar="MB", help="Replace a process that is above for long."),
    click.option(
        "--rss-grace", type=SecondsOption(), default=GRACE_S, show_default=True, help="How many seconds long."
    ),
    click.option("--hard-rss", type=click.IntRange(1), metavar="MB", help="Replace a process that is above at once."),
    click.option(
        "--health-port", type=click.IntRange(0, 65_535), help="Answer /liveness and /readiness over HTTP here."
    ),
    click.option(
        "--health-host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="And at this address."
    ),
)


def operation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command these options; ``read_operation`` takes their values."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_operation(
    *,
    drain_timeout: float,
    max_rss: int | None,
    rss_grace: float,
    hard_rss: int | None,
    health_port: int | None,
    health_host: str,
) -> Operation:
    """Return what the options say. Raises click.UsageError for what contradicts itself."""
    if max_rss is not None and hard_rss is not None and hard_rss <= max_rss:
        raise click.UsageError(f"--hard-rss {hard_rss} must be above --max-rss {max_rss}.")
    soft, hard = (None if limit is None else limit * _MB for limit in (max_rss, hard_rss))
    health = None if health_port is None else (health_host, health_port)
    return Operation(drain_timeout, MemoryLimits(soft, hard, rss_grace), health)
