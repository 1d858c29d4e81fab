"""What commands about several shards have in common: the options, one step on each, and a shard that does not answer."""

import getpass
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import click
from redis.exceptions import RedisError

from framework.admin.search import Tell
from framework.cli.failure import EXIT_FAILED
from framework.cli.options import check_shard
from framework.cli.table import columns
from framework.errors import ShardUnavailableError
from framework.settings.load import load
from framework.settings.suggest import did_you_mean
from framework.shard.refusals import advice_for
from framework.shard.shard import Shard
from framework.wiring.connect import open_shards

_TELL_EVERY_S = 1.0

T = TypeVar("T")

shard_option = click.option(
    "--shard", "names", metavar="NAME", multiple=True, help="Only this shard. Repeatable; default: every one."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Report as JSON.")


class Commands(click.Group):
    """A group that names the nearest of its commands to one that it does not have."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return name, command and what is left of the arguments."""
        if args[0] not in self.commands:
            near = did_you_mean(args[0], self.commands)
            ctx.fail(f"No command is named {args[0]!r}{near}; there are: {', '.join(self.commands)}.")
        return super().resolve_command(ctx, args)


class Shown(click.Group):
    """A group whose command ``show`` need not be named: ``limits NAME`` is ``limits show NAME``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the arguments for those of ``show``, unless they begin with another command or ask for help."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["show", *args]
        return super().parse_args(ctx, args)


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

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]], nothing: str) -> None:
        """Print the rows; without any, that there is ``nothing``, as far as that is known."""
        if rows:
            click.echo("\n".join(columns([headings, *rows])))
        elif len(self.unanswered) < len(self.shards):
            click.echo(f"{nothing}{' on the shards that answered' if self.unanswered else ''}.")

    def end(self) -> None:
        """End the command: with status 1 when a shard did not answer."""
        if self.unanswered:
            sys.exit(EXIT_FAILED)


def operator() -> str:
    """Who gives the command, as ``user@host``: the user's number where it has no name, as in containers."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def progress(shard: str) -> Tell:
    """Say on a terminal's stderr, once in a while, how many jobs of a shard have been looked at."""
    told_at = time.monotonic()

    def tell(key: str, looked: int) -> None:
        nonlocal told_at
        if sys.stderr.isatty() and time.monotonic() - told_at >= _TELL_EVERY_S:
            told_at = time.monotonic()
            click.echo(f"{shard}: {looked:,} jobs looked at, now in {key}", err=True)

    return tell
