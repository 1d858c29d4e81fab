"""Turn the events of a process's components into log lines, handler calls, and the end of the process."""

import faulthandler
import math
import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import redis
from redis.exceptions import AuthenticationError, ClusterDownError, ReadOnlyError, ResponseError

from framework.command_line import command
from framework.declare import registry
from framework.execute.recording import ElsewhereState, JobRecorder, is_recorded_job
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import UnknownClass
from framework.finish.report import EXPECTED_ERRORS, Handlers, JobReporter, ProcessorEvents
from framework.process_clock import process_clock
from framework.recover.reaper import RecoveredJob
from framework.store.connect import tls_advice
from framework.supervised_threads import ThreadStartError
from framework.telemetry import logs
from framework.telemetry.job_events import CountedEnd, JobFenced, JobRecovered, job_events
from framework.telemetry.logs import LogRateLimit, LogSummary
from framework.telemetry.sentry import NoTracker, Tracker
from framework.text import decode_escaped
from framework.timings import STANDARD, Timings
from framework.typeguards import has_type
from framework.types import JobState, Payload
from framework.wire import keys
from framework.wire.job import Job
from framework.wire.json import loads_object
from framework.wire.status_key import TrackedJob

_REPEAT_S = 30.0
"""The period at which a lasting state (such as an unreachable Redis) is logged again, with a count."""

_SUMMARY_S = 60.0
"""The period of the lines about unknown classes (one per class) and about classes of other applications (one in all)."""

_REPORT_AFTER_S = 60.0
"""After this time an outage of Redis is reported to the error tracker, once."""

_SHOWN_BYTES = 64

_NO_ANSWER = "no answer"

_LOGIN_REFUSED = "login refused"

_CERTIFICATE_REFUSED = "certificate refused"

MESSAGES = {
    _NO_ANSWER: "Redis does not answer, and the process tries again; check the server and the network",
    _LOGIN_REFUSED: "Redis refuses the user or the password, and the process tries again; correct the setting or the ACL",
    _CERTIFICATE_REFUSED: "the process does not trust the certificate of Redis, and tries again",
}
"""The message of each kind that concerns all components."""

_STDERR = 2

DEATH_LIMIT_S = 5.0
"""The seconds from the death of a thread to the end of a worker process."""

SAFE = "noeviction"


@dataclass(slots=True)
class _Outage:
    """A failure of Redis that lasts."""

    since: float
    last: float
    failures: int = 0
    logged: bool = False
    reported: bool = False


UNKNOWN_CLASS_JOBS = "sidekiq_jobs_unknown_class_total"
_UNKNOWN = "unknown"


class ProcessEvents(ProcessorEvents):
    """Report the events of all components: each method is one event with one log line. Safe to call from any thread."""

    def __init__(
        self,
        shard: str,
        tracker: Tracker | None = None,
        user: str = "default",
        report: Literal["every", "exhausted"] = "every",
    ) -> None:
        super().__init__()
        self._log = logs.logger(shard=shard)
        self.tracker = tracker or NoTracker()
        self._shard = shard
        self._user = user
        self.moved_jobs = MovedJobs(self.handlers)
        reporter = JobReporter(self.tracker, shard, report)
        self.handlers.error.append(reporter)
        # With a handler each death takes a call of its own to Redis.
        if not isinstance(self.tracker, NoTracker):
            self.handlers.death.append(reporter.died)
        self.died = threading.Event()
        self.death_limit_s: float | None = None
        """The seconds from the death of a thread to the forced end of the process; ``None``: it goes on, or ends in its own time."""
        self._dead: set[str] = set()
        self._lock = threading.Lock()
        self._rate_limit = LogRateLimit(_REPEAT_S)
        self._unknown_classes = LogRateLimit(_SUMMARY_S)
        self._foreign_classes = LogSummary(_SUMMARY_S)
        self._outages: dict[str, _Outage] = {}

    def fenced(self, unit: UnitOfWork) -> None:
        self._log.warning(
            "another process took over a job before its end was written, so the job may run twice. Look for lease.lost above",
            job_status="fenced",
            queue=unit.queue,
        )
        job_events.emit(JobFenced(str(loads_object(unit.data).get("class", "")), queue=unit.queue))

    def lease_lost(self) -> None:
        """Report an expired lease, which either the heartbeat or the next fetch notices first."""
        text = "the lease of this process has expired; it fetches no job until the lease is renewed. Check the load of the host"
        self._rate_limit.warning("lease", text, "lease.lost", shard=self._shard)

    def data_lost(self, written_at: float, restored_at: float | None, running: Sequence[str]) -> None:
        """Report that Redis lost data: it has the state of ``restored_at``, ``None`` if it does not know the process.

        ``running`` are jobs that run in this process: Redis may not know that they do.
        """
        missing = "it no longer has the record of this process"
        if restored_at is not None:
            missing = f"it came back from a state that is {written_at - restored_at:.0f} s older"
        self._log.error(
            f"Redis has lost data: {missing}. Jobs that were pushed since then may be lost, and jobs that have ended or that run may "
            f"run again. Check Redis for a flush, a restart without persistence, or a restored backup; `{command('ledger diff')}` "
            "shows the recorded jobs that are lost",
            event_name="shard.data_loss",
            shard=self._shard,
            written_at=logs.iso_time(written_at),
            restored_at=None if restored_at is None else logs.iso_time(restored_at),
            affected_jobs=list(running),
        )

    def eviction_unsafe(self, policy: str) -> None:
        self._log.error(
            f"maxmemory-policy is {policy!r}: Redis may evict jobs and leases. Set it to noeviction",
            event_name="config.unsafe_eviction",
            policy=policy,
        )

    def held_too_long(self, kind: str, name: str, jobs: int, oldest_s: float) -> None:
        cause = "a limit" if kind == "waiting" else "a pause"
        self._log.warning(
            f"{cause} has held jobs for too long: `{command('jobs held')}` shows them and how to release them",
            event_name="jobs.held",
            place=kind,
            **{"limit" if kind == "waiting" else "class": name},
            held_jobs=jobs,
            oldest_s=round(oldest_s, 3),
        )

    def clock_skewed(self, seconds: float) -> None:
        self._rate_limit.warning(
            "clock",
            "the clocks of this host and of Redis differ. Leases and due times use the clock of Redis, log lines and payloads "
            "the clock of this host. Synchronize the clocks",
            "clock.skew",
            shard=self._shard,
            skew_s=round(seconds, 3),
        )

    def queue_wrong_type(self, queue: str) -> None:
        self._rate_limit.error(
            f"queue {queue}",
            "the key of a queue is not a list, so no process can fetch from the queue. Check the key with TYPE, then delete it",
            "queue.wrong_type",
            shard=self._shard,
            queue=queue,
        )

    def release_failed(self, error: str) -> None:
        self._rate_limit.error(
            "release",
            f"the lock, slot or state of a finished job was refused and expires: {error}. See `{command('acl worker')}`",
            "job.release_failed",
            shard=self._shard,
        )

    def fetch_failed(self, error: BaseException) -> None:
        self.redis_failed("fetcher", error)

    def pipeline_failed(self, error: Exception, count: int) -> None:
        self._log.error(
            "the fetch pipeline failed with an error of the framework. The process tries again, and ends if the error persists. "
            "Report the error",
            event_name="fetch_pipeline.failed",
            count=count,
            error=error,
        )
        self._report_framework_error("exchange", error)

    def settle_failed(self, unit: UnitOfWork, error: BaseException) -> None:
        self.redis_failed(f"settler of {unit.queue}", error)

    def redis_failed(self, component: str, error: BaseException) -> None:
        """Report that Redis did not answer, once for all components, or that it refused a command of this component."""
        trouble, now = failure_kind(component, error), process_clock.monotonic()
        count = self._hit(f"redis {trouble}")
        with self._lock:
            away = self._outages.get(trouble)
            # An old outage whose end no component has reported does not go on.
            if away is None or now - away.last > _REPEAT_S:
                away = self._outages[trouble] = _Outage(now, now)
            away.last = now
            away.failures += 1
            away.logged = away.logged or count > 0
            report = not away.reported and process_clock.monotonic() - away.since >= _REPORT_AFTER_S
            away.reported = away.reported or report
        if count:
            advice = tls_advice(error)
            message = MESSAGES.get(trouble, "Redis refuses a command, and the process tries again; look at the error")
            self._log.error(
                f"{message}: {advice}" if advice else message,
                event_name="redis.failed",
                component=component,
                user=self._user,
                count=count,
                error=error,
            )
        if report:
            self._report_framework_error(component, error)

    def redis_answered(self, component: str) -> None:
        """Report, once for all components, that Redis answers again and how long it did not, if the failure was logged."""
        with self._lock:
            ended = [self._outages.pop(trouble, None) for trouble in (*MESSAGES, component)]
        logged = [away for away in ended if away is not None and away.logged]
        if logged:
            self._log.info(
                "Redis answers again",
                event_name="redis.recovered",
                component=component,
                away_s=round(process_clock.monotonic() - min(away.since for away in logged), 3),
                failures=sum(away.failures for away in logged),
            )

    def component_died(self, component: str, error: BaseException) -> None:
        # Each thread that needs the dead one may report it, and a thread that could not be started has a report of its own. Before
        # `died` is set, the first report may have been cut off.
        if self.died.is_set() and (component in self._dead or isinstance(error, ThreadStartError)):
            return
        # First: every line below may wait for a lock that a dead thread holds.
        limit_s, self.death_limit_s = self.death_limit_s, None
        if limit_s is not None:
            force_end_after(limit_s)
        try:
            self._log.error(
                "a thread of the framework died, so the process ends with status 1. Report the error",
                event_name="component.died",
                component=component,
                error=error,
            )
            self._dead.add(component)
            self._report_framework_error(component, error)
        finally:
            # Also if there is no memory for the line.
            self.died.set()

    def _report_framework_error(self, component: str, error: BaseException) -> None:
        """Report an error of the framework itself to the error tracker."""
        tags = {"component": component, "shard": self._shard}
        self.handlers.guard("error tracker", lambda: self.tracker.capture(error, tags, component))

    def job_failed(self, error: BaseException, facts: dict[str, Any]) -> None:
        if not has_type(error, *EXPECTED_ERRORS):
            self.handlers.call_error_handlers(error, facts)

    def unknown_class(self, unit: UnitOfWork, payload: Payload, outcome: UnknownClass) -> None:
        error, name = outcome.error, payload["class"]
        # Without its name: any text may be the class of a job, and each would be a series.
        job_events.emit(CountedEnd(_UNKNOWN, counted_as=UNKNOWN_CLASS_JOBS))
        facts = {"class": name, "jid": payload.get("jid"), "queue": unit.queue}
        if outcome.gives_up:
            self._log.error(
                "no process knew the class of a job for too long; the job is in the interrupted set. Deploy the class, then "
                "push the job again",
                job_status="quarantined",
                aw_unknown_class_count=outcome.count,
                waited_s=round(time.time() - outcome.since, 3),
                error=error,
                **facts,
            )
            self.handlers.call_error_handlers(error, {"job": payload, "queue": unit.queue})
        elif count := self._unknown_classes.hit(name):
            self._log.warning(
                "this process does not know the class of these jobs. They wait for a process that does, and use no retry. Deploy the "
                "class, or retire it",
                event_name="class.unknown",
                count=count,
                error=error,
                **facts,
            )

    def foreign_class(self, name: str) -> None:
        self._foreign_classes.add(name)

    def summarize_foreign(self, *, process_ends: bool = False) -> None:
        """Write the line about jobs of other applications, once a minute and before the process ends."""
        counts = self._foreign_classes.take(process_clock.monotonic(), process_ends=process_ends)
        if counts:
            self._log.info(
                "jobs of other applications (setting foreign_classes) went back to the queues that this process shares with "
                "them",
                event_name="class.foreign",
                count=sum(counts.values()),
                classes=counts,
            )

    def malformed(self, unit: UnitOfWork, error: BaseException) -> None:
        self._log.error(
            "the payload of a job is malformed; its bytes are in the dead set",
            job_status="quarantined",
            queue=unit.queue,
            job_size_bytes=len(unit.data),
            payload=_payload_excerpt(unit.data),
            error=error,
        )
        self.handlers.call_error_handlers(error, {"job": {}, "queue": unit.queue})

    def status_write_failed(self, tracked: TrackedJob, state: JobState, error: BaseException) -> None:
        """Report that the status of a tracked job was not written; the job goes on."""
        self._rate_limit.warning(
            "state",
            "the status of a tracked job was not written; the job continues. Look at the error",
            "status.write_failed",
            shard=self._shard,
            jid=tracked.jid,
            state=state,
            error=error,
        )

    def due_job_malformed(self, source: str, data: bytes, error: BaseException) -> None:
        self._log.error(
            "the payload of a due job is malformed; its bytes are in the dead set",
            job_status="quarantined",
            source=source,
            job_size_bytes=len(data),
            payload=_payload_excerpt(data),
            error=error,
        )

    def due_job_failed(self, source: str, error: BaseException) -> None:
        count = self._hit(f"poller of {source}")
        if count:
            self._log.error(
                "a client middleware raised an error for a due job; the job is due again in a minute. Correct the middleware",
                source=source,
                count=count,
                error=error,
            )

    def due_set_wrong_type(self, source: str, error: BaseException) -> None:
        self._rate_limit.error(
            f"set {source}",
            "the key of a set of due jobs is not a sorted set, so no job of it becomes due. Check the key with TYPE, then delete it",
            "set.wrong_type",
            shard=self._shard,
            source=source,
            error=error,
        )

    def shard_failed(self, shard: str, error: BaseException) -> None:
        self._rate_limit.error(
            f"shard {shard}",
            "another shard does not accept due jobs that the rules route to it; they are due again in a minute. Check that shard",
            "shard.failed",
            shard=self._shard,
            destination=shard,
            error=error,
        )

    def due_job_dropped(self, source: str, payload: Payload) -> None:
        self._log.info(
            "a client middleware dropped a due job",
            job_status="dropped",
            source=source,
            jid=payload.get("jid"),
            **{"class": payload.get("class")},
        )
        self.moved_jobs.record(payload, "dropped", "a client middleware dropped it when it was due")

    def recovered(self, recovered: RecoveredJob) -> None:
        """Report a job that was recovered from a dead process or after a lost fetch reply; run the hook of a quarantined one."""
        job = recovered.job
        if recovered.migration_jobs:
            self._log.warning(
                "a migration was interrupted; its jobs are back in their queue. Run migrate-jobs again",
                job_status="recovered",
                cause=recovered.cause,
                owner=recovered.owner,
                destination=recovered.destination,
                count=recovered.migration_jobs,
            )
            return
        self._log.warning(
            "a job of a dead process was recovered"
            if recovered.cause == "death"
            else "a job whose fetch reply was lost was recovered",
            job_status="quarantined" if recovered.quarantined or not job.worker else "recovered",
            cause=recovered.cause,
            jid=job.jid,
            owner=recovered.owner,
            destination=recovered.destination,
            **job.interruptions,
            **{"class": job.worker},
        )
        job_events.emit(JobRecovered(job.worker, cause=recovered.cause, quarantined=recovered.quarantined))
        gone = "its process died" if recovered.cause == "death" else "the reply of its fetch was lost"
        if recovered.quarantined:
            self.moved_jobs.record(job, "quarantined", f"{gone} too often while it ran; it is in the interrupted set")
        else:
            self.moved_jobs.record(job, "interrupted", f"{gone}; the job is in its queue again")
        if recovered.trimmed:
            self.trimmed(recovered.trimmed, recovered.destination)
        if recovered.quarantined:
            self.run_interruptions_exhausted(job)

    def run_interruptions_exhausted(self, job: Job) -> None:
        """Call the hook ``interruptions_exhausted`` of a job's class."""
        worker: Any = registry.find(job.worker)
        if worker is not None:
            self.handlers.guard("interruptions_exhausted", lambda: worker.interruptions_exhausted(job))

    def trimmed(self, count: int, source: str = keys.DEAD) -> None:
        """Report that the oldest entries of a full set, or those past its retention, were removed."""
        self._log.warning(
            f"the {source} set exceeded its limits; its oldest jobs were deleted. Find out why so many jobs end there",
            event_name=f"{source}.trimmed",
            count=count,
        )

    def hook_failed(self, what: str, error: BaseException) -> None:
        self._log.error(
            "a hook or handler of the application raised an error; the job continues. Correct it",
            event_name="hook.failed",
            hook=what,
            error=error,
        )

    def _hit(self, what: str) -> int:
        """Return how often ``what`` happened since its last line, 0 while it is too early for another line."""
        return self._rate_limit.hit(what)


def _payload_excerpt(data: bytes) -> str:
    """Return the beginning of a payload that cannot be read, without the arguments if it names them."""
    shown, args, _ = data[:_SHOWN_BYTES].partition(b'"args"')
    return decode_escaped(shown + args)


def failure_kind(component: str, error: BaseException) -> str:
    """Return the kind of a failure: one that concerns all components, or the name of the component that was refused.

    A refusal (a full server, a key of a wrong type) concerns one component only.
    """
    if isinstance(error, AuthenticationError):
        return _LOGIN_REFUSED
    if isinstance(error.__context__, ssl.SSLCertVerificationError):
        return _CERTIFICATE_REFUSED
    refused = isinstance(error, ResponseError) and not isinstance(error, ReadOnlyError | ClusterDownError)
    return component if refused else _NO_ANSWER


class MovedJobs:
    """Pass such jobs to the recorder of the process. Its errors are reported by ``handlers``."""

    def __init__(self, handlers: Handlers) -> None:
        self.recorder: JobRecorder | None = None
        self._handlers = handlers

    def flush(self, timeout_s: float) -> None:
        """Write the records of this process that are not durable yet, within this time."""
        if self.recorder is not None:
            self.recorder.flush(timeout_s)

    def record(self, payload: Payload, state: ElsewhereState, reason: str) -> None:
        """Record a job, if its jobs are recorded. Raises nothing."""
        recorder = self.recorder
        if recorder is None or not payload:
            return
        worker: Any = registry.find(str(payload.get("class")))
        if is_recorded_job(payload, None if worker is None else worker.declaration()):
            queue = str(payload.get("queue") or "default")
            self._handlers.guard("task events", lambda: recorder.ended_elsewhere(payload, queue, state, reason))


def force_end_after(seconds: float) -> None:
    """End this process with status 1 in ``seconds``, unless it has ended by then. The stacks of its threads go to stderr.

    A thread without Python does it, so it waits neither for the interpreter nor for a lock. Jobs in flight stay in the working
    list, from where another process recovers them.
    """
    # Without memory, or without another thread: then the process has only its own way to end.
    with suppress(RuntimeError, MemoryError):
        # By number, because a job may have replaced `sys.stderr`.
        faulthandler.dump_traceback_later(seconds, exit=True, file=_STDERR)


# Reported, not refused: a policy that is switched at night must not stop running processes, and a managed Redis may hide it.
class EvictionCheck:
    """Report each policy except ``noeviction`` once. Use it from one thread."""

    def __init__(self, client: "redis.Redis", events: ProcessEvents, timings: Timings = STANDARD) -> None:
        self._client = client
        self._events = events
        self._period_s = timings.eviction_check_period_s
        self._checked_at = -math.inf
        self._policy = SAFE

    def check(self) -> None:
        """Read the policy once per period. Raises redis errors, except when the user may not read it."""
        now = time.monotonic()
        if now - self._checked_at < self._period_s:
            return
        try:
            found: Any = self._client.info("memory")
        # An ACL that forbids INFO leaves the policy to the owner of the server.
        except ResponseError:
            found = {}
        self._checked_at = now
        policy = str(found.get("maxmemory_policy", SAFE))
        if policy not in (SAFE, self._policy):
            self._events.eviction_unsafe(policy)
        self._policy = policy
