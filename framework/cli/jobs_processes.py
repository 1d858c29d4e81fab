"""``jobs processes``, ``quiet``, ``stop``, ``dump`` and ``ping``: show the running processes, and send them signals; stop jobs."""

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
from framework.admin.running_jobs import StoppedJob, silent_message, stop_running, unknown_job_message
from framework.command_line import command
from framework.errors import UnknownNameError
from framework.finish.outcome import StopFate
from framework.shard.shard import Shard
from framework.store.connect import server_time
from framework.terminal.options import confirm, json_option, shard_option, yes_option
from framework.terminal.output import echo, reports_errors
from framework.terminal.shards import ShardCommand, ShardTable, recorded
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
        _send_chosen(on, running, chosen, (name, signal, done), yes=yes)

    return send


def _send_chosen(
    on: ShardCommand,
    running: Sequence[WorkerProcess],
    chosen: Sequence[WorkerProcess],
    words: tuple[str, ProcessSignal, str],
    *,
    yes: bool,
) -> None:
    """Send the signal to the chosen processes, after a question if there are several; end with status 1 if one does not get it."""
    name, signal, done = words
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


def _send(on: ShardCommand, chosen: Iterable[WorkerProcess], signal: ProcessSignal, done: str) -> bool:
    """Send the signal to each of them; return whether one had ended."""
    ended = False
    by_shard: dict[str, list[WorkerProcess]] = {}
    for one in chosen:
        by_shard.setdefault(one.shard, []).append(one)
    step: Callable[[Shard], list[tuple[str, bool]]] = lambda shard: [  # noqa: E731 - typed for each()
        (one.identity, send_signal(shard.client, one.identity, signal)) for one in by_shard.get(shard.name, [])
    ]
    for shard, results in on.each(recorded(step, lambda sent: sum(one for _, one in sent))):
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


@click.command("stop")
@click.argument("names_", nargs=-1, metavar="[PROCESS|JID]...")
@click.option("--all", "every", is_flag=True, help="Choose every running process.")
@click.option("--requeue", "fate", flag_value="requeue", help="Let a stopped job go back to its queue.")
@click.option("--kill", "fate", flag_value="kill", help="Move a stopped job to the dead set.")
@yes_option
@shard_option
@reports_errors
def stop(names_: Sequence[str], *, every: bool, fate: StopFate | None, yes: bool, names: Sequence[str]) -> None:
    """Ask each PROCESS to stop, and push its jobs back after its timeout; or stop the running job JID.

    PROCESS: An identity as `jobs processes` shows it, or its beginning: HOST or HOST:PID. A process reads the signal within ten
    seconds. A supervisor (`cluster`, systemd) starts another process.

    JID: the run ends within about two seconds. An async job gets CancelledError, the process of an isolated job is killed, and an
    iterable job stops at its next item. A thread cannot be stopped from outside: it gets an error if its class has a timeout,
    else the job only sees self.cancelled. The job then ends as cancelled, also if its process dies meanwhile. --requeue
    and --kill choose another end; if the process dies meanwhile, the job runs again.

    Status 1: a PROCESS or JID does not run, does not answer, or has not ended; or a shard does not answer.
    """
    if every == bool(names_):
        raise click.UsageError("Give each PROCESS or JID, or --all: `jobs processes` shows them.")
    on = ShardCommand(names)
    running = [one for _, read in on.each(read_running) for one in read]
    jids = [name for name in names_ if not any(is_named(one.identity, name) for one in running)]
    if fate is not None and (every or len(jids) < len(names_)):
        raise click.UsageError("--requeue and --kill are for jobs: give only ids of running jobs.")
    ended = [_stop_job(on, running, jid, fate or "cancel") for jid in jids]
    if every or len(jids) < len(names_):
        chosen = running if every else _choose(running, [one for one in names_ if one not in jids], whole=True)
        _send_chosen(on, running, chosen, ("stop", "TERM", "is asked to stop"), yes=yes)
    on.exit_unless(all(ended))


def _stop_job(on: ShardCommand, running: Sequence[WorkerProcess], jid: str, fate: StopFate) -> bool:
    """Stop the running job, print how, and return whether its run has ended. Raises UnknownNameError."""
    results = on.each(recorded(lambda shard: stop_running(shard, on.settings.size_limit, jid, fate), len))
    stopped = [one for _, found in results for one in found]
    if not stopped:
        raise UnknownNameError(unknown_job_message(jid, [one.identity for one in running]))
    for one in stopped:
        echo(f"{one.shard}: {one.worker} {one.jid} {_what_happened(one)}", err=not one.ended)
    return all(one.ended for one in stopped)


_HOW = {
    "task_cancelled": "its task is cancelled",
    "process_killed": "its process is killed",
    "interrupted": "its thread gets JobStoppedError",
    "asked": "it is asked to end (self.cancelled)",
}
_FATES: Mapping[StopFate, str] = {
    "cancel": "ends as cancelled",
    "requeue": "goes back to its queue",
    "kill": "moves to the dead set",
}


def _what_happened(one: StoppedJob) -> str:
    """Return what is said about a stopped job, with the remedy if its run goes on."""
    if one.how == "not_running":
        return f"does not run any more in {one.process}"
    if not one.how:
        return f"is not stopped: {silent_message(one.process)}"
    told = f"in {one.process}: {_HOW.get(one.how, one.how)}; it {_FATES[one.fate]}"
    if one.ended:
        return told
    process = command(f"jobs stop {one.process}")
    if one.how == "asked":
        return (
            f"{told} when it returns. A thread cannot be stopped from outside: give the class a timeout, or isolate it; or stop "
            f"its process, with its other jobs: {process}"
        )
    where = command(f"jobs stack {one.jid}")
    return f"{told}. It has not ended within a second: {where} shows where it is; {process} stops its process"


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
