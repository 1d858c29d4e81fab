"""Ask the policies of a class about a job that is about to start, until Redis answers."""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol, TypeAlias, cast

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from framework.backoff import backoff_s
from framework.execute.admission import AdmissionPolicy, AdmissionRequest, ClassPolicies
from framework.execute.decoding import MemoryReservation, PayloadDecoder
from framework.execute.job_log import JobLog
from framework.execute.stats import RunningJobs
from framework.fetch.unit_of_work import FENCED
from framework.finish.endings import POLICY_REFUSED, RIGHT_REFUSED
from framework.finish.outcome import Deferred, Held, Interrupted, Lost, NotAdmitted
from framework.recover.suspects import is_suspect
from framework.telemetry.logs import error_fields
from framework.wire.compress import COMPRESSED
from framework.wire.status_key import TrackedJob

# Seconds between two tries of a policy while Redis does not answer.
_FIRST_BACKOFF_S, _MAX_BACKOFF_S = 0.05, 2.0
# Tries after an answer with an error, within a second; then the job is deferred.
_MAX_REFUSALS = 4
_REFUSED_DELAY_S = 30.0

AdmitTogether: TypeAlias = Callable[[AdmissionRequest, TrackedJob | None, ClassPolicies], None]
"""See ``GroupAdmission.admit``."""


class AdmittedRun(MemoryReservation, Protocol):
    """The run of the job: it may hold memory, and its job may be tracked."""

    tracked: TrackedJob | None


class PolicyDecision:
    """Decide whether jobs may start. Safe from any thread; ``ensure_fetching`` is called before a call to Redis."""

    def __init__(
        self,
        decoding: PayloadDecoder,
        ensure_fetching: Callable[[], None],
        log: JobLog,
        running_jobs: RunningJobs,
        admit_together: AdmitTogether | None,
    ) -> None:
        self._decoding = decoding
        self._ensure_fetching = ensure_fetching
        self._log = log
        self._running_jobs = running_jobs
        self._admit_together = admit_together

    def ask(self, request: AdmissionRequest, policies: ClassPolicies, run: AdmittedRun) -> NotAdmitted | None:
        """Return ``None`` if every policy admits the job, else the answer of the first that does not.

        A policy that has answered together with an earlier job is not asked again. Raises PayloadError and Shutdown.
        """
        unit = request.unit
        if unit.prepared is not None and unit.prepared.local_outcome is not None:
            return cast("NotAdmitted", unit.prepared.local_outcome)
        if unit.admission is None:
            if policies.local or policies.remote:
                self._decoding.decompress(request.payload, unit, run, self._ensure_fetching)
            if not policies.local_admit_all(request.declaration):
                # A local policy may run code of the application.
                self._ensure_fetching()
                if (outcome := self._ask_each(policies.local, request)) is not None:
                    return outcome
            self._ask_together(request, policies, run.tracked)
        prepared = unit.prepared
        if prepared is not None and prepared.starts:
            return None
        if (admission := unit.admission) is not None and admission.state == FENCED:
            return Lost()
        outcome = self._ask_each(policies.remote, request)
        if outcome is None and unit.has_moved:
            # Its limit was removed after the script has moved it, so no policy says so.
            return Held("concurrency_limit")
        return outcome

    def _ask_each(self, policies: Iterable[AdmissionPolicy], request: AdmissionRequest) -> NotAdmitted | None:
        for policy in policies:
            if (outcome := self._ask_policy(policy, request)) is not None:
                return outcome
        return None

    def _ask_together(self, request: AdmissionRequest, policies: ClassPolicies, tracked: TrackedJob | None) -> None:
        """Ask by one call for this job and those that start next. If Redis fails, each policy is asked about each job alone."""
        if not policies.remote and (tracked is None or request.payload.get(COMPRESSED)):
            # Unreadable arguments are found first: the state of such a job is never `running`.
            return
        if self._admit_together is not None and policies.can_group and not is_suspect(request.payload):
            with suppress(RedisError, OSError):
                self._admit_together(request, tracked, policies)
        if request.unit.admission is None:
            # Each step waits for Redis now, and perhaps long.
            self._ensure_fetching()

    def _ask_policy(self, policy: AdmissionPolicy, request: AdmissionRequest) -> NotAdmitted | None:
        """Ask one policy until Redis answers. Meanwhile the lease of this process protects the job in the working list.

        If Redis answers with an error each time, the job is deferred, which frees its thread. If a right is missing, the job is
        deferred at once: it must not run without the policy's answer, so its class waits until the right is granted.
        """
        failures = refused = 0
        while True:
            try:
                return policy.admit(request)
            except NoPermissionError as error:
                self._log.right_refused(request.declaration, error)
                return Deferred(_REFUSED_DELAY_S, RIGHT_REFUSED, error_fields(error))
            except (RedisError, ConnectionError) as error:
                if self._running_jobs.stopping:
                    return Interrupted()
                refused += isinstance(error, ResponseError)
                if refused > _MAX_REFUSALS:
                    return Deferred(_REFUSED_DELAY_S, POLICY_REFUSED, error_fields(error))
                self._log.policy_unavailable(request.unit, error)
                failures += 1
                time.sleep(backoff_s(failures, _FIRST_BACKOFF_S, _MAX_BACKOFF_S))
