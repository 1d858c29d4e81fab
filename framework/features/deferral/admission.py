"""Drop or defer jobs of a class by feature flags of operators (GitLab's SkipJobs)."""

import random
from typing import Any

from framework.declare.declaration import Declaration
from framework.execute.admission import AdmissionRequest
from framework.execute.outcomes import forget_cursor
from framework.features.deferral.skip_tracker import REASON, SkipTracker
from framework.features.flags.flag import Flags, drop_flag, run_flag
from framework.finish.outcome import Deferred, Discarded

_JITTER = 0.5
"""The random part of the delay: jobs that are deferred together return at different times."""


class DropFlag:
    """Drop the share of a class's jobs that its flag ``drop_jobs_`` says."""

    def __init__(self, flags: Flags, tracker: SkipTracker) -> None:
        self._flags = flags
        self._tracker = tracker

    def applies_to(self, declaration: Declaration) -> bool:
        return self._flags.find(drop_flag(declaration.wire_name)) is not None

    def admit(self, request: AdmissionRequest) -> Discarded | None:
        """See ``AdmissionPolicy``. Sends nothing to Redis."""
        worker = request.declaration.wire_name
        flag = self._flags.find(drop_flag(worker))
        if flag is None or not flag.sampled():
            return None
        self._tracker.add(flag, worker, "dropped")
        forget_cursor(request.unit, request.payload, request.declaration)
        why = f": {flag.reason}" if flag.reason else ""
        return Discarded(f"the flag {flag.name}{why}", REASON)


class DeferFlag:
    """Defer jobs of a class, except for the share that its flag ``run_jobs_`` says; without the flag all run."""

    def __init__(self, flags: Flags, tracker: SkipTracker, delay_s: float) -> None:
        self._flags = flags
        self._tracker = tracker
        self._delay_s = delay_s

    def applies_to(self, declaration: Declaration) -> bool:
        return self._flags.find(run_flag(declaration.wire_name)) is not None

    def admit(self, request: AdmissionRequest) -> Deferred | None:
        """See ``AdmissionPolicy``. Sends nothing to Redis. The flag is evaluated again each time the job comes."""
        worker = request.declaration.wire_name
        flag = self._flags.find(run_flag(worker))
        if flag is None or flag.sampled():
            return None
        self._tracker.add(flag, worker, "deferred")
        delay_s = self._delay_s * random.uniform(1 - _JITTER, 1 + _JITTER)
        fields: dict[str, Any] = {"feature_flag": flag.name}
        if flag.reason:
            fields["feature_flag_reason"] = flag.reason
        return Deferred(delay_s, REASON, fields)
