"""Operators' valves: jobs of a class are dropped, or put off, while a flag says so (GitLab's SkipJobs)."""

import random
import threading
import time
from dataclasses import dataclass, replace
from typing import Any, Final

from framework.command_line import command
from framework.declare.declaration import Declaration
from framework.execute.gates import Entry
from framework.finish.outcome import Deferred, Discarded
from framework.flags.flag import Flag, Flags, drop_flag, run_flag
from framework.telemetry import logs
from framework.telemetry.counters import counters
from framework.telemetry.repeated import Repeated

REASON: Final = "feature_flag"
SKIPPED: Final = "sidekiq_jobs_skipped_total"

FORGOTTEN_S = 3 * 3_600.0
"""After so long a flag that still skips jobs is taken for forgotten (GitLab's alert)."""

_TELL_AGAIN_S = 900.0
_SPREAD = 0.5
"""Of the delay: those that are deferred together do not come back together."""


@dataclass(slots=True)
class _Skipping:
    flag: Flag
    worker: str
    action: str
    since: float
    """Epoch seconds."""
    jobs: int = 0
    """Since the last look."""


class Skips:
    """What flags keep from running: counted, and told when it goes on for so long that somebody may have forgotten it."""

    def __init__(self, flags: Flags) -> None:
        self._flags = flags
        self._skipping: dict[str, _Skipping] = {}
        self._lock = threading.Lock()
        self._told = Repeated(_TELL_AGAIN_S)

    def add(self, flag: Flag, worker: str, action: str) -> None:
        """A job was skipped."""
        counters.add(SKIPPED, worker, action=action, reason=REASON)
        with self._lock:
            known = self._skipping.get(flag.name)
            if known is None:
                since = flag.set_at if flag.set_at is not None else time.time()
                known = self._skipping[flag.name] = _Skipping(flag, worker, action, since)
            known.jobs += 1

    def look(self) -> None:
        """Tell of flags that have skipped jobs since the last look and are old; asks Redis nothing."""
        with self._lock:
            seen = [replace(one) for one in self._skipping.values()]
            for one in self._skipping.values():
                one.jobs = 0
            # Whoever sets a flag anew has not forgotten it.
            self._skipping = {n: one for n, one in self._skipping.items() if self._flags.find(n) == one.flag}
        for one in seen:
            self._judge(one)

    def _judge(self, one: _Skipping) -> None:
        lasted_s = time.time() - one.since
        if not one.jobs or lasted_s < FORGOTTEN_S or not self._told.due(one.flag.name, time.monotonic()):
            return
        logs.logger(**{"class": one.worker}).warning(
            f"jobs have been {one.action} for {lasted_s / 3_600:.1f} h by the flag {one.flag.name}: is it still wanted? "
            f"{command(f'jobs release {one.worker}')} ends it",
            event_name="flags.forgotten",
            feature_flag=one.flag.name,
            feature_flag_reason=one.flag.reason,
            set_by=one.flag.set_by,
            action=one.action,
            skipping_for_s=round(lasted_s, 3),
        )


class DropGate:
    """Drops jobs of a class, for as many in a hundred as its flag ``drop_jobs_`` says."""

    def __init__(self, flags: Flags, skips: Skips) -> None:
        self._flags = flags
        self._skips = skips

    def concerns(self, declaration: Declaration) -> bool:
        """See ``Gate``."""
        return self._flags.find(drop_flag(declaration.wire_name)) is not None

    def admit(self, entry: Entry) -> Discarded | None:
        """See ``Gate``; asks Redis nothing."""
        worker = entry.declaration.wire_name
        flag = self._flags.find(drop_flag(worker))
        if flag is None or not flag.drawn():
            return None
        self._skips.add(flag, worker, "dropped")
        why = f": {flag.reason}" if flag.reason else ""
        return Discarded(f"the flag {flag.name}{why}")


class RunGate:
    """Puts jobs of a class off, but for as many in a hundred as its flag ``run_jobs_`` says; without the flag all run."""

    def __init__(self, flags: Flags, skips: Skips, delay_s: float) -> None:
        self._flags = flags
        self._skips = skips
        self._delay_s = delay_s

    def concerns(self, declaration: Declaration) -> bool:
        """See ``Gate``."""
        return self._flags.find(run_flag(declaration.wire_name)) is not None

    def admit(self, entry: Entry) -> Deferred | None:
        """See ``Gate``; asks Redis nothing. Drawn anew each time the job comes."""
        worker = entry.declaration.wire_name
        flag = self._flags.find(run_flag(worker))
        if flag is None or flag.drawn():
            return None
        self._skips.add(flag, worker, "deferred")
        delay_s = self._delay_s * random.uniform(1 - _SPREAD, 1 + _SPREAD)
        fields: dict[str, Any] = {"feature_flag": flag.name}
        if flag.reason:
            fields["feature_flag_reason"] = flag.reason
        return Deferred(delay_s, REASON, fields)
