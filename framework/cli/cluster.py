"""``scripts/cluster``: a supervised group of worker processes, one per queue group."""

import signal
import sys

import click

from framework.cli.failure import explained
from framework.cli.options import GroupOption, ModuleOption, SecondsOption, check_shard
from framework.cluster.supervisor import ChildEvent, ChildSpec, Supervisor
from framework.declare import registry
from framework.process.signals import DUMP, QUIET, STOP, STOP_NOW, SignalQueue
from framework.settings.load import load
from framework.settings.model import MAX_CONCURRENCY
from framework.telemetry import logs
from framework.wiring.connect import open_router
from framework.wiring.supervise import supervised

_POLL_S = 0.1


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("groups", type=GroupOption(), nargs=-1, required=True, metavar="QUEUES...")
@click.option("--processes", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes per group.")
@click.option("--shard", default="main", show_default=True, help="The shard that all processes serve.")
@click.option("--max-concurrency", type=click.IntRange(1, MAX_CONCURRENCY), help="Jobs at a time per process.")
@click.option("--timeout", type=SecondsOption(), help="Seconds running jobs get at the end (default 25).")
@click.option(
    "-r",
    "--require",
    "modules",
    type=ModuleOption(),
    multiple=True,
    help="Module or package of workers instead of `workers`, repeatable.",
)
@click.option("--dryrun", is_flag=True, help="Print the command lines and start nothing.")
@explained
def cluster(
    groups: tuple[tuple[str, ...], ...],
    processes: int,
    shard: str,
    max_concurrency: int | None,
    timeout: float | None,
    modules: tuple[str, ...],
    *,
    dryrun: bool,
) -> None:
    """Keep one worker process (or --processes) running for each group of comma-separated QUEUES."""
    settings = load()
    patience_s = settings.timeout if timeout is None else timeout
    specs = plan(groups, processes, check_shard(settings, shard), max_concurrency, patience_s, modules)
    if dryrun:
        for spec in specs:
            click.echo(" ".join(spec.argv))
        return
    # What does not hold now would end every child anew.
    registry.refuse_missing(modules or settings.workers_module)
    open_router(settings)
    signals = SignalQueue()
    signals.install()
    logs.open_server_log(settings.logging.level, {"worker_id": "cluster"})
    supervisor = supervised(settings, specs, _tell)
    supervisor.start()
    at_once = _watch(supervisor, signals, shard) == STOP_NOW
    failure = supervisor.failure
    supervisor.stop(patience_s, lambda: at_once or any(number in (*STOP, STOP_NOW) for number in signals.wait(0)))
    logs.close_server_log()
    sys.exit(failure or 0)


def plan(
    groups: tuple[tuple[str, ...], ...],
    processes: int,
    shard: str,
    concurrency: int | None,
    timeout: float,
    modules: tuple[str, ...],
) -> list[ChildSpec]:
    """Return one spec per process to run."""
    common = ["--shard", shard, "-t", f"{timeout:g}"]
    if concurrency is not None:
        common += ["-c", str(concurrency)]
    common += [part for module in modules for part in ("-r", module)]
    specs: list[ChildSpec] = []
    for number, group in enumerate(groups):
        queues = [part for name in group for part in ("-q", name)]
        for copy in range(processes):
            name = f"worker-{number}-{copy}"
            argv = [sys.executable, "-m", "framework", "worker", *common, *queues]
            specs.append(ChildSpec(name, argv, shard, {"FRAMEWORK_WORKER_ID": name}))
    return specs


def _watch(supervisor: Supervisor, signals: SignalQueue, shard: str) -> int | None:
    """Look after the children until told to stop, by the signal that is returned, or unable to.

    The quiet and the stack-dump signal are handed on.
    """
    while supervisor.failure is None:
        for number in signals.wait(_POLL_S):
            if number in (*STOP, STOP_NOW):
                log = logs.logger(shard=shard)
                log.info("stopping", event_name="cluster.stopping", signal=signal.Signals(number).name)
                return number
            if number in (QUIET, DUMP):
                supervisor.forward(number)
        supervisor.poll()
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
