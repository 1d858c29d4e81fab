"""Find classes and queues with jobs on several shards although a limit or lock is kept per shard.

Pure: from rules, workers and observed jobs to findings. By routing rules a class has one shard. Its jobs are on two if a
former name is routed elsewhere, the rules have changed, or a push chose the shard (``set(shard=...)``).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from framework.command_line import command
from framework.declare.declaration import Declaration
from framework.messages import join_names
from framework.route.router import Router


class ShardSplit(NamedTuple):
    """Describe a class or queue with jobs on several shards: the controls kept per shard, and the reason for each shard."""

    name: str
    place: str
    controls: tuple[str, ...]
    shards: Mapping[str, str]
    limited: bool

    def __str__(self) -> str:
        where = "; ".join(f"{shard}: {why}" for shard, why in self.shards.items())
        advice: list[str] = []
        if self.limited:
            first = next(iter(self.shards))
            advice.append(
                f"up to {len(self.shards)} times as many run: give each shard its share with "
                f"`{command(f'jobs limits set {self.name} N --shard {first} --reason TEXT --for 1d')}`"
            )
        if len(self.controls) > int(self.limited):
            advice.append("equal jobs run at the same time, one on each shard: perform must allow that")
        return (
            f"{self.name} ({' and '.join(self.controls)}) has jobs on shards {' and '.join(self.shards)} ({where}), and each shard "
            f"keeps its limits and locks by itself. Until one shard has all its jobs, {'; '.join(advice)}"
        )


def per_shard_controls(declaration: Declaration) -> tuple[tuple[str, ...], bool]:
    """Return the limits and locks of a class that each shard keeps by itself, and whether one is a limit."""
    limit, most = declaration.facts.get("concurrency_limit"), declaration.facts.get("max_running_jobs")
    limits = [
        f"{name} = {'a callable' if callable(value) else value}"
        for name, value in (("concurrency_limit", limit), ("max_running_jobs", most))
        if value not in (None, 0)
    ]
    locks = [] if declaration.deduplicate is None else ["idempotent" if declaration.idempotent else "deduplicate"]
    return (*limits, *locks), bool(limits)


# Decision 20: limits and locks are not spread over shards, so each shard would allow the whole limit.
def splits_by_rules(
    router: Router, declarations: Iterable[Declaration], queue_limits: Collection[str] = (), *, source: str
) -> Iterator[ShardSplit]:
    """Yield classes with a former name routed to another shard, and limited queues routed to several shards.

    ``source`` is the file of the setting ``limits``.
    """
    queues: dict[str, dict[str, list[str]]] = {}
    for declaration in declarations:
        name, route = declaration.wire_name, router.route(declaration)
        shards = {route.shard: "its route"}
        for queue in {route.queue, declaration.retry_queue or route.queue}.intersection(queue_limits):
            queues.setdefault(queue, {}).setdefault(route.shard, []).append(name)
        for alias in declaration.aliases:
            former = router.route_of_alias(declaration, alias)
            if former.queue in queue_limits:
                queues.setdefault(former.queue, {}).setdefault(former.shard, []).append(alias)
            shards.setdefault(former.shard, f"the route of its former name {alias}")
        holds, limited = per_shard_controls(declaration)
        if holds and len(shards) > 1:
            yield ShardSplit(name, f"{declaration.qualified_name}: aliases", holds, shards, limited)
    for queue, users in sorted(queues.items()):
        if len(users) > 1:
            why = {shard: f"jobs of {join_names(names, max_names=5)} go there" for shard, names in users.items()}
            yield ShardSplit(
                f"queue/{queue}", f"{source}: limits.{queue}", (f"limits of the queue {queue}",), why, limited=True
            )


def splits_observed(
    router: Router,
    declarations: Iterable[Declaration],
    observed: Mapping[str, Mapping[str, str]],
    *,
    place_template: str,
) -> Iterator[ShardSplit]:
    """Yield classes with jobs seen on another shard than their route's. ``observed`` maps class and shard to the places."""
    for declaration in declarations:
        holds, limited = per_shard_controls(declaration)
        route = router.route(declaration)
        elsewhere = {
            shard: where for shard, where in observed.get(declaration.wire_name, {}).items() if shard != route.shard
        }
        if holds and elsewhere:
            shards = {route.shard: "its route", **elsewhere}
            yield ShardSplit(
                declaration.wire_name, place_template.format(shard=next(iter(elsewhere))), holds, shards, limited
            )


def split_names(router: Router, declarations: Iterable[Declaration], shard: str) -> dict[str, str]:
    """Map names of jobs on ``shard`` to their class, for classes that another shard limits or locks."""
    found: dict[str, str] = {}
    for declaration in declarations:
        if per_shard_controls(declaration)[0] and router.route(declaration).shard != shard:
            found |= dict.fromkeys((declaration.wire_name, *declaration.aliases), declaration.wire_name)
    return found


def format_counts(places: Mapping[str, int]) -> str:
    """Return where jobs were seen and how many, such as "queue mail 3, retry 1"."""
    return ", ".join(f"{place} {count:,}" for place, count in places.items())
