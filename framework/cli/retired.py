"""``retired``: what became of the jobs of classes that were removed, and what is left of them."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click
from redis.exceptions import RedisError

from framework.admin.job_counts import QUEUE_PREFIX, count_jobs_by_class
from framework.cli.errors import refuse_unknown, reports_errors
from framework.cli.terminal import echo
from framework.command_line import command
from framework.exit_codes import EXIT_FAILED
from framework.process.record import served_queues
from framework.settings.load import load
from framework.shard.redis_errors import unavailable_error
from framework.shard.shard import Shard
from framework.wire import keys
from framework.wiring.client import open_shards

_PROGRESS_INTERVAL_S = 2.0


@dataclass
class RetiredJobCounts:
    """What was seen on one shard: jobs dropped and jobs left, by class, and the queues that running processes serve."""

    shard: Shard
    dropped: dict[str, int] = field(default_factory=dict[str, int])
    waiting: Mapping[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    served: Collection[str] = ()
    failed: bool = False

    def unserved(self, name: str) -> list[str]:
        """The queues in which jobs of the class wait for nobody."""
        queues = [
            place.removeprefix(QUEUE_PREFIX) for place in self.waiting.get(name, ()) if place.startswith(QUEUE_PREFIX)
        ]
        return [queue for queue in queues if queue not in self.served]


@click.command("retired")
@click.argument("names", nargs=-1, metavar="[CLASS]...")
@reports_errors
def retired(names: Sequence[str]) -> None:
    """Show what is left of each retired class, or of each CLASS.

    Retired classes are those of the setting retired_workers. It says why a class was removed, how many of its jobs were dropped
    on each shard, how many are left, also in queues that no process serves, and whether its entry can go.

    The exit status is 1 when a shard does not answer.
    """
    settings = load()
    reasons = settings.retired_workers
    sights = [RetiredJobCounts(shard) for shard in open_shards(settings, role="retired").values()]
    for sight in sights:
        _run_step(sight, _read_dropped)
    known = [*reasons, *sorted({name for sight in sights for name in sight.dropped} - reasons.keys())]
    listed = ", ".join(known) or "none"
    refuse_unknown(names, known, lambda name, hint: f"no class {name!r} is retired{hint}; retired: {listed}")
    wanted = list(dict.fromkeys(names)) or known
    if not wanted:
        echo(
            f"No class is retired: the setting retired_workers ({settings.config_file_label('application.yml')}) is empty."
        )
    for sight in sights:
        if wanted and not sight.failed:
            _run_step(sight, lambda one: _count_waiting(one, wanted))
    for name in wanted:
        _print_class(name, reasons.get(name), sights)
    if any(sight.failed for sight in sights):
        sys.exit(EXIT_FAILED)


def _run_step(sight: RetiredJobCounts, step: Callable[[RetiredJobCounts], None]) -> None:
    """Do one step with a shard; one that does not answer is told of and left out, so that the others are seen."""
    try:
        step(sight)
    except (RedisError, OSError) as error:
        sight.failed = True
        echo(str(unavailable_error(sight.shard.name, sight.shard.endpoint, error)), err=True)


def _read_dropped(sight: RetiredJobCounts) -> None:
    counts: Any = sight.shard.client.hgetall(keys.RETIRED)
    sight.dropped = {name.decode(errors="replace"): int(count) for name, count in counts.items() if count.isdigit()}


def _count_waiting(sight: RetiredJobCounts, names: Sequence[str]) -> None:
    told_at = time.monotonic()

    def tell(place: str, looked: int) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= _PROGRESS_INTERVAL_S:
            told_at = time.monotonic()
            echo(f"{sight.shard.name}: {looked:,} jobs looked at, now in {place}", err=True)

    sight.waiting = count_jobs_by_class(sight.shard.client, names, tell)
    sight.served = served_queues(sight.shard.client)


def _print_class(name: str, reason: str | None, sights: Sequence[RetiredJobCounts]) -> None:
    echo(f"{name}: {reason or 'no longer in retired_workers'}")
    width = max(len(sight.shard.name) for sight in sights)
    left = 0
    for sight in sights:
        if sight.failed:
            echo(f"  {sight.shard.name:{width}}  did not answer")
            continue
        places = sight.waiting[name]
        left += places.total()
        where = ": " + ", ".join(f"{place} {count}" for place, count in places.items()) if places else ""
        echo(f"  {sight.shard.name:{width}}  dropped {sight.dropped.get(name, 0)}, waiting {places.total()}{where}")
    for shard, queue in [(sight.shard.name, queue) for sight in sights for queue in sight.unserved(name)]:
        way_out = f"start one with `{command(f'worker --shard {shard} -q {queue}')}`"
        echo(f"  no running process of {shard} serves the queue {queue}: {way_out}")
    echo(f"  {_summary(left, configured=reason is not None, whole=not any(sight.failed for sight in sights))}")


def _summary(left: int, *, configured: bool, whole: bool) -> str:
    if left:
        return f"{left} waiting" if configured else f"{left} waiting: they fail, unless the class is back"
    if not whole:
        return "nothing left on the shards that answered"
    return "nothing left: remove the entry" if configured else "nothing left"
