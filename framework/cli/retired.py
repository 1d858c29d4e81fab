"""``retired``: count the jobs of removed classes, dropped and left."""

import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from framework.admin.statistics import QUEUE_PREFIX, count_jobs_by_class
from framework.command_line import EXIT_FAILED
from framework.process.record import served_queues
from framework.shard.shard import Shard
from framework.terminal.output import echo, refuse_unknown, reports_errors
from framework.terminal.shards import ShardCommand, progress_reporter, unserved_queue_message
from framework.wire import keys


@dataclass
class RetiredJobCounts:
    """The jobs of retired classes on one shard, by class, and the queues that running processes serve."""

    dropped: Mapping[str, int] = field(default_factory=dict[str, int])
    waiting: Mapping[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    served: Collection[str] = ()

    def unserved(self, name: str) -> list[str]:
        """Return the queues with jobs of the class that no running process serves."""
        queues = [
            place.removeprefix(QUEUE_PREFIX) for place in self.waiting.get(name, ()) if place.startswith(QUEUE_PREFIX)
        ]
        return [queue for queue in queues if queue not in self.served]


@click.command("retired")
@click.argument("names", nargs=-1, metavar="[CLASS]...")
@reports_errors
def retired(names: Sequence[str]) -> None:
    """Count the jobs that are left of each retired class, or of each CLASS.

    Retired classes are those of the setting retired_workers. For each class the report shows the reason of its removal, the jobs
    dropped and left on each shard, the queues of such jobs that no process serves, and whether the entry can be removed.

    The exit status is 1 when a shard does not answer.
    """
    on = ShardCommand((), role="retired")
    reasons = on.settings.retired_workers
    dropped = dict(on.each(_read_dropped))
    known = [*reasons, *sorted({name for counts in dropped.values() for name in counts} - reasons.keys())]
    listed = ", ".join(known) or "none"
    refuse_unknown(names, known, lambda name, hint: f"no class {name!r} is retired{hint}; retired: {listed}")
    wanted = list(dict.fromkeys(names)) or known
    counts: dict[str, RetiredJobCounts] = {}
    if wanted:
        counts = dict(on.each(lambda one: _count_waiting(one, wanted, dropped[one.name])))
    else:
        file = on.settings.config_file_label("application.yml")
        echo(f"No class is retired: the setting retired_workers ({file}) is empty.")
    for name in wanted:
        _print_class(name, reasons.get(name), {shard: counts.get(shard) for shard in on.shards})
    if on.unanswered:
        sys.exit(EXIT_FAILED)


def _read_dropped(shard: Shard) -> dict[str, int]:
    counts: Any = shard.client.hgetall(keys.RETIRED)
    return {name.decode(errors="replace"): int(count) for name, count in counts.items() if count.isdigit()}


def _count_waiting(shard: Shard, names: Sequence[str], dropped: Mapping[str, int]) -> RetiredJobCounts:
    waiting = count_jobs_by_class(shard.client, names, progress_reporter(shard.name, only_on_terminal=False))
    return RetiredJobCounts(dropped, waiting, served_queues(shard.client))


def _print_class(name: str, reason: str | None, counts: Mapping[str, RetiredJobCounts | None]) -> None:
    """Print the counts of one class; a shard without counts did not answer."""
    echo(f"{name}: {reason or 'no longer in retired_workers'}")
    width = max(map(len, counts))
    left = 0
    for shard, found in counts.items():
        if found is None:
            echo(f"  {shard:{width}}  did not answer")
            continue
        places = found.waiting[name]
        left += places.total()
        where = ": " + ", ".join(f"{place} {count}" for place, count in places.items()) if places else ""
        echo(f"  {shard:{width}}  dropped {found.dropped.get(name, 0)}, waiting {places.total()}{where}")
    answered = {shard: found for shard, found in counts.items() if found is not None}
    for shard, queue in [(shard, queue) for shard, found in answered.items() for queue in found.unserved(name)]:
        echo(f"  {unserved_queue_message(shard, queue)}")
    echo(f"  {_summary(left, configured=reason is not None, whole=len(answered) == len(counts))}")


def _summary(left: int, *, configured: bool, whole: bool) -> str:
    if left:
        return (
            f"{left} waiting" if configured else f"{left} waiting: without the class or an entry they are quarantined"
        )
    if not whole:
        return "nothing left on the shards that answered"
    return "nothing left: remove the entry" if configured else "nothing left"
