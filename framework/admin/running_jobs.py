"""List the jobs that run now, by the records that their processes write."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from framework.admin.access import Listing, ask
from framework.admin.job_record import JobRecord
from framework.admin.port import current
from framework.admin.process_list import read_running
from framework.async_twin import async_twin
from framework.process.record import recorded_payload
from framework.settings.size_limit import SizeLimitSettings
from framework.shard.shard import Shard
from framework.text import decode_escaped
from framework.wire import keys
from framework.wire.job import timestamp
from framework.wire.json import loads_object


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that a process runs. A process writes its record every few seconds: a job that just began may be missing."""

    shard: str
    process: str
    """The identity of the process."""
    thread: str
    queue: str
    """The queue that the job came from."""
    since: float | None
    """When the job began, in epoch seconds."""
    job: JobRecord
    """The job; of a large one the record has a note in place of the arguments."""

    @property
    def jid(self) -> str:
        """The job's id."""
        return self.job.jid

    @property
    def worker(self) -> str:
        """The wire name of its class."""
        return self.job.display_class


def work(shard: str | None = None) -> Listing[RunningJob]:
    """Return the running jobs of the shard, or of all shards, the longest-running first.

    Raises:
        ShardUnavailableError: no shard answers.
        UnknownShardError: the configuration has no such shard.
    """
    sizes = current().settings.size_limit
    answers = ask(shard, lambda one: list(read_work(one, sizes)))
    found = [job for jobs in answers.by_shard.values() for job in jobs]
    return Listing(sorted(found, key=lambda job: job.since or 0.0), answers.unanswered)


awork = async_twin(work)


def read_work(shard: Shard, sizes: SizeLimitSettings) -> Iterator[RunningJob]:
    """Yield the running jobs of a shard. Raises redis errors."""
    identities = [process.identity for process in read_running(shard)]
    pipeline: Any = shard.client.pipeline(transaction=False)
    for identity in identities:
        for key in keys.work(identity):
            pipeline.hgetall(key)
    replies: list[dict[bytes, bytes]] = pipeline.execute()
    for at, identity in enumerate(identities):
        # Sidekiq writes one of the two keys, by its version; this framework writes both.
        for thread, entry in sorted((replies[2 * at] or replies[2 * at + 1]).items()):
            yield _running_job(shard.name, identity, thread, entry, sizes)


def _running_job(shard: str, identity: str, thread: bytes, entry: bytes, sizes: SizeLimitSettings) -> RunningJob:
    fields = loads_object(entry)
    queue = fields.get("queue")
    return RunningJob(
        shard,
        identity,
        decode_escaped(thread),
        queue if isinstance(queue, str) else "",
        timestamp(fields.get("run_at")),
        JobRecord(shard, recorded_payload(fields), sizes),
    )
