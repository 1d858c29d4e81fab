"""``cluster``: run a supervised group of worker processes for each group of queues and shard."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import click

from framework.all_settings import Settings, load
from framework.cli.process_options import capsule_option, capsules_of_option, health_options, read_health_address
from framework.cluster.child import GRACE_S, ChildSpec, MemoryLimits
from framework.cluster.plan import GroupSize, PlannedProcess, Planner, Selection, dry_run_lines, needs_all_queues
from framework.cluster.rollout import DRAIN_TIMEOUT_S
from framework.cluster.runner import ClusterOptions, ClusterRunner, log_event
from framework.declare import registry
from framework.errors import FrameworkError, SelectorError
from framework.process.health_server import Served, feature_answers
from framework.process.own_queues import CapsuleOptions
from framework.process.signals import SignalQueue
from framework.process.title import Title
from framework.process.worker_options import HealthAddress, check_supervisor
from framework.route.topology import open_queue_locations
from framework.settings.model import MAX_CONCURRENCY
from framework.supervised_threads import hold_reports
from framework.telemetry import logs
from framework.telemetry.shared_counts import GroupCounts
from framework.terminal.groups import run_from_checkout
from framework.terminal.options import (
    SecondsOption,
    check_shard,
    modules_option,
    shard_option,
    tag_options,
    timeout_option,
)
from framework.terminal.output import echo, echo_whole, reports_errors
from framework.text import join_names
from framework.wiring.cluster import open_supervisor

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


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("selectors", nargs=-1, required=True, metavar="SELECTOR...")
@click.option("--queue-selector", "by_query", is_flag=True, help="Read each SELECTOR as a query, as in routing rules.")
@click.option("-n", "--negate", is_flag=True, help="Serve every queue of * except those of SELECTOR.")
@click.option(
    "--processes",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Number of processes of each group.",
)
@shard_option
@click.option(
    "--min-concurrency",
    "least",
    type=click.IntRange(0, MAX_CONCURRENCY),
    help="Run at least this number of jobs at a time. Default: the number of queues plus one.",
)
@click.option(
    "--max-concurrency",
    "most",
    type=click.IntRange(1, MAX_CONCURRENCY),
    help="Run at most this number of jobs at a time. Without --min-concurrency: exactly this number.",
)
@capsule_option
@timeout_option
@modules_option
@tag_options
@click.option("-d", "--dryrun", is_flag=True, help="Print the command lines and start nothing.")
@click.option("--list-queues", is_flag=True, help="Print the queues of each group and start nothing.")
@cluster_options
@health_options
@reports_errors
def cluster(
    selectors: tuple[str, ...],
    processes: int,
    names: tuple[str, ...],
    least: int | None,
    most: int | None,
    capsules: tuple[tuple[str, int, str], ...],
    timeout: float | None,
    modules: tuple[str, ...],
    tag: str | None,
    labels: tuple[str, ...],
    *,
    by_query: bool,
    negate: bool,
    dryrun: bool,
    list_queues: bool,
    health_host: str | None,
    health_port: int | None,
    **operation: Any,
) -> None:
    """Keep worker processes running for each SELECTOR, on each shard that has queues of it.

    SELECTOR is a list of queues and namespaces, separated by commas, or * for every queue of the routing rules, and those of the
    last releases in which jobs may be left. A namespace means itself and NAMESPACE:*.
    """
    if dryrun and list_queues:
        raise click.UsageError("--dryrun and --list-queues do not go together.")
    if least is not None and most is not None and least > most:
        raise click.UsageError(f"--min-concurrency {least} is more than --max-concurrency {most}.")
    further = capsules_of_option(capsules)
    asked = _ClusterArguments(
        selectors, processes, names, least, most, further, timeout, modules, tag, labels, by_query, negate
    )
    plan = asked.plan()
    health = read_health_address(plan.settings, health_host, health_port)
    chosen = read_cluster_options(**operation, health=health)
    if dryrun or list_queues:
        pairs = map(dry_run_lines, plan.processes, plan.specs)
        echo_whole(_table(plan.processes) if list_queues else chain.from_iterable(pairs))
        for remark in plan.planner.warnings(plan.processes):
            echo(remark, err=True)
        return
    sys.exit(_supervise(asked, plan, chosen))


class _Plan(NamedTuple):
    settings: Settings
    planner: Planner
    processes: Sequence[PlannedProcess]
    specs: Sequence[ChildSpec]
    timeout_s: float


class _ClusterArguments(NamedTuple):
    """The options that select processes; a plan reads the configuration files again each time."""

    selectors: Sequence[str]
    copies: int
    shards: Sequence[str]
    least: int | None
    most: int | None
    capsules: tuple[CapsuleOptions, ...]
    timeout: float | None
    modules: Sequence[str]
    tag: str | None
    labels: Sequence[str]
    by_query: bool
    negate: bool

    def plan(self) -> _Plan:
        """Return the plan. Raises ConfigurationError, and click.UsageError for contradictory arguments."""
        settings = load()
        selection = Selection(self.by_query, self.negate, tuple(check_shard(settings, name) for name in self.shards))
        patience_s = settings.timeout if self.timeout is None else self.timeout
        try:
            places = open_queue_locations(settings, required=needs_all_queues(self.selectors, selection))
            planner = Planner(places, selection)
            processes = planner.plan(
                self.selectors, GroupSize(settings.concurrency, self.copies, self.least, self.most, self.capsules)
            )
        except SelectorError as error:
            raise click.UsageError(str(error)) from None
        used = {capsule.name for one in processes for capsule in one.capsules}
        for capsule in self.capsules:
            if capsule.name not in used:
                names = join_names([name for name, _ in capsule.queues])
                raise click.UsageError(f"--capsule {capsule.name}: no group has {names}: name queues of a SELECTOR.")
        specs = [one.spec(patience_s, self.modules, self._tag_arguments()) for one in processes]
        return _Plan(settings, planner, processes, specs, patience_s)

    def _tag_arguments(self) -> list[str]:
        tag = [] if self.tag is None else ["--tag", self.tag]
        return [*tag, *(part for label in self.labels for part in ("--label", label))]

    def replan(self) -> Sequence[ChildSpec]:
        """Return the processes of a new plan. Raises FrameworkError."""
        try:
            return self.plan().specs
        except click.UsageError as error:
            raise FrameworkError(error.message) from None


def _supervise(asked: "_ClusterArguments", plan: "_Plan", options: ClusterOptions) -> int:
    """Keep the processes running until a signal to stop; return the exit status."""
    # An error here would otherwise end every child at every restart.
    registry.check_importable(asked.modules or plan.settings.workers_module)
    check_supervisor(len(plan.specs), len({spec.shard for spec in plan.specs}))
    signals = SignalQueue()
    signals.install()
    logging = plan.settings.logging
    hold_reports()
    logs.open_server_log(logging.level, {"pid": os.getpid(), "worker_id": "cluster"}, form=logging.format)
    try:
        counts = None if options.health is None else GroupCounts()
        group = open_supervisor(plan.settings, plan.specs, plan.timeout_s, log_event, counts)
        options = replace(options, answers=feature_answers(Served(plan.settings, counts)))
        title = Title("cluster", [" ".join(dict.fromkeys(one.group for one in plan.processes))], "running")
        status = ClusterRunner(group, signals, options, asked.replan, plan.timeout_s, title).run()
    finally:
        logs.close_server_log()
    return status


def _table(plan: Sequence[PlannedProcess]) -> list[str]:
    rows = dict.fromkeys((one.group, one.shard, name) for one in plan for name in one.all_queues)
    table = [("GROUP", "SHARD", "QUEUE"), *rows]
    first, second = (max(len(row[column]) for row in table) for column in (0, 1))
    return [f"{group:{first}}  {shard:{second}}  {queue}" for group, shard, queue in table]


def main() -> None:
    run_from_checkout(cluster)
