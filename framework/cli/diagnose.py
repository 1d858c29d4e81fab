"""``diagnose``: print the likely causes of trouble, each with evidence, a remedy and what the remedy would do."""

import sys
from collections.abc import Iterator, Sequence

import click

from framework.admin.diagnosis.cause import Cause
from framework.admin.diagnosis.diagnose import alerts, diagnose
from framework.admin.diagnosis.facts import DiagnosisScope, Installation
from framework.admin.diagnosis.of_server import ROLE
from framework.admin.job_queue import unknown_queue_message
from framework.admin.queue_reader import known_queues
from framework.cli.jobs_explain import load_classes
from framework.command_line import EXIT_FAILED
from framework.terminal.options import json_option, modules_option, shard_option
from framework.terminal.output import echo, echo_json, echo_lines, refuse_unknown, reports_errors
from framework.terminal.project import refuse_unknown_class
from framework.terminal.shards import ShardCommand
from framework.text import join_names


@click.command("diagnose")
@click.option("--alert", metavar="NAME", help="Put the causes that can raise this alert first.")
@click.option("--class", "cls", metavar="CLASS", help="Name the causes that concern jobs of this class.")
@click.option("--queue", metavar="QUEUE", help="Name the causes that concern jobs of this queue.")
@shard_option
@json_option
@modules_option
@reports_errors
def diagnose_(
    *,
    alert: str | None,
    cls: str | None,
    queue: str | None,
    names: Sequence[str],
    as_json: bool,
    modules: Sequence[str],
) -> None:
    """Find out why jobs wait, fail or do not come: print the likely causes, the likeliest first.

    Each cause has its evidence, which are figures that are read now; its remedy, a command that can be pasted; and the effect that
    the remedy would have, as `jobs explain --assume` works it out.

    The command only reads, and for a few seconds at most: of long queues and sets it reads the ends and a sample. The
    rights of the role read-only suffice; with that to ACL LOG it sees refused rights too.

    Status 1: there is a cause, not everything could be looked at, or the class or queue is unknown. Status 2: the alert is unknown.
    """
    if alert is not None:
        known = sorted(alerts())
        other = f"; there are {join_names(known, len(known))}"
        refuse_unknown([alert], known, lambda name, hint: f"no alert is named {name!r}{hint or other}")
    on = ShardCommand(names, role=ROLE)
    classes, project = load_classes(modules)
    installation = Installation(on.settings, classes, None if project is None else project.router)
    found = diagnose(list(on.shards.values()), installation, DiagnosisScope(cls, queue, alert))
    for note in found.notes:
        echo(note, err=True)
    if not found.causes and not found.notes:
        _refuse_unknown(on, cls, queue, modules)
    if as_json:
        echo_json([one.as_json() for one in found.causes])
    elif found.causes:
        echo_lines(_text(found.causes))
    else:
        echo(f"No cause of trouble was found{_asked(cls, queue)} on {join_names(on.shards)}.")
    if found.causes or found.notes:
        sys.exit(EXIT_FAILED)


def _refuse_unknown(on: ShardCommand, cls: str | None, queue: str | None, modules: Sequence[str]) -> None:
    """End with status 1 if nothing has the name of the class or of the queue: a misspelt name has no causes."""
    if cls is not None:
        refuse_unknown_class(cls, modules)
    if queue is not None:
        known = {name for _, names in on.each(known_queues) for name in names}
        refuse_unknown([queue], known, lambda name, _: unknown_queue_message(name, known), status=EXIT_FAILED)


def _text(causes: Sequence[Cause]) -> Iterator[str]:
    for number, one in enumerate(causes, 1):
        if number > 1:
            yield ""
        yield f"{number}. {one.shard}: {one.cause}"
        for heading, lines in (("evidence", one.evidence), ("remedy", [one.remedy]), ("effect", [one.effect])):
            for at, line in enumerate(lines):
                yield f"   {'' if at else heading:<9} {line}"


def _asked(cls: str | None, queue: str | None) -> str:
    named = [*([f"the class {cls}"] if cls else []), *([f"the queue {queue}"] if queue else [])]
    return f" for {' and '.join(named)}" if named else ""
