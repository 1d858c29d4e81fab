"""Explain which flag drops or defers a job."""

from framework.admin.explain_reader import Blocker, ExplainReader
from framework.command_line import remedy_command
from framework.execute.admission import AdmissionStage
from framework.features.flags.explain import flags_in_force
from framework.features.flags.flag import Flag, drop_flag, run_flag
from framework.text import Sentence, format_duration


class FlagReader(ExplainReader):
    """Find the flags that drop or defer jobs."""

    def blockers(self, stage: AdmissionStage, worker: str, queue: str) -> list[Blocker]:
        del queue
        if stage == "end":
            return self._dropping(worker)
        return self._deferring(worker) if stage == "hold" else []

    def _dropping(self, worker: str) -> list[Blocker]:
        flag = flags_in_force(self.snapshot).get(drop_flag(worker))
        if flag is None or flag.percentage <= 0:
            return []
        why = Sentence(
            "jobs of {worker} are dropped ({percentage:g} %){origin}",
            worker=worker,
            percentage=flag.percentage,
            origin=_origin(flag),
        )
        return [Blocker("dropping", why, self._remedy(flag, worker))]

    def _deferring(self, worker: str) -> list[Blocker]:
        flag = flags_in_force(self.snapshot).get(run_flag(worker))
        if flag is None or flag.percentage >= 100:
            return []
        why = Sentence(
            "jobs of {worker} are deferred, {percentage:g} % of them may run{origin}",
            worker=worker,
            percentage=flag.percentage,
            origin=_origin(flag),
        )
        return [Blocker("deferring", why, self._remedy(flag, worker))]

    def _remedy(self, flag: Flag, worker: str) -> str:
        ends = (
            ""
            if flag.expires_at is None
            else Sentence("; by itself in {time}", time=format_duration(flag.expires_at - self.snapshot.now))
        )
        return f"{remedy_command('jobs', 'flags', 'clear', worker, loads_classes=True)}{ends}"


def _origin(flag: Flag) -> str:
    by = Sentence(", by {set_by}", set_by=flag.set_by) if flag.set_by else ""
    return f"{by}{f': {flag.reason}' if flag.reason else ''}"
