"""``jobs explain``: show where a job is, what it holds, why it does not run, and the remedy."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from framework.admin.explain import Explainer, Explanation, Interruptions, KnownClasses
from framework.admin.explain_class import ClassExplainer, ClassExplanation
from framework.admin.explain_reader import Assumed, AssumptionReader, Blocker, KeptFact, ShardSnapshot, ShownFacts
from framework.admin.search import search
from framework.command_line import EXIT_FAILED
from framework.declare.declaration import Declaration
from framework.declare.request import Route
from framework.errors import ConfigurationError, FrameworkError
from framework.feature import features
from framework.route.router import Router, open_router
from framework.settings.model import RoutingRule
from framework.shard.shard import Shard
from framework.terminal.options import check_jids, json_option, modules_option, shard_option
from framework.terminal.output import echo_lines, reports_errors
from framework.terminal.project import Project, load_project, print_load_error, refuse_unknown_class
from framework.terminal.shards import ShardCommand, progress_reporter
from framework.text import decode_escaped, format_age, format_count, format_duration, format_time, format_times, visible
from framework.wire.job import DEATH_COUNT, INTERRUPTED_COUNT
from framework.wire.sub_queues import LEVELS

_NOT_FOUND_TEXT = """\
No key of {shards} holds the job {jid}. Possible reasons:
  - it has ended: its last log line says how (job_status done, deduplicated, dropped, discarded; or fail with
    dead false: a business error, or a class that keeps no dead jobs)
  - it was never pushed: perform_async returned None or raised (deduplicated, refused, a shard unavailable)
  - it moved during the scan from a key that was not yet scanned to one that was: run the command again
  - a process of Sidekiq has just fetched it: its record has the job within ten seconds"""


@click.command("explain")
@click.argument("name", metavar="JID|WORKER")
@click.option(
    "--assume",
    "assumptions",
    metavar="CHANGE",
    multiple=True,
    help="With WORKER: assume this change: limit=20, flag:NAME=50 or rule='QUERY,QUEUE,SHARD'. Repeatable.",
)
@shard_option
@json_option
@modules_option
@reports_errors
def explain(
    name: str, *, assumptions: Sequence[str], names: Sequence[str], as_json: bool, modules: Sequence[str]
) -> None:
    """Explain why the job JID does not run, or why the class WORKER makes no progress.

    For a job the answer has its place, its position and time there, the slots and locks that it holds, what blocks it, and the
    remedy. For a class: where its jobs are, the processes that serve its queue, how many arrive and end, the time until none
    waits, and what blocks them. --assume shows the answer as it would be after a change. A name that begins with a capital
    letter is a class.

    The command only reads. It scans every key that may hold the job, in pages, on every shard, while processes run.

    Status 1: no key and no status has the job, or no class has the name; or a shard does not answer, and the others are shown.
    """
    check_jids([name])
    is_class = name[:1].isupper()
    if assumptions and not is_class:
        raise click.UsageError("--assume goes with the name of a class, not with the id of a job.")
    on = ShardCommand(names)
    classes, project = load_classes(modules)
    if is_class:
        explain_class(on, name, classes, project, assumptions, modules, as_json=as_json)
    else:
        _explain_job(on, name, classes, as_json=as_json)


def _explain_job(on: ShardCommand, jid: str, classes: KnownClasses, *, as_json: bool) -> None:
    found: list[Explanation] = []
    states: dict[str, str] = {}
    kept: dict[str, dict[str, KeptFact]] = {}

    def look(shard: Shard) -> None:
        snapshot = ShardSnapshot(shard.client, shard.name)
        explainer = Explainer(snapshot, classes)
        found.extend(
            explainer.explain(sighting) for sighting in search(shard.client, jid, progress_reporter(shard.name))
        )
        state = snapshot.status(jid)
        if state is not None:
            states[shard.name] = state
        for name, fact in explainer.kept(jid).items():
            by_shard = kept.setdefault(name, {})
            if fact is not None:
                by_shard[shard.name] = fact

    for _ in on.each(look):
        pass
    known = bool(found or states or any(kept.values()))
    if as_json:
        shown = {name: {shard: one.value for shard, one in facts.items()} for name, facts in kept.items()}
        on.print_json({"jid": jid, "found": [_as_json(one) for one in found], "states": states, **shown})
    if on.answered and not (as_json and known):
        texts = [one.text for facts in kept.values() for one in facts.values()]
        echo_lines(_format_text(jid, found, states, texts, on.answered), err=not known)
    on.exit_unless(known)


def load_classes(modules: Sequence[str]) -> tuple[KnownClasses, Project | None]:
    """Load the worker classes, and the project; none when the project does not load, because Redis alone explains most."""
    try:
        project = load_project(modules)
    except FrameworkError as error:
        print_load_error(", so the answer says nothing about them", error)
        return KnownClasses(), None
    return KnownClasses.of(project.declarations.values(), project.settings), project


def _format_text(
    jid: str, found: Sequence[Explanation], states: dict[str, str], kept: Sequence[str], answered: Sequence[str]
) -> Iterator[str]:
    for number, one in enumerate(found):
        if number:
            yield ""
        yield from _found_text(jid, one)
    if not found:
        yield from _NOT_FOUND_TEXT.format(shards=" and ".join(answered), jid=visible(jid)).split("\n")
    for text in [*(f"its status on {shard}: {state}" for shard, state in states.items()), *kept]:
        yield f"{'' if found else '  - '}{text}"


def _found_text(jid: str, one: Explanation) -> Iterator[str]:
    payload = one.location.payload
    yield f"{jid}: {payload.get('class', 'unreadable')} on {one.shard}"
    yield f"  where     {one.where} ({decode_escaped(one.location.store.key)})"
    if one.since is not None:
        yield f"  since     {format_time(one.since)}, {format_duration(one.now - one.since)} ago"
    if one.due is not None:
        yield f"  due       {format_time(one.due)}"
    yield from _lines(one.origin)
    for held in one.resources:
        yield f"  holds     {held}"
    yield from _lines(one.wishes)
    if one.interruptions.stops or one.interruptions.deaths:
        yield f"  cut off   {_interruptions_text(one.interruptions)}"
    yield from _lines(one.progress)
    for reason in one.blockers:
        yield f"  why       {reason.why}"
        yield f"  released  by {reason.remedy}"


def _lines(facts: ShownFacts) -> Iterator[str]:
    return (f"  {heading:8}  {text}" for heading, text in facts.lines)


def _interruptions_text(found: Interruptions) -> str:
    counts = f"{format_times(found.stops)} at the deadline of its process, {format_times(found.deaths)} by its death"
    if found.limit is None:
        return counts
    return f"{counts}; {'no limit' if found.limit < 0 else f'{max(1, found.limit)} of either end it'}"


def _as_json(one: Explanation) -> dict[str, Any]:
    sighting, payload = one.location, one.location.payload
    return {
        "shard": one.shard,
        "place": sighting.store.kind,
        "key": decode_escaped(sighting.store.key),
        "name": sighting.store.name,
        "position": sighting.position,
        "of": sighting.total,
        "since": one.since,
        "due": one.due,
        "class": payload.get("class"),
        "queue": payload.get("queue"),
        **one.origin.fields,
        "holds": list(one.resources),
        **one.wishes.fields,
        INTERRUPTED_COUNT: one.interruptions.stops,
        DEATH_COUNT: one.interruptions.deaths,
        "max_retries_after_interruption": one.interruptions.limit,
        **one.progress.fields,
        "reasons": [reason._asdict() for reason in one.blockers],
    }


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
    assumed = Assumptions(assumptions, worker)
    if assumed.rule is not None and declaration is None:
        raise click.UsageError(f"--assume rule: the class {worker} is not loaded here; name its module with -r.")
    router = None if declaration is None or project is None else assumed.router(project)
    route = None if declaration is None or router is None else router.route(declaration)
    own = () if declaration is None or router is None else router.shards_of(declaration)

    on_shard: dict[str, Assumed] = {}

    def look(shard: Shard) -> ClassExplanation:
        counting = on_shard[shard.name] = assumed.on_shard(declaration, shard)
        snapshot = ShardSnapshot(shard.client, shard.name, counting.facts)
        explainer = ClassExplainer(snapshot, Explainer(snapshot, classes))
        queue = route.queue if route is not None and shard.name in own else None
        aliases = () if declaration is None else declaration.aliases
        return explainer.explain(worker, aliases, queue, progress_reporter(shard.name))

    found = [one for _, one in on.each(look)]
    shown = [one for one in found if one.routed or one.has_jobs or one.limit.running]
    if as_json:
        on.print_json(
            {"class": worker, "loaded": declaration is not None, "shards": [_class_json(one) for one in shown]}
        )
    else:
        for one in shown:
            lines = [] if declaration is not None or worker in classes.retired else [_NOT_LOADED]
            head, *facts = _class_text(worker, one, _route_text(one, route, own), on_shard[one.shard])
            echo_lines([head, *lines, *facts])
    on.exit_if_unanswered()
    if not shown:
        refuse_unknown_class(worker, modules)
        sys.exit(EXIT_FAILED)


def _class_text(worker: str, one: ClassExplanation, route: str, assumed: Assumed) -> Iterator[str]:
    yield f"{worker} on {one.shard}{route}"
    yield f"  jobs      {_places_text(one)}"
    if one.backlog.levels:
        yield f"  priority  {', '.join(f'{level} {one.backlog.levels[level]:,}' for level in LEVELS if one.backlog.levels[level])}"
    yield from (f"  {heading:8}  {text}" for heading, text in one.facts.lines)
    if one.backlog.oldest is not None:
        yield f"  oldest    waits for {format_age(one.now, one.backlog.oldest)}"
    yield f"  served    {_serving_text(one)}"
    yield from (f"  {heading:8}  {text}" for heading, text in assumed.lines)
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


def _route_text(one: ClassExplanation, route: Route | None, shards: Sequence[str]) -> str:
    if route is None:
        return f": queue {one.queue}" if one.queue else ""
    if one.routed:
        return f": queue {one.queue} ({f'rule {route.rule}' if route.rule is not None else 'no rule matches'})"
    return f": new jobs go to {route.queue} on {', '.join(shards)}; these stay here until they run, or migrate-jobs moves them"


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


def _class_json(one: ClassExplanation) -> Mapping[str, Any]:
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


class Assumptions:
    """The changes that an operator assumes about a class: those of the features, and a routing rule.

    Raises:
        click.UsageError: a text is no assumption.
    """

    def __init__(self, texts: Sequence[str], worker: str) -> None:
        kinds: list[type[AssumptionReader]] = [
            one.assumptions.load() for one in features() if one.assumptions is not None
        ]
        forms = f"write {', '.join(kind.form for kind in kinds)} or rule='QUERY,QUEUE,SHARD'"
        self._readers = [kind(worker, forms) for kind in kinds]
        self.rule: RoutingRule | None = None
        for text in texts:
            name, _, value = text.partition("=")
            if name == "rule" and value:
                self.rule = _read_rule(text, value)
            elif not any(one.read(text, name, value) for one in self._readers):
                raise click.UsageError(f"--assume {text!r} is no assumption: {forms}.")

    def on_shard(self, declaration: Declaration | None, shard: Shard) -> Assumed:
        """Return what counts on a shard. Raises click.UsageError, and redis errors."""
        facts: dict[str, Mapping[str, Any]] = {}
        lines: list[tuple[str, str]] = []
        for one in self._readers:
            found = one.assumed(declaration, shard, facts)
            facts |= found.facts
            lines += found.lines
        return Assumed(facts, lines)

    def router(self, project: Project) -> Router:
        """Return the router with the assumed rule before all others.

        Raises:
            click.UsageError: the rule is invalid.
        """
        if self.rule is None:
            return project.router
        rules = (self.rule, *project.settings.routing_rules)
        try:
            return open_router(project.settings.model_copy(update={"routing_rules": rules}))
        except ConfigurationError as error:
            # The rules of the project are valid: they were loaded.
            faults = "; ".join(problem.message for problem in error.problems)
            raise click.UsageError(f"--assume rule: {faults}") from error


def _read_rule(text: str, value: str) -> RoutingRule:
    # A query may have commas itself.
    parts = value.rsplit(",", 2)
    if len(parts) < 3:
        raise click.UsageError(
            f"--assume {text!r}: write rule='QUERY,QUEUE,SHARD'; an empty QUEUE is the generated name, an empty SHARD is main."
        )
    query, queue, shard = (part.strip() for part in parts)
    return RoutingRule(query, queue or None, shard or None)
