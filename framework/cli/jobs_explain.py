"""``jobs explain``: show where a job is, what it holds, why it does not run, and the remedy."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click

from framework.admin.explain import Explainer, Explanation, Interruptions, KnownClasses
from framework.admin.job_answer import KeptAnswer, find_profile, read_kept_answer
from framework.admin.job_iteration import shown_cursor
from framework.admin.search import search
from framework.admin.snapshot import ShardSnapshot
from framework.cli.jobs_explain_answer import kept_lines, wish_lines
from framework.cli.jobs_explain_class import explain_class
from framework.command_line import command
from framework.errors import FrameworkError
from framework.exit_codes import EXIT_FAILED
from framework.features.cron.payload import CronTick, tick_of
from framework.features.results.payload import call_of
from framework.shard.profile_store import JobProfile
from framework.shard.shard import Shard
from framework.telemetry.logs import shorten
from framework.telemetry.visible import visible
from framework.terminal.options import check_jids, json_option, modules_option, shard_option
from framework.terminal.output import echo_lines, reports_errors
from framework.terminal.project import Project, load_project, print_load_error
from framework.terminal.shards import ShardCommand, progress_reporter
from framework.text import decode_escaped, format_count, format_duration, format_time, format_times
from framework.wire.batch_fields import bid_of
from framework.wire.iteration_state import SavedIteration
from framework.wire.job import DEATH_COUNT, INTERRUPTED_COUNT, PROFILE
from framework.wire.workflow_fields import step_of

_MAX_CURSOR_TEXT = 100

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
    answers: dict[str, KeptAnswer] = {}
    profiles: dict[str, JobProfile] = {}

    def look(shard: Shard) -> None:
        snapshot = ShardSnapshot(shard.client, shard.name)
        explainer = Explainer(snapshot, classes)
        found.extend(
            explainer.explain(sighting) for sighting in search(shard.client, jid, progress_reporter(shard.name))
        )
        state = snapshot.status(jid)
        if state is not None:
            states[shard.name] = state
        if (answer := read_kept_answer(shard.client, jid)) is not None:
            answers[shard.name] = answer
        if (profile := find_profile(shard.client, shard.name, jid)) is not None:
            profiles[shard.name] = profile

    for _ in on.each(look):
        pass
    known = bool(found or states or answers or profiles)
    if as_json:
        kept = {
            "answers": {shard: one.as_json() for shard, one in answers.items()},
            "profiles": {shard: {"at": one.at, "duration_s": one.duration_s} for shard, one in profiles.items()},
        }
        on.print_json({"jid": jid, "found": [_as_json(one) for one in found], "states": states, **kept})
    if on.answered and not (as_json and known):
        lines = [*_format_text(jid, found, states, on.answered), *kept_lines(jid, answers, profiles, indent=not found)]
        echo_lines(lines, err=not known)
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
    jid: str, found: Sequence[Explanation], states: dict[str, str], answered: Sequence[str]
) -> Iterator[str]:
    for number, one in enumerate(found):
        if number:
            yield ""
        yield from _found_text(jid, one)
    if not found:
        yield from _NOT_FOUND_TEXT.format(shards=" and ".join(answered), jid=visible(jid)).split("\n")
    for shard, state in states.items():
        yield f"{'' if found else '  - '}its status on {shard}: {state}"


def _found_text(jid: str, one: Explanation) -> Iterator[str]:
    payload = one.location.payload
    yield f"{jid}: {payload.get('class', 'unreadable')} on {one.shard}"
    yield f"  where     {one.where} ({decode_escaped(one.location.store.key)})"
    if one.since is not None:
        yield f"  since     {format_time(one.since)}, {format_duration(one.now - one.since)} ago"
    if one.due is not None:
        yield f"  due       {format_time(one.due)}"
    if (tick := tick_of(payload)) is not None:
        yield f"  schedule  {_tick_text(tick)}"
    if bid := bid_of(payload):
        name = visible(shorten(bid))
        yield f"  batch     {name}: `{command(f'batches show {name}')}` shows its counts"
        if step := step_of(bid):
            shown = command(f"jobs workflow {visible(shorten(step[0]))}")
            yield f"  workflow  step {visible(shorten(step[1]))}: `{shown}` shows all steps"
    for held in one.resources:
        yield f"  holds     {held}"
    yield from wish_lines(payload)
    if one.interruptions.stops or one.interruptions.deaths:
        yield f"  cut off   {_interruptions_text(one.interruptions)}"
    if one.iteration is not None:
        yield f"  progress  {_progress_text(one.iteration)}"
    for reason in one.blockers:
        yield f"  why       {reason.why}"
        yield f"  released  by {reason.remedy}"


def _tick_text(tick: CronTick) -> str:
    when = "between ticks" if tick.tick is None else f"tick of {format_time(tick.tick)}"
    name = visible(shorten(tick.entry))
    return f"entry {name}, {when}: `{command(f'cron history {name}')}` shows the others"


def _interruptions_text(found: Interruptions) -> str:
    counts = f"{format_times(found.stops)} at the deadline of its process, {format_times(found.deaths)} by its death"
    if found.limit is None:
        return counts
    return f"{counts}; {'no limit' if found.limit < 0 else f'{max(1, found.limit)} of either end it'}"


def _progress_text(state: SavedIteration) -> str:
    items = format_count(state.done if state.total is None else state.total, "item")
    counted = items if state.total is None else f"{state.done:,} of {items}"
    share = f" ({100 * state.done // state.total} %)" if state.total else ""
    rate = "" if state.rate is None else f", {state.rate:,.{1 if state.rate < 100 else 0}f} a second"
    left = "" if state.eta_s is None else f", {format_duration(state.eta_s)} left"
    runs = f"{format_count(state.runs, 'run')}, {format_duration(state.runtime_s)}"
    cursor = visible(state.cursor.decode(errors="backslashreplace")[:_MAX_CURSOR_TEXT])
    return f"{counted}{share}{rate}{left}; {runs}; cursor {cursor}"


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
        "schedule": None if (tick := tick_of(payload)) is None else tick._asdict(),
        "batch": bid_of(payload) or None,
        "workflow": (step_of(bid_of(payload)) or (None, None))[0],
        "holds": list(one.resources),
        "call": None if (call := call_of(payload)) is None else call._asdict(),
        "profile": PROFILE in payload,
        INTERRUPTED_COUNT: one.interruptions.stops,
        DEATH_COUNT: one.interruptions.deaths,
        "max_retries_after_interruption": one.interruptions.limit,
        "iteration": None if one.iteration is None else _iteration_as_json(one.iteration),
        "reasons": [reason._asdict() for reason in one.blockers],
    }


def _iteration_as_json(state: SavedIteration) -> dict[str, Any]:
    return {
        "runs": state.runs,
        "cursor": shown_cursor(state),
        "runtime_s": state.runtime_s,
        "done": state.done,
        "total": state.total,
        "rate": state.rate,
        "eta_s": state.eta_s,
    }
