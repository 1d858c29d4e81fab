"""What a stopping process does with the jobs in its hands: each goes back to its queue, or was stopped too often and is given up.

Counted are the jobs that still ran when the deadline had passed. What has not begun, waits at a gate or for its turn, has given
way in time, or has ended and could not be settled goes back as it was.

Crash story: a job is moved by one script, so it is in the working list, where it is recovered as of a dead process, or at its
place. The hook ``interruptions_exhausted`` is called at most once: after the script has moved its job, so never for one that
goes on elsewhere. A process that is killed before, or never hears the script's reply, tells no class; the job is in the set.
"""

import threading

import redis

from framework.fetch.in_flight import InFlight
from framework.fetch.interruptions import InterruptedJob, InterruptionLimit, interrupt
from framework.fetch.requeue import requeue
from framework.process.events import ProcessEvents
from framework.telemetry import logs

_HOOKS_S = 1.0  # a supervisor kills 2 s after the deadline
_ADVICE_FROM_STOP = 2
"""From this stop on a job is taken for one that is longer than the deadline, and its line advises."""


class PushBack:
    """Of one process, from its main thread."""

    def __init__(
        self, client: "redis.Redis", identity: str, in_flight: InFlight, events: ProcessEvents, limit: InterruptionLimit
    ) -> None:
        self._client = client
        self._identity = identity
        self._in_flight = in_flight
        self._events = events
        self._limit = limit
        self._log = logs.logger()
        self._exhausted: list[InterruptedJob] = []
        self.returned = 0
        """How many jobs have left our hands."""

    def return_jobs(self, deadline_s: float | None) -> None:
        """Give back all that is in flight, and tell of what still runs; raises redis errors.

        ``deadline_s`` is what the jobs had for their end, ``None`` when they were not waited for.
        """
        buffered = self._in_flight.buffered()  # looked at first: a job that begins meanwhile is not missed
        # Asked once, as any of them may end meanwhile: each goes one of the two ways.
        running = {unit: unit.performing_since for unit in self._in_flight.running()}
        as_they_were = [unit for unit, since in running.items() if not since]
        as_they_were += [unit for unit in buffered if unit not in running]
        self.returned += requeue(self._client, self._identity, [(unit, unit.data) for unit in as_they_were])
        # After the others, so as to be the next to run.
        cut_off = [(unit, since) for unit, since in running.items() if since]
        for one in interrupt(self._client, self._identity, cut_off, self._limit):
            self.returned += bool(one.destination)
            self._log_interrupted(one, deadline_s)
            if one.given_up:
                self._exhausted.append(one)

    def run_exhausted_hooks(self) -> None:
        """Tell the classes of given up jobs, in a thread: a hook that hangs is left behind, as every thread of ours is."""
        if not self._exhausted:
            return
        telling = threading.Thread(target=self._run_hooks, name="interruptions-exhausted", daemon=True)
        try:
            telling.start()
        except RuntimeError as error:  # the system has no thread left
            self._log_hook_abandoned(error)
            return
        telling.join(_HOOKS_S)
        if telling.is_alive():
            self._log_hook_abandoned(TimeoutError(f"it took more than {_HOOKS_S:g} s"))

    def _log_interrupted(self, cut: InterruptedJob, deadline_s: float | None) -> None:
        job = cut.job
        facts = {"class": job.worker, "jid": job.jid, "queue": cut.queue, **job.interruptions}
        self._log.warning(
            f"{job.worker} JID-{job.jid}: interrupted: {_interruption_advice(cut, deadline_s)}",
            job_status="interrupted",
            duration_s=round(cut.ran_s, 6),
            deadline_s=deadline_s,
            destination=cut.destination,
            **facts,
        )
        if cut.given_up:
            self._log.warning(
                "a job was stopped too often at the end of its process",
                job_status="quarantined",
                cause="stop",
                destination=cut.destination,
                **facts,
            )
        if cut.trimmed:
            self._events.trimmed(cut.trimmed, cut.destination)

    def _log_hook_abandoned(self, error: BaseException) -> None:
        self._log.error(
            "the process ends without the hook of a job that was stopped too often; the job is in the interrupted set",
            event_name="hook.abandoned",
            hook="interruptions_exhausted",
            error=error,
        )

    def _run_hooks(self) -> None:
        for one in self._exhausted:
            self._events.run_interruptions_exhausted(one.job)


def _interruption_advice(cut: InterruptedJob, deadline_s: float | None) -> str:
    """Return what to do about a job that is cut off again and again, at each deployment say."""
    stops = cut.job.interrupted_count
    if not cut.destination:
        return "Redis refuses it; it is left to be recovered"
    ran = f"ran {cut.ran_s:.{0 if cut.ran_s >= 10 else 1}f} s"
    if deadline_s is None or stops < _ADVICE_FROM_STOP:
        return ran
    return f"{stops} stops, {ran}, deadline {deadline_s:g} s: iterate, split, or raise -t"
