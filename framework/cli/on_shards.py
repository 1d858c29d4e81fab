"""What commands about several shards have in common: the options, one step on each, and a shard that does not answer."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import click
from redis.exceptions import RedisError

from framework.admin.search import Tell
from framework.cli.failure import EXIT_FAILED
from framework.cli.options import check_shard
from framework.errors import ShardUnavailableError
from framework.settings.load import load
from framework.shard.refusals import advice_for
from framework.shard.shard import Shard
from framework.wiring.connect import open_shards

_TELL_EVERY_S = 1.0

T = TypeVar("T")

shard_option = click.option(
    "--shard", "names", metavar="NAME", multiple=True, help="Only this shard. Repeatable; default: every one."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Report as JSON.")


class OnShards:
    """The shards that a command is about. One that does not answer is told of and left out, and the others go on."""

    def __init__(self, names: Sequence[str]) -> None:
        self.settings = load()
        for name in names:
            check_shard(self.settings, name)
        opened = open_shards(self.settings, role="jobs")
        self.shards: Mapping[str, Shard] = {name: opened[name] for name in names or sorted(opened)}
        self.unanswered: list[str] = []

    def each(self, step: Callable[[Shard], T]) -> Iterator[tuple[str, T]]:
        """What the step came to on each shard that answers."""
        for name, shard in self.shards.items():
            if name in self.unanswered:
                continue
            try:
                yield name, step(shard)
            except (RedisError, OSError) as error:
                self.unanswered.append(name)
                reason = f"{shard.endpoint.shown}: {str(error).rstrip('.')}"
                advice = advice_for(error) if isinstance(error, RedisError) else None
                click.echo(str(ShardUnavailableError(name, reason, advice=advice)), err=True)

    def report(self, found: Mapping[str, Any]) -> None:
        """Print it as JSON, with the names of the shards that did not answer."""
        click.echo(json.dumps({**found, "unanswered": self.unanswered}, indent=2, ensure_ascii=False))

    def end(self) -> None:
        """End the command: with status 1 when a shard did not answer."""
        if self.unanswered:
            sys.exit(EXIT_FAILED)


def progress(shard: str) -> Tell:
    """Say on a terminal's stderr, once in a while, how many jobs of a shard have been looked at."""
    told_at = time.monotonic()

    def tell(key: str, looked: int) -> None:
        nonlocal told_at
        if sys.stderr.isatty() and time.monotonic() - told_at >= _TELL_EVERY_S:
            told_at = time.monotonic()
            click.echo(f"{shard}: {looked:,} jobs looked at, now in {key}", err=True)

    return tell
