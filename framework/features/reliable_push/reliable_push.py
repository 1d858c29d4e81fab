"""Keep pushes in a file of the process while Redis is down, within limits, and replay them in the background."""

import math
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakSet

from framework.errors import ShardUnavailableError
from framework.features.reliable_push.kept_push import KeptPush
from framework.features.reliable_push.push_file import FileSystem, PushFile, remove_file, take_over_files
from framework.features.reliable_push.replay import ReplayProgress, ReplayRound
from framework.features.reliable_push.settings import ReliablePushSettings
from framework.process_clock import process_clock
from framework.push.job_batch import JobBatch, PushFallback
from framework.shard.redis_errors import is_outage
from framework.shard.shard import Shard
from framework.supervised_threads import SupervisedThread, ThreadStartError
from framework.telemetry import logs
from framework.telemetry.logs import LogRateLimit
from framework.wire.job import generate_jid

_LOG_INTERVAL_S = 60.0
# Seconds between two rounds while a shard is down.
_OUTAGE_PERIOD_S = 1.0
# Seconds between two rounds while Redis refuses what is left.
_REFUSED_PERIOD_S = 30.0
# A file that has grown beyond this, and whose oldest pushes are replayed, gets no further pushes: its space can be freed sooner.
_ROTATION_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class KeepLimits:
    """Hold the most jobs and bytes that a process keeps, those of ended processes that it took over included."""

    max_jobs: int
    max_bytes: int


# A push is in a synced file before it returns, and leaves the file after Redis has it.
class ReliablePush(PushFallback):
    """Keep and replay pushes. Safe to share between threads, and after a fork."""

    keeps = True

    def __init__(
        self,
        folder: Path,
        limits: KeepLimits,
        shards: Mapping[str, Shard],
        *,
        files: FileSystem | None = None,
        period_s: float = _OUTAGE_PERIOD_S,
    ) -> None:
        self._folder = folder
        self._limits = limits
        self._file_system = files or FileSystem()
        self._period_s = period_s
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)
        self._round = ReplayRound(shards, lambda: self._lock)
        self._reset()
        _all.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._round_lock = threading.Lock()
        self._files: list[PushFile] = []
        self._current: PushFile | None = None
        self._looked = False
        """Whether the files of ended processes were looked for."""
        self._is_closed = False
        self._thread: SupervisedThread | None = None
        self._keeps = False
        """Whether a push was kept since all were replayed."""
        self._replayed, self._oldest_kept_at = 0, math.inf

    def reset_in_child(self) -> None:
        """Forget the files of the parent after a fork: the parent replays them."""
        files = self._files
        self._reset()
        for file in files:
            file.close()

    @property
    def kept(self) -> tuple[int, int]:
        """Return the number of jobs and of bytes that this process keeps."""
        with self._lock:
            return self._count()

    def keep(self, error: ShardUnavailableError, batch: JobBatch, token: str | None, *, locks_when_due: bool) -> None:
        """Write a batch whose write failed with ``error`` to the file of the process, and wait until it is on the disk.

        ``token`` is that of the failed write. ``locks_when_due``: a delayed job takes its lock when it is due.

        Raises:
            ShardUnavailableError: Redis refuses the push, a limit is reached, or the file cannot be written; it is not kept.
        """
        if not is_outage(error):
            raise error
        in_doubt = error.maybe_written and token is None
        push = KeptPush(error.shard, batch, token or generate_jid(), process_clock.now(), in_doubt, locks_when_due)
        # It may be in Redis under its token.
        tried = error.maybe_written and token is not None
        record = push.encode()
        with self._lock:
            self._look_for_files()
            jobs, size = self._count()
            reason = self._limit_reached(jobs + len(push.batch.jids), size + len(record))
            if reason is None:
                reason = self._append(record, push, tried=tried)
            if reason is not None:
                raise self._not_kept(error, *reason) from error
            begins, self._keeps = not self._keeps, True
            jobs, size = self._count()
            file = self._folder if self._current is None else self._current.path
            self._ensure_thread()
        self._log_kept(push.shard, jobs, size, file, begins=begins)

    def start(self) -> None:
        """Take over the files of ended processes, and replay them in the background. Costs one look into the folder."""
        with self._lock:
            self._look_for_files()
            if self._files:
                self._ensure_thread()

    def replay(self, shard: str | None = None) -> ReplayProgress:
        """Take over the files of ended processes and replay all kept pushes once, in this thread; with a shard its pushes only.

        Raises:
            OSError: the marks cannot be written.
        """
        with self._lock:
            self._looked = False
            self._look_for_files()
        return self._replay_round(shard)

    def close(self) -> None:
        """Leave all files to other processes, after the round that goes on: what is not replayed stays in them."""
        with self._round_lock, self._lock:
            self._is_closed = True
            files, self._files, self._current = self._files, [], None
        for file in files:
            file.close()

    def _look_for_files(self) -> None:
        if self._looked or self._is_closed:
            return
        self._looked = True
        own = [file.path for file in self._files]
        self._files += take_over_files(self._folder, self._file_system, own)

    def _count(self) -> tuple[int, int]:
        return sum(file.kept_jobs for file in self._files), sum(file.kept_bytes for file in self._files)

    def _limit_reached(self, jobs: int, size: int) -> tuple[str, str] | None:
        """Return the reason why a push is not kept, and the remedy; ``None`` if it is."""
        for name, value, most in (
            ("max_jobs", jobs, self._limits.max_jobs),
            ("max_bytes", size, self._limits.max_bytes),
        ):
            if value > most:
                reason = f"the limit reliable_push.{name} = {most:,} would be exceeded"
                return reason, "pushes are accepted again when Redis answers; a higher limit keeps more"
        return None

    def _append(self, record: bytes, push: KeptPush, *, tried: bool) -> tuple[str, str] | None:
        """Write a record; return the reason why it is not in the file, and the remedy."""
        try:
            if self._current is None or self._current.broken:
                self._current = PushFile.create(self._folder, self._file_system)
                self._files.append(self._current)
            self._current.append(record, push, tried=tried)
        except OSError as problem:
            return (
                f"{self._folder} cannot be written ({problem.strerror or problem})",
                "make space on its disk, or check its rights",
            )
        return None

    def _not_kept(self, error: ShardUnavailableError, reason: str, remedy: str) -> ShardUnavailableError:
        self._log_limit.error(
            f"not kept {error.shard}",
            f"pushes fail, because they can be neither written to Redis nor kept: {reason}. Remedy: {remedy}",
            "push.not_kept",
            shard=error.shard,
        )
        # A half-written record that could not be removed may be replayed.
        maybe_written = error.maybe_written or (self._current is not None and self._current.broken)
        advice = f"Redis is down, and reliable push does not keep the job: {reason}; {remedy}"
        return ShardUnavailableError(error.shard, error.reason, maybe_written=maybe_written, advice=advice)

    def _log_kept(self, shard: str, jobs: int, size: int, file: Path, *, begins: bool) -> None:
        if begins:
            logs.logger(shard=shard, file=str(file)).warning(
                "the shard is down, or the backlog of a class is full: pushes are kept in a file, and replayed when Redis takes "
                "them. Check its Redis and the network, and `jobs memory`",
                event_name="push.keeping",
            )
        self._log_limit.warning(
            f"kept {shard}",
            "pushes are kept in a file until Redis takes them",
            "push.kept",
            shard=shard,
            file=str(file),
            kept_jobs=jobs,
            kept_bytes=size,
        )

    def _ensure_thread(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        thread = SupervisedThread("framework-replay", self._run)
        # The next kept push tries again, or the next process, which takes the file over.
        with suppress(ThreadStartError):
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        """Replay until nothing is kept."""
        while True:
            try:
                result = self._replay_round()
            except Exception as error:  # noqa: BLE001 - the thread must go on: each push is safe in its file
                logs.logger().error(
                    "a replay of kept pushes failed and is repeated. Look at the error",
                    event_name="push.replay_failed",
                    error=error,
                )
                result = ReplayProgress()
            with self._lock:
                if not self._files:
                    self._thread = None
                    return
            self._pause(result)

    def _pause(self, result: ReplayProgress) -> None:
        """Wait before the next round: long if Redis refuses all that is left, until another push is kept."""
        before = self.kept
        until = time.monotonic() + (0.0 if result.down else _REFUSED_PERIOD_S)
        pause = threading.Event()
        pause.wait(self._period_s)
        while time.monotonic() < until and self.kept == before:
            pause.wait(self._period_s)

    def _replay_round(self, shard: str | None = None) -> ReplayProgress:
        result = ReplayProgress(only=shard)
        with self._round_lock:
            with self._lock:
                files = list(self._files)
            try:
                for file in files:
                    self._round.run(file, result)
            finally:
                self._finish(files, result)
        return result

    def _finish(self, files: list[PushFile], result: ReplayProgress) -> None:
        """Delete the files that are replayed, and log the end when nothing is kept any more."""
        done: list[PushFile] = []
        with self._lock:
            self._replayed += result.written + result.found
            self._oldest_kept_at = min(self._oldest_kept_at, result.oldest_kept_at)
            for file in files:
                if not file.entries:
                    done.append(file)
                    self._files.remove(file)
                    self._current = None if self._current is file else self._current
            if self._current is not None and self._current.size > _ROTATION_BYTES and (result.written or result.found):
                self._current = None
            ended = not self._files and bool(done)
            replayed, oldest = self._replayed, self._oldest_kept_at
            if ended:
                self._keeps, self._replayed, self._oldest_kept_at = False, 0, math.inf
                # At the next outage, other processes may have ended meanwhile.
                self._looked = False
        for file in done:
            remove_file(file)
        if ended and replayed:
            logs.logger().info(
                "all kept pushes are replayed; pushes go to Redis again",
                event_name="push.replayed",
                jobs=replayed,
                away_s=round(max(0.0, process_clock.now() - oldest), 3),
            )


_all: WeakSet[ReliablePush] = WeakSet()


def _reset_in_child() -> None:
    for one in list(_all):
        one.reset_in_child()


os.register_at_fork(after_in_child=_reset_in_child)


def open_reliable_push(settings: ReliablePushSettings, shards: Mapping[str, Shard]) -> ReliablePush:
    """Return the object that keeps and replays pushes in the configured folder. Opens no file."""
    chosen = settings.reliable_push
    return ReliablePush(settings.pushes_dir, KeepLimits(chosen.max_jobs, chosen.max_bytes), shards)
