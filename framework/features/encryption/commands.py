"""``encryption``: make a key, and show the keys and the jobs that need them; ``payloads``: show and sweep the payload store."""

import base64
import os
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import click
import redis
from redis.exceptions import RedisError

from framework.admin.search import jobs_with_field
from framework.admin.statistics import OnProgress
from framework.command_line import EXIT_FAILED, command
from framework.features.encryption.arguments import encryption_of
from framework.features.encryption.protection import open_offload
from framework.features.encryption.settings import KEY_BYTES
from framework.features.encryption.sweep import PayloadSweeper
from framework.terminal.groups import DefaultShowGroup
from framework.terminal.options import json_option, shard_option
from framework.terminal.output import columns, echo, echo_lines, reports_errors
from framework.terminal.shards import ShardCommand, progress_reporter
from framework.wire.json import loads_object
from framework.wire.protected import ENCRYPTION_KEY

_HEADINGS = ("KEY", "HERE", "ENCRYPTS", "JOBS")


@click.group("encryption", cls=DefaultShowGroup, context_settings={"help_option_names": ["-h", "--help"]})
def encryption() -> None:
    """Make a key for encrypted arguments, and show the keys and the jobs that need them.

    Without a command the keys and the number of their jobs are shown.
    """


@encryption.command("new-key")
def new_key() -> None:
    """Print a new random key for the setting encryption.keys."""
    echo(base64.b64encode(os.urandom(KEY_BYTES)).decode())


@encryption.command("show")
@shard_option
@json_option
@reports_errors
def show(*, names: Sequence[str], as_json: bool) -> None:
    """Count the jobs that each key has encrypted, wherever they wait, with the keys of this configuration.

    A key without jobs can be removed, once no producer uses it. Every key of Redis that holds jobs is scanned in pages.

    Status 1: a shard does not answer.
    """
    on = ShardCommand(names)
    here = encryption_of(on.settings.encryption)
    jobs = Counter[str]()
    for _, found in on.each(lambda shard: _jobs_by_key(shard.client, progress_reporter(shard.name))):
        jobs.update(found)
    known: Sequence[str] = () if here is None else here.key_names
    rows: list[dict[str, Any]] = [
        {
            "key": name,
            "here": name in known,
            "encrypts": here is not None and name == here.active_name,
            "jobs": jobs[name],
        }
        for name in sorted({*known, *jobs})
    ]
    if as_json:
        on.print_json({"keys": rows})
    else:
        none = f"No key is configured, and no job is encrypted. `{command('encryption new-key')}` makes a key"
        on.print_table(_HEADINGS, [_row(one) for one in rows], none)
    on.exit_if_unanswered()


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    return one["key"], "yes" if one["here"] else "no", "yes" if one["encrypts"] else "no", f"{one['jobs']:,}"


def _jobs_by_key(client: "redis.Redis", on_progress: OnProgress) -> Counter[str]:
    """Return the number of jobs by the name of their key, in every key of the shard that holds jobs."""
    counts = Counter[str]()
    for data in jobs_with_field(client, ENCRYPTION_KEY, on_progress):
        name = loads_object(data).get(ENCRYPTION_KEY)
        if isinstance(name, str):
            counts[name] += 1
    return counts


_NOT_CONFIGURED = "No payload store is configured (payload_offload.url): all arguments are in Redis."


@click.group("payloads", cls=DefaultShowGroup, context_settings={"help_option_names": ["-h", "--help"]})
def payloads() -> None:
    """Show the store of large arguments (payload_offload.url), and sweep it.

    Without a command the store is shown.
    """


@payloads.command("show")
@json_option
@reports_errors
def show_store(*, as_json: bool) -> None:
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
