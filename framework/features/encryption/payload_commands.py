"""``payloads``: show the payload store, and sweep it."""

import sys
from typing import Any

import click
from redis.exceptions import RedisError

from framework.command_line import EXIT_FAILED
from framework.features.encryption.protection import open_offload
from framework.features.encryption.sweep import PayloadSweeper
from framework.terminal.groups import DefaultShowGroup
from framework.terminal.options import json_option
from framework.terminal.output import columns, echo, echo_lines, reports_errors
from framework.terminal.shards import ShardCommand, progress_reporter

_NOT_CONFIGURED = "No payload store is configured (payload_offload.url): all arguments are in Redis."


@click.group("payloads", cls=DefaultShowGroup, context_settings={"help_option_names": ["-h", "--help"]})
def payloads() -> None:
    """Show the store of large arguments (payload_offload.url), and sweep it.

    Without a command the store is shown.
    """


@payloads.command("show")
@json_option
@reports_errors
def show(*, as_json: bool) -> None:
    """Count the blobs of the payload store, and those that no job names, and delete nothing.

    Every key of Redis that holds jobs is read in pages, on all shards.

    Status 1: a shard or the store does not answer, or the URL leads to no payload store.
    """
    _run(as_json=as_json, dry_run=True)


@payloads.command("create")
@reports_errors
def create() -> None:
    """Make the folder or bucket prefix of payload_offload.url a payload store, once.

    The command writes the file payload-store into it. In production a push refuses a store without this file, because the file
    system may not be mounted, or the bucket may be another one. In development and tests the first push makes the store.

    Status 1: the store does not answer, or no store is configured.
    """
    offload = open_offload(ShardCommand(()).settings)
    if offload is None:
        echo(_NOT_CONFIGURED, err=True)
        sys.exit(EXIT_FAILED)
    try:
        made = offload.make_store()
    except OSError as error:
        echo(f"The payload store {offload.url} was not made: {error}", err=True)
        sys.exit(EXIT_FAILED)
    echo(f"{offload.url} {'is a payload store now' if made else 'was a payload store before'}")


@payloads.command("sweep")
@click.option("--dry-run", is_flag=True, help="Show the changes, and make none.")
@json_option
@reports_errors
def sweep(*, dry_run: bool, as_json: bool) -> None:
    """Delete the blobs that no job has named for long.

    A blob is deleted if it is older than payload_offload.keep, and if an earlier sweep, at least as long ago, found no job that
    names it. Worker processes sweep too, every six hours or more often. Every shard of the application must answer.

    Status 1: a shard or the store does not answer, or the URL leads to no payload store; nothing was deleted.
    """
    _run(as_json=as_json, dry_run=dry_run)


def _run(*, as_json: bool, dry_run: bool) -> None:
    on = ShardCommand(())
    offload = open_offload(on.settings)
    if offload is None:
        if as_json:
            on.print_json({"url": None})
        else:
            echo(_NOT_CONFIGURED)
        return
    clients = {name: shard.client for name, shard in on.shards.items()}
    sweeper = PayloadSweeper(offload, on.settings.payload_offload.keep, clients)
    try:
        if reason := offload.reason_not_made():
            echo(f"{offload.url} is no payload store: {reason}.", err=True)
            sys.exit(EXIT_FAILED)
        found = sweeper.sweep(progress_reporter("all shards"), dry_run=dry_run)
    except (RedisError, OSError) as error:
        echo(f"Nothing was deleted: a shard or the payload store {offload.url} does not answer ({error}).", err=True)
        sys.exit(EXIT_FAILED)
    counts: dict[str, Any] = found._asdict()
    if as_json:
        on.print_json({"url": offload.url, "dry_run": dry_run, **counts})
        return
    rows = [(name.replace("_", " "), f"{value:,}") for name, value in counts.items()]
    echo_lines(columns([("store", offload.url), *rows]))
