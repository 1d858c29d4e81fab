"""Store the cursors of iterating jobs in Redis: ``it-JID``.

Two facts fence a write: the job is in the working list of this process, and no later run of the job has begun. So a process that was
frozen, and whose job another one has taken over, cannot change the cursor. The cursor is removed by the script that ends the job.

While Redis does not answer, an iteration waits at its next save: else more than one ``flush_interval`` would run again after a kill.
"""

import math
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import redis
from redis.exceptions import RedisError, ResponseError

from framework.declare.job_context import ExtraFields
from framework.declare.progress import JobProgress, StopReason
from framework.execute.perform import CursorStore
from framework.execute.stats import RunningJobs
from framework.features.iteration.run import IterationRun
from framework.fetch.unit_of_work import UnitOfWork
from framework.store.script import Script, is_lasting
from framework.telemetry.job_events import StreamEvent, job_events
from framework.telemetry.logs import LogRateLimit
from framework.timings import backoff_s
from framework.types import Payload
from framework.wire import keys
from framework.wire.iteration_state import (
    CURSOR,
    CURSOR_SIGNATURE,
    DONE,
    RUNTIME,
    TOTAL,
    SavedIteration,
    read_iteration,
    signed_cursor,
)
from framework.wire.job import bid_of
from framework.wire.protected import UNSIGNED_STATE, StatePlace, StateSignatures
from framework.wire.resources import slot_id

START_ITERATION = Script("iteration/start")
SAVE_ITERATION = Script("iteration/save")

ITERATIONS = "sidekiq_job_iterations_total"
"""Items of iterable jobs that were processed."""


@dataclass(frozen=True, slots=True)
class Iterated(StreamEvent):
    """A run of an iterable job has processed ``count`` items."""

    counter: ClassVar[str] = ITERATIONS


_SAVED, _CANCELLED = 1, 2
_NO_CURSOR = b"null"
_FIRST_BACKOFF_S, _MAX_BACKOFF_S = 0.05, 2.0
_LOG_PERIOD_S = 60.0


class Iterations(CursorStore):
    """The iterating jobs of one process. ``client`` is safe from any thread."""

    def __init__(
        self,
        client: "redis.Redis",
        identity: str,
        runs: RunningJobs,
        max_runtime_s: float | None = None,
        signatures: StateSignatures = UNSIGNED_STATE,
    ) -> None:
        self.client = client
        self.working = keys.working(identity)
        self.runs = runs
        self.max_runtime_s = math.inf if max_runtime_s is None else max_runtime_s
        self.signatures = signatures
        self.log = LogRateLimit(_LOG_PERIOD_S)

    def prepare(self, instance: Any, unit: UnitOfWork, payload: Payload) -> None:
        """Give the instance of a job the run that stores its cursor. Sends nothing."""
        run = RedisIteration(self, unit, payload)
        # The script that ends the job removes its cursor, also if a middleware ends it before its first item.
        unit.own_resources().iteration = run.jid
        self.adopt(instance, run)

    def adopt(self, instance: Any, run: "RedisIteration") -> None:
        instance._aw_iteration = run
        instance._aw_cancellation = run.cancellation
        instance._aw_extra = _IterationFields(run)


class _IterationFields(ExtraFields):
    """The fields of the end line: how many items this run has finished, how many all runs together, and the number of the run."""

    def __init__(self, run: "RedisIteration") -> None:
        super().__init__()
        self._run = run

    def of_features(self) -> Mapping[str, Any]:
        run = self._run
        done = 0 if run.progress is None else run.progress.done
        return {**self.line, "iterations": run.items, "iterations_done": done, "iteration_run": run.number}


class RedisIteration(IterationRun):
    """One run of an iterating job."""

    def __init__(self, iterations: Iterations, unit: UnitOfWork, payload: Payload) -> None:
        super().__init__()
        self.max_runtime_s = iterations.max_runtime_s
        self.number = 0
        """The number of this run of the job; 0 before it has begun."""
        self._iterations = iterations
        self._unit = unit
        self._worker = str(payload.get("class"))
        self.jid = slot_id(payload, unit.data)
        self._token = secrets.token_hex(8)
        self._places = [iterations.working, keys.iteration(self.jid)]
        self._place = StatePlace("cursor", keys.iteration(self.jid))
        self.cancellation = iterations.runs.watch(self.jid, bid_of(payload))

    def begin(self) -> SavedIteration:
        """See ``IterationRun``.

        Raises:
            RedisError: it does not pass: the key has another type, or a right is missing.
            StateRefusedError, MissingKeyError: the cursor is not signed as it must be.
        """
        found: list[bytes] | None = self._ask(lambda: self._run_script(START_ITERATION))
        if found is None:
            self.stopped_by = "stop"
            return SavedIteration()
        saved = read_iteration(dict(zip(found[::2], found[1::2], strict=True)))
        if saved is None:
            self.stopped_by = "lost"
            return SavedIteration()
        # Without a cursor the job begins with its first item, as after ``reset_iteration``.
        if saved.cursor != _NO_CURSOR:
            self._iterations.signatures.check(self._place, saved.cursor, saved.signature, queue=self._unit.queue)
        self.number = saved.runs
        if saved.cancelled_at is not None:
            self.cancellation.is_set = True
        if self.cancellation.cancelled:
            self.stopped_by = "cancelled"
        return saved

    def stop_reason(self) -> StopReason | None:
        stops = self._iterations.runs.stops
        if stops and (order := self._iterations.runs.stop_of(self.jid, self._unit)) and order.fate == "requeue":
            return "stop"
        if self.cancellation.is_set:
            # The job has seen it: that decides how the job ends.
            self.cancellation.seen = True
            return "cancelled"
        runs = self._iterations.runs
        return "stop" if runs.interrupted or runs.quiet else None

    def save(self, cursor: bytes, progress: JobProgress) -> StopReason | None:
        """See ``IterationRun``. Raises redis errors that do not pass."""
        reply: int | None = self._ask(lambda: self._save(cursor, progress))
        if reply == _CANCELLED:
            self.cancellation.is_set = True
            return self.stop_reason()
        return None if reply in (_SAVED, None) else "lost"

    def save_failed(self, cursor: bytes, progress: JobProgress) -> None:
        with suppress(RedisError, OSError):
            self._save(cursor, progress)

    def end(self) -> None:
        if self.items:
            job_events.emit(Iterated(self._worker, self.items))

    def _save(self, cursor: bytes, progress: JobProgress) -> int:
        fields: list[Any] = [CURSOR, cursor, RUNTIME, f"{progress.runtime_s:.6f}", DONE, progress.done]
        if progress.total is not None:
            fields += [TOTAL, progress.total]
        if (signatures := self._iterations.signatures).signs:
            fields += [CURSOR_SIGNATURE, signed_cursor(cursor, signatures.sign(self._place, cursor))]
        reply: int = self._run_script(SAVE_ITERATION, *fields)
        return reply

    def _run_script(self, script: Any, *more: Any) -> Any:
        arguments = [self._unit.data, self._token, keys.ITERATION_TTL_S, *more]
        return script(self._iterations.client, self._places, arguments)

    def _ask(self, call: Callable[[], Any]) -> Any:
        """Call until Redis answers; return ``None`` if the run is asked to stop meanwhile."""
        failures = 0
        while True:
            try:
                return call()
            except (RedisError, OSError) as error:
                if isinstance(error, ResponseError) and is_lasting(error):
                    raise
                failures += 1
                self._iterations.log.warning(
                    "save",
                    "Redis does not take the cursor of an iterating job; the job waits, and goes on when Redis answers",
                    "iteration.save_failed",
                    **{"class": self._worker, "jid": self.jid, "error": error},
                )
            if self.stop_reason() is not None:
                return None
            time.sleep(backoff_s(failures, _FIRST_BACKOFF_S, _MAX_BACKOFF_S))
