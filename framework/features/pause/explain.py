"""Explain which pause blocks a job: for ``jobs explain`` and ``jobs paused``."""

from typing import Any, NamedTuple

from framework.admin.explain_reader import Blocker, ExplainReader, HeldPosition
from framework.admin.search import JobLocation
from framework.command_line import remedy_command
from framework.execute.admission import AdmissionStage
from framework.features.flags.explain import flags_in_force
from framework.features.flags.flag import Flag, pause_flag
from framework.text import Sentence, decode_escaped, format_duration, stored_sentence
from framework.wire import keys


class PauseSource(NamedTuple):
    """The cause of a pause: an operator (``manual``) or a strategy; ``by`` is empty if the class is not paused."""

    manual: bool
    by: str
    reason: str
    until: float | None


def pause_source(flag: Flag | None, strategy: bytes | None) -> PauseSource:
    """Return the cause of a pause by a class's pause flag, if it is on, and by the strategy that Redis names for it."""
    if flag is not None and flag.percentage > 0:
        return PauseSource(True, flag.set_by or Sentence("an operator"), flag.reason, flag.expires_at)
    # A breaker adds its reason.
    by, _, reason = ("" if strategy is None else decode_escaped(strategy).removeprefix("=")).partition(": ")
    return PauseSource(False, by, stored_sentence(reason), None)


class PauseReader(ExplainReader):
    """Find the pause of a class."""

    def blockers(self, stage: AdmissionStage, worker: str, queue: str) -> list[Blocker]:
        del queue
        return self._of_class(worker) if stage == "hold" else []

    def held(self, location: JobLocation) -> HeldPosition | None:
        """Describe a job that a pause held; the pause may have ended."""
        if location.store.kind != "paused":
            return None
        worker = location.store.name
        why = Sentence("it was held while {worker} was paused, and the pause has ended", worker=worker)
        blockers = self._of_class(worker) or [Blocker("resuming", why, Sentence("any process, in seconds"))]
        return HeldPosition(Sentence("held by the pause of {worker}", worker=worker), blockers)

    def _of_class(self, worker: str) -> list[Blocker]:
        pause = pause_source(flags_in_force(self.snapshot).get(pause_flag(worker)), self._strategy(worker))
        if not pause.by:
            return []
        why = Sentence(
            "{worker} is paused by {by}{reason}",
            worker=worker,
            by=pause.by,
            reason=(Sentence(": {reason}", reason=pause.reason) if pause.reason else ""),
        )
        ends = (
            ""
            if pause.until is None
            else Sentence("; by itself in {time}", time=format_duration(pause.until - self.snapshot.now))
        )
        remedy = (
            f"{remedy_command('jobs', 'resume', worker, loads_classes=True)}{ends}"
            if pause.manual
            else Sentence("the end of the pause by the strategy {by}", by=pause.by)
        )
        return [Blocker("paused", why, remedy)]

    def _strategy(self, worker: str) -> bytes | None:
        """Return the strategy that pauses the class; a strategy without held jobs may have ended."""
        pipeline: Any = self.snapshot.client.pipeline(transaction=False)
        pipeline.exists(keys.paused_jobs(worker))
        pipeline.get(keys.pause_strategy(worker))
        held, strategy = pipeline.execute(raise_on_error=False)
        return strategy if held and isinstance(strategy, bytes) else None
