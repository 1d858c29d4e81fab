"""``shards``: move the waiting jobs of a class, a queue, a namespace or a shard to another shard, and back."""

import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast, get_args

import click
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, RedisError, ResponseError

from framework.all_settings import Settings, load
from framework.command_line import EXIT_FAILED, EXIT_OK, EXIT_UNREACHABLE, command
from framework.declare import registry
from framework.errors import ShardUnavailableError, TargetRefusedError
from framework.features.batches.store import list_batches
from framework.features.moves.mover import MoveProgress, Mover
from framework.features.moves.moves import MoveCounts, ShardMoves, check_distinct, passes
from framework.features.moves.records import MoveRecord
from framework.migrate.plan import MigrationReport, Quota, SkipReason
from framework.route.route_moves import MovableJob, MoveKind
from framework.shard.redis_errors import unavailable_error
from framework.shard.shard import Shard
from framework.shard.shards import answering, open_shards
from framework.terminal.groups import CommandGroup
from framework.terminal.options import check_shard, dry_run_option, json_option, modules_option, rate_option
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
from framework.terminal.shards import recorded
from framework.text import format_count, format_duration
from framework.wire import keys

_PASS_WAIT_S = 0.5
_PROGRESS_INTERVAL_S = 1.0
_KEPT_PERIOD_S = 2.0
"""How often a drain that waits looks at the shard."""
_RUN_AGAIN = "Run the command again when Redis answers: it continues."

REASONS: Mapping[SkipReason, str] = {
    "unknown class": "no worker of this name is registered here; shards move --class NAME still moves its jobs",
    "in transit": "the job is due, and on its way to another shard already",
    "awaited": "a batch, a workflow or an entry of the schedule waits on this shard for the end of the job, which runs here",
    "unreadable": "the payload is not a job's JSON",
}


@click.group("shards", cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
def shards() -> None:
    """Move waiting jobs to another shard while producers and processes run."""


@dataclass
class _Plan:
    """One move from one shard: its record, and what waits there."""

    record: MoveRecord
    report: MigrationReport = field(default_factory=MigrationReport)

    @property
    def waiting(self) -> int:
        return self.report.moved.total()

    @property
    def stays(self) -> dict[tuple[SkipReason, str, str], tuple[int, list[str]]]:
        """The jobs that stay, and the ids of a few, by reason, queue and class."""
        found: dict[tuple[SkipReason, str, str], tuple[int, list[str]]] = {}
        for place in self.report.skipped.values():
            for key, skipped in place.items():
                jobs, jids = found.get(key, (0, []))
                found[key] = jobs + skipped.jobs, [*jids, *skipped.jids][:3]
        return found


@shards.command("move")
@click.option("--class", "class_name", metavar="NAME", help="Move the jobs of this class.")
@click.option("--queue", metavar="Q", help="Move the jobs of this queue.")
@click.option("--namespace", metavar="NS", help="Move the jobs of the classes of this namespace.")
@click.option("--shard", metavar="S", help="Move all jobs of this shard.")
@click.option("--to", "target", metavar="SHARD", required=True, help="Move them to this shard.")
@click.option(
    "--percent",
    type=click.IntRange(1, 100),
    default=100,
    show_default=True,
    help="Move this part of the jobs: the id of a job decides.",
)
@dry_run_option
@rate_option
@json_option
@modules_option
@reports_errors
def move(
    *,
    class_name: str | None,
    queue: str | None,
    namespace: str | None,
    shard: str | None,
    target: str,
    percent: int,
    dry_run: bool,
    rate: float | None,
    as_json: bool,
    modules: Sequence[str],
) -> None:
    """Move waiting jobs to another shard, and let new ones go there.

    Queued, held, scheduled, retried, interrupted and dead jobs move in order, with their locks, cursors and states. Running jobs
    end where they are. The move stays in force until it is undone. A killed command may be run again: until then processes of both
    shards carry the move on.

    Status 0: every movable job has moved. 1: the target refuses jobs, or another move contradicts this one. 75: a shard does not
    answer; run it again.
    """
    given = {"class": class_name, "queue": queue, "namespace": namespace, "shard": shard}
    chosen = [(kind, name) for kind in get_args(MoveKind) if (name := given[kind]) is not None]
    if len(chosen) != 1:
        raise click.UsageError("Give what moves: one of --class NAME, --queue Q, --namespace NS and --shard S.")
    ((kind, name),) = chosen
    project = load_project(modules)
    for one in (target, *([name] if kind == "shard" else [])):
        check_shard(project.settings, one)
    if name == target and kind == "shard":
        raise click.UsageError(f"--shard and --to are the same shard {target!r}.")
    if kind == "class" and (found := registry.find(name)) is not None:
        name = found.declaration().wire_name
    session = _Session(project.settings, as_json=as_json)
    session.require(target, *([name] if kind == "shard" else []))
    sources = [name] if kind == "shard" else [one for one in session.answering if one != target]
    plans = session.plans(kind, name, sources, target, percent, project, dry_run=dry_run)
    if not plans and kind == "class":
        refuse_unknown([name], project.workers, unknown_worker_message)
    if not plans:
        echo(f"no shard but {target} has jobs of the {kind} {name}, and no rule sends any there", err=True)
    elif dry_run:
        session.show_preview(plans)
    else:
        sys.exit(session.carry_out([plans], rate=rate))


@shards.command("drain")
@click.argument("source", metavar="SHARD")
@dry_run_option
@click.option(
    "--wait", "waits", is_flag=True, help="Wait until running jobs, batches and workflows on SHARD have ended."
)
@rate_option
@json_option
@modules_option
@reports_errors
def drain(
    source: str, *, dry_run: bool, waits: bool, rate: float | None, as_json: bool, modules: Sequence[str]
) -> None:
    """Move the waiting jobs of SHARD to the shards that the routing rules name for their classes.

    No rule may name the shard any more. Jobs of unknown classes stay and are listed. Members of batches and workflows run on SHARD:
    with --wait the command shows how many are left, moves what still comes, and ends when SHARD has none of them.
    """
    project = load_project(modules)
    check_shard(project.settings, source)
    session = _Session(project.settings, as_json=as_json)
    session.require(source)
    project.router.use_moves(session.moves.route_moves)
    routes = {name: project.router.route(declaration).shard for name, declaration in project.declarations.items()}
    here = sorted(name for name, one in project.declarations.items() if source in project.router.shards_of(one))
    if here:
        shown = ", ".join(here[:5]) + (f" and {len(here) - 5} more" if len(here) > 5 else "")
        echo(
            f"the rules still send jobs to {source}: of {shown}. Name another shard in config/routing.yml and deploy it, or run "
            f"`{command('shards')} move --shard {source} --to SHARD`.",
            err=True,
        )
        sys.exit(EXIT_FAILED)
    session.require(*routes.values())

    def plans() -> list[_Plan]:
        return [
            plan
            for name, shard in sorted(routes.items())
            for plan in session.plans("class", name, [source], shard, 100, project, dry_run=dry_run)
        ]

    first = plans()
    if dry_run:
        session.show_preview(first)
    elif first or waits:
        sys.exit(session.carry_out(session.rounds(first, source, plans) if waits else [first], rate=rate))
    else:
        echo(f"{source} has no waiting job of a known class", err=True)


@shards.command("undo")
@click.argument("move_id", metavar="ID")
@rate_option
@json_option
@modules_option
@reports_errors
def undo(move_id: str, *, rate: float | None, as_json: bool, modules: Sequence[str]) -> None:
    """Move the jobs of the move ID back, also while it goes on.

    What it covers goes back to the former shard, also jobs that were pushed to the new one. A reversal that was cut off goes on.
    """
    session = _Session(load_project(modules).settings, as_json=as_json)
    record = session.moves.find(move_id)
    if record is None:
        known = [one.id for one in session.moves.records]
        refuse_unknown([move_id], known, lambda one, near: f"no move has the id {one!r}{near}", status=EXIT_FAILED)
        return
    session.require(record.source, record.target)
    if record.state == "undone":
        session.show([record])
        return
    plan = _Plan(record if record.is_undo else session.moves.reversed(record))
    if not record.is_undo:
        session.preview(plan)
    sys.exit(session.carry_out([[plan]], rate=rate))


@shards.command("status")
@json_option
@reports_errors
def status(*, as_json: bool) -> None:
    """Show the moves between shards, with the jobs that have moved and those that are left."""
    session = _Session(load(), as_json=as_json)
    session.show(session.moves.records)
    if session.unanswered:
        sys.exit(EXIT_FAILED)


class _Session:
    """The shards of one command, and the moves between them."""

    def __init__(self, settings: Settings, *, as_json: bool) -> None:
        self.shards: Mapping[str, Shard] = open_shards(settings, role="shards")
        self._as_json = as_json
        self._quota = Quota()
        """Asked to stop by a signal."""
        self.unanswered: list[str] = []
        for shard, late in answering(self.shards.values()):
            if (error := late or _refused(shard)) is not None:
                self._note_unanswered(shard.name, error)
        self.moves = ShardMoves({name: self.shards[name] for name in self.answering})
        with self._talking():
            self.moves.read()

    @property
    def answering(self) -> list[str]:
        return [name for name in self.shards if name not in self.unanswered]

    def require(self, *names: str) -> None:
        """End with status 75 if one of these shards does not answer. Raises MoveRefusedError for two names of one Redis."""
        if any(name in self.unanswered for name in names):
            echo(_RUN_AGAIN, err=True)
            sys.exit(EXIT_UNREACHABLE)
        with self._talking():
            check_distinct([self.shards[name] for name in self.answering])

    def plans(
        self,
        kind: MoveKind,
        name: str,
        sources: Iterable[str],
        target: str,
        percent: int,
        project: Project,
        *,
        dry_run: bool = False,
    ) -> list[_Plan]:
        """Return the moves away from those of the sources that have such jobs, or to which rules send them. Raises as ``new``.

        A move that goes on is not counted anew, which takes longer than a second for each 100,000 jobs.
        """
        found: list[_Plan] = []
        with self._talking():
            for source in sources:
                plan = _Plan(self.moves.new(kind, name, source, target, percent))
                if self._goes_on(plan.record) and not dry_run:
                    found.append(plan)
                    continue
                self.preview(plan)
                if plan.waiting or plan.stays or self._is_routed(plan.record, project):
                    found.append(plan)
        return found

    def _goes_on(self, record: MoveRecord) -> bool:
        """Return whether a command was cut off that had begun this move."""
        return self.moves.find(record.id) == record and record.state in ("moving", "undoing")

    def preview(self, plan: _Plan) -> None:
        """Count what waits on the source of a move. Raises redis errors."""
        record = plan.record
        progress = MoveProgress(plan.report)
        source, target = self.shards[record.source], self.shards[record.target]
        Mover(record, self.moves.with_record(record), source, target, progress).preview()

    def carry_out(self, rounds: Iterable[Sequence[_Plan]], *, rate: float | None) -> int:
        """Carry out the moves of each round one after the other, and show them; return the exit status."""
        quota, failed = self._quota, False
        quota.stop_on_signals()
        done: dict[str, _Plan] = {}
        with self._talking():
            for found in rounds:
                for plan in found:
                    recorded(partial(self._begin, plan))(self.shards[plan.record.source])
                for plan in found:
                    done[plan.record.id] = plan
                    try:
                        self._run(plan, quota, rate)
                    except TargetRefusedError as error:
                        echo(str(error), err=True)
                        failed = True
                if failed:
                    break
        plans = list(done.values())
        records = [self.moves.find(plan.record.id) or plan.record for plan in plans]
        self.show(records, plans)
        if quota.stopped:
            echo(
                "Stopped. Processes of both shards carry the moves on; `shards undo ID` moves the jobs back.", err=True
            )
        if self.unanswered:
            echo(_RUN_AGAIN, err=True)
            return EXIT_UNREACHABLE
        return EXIT_FAILED if failed or quota.stopped else EXIT_OK

    def rounds(
        self, first: Sequence[_Plan], source: str, again: Callable[[], Sequence[_Plan]]
    ) -> Iterator[Sequence[_Plan]]:
        """Yield the moves away from a shard again and again, until nothing there runs or belongs to an open batch."""
        yield first
        told = ""
        while not self._quota.stopped:
            kept = _kept(self.shards[source])
            if kept:
                if kept != told:
                    echo(f"{source}: {kept}; waiting until they have ended", err=True)
                told = kept
                time.sleep(_KEPT_PERIOD_S)
            # Also after the last end: it may have pushed a callback.
            yield again()
            if not kept:
                return

    def _begin(self, plan: _Plan, _source: Shard) -> int:
        """Publish a move; return how many jobs wait for it. Raises redis errors."""
        # A known record is written again: the command that made it may have been killed before all shards had it.
        waiting = plan.waiting
        if self.moves.find(plan.record.id) == plan.record:
            waiting = self.moves.counts(plan.record).left
        else:
            plan.record = self.moves.begun(plan.record, waiting)
        self.moves.publish(plan.record, self._tell_unpublished)
        return waiting

    def _run(self, plan: _Plan, quota: Quota, rate: float | None) -> None:
        plan.report = MigrationReport()
        progress = MoveProgress(plan.report, quota, _ProgressLine(plan.record))
        for _ in passes(self.moves, plan.record, progress, rate, _PASS_WAIT_S):
            pass
        if not quota.stopped and self.moves.is_current(plan.record) and plan.record.state in ("moving", "undoing"):
            plan.record = self.moves.end(plan.record)

    def show(self, records: Sequence[MoveRecord], plans: Sequence[_Plan] = ()) -> None:
        """Print moves with their progress, and what stays of those that this command has carried out."""
        with self._talking():
            facts = [_facts(record, self._counts(record)) for record in records]
        stays = [_stay_facts(plan) for plan in plans]
        if self._as_json:
            moves = [{**one, **more} for one, more in zip(facts, stays, strict=True)] if plans else facts
            echo_json({"moves": moves, "unanswered": self.unanswered})
            return
        rows = [
            (
                str(one["id"]),
                one["what"],
                one["from"],
                one["to"],
                one["state"],
                _number(one["moved"]),
                _number(one["left"]),
            )
            for one in facts
        ]
        if rows:
            echo_lines(columns([("ID", "WHAT", "FROM", "TO", "STATE", "MOVED", "LEFT"), *rows]))
        elif not self.unanswered:
            echo("No job was moved between the shards.")
        _print_stays(plans)

    def show_preview(self, plans: Sequence[_Plan]) -> None:
        """Print what would move."""
        if self._as_json:
            moves = [
                {**_facts(plan.record, MoveCounts(0, plan.waiting)), "state": "dry run", **_stay_facts(plan)}
                for plan in plans
            ]
            echo_json({"moves": moves, "dry_run": True, "unanswered": self.unanswered})
            return
        rows = [(plan.record.what, plan.record.source, plan.record.target, f"{plan.waiting:,}") for plan in plans]
        echo_lines(columns([("WHAT", "FROM", "TO", "WOULD MOVE"), *rows]))
        _print_stays(plans)

    def _counts(self, record: MoveRecord) -> MoveCounts | None:
        return self.moves.counts(record) if record.source in self.answering else None

    def _is_routed(self, record: MoveRecord, project: Project) -> bool:
        """Return whether the rules send jobs of the move to its source."""
        project.router.use_moves(self.moves.route_moves)
        for declaration in project.declarations.values():
            route = project.router.route(declaration)
            job = MovableJob(declaration.wire_name, route.queue, declaration.queue_namespace or "")
            if record.source in project.router.shards_of(declaration) and record.route_move.concerns(job):
                return True
        return False

    def _note_unanswered(self, name: str, error: ShardUnavailableError) -> None:
        self.unanswered.append(name)
        echo(str(error), err=True)

    def _tell_unpublished(self, name: str, error: BaseException) -> None:
        if isinstance(error, RedisError | OSError):
            self._note_unanswered(name, unavailable_error(name, self.shards[name].endpoint, error))

    @contextmanager
    def _talking(self) -> Generator[None]:
        """End with status 75 when a shard stops answering in the block, and with 1 when it refuses."""
        try:
            yield
        except (RedisError, OSError) as error:
            silent = [late for _, late in answering(map(self.shards.__getitem__, self.answering)) if late is not None]
            for late in silent:
                echo(str(late), err=True)
            if not silent:
                echo(f"a shard has failed: {error}", err=True)
            lasting = isinstance(error, ResponseError) and not isinstance(error, ReadOnlyError)
            if not lasting:
                echo(_RUN_AGAIN, err=True)
            sys.exit(EXIT_FAILED if lasting else EXIT_UNREACHABLE)


def _refused(shard: Shard) -> ShardUnavailableError | None:
    """Return the error of a shard whose server is not there: its connections are refused at once."""
    try:
        shard.client.time()
    except RedisConnectionError as error:
        return unavailable_error(shard.name, shard.endpoint, error)
    return None


def _kept(shard: Shard) -> str:
    """Return what must end on a shard before it is empty, for people; empty for nothing. Raises redis errors."""
    open_batches = sum(not one.finished for one in list_batches(shard))
    owners = cast("list[bytes]", shard.client.zrange(keys.REGISTRY, 0, -1))
    pipeline: Any = shard.client.pipeline(transaction=False)
    for owner in owners:
        pipeline.llen(keys.working(owner.decode(errors="replace")))
    in_flight = sum(pipeline.execute())
    batches = [format_count(open_batches, "open batch")] if open_batches else []
    return " and ".join([*batches, *([f"{format_count(in_flight, 'job')} in flight"] if in_flight else [])])


def _facts(record: MoveRecord, counts: MoveCounts | None) -> dict[str, Any]:
    return {
        "id": record.id,
        "what": record.what,
        "from": record.source,
        "to": record.target,
        "percent": record.percent,
        "epoch": record.epoch,
        "state": record.state,
        "moved": None if counts is None else counts.moved,
        "left": None if counts is None else counts.left,
    }


def _stay_facts(plan: _Plan) -> dict[str, Any]:
    return {
        "stay": [
            {"reason": reason, "queue": queue, "class": name, "jobs": jobs, "jids": jids}
            for (reason, queue, name), (jobs, jids) in sorted(plan.stays.items())
        ],
        "wrong_type_keys": sorted(plan.report.wrong_type_keys),
    }


def _print_stays(plans: Sequence[_Plan]) -> None:
    rows = [
        (plan.record.source, queue or "-", name or "-", f"{jobs:,}", reason, ", ".join(jids))
        for plan in plans
        for (reason, queue, name), (jobs, jids) in sorted(plan.stays.items())
    ]
    if rows:
        echo()
        echo("Left in place:")
        echo_lines(columns([("SHARD", "QUEUE", "CLASS", "JOBS", "WHY", "IDS"), *rows]))
        echo()
        echo_lines(f"{reason}: {text}" for reason, text in REASONS.items() if any(row[4] == reason for row in rows))
    for plan in plans:
        for key in sorted(plan.report.wrong_type_keys):
            echo(f"not scanned: {key} of {plan.record.source} has no jobs")


def _number(count: int | None) -> str:
    return "?" if count is None else f"{count:,}"


class _ProgressLine:
    """Print on standard error, once a second and only on a terminal, how far a move is."""

    def __init__(self, record: MoveRecord) -> None:
        self._record = record
        self._began = self._shown_at = time.monotonic()
        self._moved = 0

    def __call__(self, jobs: int) -> None:
        self._moved += jobs
        now = time.monotonic()
        if not sys.stderr.isatty() or now - self._shown_at < _PROGRESS_INTERVAL_S:
            return
        self._shown_at = now
        rate = self._moved / (now - self._began)
        left_s = max(0, self._record.total - self._moved) / rate
        echo(
            f"{self._record.what}: {self._moved:,} of {format_count(self._record.total, 'job')} moved, {rate:,.0f} a second, "
            f"{format_duration(left_s)} left",
            err=True,
        )
