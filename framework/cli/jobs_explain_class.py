"""``jobs explain WORKER``: say why a class makes no progress, which processes serve it, and how fast its jobs come and go."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from framework.admin.explain import Explainer, KnownClasses
from framework.admin.explain_class import ClassExplainer, ClassExplanation
from framework.admin.explain_reader import Blocker, ShardSnapshot
from framework.cli.assumptions import AssumedLimits, read_assumptions
from framework.command_line import EXIT_FAILED
from framework.declare.request import Route
from framework.shard.shard import Shard
from framework.terminal.output import echo_lines
from framework.terminal.project import Project, refuse_unknown_class
from framework.terminal.shards import ShardCommand, progress_reporter
from framework.text import format_age, format_count, format_duration
from framework.wire.sub_queues import LEVELS

_MOST_PROCESSES = 5
_NEVER = float("inf")

_NOT_LOADED = "  class     not loaded here, so its route and former names are not known: name its module with -r"


def explain_class(
    on: ShardCommand,
    name: str,
    classes: KnownClasses,
    project: Project | None,
    assumptions: Sequence[str],
    modules: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """Print the explanation of a class on each shard to which its route leads, or that has jobs of it."""
    declaration = (classes.declarations or {}).get(name)
    worker = name if declaration is None else str(declaration.wire_name)
    assumed = read_assumptions(assumptions, worker)
    if assumed.rule is not None and declaration is None:
        raise click.UsageError(f"--assume rule: the class {worker} is not loaded here; name its module with -r.")
    route = None if declaration is None or project is None else assumed.router(project).route(declaration)

    limits_of: dict[str, AssumedLimits] = {}

    def look(shard: Shard) -> ClassExplanation:
        limits = limits_of[shard.name] = assumed.limits(worker, declaration, shard)
        assumed_facts = {"flags": assumed.flags, "concurrency": limits.counted}
        snapshot = ShardSnapshot(shard.client, shard.name, assumed_facts)
        explainer = ClassExplainer(snapshot, Explainer(snapshot, classes))
        queue = route.queue if route is not None and route.shard == shard.name else None
        aliases = () if declaration is None else declaration.aliases
        return explainer.explain(worker, aliases, queue, progress_reporter(shard.name))

    found = [one for _, one in on.each(look)]
    shown = [one for one in found if one.routed or one.has_jobs or one.limit.running]
    if as_json:
        on.print_json({"class": worker, "loaded": declaration is not None, "shards": [_as_json(one) for one in shown]})
    else:
        for one in shown:
            lines = [] if declaration is not None or worker in classes.retired else [_NOT_LOADED]
            head, *facts = _format_text(worker, one, route, limits_of[one.shard])
            echo_lines([head, *lines, *facts])
    on.exit_if_unanswered()
    if not shown:
        refuse_unknown_class(worker, modules)
        sys.exit(EXIT_FAILED)


def _format_text(worker: str, one: ClassExplanation, route: Route | None, limits: AssumedLimits) -> Iterator[str]:
    yield f"{worker} on {one.shard}{_route_text(one, route)}"
    yield f"  jobs      {_places_text(one)}"
    if one.backlog.levels:
        yield f"  priority  {', '.join(f'{level} {one.backlog.levels[level]:,}' for level in LEVELS if one.backlog.levels[level])}"
    yield from (f"  {heading:8}  {text}" for heading, text in one.facts.lines)
    if one.backlog.oldest is not None:
        yield f"  oldest    waits for {format_age(one.now, one.backlog.oldest)}"
    yield f"  served    {_serving_text(one)}"
    if limits.text:
        yield f"  limit     {limits.text}"
    yield f"  runs      {_runs_text(one)}"
    if one.rates.arriving is not None:
        yield f"  arrive    {one.rates.arriving:,.1f} a minute"
    yield f"  empty     {_empty_text(one)}"
    reasons = list(_reasons(one))
    for queue, blocker in reasons:
        yield f"  why       {f'{queue}: ' if queue and len(one.blockers) > 1 else ''}{blocker.why}"
        yield f"  released  by {blocker.remedy}"
    if not reasons:
        unknown = "no job names its queue, so it is not known whether a process serves it; nothing else blocks it"
        yield f"  why       {unknown if one.serving is None else 'nothing blocks it'}"


def _reasons(one: ClassExplanation) -> Iterator[tuple[str | None, Blocker]]:
    """Yield the blockers of its waiting jobs with their queues, and then why others do not end, without one."""
    yield from ((queue or None, blocker) for queue, blockers in one.blockers.items() for blocker in blockers)
    yield from ((None, blocker) for blocker in one.failures)


def _route_text(one: ClassExplanation, route: Route | None) -> str:
    if route is None:
        return f": queue {one.queue}" if one.queue else ""
    if one.routed:
        return f": queue {one.queue} ({f'rule {route.rule}' if route.rule is not None else 'no rule matches'})"
    return (
        f": new jobs go to {route.queue} on {route.shard}; these stay here until they run, or migrate-jobs moves them"
    )


def _places_text(one: ClassExplanation) -> str:
    places = [f"{place} {count:,}" for place, count in sorted(one.backlog.places.items())]
    held = [f"held by its limit or pause {one.backlog.held:,}"] if one.backlog.held else []
    return ", ".join([*places, *held]) or "none"


def _serving_text(one: ClassExplanation) -> str:
    limit = "" if one.limit.limit is None else f"; its limit: {one.limit.usage}"
    if one.serving is None:
        return f"not known: no job of it names its queue{limit}"
    if not one.serving:
        return f"by no process{limit}"
    named = [f"{process.identity} ({process.busy}/{process.slots} busy)" for process in one.serving[:_MOST_PROCESSES]]
    more = f" and {len(one.serving) - _MOST_PROCESSES:,} more" if len(one.serving) > _MOST_PROCESSES else ""
    return f"by {', '.join(named)}{more}{limit}"


def _runs_text(one: ClassExplanation) -> str:
    runs = one.runs
    mean = "" if runs.mean_s is None else f", {runs.mean_s:,.3g} s each"
    window = format_duration(runs.minutes * 60)
    return f"{one.rates.ending:,.1f} a minute in {window} ({runs.processed:,}, {runs.failed:,} failed{mean})"


def _empty_text(one: ClassExplanation) -> str:
    if not one.backlog.waiting:
        return "no job waits"
    at_once, slots = one.soonest_s, one.slots
    soonest = (
        ""
        if at_once is None or slots is None
        else f"; at best {_duration_text(at_once)}, with {format_count(slots, 'slot')} for its jobs alone"
    )
    rates = one.rates
    if rates.empty_in_s is None:
        return f"its jobs wait for less than a minute{soonest}"
    return f"{_duration_text(rates.empty_in_s)} at these rates{soonest}"


def _duration_text(seconds: float) -> str:
    return "never" if seconds == _NEVER else f"in {format_duration(seconds)}"


def _finite(seconds: float | None) -> float | None:
    return None if seconds == _NEVER else seconds


def _as_json(one: ClassExplanation) -> Mapping[str, Any]:
    return {
        "shard": one.shard,
        "queue": one.queue or None,
        "routed": one.routed,
        "places": dict(one.backlog.places),
        "held": one.backlog.held,
        "priorities": {level: one.backlog.levels[level] for level in LEVELS if one.backlog.levels[level]},
        **one.facts.fields,
        "waiting": one.backlog.waiting,
        "oldest": one.backlog.oldest,
        "processes": None
        if one.serving is None
        else [{"identity": seen.identity, "busy": seen.busy, "slots": seen.slots} for seen in one.serving],
        "limit": one.limit.limit,
        "slots": one.slots,
        "runs": one.runs.processed,
        "failed": one.runs.failed,
        "observed_s": one.runs.minutes * 60,
        "errors": {place: dict(errors) for place, errors in one.backlog.errors.items() if errors},
        "mean_s": one.runs.mean_s,
        "arriving_per_minute": one.rates.arriving,
        "ending_per_minute": one.rates.ending,
        "empty_in_s": _finite(one.rates.empty_in_s),
        "never_empty": one.rates.empty_in_s == _NEVER,
        "capacity_per_minute": one.capacity,
        "soonest_s": _finite(one.soonest_s),
        "reasons": [{"queue": queue, **blocker._asdict()} for queue, blocker in _reasons(one)],
    }
