"""What ``migrate-jobs`` tells: which jobs went where, which were left in place and why."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from framework.cli.terminal import columns
from framework.migrate.plan import SkipReason
from framework.migrate.queues import QueueMigrator
from framework.migrate.report import MigrationReport, Skipped
from framework.migrate.sets import SetMigrator
from framework.route.split import ShardSplit
from framework.shard.shard import Shard

_REASONS: dict[SkipReason, str] = {
    "unknown class": "no worker of this name is registered here; --class NAME with --to moves its jobs all the same",
    "retired class": "it is in retired_workers: dropped by whoever fetches it from there",
    "chosen queue": "somebody chose this queue (set(queue=...), retry_queue)",
    "other shard": "the rules lead to another shard, which is not this command's to reach",
    "in transit": "it is on its way to another shard already",
    "unreadable": "it is no job's JSON",
    "wrong type": "the key of the queue it should go to is no list",
}


@dataclass
class ShardMigration:
    """One shard's part of the work: where to look, and what came of it."""

    shard: Shard
    mover: QueueMigrator | SetMigrator
    report: MigrationReport
    queues: list[str] = field(default_factory=list[str])
    """The shard's queues, when it is about queues."""
    sources: list[str] = field(default_factory=list[str])
    jobs: int = 0
    served: Collection[str] = ()
    paused: Collection[str] = ()
    splits: Sequence[ShardSplit] = ()
    """Classes of which jobs stay here, while their limits and locks hold on another shard too."""
    error: Exception | None = None


def format_text(works: Sequence[ShardMigration], what: str, *, dry_run: bool) -> list[str]:
    """Return the tables, and what it comes to, line by line."""
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
        lines += [
            f"not looked at: {key} of {work.shard.name} holds no jobs" for key in sorted(work.report.wrong_type_keys)
        ]
    total = sum(work.report.moved.total() for work in works)
    verb = "would move" if dry_run else "moved"
    stay = sum(found.jobs for *_, found in _skipped_rows(works))
    lines.append(f"{what}: {total:,} {'job' if total == 1 else 'jobs'} {verb}, {stay:,} left in place")
    return lines


def to_json(works: Sequence[ShardMigration], what: str, *, dry_run: bool) -> dict[str, Any]:
    """Return the same for JSON."""
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
            "not_looked_at": sorted(work.report.wrong_type_keys),
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
