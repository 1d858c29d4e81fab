"""``scripts/cluster``: a supervised group of worker processes, one per queue group and shard."""

import signal
import sys
from collections.abc import Sequence

import click

from framework.cli.failure import explained
from framework.cli.options import ModuleOption, SecondsOption, check_shard
from framework.cluster.plan import Planned, Planner, Selection, SelectorError, Size, needs_all_queues, shown
from framework.cluster.supervisor import ChildEvent, ChildSpec, Supervisor
from framework.declare import registry
from framework.process.signals import DUMP, QUIET, STOP, STOP_NOW, SignalQueue
from framework.process.title import Title
from framework.settings.load import load
from framework.settings.model import MAX_CONCURRENCY, Settings
from framework.telemetry import logs
from framework.wiring.places import open_places
from framework.wiring.supervise import supervised

_POLL_S = 0.1


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("selectors", nargs=-1, required=True, metavar="SELECTOR...")
@click.option("--queue-selector", "by_query", is_flag=True, help="SELECTOR is a matching query, as in routing rules.")
@click.option("-n", "--negate", is_flag=True, help="Serve every queue that jobs go to but those of SELECTOR.")
@click.option("--processes", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes per group.")
@click.option("--shard", "shards", multiple=True, help="Serve this shard only, repeatable (default: all).")
@click.option(
    "--min-concurrency", "least", type=click.IntRange(0, MAX_CONCURRENCY), help="Slots: queues + 1, at least this."
)
@click.option(
    "--max-concurrency", "most", type=click.IntRange(1, MAX_CONCURRENCY), help="At most this; alone: just this."
)
@click.option("-t", "--timeout", type=SecondsOption(), help="Seconds running jobs get at the end (default 25).")
@click.option(
    "-r",
    "--require",
    "modules",
    type=ModuleOption(),
    multiple=True,
    help="Module or package of workers instead of `workers`, repeatable.",
)
@click.option("-d", "--dryrun", is_flag=True, help="Print the command lines and start nothing.")
@click.option("--list-queues", is_flag=True, help="Print the queues of each group and start nothing.")
@explained
def cluster(
    selectors: tuple[str, ...],
    processes: int,
    shards: tuple[str, ...],
    least: int | None,
    most: int | None,
    timeout: float | None,
    modules: tuple[str, ...],
    *,
    by_query: bool,
    negate: bool,
    dryrun: bool,
    list_queues: bool,
) -> None:
    """Keep worker processes running: one, or --processes, for each SELECTOR and shard that has queues of it.

    SELECTOR is QUEUE,QUEUE,... or NAMESPACE,... (a namespace stands for itself and NAMESPACE:*), or * for all that jobs go to.
    """
    if dryrun and list_queues:
        raise click.UsageError("--dryrun and --list-queues do not go together.")
    if least is not None and most is not None and least > most:
        raise click.UsageError(f"--min-concurrency {least} is more than --max-concurrency {most}.")
    settings = load()
    selection = Selection(by_query, negate, tuple(check_shard(settings, shard) for shard in shards))
    patience_s = settings.timeout if timeout is None else timeout
    try:
        planner = Planner(open_places(settings, required=needs_all_queues(selectors, selection)), selection)
        plan = planner.plan(selectors, Size(settings.concurrency, processes, least, most))
    except SelectorError as error:
        raise click.UsageError(str(error)) from None
    specs = [one.spec(patience_s, modules) for one in plan]
    if dryrun or list_queues:
        click.echo("\n".join(_table(plan)) if list_queues else "\n".join(map(shown, plan, specs)))
        for remark in planner.remarks(plan):
            click.echo(remark, err=True)
        return
    # What does not hold now would end every child anew.
    registry.refuse_missing(modules or settings.workers_module)
    title = Title("cluster", [" ".join(dict.fromkeys(one.group for one in plan))], "running")
    sys.exit(_keep(settings, specs, patience_s, title))


def _keep(settings: Settings, specs: Sequence[ChildSpec], patience_s: float, title: Title) -> int:
    """Run the children until told to stop, or unable to go on; return the exit status."""
    signals = SignalQueue()
    signals.install()
    logs.open_server_log(settings.logging.level, {"worker_id": "cluster"})
    supervisor = supervised(settings, specs, _tell)
    supervisor.start()
    shards = ",".join(sorted({spec.shard for spec in specs}))
    at_once = _watch(supervisor, signals, shards, title) == STOP_NOW
    failure = supervisor.failure
    title.show(supervisor.running, len(specs), "stopping")
    supervisor.stop(patience_s, lambda: at_once or any(number in (*STOP, STOP_NOW) for number in signals.wait(0)))
    logs.close_server_log()
    return failure or 0


def _table(plan: Sequence[Planned]) -> list[str]:
    rows = dict.fromkeys((one.group, one.shard, name) for one in plan for name in one.queues)
    table = [("GROUP", "SHARD", "QUEUE"), *rows]
    first, second = (max(len(row[column]) for row in table) for column in (0, 1))
    return [f"{group:{first}}  {shard:{second}}  {queue}" for group, shard, queue in table]


def _watch(supervisor: Supervisor, signals: SignalQueue, shards: str, title: Title) -> int | None:
    """Look after the children until told to stop, by the signal that is returned, or unable to.

    The quiet and the stack-dump signal are handed on.
    """
    while supervisor.failure is None:
        for number in signals.wait(_POLL_S):
            if number in (*STOP, STOP_NOW):
                logs.logger(shard=shards).info(
                    "stopping", event_name="cluster.stopping", signal=signal.Signals(number).name
                )
                return number
            if number in (QUIET, DUMP):
                supervisor.forward(number)
        supervisor.poll()
        title.show(supervisor.running, len(supervisor.children))
        if sys.platform == "linux":
            supervisor.reap_adopted()
    return None


def _tell(event: ChildEvent) -> None:
    log = logs.logger(shard=event.shard, child=event.name, child_pid=event.pid)
    if event.kind == "stuck":
        log.error(
            "a child lives but has not beaten for long; it is killed and its jobs go back",
            event_name="child.stuck",
            silent_s=event.status,
        )
        return
    if event.kind == "strays":
        log.warning("what the jobs of a dead child had left running is killed", event_name="child.strays")
        return
    level = log.warning if event.kind in ("died", "killed", "failed") else log.info
    level(f"child {event.kind}", event_name=f"child.{event.kind}", status=event.status)


def main() -> None:
    """Entry point of ``scripts/cluster``."""
    cluster(prog_name="cluster")
