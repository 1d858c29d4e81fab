"""``deployed``: mark a deploy on every shard, for the charts."""

from collections.abc import Sequence

import click

from framework.features.history.admin import check_label
from framework.features.history.marks import mark_deploy
from framework.shard.shard import Shard
from framework.store.connect import server_time
from framework.terminal.options import shard_option
from framework.terminal.output import reports_errors
from framework.terminal.shards import ShardCommand


@click.command("deployed")
@click.argument("version", metavar="VERSION")
@shard_option
@reports_errors
def deployed_(version: str, *, names: Sequence[str]) -> None:
    """Mark that VERSION is deployed now, for the charts here and on Sidekiq's Metrics page.

    A version that is the last mark of a shard already is not marked again, so every machine may call this.

    Status 1: a shard does not answer.
    """
    try:
        label = check_label(version)
    except ValueError as error:
        raise click.UsageError(str(error)) from None

    def mark(shard: Shard) -> str:
        is_new = mark_deploy(shard.client, label, server_time(shard.client))
        return f"{label} is {'marked as deployed' if is_new else 'the last mark already'}"

    ShardCommand(names).tell(mark)
