"""``jobs story``: show the life of one recorded job, with its messages."""

from datetime import UTC, datetime

import click

from framework import tasks
from framework.cli.task_commands import event_lines
from framework.telemetry.visible import visible
from framework.terminal.errors import reports_errors
from framework.terminal.options import json_option
from framework.terminal.output import echo_json, echo_lines


@click.command("story")
@click.argument("jid")
@click.option(
    "--after", type=click.IntRange(0), default=0, help="Begin after this message, the last of the page before."
)
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000),
    default=1_000,
    show_default=True,
    help="Show at most this number of messages.",
)
@json_option
@reports_errors
def story(*, jid: str, after: int, limit: int, as_json: bool) -> None:
    """Show the event of the recorded job JID, and its messages with their times.

    Status 1: the job is not recorded.
    """
    event, messages = tasks.story(jid, after=after, limit=limit)
    if as_json:
        echo_json({**event.as_json(), "messages": [one.as_json() for one in messages]})
        return
    lines = event_lines(event)
    for one in messages:
        fields = " ".join(f"{name}={value!r}" for name, value in one.fields.items())
        moment = datetime.fromtimestamp(one.at, UTC).isoformat(timespec="milliseconds")
        lines.append(visible(f"{moment}  {one.text}  {fields}".rstrip()))
    echo_lines(lines)
