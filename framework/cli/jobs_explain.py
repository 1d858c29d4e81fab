"""``jobs explain``: where a job is, what it holds, why it does not run, and what will make it."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import click

from framework.admin.explain import Classes, Explainer, Explanation
from framework.admin.facts import Facts
from framework.admin.search import search, text
from framework.admin.times import lasting
from framework.cli.failure import explained
from framework.cli.on_shards import OnShards, json_option, progress, shard_option
from framework.cli.options import ModuleOption
from framework.cli.project import load_project
from framework.errors import FrameworkError
from framework.shard.shard import Shard

_NOWHERE = """\
No key of {shards} holds the job {jid}. That is so when
  - it is done, or was dropped: its last log line says which (job_status done, deduplicated, dropped, discarded)
  - it was never pushed: perform_async gave None, or raised (deduplicated, refused, a shard away)
  - it moved just then from a place that had not been looked at to one that had: run the command again"""


@click.command("explain")
@click.argument("jid")
@shard_option
@json_option
@click.option(
    "-r", "--require", "modules", type=ModuleOption(), multiple=True, help="Load this instead of workers_module."
)
@explained
def explain(jid: str, *, names: Sequence[str], as_json: bool, modules: Sequence[str]) -> None:
    """Say where the job JID is, in which position and since when, what it holds, why it does not run, and what will release it.

    Every key that may hold it is gone through in pages, on every shard; processes go on meanwhile. Reads only.

    Status 1: a shard does not answer, and the others are told of.
    """
    if not jid.strip():
        raise click.UsageError("JID is empty: give the id that perform_async returned, or the field jid of a log line.")
    on = OnShards(names)
    classes = _classes(modules)
    found: list[Explanation] = []
    states: dict[str, str] = {}

    def look(shard: Shard) -> None:
        explainer = Explainer(shard.client, shard.name, classes)
        found.extend(explainer.explain(sighting) for sighting in search(shard.client, jid, progress(shard.name)))
        state = Facts(shard.client, shard.name).status(jid)
        if state is not None:
            states[shard.name] = state

    for _ in on.each(look):
        pass
    if as_json:
        on.report({"jid": jid, "found": [_as_json(one) for one in found], "states": states})
    else:
        click.echo("\n".join(_in_words(jid, found, states, [name for name in on.shards if name not in on.unanswered])))
    on.end()


def _classes(modules: Sequence[str]) -> Classes:
    """The worker classes; a project that does not load is no reason to say nothing at 3 a.m."""
    try:
        project = load_project(modules)
    except FrameworkError as error:
        click.echo(f"The worker classes cannot be loaded, so nothing is said about them: {error}", err=True)
        return Classes()
    declarations = project.declarations
    named = {alias: declaration for declaration in declarations.values() for alias in declaration.aliases}
    return Classes({**named, **declarations}, project.settings.retired_workers)


def _in_words(jid: str, found: Sequence[Explanation], states: dict[str, str], answered: Sequence[str]) -> Iterator[str]:
    for number, one in enumerate(found):
        if number:
            yield ""
        payload = one.sighting.payload
        yield f"{jid}: {payload.get('class', 'unreadable')} on {one.shard}"
        yield f"  where     {one.where} ({text(one.sighting.place.key)})"
        if one.since is not None:
            yield f"  since     {_clock(one.since)}, {lasting(one.now - one.since)} ago"
        if one.due is not None:
            yield f"  due       {_clock(one.due)}"
        for held in one.holds:
            yield f"  holds     {held}"
        for reason in one.reasons:
            yield f"  why       {reason.why}"
            yield f"  released  by {reason.release}"
    if not found and answered:
        yield _NOWHERE.format(shards=" and ".join(answered), jid=jid)
    for shard, state in states.items():
        yield f"{'' if found else '  - '}its status on {shard}: {state}"


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(seconds))


def _as_json(one: Explanation) -> dict[str, Any]:
    sighting, payload = one.sighting, one.sighting.payload
    return {
        "shard": one.shard,
        "place": sighting.place.kind,
        "key": text(sighting.place.key),
        "name": sighting.place.name,
        "position": sighting.position,
        "of": sighting.of,
        "since": one.since,
        "due": one.due,
        "class": payload.get("class"),
        "queue": payload.get("queue"),
        "holds": list(one.holds),
        "reasons": [reason._asdict() for reason in one.reasons],
    }
