"""The options of ``cluster`` for supervision: memory limits, drains."""

from collections.abc import Callable
from typing import Any

import click

from framework.cluster.child import GRACE_S, MemoryLimits
from framework.cluster.rollout import DRAIN_TIMEOUT_S
from framework.cluster.runner import ClusterOptions
from framework.process.health_address import HealthAddress
from framework.terminal.options import SecondsOption

_MB = 1024 * 1024
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
    health: HealthAddress | None,
) -> ClusterOptions:
    """Return the options. Raises click.UsageError for contradictory values."""
    if max_rss is not None and hard_rss is not None and hard_rss <= max_rss:
        raise click.UsageError(f"--hard-rss {hard_rss} must be above --max-rss {max_rss}.")
    soft, hard = (None if limit is None else limit * _MB for limit in (max_rss, hard_rss))
    return ClusterOptions(drain_timeout, MemoryLimits(soft, hard, rss_grace), health)
