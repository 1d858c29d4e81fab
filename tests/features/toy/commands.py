"""``application-worker toy``."""

import click

from framework.terminal.output import echo, reports_errors
from framework.terminal.shards import ShardCommand


@click.command("toy")
@reports_errors
def toy() -> None:
    """Show the counts of labels."""
    on = ShardCommand(())
    for _, counts in on.each(lambda shard: shard.client.hgetall("aw:toy:labels")):
        for label, count in sorted(counts.items()):
            echo(f"{label.decode()} {count.decode()}")
    on.exit_if_unanswered()
