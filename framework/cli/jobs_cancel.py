"""``jobs cancel``: end jobs that wait, and ask running ones to end; by their ids, or by a filter."""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from framework.admin.cancel import CancelResult, cancel_on_shard
from framework.admin.job_filter import JobFilter
from framework.exit_codes import EXIT_FAILED
from framework.shard.shard import Shard
from framework.terminal.jobs import filter_options, read_filter
from framework.terminal.options import (
    check_jids,
    confirm,
    dry_run_option,
    json_option,
    modules_option,
    shard_option,
    time_limit_option,
    yes_option,
)
from framework.terminal.output import echo, reports_errors
from framework.terminal.project import refuse_unknown_class
from framework.terminal.shards import ShardCommand, progress_reporter
from framework.text import format_count

_HEADINGS = ("SHARD", "MATCHING", "ENDED", "MARKED", "LEFT", "COMPLETED")
_COUNTS = ("matched", "ended", "marked", "refused", "scanned", "completed")


@click.command("cancel")
@click.argument("jids", nargs=-1, metavar="[JID]...")
@filter_options
@time_limit_option
@dry_run_option
@yes_option
@shard_option
@json_option
@modules_option
@reports_errors
def cancel(
    *,
    jids: Sequence[str],
    budget_s: float,
    dry_run: bool,
    yes: bool,
    names: Sequence[str],
    as_json: bool,
    modules: Sequence[str],
    **criteria: Any,
) -> None:
    """Cancel jobs, wherever they are: end those that wait, and ask running ones to end.

    Name jobs by their ids, or select them by options, of which all must match: then the command shows their number and asks.

    ENDED jobs waited for their time, or were held, and are gone. MARKED jobs are in a queue or in a process: they end when
    their turn comes, without running; a running job ends when it reads `self.cancelled`, and the task of an async job is
    cancelled. Processes see it within five seconds. A job that runs in Ruby ends if it is one of Sidekiq::IterableJob.

    Status 1: no job matches, a job has moved meanwhile, the time limit ended, or a shard does not answer.
    """
    wanted = read_filter(criteria)
    if bool(jids) == bool(wanted):
        raise click.UsageError("Give the ids of jobs, or options that select them.")
    check_jids(jids)
    on = ShardCommand(names)
    chosen = JobFilter(jids=frozenset(jids)) if jids else wanted
    if wanted and not (dry_run or yes):
        total = sum(one.matched for one in _cancel(on, chosen, budget_s, dry_run=True).values())
        if total:
            confirm(f"Cancel {format_count(total, 'job')} with {wanted}?", yes=yes)
    results = _cancel(on, chosen, budget_s, dry_run=dry_run)
    if wanted.cls and not on.unanswered and not any(one.matched for one in results.values()):
        refuse_unknown_class(wanted.cls, modules)
    _report(on, results, len(chosen.jids) or 1, as_json=as_json)


def _cancel(on: ShardCommand, wanted: JobFilter, budget_s: float, *, dry_run: bool) -> Mapping[str, CancelResult]:
    deadline = time.monotonic() + budget_s

    def step(shard: Shard) -> CancelResult:
        progress = progress_reporter(shard.name)
        return cancel_on_shard(shard, wanted, on.settings, deadline, progress, dry_run=dry_run)

    return dict(on.each(step))


def _report(on: ShardCommand, results: Mapping[str, CancelResult], wanted: int, *, as_json: bool) -> None:
    if as_json:
        shown = [{"shard": name, **{field: asdict(one)[field] for field in _COUNTS}} for name, one in results.items()]
        on.print_json({"results": shown})
    else:
        rows = [
            (
                *(name, f"{one.matched:,}", f"{one.ended:,}", f"{one.marked:,}", f"{one.refused:,}"),
                "yes" if one.completed else "no: run it again",
            )
            for name, one in results.items()
        ]
        on.print_table(_HEADINGS, rows, "")
    on.exit_if_unanswered()
    found = sum(one.matched for one in results.values())
    if found < wanted:
        some = "no job that waits or runs matches" if not found else f"{wanted - found} of {wanted} ids were not found"
        echo(f"{some}: it has ended, or never was, or Sidekiq fetched it in the last seconds", err=True)
        sys.exit(EXIT_FAILED)
    if any(one.refused or not one.completed for one in results.values()):
        sys.exit(EXIT_FAILED)
