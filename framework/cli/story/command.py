"""``jobs story``: show the chain of jobs of one request or job from log lines, or the recorded event of a job."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from shlex import quote
from typing import Any

import click

from framework.cli.story.chain import JobChain, Moment, ToldBatch, ToldJob, context_of, read_chain
from framework.command_line import EXIT_FAILED, command
from framework.errors import TaskNotFoundError
from framework.feature import Late, features
from framework.terminal.log_files import LogFiles
from framework.terminal.options import json_option
from framework.terminal.output import echo, echo_json, echo_whole, reports_errors
from framework.text import format_count, format_duration
from framework.types import Payload
from framework.wire.context_fields import CALLER_ID

_RECORDED = "tasks"
_SHOW_RECORDED: Late[Any] = Late("framework.features.tasks.commands:show_recorded")
_LONGEST = 250


@click.command("story")
@click.argument("id_", metavar="ID")
@click.argument("logs", nargs=-1, metavar="[LOG]...")
@click.option(
    "--after",
    type=click.IntRange(0),
    default=0,
    help="Without LOG, begin after this message, the last of the page before.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000),
    default=1_000,
    show_default=True,
    help="Without LOG, show at most this number of messages.",
)
@json_option
@reports_errors
def story(id_: str, logs: Sequence[str], *, after: int, limit: int, as_json: bool) -> None:
    """Show what became of the job ID, or of all jobs with the correlation id ID.

    The lines of each LOG tell it: a file with log lines, also in gzip, a pattern in quotes, or - for stdin. The files may be of
    several processes, in any order, and have lines of other programs. A job stands below the job that pushed it: that is the run
    of its caller's class at the time of its push.

    Without LOG, the event of the recorded job ID and its messages are shown.

    Status 1: no line has ID, or the job is not recorded.
    """
    if not logs:
        if not any(one.name == _RECORDED for one in features()):
            raise click.UsageError("Give log files, a pattern in quotes, or - for stdin.")
        try:
            _SHOW_RECORDED.load()(id_, after, limit, as_json=as_json)
        except TaskNotFoundError as error:
            echo(
                f"{error}. The story of any job is in log files: {command(f'jobs story {quote(id_)} LOG...')}", err=True
            )
            sys.exit(EXIT_FAILED)
        return
    if not id_.strip():
        raise click.UsageError("ID is empty: give the id of a job, or the field correlation_id of a log line.")
    with LogFiles(logs) as files:
        chain = read_chain(files, id_)
    if chain is None or not (chain.jobs or chain.batches):
        echo(f"no line has the id {id_}", err=True)
        sys.exit(EXIT_FAILED)
    if as_json:
        echo_json(_chain_fields(chain))
    else:
        echo_whole(chain_lines(chain))


def chain_lines(chain: JobChain) -> Iterator[str]:
    """Yield the lines that show a chain as a tree."""
    jobs = list(chain.jobs.values())
    told = [*(job.moments for job in jobs), *(batch.moments for batch in chain.batches.values())]
    moments = [one.at for own in told for one in own]
    began, ended = min([*moments, *(job.begin for job in jobs)]), max(moments)
    runs = sum(one.status == "start" for job in jobs for one in job.moments)
    failed = sum(one.status == "fail" for job in jobs for one in job.moments)
    counts = f"{format_count(len(jobs), 'job')}, {format_count(runs, 'run')}, {failed:,} failed"
    yield f"{chain.correlation_id}: {counts}, {_span(ended - began)}"
    facts = "  ".join(f"{name}={value}" for name, value in context_of(chain).items())
    yield f"{datetime.fromtimestamp(began, UTC):%Y-%m-%d} {_clock(began)} to {_clock(ended)} UTC{f'  {facts}' if facts else ''}"
    for root in chain.roots:
        yield ""
        for job, first, others in _tree(root):
            yield from _job_lines(chain, job, first, others)
    for batch in chain.batches.values():
        if batch.owner is None and batch.moments:
            yield ""
            yield f"batch {batch.bid}"
            yield from (f"  {_clock(one.at)}  {_batch_text(one)}" for one in batch.moments)
    if chain.is_cut:
        yield "There are more lines: the first 100,000 are shown."


def _tree(root: ToldJob) -> Iterator[tuple[ToldJob, str, str]]:
    """Yield the jobs below a root with what stands before the heading of each, and before its other lines."""
    # No recursion: a chain of jobs that push themselves may be of any length.
    left = [(root, "", "")]
    while left:
        job, first, others = left.pop()
        yield job, first, others
        last = len(job.children) - 1
        for number, child in reversed(list(enumerate(job.children))):
            left.append(
                (child, f"{others}{'└─' if number == last else '├─'} ", f"{others}{'   ' if number == last else '│  '}")
            )


def _job_lines(chain: JobChain, job: ToldJob, first: str, others: str) -> Iterator[str]:
    """Yield the lines of a job; ``first`` stands before its heading, ``others`` before all else."""
    place = f"  {queue}" if (queue := job.fact("queue")) else ""
    how = {"callback": f"  callback of batch {job.batch}", "rescheduled": "  additional run"}.get(job.relation, "")
    member = f"  in batch {bid}" if (bid := job.fact("bid")) else ""
    yield f"{first}{job.worker or '(no class)'} {job.jid}{place}{member}{how}"
    branch = "│ " if job.children else "  "
    own = [(one.at, _moment_text(one)) for one in job.moments]
    if job.created_at is not None:
        caller = job.fact(CALLER_ID)
        own.append((job.created_at, f"pushed{f' by {caller}' if caller and job.relation != 'callback' else ''}"))
    own += [
        (one.at, f"batch {batch.bid}: {_batch_text(one)}")
        for batch in chain.batches.values()
        if batch.owner is job
        for one in batch.moments
    ]
    for at, text in sorted(own, key=lambda one: one[0]):
        yield f"{others}{branch}{_clock(at)}  {text}"


def _batch_text(one: Moment) -> str:
    if one.status == "batch.created":
        return f"created, with {format_count(int(one.facts.get('jobs') or 0), 'job')} at first"
    took = one.facts.get("duration_s")
    return (
        f"{one.facts.get('message') or one.status}{f', after {_span(took)}' if isinstance(took, float | int) else ''}"
    )


def _moment_text(one: Moment) -> str:
    """Return what a line says, in words."""
    write = _TEXTS.get(one.status)
    if write is not None:
        return write(one.facts)[:_LONGEST]
    return f"{one.status}{_took(one.facts)}{_colon(one.facts.get('message') if 'event_name' in one.facts else None)}"[
        :_LONGEST
    ]


def _snoozed_text(facts: Payload) -> str:
    by = facts.get("limiter") or facts.get("snoozed_by")
    return f"snoozed{_took(facts)}{f' by {by}' if by else ''}{_next_text(facts)}"


def _held_text(facts: Payload) -> str:
    waiting = facts.get("concurrency_limit_queue_size")
    return f"held: its limit is reached{f' ({waiting:,} wait)' if isinstance(waiting, int) else ''}"


def _paused_text(facts: Payload) -> str:
    reason = facts.get("pause_reason")
    return f"held: its class is paused by {facts.get('pause_control')}{f' ({reason})' if reason else ''}"


def _deferred_text(facts: Payload) -> str:
    later = facts.get("deferred_for_s")
    due = f", next try in {_span(later)}" if isinstance(later, float | int) else ""
    return f"deferred by {facts.get('job_deferred_by')}{due}"


def _moved_text(facts: Payload) -> str:
    cause, place = facts.get("cause") or facts.get("owner"), facts.get("destination")
    moved = f"{facts.get('job_status')}{_took(facts)}{f' ({cause})' if cause else ''}"
    return f"{moved}; it is in {place}" if place else moved


_TEXTS: Mapping[str, Callable[[Payload], str]] = {
    "start": lambda facts: f"started{_wait_text(facts)}",
    "done": lambda facts: f"done{_took(facts)}",
    "fail": lambda facts: f"failed{_took(facts)}: {_error_text(facts)}{_next_text(facts)}",
    "snoozed": _snoozed_text,
    "deduplicated": lambda facts: f"not pushed: a duplicate of {facts.get('duplicate-of')}",
    "concurrency_limit": _held_text,
    "paused": _paused_text,
    "deferred": _deferred_text,
    "rescheduled": lambda facts: f"pushed once more for a duplicate, as {facts.get('rescheduled_as')}",
    "dropped": lambda facts: f"dropped by {facts.get('dropped_by')}{_colon(facts.get('dropped_reason'))}",
    "interrupted": _moved_text,
    "recovered": _moved_text,
    "running": lambda facts: f"says: {facts.get('message')}",
}
"""The words for the lines of each status; a line of another one is shown by its status."""


def _took(facts: Payload) -> str:
    seconds = facts.get("duration_s")
    return f" after {_span(seconds)}" if isinstance(seconds, float | int) else ""


def _wait_text(facts: Payload) -> str:
    waited = facts.get("scheduling_latency_s", facts.get("queue_duration_s"))
    held = facts.get("concurrency_limit_buffering_duration_s")
    if not isinstance(waited, float | int):
        return ""
    at_limit = f", {_span(held)} of them at its limit" if isinstance(held, float | int) else ""
    return f" after {_span(waited)} in the queue{at_limit}"


def _error_text(facts: Payload) -> str:
    name = facts.get("exception.class") or facts.get("error_class") or "an error"
    return f"{name}{_colon(facts.get('exception.message'))}"


def _next_text(facts: Payload) -> str:
    later = facts.get("retry_in_s")
    if isinstance(later, float | int):
        return f"; next run in {_span(later)}"
    match facts.get("dead"):
        case True:
            return "; it is dead"
        case False:
            return "; it is deleted"
        case _:
            return ""


def _colon(text: object) -> str:
    return f": {text}" if text else ""


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S.%f}"[:-3]


def _span(seconds: float) -> str:
    if seconds < 1:
        return f"{1_000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else format_duration(seconds)


def _chain_fields(chain: JobChain) -> dict[str, Any]:
    return {
        "correlation_id": chain.correlation_id,
        "context": context_of(chain),
        "jobs": [_job_fields(one) for one in chain.jobs.values()],
        "batches": [_batch_fields(one) for one in chain.batches.values()],
        "is_cut": chain.is_cut,
    }


def _job_fields(job: ToldJob) -> dict[str, Any]:
    return {
        "jid": job.jid,
        "class": job.worker,
        "queue": job.fact("queue"),
        "bid": job.fact("bid"),
        "parent": None if job.parent is None else job.parent.jid,
        "relation": job.relation,
        "callback_of": job.batch or None,
        "created_at": job.created_at,
        "moments": [_moment_fields(one) for one in job.moments],
    }


def _batch_fields(batch: ToldBatch) -> dict[str, Any]:
    owner = None if batch.owner is None else batch.owner.jid
    return {"bid": batch.bid, "owner": owner, "moments": [_moment_fields(one) for one in batch.moments]}


def _moment_fields(one: Moment) -> dict[str, Any]:
    return {"at": one.at, "status": one.status, "text": _moment_text(one), "line": one.facts}
