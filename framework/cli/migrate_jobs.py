"""``migrate-jobs``: move waiting jobs to a queue, or to the queues of today's routing rules."""

import sys
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import click
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from framework.admin.statistics import queue_names
from framework.command_line import EXIT_FAILED, EXIT_UNREACHABLE
from framework.declare import registry
from framework.errors import QueueReplacedError
from framework.migrate.plan import FixedTarget, MigrationPlan, MigrationReport, Quota, RoutedTarget, Skipped, SkipReason
from framework.migrate.queues import QueueMigrator, SetMigrator
from framework.process.own_queues import known_queues
from framework.process.record import served_queues
from framework.route.topology import ShardSplit, splits_observed
from framework.shard.redis_errors import unavailable_error
from framework.shard.shard import Shard
from framework.shard.shards import ANSWER_WITHIN_S, answering, open_shards
from framework.store.connect import COMMAND_TIMEOUT_S
from framework.store.script import is_wrong_type
from framework.terminal.options import (
    ChoiceOption,
    check_shard,
    dry_run_option,
    json_option,
    modules_option,
    rate_option,
    shard_option,
)
from framework.terminal.output import (
    columns,
    echo,
    echo_json,
    echo_lines,
    refuse_unknown,
    reports_errors,
    unknown_worker_message,
)
from framework.terminal.project import Project, load_project
from framework.terminal.shards import recorded, unserved_queue_message
from framework.text import decode_escaped, did_you_mean
from framework.types import QUEUE_NAME, QUEUE_NAME_FORMAT
from framework.wire import keys

_REASONS: dict[SkipReason, str] = {
    "unknown class": "no worker of this name is registered here; --class NAME with --to still moves its jobs",
    "retired class": "the class is in retired_workers: the process that fetches the job drops it",
    "chosen queue": "the push chose this queue (set(queue=...), retry_queue)",
    "other shard": "the rules name another shard, and this command moves jobs within one shard",
    "in transit": "the job is already on its way to another shard",
    "awaited": "something on this shard waits for the end of the job",
    "unreadable": "the payload is not a job's JSON",
    "wrong type": "the key of the target queue is not a list",
}


@dataclass
class ShardMigration:
    shard: Shard
    mover: QueueMigrator | SetMigrator
    report: MigrationReport
    queues: list[str] = field(default_factory=list[str])
    """The queues of the shard, when the migration is about queues."""
    sources: list[str] = field(default_factory=list[str])
    jobs: int = 0
    served: Collection[str] = ()
    paused: Collection[str] = ()
    splits: Sequence[ShardSplit] = ()
    """Classes with jobs left on this shard, whose limits and locks hold on another shard too."""
    error: Exception | None = None


def format_text(works: Sequence[ShardMigration], what: str, *, dry_run: bool) -> list[str]:
    moved = [
        (work.shard.name, source or "-", target, f"{jobs:,}")
        for work in works
        for (source, target), jobs in sorted(work.report.moved.items())
    ]
    left = [
        (work.shard.name, queue or "-", name or "-", f"{found.jobs:,}", reason, ", ".join(found.jids))
        for work, reason, queue, name, found in _skipped_rows(works)
    ]
    lines: list[str] = []
    if moved:
        lines += [*columns([("SHARD", "FROM", "TO", "JOBS"), *moved]), ""]
    if left:
        lines += ["Left in place:", *columns([("SHARD", "QUEUE", "CLASS", "JOBS", "WHY", "IDS"), *left]), ""]
        reasons: dict[SkipReason, None] = dict.fromkeys(reason for _, reason, *_ in _skipped_rows(works))
        lines += [*(f"{reason}: {_REASONS[reason]}" for reason in reasons), ""]
    for work in works:
        lines += [f"not scanned: {key} of {work.shard.name} has no jobs" for key in sorted(work.report.wrong_type_keys)]
    total = sum(work.report.moved.total() for work in works)
    verb = "would move" if dry_run else "moved"
    stay = sum(found.jobs for *_, found in _skipped_rows(works))
    lines.append(f"{what}: {total:,} {'job' if total == 1 else 'jobs'} {verb}, {stay:,} left in place")
    return lines


def to_json(works: Sequence[ShardMigration], what: str, *, dry_run: bool) -> dict[str, Any]:
    shards = {
        work.shard.name: {
            "moved": [
                {"from": source, "to": target, "jobs": jobs}
                for (source, target), jobs in sorted(work.report.moved.items())
            ],
            "left": [
                {"queue": queue, "class": name, "reason": reason, "jobs": found.jobs, "jids": found.jids}
                for _, reason, queue, name, found in _skipped_rows([work])
            ],
            "not_scanned": sorted(work.report.wrong_type_keys),
            "per_shard": [
                {"class": split.name, "holds": list(split.controls), "shards": list(split.shards)}
                for split in work.splits
            ],
            "still_arriving": sorted(work.report.still_receiving),
            "error": str(work.error) if work.error is not None else None,
        }
        for work in works
    }
    return {"jobs": what, "dry_run": dry_run, "shards": shards}


def _skipped_rows(works: Sequence[ShardMigration]) -> Iterator[tuple[ShardMigration, SkipReason, str, str, Skipped]]:
    for work in works:
        entries = [(*key, found) for place in work.report.skipped.values() for key, found in place.items()]
        for reason, queue, name, found in sorted(entries, key=lambda entry: (entry[1], entry[2], entry[0])):
            yield work, reason, queue, name, found


QUEUED = "queued"
_SETS = {"scheduled": keys.SCHEDULE, "retry": keys.RETRY, "dead": keys.DEAD}
_RETRY_HINT = "Run the command again when Redis answers: it continues where it stopped."
_TRANSIENT_ERRORS = (RedisConnectionError, RedisTimeoutError, ReadOnlyError, OSError)


@click.command("migrate-jobs")
@click.argument("what", type=ChoiceOption([QUEUED, *_SETS]), metavar="|".join([QUEUED, *_SETS]))
@click.option(
    "--follow-rules", is_flag=True, help="Move each job to the queue that today's routing rules name for its class."
)
@click.option("--to", metavar="QUEUE", help="Move every job to this queue.")
@click.option("--from", "sources", metavar="QUEUE", multiple=True, help="Move only jobs of this queue. Repeatable.")
@click.option("--class", "classes", metavar="NAME", multiple=True, help="Move only jobs of this class. Repeatable.")
@shard_option
@dry_run_option
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Move at most this number of jobs.")
@rate_option
@json_option
@modules_option
@reports_errors
def migrate_jobs(
    *,
    what: str,
    follow_rules: bool,
    to: str | None,
    sources: Sequence[str],
    classes: Sequence[str],
    names: Sequence[str],
    dry_run: bool,
    limit: int | None,
    rate: float | None,
    as_json: bool,
    modules: Sequence[str],
) -> None:
    """Move waiting jobs to other queues of their shard.

    The argument selects jobs in queues, or scheduled, retried or dead jobs.

    Each job moves in one atomic step, while processes run. A killed command may be run again. A job without a known class or with a
    malformed payload stays in place and is listed.

    Status 0: every movable job has moved. 1: some jobs did not move. 75: a shard does not answer; run it again.
    """
    _check_usage(follow_rules=follow_rules, to=to, sources=sources, classes=classes)
    project = load_project(modules)
    for name in names:
        check_shard(project.settings, name)
    if follow_rules:
        aliases = [alias for declaration in project.declarations.values() for alias in declaration.aliases]
        refuse_unknown(classes, [*project.workers, *aliases], unknown_worker_message)
    shards = open_shards(project.settings, role="migrate")
    allowance = Quota(limit)
    works: list[ShardMigration] = []
    with _progress_bar() as progress:
        for name in dict.fromkeys(names or shards):
            rule: Any = (
                RoutedTarget(project.router, name, project.settings.retired_workers)
                if follow_rules
                else FixedTarget(to or "", classes, project.settings.retired_workers)
            )
            works.append(
                _shard_migration(shards[name], what, MigrationPlan(rule, sources, classes), allowance, progress, rate)
            )
        late = dict(answering([work.shard for work in works], COMMAND_TIMEOUT_S if names else ANSWER_WITHIN_S))
        for work in works:
            work.error = late[work.shard]
            _run_step(work, lambda one: _find_sources(one, what, sources))
        progress.begin(sum(work.jobs for work in works))
        allowance.stop_on_signals()
        for work in works:
            _run_step(work, lambda one: _migrate(one, dry_run=dry_run))
    if allowance.stopped:
        echo("Stopped: the remaining jobs stay in their queues.", err=True)
    if follow_rules:
        for work in works:
            work.splits = list(_splits(work, project))
    _print_remarks(works, project, to, classes, sources if what == QUEUED else ())
    if as_json:
        echo_json(to_json(works, what, dry_run=dry_run))
    else:
        echo_lines(format_text(works, what, dry_run=dry_run))
    sys.exit(_status(works, allowance))


def _check_usage(*, follow_rules: bool, to: str | None, sources: Sequence[str], classes: Sequence[str]) -> None:
    if follow_rules == (to is not None):
        raise click.UsageError("Give the target of the jobs: either --to QUEUE, or --follow-rules.")
    if to is None:
        return
    if not (sources or classes):
        raise click.UsageError("Give the jobs to move: --from QUEUE, --class NAME, or both.")
    if QUEUE_NAME.fullmatch(to) is None:
        raise click.UsageError(f"--to {to!r}: {QUEUE_NAME_FORMAT}.")
    if list(sources) == [to]:
        raise click.UsageError(f"--from and --to are the same queue {to!r}.")


def _shard_migration(
    shard: Shard, what: str, plan: MigrationPlan, quota: Quota, progress: "_ProgressBar", rate: float | None
) -> ShardMigration:
    account = MigrationReport()
    kind = QueueMigrator if what == QUEUED else SetMigrator
    return ShardMigration(shard, kind(shard.client, plan, account, quota, progress, rate), account)


def _run_step(work: ShardMigration, step: Callable[[ShardMigration], None]) -> None:
    """Run a step on a shard; skip a shard that did not answer, so that the others go on."""
    if work.error is not None:
        return
    try:
        step(work)
    except QueueReplacedError as error:
        work.error = error
    except (RedisError, OSError) as error:
        work.error = unavailable_error(work.shard.name, work.shard.endpoint, error)
        work.error.__cause__ = error


def _find_sources(work: ShardMigration, what: str, sources: Sequence[str]) -> None:
    client: Any = work.shard.client
    work.served = served_queues(client)
    if what == QUEUED:
        work.paused = {name.decode(errors="replace") for name in client.smembers(keys.PAUSED)}
        for name in queue_names(client):
            try:
                work.sources.append(name.decode())
            except UnicodeDecodeError:
                work.report.wrong_type_keys.add(keys.queue(decode_escaped(name)))
        held = (keys.migrated_queue(owner.decode(errors="replace")) for owner in client.zrange(keys.REGISTRY, 0, -1))
        work.sources += [name for name in held if name is not None]
        work.queues = sorted({*work.sources})
        work.sources = [name for name in work.queues if not sources or name in sources]
    else:
        work.sources = [_SETS[what]]
    for place in list(work.sources):
        with _skip_wrong_type(work, place):
            work.jobs += work.mover.length(place)


def _migrate(work: ShardMigration, *, dry_run: bool) -> None:
    def step(_: Shard) -> int:
        _migrate_sources(work, dry_run=dry_run)
        return sum(work.report.moved.values())

    recorded(step)(work.shard)


def _migrate_sources(work: ShardMigration, *, dry_run: bool) -> None:
    for place in work.sources:
        with _skip_wrong_type(work, place):
            (work.mover.preview if dry_run else work.mover.migrate)(place)


@contextmanager
def _skip_wrong_type(work: ShardMigration, place: str) -> Generator[None]:
    """Skip a key of another type, which has no jobs, and go on with the others."""
    try:
        yield
    except ResponseError as error:
        if not is_wrong_type(error):
            raise
        work.sources = [one for one in work.sources if one != place]
        work.report.wrong_type_keys.add(keys.queue(place) if isinstance(work.mover, QueueMigrator) else place)


class _ProgressBar:
    """A progress bar on standard error with rate and time left, when that is a terminal."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._began = 0.0
        self._done = 0

    def begin(self, jobs: int) -> None:
        if not sys.stderr.isatty() or not jobs:
            return
        self._began = time.monotonic()
        self._bar = click.progressbar(
            length=jobs,
            label="jobs",
            file=sys.stderr,
            show_pos=True,
            item_show_func=lambda _: f"{self._done / max(time.monotonic() - self._began, 0.001):,.0f} a second",
            update_min_steps=max(1, jobs // 500),
        )
        self._bar.__enter__()

    def __call__(self, jobs: int) -> None:
        self._done += jobs
        if self._bar is not None:
            self._bar.update(jobs)

    def end(self) -> None:
        if self._bar is not None:
            self._bar.__exit__(None, None, None)


@contextmanager
def _progress_bar() -> Generator[_ProgressBar]:
    made = _ProgressBar()
    try:
        yield made
    finally:
        made.end()


def _print_remarks(
    works: Sequence[ShardMigration], project: Project, to: str | None, classes: Sequence[str], sources: Sequence[str]
) -> None:
    """Print remarks for the operator on standard error, apart from the report."""
    for name in classes:
        if registry.find(name) is None:
            echo(
                f"{unknown_worker_message(name, did_you_mean(name, project.workers))}; the command searched for jobs of this name",
                err=True,
            )
    there = {name for work in works for name in work.queues}
    for name in sources:
        if name not in there and not any(work.error for work in works):
            echo(f"no queue is named {name!r} there{did_you_mean(name, there)}", err=True)
    for work in works:
        if work.error is not None:
            echo(f"{work.error} {_RETRY_HINT}", err=True)
        for split in work.splits:
            echo(str(split), err=True)
        _print_queue_remarks(work, project, to)


def _splits(work: ShardMigration, project: Project) -> Iterator[ShardSplit]:
    """Yield the limited or locked classes whose jobs stay on this shard while the rules name another shard."""
    stay: dict[str, int] = {}
    for found in work.report.skipped.values():
        for (reason, _, name), left in found.items():
            worker: Any = registry.find(name) if reason == "other shard" else None
            if worker is not None:
                own = worker.declaration().wire_name
                stay[own] = stay.get(own, 0) + left.jobs
    seen = {name: {work.shard.name: f"{jobs:,} left in place"} for name, jobs in sorted(stay.items())}
    yield from splits_observed(project.router, project.declarations.values(), seen, place_template="shard {shard}")


def _print_queue_remarks(work: ShardMigration, project: Project, to: str | None) -> None:
    """Print why jobs in the queues of one shard do not run, or why more jobs still arrive."""
    shard = work.shard.name
    for queue in sorted({target for _, target in work.report.moved} - set(work.served)):
        hint = did_you_mean(queue, known_queues(project.router) | set(work.served)) if queue == to else ""
        echo(unserved_queue_message(shard, queue, hint), err=True)
    for source, target in sorted(work.report.moved):
        if source in work.paused and target not in work.paused:
            echo(f"the queue {source} of {shard} is paused, and {target} is not: its jobs run there", err=True)
    for queue in sorted(work.report.still_receiving):
        cause = "processes with the old rules push them: restart those, and run the command again"
        echo(f"jobs of other queues still arrive in the queue {queue} of {shard}; {cause}", err=True)


def _status(works: Sequence[ShardMigration], quota: Quota) -> int:
    failures = [work.error.__cause__ or work.error for work in works if work.error is not None]
    if any(isinstance(failure, _TRANSIENT_ERRORS) for failure in failures):
        return EXIT_UNREACHABLE
    undone = failures or quota.stopped or any(work.report.incomplete for work in works)
    return EXIT_FAILED if undone else 0
