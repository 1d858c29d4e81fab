"""``jobs processes``, ``quiet``, ``stop``, ``dump`` and ``ping``: show the running processes, and send them signals."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from framework.admin.process_list import (
    ProcessSignal,
    RunningJob,
    WorkerProcess,
    is_named,
    read_running,
    read_work,
    send_signal,
    unknown_process_message,
)
from framework.command_line import command
from framework.errors import UnknownNameError
from framework.shard.shard import Shard
from framework.store.connect import server_time
from framework.terminal.options import confirm, json_option, shard_option, yes_option
from framework.terminal.output import echo, reports_errors
from framework.terminal.shards import ShardCommand, ShardTable
from framework.text import format_age, format_count

_PING_HEADINGS = ("SHARD", "PROCESSES", "QUIET", "BUSY", "LAST SEEN")
_PROCESS_HELP = "An identity as `jobs processes` shows it, or its beginning: HOST or HOST:PID."


@click.command("processes")
@click.option("--work", "shows_work", is_flag=True, help="Show the running jobs instead, the longest-running first.")
@shard_option
@json_option
@reports_errors
def processes(*, shows_work: bool, names: Sequence[str], as_json: bool) -> None:
    """Show the running processes of this framework and of Sidekiq, or their running jobs.

    A process writes its record every few seconds: LAST SEEN is the age of the record. BUSY is its running jobs of how many at most.

    Status 1: a shard does not answer.
    """
    on = ShardCommand(names)
    if shows_work:
        work = sorted(
            on.read(lambda shard: read_work(shard, on.settings.size_limit)), key=lambda row: row.one.since or 0.0
        )
        on.show(_Work().of(work, "No job is running"), as_json=as_json)
        on.exit_if_unanswered()
    else:
        on.show_all(_Processes(), read_running, "No process is running", as_json=as_json)


class _Processes(ShardTable[WorkerProcess]):
    field = "processes"
    headings = ("PROCESS", "TAG", "STATE", "BUSY", "MEMORY", "RUNS FOR", "LAST SEEN", "QUEUES")

    def row(self, one: WorkerProcess, now: float) -> Sequence[str]:
        return (
            one.identity,
            one.tag or "-",
            "quiet" if one.is_quiet else "running",
            f"{one.busy}/{one.slots}",
            f"{one.rss_kb // 1024:,} MB" if one.rss_kb else "-",
            format_age(now, one.started_at),
            format_age(now, one.beat),
            ", ".join(one.queues) or "-",
        )


class _Work(ShardTable[RunningJob]):
    field = "work"
    headings = ("JID", "CLASS", "QUEUE", "RUNS FOR", "PROCESS")

    def row(self, one: RunningJob, now: float) -> Sequence[str]:
        return one.jid or "-", one.worker or "-", one.queue, format_age(now, one.since), one.process

    def facts(self, one: RunningJob) -> Mapping[str, Any]:
        facts = {
            "shard": one.shard,
            "process": one.process,
            "thread": one.thread,
            "queue": one.queue,
            "since": one.since,
        }
        return {**facts, "jid": one.jid, "class": one.worker, "args": one.job.args}


def _signal_command(name: str, signal: ProcessSignal, help_: str, done: str) -> click.Command:
    """Return the command that sends the signal to the processes that its arguments name."""

    @click.command(name, help=help_)
    @click.argument("processes_", nargs=-1, metavar="[PROCESS]...")
    @click.option("--all", "every", is_flag=True, help="Choose every running process.")
    @yes_option
    @shard_option
    @reports_errors
    def send(processes_: Sequence[str], *, every: bool, yes: bool, names: Sequence[str]) -> None:
        if every == bool(processes_):
            raise click.UsageError("Give each PROCESS, or --all: `jobs processes` shows them.")
        on = ShardCommand(names)
        running = [one for _, read in on.each(read_running) for one in read]
        chosen = running if every else _choose(running, processes_, whole=not on.unanswered)
        embedded = [one for one in chosen if one.embedded]
        for one in embedded:
            echo(f"{one.shard}: {one.identity} is embedded in another program, and takes no signals", err=True)
        chosen = [one for one in chosen if not one.embedded]
        if len(chosen) > 1:
            confirm(f"{name.capitalize()} {format_count(len(chosen), 'process')}?", yes=yes)
        ended = _send(on, chosen, signal, done)
        if not running and not on.unanswered:
            echo("No process is running.")
        on.exit_unless(not ended and not embedded)

    return send


def _send(on: ShardCommand, chosen: Iterable[WorkerProcess], signal: ProcessSignal, done: str) -> bool:
    """Send the signal to each of them; return whether one had ended."""
    ended = False
    by_shard: dict[str, list[WorkerProcess]] = {}
    for one in chosen:
        by_shard.setdefault(one.shard, []).append(one)
    step: Callable[[Shard], list[tuple[str, bool]]] = lambda shard: [  # noqa: E731 - typed for each()
        (one.identity, send_signal(shard.client, one.identity, signal)) for one in by_shard.get(shard.name, [])
    ]
    for shard, results in on.each(step):
        for identity, sent in results:
            ended = ended or not sent
            echo(f"{shard}: {identity} {done}" if sent else f"{shard}: {identity} has ended", err=not sent)
    return ended


def _choose(running: Sequence[WorkerProcess], wanted: Sequence[str], *, whole: bool) -> list[WorkerProcess]:
    """Return the processes that the arguments name.

    Raises:
        UnknownNameError: an argument names none of them.
    """
    for name in wanted:
        if not any(is_named(one.identity, name) for one in running):
            where = "" if whole else " on the shards that answered"
            raise UnknownNameError(
                f"{unknown_process_message(name, [one.identity for one in running])}{where}: "
                f"{command('jobs processes')} shows them"
            )
    return [one for one in running if any(is_named(one.identity, name) for name in wanted)]


quiet = _signal_command(
    "quiet",
    "TSTP",
    f"""Ask each PROCESS to fetch no more jobs; running jobs go on.

    PROCESS: {_PROCESS_HELP} A process reads the signal within ten seconds, and stays quiet until it ends.

    Status 1: a PROCESS does not run, takes no signals, or has ended meanwhile; or a shard does not answer.
    """,
    "is asked to become quiet",
)
stop = _signal_command(
    "stop",
    "TERM",
    f"""Ask each PROCESS to stop: running jobs have its timeout, then they go back to their queues.

    PROCESS: {_PROCESS_HELP} A process reads the signal within ten seconds. A supervisor (`cluster`, systemd)
    starts another process.

    Status 1: a PROCESS does not run, takes no signals, or has ended meanwhile; or a shard does not answer.
    """,
    "is asked to stop",
)
dump = _signal_command(
    "dump",
    "TTIN",
    f"""Ask each PROCESS to log the stacks of its threads.

    PROCESS: {_PROCESS_HELP} A process reads the signal within ten seconds.

    Status 1: a PROCESS does not run, takes no signals, or has ended meanwhile; or a shard does not answer.
    """,
    "is asked to log its stacks",
)


@click.command("ping")
@click.argument("processes_", nargs=-1, metavar="[PROCESS]...")
@shard_option
@json_option
@reports_errors
def ping(processes_: Sequence[str], *, names: Sequence[str], as_json: bool) -> None:
    """Say whether processes are running, by their heartbeats: all, or each PROCESS.

    PROCESS: an identity as `jobs processes` shows it, or its beginning: HOST or HOST:PID.

    Status 1: no process is running on the shards asked, a PROCESS is not, or a shard does not answer.
    """
    on = ShardCommand(names)
    read = dict(on.each(lambda shard: (server_time(shard.client), read_running(shard))))
    running = [one for _, found in read.values() for one in found]
    chosen = _choose(running, processes_, whole=not on.unanswered) if processes_ else running
    if as_json:
        on.print_json({"running": len(chosen), "processes": [asdict(one) for one in chosen]})
    elif read:
        rows = [
            _ping_row(shard, now, [one for one in chosen if one.shard == shard]) for shard, (now, _) in read.items()
        ]
        on.print_table(_PING_HEADINGS, rows, "")
    on.exit_unless(chosen, "No process is running.")


def _ping_row(shard: str, now: float, running: Sequence[WorkerProcess]) -> Sequence[str]:
    last = max((one.beat for one in running if one.beat is not None), default=None)
    quiet_count = sum(one.is_quiet for one in running)
    return shard, str(len(running)), str(quiet_count), str(sum(one.busy for one in running)), format_age(now, last)
