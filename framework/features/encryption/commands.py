"""``encryption``: make a key, and show the keys and the jobs that need them."""

import base64
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import click
import redis

from framework.admin.search import jobs_with_field
from framework.admin.statistics import OnProgress
from framework.command_line import command
from framework.features.encryption.arguments import encryption_of
from framework.features.encryption.settings import KEY_BYTES
from framework.terminal.groups import DefaultShowGroup
from framework.terminal.options import json_option, shard_option
from framework.terminal.output import echo, reports_errors
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
