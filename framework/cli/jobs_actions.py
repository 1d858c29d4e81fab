"""``jobs retry``, ``kill``, ``delete``, ``requeue`` and ``cancel``: act on jobs; ``enqueue``: push one."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from typing import Any, NamedTuple, cast

import click
from redis.exceptions import RedisError

from framework import active_job
from framework.admin.cancel import CancelResult, cancel_on_shard
from framework.admin.entries import EntryAction, EntryOutcome, JobSetKind
from framework.admin.job_record import JobFilter, JobQuota
from framework.admin.job_set import join_resume, refusal_text, resume_cursors
from framework.admin.shard_job_set import ShardJobSet, ShardResult
from framework.all_settings import load
from framework.application_worker import PushOptions
from framework.by_name import enqueue as push_by_name
from framework.command_line import EXIT_FAILED, EXIT_UNREACHABLE
from framework.declare import registry
from framework.errors import PayloadError, ShardUnavailableError
from framework.process.record import unserved_queues
from framework.route.router import MAIN
from framework.shard.shard import Shard
from framework.terminal.jobs import bulk_filter_options, jobs_of_set, read_filter, refuse_absent_class
from framework.terminal.options import (
    ChoiceOption,
    DurationOption,
    check_jids,
    check_shard,
    confirm,
    dry_run_option,
    json_option,
    modules_option,
    rate_option,
    shard_option,
    time_limit_option,
    yes_option,
)
from framework.terminal.output import echo, echo_json, refuse_unknown, reports_errors, unknown_worker_message
from framework.terminal.project import load_project, refuse_unknown_class
from framework.terminal.shards import ShardCommand, progress_reporter, recorded, unserved_queue_message
from framework.text import format_count, join_names
from framework.types import Jid
from framework.wire.json import loads
from framework.wiring.client import ProcessClient, bind

_HEADINGS = ("SHARD", "MATCHING", "DONE", "GONE", "LEFT", "COMPLETED")


class Verb(NamedTuple):
    """A command that acts on jobs: its action in each set that it takes, and the set that its filters select from by default."""

    name: str
    actions: Mapping[JobSetKind, EntryAction]
    default: JobSetKind | None
    past: str


RETRY = Verb("retry", {"dead": "retry", "retry": "retry"}, "dead", "moved to its queue")
KILL = Verb("kill", dict.fromkeys(("retry", "scheduled", "interrupted"), "kill"), "retry", "moved to the dead set")
DELETE = Verb("delete", dict.fromkeys(("scheduled", "retry", "dead", "interrupted"), "delete"), None, "deleted")
REQUEUE = Verb(
    "requeue",
    {"interrupted": "requeue", "scheduled": "enqueue_now", "retry": "enqueue_now", "dead": "enqueue_now"},
    "interrupted",
    "moved to its queue",
)


class Acted(NamedTuple):
    """One job that was named by its id, with its outcome."""

    shard: str
    place: JobSetKind
    jid: str
    queue: str
    outcome: EntryOutcome


def _make_command(verb: Verb, help_text: str) -> click.Command:
    @click.argument("jids", nargs=-1, metavar="[JID]...")
    @click.option(
        "--in",
        "place",
        type=ChoiceOption(tuple(verb.actions)),
        help=f"Act on jobs of this set. Default for a filter: {verb.default}; for ids: every set."
        if verb.default
        else "Act on jobs of this set. Default for ids: every set.",
    )
    @bulk_filter_options
    @click.option("--all", "everything", is_flag=True, help="Select every job of the set.")
    @rate_option
    @time_limit_option
    @click.option(
        "--resume",
        default="",
        metavar="TEXT",
        help="Go on where an earlier call stopped: give the text that it printed.",
    )
    @dry_run_option
    @yes_option
    @shard_option
    @json_option
    @reports_errors
    def run(
        *,
        jids: Sequence[str],
        place: str | None,
        everything: bool,
        rate: float | None,
        budget_s: float,
        resume: str,
        dry_run: bool,
        yes: bool,
        names: Sequence[str],
        as_json: bool,
        **criteria: Any,
    ) -> None:
        wanted = read_filter(criteria)
        if bool(jids) + bool(wanted) + everything != 1:
            raise click.UsageError(
                f"Give the ids of jobs, or options that select them, or --all: `jobs {verb.name}` acts on nothing else."
            )
        on = ShardCommand(names)
        if jids:
            if resume:
                raise click.UsageError("--resume goes with options that select jobs, or with --all.")
            sets = tuple(verb.actions) if place is None else (cast("JobSetKind", place),)
            _act_on_ids(on, verb, jids, sets, dry_run=dry_run, as_json=as_json)
            return
        kind = verb.default if place is None else cast("JobSetKind", place)
        if kind is None:
            raise click.UsageError(f"Add --in with the set of the jobs: {join_names(verb.actions)}.")
        bulk = _Bulk(on, verb, kind, wanted, _read_resume(resume, on))
        bulk.run(budget_s, rate, dry_run=dry_run, yes=yes, as_json=as_json)

    return click.command(verb.name, help=help_text)(run)


def _act_on_ids(
    on: ShardCommand,
    verb: Verb,
    jids: Sequence[str],
    sets: Sequence[JobSetKind],
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    acted: list[Acted] = []

    def act(shard: Shard) -> int:
        for kind in sets:
            jobs = ShardJobSet(shard, kind, on.settings)
            for one in jobs.find(*jids):
                outcome: EntryOutcome = "done" if dry_run else jobs.act_on(verb.actions[kind], one.data)
                acted.append(Acted(shard.name, kind, one.jid, one.queue, outcome))
        return sum(one.outcome == "done" for one in acted if one.shard == shard.name)

    for _ in on.each(recorded(act)):
        pass
    unknown = [jid for jid in dict.fromkeys(jids) if all(one.jid != jid for one in acted)]
    if as_json:
        on.print_json({"dry_run": dry_run, "jobs": [one._asdict() for one in acted], "unknown": unknown})
    else:
        for one in acted:
            echo(f"{one.shard}: {one.jid} ({one.place}): {_outcome_text(one, verb, dry_run=dry_run)}")
    for jid in unknown:
        echo(f"no job {jid} is in {' or '.join(sets)} of {' and '.join(on.answered) or 'any shard'}", err=True)
    on.exit_unless(not unknown and all(one.outcome == "done" for one in acted))


def _outcome_text(one: Acted, verb: Verb, *, dry_run: bool) -> str:
    match one.outcome:
        case "done":
            return f"would be {verb.past}" if dry_run else verb.past
        case "gone":
            return "not there any more: another program moved it meanwhile"
        case _:
            return f"stays as it is: {refusal_text(one.outcome, one.queue)}"


class _Bulk:
    """One action on the jobs of a set that match a filter."""

    def __init__(
        self, on: ShardCommand, verb: Verb, kind: JobSetKind, wanted: JobFilter, cursors: Mapping[str, int]
    ) -> None:
        self._on = on
        self._verb = verb
        self._kind: JobSetKind = kind
        self._wanted = wanted
        self._cursors = cursors

    def run(self, budget_s: float, rate: float | None, *, dry_run: bool, yes: bool, as_json: bool) -> None:
        if dry_run or not yes:
            quota = JobQuota(self._wanted)
            counts = dict(self._on.each(lambda shard: self._count(shard, quota)))
            total = sum(counts.values())
            if dry_run:
                self._report(
                    {name: ShardResult(matched=count, completed=True) for name, count in counts.items()},
                    as_json=as_json,
                )
                return
            if total:
                confirm(self._question(total), yes=yes)
        deadline = time.monotonic() + budget_s
        results: dict[str, ShardResult] = {}
        for name, result in self._on.each(recorded(self._step(deadline, rate), lambda done: done.done)):
            results[name] = result
            if result.failure is not None:
                self._on.note_unanswered(name, result.failure)
        self._report(results, as_json=as_json)

    def _count(self, shard: Shard, quota: JobQuota) -> int:
        jobs = ShardJobSet(shard, self._kind, self._on.settings)
        return sum(1 for _ in quota.of(jobs.matching(self._wanted, progress_reporter(shard.name))))

    def _question(self, total: int) -> str:
        criteria = f" with {self._wanted}" if self._wanted else ""
        return f"{self._verb.name.capitalize()} {format_count(total, 'job')} in {self._kind}{criteria}?"

    def _step(self, deadline: float, rate: float | None) -> Callable[[Shard], ShardResult]:
        action, quota = self._verb.actions[self._kind], JobQuota(self._wanted)

        def step(shard: Shard) -> ShardResult:
            if self._cursors and shard.name not in self._cursors:
                # The earlier call has scanned this shard to the end.
                return ShardResult(completed=True)
            jobs = ShardJobSet(shard, self._kind, self._on.settings)
            report, cursor = progress_reporter(shard.name), self._cursors.get(shard.name, 0)
            return jobs.act_on_matching(self._wanted, action, deadline, report, quota=quota, cursor=cursor, rate=rate)

        return step

    def _report(self, results: Mapping[str, ShardResult], *, as_json: bool) -> None:
        resume = ""
        for name, one in results.items():
            if not one.completed:
                resume = join_resume(resume, name, one.cursor)
        if as_json:
            fields = [_result_fields(name, one) for name, one in results.items()]
            self._on.print_json({"place": self._kind, "results": fields, "resume": resume})
        else:
            self._on.print_table(_HEADINGS, [_result_row(name, one) for name, one in results.items()], "")
            for name, one in results.items():
                for reason, count in one.refused.items():
                    echo(f"{name}: {count:,} left: {refusal_text(reason, '')}", err=True)
                if one.trimmed:
                    echo(f"{name}: {one.trimmed:,} older dead jobs were removed: the dead set is full")
            if resume:
                echo(f"To go on from there: --resume {resume}", err=True)
        self._on.exit_unless(all(one.completed and not one.refused for one in results.values()))
        if not any(one.matched for one in results.values()):
            refuse_absent_class(self._on, self._kind, self._wanted, jobs_of_set(self._on, self._kind))


def _read_resume(resume: str, on: ShardCommand) -> Mapping[str, int]:
    try:
        return resume_cursors(resume, on.shards)
    except (ValueError, LookupError) as error:
        raise click.UsageError(f"--resume {resume}: give the text that the earlier call printed.") from error


def _result_row(name: str, one: ShardResult) -> Sequence[str]:
    completed = "yes" if one.completed else "no: run it again"
    left = sum(one.refused.values()) + one.in_doubt
    return name, f"{one.matched:,}", f"{one.done:,}", f"{one.gone:,}", f"{left:,}", completed


def _result_fields(name: str, one: ShardResult) -> dict[str, Any]:
    counts = ("matched", "done", "gone", "refused", "in_doubt", "trimmed", "scanned", "completed")
    return {"shard": name, **{field: getattr(one, field) for field in counts}}


retry = _make_command(
    RETRY,
    """Retry dead or failed jobs: move them to their queues now.

    The run does not use up one of their retries. Name jobs by their ids, or select them by options, of which all must
    match: then the command shows their number and asks.

    Status 1: an id is unknown, no job there has the class of --class, a job stays as it is, the time limit ended, or a
    shard does not answer.
    """,
)
kill = _make_command(
    KILL,
    """Kill jobs that wait: move them to the dead set.

    If the dead set is full, its oldest jobs are removed. No death handler is called. Selection and status are those
    of retry.
    """,
)
delete = _make_command(
    DELETE,
    """Delete jobs of a set: they never run.

    Their locks are released. Selection and status are those of retry; options need --in.
    """,
)
requeue = _make_command(
    REQUEUE,
    """Move interrupted jobs to their queues for one more run.

    With --in, jobs of another set, before they are due. Selection and status are those of retry.
    """,
)


_CANCEL_HEADINGS = ("SHARD", "MATCHING", "ENDED", "MARKED", "LEFT", "COMPLETED")
_COUNTS = ("matched", "ended", "marked", "refused", "scanned", "completed")


@click.command("cancel")
@click.argument("jids", nargs=-1, metavar="[JID]...")
@bulk_filter_options
@rate_option
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
    rate: float | None,
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
        total = sum(one.matched for one in _cancel(on, chosen, budget_s, rate, dry_run=True).values())
        if total:
            confirm(f"Cancel {format_count(total, 'job')} with {wanted}?", yes=yes)
    results = _cancel(on, chosen, budget_s, rate, dry_run=dry_run)
    if wanted.cls and not on.unanswered and not any(one.matched for one in results.values()):
        refuse_unknown_class(wanted.cls, modules)
    _report(on, results, len(chosen.jids) or 1, as_json=as_json)


def _cancel(
    on: ShardCommand, wanted: JobFilter, budget_s: float, rate: float | None, *, dry_run: bool
) -> Mapping[str, CancelResult]:
    deadline, quota = time.monotonic() + budget_s, JobQuota(wanted)

    def step(shard: Shard) -> CancelResult:
        progress = progress_reporter(shard.name)
        return cancel_on_shard(shard, wanted, on.settings, deadline, progress, quota=quota, dry_run=dry_run, rate=rate)

    return dict(on.each(step if dry_run else recorded(step, lambda one: one.ended + one.marked)))


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
        on.print_table(_CANCEL_HEADINGS, rows, "")
    found = sum(one.matched for one in results.values())
    some = "no job that waits or runs matches" if not found else f"{wanted - found} of {wanted} ids were not found"
    on.exit_unless(found >= wanted, f"{some}: it has ended, or never was, or Sidekiq fetched it in the last seconds")
    on.exit_unless(all(one.completed and not one.refused for one in results.values()))


class _DelayOption(DurationOption):
    name = "SECONDS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value)
        return super().convert(f"{text}s" if text.isascii() and text.isdigit() else value, param, ctx)


class _Destination(NamedTuple):
    queue: str
    shards: Sequence[str]


@click.command("enqueue")
@click.argument("worker", metavar="CLASS")
@click.argument("arguments", metavar="[JSON_ARGS]", default="[]")
@click.option(
    "--in", "delay_s", type=_DelayOption(), help="Run the job after this time: 90, 90s, 15m, 2h, 1d or 1h30m."
)
@click.option(
    "--queue", metavar="NAME", help="Push to this queue. CLASS may then be any class, and the workers are not loaded."
)
@click.option("--shard", metavar="NAME", help="Push to this shard. Default: the shard of CLASS; with --queue, main.")
@click.option("--active-job", "wrapped", is_flag=True, help="Push CLASS as a job of Rails (Active Job). Needs --queue.")
@modules_option
@json_option
@reports_errors
def enqueue(
    worker: str,
    arguments: str,
    *,
    delay_s: float | None,
    queue: str | None,
    shard: str | None,
    wrapped: bool,
    modules: Sequence[str],
    as_json: bool,
) -> None:
    """Push one job of CLASS with the arguments JSON_ARGS, a JSON array, and print its id.

    CLASS is the name of the class on the wire, such as Chaos::SleepWorker. Its arguments are checked. With --queue it may also be a
    class of another program; its arguments are then checked only with -r.

    Nothing is printed when the job is dropped, because it is a duplicate or a client middleware dropped it; the status is 0.

    Status 1: the class is unknown, or its arguments are refused. Status 75: Redis does not answer.
    """
    args = _read_arguments(arguments)
    if wrapped and queue is None:
        raise click.UsageError("--active-job needs --queue: give the queue of the Rails processes.")
    client = _open_client(queue, modules)
    if queue is None:
        refuse_unknown([worker], registry.names(), _unknown_class_message, status=EXIT_FAILED)
    options: PushOptions = {}
    if queue is not None:
        options["queue"] = queue
    if shard is not None:
        options["shard"] = check_shard(client.settings, shard)
    push = active_job.enqueue if wrapped else push_by_name
    try:
        jid = push(worker, args, at=None if delay_s is None else timedelta(seconds=delay_s), **options)
    except ShardUnavailableError as error:
        echo(error, err=True)
        sys.exit(EXIT_UNREACHABLE)
    _print_result(jid, as_json=as_json)
    if jid is not None:
        _warn_if_unserved(client, _destination_of(client, worker, queue, shard))


def _unknown_class_message(name: str, hint: str) -> str:
    return (
        f"{unknown_worker_message(name, hint)}: load its module with -r, or give --queue for a class of another program"
    )


def _read_arguments(text: str) -> list[Any]:
    try:
        found = loads(text.encode(), None)
    except PayloadError as error:
        raise click.UsageError(
            f"JSON_ARGS is no JSON: {error.reason}. Write an array in quotes, such as '[1, \"fast\"]'."
        ) from None
    if not isinstance(found, list):
        raise click.UsageError(
            f"JSON_ARGS {text!r} is no JSON array. Write the arguments of one job in brackets, such as '[1]'."
        )
    return cast("list[Any]", found)


def _open_client(queue: str | None, modules: Sequence[str]) -> ProcessClient:
    """Bind the client of this process, with the worker classes where the command needs them."""
    if queue is None or modules:
        project = load_project(modules)
        client = ProcessClient(project.settings, project.router)
    else:
        client = ProcessClient(load())
    bind(client)
    return client


def _print_result(jid: Jid | None, *, as_json: bool) -> None:
    if as_json:
        echo_json({"jid": jid})
    elif jid is not None:
        echo(jid)
    if jid is None:
        echo("the job was dropped: it is a duplicate, or a client middleware dropped it", err=True)


def _destination_of(client: ProcessClient, worker: str, queue: str | None, shard: str | None) -> _Destination:
    found = registry.find(worker)
    declaration = None if found is None else found.declaration()
    if declaration is None:
        return _Destination(queue or "", (shard or MAIN,))
    shards = client.shards_of(declaration) if shard is None else (shard,)
    return _Destination(queue or client.route(declaration).queue, shards)


def _warn_if_unserved(client: ProcessClient, at: _Destination) -> None:
    """Say on stderr that no running process serves the queue: a script may name the wrong one."""
    for shard in at.shards:
        # The job is written: what this look finds decides nothing.
        with suppress(RedisError, OSError):
            for queue in unserved_queues(client.shards[shard].client, [at.queue]):
                echo(unserved_queue_message(shard, queue), err=True)
