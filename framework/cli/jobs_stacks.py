"""``jobs stack``: show the stacks of running jobs."""

from collections.abc import Sequence
from dataclasses import asdict

import click

from framework.admin.process_list import read_running
from framework.admin.running_jobs import JobStack, read_stacks, silent_message, unknown_job_message
from framework.errors import UnknownNameError
from framework.telemetry.stacks import lines_of
from framework.terminal.options import json_option, shard_option
from framework.terminal.output import echo, reports_errors
from framework.terminal.shards import ShardCommand
from framework.text import format_count, format_duration


@click.command("stack")
@click.argument("name", metavar="JID|PROCESS")
@shard_option
@json_option
@reports_errors
def stack(name: str, *, names: Sequence[str], as_json: bool) -> None:
    """Show the stacks of the running jobs of a PROCESS, or of the running job JID.

    Those of threads, of async tasks, and of the processes of isolated jobs. PROCESS: an identity as `jobs processes` shows it, or its
    beginning: HOST or HOST:PID. The innermost call comes first. A stack has functions, files and lines, and no values. A
    process with running jobs answers within two seconds, an idle one within six.

    Status 1: no process has the name or runs the job; a process does not answer; or a shard does not answer.
    """
    on = ShardCommand(names)
    found = dict(on.each(lambda shard: read_stacks(shard, on.settings.size_limit, name)))
    if not any(one.named for one in found.values()):
        running = [one.identity for _, read in on.each(read_running) for one in read]
        raise UnknownNameError(unknown_job_message(name, running))
    stacks = [one for each in found.values() for one in each.stacks]
    silent = [identity for each in found.values() for identity in each.silent]
    left_out = sum(one.left_out for one in found.values())
    if as_json:
        on.print_json({"stacks": [_facts(one) for one in stacks], "silent": silent, "left_out": left_out})
    else:
        for one in stacks:
            _print(one)
        if not stacks and not silent:
            echo("No job is running.")
        if left_out:
            echo(f"{format_count(left_out, 'further stack')}: name one job by its JID.", err=True)
        for identity in silent:
            echo(silent_message(identity), err=True)
    on.exit_unless(not silent)


def _facts(one: JobStack) -> dict[str, object]:
    facts = asdict(one)
    return {**facts, "class": facts.pop("worker"), "stack": [call._asdict() for call in one.stack]}


def _print(one: JobStack) -> None:
    place = f"process {one.process_pid}" if one.process_pid is not None else one.runs_in
    begun = "" if one.begun else ", perform has not begun"
    echo(f"{one.worker} {one.jid} of {one.queue}: {format_duration(one.age_s)}{begun}, {place}, {one.process}")
    for line in lines_of(one.stack) or ["no stack: the process of the job did not answer"]:
        echo(f"  {line}")
