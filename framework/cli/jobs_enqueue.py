"""``jobs enqueue``: push one job by the name of its class, for cron and shell scripts."""

import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple, cast

import click
from redis.exceptions import RedisError

from framework import active_job
from framework.all_settings import load
from framework.application_worker import PushOptions
from framework.by_name import enqueue as push_by_name
from framework.command_line import EXIT_FAILED, EXIT_UNREACHABLE
from framework.declare import registry
from framework.errors import PayloadError, ShardUnavailableError
from framework.process.record import unserved_queues
from framework.terminal.options import DurationOption, check_shard, json_option, modules_option
from framework.terminal.output import echo, echo_json, refuse_unknown, reports_errors, unknown_worker_message
from framework.terminal.project import load_project
from framework.terminal.shards import unserved_queue_message
from framework.types import Jid
from framework.wire.json import loads
from framework.wiring.client import ProcessClient, bind


class _DelayOption(DurationOption):
    """A duration, or a number of seconds."""

    name = "SECONDS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds."""
        text = str(value)
        return super().convert(f"{text}s" if text.isascii() and text.isdigit() else value, param, ctx)


class _Destination(NamedTuple):
    """Hold where a job goes."""

    queue: str
    shard: str


@click.command("enqueue")
@click.argument("worker", metavar="CLASS")
@click.argument("arguments", metavar="[JSON_ARGS]", default="[]")
@click.option(
    "--in", "delay_s", type=_DelayOption(), help="Run the job after this time: 90, 90s, 15m, 2h, 1d or 1h30m."
)
@click.option(
    "--queue", metavar="NAME", help="Push to this queue. CLASS may then be any class, and the workers are not loaded."
)
@click.option("--shard", metavar="NAME", help="Push to this shard. Default: the shard of CLASS; with --queue, main.")
@click.option("--active-job", "wrapped", is_flag=True, help="Push CLASS as a job of Rails (Active Job). Needs --queue.")
@modules_option
@json_option
@reports_errors
def enqueue(
    worker: str,
    arguments: str,
    *,
    delay_s: float | None,
    queue: str | None,
    shard: str | None,
    wrapped: bool,
    modules: Sequence[str],
    as_json: bool,
) -> None:
    """Push one job of CLASS with the arguments JSON_ARGS, a JSON array, and print its id.

    CLASS is the name of the class on the wire, such as Chaos::SleepWorker. Its arguments are checked. With --queue it may also be a
    class of another program; its arguments are then checked only with -r.

    Nothing is printed when the job is dropped, because it is a duplicate or a client middleware dropped it; the status is 0.

    Status 1: the class is unknown, or its arguments are refused. Status 75: Redis does not answer.
    """
    args = _read_arguments(arguments)
    if wrapped and queue is None:
        raise click.UsageError("--active-job needs --queue: give the queue of the Rails processes.")
    client = _open_client(queue, modules)
    if queue is None:
        refuse_unknown([worker], registry.names(), _unknown_class_message, status=EXIT_FAILED)
    options: PushOptions = {}
    if queue is not None:
        options["queue"] = queue
    if shard is not None:
        options["shard"] = check_shard(client.settings, shard)
    push = active_job.enqueue if wrapped else push_by_name
    try:
        jid = push(worker, args, at=None if delay_s is None else timedelta(seconds=delay_s), **options)
    except ShardUnavailableError as error:
        echo(error, err=True)
        sys.exit(EXIT_UNREACHABLE)
    _print_result(jid, as_json=as_json)
    if jid is not None:
        _warn_if_unserved(client, _destination_of(client, worker, queue, shard))


def _unknown_class_message(name: str, hint: str) -> str:
    return (
        f"{unknown_worker_message(name, hint)}: load its module with -r, or give --queue for a class of another program"
    )


def _read_arguments(text: str) -> list[Any]:
    try:
        found = loads(text.encode(), None)
    except PayloadError as error:
        raise click.UsageError(
            f"JSON_ARGS is no JSON: {error.reason}. Write an array in quotes, such as '[1, \"fast\"]'."
        ) from None
    if not isinstance(found, list):
        raise click.UsageError(
            f"JSON_ARGS {text!r} is no JSON array. Write the arguments of one job in brackets, such as '[1]'."
        )
    return cast("list[Any]", found)


def _open_client(queue: str | None, modules: Sequence[str]) -> ProcessClient:
    """Bind the client of this process, with the worker classes where the command needs them."""
    if queue is None or modules:
        project = load_project(modules)
        client = ProcessClient(project.settings, project.router)
    else:
        client = ProcessClient(load())
    bind(client)
    return client


def _print_result(jid: Jid | None, *, as_json: bool) -> None:
    if as_json:
        echo_json({"jid": jid})
    elif jid is not None:
        echo(jid)
    if jid is None:
        echo("the job was dropped: it is a duplicate, or a client middleware dropped it", err=True)


def _destination_of(client: ProcessClient, worker: str, queue: str | None, shard: str | None) -> _Destination:
    found = registry.find(worker)
    routed = None if found is None else client.route(found.declaration())
    return _Destination(queue or (routed.queue if routed else ""), shard or (routed.shard if routed else "main"))


def _warn_if_unserved(client: ProcessClient, at: _Destination) -> None:
    """Say on stderr that no running process serves the queue: a script may name the wrong one."""
    try:
        missing = unserved_queues(client.shards[at.shard].client, [at.queue])
    # The job is written: what this look finds decides nothing.
    except (RedisError, OSError):
        return
    for queue in missing:
        echo(unserved_queue_message(at.shard, queue), err=True)
