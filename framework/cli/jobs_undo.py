"""``jobs undo``: list the jobs that were deleted in the last 24 hours, and bring them back."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import click

from framework.admin.deleted_jobs import REFUSALS, DeletedJob, UndoResult, matching_deleted, undo_matching
from framework.admin.job_record import JobFilter, JobQuota
from framework.shard.shard import Shard
from framework.store.connect import server_time
from framework.terminal.jobs import bulk_filter_options, error_text, job_fields, read_filter
from framework.terminal.options import check_jids, json_option, shard_option, time_limit_option
from framework.terminal.output import echo, reports_errors
from framework.terminal.shards import ShardCommand, recorded
from framework.text import format_age

_HEADINGS = ("SHARD", "JID", "CLASS", "QUEUE", "FROM", "DELETED FOR", "ERROR")
_RESULTS = ("SHARD", "MATCHING", "BACK", "GONE", "REFUSED", "COMPLETED")


@click.command("undo")
@click.argument("jids", nargs=-1, metavar="[JID]...")
@bulk_filter_options
@click.option("--all", "everything", is_flag=True, help="Select every deleted job.")
@click.option("--yes", is_flag=True, help="Bring the selected jobs back. Without it they are listed only.")
@click.option("--most", type=click.IntRange(1), default=25, show_default=True, help="List at most this number of jobs.")
@time_limit_option
@shard_option
@json_option
@reports_errors
def undo(
    *,
    jids: Sequence[str],
    everything: bool,
    yes: bool,
    most: int,
    budget_s: float,
    names: Sequence[str],
    as_json: bool,
    **criteria: Any,
) -> None:
    """List the jobs that were deleted from sets in the last 24 hours; with --yes bring them back.

    Select jobs by their ids, by options, of which all must match, or all of them. --older-than is the time since the
    deletion.

    A job returns to the set that it was deleted from, with its time there; one that is due by then runs at once. The
    deletion has freed its lock, and its batch, workflow or caller has counted it as removed: it comes back without these.

    Status 1: no deleted job has an id, a job stays deleted, the time limit ended, or a shard does not answer.
    """
    wanted = read_filter(criteria)
    check_jids(jids)
    if bool(jids) + bool(wanted) + everything > 1:
        raise click.UsageError("Give the ids of jobs, or options that select them, or --all.")
    if yes and not (jids or wanted or everything):
        raise click.UsageError(
            "Give the ids of jobs, or options that select them, or --all: --yes alone selects nothing."
        )
    if jids:
        wanted = replace(wanted, jids=frozenset(jids))
    on = ShardCommand(names)
    if yes:
        _bring_back(on, wanted, budget_s, as_json=as_json)
    else:
        _list(on, wanted, most, as_json=as_json)
    on.exit_if_unanswered()


def _list(on: ShardCommand, wanted: JobFilter, most: int, *, as_json: bool) -> None:
    def read(shard: Shard) -> tuple[float, int, list[DeletedJob]]:
        found = matching_deleted(shard, wanted, on.settings)
        first = list(islice(found, most))
        return server_time(shard.client), len(first) + sum(1 for _ in found), first

    read_of = list(on.each(read))
    total = sum(count for _, (_, count, _) in read_of)
    jobs = [(now, one) for _, (now, _, first) in read_of for one in first]
    if as_json:
        on.print_json({"total": total, "jobs": [_fields(one) for _, one in jobs]})
    else:
        on.print_table(_HEADINGS, [_row(one, now) for now, one in jobs], "No job was deleted in the last 24 hours")
        if total > len(jobs):
            echo(f"and {total - len(jobs):,} more: --most shows more")
        if jobs:
            echo("Nothing was changed: --yes brings the selected jobs back.", err=True)
    _report_unknown(on, wanted, {one.jid for _, one in jobs} if total == len(jobs) else wanted.jids)


def _bring_back(on: ShardCommand, wanted: JobFilter, budget_s: float, *, as_json: bool) -> None:
    deadline, quota, known = time.monotonic() + budget_s, JobQuota(wanted), set[str]()

    def step(shard: Shard) -> UndoResult:
        if wanted.jids:
            known.update(one.jid for one in matching_deleted(shard, wanted, on.settings))
        return undo_matching(shard, wanted, on.settings, deadline, quota=quota)

    results = dict(on.each(recorded(step, lambda done: done.done)))
    for one in results.values():
        for name, error in one.unanswered.items():
            on.note_unanswered(name, error)
    if as_json:
        on.print_json({"results": [_result_fields(name, one) for name, one in results.items()]})
    else:
        on.print_table(_RESULTS, [_result_row(name, one) for name, one in results.items()], "")
        for name, one in results.items():
            for reason, count in one.refused.items():
                echo(f"{name}: {count:,} stay deleted: {REFUSALS[reason]}", err=True)
    _report_unknown(on, wanted, known)
    on.exit_unless(all(one.completed and not one.refused for one in results.values()))


def _report_unknown(on: ShardCommand, wanted: JobFilter, known: "set[str] | frozenset[str]") -> None:
    unknown = sorted(wanted.jids - known)
    for jid in unknown:
        echo(f"no job {jid} was deleted in the last 24 hours on {' and '.join(on.answered) or 'any shard'}", err=True)
    on.exit_unless(not unknown)


def _row(one: DeletedJob, now: float) -> Sequence[str]:
    return (
        *(one.shard, one.jid or "-", one.display_class or "(malformed)", one.queue or "-", one.place or "-"),
        *(format_age(now, one.deleted_at), error_text(one)),
    )


def _fields(one: DeletedJob) -> Mapping[str, Any]:
    return {**job_fields(one), "place": one.place, "deleted_at": one.deleted_at, "score": one.score}


def _result_row(name: str, one: UndoResult) -> Sequence[str]:
    refused = sum(one.refused.values()) + one.in_doubt
    completed = "yes" if one.completed else "no: run it again"
    return name, f"{one.matched:,}", f"{one.done:,}", f"{one.gone:,}", f"{refused:,}", completed


def _result_fields(name: str, one: UndoResult) -> Mapping[str, Any]:
    counts = ("matched", "done", "gone", "refused", "in_doubt", "completed")
    return {"shard": name, **{count: getattr(one, count) for count in counts}}
