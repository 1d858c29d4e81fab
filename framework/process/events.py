"""What the parts of a process tell, turned into log lines, handlers, and the end of the process."""

import ssl
import threading
import time
from dataclasses import dataclass
from typing import Any

from redis.exceptions import AuthenticationError, ClusterDownError, ReadOnlyError, ResponseError

from framework.command_line import command
from framework.declare import registry
from framework.fetch.reaper import RecoveredJob
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.handlers import Handlers
from framework.finish.outcome import UnknownClass
from framework.finish.report import EXPECTED_ERRORS, JobReporter
from framework.process.held_jobs import HeldJobs
from framework.store.tls import tls_advice
from framework.telemetry import logs
from framework.telemetry.rate_limit import LogRateLimit, LogSummary
from framework.telemetry.sentry import NoTracker, Tracker
from framework.typeguards import has_type
from framework.types import JobState, Payload
from framework.wire import keys
from framework.wire.job import Job
from framework.wire.status_key import TrackedJob

_REPEAT_S = 30.0
"""A state that goes on (Redis away) is logged at its begin and then once in this time, with a count."""

_SUMMARY_S = 60.0
"""Of jobs whose class is not here there is a line per class in this time, and one of all that belong to other applications."""

_REPORT_AFTER_S = 60.0
"""Redis away for so long is reported to the error tracker, once."""

_SHOWN_BYTES = 64
_NO_ANSWER = "silent"
_LOGIN_REFUSED = "stranger"
_CERTIFICATE_REFUSED = "untrusted"
_MESSAGES = {
    _NO_ANSWER: "Redis does not answer; trying again",
    _LOGIN_REFUSED: "Redis does not accept our user and password; trying again",
    _CERTIFICATE_REFUSED: "Redis's certificate is not accepted; trying again",
}


@dataclass(slots=True)
class _Outage:
    """A trouble with Redis that goes on."""

    since: float
    last: float
    failures: int = 0
    logged: bool = False
    reported: bool = False


class ProcessEvents:
    """One object for all parts: each method is one event with one log line. Safe to call from any thread."""

    def __init__(self, shard: str, tracker: Tracker | None = None, user: str = "default") -> None:
        self._log = logs.logger(shard=shard)
        self.handlers = Handlers(self._hook_failed)
        self.tracker = tracker or NoTracker()
        self._shard = shard
        self._user = user
        self.handlers.error.append(JobReporter(self.tracker, shard))
        self.died = threading.Event()
        self._lock = threading.Lock()
        self._rate_limit = LogRateLimit(_REPEAT_S)
        self._unknown_classes = LogRateLimit(_SUMMARY_S)
        self._foreign_classes = LogSummary(_SUMMARY_S)
        self._outages: dict[str, _Outage] = {}

    def fenced(self, unit: UnitOfWork) -> None:
        self._log.warning("a job had been taken over before its end was written", job_status="fenced", queue=unit.queue)

    def lease_lost(self) -> None:
        """Told by whoever notices first: the beat, or the next call of the fetcher."""
        text = "the lease has lapsed; nothing is fetched until it is renewed"
        self._rate_limit.warning("lease", text, "lease.lost", shard=self._shard)

    def data_lost(self) -> None:
        self._log.error(
            "Redis does not know this process any more: it was flushed, or came back without its data or with old ones; "
            "jobs may be lost",
            event_name="shard.data_loss",
        )

    def eviction_unsafe(self, policy: str) -> None:
        self._log.error(
            "this Redis throws keys away when it is full, jobs and leases among them; set its maxmemory-policy to noeviction",
            event_name="config.unsafe_eviction",
            policy=policy,
        )

    def held_too_long(self, held: HeldJobs, oldest_s: float) -> None:
        behind = "a limit" if held.kind == "waiting" else "a pause"
        self._log.warning(
            f"jobs wait behind {behind} for long; {command('jobs held')} shows them, and where to release them",
            event_name="jobs.held",
            place=held.kind,
            **{"limit" if held.kind == "waiting" else "class": held.name},
            parked_jobs=held.jobs,
            oldest_s=round(oldest_s, 3),
        )

    def clock_skewed(self, seconds: float) -> None:
        self._rate_limit.warning(
            "clock",
            "this host's clock and Redis's are apart; leases and due jobs go by Redis's, times in lines and payloads by ours",
            "clock.skew",
            shard=self._shard,
            skew_s=round(seconds, 3),
        )

    def queue_wrong_type(self, queue: str) -> None:
        self._rate_limit.error(
            f"queue {queue}",
            "a queue's key is no list; look what is there (TYPE) and remove it",
            "queue.wrong_type",
            shard=self._shard,
            queue=queue,
        )

    def fetch_failed(self, error: BaseException) -> None:
        self.redis_failed("fetcher", error)

    def pipeline_failed(self, error: Exception, count: int) -> None:
        self._log.error(
            "an error of the framework's own in the exchange with Redis; trying again, and the process ends should it keep coming",
            event_name="fetch_pipeline.failed",
            count=count,
            error=error,
        )
        self._report_framework_error("exchange", error)

    def settle_failed(self, unit: UnitOfWork, error: BaseException) -> None:
        self.redis_failed(f"settler of {unit.queue}", error)

    def redis_failed(self, component: str, error: BaseException) -> None:
        """Redis did not answer, which concerns all parts and is told once for all, or it refused something of this part's."""
        trouble, now = _failure_kind(component, error), time.monotonic()
        count = self._hit(f"redis {trouble}")
        with self._lock:
            away = self._outages.get(trouble)
            if away is None or now - away.last > _REPEAT_S:  # the end of an old one was seen by nobody who would say so
                away = self._outages[trouble] = _Outage(now, now)
            away.last = now
            away.failures += 1
            away.logged = away.logged or count > 0
            report = not away.reported and time.monotonic() - away.since >= _REPORT_AFTER_S
            away.reported = away.reported or report
        if count:
            advice = tls_advice(error)
            words = _MESSAGES.get(trouble, "Redis refuses; trying again")
            self._log.error(
                f"{words}: {advice}" if advice else words,
                event_name="redis.failed",
                component=component,
                user=self._user,
                count=count,
                error=error,
            )
        if report:
            self._report_framework_error(component, error)

    def redis_answered(self, component: str) -> None:
        """Redis answers this part again: told once for all, with how long it was away, if the failure was told."""
        with self._lock:
            ended = [self._outages.pop(trouble, None) for trouble in (*_MESSAGES, component)]
        told = [away for away in ended if away is not None and away.logged]
        if told:
            self._log.info(
                "Redis answers again",
                event_name="redis.recovered",
                component=component,
                away_s=round(time.monotonic() - min(away.since for away in told), 3),
                failures=sum(away.failures for away in told),
            )

    def component_died(self, component: str, error: BaseException) -> None:
        self._log.error(
            "a thread of the framework died; the process ends",
            event_name="component.died",
            component=component,
            error=error,
        )
        self._report_framework_error(component, error)
        self.died.set()

    def _report_framework_error(self, component: str, error: BaseException) -> None:
        """Tell the error tracker of an error of the framework's own."""
        tags = {"component": component, "shard": self._shard}
        self.handlers.guard("error tracker", lambda: self.tracker.capture(error, tags, component))

    def job_failed(self, error: BaseException, facts: dict[str, Any]) -> None:
        if not has_type(error, *EXPECTED_ERRORS):
            self.handlers.call_error_handlers(error, facts)

    def unknown_class(self, unit: UnitOfWork, payload: Payload, outcome: UnknownClass) -> None:
        error, name = outcome.error, payload["class"]
        facts = {"class": name, "jid": payload.get("jid"), "queue": unit.queue}
        if outcome.gives_up:
            self._log.error(
                "a job waited too long for a process that has its class; it is in the interrupted set. Deploy the class, then push "
                "the job anew",
                job_status="quarantined",
                aw_unknown_class_count=outcome.count,
                waited_s=round(time.time() - outcome.since, 3),
                error=error,
                **facts,
            )
            self.handlers.call_error_handlers(error, {"job": payload, "queue": unit.queue})
        elif count := self._unknown_classes.hit(name):
            self._log.warning(
                "jobs meet a process that does not have their class, and wait for one that has; their retries are untouched",
                event_name="class.unknown",
                count=count,
                error=error,
                **facts,
            )

    def foreign_class(self, name: str) -> None:
        self._foreign_classes.add(name)

    def summarize_foreign(self, *, process_ends: bool = False) -> None:
        """Write the line about jobs of other applications, once a minute; and before the process ``ends``."""
        counts = self._foreign_classes.take(time.monotonic(), process_ends=process_ends)
        if counts:
            self._log.info(
                "jobs of other applications went back to the queues that this process shares with them (setting foreign_classes)",
                event_name="class.foreign",
                count=sum(counts.values()),
                classes=counts,
            )

    def malformed(self, unit: UnitOfWork, error: BaseException) -> None:
        self._log.error(
            "a payload cannot be read; its bytes are in the dead set",
            job_status="quarantined",
            queue=unit.queue,
            job_size_bytes=len(unit.data),
            payload=_payload_excerpt(unit.data),
            error=error,
        )
        self.handlers.call_error_handlers(error, {"job": {}, "queue": unit.queue})

    def status_write_failed(self, tracked: TrackedJob, state: JobState, error: BaseException) -> None:
        """The state of a tracked job was not written; the job goes on without it."""
        self._rate_limit.warning(
            "state",
            "the state of a tracked job was not written; the job goes on",
            "status.write_failed",
            shard=self._shard,
            jid=tracked.jid,
            state=state,
            error=error,
        )

    def due_job_malformed(self, source: str, data: bytes, error: BaseException) -> None:
        self._log.error(
            "a due job cannot be read; its bytes are in the dead set",
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
                "a client middleware failed for a due job; it is due again in a minute",
                source=source,
                count=count,
                error=error,
            )

    def due_set_wrong_type(self, source: str, error: BaseException) -> None:
        self._rate_limit.error(
            f"set {source}",
            "a set of due jobs cannot be read; look what is at its key (TYPE) and remove it",
            "set.wrong_type",
            shard=self._shard,
            source=source,
            error=error,
        )

    def shard_failed(self, shard: str, error: BaseException) -> None:
        self._rate_limit.error(
            f"shard {shard}",
            "another shard does not take the jobs that are due there; they are due again in a minute",
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

    def recovered(self, recovered: RecoveredJob) -> None:
        """A job of a dead process, or one that we had lost sight of, was taken back; a quarantined one's class is told."""
        job = recovered.job
        if recovered.migration_jobs:
            self._log.warning(
                "jobs were put back into their queue that a migration held when it died",
                job_status="recovered",
                cause=recovered.cause,
                owner=recovered.owner,
                destination=recovered.destination,
                count=recovered.migration_jobs,
            )
            return
        self._log.warning(
            "a job was taken back from a dead process"
            if recovered.cause == "death"
            else "a job was given back whose fetch had not been answered",
            job_status="quarantined" if recovered.quarantined or not job.worker else "recovered",
            cause=recovered.cause,
            jid=job.jid,
            owner=recovered.owner,
            destination=recovered.destination,
            **job.interruptions,
            **{"class": job.worker},
        )
        if recovered.trimmed:
            self.trimmed(recovered.trimmed, recovered.destination)
        if recovered.quarantined:
            self.run_interruptions_exhausted(job)

    def run_interruptions_exhausted(self, job: Job) -> None:
        """The class of a job that was interrupted too often is told."""
        worker: Any = registry.find(job.worker)
        if worker is not None:
            self.handlers.guard("interruptions_exhausted", lambda: worker.interruptions_exhausted(job))

    def trimmed(self, count: int, source: str = keys.DEAD) -> None:
        """The oldest entries of a set that is full, or those older than it keeps, are gone."""
        self._log.warning(f"the {source} set was trimmed", event_name=f"{source}.trimmed", count=count)

    def _hook_failed(self, what: str, error: BaseException) -> None:
        self._log.error("a hook failed; the job goes on without it", event_name="hook.failed", hook=what, error=error)

    def _hit(self, what: str) -> int:
        """Return how often ``what`` happened since its last line, 0 when it is too early for another."""
        return self._rate_limit.hit(what)


def _failure_kind(component: str, error: BaseException) -> str:
    """Return what is wrong: nobody is answered, or let in, or one part is refused (a full server, a key of a wrong type)."""
    if isinstance(error, AuthenticationError):
        return _LOGIN_REFUSED
    if isinstance(error.__context__, ssl.SSLCertVerificationError):
        return _CERTIFICATE_REFUSED
    refused = isinstance(error, ResponseError) and not isinstance(error, ReadOnlyError | ClusterDownError)
    return component if refused else _NO_ANSWER


def _payload_excerpt(data: bytes) -> str:
    return data[:_SHOWN_BYTES].decode("utf-8", "backslashreplace")
