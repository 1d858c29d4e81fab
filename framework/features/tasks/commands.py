"""``tasks``: show, cancel and retry tasks, make their tables; ``ledger``: find lost jobs."""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click
from redis.exceptions import RedisError

from framework.admin import port
from framework.command_line import EXIT_FAILED, EXIT_UNREACHABLE
from framework.errors import ShardUnavailableError, TaskDatabaseError, TaskTablesError
from framework.features.tasks.access import current, load_part
from framework.features.tasks.settings import TaskSettings
from framework.shard.shard import Shard
from framework.terminal.groups import CommandGroup
from framework.terminal.options import confirm, json_option, modules_option, yes_option
from framework.terminal.output import columns, echo, echo_json, echo_lines, reports_errors
from framework.terminal.project import load_project
from framework.terminal.shards import recorded
from framework.text import format_age, format_count, visible

if TYPE_CHECKING:
    from framework.features.tasks.ledger import Ledger, LostJob
    from framework.features.tasks.progress import JobEvent
    from framework.features.tasks.retention import Pruned
    from framework.features.tasks.task import Task

_HEADINGS = ("TASK", "TITLE", "OWNER", "AGE", "JOBS", "ENDED", "FAILED", "STATE")
_EVENT_HEADINGS = ("EVENT", "JID", "CLASS", "STATUS", "STATE", "RUNS", "REASON")
_LONGEST_REASON = 100
_MAX_COUNTED = 10_000
"""As ``framework.features.tasks.retention`` counts."""


@click.group("tasks", cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
def tasks() -> None:
    """Show tasks and how their jobs ended, cancel tasks, and push failed jobs again.

    The setting tasks.url names the database.
    """


@tasks.command("list")
@click.option("--owner", metavar="NAME", help="Show only tasks of this owner.")
@click.option("--tenant", metavar="NAME", help="Show only tasks of this tenant.")
@click.option(
    "--limit", type=click.IntRange(1, 1_000), default=50, show_default=True, help="Show at most this number of tasks."
)
@json_option
@reports_errors
def list_tasks(*, owner: str | None, tenant: str | None, limit: int, as_json: bool) -> None:
    """List tasks, the newest first."""
    name = current().store.database.name
    found: list[dict[str, Any]] = load_part("task").page_as_json(owner=owner, tenant=tenant, limit=limit)
    if as_json:
        echo_json({"tasks": found})
    elif found:
        echo_lines(columns([_HEADINGS, *map(_row, found)]))
    else:
        echo(f"{name} has no task.")


@tasks.command("show")
@click.argument("task_id", metavar="TASK")
@json_option
@reports_errors
def show_task(*, task_id: str, as_json: bool) -> None:
    """Show a task: its progress, and the number of its jobs by status."""
    facts = _task(task_id).as_json()
    if as_json:
        echo_json(facts)
        return
    progress: dict[str, Any] = facts.pop("progress")
    counts: dict[str, int] = progress.pop("counts")
    for name in ("created_at", "completed_at"):
        facts[name] = _moment(facts[name])
    shown = [*facts.items(), *progress.items(), *((f"jobs: {name}", count) for name, count in counts.items())]
    echo_lines(columns([(name, visible("-" if value is None else str(value))) for name, value in shown]))


@tasks.command("failures")
@click.argument("task_id", metavar="TASK")
@click.option("--after", type=click.IntRange(0), default=0, help="Begin after this event, the last of the page before.")
@click.option(
    "--limit", type=click.IntRange(1, 1_000), default=50, show_default=True, help="Show at most this number of jobs."
)
@json_option
@reports_errors
def list_failures(*, task_id: str, after: int, limit: int, as_json: bool) -> None:
    """List the failed jobs of a task with their reasons."""
    page = _task(task_id).failures(after=after, limit=limit)
    if as_json:
        echo_json({"failures": [one.as_json() for one in page]})
    elif page:
        echo_lines(columns([_EVENT_HEADINGS, *map(_event_row, page)]))
        if len(page) == limit:
            echo(f"The next page: --after {page[-1].id}")
    else:
        echo("No job of the task has failed." if not after else "No further job of the task has failed.")


@tasks.command("cancel")
@click.argument("task_id", metavar="TASK")
@yes_option
@reports_errors
def cancel_task(*, task_id: str, yes: bool) -> None:
    """Cancel the jobs of a task that have not ended. Jobs that wait end when their turn comes, without running."""
    task = _task(task_id)
    confirm(f"Cancel {format_count(task.progress().open, 'job')} of task {task_id}?", yes=yes)
    echo(f"{format_count(_recorded(task.cancel), 'job', 'is')} cancelled: a waiting job ends when its turn comes.")


@tasks.command("retry")
@click.argument("task_id", metavar="TASK")
@modules_option
@yes_option
@reports_errors
def retry_task(*, task_id: str, modules: Sequence[str], yes: bool) -> None:
    """Push the failed jobs of a task again.

    Status 1: the arguments of some are not stored, or their class is not loaded; nothing was pushed.
    """
    load_project(modules)
    task = _task(task_id)
    confirm(f"Push {format_count(task.progress().failed, 'failed job')} of task {task_id} again?", yes=yes)
    echo(f"{format_count(_recorded(task.retry_failed), 'job', 'is')} pushed again.")


def _recorded(act: Callable[[], int]) -> int:
    """Carry out the action on a task, whose jobs may be on any shard; its record is on main. Return the number of jobs."""
    return recorded(lambda _: act())(_main_shard())


def _main_shard() -> Shard:
    return port.current().shards["main"]


@tasks.command("migrate")
@reports_errors
def migrate() -> None:
    """Make the tables of tasks, or bring them to this release. Run it before the processes of a new release start."""
    database = current().store.database
    before, now = database.migrate()
    state = (
        "are up to date"
        if before == now
        else f"are made (revision {now})"
        if before is None
        else f"went from {before} to {now}"
    )
    echo(f"The tables of tasks in {database.name} {state}.")


@tasks.command("prune")
@click.option(
    "--older-than",
    "days",
    metavar="DAYS",
    type=click.FloatRange(0.01, 36_500),
    help="Remove tasks and events that ended at least this number of days ago. Without it, the setting tasks.keep.",
)
@click.option(
    "--archive",
    metavar="FILE",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Append the removed rows to this file, each as a line of JSON.",
)
@yes_option
@json_option
@reports_errors
def prune(*, days: float | None, archive: Path | None, yes: bool, as_json: bool) -> None:
    """Remove tasks that are complete, and events without a task whose jobs have ended, in small steps.

    A task that is not complete, and an event whose job waits or runs, always stay.
    """
    access = current()
    days = TaskSettings.of(access.settings).tasks.keep if days is None else days
    if days is None:
        raise click.UsageError("Give --older-than, or set tasks.keep: without one of them, all tasks are kept.")
    database = access.store.database
    # Loads SQLAlchemy, which the line before has found.
    retention = load_part("retention")
    with archive.open("a", encoding="utf-8") if archive else nullcontext() as lines:
        opened = retention.Retention(database, days, lines)
        confirm(f"Remove {_counted(opened.count_tasks())}, and events without a task, for good?", yes=yes)
        pruned: Pruned = opened.run()
    if as_json:
        echo_json(pruned.as_json())
    else:
        counts = ((pruned.tasks, "task"), (pruned.events, "event"), (pruned.messages, "message"))
        echo(f"Removed: {', '.join(format_count(count, noun) for count, noun in counts)}.")


def show_recorded(jid: str, after: int, limit: int, *, as_json: bool) -> None:
    """Print the event of a recorded job and its messages, for ``jobs story``. Raises as ``framework.tasks.story``."""
    event, messages = load_part("task").story(jid, after=after, limit=limit)
    if as_json:
        echo_json({**event.as_json(), "messages": [one.as_json() for one in messages]})
        return
    lines = _event_lines(event)
    for one in messages:
        fields = " ".join(f"{name}={value!r}" for name, value in one.fields.items())
        moment = datetime.fromtimestamp(one.at, UTC).isoformat(timespec="milliseconds")
        lines.append(visible(f"{moment}  {one.text}  {fields}".rstrip()))
    echo_lines(lines)


def _counted(count: int) -> str:
    return f"{'' if count < _MAX_COUNTED else 'at least '}{format_count(count, 'task')}"


def _task(task_id: str) -> "Task":
    found: Task = load_part("task").Task.get(task_id)
    return found


def _event_lines(event: "JobEvent") -> list[str]:
    """Return the lines that show the event of one job."""
    facts = event.as_json()
    del facts["messages"]
    return list(columns([(name, visible("-" if value is None else str(value))) for name, value in facts.items()]))


def _row(task: dict[str, Any]) -> Sequence[str]:
    progress: dict[str, Any] = task["progress"]
    state = "complete" if progress["is_complete"] else "runs"
    return (
        task["id"],
        visible(task["title"] or task["worker"] or "-"),
        visible(task["owner"] or "-"),
        format_age(time.time(), task["created_at"]),
        *(f"{progress[name]:,}" for name in ("total", "ended", "failed")),
        f"{state}, cancelled" if progress["is_cancelled"] else state,
    )


def _event_row(event: "JobEvent") -> Sequence[str]:
    reason = (event.reason or "-").partition("\n")[0]
    shown = reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}..."
    return (str(event.id), event.jid, event.worker, event.status, event.state, str(event.runs), visible(shown))


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


P = ParamSpec("P")
R = TypeVar("R")

_LOST_HEADINGS = ("EVENT", "JID", "CLASS", "QUEUE", "SHARD", "STATE", "CHANGED", "PAYLOAD")
_HOUR_S = 3_600.0

_grace_option = click.option(
    "--grace",
    "grace_s",
    metavar="SECONDS",
    type=click.FloatRange(0, 86_400),
    default=60.0,
    show_default=True,
    help="Leave out jobs whose events changed within the last SECONDS.",
)
_since_option = click.option(
    "--since",
    "since_h",
    metavar="HOURS",
    type=click.FloatRange(0, 8_760),
    default=24.0,
    show_default=True,
    help="Include jobs that the leader has given up as deleted within the last HOURS.",
)


def _reports_outage(command: Callable[P, R]) -> Callable[P, R]:
    """End a command with status 75 if Redis or the database does not answer."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except TaskTablesError:
            raise
        except (TaskDatabaseError, ShardUnavailableError, RedisError) as error:
            echo(error, err=True)
            sys.exit(EXIT_UNREACHABLE)

    return run


@click.group("ledger", cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
def ledger() -> None:
    """Compare the database of tasks with Redis, and enqueue recorded jobs again that Redis has lost.

    Only jobs that were pushed under the setting tasks.ledger (keep or heal) can be enqueued again.
    """


@ledger.command("diff")
@_grace_option
@_since_option
@click.option(
    "--limit", type=click.IntRange(0, 100_000), default=50, show_default=True, help="Show at most this number of jobs."
)
@json_option
@reports_errors
@_reports_outage
def diff(*, grace_s: float, since_h: float, limit: int, as_json: bool) -> None:
    """List the jobs that wait by their events, and that no key of Redis has.

    Status 1: there are some. Status 75: Redis or the database does not answer, so it is not known.
    """
    found = _lost(_open(grace_s), since_h)
    kept = sum(one.has_payload for one in found)
    if as_json:
        echo_json({"lost": len(found), "with_payload": kept, "jobs": [one.as_json() for one in found[:limit]]})
    elif found:
        echo_lines(columns([_LOST_HEADINGS, *map(_lost_row, found[:limit])]))
        echo(f"{format_count(len(found), 'job', 'is')} lost; {kept:,} of them can be enqueued again.")
    else:
        echo("No job is lost.")
    if found:
        sys.exit(EXIT_FAILED)


@ledger.command("heal")
@_grace_option
@_since_option
@yes_option
@json_option
@reports_errors
@_reports_outage
def heal(*, grace_s: float, since_h: float, yes: bool, as_json: bool) -> None:
    """Enqueue the lost jobs again, each with its id, as it was pushed.

    Jobs that were deleted by hand come back too: see the list of `ledger diff` first.

    Status 1: some have no payload, and are still lost. Status 75: Redis or the database does not answer; run it again.
    """
    opened = _open(grace_s)
    found = _lost(opened, since_h)
    if found:
        kept = sum(one.has_payload for one in found)
        confirm(f"Enqueue {kept:,} of {format_count(len(found), 'lost job')} again?", yes=yes)
    healed = recorded(lambda _: opened.heal(found), lambda done: done.enqueued)(_main_shard())
    if as_json:
        echo_json({"lost": len(found), **healed.as_json()})
    elif not found:
        echo("No job is lost.")
    else:
        echo(
            f"{format_count(healed.enqueued, 'job', 'is')} enqueued again; not enqueued: {healed.cancelled:,} of cancelled tasks, "
            f"{healed.moved:,} that changed meanwhile, {healed.without_payload:,} without a payload."
        )
    if healed.without_payload:
        sys.exit(EXIT_FAILED)


def _open(grace_s: float) -> "Ledger":
    access = current()
    opened: Ledger = load_part("ledger").Ledger(
        access.shards, access.store.database, access.settings.size_limit, grace_s=grace_s
    )
    return opened


def _lost(opened: "Ledger", since_h: float) -> "list[LostJob]":
    return [one for name in current().shards for one in opened.lost(name, given_up_s=since_h * _HOUR_S)]


def _lost_row(job: "LostJob") -> Sequence[str]:
    return (
        str(job.id),
        job.jid,
        visible(job.worker),
        visible(job.queue),
        job.shard,
        job.state,
        format_age(time.time(), job.changed_at),
        "kept" if job.has_payload else "-",
    )
