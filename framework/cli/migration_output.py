"""Format the report of ``migrate-jobs``: moved jobs by queue, jobs left in place by reason."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from framework.migrate.plan import MigrationReport, Skipped, SkipReason
from framework.migrate.queues import QueueMigrator, SetMigrator
from framework.route.split import ShardSplit
from framework.shard.shard import Shard
from framework.terminal.output import columns

_REASONS: dict[SkipReason, str] = {
    "unknown class": "no worker of this name is registered here; --class NAME with --to still moves its jobs",
    "retired class": "the class is in retired_workers: the process that fetches the job drops it",
    "chosen queue": "the push chose this queue (set(queue=...), retry_queue)",
    "other shard": "the rules name another shard, and this command moves jobs within one shard",
    "in transit": "the job is already on its way to another shard",
    "unreadable": "the payload is not a job's JSON",
    "wrong type": "the key of the target queue is not a list",
}


@dataclass
class ShardMigration:
    """The migration of one shard: its sources and its report."""

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
    """Return the tables and the summary, line by line."""
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
    """Return the report for JSON."""
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
