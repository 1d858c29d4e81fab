"""Print jobs of a queue, for ``jobs list queue:NAME``."""

import sys
from collections import Counter, deque
from collections.abc import Iterator

from framework.admin.job_filter import JobFilter
from framework.admin.job_queue import QueuedJob, unknown_queue_message
from framework.admin.queue_reader import is_known, known_queues, next_jobs, read_queues, scan_places
from framework.errors import UnknownNameError
from framework.exit_codes import EXIT_FAILED
from framework.messages import did_you_mean
from framework.shard.shard import Shard
from framework.store.clock import server_time
from framework.terminal.jobs import arguments_text, job_fields
from framework.terminal.output import echo
from framework.terminal.shards import ShardCommand, progress_reporter
from framework.text import format_age
from framework.wire import keys

_HEADINGS = ("SHARD", "JID", "CLASS", "WAITS FOR", "ARGUMENTS")


class _QueueView:
    """One queue of the shards of a command."""

    def __init__(self, on: ShardCommand, queue: str, wanted: JobFilter, most: int) -> None:
        self._on = on
        self._queue = queue
        self._wanted = wanted
        self._most = most
        self.classes = Counter[str]()
        """The classes of the jobs that were examined for the filter."""

    def read(self, shard: Shard) -> tuple[float, int, list[QueuedJob]] | None:
        """Return the time, the number of matching jobs, and the next to run of them; ``None`` for an unknown queue."""
        if not is_known(shard, self._queue):
            return None
        now = server_time(shard.client)
        if not self._wanted:
            size = sum(one.size for one in read_queues(shard, [self._queue]))
            return now, size, [self._job(shard, data) for _, data in next_jobs(shard.client, self._queue, self._most)]
        count, last = 0, deque[QueuedJob](maxlen=self._most)
        for job in self._matching(shard, now):
            count += 1
            last.append(job)
        return now, count, list(reversed(last))

    def _matching(self, shard: Shard, now: float) -> Iterator[QueuedJob]:
        report = progress_reporter(shard.name)
        for scanned, (_, data) in enumerate(scan_places(shard.client, self._queue), 1):
            job = self._job(shard, data)
            self.classes.update({job.worker, job.display_class})
            report(keys.queue(self._queue), scanned)
            if self._wanted.matches(job, job.enqueued_at, now):
                yield job

    def _job(self, shard: Shard, data: bytes) -> QueuedJob:
        return QueuedJob(shard.name, data, self._on.settings.size_limit, self._queue)


def list_queue(on: ShardCommand, queue: str, wanted: JobFilter, most: int, *, as_json: bool) -> None:
    """Print the matching jobs of a queue, the next to run of each shard first, at most ``most`` of each.

    Raises:
        UnknownNameError: each shard answered, and none knows the queue.
    """
    view = _QueueView(on, queue, wanted, most)
    found = [(shard, read) for shard, read in on.each(view.read) if read is not None]
    if not found and not on.unanswered:
        known = {name for _, names in on.each(known_queues) for name in names}
        raise UnknownNameError(unknown_queue_message(queue, known))
    total = sum(count for _, (_, count, _) in found)
    if as_json:
        jobs = [{**job_fields(job), "waits_in": queue} for _, (_, _, jobs) in found for job in jobs]
        on.print_json({"place": f"queue:{queue}", "total": total, "jobs": jobs})
    else:
        rows = [
            (
                shard,
                job.jid or "-",
                job.display_class or "(malformed)",
                format_age(now, job.enqueued_at),
                arguments_text(job),
            )
            for shard, (now, _, jobs) in found
            for job in jobs
        ]
        on.print_table(_HEADINGS, rows, f"No job in {queue} matches" if wanted else f"The queue {queue} is empty")
        if total > len(rows):
            echo(f"and {total - len(rows):,} more: --most shows more")
    if wanted.cls and not total and not on.unanswered and wanted.cls not in view.classes:
        near = did_you_mean(wanted.cls, [name for name, _ in view.classes.most_common() if name])
        echo(f"no job in {queue} has the class {wanted.cls!r}{near}", err=True)
        sys.exit(EXIT_FAILED)
