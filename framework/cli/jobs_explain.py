"""``jobs explain``: show where a job is, what it holds, why it does not run, and the remedy."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click

from framework.admin.explain import Explainer, Explanation, Interruptions, KnownClasses
from framework.admin.explain_reader import KeptFact, ShardSnapshot, ShownFacts
from framework.admin.search import search
from framework.cli.jobs_explain_class import explain_class
from framework.command_line import EXIT_FAILED
from framework.errors import FrameworkError
from framework.shard.shard import Shard
from framework.terminal.options import check_jids, json_option, modules_option, shard_option
from framework.terminal.output import echo_lines, reports_errors
from framework.terminal.project import Project, load_project, print_load_error
from framework.terminal.shards import ShardCommand, progress_reporter
from framework.text import decode_escaped, format_duration, format_time, format_times, visible
from framework.wire.job import DEATH_COUNT, INTERRUPTED_COUNT

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
    classes, project = _load_classes(modules)
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
    on.exit_if_unanswered()
    if not known:
        sys.exit(EXIT_FAILED)


def _load_classes(modules: Sequence[str]) -> tuple[KnownClasses, Project | None]:
    """Load the worker classes, and the project; none when the project does not load, because Redis alone explains most."""
    try:
        project = load_project(modules)
    except FrameworkError as error:
        print_load_error(", so the answer says nothing about them", error)
        return KnownClasses(), None
    declarations = project.declarations
    named = {alias: declaration for declaration in declarations.values() for alias in declaration.aliases}
    settings = project.settings
    known = KnownClasses({**named, **declarations}, settings.retired_workers, settings.max_retries_after_interruption)
    return known, project


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
