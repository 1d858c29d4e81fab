"""What commands about several shards have in common: the options, one step on each, and a shard that does not answer."""

import getpass
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from redis.exceptions import RedisError

from framework.admin.search import OnProgress
from framework.cli.options import check_shard
from framework.cli.terminal import columns, echo, echo_json, echo_lines
from framework.exit_codes import EXIT_FAILED
from framework.settings.load import load
from framework.shard.redis_errors import unavailable_error
from framework.shard.shard import Shard
from framework.wiring.client import open_shards

_PROGRESS_INTERVAL_S = 1.0

T = TypeVar("T")


class ShardCommand:
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
                echo(str(unavailable_error(name, shard.endpoint, error)), err=True)

    def print_json(self, found: Mapping[str, Any]) -> None:
        """Print it as JSON, with the names of the shards that did not answer."""
        echo_json({**found, "unanswered": self.unanswered})

    def print_table(self, headings: Sequence[str], rows: Sequence[Sequence[str]], empty_message: str) -> None:
        """Print the rows; without any, that there is ``empty_message``, as far as that is known."""
        if rows:
            echo_lines(columns([headings, *rows]))
        elif len(self.unanswered) < len(self.shards):
            echo(f"{empty_message}{' on the shards that answered' if self.unanswered else ''}.")

    @property
    def answered(self) -> list[str]:
        """The shards on which every step was carried out."""
        return [name for name in self.shards if name not in self.unanswered]

    def exit_if_unanswered(self) -> None:
        """End the command: with status 1 when a shard did not answer, or refused, and which did not."""
        if self.unanswered:
            done = f"Carried out on {' and '.join(self.answered)}; not" if self.answered else "Not carried out"
            again = " ".join(f"--shard {name}" for name in self.unanswered)
            left = " and ".join(self.unanswered)
            echo(f"{done} on {left}: when it answers, give the command again with {again}.", err=True)
            sys.exit(EXIT_FAILED)


def operator_name() -> str:
    """Who gives the command, as ``user@host``: the user's number where it has no name, as in containers."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def progress_reporter(shard: str) -> OnProgress:
    """Say on a terminal's stderr, once in a while, how many jobs of a shard have been looked at."""
    told_at = time.monotonic()

    def tell(key: str, looked: int) -> None:
        nonlocal told_at
        if sys.stderr.isatty() and time.monotonic() - told_at >= _PROGRESS_INTERVAL_S:
            told_at = time.monotonic()
            echo(f"{shard}: {looked:,} jobs looked at, now in {key}", err=True)

    return tell
